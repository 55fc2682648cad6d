"""What condensing costs beside what it cannot do without: one pass over the bank, and writing the result once.

All is measured in turns in one process, so that a busy machine is as busy for each; medians are told.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edge.condense import Bank, Task

REPEATS = 9
_BLOCK = 1 << 20  # bytes, as condensing reads and writes


def measure(bank: Bank, task: Task, target: str, scratch: Path, repeats: int = REPEATS) -> dict[str, Any]:
    """Medians in milliseconds, and their ratios.

    Args:
        bank: open; its pages are made warm first.
        scratch: folder on the file system to write to.

    Returns:
        ``read_ms``: one pass over the mapped bank. ``write_ms``: one file of the result's size. ``condense_ms``: end to
        end, from a task to a bundle in place. ``ratio``: condense to read and write together. ``peak_extra_bytes``: how
        far the process grew while condensing, without the pages of the bank.
    """
    out = scratch / "personal"
    size = bank.condense(task, out, [target]).weights_bytes
    content = os.urandom(_BLOCK)
    read_all(bank.rows)
    before = _resident_peak()
    found: dict[str, list[float]] = {"read_ms": [], "write_ms": [], "condense_ms": []}
    for _ in range(repeats):
        shutil.rmtree(out)  # making room is no part of either
        found["condense_ms"].append(_timed(lambda: bank.condense(task, out, [target])))
        found["read_ms"].append(_timed(lambda: read_all(bank.rows)))
        found["write_ms"].append(_timed(lambda: write_all(scratch / "result", content, size)))
        (scratch / "result").unlink()
    medians: dict[str, Any] = {name: statistics.median(values) for name, values in found.items()}
    medians["ratio"] = medians["condense_ms"] / (medians["read_ms"] + medians["write_ms"])
    medians |= {"bank_bytes": bank.rows.nbytes, "result_bytes": size, "repeats": repeats, "target": target}
    medians["peak_extra_bytes"] = _resident_peak() - before
    return medians


def read_all(rows: np.ndarray) -> float:
    """One pass that reads every number once, as fast as numpy can: the product of each row with itself."""
    return float(sum(np.dot(row, row) for row in rows))


def write_all(path: Path, content: bytes, size: int) -> None:
    """One file of so many bytes."""
    with path.open("wb", buffering=0) as stream:
        for start in range(0, size, len(content)):
            stream.write(content[: size - start])


def hashing_ms(size: int) -> float:
    """What the SHA-256 of so many bytes costs alone: it overlaps with the rest where there are two cores."""
    content = bytes(size)
    return _timed(lambda: hashlib.sha256(content).hexdigest())


def _timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1000


def _resident_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(arguments: list[str]) -> None:
    """``python -m benchmarks.condense BANK [TARGET] [REPEATS]``: prints one JSON document; tasks have 20 classes."""
    bank = Bank.open(Path(arguments[0]))
    target = arguments[1] if len(arguments) > 1 else "onnxruntime:fp32"
    repeats = int(arguments[2]) if len(arguments) > 2 else REPEATS
    scratch = Path(tempfile.mkdtemp(dir=bank.folder.parent, prefix=".condense-"))
    try:
        found = measure(bank, bank.task(bank.labels[:20]), target, scratch, repeats)
        found["hashing_ms"] = hashing_ms(found["result_bytes"])
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main(sys.argv[1:])
