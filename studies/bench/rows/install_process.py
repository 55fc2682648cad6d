"""Answer one photo in a fresh process and print the cost.

The process uses Refocus, or bare ONNX Runtime for the same. It imports only Python's own modules before its clock runs.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from refocus.benchmarks.rows.cold_start_process import peak_bytes, resident_bytes  # noqa: E402

REFOCUS, BARE = "refocus", "onnxruntime"


def main() -> None:
    """Answer the photo of the command line and print one line of JSON.

    The arguments are program, bundle, photo and folder of profiles.
    """
    opened = 0

    def count(event: str, _: tuple[object, ...]) -> None:
        nonlocal opened
        opened += event == "open"

    which, bundle, photo, profiles = sys.argv[1:]
    sys.addaudithook(count)
    answer = with_refocus if which == REFOCUS else with_onnxruntime
    label, moments, resident = answer(Path(bundle), Path(photo), Path(profiles))
    imported, loaded, answered = moments
    said = {
        "label": label,
        "import_ms": 1000 * (imported - BEGIN),
        "load_ms": 1000 * (loaded - imported),
        "first_answer_ms": 1000 * (answered - loaded),
        "whole_ms": 1000 * (answered - BEGIN),
        "imported_bytes": resident,
        "answered_bytes": resident_bytes(),
        "peak_bytes": peak_bytes(),
        "opened": opened,
        "modules": len(sys.modules),
        "torch": "torch" in sys.modules,
    }
    sys.stdout.write(json.dumps(said) + "\n")


Answered = tuple[str, tuple[float, float, float], int]


def with_refocus(bundle: Path, photo: Path, profiles: Path) -> Answered:
    """Answer a photo with Refocus, as a program on a device does.

    Files are verified, the profile is on disk, and the answer is stored.
    """
    from refocus import Recognizer
    from refocus.edge.runtimes import RUNTIMES

    __import__(RUNTIMES["onnxruntime"][0])  # `open` would import it: it counts as import

    imported, resident = time.perf_counter(), resident_bytes()
    with Recognizer.open(bundle, profile="install", profiles=profiles, threads=1, runtime="onnxruntime") as recognizer:
        loaded = time.perf_counter()
        answer = recognizer.recognize(photo)
        answered = time.perf_counter()
    return answer.label, (imported, loaded, answered), resident


def with_onnxruntime(bundle: Path, photo: Path, profiles: Path) -> Answered:
    """Answer a photo with bare ONNX Runtime, as in a tutorial.

    The programs and pixels are the same; no file is verified, and no answer is stored.
    """
    import numpy as np
    import onnxruntime
    from PIL import Image

    imported, resident = time.perf_counter(), resident_bytes()
    manifest = json.loads((bundle / "manifest.json").read_text())
    card = manifest["heads"][0]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions, inputs = {}, {}
    for artifact in manifest["artifacts"]:
        target = artifact["runtime"], artifact["precision"]
        if target == ("onnxruntime", "fp32") and artifact.get("head") in (None, "", card["name"]):
            path = bundle / artifact["file"]
            path = path / "program.onnx" if path.is_dir() else path
            sessions[artifact["role"]] = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
            inputs[artifact["role"]] = artifact["inputs"]
    loaded = time.perf_counter()
    feature = sessions["encoder"].run(["feature"], {"photo": _pixels(np, Image, photo, manifest["preprocessing"])})[0]
    given = {tensor["name"]: np.zeros(tensor["shape"], tensor["dtype"]) for tensor in inputs["head"]}
    logits = sessions["head"].run(["logits"], {**given, "feature": feature})[0]
    label = card["labels"][int(logits[0].argmax())]
    return label, (imported, loaded, time.perf_counter()), resident


def _pixels(np: object, image: object, photo: Path, contract: dict[str, object]) -> object:
    """Decode a photo to pixels (1, 3, S, S) with Pillow alone."""
    from typing import Any

    n: Any = np
    kind: Any = image
    c: Any = contract
    picture = kind.open(photo).convert("RGB")
    shorter, side = c["resize_shorter"], c["crop"]
    scale = shorter / min(picture.size)
    width, height = (max(side, round(length * scale)) for length in picture.size)
    picture = picture.resize((width, height), kind.Resampling.BICUBIC)
    left, top = (width - side) // 2, (height - side) // 2
    picture = picture.crop((left, top, left + side, top + side))
    values = (n.asarray(picture, n.float32) / 255 - n.array(c["mean"], n.float32)) / n.array(c["std"], n.float32)
    return n.ascontiguousarray(values.transpose(2, 0, 1)[None])


if __name__ == "__main__":
    main()
