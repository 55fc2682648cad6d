"""Rollout and rollback of a release, profile by profile: histories move to it, go back, and older ones are erased.

How one person moves is :mod:`refocus.edge.migration.migration`, whose stage lies in the person's file; each of these
may be called again after a kill. A profile that cannot be read or written is left out and named; the others go on.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from refocus.edge.errors import BundleError, HistoryError, RefocusError
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.migration.migration import AbsentModel, Migration, Model
from refocus.edge.migration.stages import read_record
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.update.device_state import Slot

PROFILES = "*.history.sqlite3"
Result = TypeVar("Result")
_PROBE_BYTES = 1 << 18  # that the folder of the profiles must take, or its disk is full


class ProfileRollout:
    """Everybody with a profile on this device.

    Args:
        folder: of the profiles.
        model: loads a release.

    Attributes:
        left_out: profiles that could not be read or written, by file name: why.
    """

    def __init__(self, folder: Path, model: Callable[[Slot], Recognizer]) -> None:
        self._folder, self._model = folder, model
        self.left_out: dict[str, str] = {}

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

        Somebody whose profile could not be read when the others moved moves now.
        """

        def complete(history: FeatureHistory) -> None:
            behind = is_behind(history, previous, active)
            if behind:
                self._end_older(history, previous, active)
            if behind or _stage(history, previous, active) in ("warming", "switched"):
                migration = Migration(history, self._or_absent(previous), self._model(active))
                if behind:
                    migration.start()
                migration.step()

        if previous.space != active.space:
            self._each(complete)

    def bring_back(self, active: Slot, left: Slot) -> None:
        """Takes everybody back to the release that serves again; the one that is left need not even load."""

        def bring_back(history: FeatureHistory) -> None:
            if _stage(history, active, left):
                migration = Migration(history, self._or_absent(active), self._or_absent(left))
                migration.back()
                with contextlib.suppress(BundleError):  # of a damaged release: the next one may heal it
                    migration.step()

        if active.space != left.space:
            self._each(bring_back)

    # ---- one person

    def _each(self, work: Callable[[FeatureHistory], Result]) -> list[Result]:
        """Does some work for each profile.

        Raises:
            HistoryError: nothing can be written where the profiles are; otherwise a profile that fails is left out.
        """
        found: list[Result] = []
        for profile in histories(self._folder):
            try:
                with FeatureHistory(profile) as history:
                    found.append(work(history))
            except HistoryError as error:
                if not _takes_files(self._folder):
                    raise
                self.left_out[profile.name] = str(error)
            else:
                self.left_out.pop(profile.name, None)
        return found

    def _move(self, history: FeatureHistory, active: Slot, coming: Slot, at_once: bool) -> bool:
        """Moves one person; whether they still wait."""
        self._end_older(history, active, coming)
        if active.space == coming.space or _is_foreign(history, active, coming):
            return False
        before = self._or_absent(active)
        migration = Migration(history, before, self._model(coming))
        migration.start()
        while not at_once and migration.state.stage == "warming" and migration.step(photos=1):
            pass
        if migration.state.stage == "warming" and (at_once or isinstance(before, AbsentModel)):
            migration.switch()  # nobody waits for a release that cannot serve
        return migration.state.stage == "warming"

    def _end_older(self, history: FeatureHistory, active: Slot, coming: Slot) -> None:
        """Ends a move to or from the active release that an earlier update had to leave out."""
        _, found = read_record(history)
        if found is None or found.stage == "finished" or (found.old, found.new) == (active.space, coming.space):
            return
        if found.new == active.space:
            self._end(history, AbsentModel(found.old), self._or_absent(active))
        elif found.old == active.space:
            migration = Migration(history, self._or_absent(active), AbsentModel(found.new))
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

    def _or_absent(self, slot: Slot) -> Model:
        """A model that is only left, which need not even load."""
        try:
            return self._model(slot)
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


def _is_foreign(history: FeatureHistory, active: Slot, coming: Slot) -> bool:
    """Whether a history holds photos of other models alone, as an old copy that was put back does: nothing of it can be
    taken along."""
    spaces = history.spaces().keys()
    return bool(spaces) and not spaces & {active.space, coming.space}
