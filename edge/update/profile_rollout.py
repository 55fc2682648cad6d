"""Rollout and rollback of a release, profile by profile: histories move to it, go back, and older ones are erased.

How one person moves is :mod:`refocus.edge.migration.migration`, whose stage lies in the person's file; each of these
may be called again after a kill. A profile that cannot be read, written or moved is left out and named; others go on.
Feature spaces are the person's: whoever has weights of their own for a release has a space of their own with it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from refocus.edge.errors import BundleError, HistoryError, PersonalWeightsError, RefocusError
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.migration.migration import AbsentModel, Migration, Model
from refocus.edge.migration.stages import read_record
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.update.device_state import Slot
from refocus.edge.update.loaded_releases import LoadedReleases

PROFILES = "*.history.sqlite3"
Result = TypeVar("Result")
_PROBE_BYTES = 1 << 18  # that the folder of the profiles must take, or its disk is full


class _Foreign(HistoryError):
    """A history is of models that are not here: nothing is wrong with the file or the disk."""


class ProfileRollout:
    """Everybody with a profile on this device.

    Args:
        folder: of the profiles.
        models: loads releases.

    Attributes:
        left_out: profiles that could not be read, written or moved, by file name: why.
        recovered: profiles that were found damaged, by file name: what was kept and lost.
    """

    def __init__(self, folder: Path, models: LoadedReleases) -> None:
        self._folder, self._models = folder, models
        self.left_out: dict[str, str] = {}
        self.recovered: dict[str, str] = {}

    def look(self) -> None:
        """Opens every profile, which finds damage, before somebody does who tells nobody."""
        for profile in histories(self._folder):
            with contextlib.suppress(HistoryError), self._open(profile):
                pass

    def move(self, active: Slot, coming: Slot, at_once: bool = False) -> bool:
        """Moves everybody to a release, as far as originals go. The history that somebody has of an earlier release
        makes place: one person has two at most.

        Args:
            at_once: also those whose new history is not warm.

        Returns:
            whether somebody still waits. Where originals are gone only new photos make somebody warm; until then the
            older release is the better one for them, and serves.

        Raises:
            BundleError: the release that is coming does not load.
            HistoryError: nothing can be written where the profiles are.
        """
        return any(self._each(lambda history: self._move(history, active, coming, at_once)))

    def complete(self, previous: Slot, active: Slot) -> None:
        """Takes over what the new history of somebody still lacks, while the release serves.

        Somebody whose profile could not be read when the others moved, or was away, moves now.
        """
        self._between(previous, active, self._complete)

    def _complete(self, history: FeatureHistory, before: Slot, now: Slot) -> None:
        self._take_in(history, now, before)
        self._go_on(history, now, before)
        behind = is_behind(history, before, now)
        if behind:
            self._end_older(history, before, now)
        if behind or _stage(history, before, now) in ("warming", "switched"):
            migration = Migration(history, self._or_absent(history, before), self._encoding(history, now))
            if behind:
                migration.start()
            migration.step()
        _check_not_foreign(history, before, now)

    def bring_back(self, active: Slot, left: Slot) -> None:
        """Takes everybody back to the release that serves again; the one that is left need not even load."""
        self._between(active, left, self._bring_back)

    def _bring_back(self, history: FeatureHistory, now: Slot, gone: Slot) -> None:
        self._end_older(history, now, gone)
        if _stage(history, now, gone) or history.count(gone.space):
            migration = Migration(history, self._or_absent(history, now), AbsentModel(gone.space))
            migration.adopt()
            migration.back()
            with contextlib.suppress(BundleError):  # of a damaged release: the next one may heal it
                migration.step()

    def _between(self, one: Slot, other: Slot, work: Callable[[FeatureHistory, Slot, Slot], None]) -> None:
        """Does some work for everybody whose feature spaces differ with two releases, given as they are for them."""

        def of_person(history: FeatureHistory) -> None:
            own, others = self._own(history, one), self._own(history, other)
            if own.space != others.space:
                work(history, own, others)

        if one.space != other.space or self._models.personal:
            self._each(of_person)

    # ---- one person

    @contextlib.contextmanager
    def _open(self, profile: Path) -> Iterator[FeatureHistory]:
        """A history; what is recovered of a damaged one is kept to be told."""
        with FeatureHistory(profile) as history:
            try:
                yield history
            finally:
                if history.recovered is not None:
                    self.recovered[profile.name] = str(history.recovered)

    def _each(self, work: Callable[[FeatureHistory], Result]) -> list[Result]:
        """Does some work for each profile.

        Raises:
            HistoryError: nothing can be written where the profiles are; otherwise a profile that fails is left out.
        """
        found: list[Result] = []
        for profile in histories(self._folder):
            try:
                with self._open(profile) as history:
                    found.append(work(history))
            except (HistoryError, PersonalWeightsError) as error:
                if not isinstance(error, _Foreign) and not _takes_files(self._folder):
                    raise
                self.left_out[profile.name] = str(error)
            else:
                self.left_out.pop(profile.name, None)
        return found

    def _move(self, history: FeatureHistory, active: Slot, coming: Slot, at_once: bool) -> bool:
        """Moves one person; whether they still wait."""
        active, coming = self._own(history, active), self._own(history, coming)
        self._end_older(history, active, coming)
        if active.space == coming.space:
            return False
        _check_not_foreign(history, active, coming)
        before = self._or_absent(history, active)
        migration = Migration(history, before, self._encoding(history, coming))
        migration.start()
        while not at_once and migration.state.stage == "warming" and migration.step(photos=1):
            pass
        if migration.state.stage == "warming" and (at_once or isinstance(before, AbsentModel)):
            migration.switch()  # nobody waits for a release that cannot serve
        return migration.state.stage == "warming"

    def _end_older(self, history: FeatureHistory, active: Slot, coming: Slot) -> None:
        """Ends a move that an earlier update had to leave out: one to or from the active release, one from a release
        that is left, or between two that are."""
        with contextlib.suppress(BundleError):  # of a damaged release: then the person is named, and moves later
            self._take_in(history, active, coming)
        _, found = read_record(history)
        if found is None or found.stage == "finished" or (found.old, found.new) == (active.space, coming.space):
            return
        if found.new == active.space:
            self._end(history, AbsentModel(found.old), self._or_absent(history, active))
        elif found.new == coming.space:  # of somebody who was away before
            self._end(history, AbsentModel(found.old), AbsentModel(found.new))
        elif found.old == active.space:
            migration = Migration(history, self._or_absent(history, active), AbsentModel(found.new))
            migration.back()
            with contextlib.suppress(BundleError):
                migration.step()

    def _end(self, history: FeatureHistory, old: Model, new: Model) -> None:
        """Takes over what can be had of the older history, and erases it."""
        migration = Migration(history, old, new)
        if migration.state.now.fills == "new":
            with contextlib.suppress(BundleError):  # of a damaged release: the next one may heal it
                migration.step()
        if migration.state.stage == "warming":
            migration.switch()
        migration.finish()

    def _take_in(self, history: FeatureHistory, active: Slot, other: Slot) -> None:
        """Takes somebody in who was away while both releases of their move were left: the one that serves takes over
        what can be had of the fuller history from originals, and keeps it as that of an earlier release. The other one
        makes place, where it has no photo that the fuller one lacks.

        Raises:
            BundleError: the active release does not load.
            _Foreign: each history has photos of its own; their bundles may be the owner's, so nothing is erased.
        """
        _, found = read_record(history)
        if found is None or found.stage == "finished":
            return
        left = {found.old, found.new}
        if left & {active.space, other.space}:
            return
        model = self._encoding(history, active)
        kept = max((found.new, found.old), key=history.count)
        gone = (left - {kept}).pop()
        if history.count_apart(gone, kept):
            raise _foreign(left)
        history.erase(space=gone)
        Migration(history, AbsentModel(kept), model).start_instead()
        self._go_on(history, active, other)

    def _go_on(self, history: FeatureHistory, active: Slot, other: Slot) -> None:
        """Goes on to take over the history of a release that is neither; nobody waits for one that cannot serve."""
        _, found = read_record(history)
        if found and found.stage in ("warming", "switched") and found.new == active.space != found.old != other.space:
            migration = Migration(history, AbsentModel(found.old), self._encoding(history, active))
            migration.switch()
            migration.step()

    def _own(self, history: FeatureHistory, slot: Slot) -> Slot:
        """A release as it is for one person."""
        return self._models.of(slot, history.path)

    def _encoding(self, history: FeatureHistory, slot: Slot) -> Recognizer:
        return self._models.encoding(slot, history.path)

    def _or_absent(self, history: FeatureHistory, slot: Slot) -> Model:
        """A model that is only left, which need not even load."""
        try:
            return self._encoding(history, slot)
        except RefocusError:
            return AbsentModel(slot.space)


def histories(folder: Path) -> list[Path]:
    """The files of all histories in a folder of profiles."""
    return sorted(path for path in folder.glob(PROFILES) if not path.name.startswith("."))  # which copies of macOS have


def _stage(history: FeatureHistory, old: Slot, new: Slot) -> str:
    """The stage of somebody's move between two releases; "" where they are on no such move."""
    _, found = read_record(history)
    return found.stage if found and (found.old, found.new) == (old.space, new.space) else ""


def is_behind(history: FeatureHistory, before: Slot, active: Slot) -> bool:
    """Whether a history is still that of the release before, as one is that was restored from a copy, or that nobody
    could read when the others moved: then the record may be of an earlier move, to the release before."""
    _, found = read_record(history)
    if found and (found.old, found.new) == (before.space, active.space):
        return found.stage == "warming"
    if found and found.stage != "finished":
        return before.space in (found.old, found.new) and history.count(before.space) > 0
    return history.count(before.space) > 0 and history.count(active.space) == 0


def _takes_files(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE_BYTES))
    except OSError:
        return False
    return True


def _check_not_foreign(history: FeatureHistory, active: Slot, coming: Slot) -> None:
    """Checks that a history does not hold photos of other models alone, as an old copy that was put back does: whose
    they are is not known, so nothing of it is taken along.

    Raises:
        _Foreign: it does.
    """
    spaces = history.spaces().keys()
    if spaces and not spaces & {active.space, coming.space}:
        raise _foreign(spaces)


def _foreign(spaces: Iterable[str]) -> _Foreign:
    return _Foreign(
        f"it holds photos of feature space {', '.join(sorted(space[:12] for space in spaces))} alone, which is not"
        " of a release that is here; they stay as they are: to take them along, give the bundle that made them to"
        " refocus migrate, or refocus history erase --space forgets them"
    )
