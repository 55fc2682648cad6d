"""Trade-offs between histories that are the person's own and those that are somebody else's.

Class shares gain where the photos go on as the history was, and lose where they do not: before the first photo of
something else, nothing but that photo can tell. Each family below has one parameter that holds shares back, in a
different way, and so gives a curve of gain against loss. All of them start from the same state of the shares.

Notation: C classes, G photos to answer, H history photos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from refocus.cloud_train.methods.iciia.delivery import CLOSE, FOREIGN_PART, expected
from refocus.edge.recognize import ShareSettings
from studies.streams.rivals.method import Knowledge, softmax, unit
from studies.streams.rivals.shares import SharesMethod

HELD = 0.05  # ``elsewhere`` of the families that hold shares back in another way
_NEAREST = 3  # history photos whose similarity counts


@dataclass(frozen=True)
class Told:
    """All that a family may know of the photos to answer.

    Attributes:
        logits: (G, C) calibrated.
        shares: (C,) estimated, without ``elsewhere``.
        base: (C,) of training.
        nearness: (G,) cosine to the nearest history photos, less the median among training photos of one class.
    """

    logits: np.ndarray
    shares: np.ndarray
    base: np.ndarray
    nearness: np.ndarray

    def ratio(self, elsewhere: float | np.ndarray) -> np.ndarray:
        """(..., C) shares over the base, where a part of the photos is of anything."""
        return ratio_of(self.shares, self.base, elsewhere)


def ratio_of(shares: np.ndarray, base: np.ndarray, elsewhere: float | np.ndarray) -> np.ndarray:
    """(..., C) shares over the base, both (C,), where a part ``elsewhere`` of the photos is of anything."""
    ratio: np.ndarray = elsewhere + (1 - elsewhere) * shares / base
    return ratio


def _elsewhere(told: Told, part: float) -> np.ndarray:
    return told.logits + np.log(told.ratio(part))


def _exponent(told: Told, exponent: float) -> np.ndarray:
    return told.logits + exponent * np.log(told.ratio(HELD))


def _trust(told: Told, least: float) -> np.ndarray:
    """The classifier alone where the photo itself does not speak for the person's shares."""
    ratio = told.ratio(HELD)
    trust = 1 - HELD / (softmax(told.logits) @ ratio)
    return np.where((trust > least)[:, None], told.logits + np.log(ratio), told.logits)


def _familiar(told: Told, least: float) -> np.ndarray:
    """Shares in full for photos that look like one of the history, and held back for others."""
    part = np.where(told.nearness > least, 0.02, 0.5)[:, None]
    return told.logits + np.log(told.ratio(part))


# Name -> grid and logits of the answers (G, C); along each grid, shares are held back more and more.
FAMILIES: Mapping[str, tuple[tuple[float, ...], Callable[[Told, float], np.ndarray]]] = {
    "elsewhere": ((0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5), _elsewhere),
    "exponent": ((0.85, 0.7, 0.55, 0.4, 0.25), _exponent),
    "trust": ((0.8, 0.9, 0.93, 0.95, 0.97, 0.99), _trust),
    "familiar": ((-0.2, -0.1, 0.0, 0.1, 0.2), _familiar),
}


def answered_right(
    knowledge: Knowledge,
    settings: ShareSettings,
    history: tuple[np.ndarray, np.ndarray],
    photos: tuple[np.ndarray, np.ndarray],
    label: np.ndarray,
    near: float,
) -> dict[str, np.ndarray]:
    """Of each family, whether each photo is answered right, (points of its grid, G).

    Args:
        history: features (H, D) and logits (H, C), in their order.
        photos: features (G, D) and logits (G, C).
        label: (G,) of the photos.
        near: median cosine of training photos of one class.
    """
    shares = SharesMethod(knowledge, replace(settings, elsewhere=0.0))
    for feature, logits in zip(*history, strict=True):
        shares.observe(feature, logits)
    similar = np.sort(unit(photos[0]) @ unit(history[0]).T, axis=1)[:, -_NEAREST:]
    base = np.asarray(shares.state.settings.base)
    told = Told(photos[1] / knowledge.temperature, shares.state.estimate().shares, base, similar.mean(1) - near)
    return {
        name: np.stack([answer(told, value).argmax(1) == label for value in grid])
        for name, (grid, answer) in FAMILIES.items()
    }


def median_similarity(features: np.ndarray, label: np.ndarray, most: int = 2000) -> float:
    """Median cosine of two photos of one class, among the first photos (R, D)."""
    rows = np.random.default_rng(0).permutation(len(label))[:most]
    lengths, of = unit(features[rows]), label[rows]
    same = (of[:, None] == of[None]) & ~np.eye(len(of), dtype=bool)
    return float(np.median((lengths @ lengths.T)[same]))


def best_point(own: np.ndarray, foreign: np.ndarray, foreign_part: float = FOREIGN_PART) -> int:
    """The point of a grid whose expected gain is largest where a part of the photos is foreign; of points within
    ``CLOSE`` of it the last, which holds shares back most. ``own`` and ``foreign`` are mean gains (points,)."""
    gains = expected(own, foreign, foreign_part)
    return int(np.flatnonzero(gains >= gains.max() - CLOSE)[-1])
