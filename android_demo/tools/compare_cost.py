"""Compares what a photo costs in Java and in Python: the same bundle, photos and thread, in turns in one run.

Each side resizes a decoded photo, encodes it, answers it behind a growing history and stores it. Decoding is left out:
it is the platform's on a phone. The figure is the median of the ratios of neighbours, with the quartiles.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))
from catalog import DEMO, DemoError, maven, versions
from results import manifest_sha256, write_document

from refocus.edge.bundle.load import load_bundle
from refocus.edge.photos.preprocess import decode_photo, normalise, resize_and_crop
from refocus.edge.recognize.golden import read_golden, write_golden
from refocus.edge.recognize.recognizer import Recognizer, profile_path

LIMIT = 1.15
WARM_UP = 100  # photos of each side; Java compiles what it has run often


def compare(folder: Path, pairs: int, head: str) -> tuple[list[float], list[float], int]:
    """Times of both sides in ms, Java first, and how many of their labels agree."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        (home / "bundle").symlink_to(folder.resolve())
        bundle = load_bundle(folder)
        write_golden(bundle, home / "golden")
        photos = [decode_photo((home / "golden" / photo.decoded).read_bytes(), photo.decoded)
                  for photo in read_golden(home / "golden")[0].photos]  # fmt: skip
        java = _start(home, head)
        times: tuple[list[float], list[float]] = ([], [])
        same = 0
        try:
            with Recognizer(bundle, profile_path(home, "me"), threads=1, head=head) as recognizer:
                for shown in range(WARM_UP + pairs):
                    photo = shown % len(photos)
                    first = shown % 2 == 0
                    one = _java(java, photo) if first else None
                    start = time.perf_counter()
                    contract = bundle.manifest.preprocessing
                    pixels = normalise(resize_and_crop(photos[photo], contract), contract)[None]
                    label = recognizer.recognize_pixels(pixels, f"shown {shown}").labels[0]
                    took = 1e3 * (time.perf_counter() - start)
                    one = one or _java(java, photo)
                    if shown >= WARM_UP:
                        times[0].append(one[0])
                        times[1].append(took)
                        same += one[1] == label
        finally:
            java.kill()
            java.wait()
    return times[0], times[1], same


def _start(home: Path, head: str) -> subprocess.Popen[str]:
    command = ["mvn", "-q", "-B", "-f", str(DEMO / "pom.xml"), "-pl", "recognizer", "test-compile"]
    subprocess.run(command, check=True, timeout=1800)
    wanted = versions()
    classes = [DEMO / "recognizer/target/classes", DEMO / "recognizer/target/test-classes",
               maven("com.microsoft.onnxruntime", "onnxruntime", wanted["onnxruntime"]),
               maven("junit", "junit", wanted["junit"]),
               maven("org.hamcrest", "hamcrest-core", "1.3")]  # fmt: skip
    java = subprocess.Popen(
        ["java", "-Xmx1g", "-cp", os.pathsep.join(map(str, classes)), "refocus.recognizer.Serve", str(home), head],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)  # fmt: skip
    assert java.stdout is not None  # noqa: S101
    if not java.stdout.readline().startswith("ready"):
        raise DemoError("the Java side did not start; run it by hand: refocus.recognizer.Serve")
    return java


def _java(java: subprocess.Popen[str], photo: int) -> tuple[float, str]:
    assert java.stdin is not None and java.stdout is not None  # noqa: S101, PT018
    java.stdin.write(f"{photo}\n")
    nanoseconds, label = java.stdout.readline().rstrip("\n").split(" ", 1)
    return int(nanoseconds) / 1e6, label


def _side(name: str, times: list[float]) -> dict[str, Any]:
    return {
        "side": name,
        "median_ms": statistics.median(times),
        "quartiles_ms": statistics.quantiles(times, n=4)[::2],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--head", default="")
    parser.add_argument("--document", type=Path, help="where a result document is written")
    given = parser.parse_args(arguments)
    try:
        java, python, same = compare(given.bundle, given.pairs, given.head)
    except (DemoError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"compare_cost: {error}\n")
        return 1
    low, ratio, high = statistics.quantiles([one / other for one, other in zip(java, python, strict=True)], n=4)
    if given.document is not None:
        about = {
            "bundle": load_bundle(given.bundle).manifest.name,
            "bundle_sha256": manifest_sha256(given.bundle),
            "pairs": len(java),
            "same_labels": same,
            "ratio": ratio,
            "ratio_quartiles": [low, high],
            "limit": LIMIT,
        }
        rows = [_side("Java", java), _side("Python", python)]
        command = f"python android_demo/tools/compare_cost.py android_demo/build/bundle --pairs {len(java)}"
        write_document(given.document, "android_cost", about, rows, command)
    sys.stdout.write(
        f"Java {statistics.median(java):.2f} ms, Python {statistics.median(python):.2f} ms; ratio {ratio:.3f}"
        f" ({low:.3f} to {high:.3f}), limit {LIMIT}; {same} of {len(java)} labels agree\n"
    )
    return 0 if ratio <= LIMIT and same == len(java) else 1


if __name__ == "__main__":
    sys.exit(main())
