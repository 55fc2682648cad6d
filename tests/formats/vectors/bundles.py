"""Bundles that are valid, and those whose manifest is wrong by itself."""

from __future__ import annotations

import json
from typing import Any

from pieces import (
    ACCURACY,
    OTHER,
    PARITY,
    PLACEMENT,
    PROGRAM,
    SPACE,
    TASK,
    Change,
    add,
    alone,
    at,
    bank,
    changed,
    clips,
    folder,
    listed,
    prompted,
    sha256,
    streaming,
    tensor,
    tensor_file,
    text_of,
    tree,
    weights,
    window,
)


def looks_back(photos: int) -> Change:
    """Another window for a head over a window."""

    def change(document: dict[str, Any], _: dict[str, bytes | None]) -> None:
        head, program = document["heads"][0], document["artifacts"][1]
        head["personalisation"]["window"] = program["inputs"][1]["shape"][1] = program["inputs"][3]["shape"][1] = photos
        head["state"][0]["shape"][0] = head["state"][1]["shape"][0] = photos
        program["outputs"][3]["shape"][1] = photos + 1

    return change


def prompt_of(shape: list[int]) -> Change:
    """Another shape for the input of each person's own; it has two numbers, or none."""
    content = tensor_file({"prompt": ("F32", shape, b"" if 0 in shape else bytes(8)), "more": ("F32", [1], bytes(4))})

    def change(document: dict[str, Any], files: dict[str, bytes | None]) -> None:
        encoder = document["artifacts"][0]
        encoder["inputs"][1]["shape"] = shape
        encoder["inputs"].append(tensor("more", 1))
        encoder["defaults"] = listed("prompt.safetensors", content)
        files["prompt.safetensors"] = content

    return change


def wide(width: int) -> Change:
    """Features of another width; the encoder has 192 numbers more."""

    def change(document: dict[str, Any], _: dict[str, bytes | None]) -> None:
        document["artifacts"][0]["outputs"][0]["shape"][1] = document["artifacts"][1]["inputs"][0]["shape"][1] = width

    return change


def deep(name: str) -> Any:
    """A folder with one file of that name."""
    contents = {"program.onnx": PROGRAM, name: b"x"}
    made = alone()
    made["artifacts"][0] |= tree("encoder", contents)
    return made, {f"encoder/{path}": content for path, content in contents.items()}


def valid_bundles() -> None:
    add("window", "a head over a window", window(), True)
    add("number-5", "number 5 has the same fields", {**window(), "schema_version": 5}, True)
    add("streaming", "a streaming head", streaming(), True)
    add("alone", "a head without history; every field with a default is left out", alone(), True)
    add("prompted", "inputs of each person's own", prompted(), True)
    add("folder", "paths of a folder are sorted part by part", folder(), True)
    add("unlisted", "unlisted files are ignored", changed(alone(), lambda _, files: files.update(notes=b"hello")), True)
    add("indented", "white space", json.dumps(window(), indent=2) + "\n", True)
    add(
        "escaped",
        "escapes, both halves of a character",
        text_of(alone()).replace('"fox"', r'"\ud83e\udd8a\u0020\/"'),
        True,
    )
    whole = at("preprocessing.mean", [0, 0, 0])
    add("whole-mean", "a whole number is a number", changed(alone(), whole), True)
    add("clips", "an encoder of clips", clips(), True, needs=("clips",))
    add("clips-one", "an encoder of clips, one at a time", changed(clips(), at("artifacts.0.inputs.0.shape.0", 1)), True,
        needs=("clips",))  # fmt: skip
    scaled = at("preprocessing.decoder", "pillow-scaled")
    add("scaled-decoder", "a decoder that 0.2 added", changed(alone(), scaled), True)
    add(
        "full-size-decoder",
        "the default, said",
        changed(alone(), at("preprocessing.decoder", "pillow-full-size")),
        True,
    )
    add(
        "fixed-batch",
        "the first axis of photo may be 1",
        changed(alone(), at("artifacts.0.inputs.0.shape", [1, 3, 8, 8])),
        True,
    )
    add("long-path", "a path of 200 characters", changed(alone(), lambda document, files: (
        document["artifacts"][0].update(file="a" * 200), files.update({"a" * 200: PROGRAM}))), True)  # fmt: skip
    add("long-name", "a head's name of 64 characters", changed(alone(), lambda document, _: (
        document["heads"][0].update(name="a" * 64), document["artifacts"][1].update(head="a" * 64))), True)  # fmt: skip
    add("training", "training holds anything", changed(alone(), at("heads.0.training", {
        "big": 10**30, "nothing": None, "list": [1, "two", [3.5e300]]})), True)  # fmt: skip


def valid_facts() -> None:
    empty = {
        "calibration": None,
        "defaults": None,
        "personal": None,
        "parity": None,
        "placement": None,
        "accuracy": None,
    }
    add("nulls", "null where the page says so", changed(alone(), lambda document, _: (
        document.update(bank=None, task=None), document["heads"][0].update(self_test=None),
        document["artifacts"][0].update(**empty), document["artifacts"][1].update(**empty, feature_space=None))), True)  # fmt: skip
    facts = {"calibration": OTHER, "parity": PARITY, "parity_note": "", "placement": PLACEMENT, "accuracy": ACCURACY,
             "recipe": {"opset": "18"}, "parts_bytes": {"body": 4}, "producer": {"torch": "2.14"}}  # fmt: skip
    add(
        "informative",
        "all informative fields",
        changed(alone(), lambda document, _: document["artifacts"][0].update(facts)),
        True,
    )
    more = {
        "file": "other.pte",
        "runtime": "executorch",
        "sha256": sha256(b"other"),
        "size_bytes": 5,
        "feature_space": OTHER,
    }
    add("other-runtimes", "artifacts of other runtimes, also of unknown ones", changed(alone(), lambda document, files: (
        document["artifacts"].extend([{**document["artifacts"][0], **more}, {**document["artifacts"][0], "runtime": "x"}]),
        files.update({"other.pte": b"other"}))), True)  # fmt: skip
    more_parity = {"largest": {"logits": 0.5}, "typical_logits": 0.01, "accuracy_loss": -0.01}
    add(
        "parity-of-0.2",
        "fields of parity that 0.2 added",
        changed(alone(), at("artifacts.1.parity", {**PARITY, **more_parity})),
        True,
    )
    add("two-heads", "several heads", changed(alone(), lambda document, _: (
        document["heads"].append({**document["heads"][0], "name": "b"}),
        document["artifacts"].append({**document["artifacts"][1], "head": "b"}))), True)  # fmt: skip
    add("task", "a condensed bundle", {**alone(), "task": TASK}, True)
    add("task-of-the-generic-network", "a condensed bundle", {**alone(), "task": {**TASK, "mixers": []}}, True)
    add("personal", "tensors of each person's own inside a program", weights(), True)
    labels = len(window()["heads"][0]["labels"])
    sets = at("heads.0.thresholds", [0.5] * labels)
    add("sets", "a head whose answers are sets of labels", changed(window(), sets), True, "core", ("sets",))
    wrong_thresholds = {"few": [0.5] * (labels - 1), "above-1": [1.5] * labels, "below-0": [-0.5] * labels,
                        "text": ["0.5"] * labels, "null": None, "none": []}  # fmt: skip
    for name, thresholds in wrong_thresholds.items():
        made = changed(window(), at("heads.0.thresholds", thresholds))
        add(f"thresholds-{name}", "one threshold in [0, 1] for each label", made, False)
    add("bank", "a bank", bank(), True, "core", ("bank",))
    for serves, known in (("networks", True), ("shares", True), ("generic", True), ("both", False)):
        made = changed(bank(), at("bank.self_improvement", serves))
        add(f"bank-serves-{serves}", "what a bank's owners get", made, known, "core", ("bank",))
    add("upgrade", "heads without an encoder", changed(alone(), at("artifacts.0", ...)), True, "core", ("upgrade",))


def wrong_json() -> None:
    text = text_of(alone())
    for name, content in {
        "empty": "", "array": "[]", "null": "null", "truncated": text[:-1], "two": text + "{}", "half": text[: len(text) // 2],
        "trailing-comma": text[:-1] + ",}", "comment": text + "//", "byte-order-mark": "\ufeff" + text,
        "not-a-number": text.replace('"window":0', '"window":NaN'), "leading-zero": text.replace('"window":0', '"window":00'),
        "plus": text.replace('"window":0', '"window":+0'), "bare-fraction": text.replace("0.25", "0."),
        "no-exponent": text.replace("0.25", "0.25e"), "infinite": text.replace("0.25", "1e999"),
        "single-quotes": text.replace('"fox"', "'fox'"), "control-character": text.replace('"fox"', '"f\nox"'),
        "half-a-character": text.replace('"fox"', r'"\ud83e"'), "wrong-halves": text.replace('"fox"', r'"\udd8a\ud83e"'),
        "wrong-escape": text.replace('"fox"', r'"\x66ox"'), "foreign-digits": text.replace('"fox"', '"\\u٠٠٦٦ox"'),
        "number-twice": text[:-1] + ',"schema_version":6}', "twice-null-first": text.replace('"name":"example"', '"name":null,"name":"x"'),
        "twice-inside": text.replace('"name":"photo"', '"name":"photo","name":"photo"'),
        "twice-unread": text.replace('"producer":{}', '"producer":{"a":"1","a":"2"}', 1),
    }.items():  # fmt: skip
        add(f"json-{name}", "JSON is RFC 8259, an object, and names each member once", content, False)
    add("json-not-utf-8", "JSON is UTF-8", text.encode().replace(b"fox", b"f\xffx"), False)
    add("json-utf-16", "JSON is UTF-8", text.encode("utf-16"), False)


def wrong_fields() -> None:
    for value in (4, 7, 0, -6, 6.0, "6", None, True, ...):
        name = "missing" if value is ... else text_of(value).strip('"')
        add(
            f"schema-{name}-{type(value).__name__}",
            "schema_version is 5 or 6",
            changed(alone(), at("schema_version", value)),
            False,
        )
    places = ("", "preprocessing.", "artifacts.0.", "artifacts.0.inputs.0.", "heads.0.", "heads.0.personalisation.",
              "heads.0.state.0.", "heads.0.self_test.", "heads.0.self_test.answers.eager.0.", "self_test_photos.0.")  # fmt: skip
    for place in places:
        add(f"unknown-{place}field", "unknown fields are refused", changed(window(), at(f"{place}novelty", 1)), False)
    required = {
        "": "name preprocessing artifacts heads", "preprocessing.": "resize_shorter crop mean std",
        "artifacts.0.": "role runtime precision file sha256 size_bytes inputs outputs min_runtime_version producer feature_space",
        "artifacts.1.": "head accepts", "artifacts.0.inputs.0.": "name dtype shape",
        "heads.0.": "name labels personalisation", "heads.0.personalisation.": "method window gate",
        "heads.0.state.0.": "name source dtype shape update", "heads.0.self_test.": "answers tolerance",
        "heads.0.self_test.answers.eager.0.": "label logit margin", "self_test_photos.0.": "file sha256 size_bytes",
    }  # fmt: skip
    informative = ("producer",)
    for place, names in required.items():
        for name in names.split():
            part = "informative" if name in informative else "core"
            add(
                f"missing-{place}{name}",
                "required fields must be there",
                changed(window(), at(place + name, ...)),
                False,
                part,
            )
            add(
                f"null-{place}{name}",
                "null only where the page says so",
                changed(window(), at(place + name, None)),
                False,
                part,
            )
    for path in ("self_test_photos", "artifacts.0.head", "preprocessing.resize_filter", "heads.0.state",
                 "heads.0.personalisation.form", "heads.0.personalisation.carrier", "heads.0.state.0.axis",
                 "preprocessing.apply_exif_orientation", "heads.0.training"):  # fmt: skip
        part = "informative" if path.endswith("training") else "core"
        add(f"null-{path}", "null only where the page says so", changed(window(), at(path, None)), False, part)


def wrong_values() -> None:
    for path, value in {
        "preprocessing.crop": "8", "preprocessing.resize_shorter": 8.0, "name": 5, "heads.0.labels": "fox",
        "heads.0.labels.0": 1, "artifacts": {}, "heads": {}, "preprocessing": [], "artifacts.0.inputs.0.shape": [1, 3, 8, 8.0],
        "artifacts.0.outputs.0.shape": [None, 4], "artifacts.0.size_bytes": "1", "artifacts.1.accepts": SPACE,
        "heads.0.personalisation.window": True, "preprocessing.apply_exif_orientation": "yes",
        "preprocessing.mean": [0.5, 0.5], "preprocessing.std": [0.5, 0.5, "0.5"], "heads.0.state.0.shape": ["W", 4],
    }.items():  # fmt: skip
        add(f"type-{path}", "each field has its type", changed(window(), at(path, value)), False)
    for path, value in {
        "preprocessing.crop": 9, "preprocessing.resize_shorter": 0, "preprocessing.std": [0.25, 0, 0.25],
        "preprocessing.std.": [0.25, -1, 0.25], "preprocessing.resize_filter": "nearest", "preprocessing.decoder": "fast",
        "preprocessing.decoder.": "PILLOW-SCALED", "preprocessing.decoder..": None,
        "preprocessing.colour_order": "BGR", "preprocessing.layout": "NHWC", "artifacts.0.role": "tail",
        "artifacts.0.precision": "fp8", "artifacts.0.size_bytes": -1, "artifacts.0.size_bytes.": 2**32 + 1,
        "artifacts.0.inputs.0.dtype": "float64", "artifacts.1.accepts.0": "A" * 64, "artifacts.1.accepts.0.": "a" * 63,
        "artifacts.0.feature_space": "z" * 64, "artifacts.0.sha256": OTHER, "heads.0.personalisation.window": -1,
        "heads.0.personalisation.form": "tree", "heads.0.personalisation.carrier": "pigeon", "heads.0.state.0.update": "stack",
        "heads.0.state.0.dtype": "float16", "heads.0.state.0.axis": 2, "heads.0.state.0.axis.": -1,
        "heads.0.self_test.answers.eager.0.margin": -0.5, "heads.0.state.0.shape": [-3, -4],
    }.items():  # fmt: skip
        add(f"range-{path}", "each field has its range", changed(window(), at(path.rstrip("."), value)), False)


def wrong_frames() -> None:
    for number, value in enumerate((None, "3", 3.0, True, 1, 0, -3, 1025)):
        add(
            f"frames-{number}",
            "a clip has 2 to 1024 frames",
            changed(clips(), at("preprocessing.frames", value)),
            False,
        )
    unfit = {"another-number": [3, 4, 3, 8, 8], "a-photo": ["batch", 3, 8, 8], "free": ["batch", "frames", 3, 8, 8]}
    for name, shape in unfit.items():
        made = changed(clips(), at("artifacts.0.inputs.0.shape", shape))
        add(f"frames-unfit-{name}", "an encoder takes the clips that the manifest states", made, False)
    shape = at("artifacts.0.inputs.0.shape", ["batch", 3, 3, 8, 8])
    add("frames-unstated", "an encoder takes photos where no frames are stated", changed(alone(), shape), False)


def precisions() -> None:
    """Programs of every precision beside those of fp32; int8 is what 0.1 wrote."""
    for name in ("fp16", "w8a8", "w8a16", "w16", "w8", "palette6", "int8"):
        add(f"precision-{name}", "names of precisions", changed(alone(), lambda document, _, name=name: (
            document["artifacts"].extend({**a, "precision": name} for a in list(document["artifacts"])))), True)  # fmt: skip


def wrong_names() -> None:
    for number, path in enumerate(("../head.onnx", "a/../head.onnx", "/head.onnx", "a//b", "head.onnx/", "", "C:head.onnx",
                                   "a\\b", "köpfe.onnx", "head onnx", "head.onnx\n", "a" * 201)):  # fmt: skip
        add(f"path-{number}", "what a path is", changed(alone(), at("artifacts.1.file", path)), False)
    for number, path in enumerate(("./head.onnx", "a/./b", ".")):
        add(f"path-dot-{number}", "what a path is", changed(alone(), at("artifacts.1.file", path)), False)
    add("path-of-a-photo", "what a path is", changed(window(), at("self_test_photos.0.file", "../photo.png")), False)
    add(
        "path-of-defaults",
        "what a path is",
        changed(prompted(), at("artifacts.0.defaults.file", "../prompt.safetensors")),
        False,
    )
    add("sha-line-feed", "what a SHA-256 is", changed(alone(), at("artifacts.0.sha256", sha256(PROGRAM) + "\n")), False)
    add(
        "sha-upper-case",
        "what a SHA-256 is",
        changed(alone(), at("artifacts.0.sha256", sha256(PROGRAM).upper())),
        False,
    )
    for number, name in enumerate(("", ".hidden", "a b", "a/b", "a" * 65, "fuchs\n", "füchse")):
        add(f"head-name-{number}", "what a head's name is", changed(alone(), lambda document, _, name=name: (
            document["heads"][0].update(name=name), document["artifacts"][1].update(head=name))), False)  # fmt: skip


def limits() -> None:
    """The largest of what is accepted, and the smallest of what is not."""
    add(
        "limit-side", "resize_shorter is at most 8192", changed(alone(), at("preprocessing.resize_shorter", 8192)), True
    )
    for name in ("resize_shorter", "crop"):
        add(f"limit-{name}-beyond", "resize_shorter and crop are at most 8192", changed(alone(), lambda document, _, name=name: (
            document["preprocessing"].update({"resize_shorter": 8193, name: 8193}))), False)  # fmt: skip
    for photos in (2**20, 2**20 + 1):
        fits = photos == 2**20
        add(f"limit-window-{photos}", "window is at most 1048576", changed(window(), looks_back(photos)), fits)
    for axes in (16, 17):
        add(
            f"limit-axes-{axes}",
            "a tensor has at most 16 axes",
            changed(prompted(), prompt_of([1] * (axes - 1) + [2])),
            axes == 16,
        )
    beyond = at("heads.0.state.0.shape", [3] + [1] * 15 + [4])
    add("limit-axes-of-a-state", "a state has at most 16 axes", changed(window(), beyond), False)
    for width in (2**26 - 192, 2**26 - 191):
        add(f"limit-numbers-{width}", "inputs and outputs have at most 67108864 numbers, a free axis counts as 1",
            changed(alone(), wide(width)), width + 192 == 2**26)  # fmt: skip
    for name, shape in {"product": [2**31 - 1] * 16, "none": [0, 2**31], "name": ["batch", 2**31]}.items():
        add(f"limit-size-{name}", "an axis is below 2147483648, and numbers are at most 67108864",
            changed(prompted(), at("artifacts.0.inputs.1.shape", shape)), False)  # fmt: skip
    add(
        "limit-none",
        "a tensor without numbers, whatever its other axes",
        changed(prompted(), prompt_of([2**31 - 1, 0])),
        True,
    )
    add(
        "limit-state",
        "states have at most 67108864 numbers",
        changed(window(), at("heads.0.state.1.shape", [3, 2**26])),
        False,
    )
    limits_of_bytes()


def limits_of_bytes() -> None:
    small = 2**28 + 1
    add(
        "limit-photo",
        "a photo has at most 268435456 bytes",
        changed(window(), at("self_test_photos.0.size_bytes", small)),
        False,
    )
    add(
        "limit-defaults",
        "defaults have at most 268435456 bytes",
        changed(prompted(), at("artifacts.0.defaults.size_bytes", small)),
        False,
    )
    add("limit-bundle", "all files have at most 68719476736 bytes together", changed(alone(), lambda document, _: document["artifacts"].extend(
        {**document["artifacts"][0], "runtime": f"r{number}", "size_bytes": 2**32} for number in range(16))), False)  # fmt: skip
    add("limit-levels", "a file of a folder is at most 15 folders below it", deep("a/" * 15 + "b"), True)
    add("limit-levels-beyond", "a file of a folder is at most 15 folders below it", deep("a/" * 16 + "b"), False)
    add("folder-name", "files of a folder have plain names", deep("a b"), False)
    add("folder-long-name", "a path below a folder has at most 200 characters", deep("a" * 101 + "/" + "b" * 99), False)
    add("limit-personal-axes", "a personal tensor has at most 16 axes", changed(weights(), lambda document, _: (
        document["artifacts"][0]["personal"]["tensors"][0].update(shape=[3, 2] + [1] * 15), [
            piece.update(axes=[*range(17)]) for piece in document["artifacts"][0]["personal"]["tensors"][0]["pieces"]])), False, "personal")  # fmt: skip


def versions() -> None:
    for version in ("1", "1.2.3.4.5.6", "1.28.0+cu12", "2.0.0-rc1", "1.0.0.dev20261101", "9" * 49):
        add(
            f"version-{version}",
            "what a version is",
            changed(alone(), at("artifacts.0.min_runtime_version", version)),
            True,
        )
    for number, version in enumerate(
        ("", "latest", "v1.20", "1.20\n", "1.20 ", " 1.20", ".1", "9" * 50, "1_2", "١.٢", 1.2)
    ):
        add(
            f"version-wrong-{number}",
            "what a version is",
            changed(alone(), at("artifacts.0.min_runtime_version", version)),
            False,
        )


GROUPS = (
    valid_bundles,
    valid_facts,
    precisions,
    limits,
    versions,
    wrong_json,
    wrong_fields,
    wrong_values,
    wrong_frames,
    wrong_names,
)
