"""Kills of the commands album, improve and condense: half of them at a random moment, half at an event of Python.

After a kill nothing half-written stands under a final name, and the command run again ends as if it was never stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from refocus.edge.bundle.load import load_bundle
from refocus.edge.errors import RefocusError
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.recognize.recognizer import Recognizer
from tests.fuzz import toys
from tests.fuzz.areas import REPOSITORY, Wrong, rng_of

# A warm process that forks one run of a command per line it reads.
WRITER = """
import json, os, signal, sys
import refocus.edge.recognize.album, refocus.edge.bundle.load, refocus.edge.commands.app, refocus.edge.taper.bank, refocus.edge.recognize.recognizer, refocus.edge.runtimes.onnxruntime, refocus.edge.taper.self_improvement

# What changes something on the disk; SQLite's own writes have no events.
COUNTED = ("open", "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.utime",
           "shutil.", "sqlite3.connect", "fcntl.flock")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def run(words, dies_at, log):
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
    os.dup2(1, 2)
    seen = 0
    def hook(event, given):
        nonlocal seen
        if event.startswith(COUNTED) and (event != "open" or given[2] & WRITES):
            seen += 1
            if seen - 1 == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    sys.argv = ["refocus", *words]
    status = 0
    try:
        refocus.edge.commands.app.main()
    except SystemExit as error:
        status = error.code or 0
    with open(log + ".events", "w") as file:
        file.write(str(seen))
    os._exit(status if isinstance(status, int) else 1)

refocus.edge.commands.app.register_all()
print("warm", flush=True)
for line in sys.stdin:
    words, dies_at, log = json.loads(line)
    child = os.fork()
    if child == 0:
        run(words, dies_at, log)
    print("ready", child, flush=True)
    sys.stdin.readline()  # until then a child that has ended keeps its number
    _, status = os.waitpid(child, 0)
    print("gone", os.waitstatus_to_exitcode(status), flush=True)
"""


class Nursery:
    """That process, seen from outside."""

    def __init__(self, log: Path) -> None:
        self._log = str(log)
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "warm\n"

    def run(self, words: list[str], delay: float | None = None, dies_at: int = -1) -> int:
        """Runs a command; kills it after ``delay`` seconds, or lets it kill itself at an event. Returns its status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([words, dies_at, self._log]) + "\n")
        self._process.stdin.flush()
        _, pid = self._process.stdout.readline().split()
        if delay is not None:
            time.sleep(delay)
            os.kill(int(pid), 9)
        self._process.stdin.write("wait\n")
        self._process.stdin.flush()
        _, status = self._process.stdout.readline().split()
        return int(status)

    @property
    def events(self) -> int:
        """Events that the last whole run passed."""
        return int(Path(f"{self._log}.events").read_text())

    def said(self) -> str:
        """The last that a command said."""
        return Path(self._log).read_text(errors="replace")[-300:]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Command(ABC):
    """Kills one command again and again; each time in a fresh folder, and then lets it run to its end.

    Args:
        folder: for what all kills share.

    Attributes:
        status: exit status of a run to the end.
    """

    status = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nursery = Nursery(folder / "said.txt")
        self.prepare()
        started = time.monotonic()
        whole = folder / "whole"
        self._run_whole(whole)
        self.seconds, self.events = time.monotonic() - started, self.nursery.events
        self.expected = self.outcome(whole)

    @abstractmethod
    def prepare(self) -> None:
        """Makes what all runs start from."""

    @abstractmethod
    def fresh(self, place: Path) -> None:
        """Makes the folder of one kill."""

    @abstractmethod
    def words(self, place: Path) -> list[str]:
        """The command."""

    @abstractmethod
    def check(self, place: Path) -> None:
        """What must hold right after a kill. Raises Wrong."""

    @abstractmethod
    def outcome(self, place: Path) -> Any:
        """What a whole run leaves, for comparison."""

    def kill(self, seed: int, place: Path) -> str:
        """One kill; returns its kind."""
        rng = rng_of(type(self).__name__, seed)
        self.fresh(place)
        if seed % 2:
            kind, status = (
                "at a random moment",
                self.nursery.run(self.words(place), delay=rng.uniform(0, 1.1 * self.seconds)),
            )
        else:
            event = seed // 2 if seed // 2 < self.events else rng.randrange(self.events)
            kind, status = "at an event", self.nursery.run(self.words(place), dies_at=self._spread(event))
        if status not in (self.status, -9):
            raise Wrong("the command fails by itself") from RuntimeError(self.nursery.said())
        self.check(place)
        self._run_whole(place, fresh=False)
        if (found := self.outcome(place)) != self.expected:
            raise Wrong(f"run again, it ends otherwise ({_difference(self.expected, found)})")
        return kind

    def _spread(self, event: int) -> int:
        """The events in an order in which the first few are far apart."""
        step = max(1, int(self.events * 0.618))
        while _common(step, self.events) > 1:
            step += 1
        return event * step % self.events

    def _run_whole(self, place: Path, fresh: bool = True) -> None:
        if fresh:
            self.fresh(place)
        if self.nursery.run(self.words(place)) != self.status:
            raise Wrong("the command does not end well") from RuntimeError(self.nursery.said())


def _common(one: int, two: int) -> int:
    while two:
        one, two = two, one % two
    return one


def _difference(expected: Any, found: Any) -> str:
    if isinstance(expected, dict) and isinstance(found, dict):
        return ", ".join(sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)))
    return f"{expected} became {found}"[:200]


def tree(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder."""
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}  # fmt: skip


class Album(Command):
    """``refocus album --remember``: the table is whole or not there, and the profile holds each photo once, in order."""

    status = 3  # one of the files is no photo

    def prepare(self) -> None:
        toys.plain_bundle(self.folder / "bundle")
        (self.folder / "photos").mkdir()
        for number in range(12):
            (self.folder / "photos" / f"{number:02d}.png").write_bytes(toys.png(number))
        (self.folder / "photos" / "13.png").write_bytes(b"no photo")
        profile = self.folder / "profiles" / "anna.history.sqlite3"
        with Recognizer(load_bundle(self.folder / "bundle"), profile, threads=1) as recognizer:
            for number in range(20, 24):
                recognizer.recognize(toys.png(number), str(number))

    def fresh(self, place: Path) -> None:
        shutil.copytree(self.folder / "profiles", place / "profiles")

    def words(self, place: Path) -> list[str]:
        return ["album", str(self.folder / "bundle"), str(self.folder / "photos"), "--out", str(place / "out.csv"), "--profile",
                "anna", "--profiles", str(place / "profiles"), "--remember", "--batch", "3", "--threads", "1"]  # fmt: skip

    def check(self, place: Path) -> None:
        out = place / "out.csv"
        if out.exists() and out.read_bytes() != self.expected["table"]:
            raise Wrong("a table that is not whole stands under the final name")
        photos = self._photos(place)
        if photos != self.expected["photos"][: len(photos)] or len(photos) < 4:
            raise Wrong("the profile lost photos, or has others")

    def _photos(self, place: Path) -> list[str]:
        with FeatureHistory(place / "profiles" / "anna.history.sqlite3") as history:
            found = [entry.photo for entry in history.entries()]
            if history.recovered is not None or history.damaged:
                raise Wrong("the profile is damaged")
        return found

    def outcome(self, place: Path) -> dict[str, Any]:
        kept = sorted(p.name for p in place.iterdir())
        return {"table": (place / "out.csv").read_bytes(), "photos": self._photos(place), "files": kept}


class Condense(Command):
    """``refocus condense``: the earlier bundle or the new one stands under the name, whole."""

    task = ("class 1", "class 3")

    def prepare(self) -> None:
        toys.bank_bundle(self.folder / "bank")
        earlier = [
            "condense",
            str(self.folder / "bank"),
            "--task",
            "class 0, class 2",
            "--out",
            str(self.folder / "earlier"),
        ]
        if self.nursery.run(earlier):
            raise Wrong(f"no first bundle: {self.nursery.said()}")
        self._earlier = tree(self.folder / "earlier")

    def fresh(self, place: Path) -> None:
        shutil.copytree(self.folder / "earlier", place / "personal")

    def words(self, place: Path) -> list[str]:
        return ["condense", str(self.folder / "bank"), "--task", ", ".join(self.task), "--out", str(place / "personal")]

    def check(self, place: Path) -> None:
        if not (place / "personal").exists():
            raise Wrong("the bundle that was there is gone")
        if tree(place / "personal") not in (self._earlier, self.expected):
            raise Wrong("a bundle that is not whole stands under the final name")
        _serves(place / "personal")

    def outcome(self, place: Path) -> dict[str, str]:
        _serves(place / "personal")
        return tree(place / "personal")


class Improve(Command):
    """``refocus improve``: no bundle or a whole one stands under the name, and the same classes are found in the end."""

    def prepare(self) -> None:
        toys.bank_bundle(self.folder / "bank")
        (self.folder / "photos").mkdir()
        with Recognizer(load_bundle(self.folder / "bank"), None, threads=1) as recognizer:
            found = 0
            for number in range(10_000):
                answer = recognizer.recognize(toys.png(number))
                if answer.labels[0] in toys.LABELS[:2] and answer.probabilities[0] > 0.8:
                    (self.folder / "photos" / f"{found:03d}.png").write_bytes(toys.png(number))
                    found += 1
                if found == 40:
                    break

    def fresh(self, place: Path) -> None:
        place.mkdir(parents=True)

    def words(self, place: Path) -> list[str]:
        return ["improve", str(self.folder / "bank"), str(self.folder / "photos"), "--out", str(place / "out"), "--batch", "8",
                "--threads", "1"]  # fmt: skip

    def check(self, place: Path) -> None:
        if (place / "out" / "personal").exists():
            _serves(place / "out" / "personal")

    def outcome(self, place: Path) -> Any:
        personal = place / "out" / "personal"
        if not personal.exists():
            return {"classes": None}
        _serves(personal)
        task = load_bundle(personal).manifest.task
        return {"classes": sorted(task.classes) if task else None}


def _serves(folder: Path) -> None:
    """A bundle loads and answers a photo."""
    try:
        with Recognizer(load_bundle(folder), None, threads=1) as recognizer:
            recognizer.recognize(toys.png(1))
    except RefocusError as error:
        raise Wrong(f"a bundle does not serve: {type(error).__name__}") from error


COMMANDS: dict[str, type[Command]] = {"album": Album, "improve": Improve, "condense": Condense}
