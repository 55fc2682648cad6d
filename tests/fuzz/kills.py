"""Kills by SIGKILL: of the store, of updates, and of the commands album, improve and condense.

A seed is one kill. What a kill hits depends on the machine, so a seed repeats the plan of a kill, not its moment; every
second kill of a command is at an audit event of Python (open, rename, connect ...) instead, which does repeat.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from refocus.edge.history.feature_history import FeatureHistory
from tests.fuzz import toys
from tests.fuzz.areas import Wrong, signature
from tests.fuzz.kill_commands import COMMANDS, Command
from tests.fuzz.record import Record

CHUNK = 25  # kills of the store, or of updates, that share a folder
_EVERY = 30.0

# ---- the store and updates, by the tests' own means

LABELS = """
import os, sys
from pathlib import Path
import numpy as np
from refocus.edge.history.feature_history import FeatureHistory

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def life(path, number):
    history = FeatureHistory(Path(path))
    while True:
        photo = f"photo{number % 7}"
        say("doing", photo, number)
        history.set_label(photo, f"label {number}" if number % 5 else None)
        history.set_setting("last", str(number))
        say("did", photo, number)
        history.append("space", f"{number}", np.full(300, number, dtype=np.float32))
        number += 1

say("warm")
for line in sys.stdin:
    path, number = line.split()
    child = os.fork()
    if child == 0:
        say("ready", os.getpid())
        life(path, int(number))
    os.waitpid(child, 0)
    say("gone")
"""


def _label_kills(killing: SimpleNamespace, folder: Path, kills: int, seed: int) -> None:
    """Labels and settings that were acknowledged are there after a kill; the one in doubt is old or new."""
    rng, path, labels, last = random.Random(seed), folder / "labels", {}, -1
    with killing.nursery(LABELS) as process:
        for kill in range(kills):
            lines, doubt = (
                killing.killed_writer(process, f"{path} {kill * 1000 + 1}", rng.randrange(12), rng.uniform(0, 0.005)),
                None,
            )
            for what, photo, number in lines:
                doubt = (photo, int(number)) if what == "doing" else None
                if what == "did":
                    labels[photo], last = _label(int(number)), int(number)
            with FeatureHistory(path) as history:
                found, setting = history.labels(), int(history.settings().get("last", -1))
                assert history.damaged == 0
            expected = {photo: label for photo, label in labels.items() if label}
            options = [expected]
            if doubt:
                changed = {**labels, doubt[0]: _label(doubt[1])}
                options.append({photo: label for photo, label in changed.items() if label})
            assert found in options, f"kill {kill}: labels {found}, expected {options}"
            assert setting in (last, doubt[1] if doubt else last), f"kill {kill}: a setting was forgotten"
            labels, last = {**dict.fromkeys(labels), **found}, setting


def _label(number: int) -> str | None:
    return f"label {number}" if number % 5 else None


MODES = ("append", "evict", "erase", "label", "switch", "recover")


def _store(mode: str, folder: Path, seed: int, kills: int) -> None:
    """Some kills of the store in one folder."""
    from tests.edge.conftest import killed_writer, nursery
    from tests.edge.history import test_kills

    killing = SimpleNamespace(nursery=nursery, killed_writer=killed_writer)
    if mode == "label":
        _label_kills(killing, folder, kills, seed)
    else:
        test_kills.kill_stores_at_random(killing, folder, mode, kills, seed)


def _updates(record: Record, kind: str, first: int, last: int, place: Path) -> Iterator[None]:
    """Kills of a device that updates, goes back and serves, at random moments or at each audit event in turn."""
    from tests.edge.update.update_kills import Bench

    second = toys.plain_bundle(place / "second", name="other encoder", noise=0.02)
    bench = Bench(place / "bench", toys.plain_bundle(place / "first"), second, [toys.png(n) for n in range(12)])
    kills = bench.at_events if kind == "events" else bench.at_random
    last = min(last, bench.events()) if kind == "events" else last
    try:
        for begin, end in record.missing(first, last, CHUNK):
            while begin < end:
                begin = yield from _some_updates(record, kills(range(begin, end)), begin, end)
    finally:
        bench.close()


def _some_updates(record: Record, kills: Iterator[Any], seed: int, end: int) -> Generator[None, None, int]:
    """Counts kills until one fails; returns the seed to go on from."""
    try:
        for done in kills:
            record.add(done.seed, f"while {done.stage}", "right")
            seed = done.seed + 1
            yield
    except Exception as error:
        seed = min(seed, end - 1)
        said = str(error).strip().split("\n")[0][:200]
        wrong = isinstance(error, AssertionError)
        record.add(seed, "update", "wrong" if wrong else "uncaught", said if wrong else type(error).__name__, "", said)
        yield
        return min(seed + 1, end)
    return end


def kill(kind: str, first: int, last: int, work: Path, tell: Callable[[str], None] = print) -> Record:
    """Makes the kills from ``first`` to ``last`` - 1 of one kind that were not made yet; returns all that was counted."""
    folder = work / kind
    folder.mkdir(parents=True, exist_ok=True)
    record = Record.load(folder / "record.json", "kills", kind, tell)
    told = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as place:
        for _ in _made(kind, record, first, last, Path(place), folder):
            record.save()
            if time.monotonic() - told > _EVERY:
                told = time.monotonic()
                tell(f"{kind}: {record.cases:,} kills, {record.failed:,} failures")
    record.save()
    return record


def _made(kind: str, record: Record, first: int, last: int, place: Path, folder: Path) -> Iterator[None]:
    if kind in COMMANDS:
        return _one_by_one(kind, record, first, last, place, folder)
    if kind == "store":
        return _stores(record, first, last, place)
    return _updates(record, kind, first, last, place)


def _stores(record: Record, first: int, last: int, place: Path) -> Iterator[None]:
    for begin, end in record.missing(first, last, CHUNK):
        folder, started, outcome, error = Path(tempfile.mkdtemp(dir=place)), time.monotonic(), "right", ""
        mode = MODES[begin // CHUNK % len(MODES)]
        try:
            _store(mode, folder, begin // CHUNK, end - begin)
        except AssertionError as wrong:
            outcome, error = "wrong", str(wrong).strip().split("\n")[0][:200]
        seconds = (time.monotonic() - started) / (end - begin)
        for seed in range(begin, end):  # a failure is one of these kills, and the rest of them were not judged
            record.add(seed, mode, outcome, error, seconds=seconds)
        shutil.rmtree(folder, ignore_errors=True)
        yield


def _one_by_one(kind: str, record: Record, first: int, last: int, place: Path, folder: Path) -> Iterator[None]:
    command = COMMANDS[kind](place)
    try:
        for begin, end in record.missing(first, last, CHUNK):
            for seed in range(begin, end):
                _one(command, seed, place / f"kill-{seed}", record, folder)
                yield
    finally:
        command.nursery.close()


def _one(command: Command, seed: int, place: Path, record: Record, folder: Path) -> None:
    started = time.monotonic()
    try:
        record.add(seed, command.kill(seed, place), "right", seconds=time.monotonic() - started)
    except Wrong as error:
        record.add(
            seed,
            "at an event" if seed % 2 == 0 else "at a random moment",
            "wrong",
            str(error)[:200],
            message=str(error.__cause__ or ""),
        )
        shutil.copytree(place, folder / "failures" / f"seed-{seed}", dirs_exist_ok=True, symlinks=True)
    except Exception as error:
        record.add(
            seed,
            "at an event" if seed % 2 == 0 else "at a random moment",
            "uncaught",
            *signature(error),
            str(error)[:200],
        )
    shutil.rmtree(place, ignore_errors=True)
