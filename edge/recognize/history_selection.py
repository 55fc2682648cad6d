"""Which photos of a profile stand before the one at hand: the newest, or some of a long history."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from refocus.edge.bundle.manifest import Head
from refocus.edge.errors import BundleError
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.recognize.head_state import HeadState
from refocus.edge.recognize.retrieval import CHOICES, RetrievalIndex

Named = tuple[str, str]  # identity and name of a photo


class HistorySelection(Protocol):
    """Keeps a head's past in step with a profile's file, whoever writes to it."""

    def recall(self, feature: np.ndarray, photo: str) -> tuple[Sequence[Named], bool]:
        """Puts the past in front of a photo of feature (D,).

        Returns:
            the photos of the past, oldest first or most similar last, and whether the photo itself is stored already.

        Raises:
            HistoryError: the file cannot be read.
        """

    def remember(self, feature: np.ndarray, photo: str, name: str) -> None:
        """Stores the photo that was answered last.

        Raises:
            HistoryError: the file cannot be written; nothing is remembered then.
        """

    def stored(self, feature: np.ndarray, photo: str, name: str) -> None:
        """The photo that was answered last was just stored, as the newest, by one write to the history at hand."""

    def lost(self) -> None:
        """The past was used for something else; it is put together again at the next photo."""


class NewestPhotos:
    """The newest photos. A photo that is stored already meets the photos before it.

    Nothing is read from the file as long as nobody else writes to it.
    """

    def __init__(self, history: FeatureHistory, space: str, width: int, card: Head, past: HeadState) -> None:
        self._history, self._space, self._width, self._past = history, space, width, past
        self._window = card.personalisation.window
        self._newest: deque[Named] = deque(maxlen=self._window)
        self._version = -1  # of the file, when the past was last in step with it

    def recall(self, feature: np.ndarray, photo: str) -> tuple[Sequence[Named], bool]:
        version, known = self._history.look(self._space, photo)
        if known:
            return self._read(photo), True
        if version != self._version:
            self._newest = self._read(None)
            self._version = version
        return self._newest, False

    def _read(self, before: str | None) -> deque[Named]:
        self._version = -1
        past = self._history.recall(self._space, self._window, self._width, before)
        self._past.restart(past.features, past.photos)
        return deque(zip(past.photos, past.names, strict=True), maxlen=self._window)

    def remember(self, feature: np.ndarray, photo: str, name: str) -> None:
        self._history.append(self._space, photo, feature, name)
        self.stored(feature, photo, name)

    def stored(self, feature: np.ndarray, photo: str, name: str) -> None:
        self._past.take_in(feature, photo)
        self._newest.append((photo, name))
        self._version += 1  # by this append, and not by anybody else's

    def lost(self) -> None:
        self._version = -1


class ChosenPhotos:
    """Photos of all that are stored, by how much they are like the one at hand.

    Args:
        how: a name of ``CHOICES``.

    Raises:
        BundleError: a streaming head, which reads what newest photos left behind and can read nothing else, or one that
            reads no history at all.
    """

    def __init__(self, how: str, history: FeatureHistory, space: str, width: int, card: Head, past: HeadState) -> None:
        if card.personalisation.form == "none":
            raise BundleError(f"the head {card.name} reads no history; use it without --memory {how}")
        if card.personalisation.form == "streaming":
            raise BundleError(
                f"the head {card.name} is a streaming one, which sees the newest photos alone; for --memory {how}"
                " export a head that was trained with --attention full"
            )
        self._choose, self._history, self._space, self._past = CHOICES[how], history, space, past
        self._window = card.personalisation.window
        self._index = RetrievalIndex(history, space, width)
        self._version = -1

    def recall(self, feature: np.ndarray, photo: str) -> tuple[Sequence[Named], bool]:
        version, known = self._history.look(self._space, photo)
        if version != self._version:
            self._index.refresh()
            self._version = version
        found = self._choose(self._index, feature, self._window, photo)
        self._past.restart(found.features, found.photos)
        return list(zip(found.photos, found.names, strict=True)), known

    def remember(self, feature: np.ndarray, photo: str, name: str) -> None:
        self._history.append(self._space, photo, feature, name)
        self.stored(feature, photo, name)

    def stored(self, feature: np.ndarray, photo: str, name: str) -> None:
        self._index.add(photo, feature)
        if len(self._index) > self._history.count(self._space):  # a photo was evicted for it
            self._index.drop_evicted()
        self._version += 1

    def lost(self) -> None:
        """Nothing to do: the past is put together anew for each photo."""


HISTORY_SELECTIONS: dict[str, Callable[[FeatureHistory, str, int, Head, HeadState], HistorySelection]] = {
    "newest": NewestPhotos,
    **{how: partial(ChosenPhotos, how) for how in CHOICES},
}
