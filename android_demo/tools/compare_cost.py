"""Compares what a photo costs in Java and in Python: the same bundle, photos and thread, in turns in one run.

Each side resizes a decoded photo, encodes it, answers it behind a growing history and stores it. Decoding is left out:
it is the platform's on a phone. The figure is the median of the ratios of neighbours, with the quartiles. A bundle with
a native head for fp32 is compared with that one too, in the same turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))
from build_native import NAME, compile_for_desktop
from catalog import DEMO, DemoError, maven, versions
from golden import read_golden, write_golden
from PIL import Image
from results import manifest_sha256, write_document

from refocus.edge.bundle.load import load_bundle
from refocus.edge.photos.preprocess import decode_photo, normalise, resize_and_crop
from refocus.edge.recognize.recognizer import Recognizer, profile_path

LIMIT = 1.15
NATIVE = "native:fp32"
WARM_UP = 100  # photos of each side; Java compiles what it has run often


Answer = tuple[float, str]  # ms and the label


@dataclass(frozen=True)
class Side:
    """What one side took and answered, photo by photo."""

    name: str
    times: list[float] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


def compare(folder: Path, pairs: int, head: str) -> list[Side]:
    """Java and Python with the stock head, then both with the native head where the bundle has one for fp32."""
    bundle = load_bundle(folder)
    name = head or bundle.manifest.heads[0].name
    offered = {artifact.target for artifact in bundle.manifest.artifacts if artifact.head == name}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        home = Path(scratch)
        (home / "bundle").symlink_to(folder.resolve())
        stock = write_golden(bundle, home / "golden").target
        runtime, _, precision = stock.partition(":")
        targets = [stock, *([NATIVE] if NATIVE in offered else [])]
        photos = [decode_photo((home / "golden" / photo.decoded).read_bytes(), photo.decoded)
                  for photo in read_golden(home / "golden")[0].photos]  # fmt: skip
        library = compile_for_desktop(home / NAME)  # for class shares too
        sides = [Side(f"{language}{'' if target == stock else f' with the head {target}'}")
                 for target in targets for language in ("Java", "Python")]  # fmt: skip
        answer: list[Callable[[int, int], Answer]] = []
        for target in targets:
            java = _start(home, name, target, library)
            stack.callback(java.wait)
            stack.callback(java.kill)
            profile = profile_path(home, f"me-{target.partition(':')[0]}")
            chosen = Recognizer(bundle, profile, runtime, precision, threads=1, head=name, head_target=target)
            python = stack.enter_context(chosen)
            answer += [partial(_java, java), partial(_python, python, photos)]
        for shown in range(WARM_UP + pairs):
            for turn in range(len(sides)):
                number = (shown + turn) % len(sides)
                took, label = answer[number](shown % len(photos), shown)
                if shown >= WARM_UP:
                    sides[number].times.append(took)
                    sides[number].labels.append(label)
    return sides


def _python(recognizer: Recognizer, photos: Sequence[Image.Image], photo: int, shown: int) -> Answer:
    start = time.perf_counter()
    contract = recognizer.manifest.preprocessing
    pixels = normalise(resize_and_crop(photos[photo], contract), contract)[None]
    label = recognizer.recognize_pixels(pixels, f"shown {shown}").labels[0]
    return 1e3 * (time.perf_counter() - start), label


def _start(home: Path, head: str, target: str, library: Path) -> subprocess.Popen[str]:
    command = ["mvn", "-q", "-B", "-f", str(DEMO / "pom.xml"), "-pl", "recognizer", "test-compile"]
    subprocess.run(command, check=True, timeout=1800)
    wanted = versions()
    classes = [DEMO / "recognizer/target/classes", DEMO / "recognizer/target/test-classes",
               maven("com.microsoft.onnxruntime", "onnxruntime", wanted["onnxruntime"]),
               maven("junit", "junit", wanted["junit"]),
               maven("org.hamcrest", "hamcrest-core", "1.3")]  # fmt: skip
    java = subprocess.Popen(
        ["java", "-Xmx1g", f"-Drefocus.head={library}", "-cp", os.pathsep.join(map(str, classes)),
         "refocus.recognizer.Serve", str(home), head, target],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)  # fmt: skip
    assert java.stdout is not None  # noqa: S101
    if not java.stdout.readline().startswith("ready"):
        raise DemoError("the Java side did not start; run it by hand: refocus.recognizer.Serve")
    return java


def _java(java: subprocess.Popen[str], photo: int, shown: int) -> Answer:
    assert java.stdin is not None and java.stdout is not None  # noqa: S101, PT018
    java.stdin.write(f"{photo}\n")
    nanoseconds, label = java.stdout.readline().rstrip("\n").split(" ", 1)
    return int(nanoseconds) / 1e6, label


def _row(side: Side) -> dict[str, Any]:
    return {
        "side": side.name,
        "median_ms": statistics.median(side.times),
        "quartiles_ms": statistics.quantiles(side.times, n=4)[::2],
    }


def ratio(one: Side, other: Side) -> dict[str, Any]:
    """Median of the ratios of neighbours, with the quartiles, and how many labels agree."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(one.times, other.times, strict=True)], n=4)
    same = sum(a == b for a, b in zip(one.labels, other.labels, strict=True))
    return {"same_labels": same, "ratio": middle, "ratio_quartiles": [low, high]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--head", default="")
    parser.add_argument("--document", type=Path, help="where a result document is written")
    given = parser.parse_args(arguments)
    try:
        sides = compare(given.bundle, given.pairs, given.head)
    except (DemoError, FileNotFoundError, RuntimeError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"compare_cost: {error}\n")
        return 1
    found = [ratio(*sides[at : at + 2]) for at in range(0, len(sides), 2)]
    about = {
        "bundle": load_bundle(given.bundle).manifest.name,
        "bundle_sha256": manifest_sha256(given.bundle),
        "pairs": given.pairs,
        "limit": LIMIT,
        **found[0],
    }
    if len(sides) > 2:
        about["native"] = {"target": NATIVE, **found[1], "to_stock": ratio(sides[2], sides[0])}
    if given.document is not None:
        command = f"python android_demo/tools/compare_cost.py {given.bundle} --pairs {given.pairs}"
        write_document(given.document, "android_cost", about, [_row(side) for side in sides], command)
    for side in sides:
        sys.stdout.write(f"{side.name}: {statistics.median(side.times):.2f} ms\n")
    for pair in found:
        low, high = pair["ratio_quartiles"]
        sys.stdout.write(f"Java to Python {pair['ratio']:.3f} ({low:.3f} to {high:.3f}), limit {LIMIT};"
                         f" {pair['same_labels']} of {given.pairs} labels agree\n")  # fmt: skip
    right = all(pair["ratio"] <= LIMIT and pair["same_labels"] == given.pairs for pair in found)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
