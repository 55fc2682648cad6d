"""Time and memory of a start, measured in fresh processes (:mod:`refocus.benchmarks.rows.cold_start_process`).

The file of the photo and the bundle are in the system's page cache, as they are for an app that is used daily.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

from refocus.benchmarks.document.schema import BenchError, Conditions, Memory
from refocus.benchmarks.measure.timer import Series
from refocus.benchmarks.rows.recorder import Table

PHOTOS = 64  # recognised for the memory
NEEDED = 5  # starts, in quick mode; a start has no percentiles
TIMES_ALL = 20


def starts(table: Table, times: int) -> None:
    """Import, cold load, first photo and second photo of fresh processes."""
    wanted = Conditions(min_queries=times, min_seconds=0.0, warm_up=0, least=NEEDED)
    watch = table.watch()
    _run(table, "start", 1)  # the files come into the page cache
    watch.start()
    begin, found, at = time.perf_counter(), [], []
    for _ in range(times):
        at.append(time.perf_counter() - begin)
        found.append(_run(table, "start", 2))
        watch.look()
    watch.finish()
    for name in ("import", "cold load", "first photo", "second photo"):
        samples = np.array([run[name] for run in found])
        table.add("start", Series(samples, np.array(at), watch.observations), name, conditions=wanted)


def memory(table: Table) -> Memory:
    """Resident memory, in a process of its own."""
    said = _run(table, "memory", PHOTOS)
    subject = table.subject
    return Memory(
        bundle=subject.name,
        target=subject.target_name,
        imported_bytes=int(said["imported"]),
        loaded_bytes=int(said["loaded"]),
        peak_bytes=int(said["peak"]),
        photos=PHOTOS,
    )


def _run(table: Table, what: str, photos: int) -> dict[str, float]:
    subject = table.subject
    for number, content in enumerate(subject.album.contents[:2]):
        (subject.scratch / f"fresh-{number}").write_bytes(content)
    asked: dict[str, Any] = {
        "what": what,
        "bundle": str(subject.bundle.folder),
        "target": subject.target,
        "head": subject.head,
        "provider": subject.provider,
        "allow_fallback": subject.allow_fallback,
        "threads": subject.threads,
        "profile": str(subject.profile("fresh")),
        "photos": photos,
        "files": [str(path) for path in sorted(subject.scratch.glob("fresh-*"))],
    }
    command = [sys.executable, "-m", "refocus.benchmarks.rows.cold_start_process"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(  # noqa: S603  # our own module
        command, input=json.dumps(asked), capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise BenchError(f"a fresh process ended with status {done.returncode}: {done.stderr.strip()[-500:]}")
    said: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return said
