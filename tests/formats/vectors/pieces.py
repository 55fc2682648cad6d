"""Small bundles and tensor files, and how vectors are made by changing them."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import struct
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


def clips() -> dict[str, Any]:
    """An encoder of clips of three frames."""
    made = alone()
    made["preprocessing"]["frames"] = 3
    made["artifacts"][0]["inputs"] = [tensor("photo", "batch", 3, 3, 8, 8)]
    return made


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
