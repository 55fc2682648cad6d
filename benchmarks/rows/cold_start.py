"""Time and memory of a start, measured in fresh processes (:mod:`refocus.benchmarks.rows.cold_start_process`).

The file of the photo and the bundle are in the system's page cache, as they are for an app that is used daily.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy as np

from refocus.benchmarks.document.schema import BenchError, Conditions, Memory
from refocus.benchmarks.measure.target import Target
from refocus.benchmarks.measure.timer import Series
from refocus.benchmarks.rows.recorder import Table

PHOTOS = 64  # recognised for the memory
NEEDED = 5  # starts, in quick mode; a start has no percentiles
TIMES_ALL = 20


def starts(table: Table, times: int) -> None:
    """Import, cold load, first photo and second photo of fresh processes."""
    wanted = Conditions(min_queries=times, min_seconds=0.0, warm_up=0, least=NEEDED)
    monitor = table.monitor()
    monitor.wait_until_cool()
    _run(table.target, "start", 1)  # the files come into the page cache
    monitor.start()
    begin, found, at = time.perf_counter(), [], []
    for _ in range(times):
        at.append(time.perf_counter() - begin)
        found.append(_run(table.target, "start", 2))
        monitor.look()
    monitor.finish()
    for name in ("import", "cold load", "first photo", "second photo"):
        samples = np.array([run[name] for run in found])
        series = Series(samples, np.array(at), monitor.observations, monitor.waited)
        table.add("start", series, name, conditions=wanted)


def memory(table: Table) -> None:
    """Resident memory, in a process of its own."""
    said = {f"{name}_bytes": int(value) for name, value in _run(table.target, "memory", PHOTOS).items()}
    table.memory.append(Memory(bundle=table.bundle, target=table.target_name, photos=PHOTOS, **said))


def _run(target: Target, what: str, photos: int) -> dict[str, float]:
    for number, content in enumerate(target.album.contents[:2]):
        (target.scratch / f"fresh-{number}").write_bytes(content)
    asked = {
        "what": what,
        "bundle": str(target.bundle.folder),
        "target": target.pair,
        "head": target.head,
        "provider": target.provider,
        "allow_fallback": target.allow_fallback,
        "threads": target.threads,
        "profile": str(target.profile("fresh")),
        "photos": photos,
        "files": [str(path) for path in sorted(target.scratch.glob("fresh-*"))],
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
