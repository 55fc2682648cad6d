"""An interleaved timer: A B A B, so that a machine that slows down slows all candidates alike.

Speeds are compared as ratios of neighbours in time; the raw samples are kept and nothing is trimmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from refocus.benchmarks.document.schema import Conditions
from refocus.benchmarks.measure.statistics import Interval, bootstrap_median
from refocus.benchmarks.measure.timer import measure

MIN_ROUNDS = 64
BLOCK = 8  # neighbouring rounds that are drawn together, because their noise is shared


@dataclass(frozen=True)
class Timings:
    """Samples of every candidate, in ms, one per round and in the same rounds.

    Attributes:
        samples_ms: (rounds,) per candidate.
    """

    samples_ms: dict[str, np.ndarray]

    def percentile(self, name: str, share: float) -> float:
        """A percentile of one candidate in ms, ``share`` in [0, 100]."""
        return float(np.percentile(self.samples_ms[name], share))

    def ratio(self, name: str, over: str) -> Interval:
        """Median of name / over within rounds, with a 95 % bootstrap interval over blocks of rounds."""
        ratios = self.samples_ms[name] / self.samples_ms[over]
        return bootstrap_median(ratios, BLOCK)


def interleave(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 256, warm_up: int = 16, min_seconds: float = 0.0
) -> Timings:
    """Times every candidate once per round, in an order that rotates from round to round.

    Args:
        candidates: what to call, by name.
        rounds: at least this many rounds (and at least ``MIN_ROUNDS``).
        warm_up: rounds before the first sample.
        min_seconds: go on until this much time has passed too.

    Raises:
        ValueError: fewer than two candidates: nothing to compare with.
    """
    if len(candidates) < 2:
        raise ValueError("interleaving compares candidates; give at least two")
    wanted = Conditions(min_queries=max(rounds, MIN_ROUNDS), min_seconds=min_seconds, warm_up=warm_up)
    return Timings({name: series.samples_ms for name, series in measure(candidates, wanted).items()})
