"""Writes the vectors beside it from what docs/formats states, without any code of Refocus.

Run it after changing it: ``python tests/formats/vectors/make.py``. Its output does not depend on the machine.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NUMBER = 6
# An ONNX model of one Identity: what programs compute is no matter of these vectors.
PROGRAM = base64.b64decode(
    "CAoSADo3ChAKAXgSAXkiCElkZW50aXR5EgFnWg8KAXgSCgoICAESBAoCCAFiDwoBeRIKCggIARIECgIIAUIECgAQEg=="
)
PHOTO = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC")
SPACE, OTHER = "a" * 64, "b" * 64

Change = Callable[[dict[str, Any], dict[str, bytes | None]], object]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def listed(file: str, content: bytes) -> dict[str, Any]:
    return {"file": file, "sha256": sha256(content), "size_bytes": len(content)}


def tree(file: str, contents: dict[str, bytes]) -> dict[str, Any]:
    lines = "".join(f"{name} {sha256(contents[name])}\n" for name in sorted(contents, key=lambda name: name.split("/")))
    return {"file": file, "sha256": sha256(lines.encode()), "size_bytes": sum(map(len, contents.values()))}


def tensor_file(tensors: dict[str, tuple[str, list[int], bytes]], about: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {"__metadata__": about} if about else {}
    end = 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(content)]}
        end += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text + b"".join(content for _, _, content in tensors.values())


PROMPT = tensor_file({"prompt": ("F32", [1, 2], struct.pack("<2f", 1, -1))})
FILES = {"encoder.onnx": PROGRAM, "head.onnx": PROGRAM, "prompt.safetensors": PROMPT, "photo.png": PHOTO}


# ---- bundles


def tensor(name: str, *shape: int | str, dtype: str = "float32") -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": [*shape]}


def state(name: str, source: str, *shape: int, update: str, axis: int = 0) -> dict[str, Any]:
    return {"name": name, "source": source, "dtype": "float32", "shape": [*shape], "update": update, "axis": axis}


def artifact(role: str, **more: Any) -> dict[str, Any]:
    of_role = {"feature_space": SPACE} if role == "encoder" else {"accepts": [SPACE], "head": "animals"}
    return {"role": role, "runtime": "onnxruntime", "precision": "fp32", **listed(f"{role}.onnx", PROGRAM),
            "min_runtime_version": "1.20", "producer": {}, **of_role, **more}  # fmt: skip


def answers(attention: int) -> list[dict[str, Any]]:
    logits = [tensor(name, 1, 2) for name in ("plain_logits", "calibrated_logits", "logits")]
    return [*logits, tensor("attention", 1, attention), tensor("trust", 1)]


def manifest(inputs: list[Any], outputs: list[Any], head: dict[str, Any]) -> dict[str, Any]:
    encoder = artifact("encoder", inputs=[tensor("photo", "batch", 3, 8, 8)], outputs=[tensor("feature", "batch", 4)])
    return {
        "schema_version": NUMBER,
        "name": "example",
        "preprocessing": {"resize_shorter": 8, "crop": 8, "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
        "artifacts": [encoder, artifact("head", inputs=inputs, outputs=outputs)],
        "heads": [{"name": "animals", "labels": ["fox", "otter"], **head}],
    }


def window() -> dict[str, Any]:
    """A head over the three newest features, which keeps one row of two numbers per photo; with a self-test."""
    inputs = [tensor("feature", 1, 4), tensor("history", 1, 3, 4), tensor("history_length", 1, dtype="int64"),
              tensor("traits", 1, 3, 2)]  # fmt: skip
    head = {
        "personalisation": {"method": "iciia", "window": 3, "gate": "statistics", "form": "window", "carrier": "none"},
        "state": [state("history", "feature", 3, 4, update="append"), state("traits", "trait", 3, 2, update="append")],
        "self_test": {"answers": {"eager": [{"label": "fox", "logit": 1.5, "margin": 0.5}]},
                      "tolerance": {"fp32": 0.002}},
        "training": {"checkpoint_sha256": OTHER},
    }  # fmt: skip
    made = manifest(inputs, [*answers(4), tensor("trait", 1, 2)], head)
    return {**made, "self_test_photos": [listed("photo.png", PHOTO)]}


def streaming() -> dict[str, Any]:
    inputs = [tensor("feature", 1, 4), tensor("history_length", 1, dtype="int64"), tensor("keys", 2, 3, 2)]
    how = {"method": "iciia", "window": 6, "gate": "statistics", "form": "streaming"}
    head = {"personalisation": how, "state": [state("keys", "key", 2, 3, 2, update="ring", axis=1)]}
    return manifest(inputs, [*answers(4), tensor("key", 2, 1, 2)], head)


def alone() -> dict[str, Any]:
    """A head without history."""
    how = {"method": "plain", "window": 0, "gate": "none", "form": "none"}
    return manifest([tensor("feature", 1, 4)], answers(1), {"personalisation": how})


def prompted() -> dict[str, Any]:
    """An encoder with an input of each person's own."""
    made = alone()
    made["artifacts"][0]["inputs"].append(tensor("prompt", 1, 2))
    made["artifacts"][0]["defaults"] = listed("prompt.safetensors", PROMPT)
    made["heads"][0]["personalisation"]["carrier"] = "inputs"
    return made


INSIDE = {"program.onnx": PROGRAM, "data/weights.bin": bytes(64), "data.bin": b"\1"}


def folder() -> tuple[dict[str, Any], dict[str, bytes | None]]:
    """An encoder that is a folder; its files are in another order if paths are sorted as texts."""
    made = alone()
    made["artifacts"][0] |= tree("encoder", INSIDE)
    return made, {f"encoder/{name}": content for name, content in INSIDE.items()}


def weights() -> tuple[dict[str, Any], dict[str, bytes | None]]:
    """An encoder with a tensor of each person's own inside, in two pieces, one of them turned."""
    made, files = folder()
    pieces = [{"first": 0, "last": 2, "offset": 0, "dtype": "float32", "axes": [0, 1]},
              {"first": 2, "last": 3, "offset": 48, "dtype": "float16", "axes": [1, 0]}]  # fmt: skip
    tensors = [{"name": "norm", "shape": [3, 2], "pieces": pieces}]
    made["artifacts"][0]["personal"] = {"file": "data/weights.bin", "tensors": tensors}
    made["heads"][0]["personalisation"]["carrier"] = "weights"
    return made, files


def bank() -> tuple[dict[str, Any], dict[str, bytes | None]]:
    made, files = folder()
    words = tensor_file({"descriptions": ("F32", [1, 2, 1], bytes(8))})
    inside = {"rows.bin": bytes(2 * 6 * 4), "words.safetensors": words}
    columns = [{"name": "fc.bias", "shape": [2], "start": 0, "stop": 2, "mixer": 0},
               {"name": "fc.weight", "shape": [2, 2], "start": 2, "stop": 6, "mixer": 0}]  # fmt: skip
    placed = [{"name": "fc.weight", "offset": 0, "dtype": "float32", "axes": [0, 1]}]
    made["bank"] = {
        **tree("bank", inside), "bases": 2, "mixers": 1, "columns": columns, "folds": [], "classifier": "fc",
        "domains": [""], "text_encoder": "none", "prompts": ["{}"],
        "weight_files": [{"artifact": "encoder", "file": "data/weights.bin", "tensors": placed}],
    }  # fmt: skip
    return made, {**files, **{f"bank/{name}": content for name, content in inside.items()}}


TASK = {"classes": ["fox"], "description": "a fox", "domain": "", "mixers": [[0.5, 0.5]], "bank": OTHER}
PARITY = {"photos": 1, "profiles": 1, "longest_history": 1, "max_abs": 0.0, "p99_abs": 0.0, "top1_agreement": 1.0,
          "tolerance": 0.001, "reason": "rounding"}  # fmt: skip
PLACEMENT = {"asked": "CPUExecutionProvider", "operators": {"CPUExecutionProvider": {"Identity": 1}},
             "fallbacks": {"NonZero": "not supported"}, "how": "measured"}  # fmt: skip
ACCURACY = {"data": "letters", "photos": 9, "people": 3, "delivered": 0.9, "plain": 0.8, "worst_decile": 0.7,
            "reference": "onnxruntime:fp32", "change": [0, -0.1, 0.1], "made_worse": 0.25}  # fmt: skip

VECTORS: list[dict[str, Any]] = []


def text_of(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def add(name: str, rule: str, made: Any, valid: bool, part: str = "core", needs: tuple[str, ...] = ()) -> None:
    document, files = made if isinstance(made, tuple) else (made, {})
    if isinstance(document, dict):
        document = text_of(document)
    about = spliced(document) if isinstance(document, str) else {"base64": base64.b64encode(document).decode()}
    given = {path: None if value is None else base64.b64encode(value).decode() for path, value in files.items()}
    VECTORS.append({"name": name, "rule": rule, "valid": valid, "part": part, "needs": [*needs], "manifest": about,
                    "files": given})  # fmt: skip


def spliced(text: str) -> dict[str, Any]:
    """The base that a text differs least from, and where: ``cut`` characters from ``at`` on are replaced by ``text``."""
    return min((splice(name, base, text) for name, base in bases().items()), key=lambda found: len(found["text"]))


def splice(name: str, base: str, text: str) -> dict[str, Any]:
    most = min(len(base), len(text))
    front = next((i for i in range(most) if base[i] != text[i]), most)
    back = next((i for i in range(most - front) if base[-1 - i] != text[-1 - i]), most - front)
    return {"base": name, "at": front, "cut": len(base) - front - back, "text": text[front : len(text) - back]}


def bases() -> dict[str, str]:
    """Manifests that the others are changes of; ASCII alone."""
    found = {"window": window(), "streaming": streaming(), "alone": alone(), "prompted": prompted(), "folder": folder()[0],
             "weights": weights()[0], "bank": bank()[0]}  # fmt: skip
    return {name: text_of(document) for name, document in found.items()}


def changed(base: Any, change: Change) -> tuple[dict[str, Any], dict[str, bytes | None]]:
    document, files = copy.deepcopy(base if isinstance(base, tuple) else (base, {}))
    change(document, files)
    return document, files


def at(path: str, value: Any) -> Change:
    """Puts a value at a path, as ``heads.0.labels``; ``...`` removes what is there."""

    def change(document: dict[str, Any], files: dict[str, bytes | None]) -> None:
        *outer, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        place: Any = document
        for part in outer:
            place = place[part]
        if value is ...:
            del place[last]
        else:
            place[last] = value

    return change


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
    add("two-heads", "several heads", changed(alone(), lambda document, _: (
        document["heads"].append({**document["heads"][0], "name": "b"}),
        document["artifacts"].append({**document["artifacts"][1], "head": "b"}))), True)  # fmt: skip
    add("task", "a condensed bundle", {**alone(), "task": TASK}, True)
    add("personal", "tensors of each person's own inside a program", weights(), True)
    add("bank", "a bank", bank(), True, "core", ("bank",))
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
        "preprocessing.colour_order": "BGR", "preprocessing.layout": "NHWC", "artifacts.0.role": "tail",
        "artifacts.0.precision": "fp8", "artifacts.0.size_bytes": -1, "artifacts.0.size_bytes.": 2**32 + 1,
        "artifacts.0.inputs.0.dtype": "float64", "artifacts.1.accepts.0": "A" * 64, "artifacts.1.accepts.0.": "a" * 63,
        "artifacts.0.feature_space": "z" * 64, "artifacts.0.sha256": OTHER, "heads.0.personalisation.window": -1,
        "heads.0.personalisation.form": "tree", "heads.0.personalisation.carrier": "pigeon", "heads.0.state.0.update": "stack",
        "heads.0.state.0.dtype": "float16", "heads.0.state.0.axis": 2, "heads.0.state.0.axis.": -1,
        "heads.0.self_test.answers.eager.0.margin": -0.5, "heads.0.state.0.shape": [-3, -4],
    }.items():  # fmt: skip
        add(f"range-{path}", "each field has its range", changed(window(), at(path.rstrip("."), value)), False)


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


def wrong_relations() -> None:
    def head(document: dict[str, Any]) -> Any:
        return document["artifacts"][1]

    rules: dict[str, tuple[str, Change]] = {
        "encoder-accepts": ("an encoder accepts nothing", at("artifacts.0.accepts", [SPACE])),
        "encoder-with-head": ("an encoder names no head", at("artifacts.0.head", "animals")),
        "head-with-space": ("a head has no feature space", at("artifacts.1.feature_space", SPACE)),
        "head-accepts-none": ("a head accepts a space", at("artifacts.1.accepts", [])),
        "head-accepts-another": ("a head accepts an encoder's space", at("artifacts.1.accepts", [OTHER])),
        "head-unnamed": ("a head artifact names its head", at("artifacts.1.head", "")),
        "head-unknown": ("heads are those of the artifacts", at("artifacts.1.head", "plants")),
        "heads-empty": ("there is a head", at("heads", [])),
        "labels-empty": ("there is a label", at("heads.0.labels", [])),
        "heads-twice": ("names of heads are distinct", lambda document, _: document["heads"].append(document["heads"][0])),
        "head-without-artifact": ("heads are those of the artifacts", lambda document, _: document["heads"].append({**document["heads"][0], "name": "b"})),
        "artifact-twice": ("one artifact of each role, head, runtime and precision", lambda document, _: document["artifacts"].append(head(document))),
        "answers-missing": ("one answer per photo", at("heads.0.self_test.answers.eager", [])),
        "answers-of-target": ("one answer per photo", at("heads.0.self_test.answers.onnxruntime:fp32", [])),
        "answers-not-eager": ("the answers of eager are there", lambda document, _: document["heads"][0]["self_test"].update(
            answers={"onnxruntime:fp32": document["heads"][0]["self_test"]["answers"]["eager"]})),
        "photos-missing": ("one answer per photo", at("self_test_photos", [])),
        "artifacts-257": ("at most 256 artifacts", lambda document, _: document["artifacts"].extend(
            {**document["artifacts"][0], "runtime": f"r{number}"} for number in range(255))),
        "photos-257": ("at most 256 photos", lambda document, _: (
            document.update(self_test_photos=document["self_test_photos"] * 257), document["heads"][0].update(self_test=None))),
    }  # fmt: skip
    for name, (rule, change) in rules.items():
        add(name, rule, changed(window(), change), False)


def wrong_files() -> None:
    def files(**more: bytes | None) -> Change:
        return lambda _, found: found.update(more)

    add(
        "file-missing",
        "listed files are there",
        changed(alone(), lambda _, found: found.update({"head.onnx": None})),
        False,
    )
    add(
        "file-changed",
        "files have their SHA-256",
        changed(alone(), lambda _, found: found.update({"head.onnx": PROGRAM[:-1] + b"\0"})),
        False,
    )
    add(
        "file-longer",
        "files have their size",
        changed(alone(), lambda _, found: found.update({"head.onnx": PROGRAM + b"\0"})),
        False,
    )
    add("file-size", "files have their size", changed(alone(), at("artifacts.1.size_bytes", len(PROGRAM) + 1)), False)
    add(
        "photo-changed",
        "files have their SHA-256",
        changed(window(), lambda _, found: found.update({"photo.png": PHOTO[:-1] + b"\0"})),
        False,
    )
    add(
        "defaults-missing",
        "listed files are there",
        changed(prompted(), lambda _, found: found.update({"prompt.safetensors": None})),
        False,
    )
    add(
        "folder-more",
        "a folder's files are all listed",
        changed(folder(), lambda _, found: found.update({"encoder/more": b""})),
        False,
    )
    add(
        "folder-less",
        "a folder's files are all there",
        changed(folder(), lambda _, found: found.pop("encoder/data.bin")),
        False,
    )
    lines = "".join(f"{name} {sha256(INSIDE[name])}\n" for name in sorted(INSIDE))
    add(
        "folder-order",
        "paths of a folder are sorted part by part",
        changed(folder(), at("artifacts.0.sha256", sha256(lines.encode()))),
        False,
    )
    for name, content in {
        "no-tensors": b"\0" * 80,
        "no-input": tensor_file({"prompts": ("F32", [1, 2], bytes(8))}),
        "other-shape": tensor_file({"prompt": ("F32", [2, 1], bytes(8))}),
        "other-type": tensor_file({"prompt": ("I64", [1, 2], bytes(16))}),
    }.items():
        add(f"defaults-{name}", "tensors of defaults are inputs of the program", changed(prompted(), lambda document, found, content=content: (
            document["artifacts"][0].update(defaults=listed("prompt.safetensors", content)),
            found.update({"prompt.safetensors": content}))), False)  # fmt: skip


def wrong_fits() -> None:
    def of(base: Callable[[], Any], **rules: Change) -> None:
        for name, change in rules.items():
            add(
                f"fit-{base.__name__}-{name.replace('_', '-')}",
                "programs fit the manifest",
                changed(base(), change),
                False,
            )

    of(alone,
       crop=at("artifacts.0.inputs.0.shape", ["batch", 3, 9, 9]), grey=at("artifacts.0.inputs.0.shape", ["batch", 1, 8, 8]),
       photo_named=at("artifacts.0.inputs.0.name", "image"), free_width=at("artifacts.0.outputs.0.shape", ["batch", "D"]),
       two_outputs=lambda document, _: document["artifacts"][0]["outputs"].append(tensor("more", 1)),
       no_output=at("artifacts.0.outputs", []),
       further_input=lambda document, _: document["artifacts"][0]["inputs"].append(tensor("prompt", 1, 2)),
       labels=at("heads.0.labels", ["fox"]), no_trust=at("artifacts.1.outputs.4", ...),
       more_answers=lambda document, _: document["artifacts"][1]["outputs"].append(tensor("more", 1)),
       more_inputs=lambda document, _: document["artifacts"][1]["inputs"].append(tensor("more", 1)),
       attention=at("artifacts.1.outputs.3.shape", [1, 2]), window=at("heads.0.personalisation.window", 3),
       state=at("heads.0.state", [state("history", "feature", 3, 4, update="append")]),
       carrier=at("heads.0.personalisation.form", "window"))  # fmt: skip
    of(window,
       rows=at("heads.0.personalisation.window", 4), attention=at("artifacts.1.outputs.3.shape", [1, 3]),
       ring=at("heads.0.state.0.update", "ring"), no_state=at("heads.0.state.1", ...),
       no_history=lambda document, _: (document["heads"][0]["state"].pop(0), document["artifacts"][1]["inputs"].pop(1)),
       history_width=at("artifacts.1.inputs.1.shape", [1, 3, 5]), no_length=at("artifacts.1.inputs.2", ...),
       trait=at("artifacts.1.outputs.5.shape", [2, 1]), no_trait=at("artifacts.1.outputs.5", ...),
       trait_state=at("heads.0.state.1.shape", [3, 3]), feature_batch=at("artifacts.1.inputs.0.shape", [2, 4]),
       feature_free=at("artifacts.1.inputs.0.shape", ["batch", 4]))  # fmt: skip
    of(streaming,
       append=at("heads.0.state.0.update", "append"), slots=at("heads.0.personalisation.window", 2),
       axis=at("heads.0.state.0.axis", 0), row=at("artifacts.1.outputs.5.shape", [2, 2, 2]),
       no_row=at("artifacts.1.outputs.5", ...), attention=at("artifacts.1.outputs.3.shape", [1, 8]),
       attention_zero=at("artifacts.1.outputs.3.shape", [1, 0]),
       ring_input=at("artifacts.1.inputs.2.shape", [2, 4, 2]), no_length=at("artifacts.1.inputs.1", ...))  # fmt: skip
    add("fit-prompted-carrier", "further inputs only with the carrier inputs", changed(prompted(), lambda document, _: (
        document["heads"][0]["personalisation"].update(carrier="none"), document["artifacts"][0]["inputs"].append(tensor("second", 1)))), False)  # fmt: skip


def wrong_parts() -> None:
    """What only some readers look into."""
    facts: dict[str, Any] = {
        "producer": {"torch": 2}, "parts_bytes": {"body": "4"}, "calibration": "none", "parity_note": 5, "recipe": {"opset": 18},
        "parity": {**PARITY, "photos": 0}, "placement": {**PLACEMENT, "how": "guessed"}, "accuracy": {**ACCURACY, "change": [0]},
    }  # fmt: skip
    for name, value in facts.items():
        add(
            f"informative-{name}",
            "fields of informative objects",
            changed(alone(), at(f"artifacts.0.{name}", value)),
            False,
            "informative",
        )
    add(
        "informative-parity-more",
        "fields of informative objects",
        changed(alone(), at("artifacts.0.parity", {**PARITY, "more": 1})),
        False,
        "informative",
    )
    of_personal: dict[str, Change] = {
        "gap": at("artifacts.0.personal.tensors.0.pieces.1.first", 1), "short": at("artifacts.0.personal.tensors.0.shape", [4, 2]),
        "axes": at("artifacts.0.personal.tensors.0.pieces.0.axes", [0, 0]), "outside": at("artifacts.0.personal.tensors.0.pieces.1.offset", 61),
        "no-pieces": at("artifacts.0.personal.tensors.0.pieces", []), "dtype": at("artifacts.0.personal.tensors.0.pieces.0.dtype", "int8"),
        "path": at("artifacts.0.personal.file", "../head.onnx"), "missing": at("artifacts.0.personal.file", "data/none.bin"),
    }  # fmt: skip
    for name, change in of_personal.items():
        add(
            f"personal-{name}",
            "pieces make up the tensor, inside the file",
            changed(weights(), change),
            False,
            "personal",
        )
    of_bank: dict[str, Change] = {
        "gap": at("bank.columns.1.start", 3), "mixer": at("bank.columns.0.mixer", 1), "domains": at("bank.domains", []),
        "shape": at("bank.columns.0.shape", [3]), "columns": at("bank.columns", []), "artifact": at("bank.weight_files.0.artifact", "tail"),
        "bases": at("bank.bases", 0), "unknown": at("bank.more", 1), "changed": lambda _, files: files.update({"bank/rows.bin": bytes(47) + b"\1"}),
    }  # fmt: skip
    for name, change in of_bank.items():
        add(f"bank-{name}", "a bank's parts fit", changed(bank(), change), False, "bank")
    for name, value in {"mixers": "half", "bank": "none", "description": None, "more": 1}.items():
        add(f"task-{name}", "fields of a task", {**alone(), "task": {**TASK, name: value}}, False, "task")
    add("task-classes", "fields of a task", {**alone(), "task": {**TASK, "classes": "fox"}}, False)


# ---- tensor files


def tensor_vectors() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def one(name: str, content: bytes, valid: bool, rule: str) -> None:
        found.append({"name": name, "rule": rule, "valid": valid, "base64": base64.b64encode(content).decode()})

    def raw(header: Any, content: bytes = b"", pad: int = 64) -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % pad)
        return struct.pack("<Q", len(text)) + text + content

    def place(begin: int, end: int, shape: list[Any], dtype: Any = "F32", **more: Any) -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}

    types = {
        "b": ("I64", [1], bytes(8)),
        "a": ("F32", [2, 1], bytes(8)),
        "c": ("F16", [3], bytes(6)),
        "d": ("I8", [], b"\1"),
    }
    one("types", tensor_file(types), True, "four types, a scalar")
    one("metadata", tensor_file({"a": ("F32", [1], bytes(4))}, {"method": "pfedpg"}), True, "metadata")
    one(
        "no-numbers",
        tensor_file({"a": ("F32", [0, 5], b""), "b": ("F32", [1], bytes(4))}),
        True,
        "a tensor without numbers",
    )
    one("reversed", raw({"b": place(4, 8, [1]), "a": place(0, 4, [1])}, bytes(8)), True, "the header's order is free")
    one("thirty-two-axes", raw({"a": place(0, 4, [1] * 32)}, bytes(4)), True, "at most 32 axes")
    one("thirty-three-axes", raw({"a": place(0, 4, [1] * 33)}, bytes(4)), False, "at most 32 axes")
    one("empty", b"", False, "a header")
    one("seven-bytes", b"\1\0\0\0\0\0\0", False, "a header")
    one("length-0", bytes(64), False, "a header of at least 1 byte")
    one("length-beyond", struct.pack("<Q", 100) + b"{}", False, "the header lies in the file")
    one("length-huge", struct.pack("<Q", 2**64 - 1) + b"{}" * 32, False, "a header of at most 1048576 bytes")
    one("length-negative", struct.pack("<q", -8) + b"{}" * 32, False, "a header of at most 1048576 bytes")
    one("no-json", raw(b"{"), False, "the header is JSON")
    one("array", raw([]), False, "the header is an object")
    one("not-utf-8", raw(b'{"\xff":1}'), False, "the header is JSON")
    one("gap", raw({"a": place(4, 8, [1])}, bytes(8)), False, "no gap")
    one("gap-between", raw({"a": place(0, 4, [1]), "b": place(8, 12, [1])}, bytes(12)), False, "no gap")
    one("overlap", raw({"a": place(0, 8, [2]), "b": place(4, 12, [2])}, bytes(12)), False, "no overlap")
    one("twice-the-same", raw({"a": place(0, 4, [1]), "b": place(0, 4, [1])}, bytes(4)), False, "no overlap")
    one("bytes-behind", raw({"a": place(0, 4, [1])}, bytes(5)), False, "no bytes behind the last tensor")
    one("bytes-missing", raw({"a": place(0, 4, [1])}, bytes(3)), False, "tensors lie in the file")
    one("shape", raw({"a": place(0, 4, [2])}, bytes(4)), False, "as many bytes as numbers")
    one("negative-shape", raw({"a": place(0, 4, [-1, -1])}, bytes(4)), False, "sizes are at least 0")
    one("negative-offsets", raw({"a": place(-4, 0, [1])}), False, "offsets are at least 0")
    one("named-axis", raw({"a": place(0, 4, ["batch"])}, bytes(4)), False, "sizes are whole numbers")
    one("fraction", raw({"a": place(0, 4, [1.0])}, bytes(4)), False, "sizes are whole numbers")
    one("huge", raw({"a": place(0, 4, [2**40, 2**40, 2**40])}, bytes(4)), False, "as many bytes as numbers")
    one("wraps-around", raw({"a": place(0, 0, [2**32, 2**32])}), False, "as many bytes as numbers")
    one("type", raw({"a": place(0, 4, [1], "BF16")}, bytes(4)), False, "four types")
    one("type-null", raw({"a": place(0, 4, [1], None)}, bytes(4)), False, "four types")
    one(
        "three-offsets",
        raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}, bytes(4)),
        False,
        "two offsets",
    )
    one("no-shape", raw({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)), False, "three members")
    one("more-members", raw({"a": place(0, 4, [1], device="gpu")}, bytes(4)), False, "three members")
    one(
        "unaligned",
        raw(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} ', bytes(4), 1),
        False,
        "tensors are aligned",
    )
    one(
        "name-twice",
        raw(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            bytes(4),
        ),
        False,
        "each member once",
    )
    one(
        "metadata-numbers",
        raw({"__metadata__": {"a": 1}, "a": place(0, 4, [1])}, bytes(4)),
        False,
        "metadata are strings",
    )
    one("metadata-array", raw({"__metadata__": [], "a": place(0, 4, [1])}, bytes(4)), False, "metadata are an object")
    return found


# ---- channels


def channel_vectors() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    release = {
        "number": 1, "name": "example", "manifest_schema": NUMBER, "min_refocus": "0.2.0", "percent": 100,
        "published": "2090-01-01T00:00:00Z", "files": [{"path": "manifest.json", "sha256": SPACE, "size_bytes": 9}],
        "programs": [{"target": "onnxruntime:fp32", "min_version": "1.20", "feature_space": SPACE}],
    }  # fmt: skip
    base = {"device_class": "phone", "serial": 3, "schema_version": 2, "releases": [release]}

    def one(name: str, rule: str, valid: bool, change: Change, **more: Any) -> None:
        document, _ = changed(base, change)
        found.append(
            {
                "name": name,
                "rule": rule,
                "valid": valid,
                "base64": base64.b64encode(text_of(document).encode()).decode(),
                **more,
            }
        )

    taken, left = {"taken": [1]}, {"taken": []}
    one("plain", "a channel of number 2", True, at("serial", 4), **taken)
    one("number-1", "a channel of number 1", True, at("schema_version", 1), **taken)
    one("empty", "no releases", True, at("releases", []), **left)
    one("manifest-5", "manifest numbers 5 and 6 are read", True, at("releases.0.manifest_schema", 5), **taken)
    one("manifest-7", "a manifest number that is not read", True, at("releases.0.manifest_schema", 7), **left)
    one("withdrawn", "a withdrawn release is not taken", True, at("releases.0.withdrawn", "it hurts"), **left)
    one("unknown-anywhere", "unknown fields are ignored", True, lambda document, _: (
        document.update(a=1), document["releases"][0].update(b={"c": []}),
        document["releases"][0]["files"][0].update(d=None), document["releases"][0]["programs"][0].update(e="")), **taken)  # fmt: skip
    one(
        "critical-known",
        "critical fields that are known",
        True,
        at("releases.0.critical", ["percent", "files.path", "programs.target"]),
        **taken,
    )
    for name in ("novelty", "files.novelty", "programs.novelty", "target"):
        one(f"critical-{name}", "a critical field that is not known", True, at("releases.0.critical", [name]), **left)
    one(
        "critical-of-channel",
        "a critical field of the channel that is known",
        True,
        at("critical", ["serial"]),
        **taken,
    )
    one(
        "critical-of-channel-unknown",
        "a critical field of the channel that is not known",
        False,
        at("critical", ["novelty"]),
    )
    one(
        "critical-in-number-1",
        "number 1 has no critical",
        False,
        lambda document, _: document.update(schema_version=1, critical=["serial"]),
    )
    for path, value in {
        "schema_version": 3, "schema_version.": "2", "serial": 0, "device_class": "Phone", "device_class.": "phone/..",
        "releases.0.number": 0, "releases.0.percent": 101, "releases.0.published": "yesterday", "releases.0.programs": [],
        "releases.0.files": [], "releases.0.files.0.path": "../manifest.json", "releases.0.files.0.sha256": "none",
        "releases.0.critical": "percent", "releases.0.withdrawn": None, "releases.0.name": ..., "serial.": ...,
        "releases": [release, release], "releases.": [{**release, "number": 2}, release],
    }.items():  # fmt: skip
        one(f"wrong-{path}-{len(found)}", "each field has its type and range", False, at(path.rstrip("."), value))
    return found


# ---- profiles of the Android library


def android_vectors() -> list[dict[str, Any]]:
    def text(value: str) -> bytes:
        return struct.pack(">i", len(value.encode())) + value.encode()

    def record(kind: int, space: str, key: str, name: str, *numbers: float) -> bytes:
        content = struct.pack(">bq", kind, 0) + text(space) + text(key) + text(name) + struct.pack(">i", len(numbers))
        content += struct.pack(f"<{len(numbers)}f", *numbers)
        return struct.pack(">III", 0x7266C15D, len(content), zlib.crc32(content)) + content

    records = record(0, "s", "p", "a.jpg", 1.0, -2.5) + record(1, "", "p", "fox") + record(2, "", "theme", "dark")
    found = {f"number-{number}": (b"RefocusH" + struct.pack(">I", number) + records, True) for number in (1, 2)}
    found["half-a-record"] = (found["number-2"][0] + records[:20], True)
    found["number-3"] = (b"RefocusH" + struct.pack(">I", 3) + records, False)
    found["another-file"] = (b"SQLite format 3\0", False)
    given = [{"name": name, "rule": "number, records, half a record at the end", "valid": valid, "photos": ["p"],
              "labels": {"p": "fox"}, "settings": {"theme": "dark"}, "base64": base64.b64encode(content).decode()}
             for name, (content, valid) in found.items()]  # fmt: skip
    with tarfile.open(HERE.parents[1] / "fixtures" / "0.1.0" / "files.tar.gz") as archive:
        member = archive.extractfile("android/anna.history")
        assert member is not None
        old = base64.b64encode(member.read()).decode()
    given.append({"name": "release-0.1.0", "rule": "a file that release 0.1.0 wrote", "valid": True, "base64": old,
                  "photos": ["photo2", "photo3", "photo4"], "labels": {"photo4": "fox"},
                  "settings": {"theme": "dunkel: ä"}})  # fmt: skip
    return given


def main() -> None:
    for group in (
        valid_bundles,
        wrong_json,
        wrong_fields,
        wrong_names,
        wrong_relations,
        wrong_files,
        wrong_fits,
        wrong_parts,
    ):
        group()
    written = {
        "bundles": {
            "bases": bases(),
            "files": {path: base64.b64encode(content).decode() for path, content in FILES.items()},
            "vectors": VECTORS,
        },
        "tensors": {"vectors": tensor_vectors()},
        "channels": {"vectors": channel_vectors()},
        "android-profiles": {"vectors": android_vectors()},
    }
    for name, document in written.items():
        names = [vector["name"] for vector in document["vectors"]]
        assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)
        lines = ",\n".join(text_of(vector) for vector in document.pop("vectors"))
        head = text_of(document)[1:-1]
        (HERE / f"{name}.json").write_text(
            f'{{{head}{"," if head else ""}"vectors":[\n{lines}\n]}}\n', encoding="utf-8"
        )


if __name__ == "__main__":
    main()
