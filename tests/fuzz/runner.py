"""Runs the cases of an area in worker processes, and kills those that do not end.

The parent never runs a case itself. A worker that is silent for :data:`LIMIT` seconds is killed; on a busy machine it
may only have been waiting for a processor, so the case runs once more in a new worker before it counts: then it may use
a processor for so many seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.areas import AREAS, REPOSITORY, UNBOUNDED, area_class, save_case
from tests.fuzz.record import Record

LIMIT = 5.0  # seconds of a case
_START = 180.0  # seconds until a worker has loaded its libraries, or has made an input
_IDLE = 0.01  # share of a processor below which a process waits for something else
_BUSY = 12  # times its limit that a case may wait for a processor
_CHUNK = 100
_LONGEST_LOG = 1 << 20  # bytes after which the next worker begins it anew
_EVERY = 30.0  # seconds between two lines of progress
_MEMORY_FOLDER = Path("/dev/shm")  # files of a case are in memory where the system has such a folder


class WorkerProcess:
    """One worker, seen from outside."""

    def __init__(self, area: str, folder: Path, scratch: Path) -> None:
        log = folder / "workers.log"
        long = log.exists() and log.stat().st_size > _LONGEST_LOG
        self._log, self.scratch = log.open("wb" if long else "ab"), scratch
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-m", "tests.fuzz", "worker", area, str(folder), str(scratch)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
                                         cwd=REPOSITORY, env=environment)  # fmt: skip
        assert self._process.stdout is not None
        self.stream = self._process.stdout.fileno()
        os.set_blocking(self.stream, False)
        self._rest = b""
        self.heard, self.ready, self.running = time.monotonic(), False, False
        self.seeds: list[int] = []  # what it still has to do
        self.case: tuple[int, str] | None = None
        self.again, self._used_before = False, 0.0

    def give(self, first: int, last: int, again: bool = False) -> None:
        """Hands it the seeds from ``first`` to ``last`` - 1."""
        assert self._process.stdin is not None
        self.seeds, self.again, self.heard = [*range(first, last)], again, time.monotonic()
        self._process.stdin.write(f"{first} {last}\n".encode())
        self._process.stdin.flush()

    def lines(self) -> Iterator[list[Any]]:
        """What it has said since; ends with ``["gone"]`` if it has ended."""
        content = b""
        with contextlib.suppress(BlockingIOError):
            while block := os.read(self.stream, 1 << 16):
                content += block
            yield from self._parsed(content)
            yield ["gone"]
            return
        yield from self._parsed(content)

    def _parsed(self, content: bytes) -> Iterator[list[Any]]:
        *whole, self._rest = (self._rest + content).split(b"\n")
        for line in whole:
            self.heard = time.monotonic()
            yield json.loads(line)

    @property
    def overdue(self) -> bool:
        """Whether its case should have ended. Alone, it is given its seconds of a processor, if it uses one at all."""
        silent = time.monotonic() - self.heard
        if self.case is None or silent <= LIMIT:
            return silent > _START
        used = self._used() - self._used_before
        return not self.again or used > LIMIT or used < _IDLE * silent or silent > _BUSY * LIMIT

    def begin(self, seed: int, kind: str) -> None:
        """It says that a case begins."""
        self.case, self.running, self._used_before = (seed, kind), False, self._used()

    def _used(self) -> float:
        """Seconds of a processor that it has used."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> int:
        """Kills it; returns its exit status."""
        self._process.kill()
        self._process.communicate()
        self._log.close()
        return self._process.returncode


class Runner:
    """Runs seeds of one area and adds up what came of them.

    Args:
        area: name.
        record: what was counted before; brought up to date.
        folder: of the area: unharmed inputs, failures, the workers' log.
        workers: processes at once.
        tell: takes a line of progress.
    """

    def __init__(self, area: str, record: Record, folder: Path, workers: int, tell: Callable[[str], None]) -> None:
        self._area, self._record, self._folder, self._tell = area, record, folder, tell
        self._count = workers
        self._material = folder / "material"
        self._workers: dict[int, WorkerProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._doubtful: list[int] = []  # seeds to run once more, alone
        self._chunks: Iterator[tuple[int, int]] = iter(())
        self._started = self._told = self._saved = time.monotonic()
        self._before = record.cases

    def run(self, first: int, last: int) -> None:
        """Runs the seeds from ``first`` to ``last`` - 1 that were not run yet."""
        self._build()
        self._chunks = self._record.missing(first, last, _CHUNK)
        with tempfile.TemporaryDirectory(
            dir=_MEMORY_FOLDER if _MEMORY_FOLDER.is_dir() else None, prefix="fuzz-"
        ) as place:
            try:
                for number in range(self._count):
                    self._start(Path(place) / str(number))
                while self._workers:
                    self._turn(last)
            finally:
                for worker in self._workers.values():
                    worker.end()
                self._record.save()

    def _build(self) -> None:
        """The unharmed inputs, made once for one state of the source."""
        done = self._folder / "material.source"
        if done.exists() and done.read_text() == self._record.source:
            return
        shutil.rmtree(self._material, ignore_errors=True)
        self._material.mkdir(parents=True)
        command = ("import sys; from pathlib import Path; from tests.fuzz.areas import area_class;"
                   "area_class(sys.argv[1]).build(Path(sys.argv[2]))")  # fmt: skip
        subprocess.run([sys.executable, "-c", command, self._area, str(self._material)], check=True, cwd=REPOSITORY,
                       env={**os.environ, "PYTHONPATH": str(REPOSITORY)})  # fmt: skip
        done.write_text(self._record.source)

    def _start(self, scratch: Path) -> None:
        worker = WorkerProcess(self._area, self._folder, scratch)
        self._workers[worker.stream] = worker
        self._selector.register(worker.stream, selectors.EVENT_READ)

    def _stop(self, worker: WorkerProcess) -> int:
        self._selector.unregister(worker.stream)
        del self._workers[worker.stream]
        return worker.end()

    def _turn(self, last: int) -> None:
        """Hears those who say something, kills those who are overdue, and tells how far everything is."""
        for key, _ in self._selector.select(timeout=0.2):
            worker = self._workers[key.fd]
            for line in worker.lines():
                if self._workers.get(worker.stream) is worker:  # else the line before ended it
                    self._hear(worker, line)
        for worker in [*self._workers.values()]:
            if worker.overdue:
                self._lost(worker, "hang")
        now = time.monotonic()
        if now - self._saved > 5:
            self._record.save()
            self._saved = now
        if now - self._told > _EVERY:
            self._told = now
            fresh = self._record.cases - self._before
            self._tell(f"{self._area}: {fresh:,} cases in {now - self._started:.0f} s, {self._record.cases:,} of"
                       f" {AREAS[self._area][1]:,} in all; {self._record.failed:,} failures")  # fmt: skip

    def _hear(self, worker: WorkerProcess, line: list[Any]) -> None:
        match line:
            case ["ready"]:
                worker.ready = True
                self._next(worker)
            case ["start", seed, kind]:
                worker.begin(seed, kind)
            case ["run"]:
                worker.running = True
            case ["done", seed, kind, outcome, error, where, message, seconds, peak]:
                self._done(worker, seed, kind, outcome, error, where, message, seconds, peak)
            case ["idle"]:
                self._next(worker)
            case ["leaving"]:
                self._replace(worker)
            case ["gone"]:
                self._lost(worker, "died")

    def _done(self, worker: WorkerProcess, seed: int, kind: str, outcome: str, error: str, where: str, message: str,
              seconds: float, peak: int) -> None:  # fmt: skip
        if outcome == "memory" and worker.running:
            outcome = UNBOUNDED
        if worker.seeds and worker.seeds[0] == seed:
            worker.seeds.pop(0)
        worker.case = None
        self._record.add(seed, kind, outcome, error, where, message, seconds, peak)

    def _next(self, worker: WorkerProcess) -> None:
        """Gives an idle worker the next seeds, or ends it."""
        if self._doubtful:
            seed = self._doubtful.pop()
            worker.give(seed, seed + 1, again=True)
        elif chunk := next(self._chunks, None):
            worker.give(*chunk)
        else:
            self._stop(worker)

    def _lost(self, worker: WorkerProcess, how: str) -> None:
        """A worker hangs or has ended; if a case was the cause, another worker takes over what it had left."""
        case = worker.case
        if case is None:  # a mistake of the harness: nothing of the code under test was running
            self._stop(worker)
            said = (self._folder / "workers.log").read_text(errors="replace")[-2000:]
            raise RuntimeError(
                f"{self._area}: a worker failed before seed {worker.seeds[:1]} was made ({how}):\n{said}"
            )
        worker.seeds = [seed for seed in worker.seeds if seed != case[0]]
        self._judge_lost(worker, case, how, self._replace(worker))

    def _replace(self, worker: WorkerProcess) -> int:
        """Puts a new worker in the place of one; returns the exit status of the old one."""
        status = self._stop(worker)
        if worker.seeds:
            self._chunks = _before(_runs(worker.seeds), self._chunks)
        self._start(worker.scratch)
        return status

    def _judge_lost(self, worker: WorkerProcess, case: tuple[int, str], how: str, status: int) -> None:
        seed, kind = case
        if how == "hang" and not worker.again:
            self._doubtful.append(seed)
            return
        error = f"no answer in {LIMIT:.0f} s" if how == "hang" else f"exit status {status}"
        outcome = UNBOUNDED if worker.running and how == "hang" else how
        self._record.add(seed, kind, outcome, error, "a program" if worker.running else "loading", "", LIMIT, 0)
        self._reproduce(seed)

    def _reproduce(self, seed: int) -> None:
        """Writes the input that a worker did not survive; others are written by the worker itself."""
        if not self._record.is_new(seed):
            return
        command = "import sys; from tests.fuzz.runner import reproduce; reproduce(*sys.argv[1:])"
        place = self._folder / "failures" / f"seed-{seed}"
        subprocess.run([sys.executable, "-c", command, self._area, str(seed), str(self._material), str(place)],
                       cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False, timeout=_START)  # fmt: skip


def reproduce(area: str, seed: str, material: str, folder: str) -> None:
    """Writes the input of one case into a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        made = area_class(area)(Path(material), Path(scratch))
        save_case(made, area, int(seed), *made.make(int(seed)), Path(folder))


def _runs(seeds: list[int]) -> Iterator[tuple[int, int]]:
    """Sorted seeds as ranges."""
    start = seeds[0]
    for seed, following in zip(seeds, [*seeds[1:], None], strict=True):
        if following != seed + 1:
            yield start, seed + 1
            start = following or 0


def _before(first: Iterator[tuple[int, int]], then: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    yield from first
    yield from then


def fuzz(area: str, first: int, last: int, work: Path, workers: int = 1, tell: Callable[[str], None] = print) -> Record:
    """Runs the seeds from ``first`` to ``last`` - 1 of one area that were not run yet; returns all that was counted."""
    folder = work / area
    folder.mkdir(parents=True, exist_ok=True)
    record = Record.load(folder / "record.json", "fuzz", area, tell)
    Runner(area, record, folder, workers, tell).run(first, last)
    return record


def outcomes(record: Record) -> str:
    """One line about an area."""
    counted: Counter[str] = record.outcomes()
    said = ", ".join(f"{count:,} {outcome}" for outcome, count in counted.most_common())
    return f"{record.area}: {record.cases:,} cases: {said}"
