"""Compare what was evaluated on the same photos: intervals over people and photos, and the orders of a paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from refocus.benchmarks.measure.statistics import Interval, student
from refocus.cloud_train.evaluate.pairs import paired

Order = tuple[str, str, str]  # what a paper found better, what it found worse, where


def over_people_and_photos(gain: np.ndarray, person: np.ndarray, photo: np.ndarray) -> Interval:
    """Mean over people of their mean gain, with a 95 % interval for other people and other photos.

    People to whom one set of photos is dealt share photos, so they are not independent of each other: an interval over
    people alone holds for these photos. Variances over people and over photos are added, and that over single answers,
    which is in both, is taken away (Cameron, Gelbach and Miller, "Robust inference with multiway clustering", 2011);
    the interval is that of Student's t for whatever there is fewer of.

    Args:
        gain: (n,) of each answer.
        person, photo: (n,) whose it is and of which photo, as numbers or names.

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
    """Of a sum of parts that are alike within groups (n,)."""
    sums = np.bincount(group, apart)
    return float((sums**2).sum() * len(sums) / max(1, len(sums) - 1))


def differences(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the differences of two lists of arrays."""
    return [a - b for a, b in zip(one, other, strict=True)]


def judge_orders(
    orders: Iterable[Order], found: Mapping[str, Sequence[np.ndarray]], sizes: np.ndarray
) -> list[dict[str, Any]]:
    """Orders of a paper as far as both sides are there, paired on the same photos and seeds; reversed ones first.

    Args:
        found: by name, what is compared of each client, (clients,), a row per seed.
        sizes: (clients,) targets of each.
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
