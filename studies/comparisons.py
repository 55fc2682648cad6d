"""Paired comparisons: confidence intervals, and the orders of a paper.

The compared methods are evaluated on the same photos. Intervals are over people and photos.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from refocus.benchmarks.measure.statistics import Interval, student
from refocus.cloud_train.evaluate.pairs import paired

Order = tuple[str, str, str]  # better method, worse method, and the place in the paper


def over_people_and_photos(gain: np.ndarray, person: np.ndarray, photo: np.ndarray) -> Interval:
    """Return the mean gain over people with a two-way clustered interval.

    The 95 % confidence interval holds for other people and other photos. People to whom one set of photos is dealt
    share photos, so they are not independent: an interval over people alone would hold only for these photos. The
    variance is that over people plus that over photos, less that over single answers, which is in both (Cameron,
    Gelbach and Miller, "Robust inference with multiway clustering", 2011). The interval uses Student's t with the
    smaller of the numbers of people and photos.

    Args:
        gain: gain of each answer, (n,).
        person: person of each answer, (n,), as numbers or names.
        photo: photo of each answer, (n,), as numbers or names.

    Raises:
        ValueError: no answers.
    """
    if not len(gain):
        raise ValueError("an interval needs at least one answer")
    _, person, answers = np.unique(person, return_inverse=True, return_counts=True)
    _, photo = np.unique(photo, return_inverse=True)
    weight = 1 / (len(answers) * answers[person])
    mean = float((weight * gain).sum())
    apart = weight * (gain - mean)
    single = person * (photo.max() + 1) + photo
    people, photos, both = (_variance(apart, of) for of in (person, photo, np.unique(single, return_inverse=True)[1]))
    spread = np.sqrt(max(people, photos, people + photos - both))
    half = student(max(1, int(min(len(answers), photo.max() + 1)) - 1)) * float(spread)
    return Interval(mean, mean - half, mean + half)


def _variance(apart: np.ndarray, group: np.ndarray) -> float:
    """Return the variance of a sum of terms (n,) clustered by group (n,)."""
    sums = np.bincount(group, apart)
    return float((sums**2).sum() * len(sums) / max(1, len(sums) - 1))


def differences(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the differences of two lists of arrays."""
    return [a - b for a, b in zip(one, other, strict=True)]


def judge_orders(
    orders: Iterable[Order], found: Mapping[str, Sequence[np.ndarray]], sizes: np.ndarray
) -> list[dict[str, Any]]:
    """Compare the methods of a paper's orders; return reversed ones first.

    An order is left out unless both of its methods were evaluated. Differences are paired on photos and seeds.

    Args:
        orders: better method, worse method and source, as the paper states them.
        found: values by method name, (clients,) per seed.
        sizes: number of targets per client, (clients,).
    """
    rows = [
        {
            "better": better,
            "other": other,
            "source": source,
            "difference": paired(differences(found[better], found[other]), sizes),
        }
        for better, other, source in orders
        if better in found and other in found
    ]
    return sorted(rows, key=lambda order: order["difference"]["high"] >= 0)
