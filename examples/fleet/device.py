"""Simulated device: ``python examples/fleet/device.py FOLDER``.

The process does what an app does: one thread recognises its owner's photos with
:class:`refocus.edge.update.serving.Serving`, another checks for releases with
:class:`refocus.edge.update.agent.UpdateAgent`. Only the pace and the two log files for the report are particular to the
simulation. The module imports nothing heavier than `edge`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import msgspec

from refocus.edge.errors import RefocusError, UpdateError
from refocus.edge.files import write_durably
from refocus.edge.history import FeatureHistory
from refocus.edge.update import (
    Canary,
    Outcome,
    RepositoryClient,
    Serving,
    Settings,
    Slots,
    UpdateAgent,
    UpdateState,
    counted,
)

PLAN, ANSWERS, NEWS = "device.json", "answers.jsonl", "news.jsonl"


class Plan(msgspec.Struct, frozen=True):
    """Plan of a simulated device.

    Attributes:
        photos: paths of the owner's photos in order; after the last, the first follows again.
        labels: the owner's label of each photo; empty: the owner labels none.
        tells: URL to which the device sends its counts with the owner's consent; "": there is no consent.
        photo_s: seconds between two photos.
        look_s: seconds between two checks for a release.
    """

    photos: tuple[str, ...]
    labels: tuple[str, ...] = ()
    tells: str = ""
    photo_s: float = 1.0
    look_s: float = 3.0


class Answered(msgspec.Struct, frozen=True):
    """Answer to a photo, or an error.

    Attributes:
        at: seconds since 1970.
        photo: index of the photo among the owner's.
        release: number of the release that answered.
        label: most likely label; "" with an error.
        ms: duration in milliseconds.
        error: message of the error; "" without one.
    """

    at: float
    photo: int
    release: int = 0
    label: str = ""
    ms: float = 0.0
    error: str = ""


class News(msgspec.Struct, frozen=True):
    """Changes by one check for releases.

    Attributes:
        at: seconds since 1970.
        said: message of the check.
        stage: stage of the update afterwards.
        release: number of the active release afterwards.
        ended: updates that ended.
        photos: number of photos of the shadow run, if there was one.
        agreement: share of its answers that agree.
    """

    at: float
    said: str
    stage: str
    release: int
    ended: tuple[Outcome, ...] = ()
    photos: int = 0
    agreement: float = 1.0


class SimulatedDevice:
    """Device in a folder with ``device.json`` and slots.

    The slots are those of :class:`refocus.edge.update.device_state.Slots`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.slots = folder, Slots(folder)
        self.plan = msgspec.json.decode((folder / PLAN).read_bytes(), type=Plan)
        self.settings = Settings(profiles=folder / "profiles", threads=1)
        self.profile = self.settings.profiles / "owner.history.sqlite3"
        self.stopped = threading.Event()
        self._told = b""

    def live(self) -> None:
        """Recognise photos and check for releases until :attr:`stopped`."""
        self.settings.profiles.mkdir(exist_ok=True)
        looking = threading.Thread(target=self._look_again_and_again)
        looking.start()
        try:
            self._take_photos()
        finally:
            self.stopped.set()
            looking.join()

    # ---- the owner

    def _take_photos(self) -> None:
        while self.slots.read().active is None:  # nothing is installed yet
            if self.stopped.wait(0.1):
                return
        with Serving(self.slots, self.settings, self.profile) as serving, (self.folder / ANSWERS).open("ab") as log:
            for taken in itertools.count():
                due = time.monotonic() + self.plan.photo_s
                log.write(msgspec.json.encode(self._recognise(serving, taken)) + b"\n")
                log.flush()
                if self.stopped.wait(max(0.0, due - time.monotonic())):
                    return

    def _recognise(self, serving: Serving, taken: int) -> Answered:
        number = taken % len(self.plan.photos)
        path = Path(self.plan.photos[number])
        content, started = path.read_bytes(), time.perf_counter()
        try:
            label = serving.recognize(content, str(path), remember=taken == number).labels[0]
        except RefocusError as error:
            return Answered(time.time(), number, error=str(error))
        took = (time.perf_counter() - started) * 1000
        if self.plan.labels and taken == number:
            with FeatureHistory(self.profile) as history:
                history.set_label(hashlib.sha256(content).hexdigest(), self.plan.labels[number])
        return Answered(time.time(), number, serving.release.number, label, took)

    # ---- the device

    def _look_again_and_again(self) -> None:
        record = self.slots.read()
        source = RepositoryClient(self.folder / "metadata", record.url, self.slots.root, record.device_class)
        # The first check is at a different time within the interval for each device.
        wait = int(record.device[:8], 16) / 2**32 * self.plan.look_s
        with (self.folder / NEWS).open("ab") as log:
            while not self.stopped.wait(wait):
                wait = self.plan.look_s
                before = self.slots.read()
                updates = UpdateAgent(
                    self.slots, self.settings, source
                )  # again: the models of the last update are freed
                try:
                    said = updates.look()
                    updates.run()
                except UpdateError as error:
                    said = str(error)
                news = _news(said, before, self.slots.read(), updates.shadow)
                if news is not None:
                    log.write(msgspec.json.encode(news) + b"\n")
                    log.flush()
                with contextlib.suppress(urllib.error.URLError, OSError):  # it is sent the next time
                    self._tell()

    def _tell(self) -> None:
        """Send the output of ``refocus update counts`` if it changed.

        It replaces the counts that were sent before.
        """
        counts = msgspec.json.encode(counted(self.slots.read()))
        if self.plan.tells and counts != self._told:
            request = urllib.request.Request(self.plan.tells, data=counts, method="PUT")  # noqa: S310  # of the plan
            urllib.request.urlopen(request, timeout=10).close()  # noqa: S310
            self._told = counts


def _news(said: str, before: UpdateState, after: UpdateState, shadow: Canary) -> News | None:
    if (before.stage, before.active, before.outcomes) == (after.stage, after.active, after.outcomes):
        return None
    number = after.active.number if after.active else 0
    ended = after.outcomes[len(before.outcomes) :]
    return News(time.time(), said, after.stage, number, ended, shadow.photos, shadow.agreement)


def write_plan(folder: Path, plan: Plan) -> None:
    """Write the plan of a device, which holds from its next start."""
    write_durably(folder / PLAN, msgspec.json.encode(plan))


def read_log(path: Path, kind: type) -> list:
    """Read the complete lines of a log file; none if there is no file."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=kind) for line in lines]


if __name__ == "__main__":
    device = SimulatedDevice(Path(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: device.stopped.set())
    device.live()
