"""Which photos of a profile stand before the one at hand: the newest, or some of a long history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from refocus.edge.bundle.manifest import Head
from refocus.edge.errors import BundleError
from refocus.edge.history.feature_history import FeatureHistory, HistorySlice
from refocus.edge.history.likely_classes import Classifier, LikelyClasses
from refocus.edge.recognize.head_state import HeadState

DIRECTIONS = 256  # 4 MB for 4,096 photos
CANDIDATES = 4  # times as many are compared whole as are wanted
Named = tuple[str, str]  # identity and name of a photo


class HistorySelection(ABC):
    """Keeps a head's past in step with a profile's file, whoever writes to it."""

    def __init__(self, history: FeatureHistory, space: str, width: int, card: Head, past: HeadState) -> None:
        self._history, self._space, self._width, self._past = history, space, width, past
        self._window = card.personalisation.window
        self._version = -1  # of the file, when what is in memory was last in step with it

    @abstractmethod
    def recall(self, feature: np.ndarray, photo: str, seen: tuple[int, bool]) -> tuple[Sequence[Named], bool]:
        """Puts the past in front of a photo of feature (D,).

        Args:
            seen: the version of the history, and whether the photo is stored in it.

        Returns:
            the photos of the past, oldest first or most similar last, and whether the photo itself is stored already.

        Raises:
            HistoryError: the file cannot be read.
        """

    def remember(
        self, feature: np.ndarray, photo: str, name: str, likely: tuple[Classifier, LikelyClasses] | None = None
    ) -> tuple[str, ...]:
        """Stores the photo that was answered last.

        Args:
            likely: its most likely classes, by which classifier.

        Returns:
            identities of the photos that were evicted for it.

        Raises:
            HistoryError: the file cannot be written; nothing is remembered then.
        """
        evicted = self._history.append(self._space, photo, feature, name, likely)
        self.stored(feature, photo, name)
        return evicted

    @abstractmethod
    def stored(self, feature: np.ndarray, photo: str, name: str) -> None:
        """The photo that was answered last was just stored, as the newest, by one write to the history at hand."""

    def lost(self) -> None:
        """The past was used for something else; it is put together again at the next photo."""
        self._version = -1


class NewestPhotos(HistorySelection):
    """The newest photos. A photo that is stored already meets the photos before it.

    Nothing is read from the file as long as nobody else writes to it.
    """

    def __init__(self, history: FeatureHistory, space: str, width: int, card: Head, past: HeadState) -> None:
        super().__init__(history, space, width, card, past)
        self._newest: deque[Named] = deque(maxlen=self._window)

    def recall(self, feature: np.ndarray, photo: str, seen: tuple[int, bool]) -> tuple[Sequence[Named], bool]:
        version, known = seen
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

    def stored(self, feature: np.ndarray, photo: str, name: str) -> None:
        self._past.take_in(feature, photo)
        self._newest.append((photo, name))
        self._version += 1  # by this append, and not by anybody else's


class ChosenPhotos(HistorySelection):
    """History selection from all stored photos, by similarity to the query photo.

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
        super().__init__(history, space, width, card, past)
        self._choose, self._index = CHOICES[how], RetrievalIndex(history, space, width)

    def recall(self, feature: np.ndarray, photo: str, seen: tuple[int, bool]) -> tuple[Sequence[Named], bool]:
        version, known = seen
        if version != self._version:
            self._index.refresh()
            self._version = version
        found = self._choose(self._index, feature, self._window, photo)
        self._past.restart(found.features, found.photos)
        return list(zip(found.photos, found.names, strict=True)), known

    def stored(self, feature: np.ndarray, photo: str, name: str) -> None:
        self._index.add(photo, feature)
        if len(self._index) > self._history.count(self._space):  # a photo was evicted for it
            self._index.drop_evicted()
        self._version += 1

    def lost(self) -> None:
        """Nothing to do: the past is put together again for each photo."""


class RetrievalIndex:
    """An index in memory over one feature space of one profile, to choose a window from a long history by similarity.

    The paper's answer to a history longer than the window is to retrieve relevant images (ICIIA section 3.2). Thousands
    of features need not be kept in memory for it: each is projected to a few random directions, which keeps cosines to
    within a few hundredths (Johnson and Lindenstrauss 1984), and the best candidates are then compared whole, from the
    file.

    The most similar photos say least about a person: they are what the encoder takes for the same thing, mistakes
    included (``python -m studies memories``).
    A sample that is spread evenly over all ranks of similarity shows the person
    whole.

    Args:
        history: the profile.
        space: feature space.
        width: D, of a stored row.
    """

    def __init__(self, history: FeatureHistory, space: str, width: int) -> None:
        self._history, self._space, self._width = history, space, width
        directions = np.random.default_rng(0).standard_normal((width, min(DIRECTIONS, width)), dtype=np.float32)
        self._directions = directions
        self._photos: list[str] = []
        self._rows = np.zeros((0, directions.shape[1]), dtype=np.float32)

    def refresh(self) -> None:
        """Reads the whole space again, in pieces."""
        self._photos, self._rows = [], self._rows[:0]
        for part in self._history.iterate(self._space, self._width):
            self._add(part.photos, part.features)

    def add(self, photo: str, feature: np.ndarray) -> None:
        """Adds a photo that was stored just now."""
        self._add([photo], feature[None])

    def _add(self, photos: Iterable[str], features: np.ndarray) -> None:
        used = len(self._photos)
        self._photos.extend(photos)
        if len(self._photos) > len(self._rows):  # room for as many again, so that adding one copies nothing
            grown = np.empty((max(64, 2 * len(self._photos)), self._rows.shape[1]), dtype=np.float32)
            grown[:used] = self._rows[:used]
            self._rows = grown
        self._rows[used : len(self._photos)] = _unit(features) @ self._directions

    def drop_evicted(self) -> None:
        """Drops the photos that are not stored any more."""
        stored = self._history.photos(self._space)
        kept = [number for number, photo in enumerate(self._photos) if photo in stored]
        self._rows[: len(kept)] = self._rows[kept]
        self._photos = [self._photos[number] for number in kept]

    def most_similar(self, feature: np.ndarray, count: int, but: str = "") -> HistorySlice:
        """The photos whose features have the largest cosine to a feature (D,), the most similar last.

        Args:
            count: at most this many.
            but: identity of a photo that is left out, if it is stored: none attends to itself.
        """
        scores = self._scores(feature)
        wanted = min(len(scores), CANDIDATES * count + 1)
        best = np.argpartition(-scores, wanted - 1)[:wanted] if wanted else np.zeros(0, dtype=int)
        # Photos that were evicted meanwhile are not found any more.
        found = self._history.rows(self._space, [p for p in (self._photos[i] for i in best) if p != but], self._width)
        order = np.argsort(_unit(found.features) @ _unit(feature[None])[0], kind="stable")[-count:]
        return HistorySlice(
            found.features[order], tuple(found.photos[i] for i in order), tuple(found.names[i] for i in order)
        )

    def spread(self, feature: np.ndarray, count: int, but: str = "") -> HistorySlice:
        """Photos at even steps of their rank by similarity to a feature (D,), from the least to the most similar.

        Args:
            count, but: as in :meth:`most_similar`.
        """
        ranked = np.argsort(self._scores(feature))
        if but in self._photos:
            ranked = ranked[ranked != self._photos.index(but)]
        steps = np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().astype(int)
        return self._history.rows(self._space, [self._photos[i] for i in ranked[steps]], self._width)

    def _scores(self, feature: np.ndarray) -> np.ndarray:
        """About the cosine of each photo to a feature (D,)."""
        scores: np.ndarray = self._rows[: len(self._photos)] @ (_unit(feature[None]) @ self._directions)[0]
        return scores

    def __len__(self) -> int:
        return len(self._photos)


# What `--memory` calls each way of choosing.
CHOICES: dict[str, Callable[[RetrievalIndex, np.ndarray, int, str], HistorySlice]] = {
    "similar": RetrievalIndex.most_similar,
    "spread": RetrievalIndex.spread,
}


def _unit(rows: np.ndarray) -> np.ndarray:
    """Rows (n, D) at length one."""
    unit: np.ndarray = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return unit


HISTORY_SELECTIONS: dict[str, Callable[[FeatureHistory, str, int, Head, HeadState], HistorySelection]] = {
    "newest": NewestPhotos,
    **{how: partial(ChosenPhotos, how) for how in CHOICES},
}
