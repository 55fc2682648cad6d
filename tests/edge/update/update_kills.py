"""``kill -9`` of a device while it updates, serves and goes back: at random moments, or at each audit event in turn.

``python -m tests.edge.update.update_kills --kind random --seeds 0:300`` prints one JSON line per kill; any range may be run at
any time, by itself. ``--kind event`` kills at the audit event of that number (:data:`EVENTS`); numbers beyond the last
event of an update are left out. Raises AssertionError where a device does not come up, or lost what was acknowledged.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.update.serving import Serving
from tests.edge.update.updating import Fleet

SEEN = 8
_NEVER = 1 << 30
# What an update does to files, databases, sockets and processes; SQLite's own writes have no events.
EVENTS = ("open", "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate",
          "shutil.rmtree", "socket.connect", "sqlite3.connect", "subprocess.Popen")  # fmt: skip

# An update there, a new photo of the person served, and back; over and over, or once.
WORKER = """
import os, signal, sys
from pathlib import Path
import msgspec
import onnxruntime, tuf.ngclient, refocus.edge.recognize.check, refocus.edge.migration.migration  # so that a fork need not
from refocus.edge.update.serving import Serving
from refocus.edge.update.device_state import Slots
from refocus.edge.update.repository import RepositoryClient
from refocus.edge.update.agent import UpdateAgent
from refocus.edge.update.loaded_releases import Settings

EVENTS = set(sys.argv[1:])

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

seen = 0

def die_at(number):
    def hook(event, given):
        global seen
        if event in EVENTS:
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
    sys.addaudithook(hook)

def life(folder, photo, forever):
    slots = Slots(folder)
    settings = Settings(folder / "profiles", threads=1)
    record = slots.read()
    updates = UpdateAgent(slots, settings, RepositoryClient(folder / "metadata", record.url, slots.root, "phone"))
    while True:
        if forever:
            slots.change(lambda record: msgspec.structs.replace(record, refused={}, postponed={}))
        say("look")
        updates.look()
        updates.run()
        with Serving(slots, settings, folder / "profiles" / "anna.history.sqlite3") as serving:
            serving.recognize(photo.read_bytes(), str(photo))
        say("stored")
        if slots.read().active.number == 2:
            updates.back("and back")
            updates.run()
        if not forever:
            break
    say("did", seen)

say("warm")
for line in sys.stdin:
    folder, photo, number = line.split()
    child = os.fork()
    if child == 0:
        say("ready", os.getpid())
        if int(number) >= 0:
            die_at(int(number))
        life(Path(folder), Path(photo), int(number) < 0)
        os._exit(0)
    os.waitpid(child, 0)
    say("gone")
"""


@dataclass(frozen=True)
class Kill:
    """One kill, after which the device came up.

    Attributes:
        seed: number of the kill; of the event, for kills at events.
        stage: in which the device was killed.
        served: bundle that answered afterwards.
    """

    kind: str
    seed: int
    stage: str
    served: str


class Bench:
    """A device that has served a person, and a second release with another encoder to come.

    Args:
        folder: empty; for the repository, the device and its copies.
        first, second: bundles.
        photos: of one person, encoded; at least ``SEEN + 2``.
    """

    def __init__(self, folder: Path, first, second, photos) -> None:
        self.fleet = Fleet(folder, first)
        self.files = [folder / f"{number}.png" for number in range(SEEN + 2)]
        for path, content in zip(self.files, photos, strict=False):
            path.write_bytes(content)
        device = self.fleet.device()
        device.look()
        device.run()
        with Serving(device.slots, device.settings, self._profile(device)) as serving:
            for path in self.files[:SEEN]:
                serving.recognize(path.read_bytes(), str(path))
            self.photos = self._stored(serving)
        self.fleet.publish(second)
        self._expected = {made.manifest.name: self._answers(made) for made in (first, second)}
        self._new = hashlib.sha256(self.files[SEEN].read_bytes()).hexdigest()
        self._acknowledged, self._copies = False, 0

    def close(self) -> None:
        self.fleet.server.close()

    # ---- kills

    def at_random(self, seeds: range) -> Iterator[Kill]:
        """Kills one device again and again, after a time that the seed decides."""
        folder = self._copy()
        with _Nursery() as process:
            for seed in seeds:
                order = f"{folder} {self.files[SEEN]} -1"
                delay = random.Random(seed).uniform(0.02, 4.0)
                yield self._checked("random", seed, folder, _killed(process, order, delay))
        shutil.rmtree(folder)

    def at_events(self, numbers: range) -> Iterator[Kill]:
        """Kills a new device at each event of these numbers, and lets it go on; ends after the last event."""
        with _Nursery() as process:
            for number in numbers:
                folder = self._copy()
                said = _killed(process, f"{folder} {self.files[SEEN]} {number}")
                if said and said[-1].startswith("did"):
                    break
                yield self._checked("event", number, folder, said)
                self._goes_on(folder)
                shutil.rmtree(folder)

    def events(self) -> int:
        """Events of one update there and back."""
        with _Nursery() as process:
            said = _killed(process, f"{self._copy()} {self.files[SEEN]} {_NEVER}")
        return int(said[-1].removeprefix("did "))

    # ---- what must hold

    def _checked(self, kind: str, seed: int, folder: Path, said: list[str]) -> Kill:
        assert not said or not said[-1].startswith("did"), "it was not killed"
        stage = self._device(folder).slots.read().stage
        self._acknowledged = self._acknowledged or "stored" in said
        return Kill(kind, seed, stage, self._comes_up(folder))

    def _comes_up(self, folder: Path, done: bool = False) -> str:
        """The device serves one release, whole, with its history; name of its bundle.

        A release serves when its history holds as many photos as its head looks back on; once the update is ``done``, it
        holds all of them, and what the other release has stored meanwhile, which is in the profile before.
        """
        device = self._device(folder)
        with Serving(device.slots, device.settings, self._profile(device)) as serving:
            answer = serving.recognize(self.files[SEEN + 1].read_bytes(), remember=False)
            name, stored = serving.recognizer.manifest.name, self._stored(serving)
            had, added = tuple(photo for photo in stored if photo != self._new), self._new in stored
            enough = SEEN + added if done else min(SEEN, serving.recognizer.window)
            assert len(stored) >= enough, f"{name} serves, and not all of its history is there"
            assert (*had, self._new)[: len(stored)] == stored, f"{name} serves, in another order"
            assert had == self.photos[-len(had) :], f"{name} serves, with photos that nobody stored"
            if self._acknowledged:
                kept = {entry.photo for entry in serving.recognizer.history.entries()}
                assert self._new in (stored if done else kept), "an acknowledged photo is not there"
            np.testing.assert_allclose(answer.logits, self._expected[name][added], atol=1e-5)
            assert serving.recognizer.history.damaged == 0
        with FeatureHistory(self._profile(device)) as history:
            assert history.recovered is None
        return name

    def _goes_on(self, folder: Path) -> None:
        """What was begun ends, and nobody holds the kill against the release."""
        device = self._device(folder)
        device.look()
        device.run()
        self._comes_up(folder, done=True)
        record = device.slots.read()
        assert record.stage == "settled"
        assert record.active.number == (1 if record.refused else 2)
        assert set(record.refused.values()) <= {"and back"}
        assert record.postponed == {}

    # ---- pieces

    def _copy(self) -> Path:
        """A device of its own; the files of its releases by link, because nothing ever writes to them."""
        self._acknowledged = False
        self._copies += 1
        source, name = self.fleet.folder / "device", f"copy-{self._copies}"

        def copy(path: str, to: str) -> str:
            if Path(path).is_relative_to(source / "slots"):
                os.link(path, to)
                return to
            return str(shutil.copy2(path, to))

        shutil.copytree(source, self.fleet.folder / name, copy_function=copy)
        return self.fleet.folder / name

    def _device(self, folder: Path):
        return self.fleet.device(folder.name)

    def _profile(self, device) -> Path:
        return device.settings.profiles / "anna.history.sqlite3"

    def _stored(self, serving: Serving) -> tuple[str, ...]:
        recognizer = serving.recognizer
        return tuple(recognizer.history.recall(recognizer.space, 99, recognizer.width).photos)

    def _answers(self, made) -> list[np.ndarray]:
        """Logits for the last photo after ``SEEN`` photos, and after one more."""
        with Recognizer(made, threads=1) as recognizer:
            features = [recognizer.encode(path.read_bytes()) for path in self.files]
            befores = features[:SEEN], features[: SEEN + 1]
            return [[*recognizer.replay([*before, features[-1]])][-1].logits for before in befores]


class _Nursery:
    """A warm process that forks one worker per line that it reads."""

    def __enter__(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-c", WORKER, *EVENTS], stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout.readline() == "warm\n"
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _killed(process: subprocess.Popen[str], order: str, delay: float | None = None) -> list[str]:
    """What a worker says until it is dead."""
    process.stdin.write(f"{order}\n")
    process.stdin.flush()
    ready, pid = process.stdout.readline().split()
    assert ready == "ready"
    if delay is not None:
        time.sleep(delay)
        os.kill(int(pid), 9)
    return [line.strip() for line in iter(process.stdout.readline, "gone\n")]


# ---- the command


def small_bench(folder: Path) -> Bench:
    """A bench on a small run, which is trained where the folder has none."""
    from refocus.cloud_train.evaluate.heads import bundle_of
    from tests.edge.update.updating import variant
    from tests.tiny import tiny_run, train_tiny_run

    if not (folder / "tiny.done").exists():
        shutil.rmtree(folder / "tiny", ignore_errors=True)
        train_tiny_run(folder / "tiny")
        (folder / "tiny.done").touch()
    run = tiny_run(folder / "tiny")
    first, test = bundle_of(run, run.head_path(0, "iciia_t")), run.table.of_split("test")
    _, rows = next(test.clients())
    for name in ("second", "bench"):
        shutil.rmtree(folder / name, ignore_errors=True)
    second = variant(first, folder / "second", "encoder", "other encoder")
    return Bench(folder / "bench", first, second, [test.read(name) for name in test.photo[rows].tolist()])


def main() -> None:
    """Prints one line of JSON per kill."""
    parser = argparse.ArgumentParser(prog="python -m tests.edge.update.update_kills", description=__doc__)
    parser.add_argument("--kind", choices=["random", "event"], default="random")
    parser.add_argument("--seeds", default="0:300", help="FIRST:LAST, the last not among them")
    parser.add_argument("--work", type=Path, default=Path("runs/update-kills"), help="folder for the run and devices")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition(":")
    asked.work.mkdir(parents=True, exist_ok=True)
    bench = small_bench(asked.work)
    try:
        kills = bench.at_random if asked.kind == "random" else bench.at_events
        for kill in kills(range(int(first), int(last))):
            print(json.dumps(asdict(kill)), flush=True)  # noqa: T201
    finally:
        bench.close()


if __name__ == "__main__":
    main()
