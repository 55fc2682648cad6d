"""Everybody on a device follows its release: their histories move, go back, and make place.

How one person moves is :mod:`edge.migration`, whose stage lies in the person's file; each of these may be called again
after a kill.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge.errors import BundleError, RefocusError
from edge.history import FeatureHistory
from edge.migration import Migration
from edge.recognizer import Recognizer
from edge.slots import Slot
from edge.stages import read_record

PROFILES = "*.history.sqlite3"


class People:
    """Everybody with a profile on this device.

    Args:
        folder: of the profiles.
        model: loads a release.
    """

    def __init__(self, folder: Path, model: Callable[[Slot], Recognizer]) -> None:
        self._folder, self._model = folder, model

    def profiles(self) -> list[Path]:
        """The files of all histories."""
        return sorted(self._folder.glob(PROFILES))

    def move(self, active: Slot, coming: Slot, at_once: bool = False) -> bool:
        """Moves everybody to a release, as far as originals go.

        Args:
            at_once: also those whose new history is not warm.

        Returns:
            whether somebody still waits. Where originals are gone only new photos make somebody warm; until then the
            older release is the better one for them, and serves.

        Raises:
            BundleError: the release that is coming does not load.
        """
        waiting = False
        for profile in self.profiles() if active.space != coming.space else ():
            with FeatureHistory(profile) as history:
                if _is_foreign(history, active, coming):
                    continue
                before = self._or_absent(active)
                migration = Migration(history, before, self._model(coming))
                migration.start()
                while not at_once and migration.state.stage == "warming" and migration.step(photos=1):
                    pass
                if migration.state.stage == "warming" and (at_once or isinstance(before, _Named)):
                    migration.switch()  # nobody waits for a release that cannot serve
                waiting |= migration.state.stage == "warming"
        return waiting

    def complete(self, previous: Slot, active: Slot) -> None:
        """Takes over what the new history of somebody still lacks, while the release serves."""
        for profile in self.profiles() if previous.space != active.space else ():
            with FeatureHistory(profile) as history:
                if _stage(history, previous, active) in ("warming", "switched"):
                    Migration(history, self._or_absent(previous), self._model(active)).step()

    def let_go(self, previous: Slot, active: Slot) -> None:
        """The history kept for an earlier release makes place: one person has two at most."""
        for profile in self.profiles() if previous.space != active.space else ():
            with FeatureHistory(profile) as history:
                stage = _stage(history, previous, active)
                if stage == "switched":
                    migration = Migration(history, self._or_absent(previous), self._or_absent(active))
                    with contextlib.suppress(BundleError):  # of a damaged release: the next one may heal it
                        migration.step()
                if stage:
                    Migration(history, _Named(previous.space), _Named(active.space)).finish()

    def bring_back(self, active: Slot, left: Slot) -> None:
        """Takes everybody back to the release that serves again; the one that is left need not even load."""
        for profile in self.profiles() if active.space != left.space else ():
            with FeatureHistory(profile) as history:
                if _stage(history, active, left):
                    migration = Migration(history, self._model(active), self._or_absent(left))
                    migration.back()
                    migration.step()

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


def _stage(history: FeatureHistory, old: Slot, new: Slot) -> str:
    """The stage of somebody's move between two releases; "" where they are on no such move."""
    _, found = read_record(history)
    return found.stage if found and (found.old, found.new) == (old.space, new.space) else ""


def _is_foreign(history: FeatureHistory, active: Slot, coming: Slot) -> bool:
    """Whether a history holds photos of other models alone, as an old copy that was put back does: nothing of it can be
    taken along."""
    spaces = history.spaces().keys()
    return bool(spaces) and not spaces & {active.space, coming.space}
