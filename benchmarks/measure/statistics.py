"""Intervals, so that no number stands alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000


@dataclass(frozen=True)
class Interval:
    """A mean (or, where said, a median) with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "low": self.low, "high": self.high}


def bootstrap_median(samples: np.ndarray, block: int, seed: int = 0) -> Interval:
    """Median with its 95 % percentile bootstrap interval, resampling blocks of neighbours, whose noise is shared.

    Args:
        samples: (n,) in the order they were taken.
        block: neighbours drawn together.
    """
    low, high = np.percentile(resampled_medians(samples, block, seed), [2.5, 97.5])
    return Interval(float(np.median(samples)), float(low), float(high))


def resampled_medians(samples: np.ndarray, block: int, seed: int) -> np.ndarray:
    """(R,) medians of samples drawn again in blocks of neighbours."""
    blocks = samples[: len(samples) // block * block].reshape(-1, block)
    drawn = np.random.default_rng(seed).integers(len(blocks), size=(RESAMPLES // 4, len(blocks)))
    medians: np.ndarray = np.median(blocks[drawn].reshape(len(drawn), -1), axis=1)
    return medians


def bootstrap_ratio(numerator: np.ndarray, denominator: np.ndarray, seed: int = 0) -> Interval:
    """Ratio of two sums with its 95 % percentile bootstrap interval, resampling whole groups.

    Args:
        numerator, denominator: (G,) sums of each group.

    Raises:
        ValueError: no groups, or a denominator that is not positive: a share of nothing.
    """
    if not len(numerator) or not denominator.sum() > 0:
        raise ValueError("a ratio needs at least one group and a positive denominator")
    drawn = np.random.default_rng(seed).integers(len(numerator), size=(RESAMPLES, len(numerator)))
    above, below = numerator[drawn].sum(1), denominator[drawn].sum(1)
    low, high = np.percentile(above[below > 0] / below[below > 0], [2.5, 97.5])
    return Interval(float(numerator.sum() / denominator.sum()), float(low), float(high))


def bootstrap_mean(groups: np.ndarray, weights: np.ndarray | None = None, seed: int = 0) -> Interval:
    """95 % percentile bootstrap of a (weighted) mean, resampling whole groups.

    Photos of one person are alike, so people, not photos, are what is drawn again.

    Args:
        groups: (G,) mean of each group.
        weights: (G,) size of each group; default: equal.

    Raises:
        ValueError: no groups.
    """
    if not len(groups):
        raise ValueError("an interval needs at least one group")
    weights = np.ones(len(groups)) if weights is None else weights
    return bootstrap_ratio(groups * weights, weights, seed)


def worst_tenth(shares: np.ndarray) -> float:
    """Mean over the tenth of the people who are served worst: the n // 10 smallest shares, one at least.

    Rounded down: nobody outside the worst tenth is in it, so the figure never hides how they are served. Of 9 or of 19
    people it is one person, of 20 people two.

    Args:
        shares: (n,) of right answers, one for each person.
    """
    return float(np.sort(shares)[: max(1, len(shares) // 10)].mean())
