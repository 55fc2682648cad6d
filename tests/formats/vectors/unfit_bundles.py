"""Bundles whose parts do not belong together, and what only some readers check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pieces import (
    ACCURACY,
    INSIDE,
    OTHER,
    PARITY,
    PHOTO,
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
    folder,
    listed,
    prompted,
    sha256,
    state,
    streaming,
    tensor,
    tensor_file,
    weights,
    window,
)


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
       feature_width=at("artifacts.1.inputs.0.shape", [1, 5]), fixed_batch=at("artifacts.0.inputs.0.shape", [2, 3, 8, 8]),
       feature_batch=at("artifacts.0.outputs.0.shape", [2, 4]), whole_numbers=at("artifacts.1.outputs.2.dtype", "int64"),
       input_twice=lambda document, _: document["artifacts"][1]["inputs"].append(tensor("feature", 1, 4)),
       output_twice=lambda document, _: document["artifacts"][1]["outputs"].append(tensor("trust", 1)),
       more_inputs=lambda document, _: document["artifacts"][1]["inputs"].append(tensor("more", 1)),
       attention=at("artifacts.1.outputs.3.shape", [1, 2]), window=at("heads.0.personalisation.window", 3),
       state=at("heads.0.state", [state("history", "feature", 3, 4, update="append")]),
       carrier=at("heads.0.personalisation.form", "window"))  # fmt: skip
    of(window,
       length_type=at("artifacts.1.inputs.2.dtype", "float32"),
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
    for name, value in {"largest": {"logits": "0.5"}, "typical_logits": "0.5", "accuracy_loss": [0.5]}.items():
        parity = at("artifacts.0.parity", {**PARITY, name: value})
        add(
            f"informative-parity-{name}",
            "fields of informative objects",
            changed(alone(), parity),
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
        "bases": at("bank.bases", 0), "axes": at("bank.columns.0.shape", [2] + [1] * 16), "size": at("bank.size_bytes", 2**36 + 1), "unknown": at("bank.more", 1), "changed": lambda _, files: files.update({"bank/rows.bin": bytes(47) + b"\1"}),
    }  # fmt: skip
    for name, change in of_bank.items():
        add(f"bank-{name}", "a bank's parts fit", changed(bank(), change), False, "bank")
    for name, value in {"mixers": "half", "bank": "none", "description": None, "more": 1}.items():
        add(f"task-{name}", "fields of a task", {**alone(), "task": {**TASK, name: value}}, False, "task")
    add("task-classes", "fields of a task", {**alone(), "task": {**TASK, "classes": "fox"}}, False)


GROUPS = (wrong_relations, wrong_files, wrong_fits, wrong_parts)
