"""A device changes its release: looks for one, fetches, tests, moves each person, commits; or returns.

Whatever happens here, at whatever moment, a release that was whole before serves on: :mod:`edge.serving` needs neither
a network nor this file. The stages, and what a kill in each leaves, are in docs/decisions/0019-updates.md; how one
person's history moves is :mod:`edge.migration`, unchanged.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from edge import __version__, fetching
from edge.bundle import Bundle, load_bundle
from edge.errors import BundleError, HistoryError, RefocusError, RuntimeUnavailable, UpdateError
from edge.following import People
from edge.recognizer import Recognizer
from edge.releases import Channel, Device, File, Release, identity_of, misfit, wanted
from edge.runtimes import RUNTIMES
from edge.shadow import Limits, Shadow, compare, judge, self_test
from edge.slots import Record, Seen, Slot, Slots, ended, files_of, sync_tree
from edge.weight_files import sync_folder

ATTEMPTS = 3  # times that a stage may kill the process before the release is blamed


class Repository(Protocol):
    """What an update needs of the other side; :class:`edge.update_source.Source` has it."""

    def refresh(self, seen: Seen) -> tuple[Channel, Seen]: ...

    def download(self, file: File, into: Path) -> None: ...


@dataclass(frozen=True)
class Settings:
    """How this device runs a bundle.

    Attributes:
        profiles: folder of the people's histories.
    """

    profiles: Path
    runtime: str = "onnxruntime"
    precision: str = "fp32"
    threads: int = 0
    limits: Limits = field(default_factory=Limits)

    @property
    def target(self) -> str:
        return f"{self.runtime}:{self.precision}"

    def recognizer(self, folder: Path) -> Recognizer:
        """The bundle of a folder, verified and loaded, for nobody yet."""
        return Recognizer(load_bundle(folder), None, self.runtime, self.precision, self.threads)


class Updates:
    """One device's updates; the work of a moment at a time.

    Several processes may have one of these: one of them works, the others find nothing to do.

    Args:
        slots: the device's releases.
        settings: how it runs them.
        repository: where releases come from; None: go on with what is here.

    Attributes:
        shadow: what the last test on the owner's photos found.
    """

    def __init__(self, slots: Slots, settings: Settings, repository: Repository | None = None) -> None:
        self.slots, self.settings, self._repository = slots, settings, repository
        self.shadow = Shadow()
        self._models: dict[str, Recognizer] = {}
        self._people = People(settings.profiles, self._model)

    # ---- what is decided

    def look(self) -> str:
        """Asks the repository; begins an update, gives one up, or returns, if that is what it says.

        Returns:
            what was decided, in words.

        Raises:
            UpdateError: the repository cannot be reached or trusted. Nothing has changed.
        """
        if self._repository is None:
            raise UpdateError("no repository is given")
        channel, seen = self._repository.refresh(self.slots.read().seen)
        record = self.slots.change(lambda record: msgspec.structs.replace(record, seen=seen))
        withdrawn = {release.identity: release.withdrawn for release in channel.releases if release.withdrawn}
        candidate, active = record.candidate, record.active
        if candidate and record.stage != "returning":
            if candidate.identity not in withdrawn:
                return f"release {candidate.number} is {record.stage}"
            self.give_up(f"withdrawn: {withdrawn[candidate.identity]}")
            return f"release {candidate.number} was withdrawn"
        if record.stage == "returning":
            return f"on the way back to release {active.number if active else 0}"
        hurt = active is not None and active.identity in withdrawn
        if hurt and record.previous and record.previous.identity not in withdrawn:
            self.back(f"withdrawn: {withdrawn[active.identity]}" if active else "")
            return f"release {active.number if active else 0} was withdrawn"
        if record.stage == "trial":
            return f"release {active.number if active else 0} is on trial until somebody is served"
        # A bundle that came with the device has no number of its own; it may be one of the releases all the same.
        known = channel.of(active.identity) if active else None
        number = max(active.number if active else 0, known.number if known else 0)
        release = wanted(channel, record.device, number, hurt, record.refused)
        if release is None:
            return "up to date"
        if why := misfit(release, channel, self.device(record)):
            return f"release {release.number} does not fit: {why}"
        self._begin(release)
        return f"release {release.number} is to be fetched"

    def device(self, record: Record) -> Device:
        """What this device is, in versions.

        Raises:
            RuntimeUnavailable: its runtime is not installed.
        """
        module, extra = RUNTIMES[self.settings.runtime]
        try:
            version = str(importlib.import_module(module).VERSION)
        except ImportError:
            raise RuntimeUnavailable(f"{self.settings.runtime} is missing: pip install 'refocus[{extra}]'") from None
        return Device(record.device, record.device_class, self.settings.runtime, self.settings.precision, version,
                      __version__)  # fmt: skip

    def _begin(self, release: Release) -> None:
        space = next(p.feature_space for p in release.programs if p.target == self.settings.target)
        slot = Slot(number=release.number, identity=release.identity, name=release.name, space=space)

        def begin(record: Record) -> Record | None:
            if record.stage != "settled":
                return None
            return _replaced(record, stage="staging", candidate=slot, release=release, attempts=0)

        self.slots.change(begin)

    def give_up(self, why: str) -> None:
        """Drops the candidate, in whatever stage it is: refused if it never served, taken back if it did."""

        def give_up(record: Record) -> Record | None:
            slot = record.candidate
            if slot is None or record.stage == "returning":
                return None
            if record.stage == "moving":
                return _replaced(ended(record, slot, "returned", why), stage="returning", release=None)
            dropped = ended(record, slot, "refused", why)
            return _replaced(dropped, stage="settled", candidate=None, release=None, attempts=0)

        self.slots.change(give_up)

    def back(self, why: str) -> None:
        """Lets the previous release serve again, from the next photo on; everybody's history comes along.

        Raises:
            UpdateError: there is no previous release.
        """

        def back(record: Record) -> Record | None:
            if record.stage == "returning":
                return None
            active, previous = record.active, record.previous
            if previous is None or active is None:
                raise UpdateError("there is no previous release to return to")
            # What is on its way is dropped without an end of its own: nobody has found it unfit.
            returned = ended(record, active, "returned", why)
            return _replaced(returned, stage="returning", active=previous, candidate=active, previous=None,
                             release=None, attempts=0)  # fmt: skip

        self.slots.change(back)

    # ---- the work

    def run(self) -> Record:
        """Works until there is nothing more to do before the next :meth:`look`, and says what is the case.

        Raises:
            UpdateError: the network, the disk or another process is in the way; call it again later.
        """
        with self.slots.working() as alone:
            if not alone:
                raise UpdateError(f"another process works on the updates of {self.slots.folder}; let it finish")
            self.slots.sweep()
            while self.step():
                pass
            self.slots.sweep()
        return self.slots.read()

    def step(self) -> bool:
        """One piece of work, each about the time of a photo, a file or a test; False if there is none."""
        record = self.slots.read()
        work: dict[str, Callable[[Record], bool]] = {
            "settled": self._complete, "trial": self._complete, "staging": self._fetch, "testing": self._test,
            "moving": self._move, "returning": self._return,
        }  # fmt: skip
        return work[record.stage](record)

    def _fetch(self, record: Record) -> bool:
        """One file of the candidate; or, if none is missing, the whole is verified and put in its slot."""
        slot, release = record.candidate, record.release
        assert slot is not None and release is not None  # noqa: S101, PT018  # the stage says so
        missing = fetching.missing(self.slots, slot, release)
        if missing:
            return fetching.fetch(self.slots, record, missing, self._repository)
        try:
            fetching.verify(self.slots, slot, release, self.settings.runtime, self.settings.precision)
        except BundleError as error:
            self.give_up(f"not a whole bundle: {error}")
            return True
        fetching.install(self.slots, slot)
        self._to("staging", "testing")
        return True

    def _test(self, record: Record) -> bool:
        """The self-test and the owner's photos. A release that kills the process, again and again, is to blame."""
        slot = record.candidate
        assert slot is not None  # noqa: S101
        self.device(record)  # without the runtime nothing can be said of a release
        if record.attempts >= ATTEMPTS:
            self.give_up(f"the process did not survive its test, {ATTEMPTS} times")
            return True
        self.slots.change(lambda record: _replaced(record, attempts=record.attempts + 1))
        try:
            why = self._why_not(record, slot)
        except (BundleError, RuntimeUnavailable) as error:
            why = str(error)
        except HistoryError:  # no death, and not the release's fault
            self.slots.change(lambda now: _replaced(now, attempts=record.attempts) if now.stage == "testing" else None)
            raise
        if why:
            self.give_up(why)
        elif record.active is None:
            self._commit("testing")
        else:
            self._to("testing", "moving")
        return True

    def _why_not(self, record: Record, slot: Slot) -> str:
        bundle: Bundle = load_bundle(self.slots.path(slot))
        if why := self_test(bundle, self.settings.target):
            return f"it fails its self-test: {why}"
        try:
            serving = self._model(record.active) if record.active else None
        except RefocusError:  # what is damaged here may be healed by this release
            serving = None
        if serving is None:
            return ""
        self.shadow = compare(serving, self._model(slot), self._people.profiles(), self.settings.limits)
        return judge(self.shadow, self.settings.limits)

    def _move(self, record: Record) -> bool:
        """A piece of the move of everybody who is not with the candidate yet."""
        active, slot = record.active, record.candidate
        assert active is not None and slot is not None  # noqa: S101, PT018
        if record.previous is not None:  # the release before the active one: from here on there is no way back to it
            self._people.let_go(record.previous, active)
            self.slots.change(lambda record: _replaced(record, previous=None) if record.stage == "moving" else None)
            return True
        try:
            waiting = self._people.move(active, slot)
        except BundleError as error:
            self.give_up(f"nobody can move to it: {error}")
            return True
        if not waiting:
            self._commit("moving")
        return not waiting

    def switch(self) -> None:
        """Lets the candidate serve everybody now, those too whose new history is not warm.

        Raises:
            UpdateError: nobody is on the move.
        """
        record = self.slots.read()
        active, slot = record.active, record.candidate
        if record.stage != "moving" or active is None or slot is None:
            raise UpdateError(f"nothing to switch: the update is {record.stage}")
        self._people.move(active, slot, at_once=True)

    def _complete(self, record: Record) -> bool:
        """Takes over what the new history of somebody still lacks, while the release serves."""
        if record.active is not None and record.previous is not None:
            self._people.complete(record.previous, record.active)
        return False

    def _return(self, record: Record) -> bool:
        """Takes everybody back to the release that serves again."""
        assert record.active is not None and record.candidate is not None  # noqa: S101, PT018
        self._people.bring_back(record.active, record.candidate)
        self._to("returning", "settled", candidate=None, release=None)
        return True

    # ---- pieces

    def _commit(self, stage: str) -> None:
        """The candidate becomes the active release; the one before stays, to return to."""

        def commit(record: Record) -> Record | None:
            if record.stage != stage or record.candidate is None:
                return None
            done = ended(record, record.candidate, "committed")
            return _replaced(done, stage="trial", active=record.candidate, previous=record.active, candidate=None,
                             release=None, attempts=0)  # fmt: skip

        self.slots.change(commit)

    def _to(self, before: str, after: str, **more: object) -> None:
        """One transition, unless somebody else has just made another."""
        self.slots.change(
            lambda record: _replaced(record, stage=after, attempts=0, **more) if record.stage == before else None
        )

    def _model(self, slot: Slot) -> Recognizer:
        if slot.identity not in self._models:
            if len(self._models) > 1:  # of an update before
                self._models.clear()
            self._models[slot.identity] = self.settings.recognizer(self.slots.path(slot))
        return self._models[slot.identity]


def adopt(slots: Slots, folder: Path, settings: Settings) -> None:
    """Puts a bundle that came with the device in the first slot, to serve until a release arrives.

    Raises:
        UpdateError: a release is there already.
        BundleError: no whole bundle, or it has no programs for this device.
    """
    bundle = load_bundle(folder)
    space = bundle.artifact("encoder", settings.runtime, settings.precision).feature_space or ""
    identity = identity_of(files_of(bundle))
    slot = Slot(number=0, identity=identity, name=bundle.manifest.name, space=space)
    staging = slots.staging(slot)
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(folder, staging)
    sync_tree(staging)
    shutil.rmtree(slots.path(slot), ignore_errors=True)
    staging.replace(slots.path(slot))
    sync_folder(staging.parent)

    def first(record: Record) -> Record:
        if record.active is not None:
            raise UpdateError(f"release {record.active.number} is installed already")
        return _replaced(record, active=slot)

    slots.change(first)


def _replaced(record: Record, **changes: object) -> Record:
    return msgspec.structs.replace(record, **changes)
