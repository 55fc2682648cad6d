"""Trade-offs of class shares between own and foreign histories.

Class shares gain if the next photos resemble the history, and lose if they do not; only the new photo itself can show
the change. Each family below has one parameter that holds shares back in a different way, and so gives a curve of gain
against loss. All families start from the same state of the shares.

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

HELD = 0.05  # ``elsewhere`` of the families that vary another parameter
_NEAREST = 3  # number of history photos whose similarity is averaged


@dataclass(frozen=True)
class Told:
    """Input of a family for the photos to answer.

    Attributes:
        logits: calibrated logits, (G, C).
        shares: estimated class shares, without ``elsewhere``, (C,).
        base: class shares of training, (C,).
        nearness: cosine to the nearest history photos, minus the median among training photos of one class, (G,).
    """

    logits: np.ndarray
    shares: np.ndarray
    base: np.ndarray
    nearness: np.ndarray

    def ratio(self, elsewhere: float | np.ndarray) -> np.ndarray:
        """Return :func:`ratio_of` these shares, (..., C)."""
        return ratio_of(self.shares, self.base, elsewhere)


def ratio_of(shares: np.ndarray, base: np.ndarray, elsewhere: float | np.ndarray) -> np.ndarray:
    """Return the ratio of class shares to the base shares, (..., C).

    Args:
        shares: class shares, (C,).
        base: class shares of training, (C,).
        elsewhere: part of the photos that follows the base shares instead.
    """
    ratio: np.ndarray = elsewhere + (1 - elsewhere) * shares / base
    return ratio


def _elsewhere(told: Told, part: float) -> np.ndarray:
    return told.logits + np.log(told.ratio(part))


def _exponent(told: Told, exponent: float) -> np.ndarray:
    return told.logits + exponent * np.log(told.ratio(HELD))


def _trust(told: Told, least: float) -> np.ndarray:
    """Use shares only for photos that are likely under them."""
    ratio = told.ratio(HELD)
    trust = 1 - HELD / (softmax(told.logits) @ ratio)
    return np.where((trust > least)[:, None], told.logits + np.log(ratio), told.logits)


def _familiar(told: Told, least: float) -> np.ndarray:
    """Use shares in full only for photos similar to the history.

    For other photos they are held back.
    """
    part = np.where(told.nearness > least, 0.02, 0.5)[:, None]
    return told.logits + np.log(told.ratio(part))


# Name -> grid and function of the logits of the answers (G, C); each grid holds shares back increasingly.
FAMILIES: Mapping[str, tuple[tuple[float, ...], Callable[[Told, float], np.ndarray]]] = {
    "elsewhere": ((0.02, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5), _elsewhere),
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
    """Return whether each photo is answered correctly, by family.

    Args:
        knowledge: calibration and class shares of the training photos.
        settings: settings of class shares.
        history: features (H, D) and logits (H, C), in their order.
        photos: features (G, D) and logits (G, C).
        label: classes of the photos, (G,).
        near: median cosine of training photos of one class.

    Returns:
        Arrays of shape (points of the grid, G).
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
    """Return the median cosine of two photos of one class.

    Args:
        features: features, (R, D).
        label: classes, (R,).
        most: maximum number of photos, drawn at random.
    """
    rows = np.random.default_rng(0).permutation(len(label))[:most]
    lengths, of = unit(features[rows]), label[rows]
    same = (of[:, None] == of[None]) & ~np.eye(len(of), dtype=bool)
    return float(np.median((lengths @ lengths.T)[same]))


def best_point(own: np.ndarray, foreign: np.ndarray, foreign_part: float = FOREIGN_PART) -> int:
    """Return the point of a grid with the largest expected gain.

    Of the points within ``CLOSE`` of it the last is returned, which holds shares back most.

    Args:
        own: mean gain with own histories, (points,).
        foreign: mean gain with foreign histories, (points,).
        foreign_part: part of the photos that comes after a foreign history.
    """
    gains = expected(own, foreign, foreign_part)
    return int(np.flatnonzero(gains >= gains.max() - CLOSE)[-1])
