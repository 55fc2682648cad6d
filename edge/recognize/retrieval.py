"""Choosing a window from a long history by how much its photos are like the one at hand.

The paper's answer to a history longer than the window is to retrieve relevant images (ICIIA section 3.2). Thousands of
features need not be kept in memory for it: each is projected to a few random directions, which keeps cosines to within
a few hundredths (Johnson and Lindenstrauss 1984), and the best candidates are then compared whole, from the file.

The most similar photos tell least about a person: they are what the encoder takes for the same thing, mistakes included
(``refocus study memories``). A sample that is spread evenly over all ranks of similarity shows the person whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from refocus.edge.history.feature_history import FeatureHistory, HistorySlice

DIRECTIONS = 256  # 4 MB for 4,096 photos
CANDIDATES = 4  # times as many are compared whole as are wanted


class RetrievalIndex:
    """An index in memory over one feature space of one profile.

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
