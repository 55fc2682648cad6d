"""Updates of a device: look for a release, fetch it, test it, roll it out to each profile, commit; or roll back.

Whatever happens here, at whatever moment, a release that was whole before serves on:
    :mod:`refocus.edge.update.serving` needs neither a network nor this file. The stages, and what a kill in each
    leaves, are in docs/decisions/0019-updates.md; how one person's history moves is
    :mod:`refocus.edge.migration.migration`, unchanged.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from refocus.edge import __version__
from refocus.edge.bundle.load import load_bundle
from refocus.edge.errors import BundleError, RuntimeUnavailable, UpdateError
from refocus.edge.runtimes import RUNTIMES
from refocus.edge.runtimes import install as install_command
from refocus.edge.update import install, transitions, trial
from refocus.edge.update.canary import Canary
from refocus.edge.update.device_state import Postponed, Slot, Slots, StageName, UpdateState, files_of, merged
from refocus.edge.update.loaded_releases import LoadedReleases, Settings
from refocus.edge.update.profile_rollout import ProfileRollout
from refocus.edge.update.rules import Channel, Device, Release, identity_of, misfit, printable, wanted
from refocus.edge.update.transitions import ATTEMPTS

if TYPE_CHECKING:
    from refocus.edge.update.repository import RepositoryClient  # which needs python-tuf


class UpdateAgent:
    """One device's updates; the work of a moment at a time.

    Several processes may have one of these: one of them works, the others find nothing to do.

    Args:
        slots: the device's releases.
        settings: how it runs them.
        repository: where releases come from; None: go on with what is here.

    Attributes:
        shadow: what the last test on the owner's photos found.
    """

    def __init__(self, slots: Slots, settings: Settings, repository: RepositoryClient | None = None) -> None:
        self.slots, self.settings, self._repository = slots, settings, repository
        self.shadow = Canary()
        self._models = LoadedReleases(slots, settings, 2)
        self._people = ProfileRollout(settings.profiles, self._models)

    @property
    def left_out(self) -> dict[str, str]:
        """Profiles that could not be read, written or moved, by file name: why. The others have gone on."""
        return self._people.left_out

    @property
    def recovered(self) -> dict[str, str]:
        """Profiles that were found damaged, by file name: what was kept and lost."""
        return self._people.recovered

    # ---- what is decided

    def look(self) -> str:
        """Asks the repository; begins an update, gives one up, or returns, if that is what it says.

        Returns:
            what was decided, in words.

        Raises:
            UpdateError: the repository cannot be reached or trusted, or another process is asking. Nothing has changed.
        """
        if self._repository is None:
            raise UpdateError("no repository is given")
        with self._typed(), self.slots.looking() as alone:
            if not alone:
                raise UpdateError(f"another process looks for releases for {self.slots.folder}; let it finish")
            channel, seen = self._repository.refresh(self.slots.read().seen)
            record = self.slots.change(lambda now: transitions.replaced(now, seen=merged(now.seen, seen)))
            return (
                self._of_withdrawn(record, channel)
                or self._of_candidate(record, channel)
                or self._of_active(record, channel)
            )

    def _of_withdrawn(self, record: UpdateState, channel: Channel) -> str:
        """The decision where the release that serves was withdrawn; "" if it was not, or no other can serve yet.

        Nobody waits for it: those who are on the move are served by the candidate, others by the release before.
        """
        active, previous, candidate = record.active, record.previous, record.candidate
        withdrawn = _withdrawn(channel)
        if active is None or active.identity not in withdrawn:
            return ""
        with contextlib.suppress(UpdateError):  # damaged: it is fetched again, or a later one
            if record.stage == "moving" and candidate is not None and candidate.identity not in withdrawn:
                self.switch()
                return f"release {active.number} was withdrawn; release {candidate.number} serves everybody"
            if record.stage not in ("moving", "returning") and previous and previous.identity not in withdrawn:
                self.back(f"withdrawn: {withdrawn[active.identity]}")
                return f"release {active.number} was withdrawn"
        return ""

    def _of_candidate(self, record: UpdateState, channel: Channel) -> str:
        """What is decided about an update that is under way; "" if there is none."""
        candidate, active = record.candidate, record.active
        if record.stage == "returning":
            return f"on the way back to release {active.number if active else 0}"
        if candidate is None:
            return ""
        offered = channel.of(candidate.identity)
        if offered is not None and offered.withdrawn:
            self.give_up(f"withdrawn: {offered.withdrawn}")
            return f"release {candidate.number} was withdrawn"
        if offered is None and record.stage in ("staging", "testing"):
            self.slots.change(transitions.dropped, candidate)
            return f"release {candidate.number} is not offered any more"
        return f"release {candidate.number} is {record.stage}"

    def _of_active(self, record: UpdateState, channel: Channel) -> str:
        """What is decided about the release that serves, and the next one."""
        active = record.active
        if record.stage == "trial":
            return f"release {active.number if active else 0} is on trial until somebody is served"
        # A bundle that came with the device has no number of its own; it may be one of the releases all the same.
        known = channel.of(active.identity) if active else None
        number = max(active.number if active else 0, known.number if known else 0)
        newest = channel.releases[-1].number if channel.releases else number
        # Numbers that begin again: TUF has made sure that this list is the newest one that its owner signed.
        hurt = bool(active and active.identity in _withdrawn(channel)) or (known is None and number > newest)
        now = datetime.now(timezone.utc)
        waiting = {identity: one for identity, one in record.postponed.items() if one.waits(now)}
        release = wanted(channel, record.device, number, hurt, {*record.refused, *waiting})
        if release is None:
            return _waiting(channel, waiting) or "up to date"
        if why := misfit(release, channel, self.device(record)):
            return f"release {release.number} does not fit: {why}"
        program = release.program(self.settings.target)
        assert program is not None  # noqa: S101  # or it would not fit
        space = program.feature_space
        slot = Slot(number=release.number, identity=release.identity, name=release.name, space=space)
        self._to("settled", "staging", candidate=slot, release=release)
        return f"release {release.number} is to be fetched"

    def device(self, record: UpdateState) -> Device:
        """What this device is, in versions.

        Raises:
            RuntimeUnavailable: its runtime is not installed.
        """
        module, extra = RUNTIMES[self.settings.runtime]
        try:
            version = str(importlib.import_module(module).VERSION)
        except ImportError:
            raise RuntimeUnavailable(f"{self.settings.runtime} is missing: {install_command(module, extra)}") from None
        return Device(
            record.device, record.device_class, self.settings.runtime, self.settings.precision, version, __version__
        )

    def give_up(self, why: str, blame: bool = True) -> None:
        """Drops the candidate; as :func:`refocus.edge.update.transitions.given_up`."""
        self.slots.change(transitions.given_up, why, blame)

    def back(self, why: str) -> None:
        """Lets the previous release serve again, from the next photo on; everybody's history comes along. While people
        move to a release, that one is given up instead.

        Raises:
            UpdateError: there is no previous release, or it is damaged.
        """
        record = self.slots.read()
        if record.previous is not None and record.stage != "returning":
            try:
                load_bundle(self.slots.path(record.previous))
            except BundleError as error:
                raise UpdateError(
                    f"release {record.previous.number} cannot serve again: {error}; the next look fetches it again, or"
                    " a later one"
                ) from error
        self.slots.change(transitions.rolled_back, why)

    # ---- the work

    def run(self) -> UpdateState:
        """Works until there is nothing more to do before the next :meth:`look`, and returns the state after it.

        Raises:
            UpdateError: the network, the disk or another process is in the way; call it again later.
        """
        with self._typed(), self.slots.working() as alone:
            if not alone:
                raise UpdateError(f"another process works on the updates of {self.slots.folder}; let it finish")
            self.slots.sweep()
            while self.step():
                pass
            self.slots.sweep()
        return self.slots.read()

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        """Closes the models that the work has loaded, and names errors of the disk.

        Raises:
            UpdateError: instead of OSError.
        """
        try:
            yield
        except OSError as error:
            raise UpdateError(f"{self.slots.folder}: {error}; make room or check the rights, and try again") from error
        finally:
            self._models.close()

    def step(self) -> bool:
        """One piece of work, each about the time of a photo, a file or a test; False if there is none."""
        record = self.slots.read()
        match record:
            case UpdateState(stage="staging", candidate=Slot() as slot, release=Release() as release):
                return self._fetch(record, slot, release)
            case UpdateState(stage="testing", candidate=Slot() as slot):
                self._test(record, slot)
                return True
            case UpdateState(stage="moving", active=Slot() as active, candidate=Slot() as slot):
                return self._move(record, active, slot)
            case UpdateState(stage="returning", active=Slot() as active, candidate=Slot() as left):
                self._people.bring_back(active, left)
                self._to("returning", "settled", candidate=None, release=None)
                return True
            case UpdateState(stage="settled" | "trial", active=Slot() as active, previous=Slot() as previous):
                self._people.complete(previous, active)
        return False

    def _fetch(self, record: UpdateState, slot: Slot, release: Release) -> bool:
        """One file of the candidate; or, if none is missing, the whole is verified and put in its slot."""
        if missing := install.missing(self.slots, slot, release):
            return install.fetch(self.slots, record, slot, missing, self._repository)
        try:
            install.verify(self.slots, slot, release, self.settings.runtime, self.settings.precision)
        except BundleError as error:
            self.give_up(f"not a whole bundle: {error}")
            return True
        install.install(self.slots, slot)
        self._to("staging", "testing")
        return True

    def _test(self, record: UpdateState, slot: Slot) -> None:
        """The self-test and the owner's photos, in a process of their own.

        What interrupts a test says nothing about the release. After ``ATTEMPTS`` interruptions it is postponed.

        Raises:
            UpdateError: the test was interrupted; call again.
        """
        self.device(record)  # without the runtime nothing can be said of a release
        if record.attempts >= ATTEMPTS:
            self.slots.change(transitions.dropped, slot, f"its tests were interrupted {ATTEMPTS} times")
            return
        self.slots.change(transitions.attempted, "testing", record.attempts + 1)
        try:
            self._people.look()  # the test, which opens them too, tells nobody
            serving = self.slots.path(record.active) if record.active else None
            found = trial.run(trial.Trial(self.slots.path(slot), serving, self.settings))
        except UpdateError:
            raise
        except BaseException:  # the owner's, such as Ctrl-C: no interruption that counts
            self.slots.change(transitions.attempted, "testing", record.attempts)
            raise
        if found.shortage:
            raise UpdateError(f"release {slot.number} cannot be tested now: {found.shortage}; the next run tries again")
        self.shadow = found.shadow
        if found.why:
            self._refuse(record, slot, found.why)
        elif record.active is None:
            self.slots.change(transitions.committed, "testing")
        else:
            self._to("testing", "moving")

    def _refuse(self, record: UpdateState, slot: Slot, why: str) -> None:
        """Refuses a release for what its tests found, unless its files were damaged since they were fetched.

        Raises:
            UpdateError: they were; they are fetched again.
        """
        if install.is_intact(self.slots.path(slot), record.release):
            self.give_up(why)
            return
        shutil.rmtree(self.slots.path(slot), ignore_errors=True)
        self._to("testing", "staging")
        raise UpdateError(f"release {slot.number} was damaged on this device; the next run fetches it again")

    def _move(self, record: UpdateState, active: Slot, slot: Slot) -> bool:
        """A piece of the move of everybody who is not with the candidate yet."""
        if record.previous is not None:
            # From here on there is no way back to it; only then are the histories of it erased, one by one.
            self._to("moving", "moving", previous=None)
            return True
        try:
            waiting = self._people.move(active, slot)
        except BundleError as error:
            blame = install.is_intact(self.slots.path(slot), record.release)
            self.give_up(f"nobody can move to it: {error}", blame)
            return True
        if not waiting:
            self.slots.change(transitions.committed, "moving")
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
        with self._typed():
            self._people.move(active, slot, at_once=True)

    def _to(self, before: StageName, after: StageName, **changes: object) -> None:
        """One transition, unless somebody else has just made another."""
        self.slots.change(transitions.moved_on, before, after, **changes)


def _withdrawn(channel: Channel) -> dict[str, str]:
    """Reasons of the releases that were withdrawn, by identity."""
    return {release.identity: release.withdrawn for release in channel.releases if release.withdrawn}


def adopt(slots: Slots, folder: Path, settings: Settings) -> None:
    """Puts a bundle that came with the device in the first slot, to serve until a release arrives.

    Raises:
        UpdateError: a release is there already.
        BundleError: no whole bundle, or it has no programs for this device.
    """
    bundle = load_bundle(folder)
    space = bundle.artifact("encoder", settings.runtime, settings.precision).feature_space or ""
    identity = identity_of(files_of(bundle))
    slot = Slot(number=0, identity=identity, name=printable(bundle.manifest.name), space=space)
    staging = slots.staging(slot)
    shutil.rmtree(staging, ignore_errors=True)
    try:
        shutil.copytree(folder, staging)
    except shutil.Error as error:  # of many files
        raise UpdateError(f"{staging}: {error.args[0][0][2]}; make room or check the rights, and try again") from None
    install.install(slots, slot)

    def first(record: UpdateState) -> UpdateState:
        if record.active is not None:
            raise UpdateError(f"release {record.active.number} is installed already")
        return transitions.replaced(record, active=slot)

    slots.change(first)


def _waiting(channel: Channel, postponed: Mapping[str, Postponed]) -> str:
    """Why the newest of some postponed releases is not taken now; "" if there is none."""
    for release in reversed(channel.releases):
        if one := postponed.get(release.identity):
            return f"release {release.number} waits until {one.until:%Y-%m-%d %H:%M} UTC: {one.why}"
    return ""
