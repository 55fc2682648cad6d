"""Time and memory of a start, measured in fresh processes (:mod:`refocus.benchmarks.rows.cold_start_process`).

The file of the photo and the bundle are in the system's page cache, as they are for an app that is used daily.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from refocus.benchmarks.document.schema import BenchError, Conditions, Memory
from refocus.benchmarks.measure.target import Target, options_of
from refocus.benchmarks.measure.timer import Series
from refocus.benchmarks.rows.recorder import Rows, Table

Said = dict[str, float]  # of a fresh process

PHOTOS, ANSWERED = 64, 4  # recognised for the memory of a bundle, and of one program of a suite
NEEDED = 5  # starts, in quick mode; a start has no percentiles
TIMES_ALL = 20


def starts(table: Table, times: int) -> None:
    """Import, cold load, first photo and second photo of fresh processes."""
    _add_starts(table, lambda: _run(table.target, "start", 2), times)


def memory(table: Table) -> None:
    """Resident memory, in a process of its own."""
    _add_memory(table, _run(table.target, "memory", PHOTOS), PHOTOS)


def program(table: Rows, folder: Path, runtime: str, name: str, times: int) -> None:
    """Start and memory of one program of a suite, in fresh processes that load nothing else.

    Args:
        folder: as of :mod:`refocus.benchmarks.rows.saved_program`.
        name: of the program.
        times: that it is started for the rows of a start; 0: once, for the memory alone.
    """
    asked = {"what": "both", "program": str(folder), "target": [runtime, ""], "photos": ANSWERED}
    said = _add_starts(table, lambda: _ask(asked), times, name) if times else _ask(asked)
    _add_memory(table, said, ANSWERED, name)


def _add_starts(table: Rows, start: Callable[[], Said], times: int, at: str = "") -> Said:
    """Adds the four rows of a start; returns what the last one said.

    Args:
        at: what starts, where a document has several.
    """
    wanted = Conditions(min_queries=times, min_seconds=0.0, warm_up=0, least=NEEDED)
    monitor = table.monitor()
    monitor.wait_until_cool()
    start()  # the files come into the page cache
    monitor.start()
    begin, found, moments = time.perf_counter(), [], []
    for _ in range(times):
        moments.append(time.perf_counter() - begin)
        found.append(start())
        monitor.look()
    monitor.finish()
    for name in ("import", "cold load", "first photo", "second photo"):
        samples = np.array([one[name] for one in found])
        series = Series(samples, np.array(moments), monitor.observations, monitor.waited)
        table.add("start", series, name, at, conditions=wanted)
    return found[-1]


def _add_memory(table: Rows, said: Said, photos: int, name: str = "") -> None:
    """Adds resident memory of a fresh process.

    Args:
        name: of the program, where a document has several.
    """
    found = {key: int(value) for key, value in said.items() if key.endswith("_bytes")}
    table.memory.append(Memory(bundle=table.bundle, target=table.target_name, name=name, photos=photos, **found))


def _run(target: Target, what: str, photos: int) -> Said:
    for number, content in enumerate(target.album.contents[:2]):
        (target.scratch / f"fresh-{number}").write_bytes(content)
    asked = {
        "what": what,
        "bundle": str(target.bundle.folder),
        "target": target.pair,
        "options": options_of(target),
        "profile": str(target.profile("fresh")),
        "photos": photos,
        "files": [str(path) for path in sorted(target.scratch.glob("fresh-*"))],
    }
    return _ask(asked)


def _ask(asked: dict[str, Any]) -> Said:
    command = [sys.executable, "-m", "refocus.benchmarks.rows.cold_start_process"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(  # noqa: S603  # our own module
        command, input=json.dumps(asked), capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise BenchError(f"a fresh process ended with status {done.returncode}: {done.stderr.strip()[-500:]}")
    said: Said = json.loads(done.stdout.splitlines()[-1])
    return said
