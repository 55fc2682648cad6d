"""Store photos in blocks and print the times of each photo.

Each line of standard input is the number of photos of a block. The arguments are a folder, the durability, and
``journal`` or ``sqlite``. The program runs with the code of any version.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from refocus.edge.history import FeatureHistory

# This module has the same path in every version.
_LIKELY = import_module("refocus.edge.history.likely_classes")
Classifier, LikelyClasses = _LIKELY.Classifier, _LIKELY.LikelyClasses

WIDTH, CAPACITY, CLASSES, LIKELY = 1280, 256, 1000, 32
SPACE = "a" * 64


def main(folder: Path, durability: str, journal: bool) -> None:
    """Store a block of photos for each line of standard input."""
    given: dict[str, Any] = {"journal": True} if journal else {}
    history = FeatureHistory(folder / "p", CAPACITY, durability=durability, **given)
    history.computed_by(SPACE, "onnxruntime 1.28.0 CPUExecutionProvider x86_64")
    by = Classifier("c" * 64, tuple(map(str, range(CLASSES))))
    features = np.random.default_rng(0).normal(size=(64, WIDTH)).astype(np.float32)
    rows = [LikelyClasses(np.arange(LIKELY) + n, np.full(LIKELY, 1 / LIKELY, np.float32)) for n in range(64)]
    syncs = ctypes.CDLL(None).counted_syncs
    syncs.restype = ctypes.c_long
    encoder = np.zeros(24 << 20, np.uint8)  # larger than the caches, as an encoder and its activations are
    number = 0
    for line in sys.stdin:
        wall, cpu, before = [], [], syncs()
        for _ in range(int(line)):
            photo = hashlib.sha256(str(number).encode()).hexdigest()
            encoder[::64] += 1
            started, used = time.perf_counter(), time.process_time()
            history.look(SPACE, photo)
            history.append(SPACE, photo, features[number % 64], f"/photos/{number}.jpg", (by, rows[number % 64]))
            wall.append(time.perf_counter() - started)
            cpu.append(time.process_time() - used)
            number += 1
        sys.stdout.write(json.dumps({"wall": wall, "cpu": cpu, "syncs": syncs() - before}) + "\n")
        sys.stdout.flush()
    history.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "journal")
