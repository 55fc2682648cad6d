"""Intervals, so that no number stands alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000
NORMAL = 1.959964  # quantile of the normal distribution at 97.5 %
# Those of Student's t with 1 to 10 degrees of freedom; a series in 1/degrees gives the others.
STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


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


def student(degrees: int) -> float:
    """Quantile of Student's t at 97.5 %."""
    if degrees <= len(STUDENT):
        return STUDENT[degrees - 1]
    z, d = NORMAL, degrees
    return z + (z**3 + z) / (4 * d) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * d**2)


def widened(found: Interval, groups: int) -> Interval:
    """A percentile bootstrap interval, as wide as it must be over so few groups.

    What is drawn again from n groups differs by sqrt((n - 1) / n) of what groups differ by, and few groups do not say
    how much that is. Both ends move away from the mean as a normal interval's would: 2.7 times as far with 3 groups,
    1.2 times with 10, 1.06 times with 30, 1.02 times with 100. One group has no interval, and keeps its ends.
    """
    if groups < 2:
        return found
    factor = student(groups - 1) / NORMAL * math.sqrt(groups / (groups - 1))
    low, high = (found.mean + factor * (end - found.mean) for end in (found.low, found.high))
    return Interval(found.mean, low, high)


def bootstrap_ratio(numerator: np.ndarray, denominator: np.ndarray, seed: int = 0) -> Interval:
    """Ratio of two sums with its 95 % bootstrap interval, resampling whole groups: percentiles, :func:`widened`.

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
    mean = float(numerator.sum() / denominator.sum())
    return widened(Interval(mean, float(low), float(high)), len(numerator))


def bootstrap_mean(groups: np.ndarray, weights: np.ndarray | None = None, seed: int = 0) -> Interval:
    """A (weighted) mean with its 95 % bootstrap interval, resampling whole groups: percentiles, :func:`widened`.

    Photos of one person are alike, so people, not photos, are what is drawn again. One group has no interval: both ends
    are its mean.

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
