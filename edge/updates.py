"""A device changes its release: looks for one, fetches, tests, moves each person, commits; or returns.

Whatever happens here, at whatever moment, a release that was whole before serves on: :mod:`edge.serving` needs neither
a network nor this file. The stages, and what a kill in each leaves, are in docs/decisions/0019-updates.md; how one
person's history moves is :mod:`edge.migration`, unchanged.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from edge import __version__
from edge.bundle import Bundle, load_bundle
from edge.errors import BundleError, HistoryError, RefocusError, RuntimeUnavailable, UpdateError
from edge.history import FeatureHistory
from edge.migration import Migration
from edge.recognizer import Recognizer
from edge.releases import Channel, Device, File, Release, identity_of, misfit, wanted
from edge.runtimes import RUNTIMES
from edge.shadow import Limits, Shadow, compare, judge, self_test
from edge.slots import Record, Seen, Slot, Slots, ended, file_sha256, files_of, sync_tree
from edge.stages import read_record
from edge.weight_files import sync_folder

PROFILES = "*.history.sqlite3"
ATTEMPTS = 3  # times that a stage may kill the process before the release is blamed
_SPARE_BYTES = 16 << 20  # that must stay free on the disk


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
        staging = self.slots.staging(slot)
        staging.mkdir(parents=True, exist_ok=True)
        missing = [file for file in release.files if not _whole(staging / file.path, file)]
        if not missing:
            self._install(slot, release, staging)
            return True
        self._check_room(sum(file.size_bytes for file in missing))
        into = staging / missing[0].path
        into.parent.mkdir(parents=True, exist_ok=True)
        if not self._share(record, missing[0], into):
            if self._repository is None:
                return False
            self._repository.download(missing[0], into)
        return True

    def _share(self, record: Record, file: File, into: Path) -> bool:
        """Takes a file from a slot that has it: it is neither fetched nor stored again."""
        for slot in (record.active, record.previous):
            for path in sorted(self.slots.path(slot).rglob("*")) if slot else ():
                same = path.is_file() and path.stat().st_size == file.size_bytes
                if same and file_sha256(path) == file.sha256:
                    _link(path, into)
                    return True
        return False

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self.slots.folder).free
        if free < needed + _SPARE_BYTES:
            raise UpdateError(f"{self.slots.folder}: the update needs {needed + _SPARE_BYTES} bytes, {free} are free;"
                              " make room")  # fmt: skip

    def _install(self, slot: Slot, release: Release, staging: Path) -> None:
        """Verifies what was put together, and puts it in its slot."""
        for file in release.files:
            if file_sha256(staging / file.path) != file.sha256:  # a power cut, or somebody else's hand
                (staging / file.path).unlink()
                raise UpdateError(f"{staging / file.path} was changed on this device; it is fetched again next time")
        for left in staging.rglob("*.part"):
            left.unlink()
        try:
            bundle = load_bundle(staging)
            space = bundle.artifact("encoder", self.settings.runtime, self.settings.precision).feature_space
            if space != slot.space:
                raise BundleError(f"its features are of space {str(space)[:12]}, {slot.space[:12]} was announced")
        except BundleError as error:
            self.give_up(f"not a whole bundle: {error}")
            return
        sync_tree(staging)
        target = self.slots.path(slot)
        shutil.rmtree(target, ignore_errors=True)  # left by a kill in an earlier update to the same release
        staging.replace(target)
        sync_folder(target.parent)
        self._to("staging", "testing")

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
        serving = self._or_absent(record.active) if record.active else None
        if not isinstance(serving, Recognizer):  # the first release, or one that heals what was damaged here
            return ""
        self.shadow = compare(serving, self._model(slot), self._profiles(), self.settings.limits)
        return judge(self.shadow, self.settings.limits)

    def _move(self, record: Record) -> bool:
        """A piece of the move of one person who is not with the candidate yet."""
        active, slot = record.active, record.candidate
        assert active is not None and slot is not None  # noqa: S101, PT018
        if record.previous is not None:  # the release before the active one: from here on there is no way back to it
            self._let_go(record.previous, active)
            return True
        waiting = False
        try:
            for profile in self._profiles() if active.space != slot.space else ():
                with FeatureHistory(profile) as history:
                    if _is_foreign(history, active, slot):
                        continue
                    before = self._or_absent(active)
                    migration = Migration(history, before, self._model(slot))
                    migration.start()
                    while migration.state.stage == "warming" and migration.step(photos=1):
                        pass
                    if migration.state.stage == "warming" and isinstance(before, _Named):
                        migration.switch()  # nobody waits for a release that cannot serve
                    # Where originals are gone only new photos make somebody warm; until then the older release is
                    # the better one for them, and serves.
                    waiting |= migration.state.stage == "warming"
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
        for profile in self._profiles() if active.space != slot.space else ():
            with FeatureHistory(profile) as history:
                if _is_foreign(history, active, slot):
                    continue
                migration = Migration(history, self._or_absent(active), self._model(slot))
                migration.start()
                migration.switch()

    def _let_go(self, previous: Slot, active: Slot) -> None:
        """The history kept for the release before makes place: one person has two at most."""
        if previous.space != active.space:
            for profile in self._profiles():
                with FeatureHistory(profile) as history:
                    _, found = read_record(history)
                    if found is None or (found.old, found.new) != (previous.space, active.space):
                        continue
                    if found.stage == "switched":
                        migration = Migration(history, self._model(previous), self._model(active))
                        while migration.step(photos=1):
                            pass
                    Migration(history, _Named(previous.space), _Named(active.space)).finish()
        self.slots.change(lambda record: _replaced(record, previous=None) if record.stage == "moving" else None)

    def _complete(self, record: Record) -> bool:
        """Takes over what the new history of somebody still lacks, while the release serves."""
        active, previous = record.active, record.previous
        if active is None or previous is None or active.space == previous.space:
            return False
        for profile in self._profiles():
            with FeatureHistory(profile) as history:
                _, found = read_record(history)
                begun = found and found.stage in ("warming", "switched")
                if found and begun and (found.old, found.new) == (previous.space, active.space):
                    Migration(history, self._or_absent(previous), self._model(active)).step()
        return False

    def _return(self, record: Record) -> bool:
        """Takes everybody back to the release that serves again."""
        active, slot = record.active, record.candidate
        assert active is not None and slot is not None  # noqa: S101, PT018
        if active.space != slot.space:
            for profile in self._profiles():
                with FeatureHistory(profile) as history:
                    _, found = read_record(history)
                    if found and (found.old, found.new) == (active.space, slot.space):
                        migration = Migration(history, self._model(active), self._or_absent(slot))
                        migration.back()
                        migration.step()
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

    def _profiles(self) -> list[Path]:
        return sorted(self.settings.profiles.glob(PROFILES))

    def _model(self, slot: Slot) -> Recognizer:
        if slot.identity not in self._models:
            if len(self._models) > 1:  # of an update before
                self._models.clear()
            self._models[slot.identity] = self.settings.recognizer(self.slots.path(slot))
        return self._models[slot.identity]

    def _or_absent(self, slot: Slot) -> Recognizer | _Named:
        """A model that is only left, which need not even load."""
        try:
            return self._model(slot)
        except RefocusError:
            return _Named(slot.space)


@dataclass
class _Named:
    """In the place of a model of which only the feature space matters."""

    space: str
    width: int = 0
    window: int = 0

    def encode(self, content: bytes, where: str = "photo") -> np.ndarray:
        raise BundleError(f"the model of feature space {self.space[:12]} is not there")


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


def _is_foreign(history: FeatureHistory, active: Slot, slot: Slot) -> bool:
    """Whether a history holds photos of other models alone, as an old copy that was put back does: nothing of it can be
    taken along."""
    spaces = history.spaces().keys()
    return bool(spaces) and not spaces & {active.space, slot.space}


def _link(path: Path, into: Path) -> None:
    """Stores a file a second time without its bytes; on a file system without links, with them."""
    into.unlink(missing_ok=True)
    try:
        os.link(path, into)
    except OSError:
        part = into.with_name(into.name + ".part")
        shutil.copyfile(path, part)
        part.replace(into)


def _whole(path: Path, file: File) -> bool:
    """Whether a file was fetched to its end; its contents are verified with the whole bundle."""
    return path.is_file() and path.stat().st_size == file.size_bytes
