"""What only a fresh process can say: how long a start takes, and how much memory. Run as a module, by ``starts``.

The file of the photo and the bundle are in the system's page cache, as they are for an app that is used daily.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.latency.measuring import Series
from benchmarks.latency.rows import Table
from benchmarks.latency.schema import BenchError, Conditions, Memory

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
    return Memory(bundle=subject.name, target=subject.target_name, imported_bytes=int(said["imported"]),
                  loaded_bytes=int(said["loaded"]), peak_bytes=int(said["peak"]), photos=PHOTOS)  # fmt: skip


def _run(table: Table, what: str, photos: int) -> dict[str, float]:
    subject = table.subject
    for number, content in enumerate(subject.album.contents[:2]):
        (subject.scratch / f"fresh-{number}").write_bytes(content)
    asked: dict[str, Any] = {
        "what": what, "bundle": str(subject.bundle.folder), "target": subject.target, "head": subject.head,
        "provider": subject.provider, "allow_fallback": subject.allow_fallback, "threads": subject.threads,
        "profile": str(subject.profile("fresh")), "photos": photos,
        "files": [str(path) for path in sorted(subject.scratch.glob("fresh-*"))],
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.latency.fresh"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(  # noqa: S603  # our own module
        command, input=json.dumps(asked), capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise BenchError(f"a fresh process ended with status {done.returncode}: {done.stderr.strip()[-500:]}")
    said: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return said


def main() -> None:
    """The fresh process: is asked on standard input, answers with one line of JSON."""
    begin = time.perf_counter()
    from edge.bundle import load_bundle
    from edge.recognizer import Recognizer
    from edge.runtimes.base import RUNTIMES

    asked = json.load(sys.stdin)
    __import__(RUNTIMES[asked["target"][0]][0])
    imported, resident = time.perf_counter(), resident_bytes()
    contents = [Path(file).read_bytes() for file in asked["files"]]
    before = time.perf_counter()
    runtime, precision = asked["target"]
    device = Recognizer(
        load_bundle(Path(asked["bundle"])), Path(asked["profile"]), runtime, precision, asked["threads"], asked["head"],
        asked["provider"], asked["allow_fallback"],
    )  # fmt: skip
    loaded, with_bundle = time.perf_counter(), resident_bytes()
    number = time.time_ns()
    moments = [time.perf_counter()]
    for photo in range(asked["photos"]):
        device.recognize(contents[photo % len(contents)] + (number + photo).to_bytes(8, "big"), "photo")
        moments.append(time.perf_counter())
    device.close()
    if asked["what"] == "memory":
        said: dict[str, float] = {"imported": resident, "loaded": with_bundle, "peak": peak_bytes()}
    else:
        last = min(2, len(moments) - 1)
        said = {"import": 1000 * (imported - begin), "cold load": 1000 * (loaded - before),
                "first photo": 1000 * (moments[1] - moments[0]),
                "second photo": 1000 * (moments[last] - moments[last - 1])}  # fmt: skip
    sys.stdout.write(json.dumps(said) + "\n")


def resident_bytes() -> int:
    """Memory of this process now; its peak where the system does not say."""
    try:
        words = Path("/proc/self/statm").read_text().split()
    except OSError:
        return peak_bytes()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """The most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
