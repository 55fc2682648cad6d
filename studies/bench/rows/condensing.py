"""Compare the time of condensing with its lower bound.

The bound is one pass over the bank and one write of the result. All are measured alternately in one process, so a busy
machine slows each of them equally; the results are medians.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from refocus.benchmarks.rows.cold_start_process import peak_bytes
from refocus.edge.files import write_file
from refocus.edge.taper import Bank, Task

SCHEMA = 2  # 1: Refocus 0.1; the same fields
REPEATS = 9
_BLOCK = 1 << 20  # bytes, as condensing reads and writes


def measure(bank: Bank, task: Task, target: str, scratch: Path, repeats: int = REPEATS) -> dict[str, Any]:
    """Measure medians in milliseconds, and their ratios.

    Args:
        bank: open bank; its pages are read into memory first.
        task: task to condense for.
        target: target of the personal bundle.
        scratch: folder on the file system to write to.
        repeats: number of measurements.

    Returns:
        ``read_ms``: one pass over the mapped bank. ``write_ms``: one file of the result's size. ``condense_ms``: end to
            end, from a task to a bundle in place. ``ratio``: condense to read and write together. ``peak_extra_bytes``:
            growth of the process while condensing, without the pages of the bank.
    """
    out = scratch / "personal"
    size = bank.condense(task, out, [target]).weights_bytes
    content = os.urandom(_BLOCK)
    read_all(bank.rows)
    before = peak_bytes()
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
    medians["peak_extra_bytes"] = peak_bytes() - before
    return medians


def read_all(rows: np.ndarray) -> int:
    """Read every number once at memory speed and return all bits, or-ed.

    A product of each row with itself is no faster, and the threads of its BLAS wait in a loop for another one while the
    next measurement runs.
    """
    return int(sum(int(np.bitwise_or.reduce(row.view(np.uint32))) for row in rows))


def write_all(path: Path, content: bytes, size: int) -> None:
    """Write a file of ``size`` bytes."""
    with path.open("wb", buffering=0) as stream:
        for start in range(0, size, len(content)):
            stream.write(content[: size - start])


def hashing_ms(size: int) -> float:
    """Measure the time of SHA-256 alone for ``size`` bytes.

    It overlaps with the other work on two cores or more.
    """
    content = bytes(size)
    return _timed(lambda: hashlib.sha256(content).hexdigest())


def _timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1000


def exporting_ms(checkpoint: Path) -> float:
    """Measure the time to export a personal model without a bank.

    It is the conversion of the network alone, without any measurement.
    """
    import torch

    from refocus.export.bank import find_folds, folded_structure, read_source
    from refocus.export.program import load_checkpoint
    from refocus.export.program.capture import quiet

    source = read_source(load_checkpoint(checkpoint))

    def write(path: Path) -> None:
        photo = torch.zeros(1, 3, source.preprocessing.crop, source.preprocessing.crop)
        network = folded_structure(source.network, find_folds(source.network)).eval()
        with quiet("torch.onnx", "onnxscript", "onnx_ir", "root", ""):
            torch.onnx.export(network, (photo,), path, dynamo=True, verbose=False)

    with tempfile.TemporaryDirectory() as folder:
        return _timed(lambda: write(Path(folder) / "personal.onnx"))


def main(
    bank: Annotated[Path, typer.Argument(help="folder of the bank")],
    checkpoint: Annotated[
        Path | None, typer.Option(help="checkpoint of the bank; also measures re-exporting a condensed model")
    ] = None,
    to: Annotated[str, typer.Option(help="comma-separated targets; default: all targets of the bank")] = "",
    repeats: Annotated[int, typer.Option(min=1, help="repetitions of each measurement")] = REPEATS,
    out: Annotated[Path | None, typer.Option(help="output file for the document; default: standard output")] = None,
) -> None:
    """Measure what condensing a task of 20 classes costs."""
    opened = Bank.open(bank)
    targets = to.split(",") if to else list(dict.fromkeys(a.target for a in opened.manifest.artifacts))
    rows = []
    for target in targets:
        with tempfile.TemporaryDirectory(dir=bank.parent, prefix=".condense-") as scratch:
            row = measure(opened, opened.task(opened.labels[:20]), target, Path(scratch), repeats)
        rows.append({**row, "hashing_ms": hashing_ms(row["result_bytes"])})
    exporting = exporting_ms(checkpoint) if checkpoint else None
    command = f"python -m studies.bench.rows.condensing BANK --repeats {repeats}"
    command += " --checkpoint CHECKPOINT" if checkpoint else ""
    found = {**about(opened), "exporting_ms": exporting}
    deliver({"schema_version": SCHEMA, "condensing": found, "rows": rows, "command": command}, out)


def about(bank: Bank) -> dict[str, Any]:
    """Return bank and machine as fields of the results document."""
    card = bank.card
    return {"bases": card.bases, "numbers": card.size, "classes": len(bank.labels), "cores": os.cpu_count()}


def deliver(document: dict[str, Any], out: Path | None) -> None:
    """Write a results document to a file, or print it."""
    text = json.dumps(document, indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        write_file(out, text)


if __name__ == "__main__":
    typer.run(main)
