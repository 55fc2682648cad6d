"""Marking of unknown photos by a score.

A threshold marks a given part of the correctly answered known photos. A better score marks more of the unknown photos.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refocus.benchmarks.measure.statistics import Interval, widened

MARKED = 0.05  # part of the correctly answered known photos that is marked
RESAMPLES = 1000


@dataclass(frozen=True)
class Scores:
    """Scores of the answers to people; low scores are marked.

    Attributes:
        known: scores of known photos, (n,).
        correct: whether these were answered correctly, (n,).
        unknown: scores of unknown photos, (m,).
    """

    known: np.ndarray
    correct: np.ndarray
    unknown: np.ndarray

    def marked(self, known: np.ndarray | None = None, unknown: np.ndarray | None = None) -> float:
        """Return the part of the unknown photos that is marked.

        Args:
            known: weight of each known photo, (n,); default: equal.
            unknown: weight of each unknown photo, (m,); default: equal.
        """
        weight = np.ones(len(self.unknown)) if unknown is None else unknown
        return float(np.average(self.unknown < self.threshold(known), weights=weight))

    def threshold(self, weight: np.ndarray | None = None) -> float:
        """Return the score that 95 % of the correct answers reach."""
        scores, order = self.known[self.correct], np.argsort(self.known[self.correct], kind="stable")
        if not len(scores):
            return -np.inf
        of = np.ones(len(scores)) if weight is None else weight[self.correct]
        reached = np.cumsum(of[order])
        first = int(np.searchsorted(reached, MARKED * reached[-1], side="right"))
        return float(scores[order[min(first, len(scores) - 1)]])


def marking_gain(scores: Scores, other: Scores, known: np.ndarray, unknown: np.ndarray) -> dict[str, Any]:
    """Return by how much more unknown photos a score marks than another one.

    The interval is a paired bootstrap over people; each resample has its own thresholds.

    Args:
        scores: scores that are compared.
        other: scores of the same photos that they are compared with.
        known: person of each known photo, (n,), from 0.
        unknown: person of each unknown photo, (m,).
    """
    people, rng = int(known.max()) + 1, np.random.default_rng(0)
    resampled = np.empty(RESAMPLES)
    for number in range(RESAMPLES):
        times = np.bincount(rng.integers(people, size=people), minlength=people).astype(float)
        weights = times[known], times[unknown]
        resampled[number] = scores.marked(*weights) - other.marked(*weights)
    low, high = np.percentile(resampled, [2.5, 97.5])
    mean = scores.marked() - other.marked()
    found = widened(Interval(mean, float(low), float(high)), people)
    return {**found.as_dict(), "half_width": (found.high - found.low) / 2}
