"""Kills by SIGKILL: of the store, of updates, and of the commands album, improve and condense.

A seed is one kill. What a kill hits depends on the machine, so a seed repeats the plan of a kill, not its moment; every
second kill of a command is at an audit event of Python (open, rename, connect ...) instead, which does repeat.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

from edge.history import FeatureHistory
from tests.fuzz.areas import REPOSITORY, Wrong, signature
from tests.fuzz.kill_commands import COMMANDS, Command
from tests.fuzz.record import Record

CHUNK = 25  # kills of the store, or of updates, that share a folder
_EVERY = 30.0

# ---- the store and updates, by the tests' own means

LABELS = """
import os, sys
from pathlib import Path
import numpy as np
from edge.history import FeatureHistory

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


def _store(folder: Path, chunk: int, kills: int) -> str:
    """Some kills of the store in one folder; returns their kind."""
    from tests.edge import test_kills
    from tests.edge.conftest import killed_writer, nursery

    killing = SimpleNamespace(nursery=nursery, killed_writer=killed_writer)
    modes = [*test_kills.MODES, "label"]
    mode = modes[chunk % len(modes)]
    if mode == "label":
        _label_kills(killing, folder, kills, chunk)
    else:
        test_kills.kill_stores_at_random(killing, folder, mode, kills, chunk)
    return mode


def _update(folder: Path, chunk: int, kills: int) -> str:
    """Some kills of updates, by the tests that know how."""
    environment = {**os.environ, "REFOCUS_UPDATE_KILLS": str(kills), "REFOCUS_UPDATE_SEED": str(chunk),
                   "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}  # fmt: skip
    chosen = ["-k", "random"] if chunk else []  # what kills at each moment in turn runs once
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "slow", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tests'}",
         "tests/edge/test_update_kills.py", *chosen],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Wrong(f"the tests of updates fail: {done.stdout[-400:]}")
    return "update at random moments" if chunk else "update at random moments, and at each moment in turn"


_IN_CHUNKS: dict[str, tuple[Callable[[Path, int, int], str], int]] = {
    "store": (_store, CHUNK),
    "update": (_update, 100),
}


def kill(kind: str, first: int, last: int, work: Path, tell: Callable[[str], None] = print) -> Record:
    """Makes the kills from ``first`` to ``last`` - 1 of one kind that were not made yet; returns all that was counted."""
    folder = work / kind
    folder.mkdir(parents=True, exist_ok=True)
    record = Record.load(folder / "record.json", "kills", kind, tell)
    told = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as place:
        made = _in_chunks(kind, record, first, last, Path(place)) if kind in _IN_CHUNKS else _one_by_one(
            kind, record, first, last, Path(place), folder)  # fmt: skip
        for _ in made:
            record.save()
            if time.monotonic() - told > _EVERY:
                told = time.monotonic()
                tell(f"{kind}: {record.cases:,} kills, {record.failed:,} failures")
    record.save()
    return record


def _in_chunks(kind: str, record: Record, first: int, last: int, place: Path) -> Iterator[None]:
    work, size = _IN_CHUNKS[kind]
    for begin, end in record.missing(first, last, size):
        folder = Path(tempfile.mkdtemp(dir=place))
        started = time.monotonic()
        try:
            found, outcome, error = work(folder, begin // size, end - begin), "right", ""
        except (AssertionError, Wrong) as wrong:
            found, outcome, error = kind, "wrong", str(wrong).strip().split("\n")[0][:200]
        for seed in range(begin, end):
            worst = outcome if seed == begin else "right"
            record.add(
                seed,
                found,
                worst,
                error if worst != "right" else "",
                seconds=(time.monotonic() - started) / (end - begin),
            )
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
        record.add(seed, "at an event" if seed % 2 == 0 else "at a random moment", "wrong", str(error)[:200])
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
