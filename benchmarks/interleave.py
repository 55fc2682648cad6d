"""An interleaved timer: A B A B, so that a machine that slows down slows all candidates alike.

Speeds are compared as ratios of neighbours in time; the raw samples are kept and nothing is trimmed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.statistics import Interval, bootstrap_median

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
    names = list(candidates)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(warm_up):
        for name in names:
            candidates[name]()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        started, done = time.perf_counter(), 0
        while done < max(rounds, MIN_ROUNDS) or time.perf_counter() - started < min_seconds:
            turn = done % len(names)
            for name in names[turn:] + names[:turn]:
                begin = time.perf_counter_ns()
                candidates[name]()
                samples[name].append((time.perf_counter_ns() - begin) / 1e6)
            done += 1
    finally:
        if was_enabled:
            gc.enable()
    return Timings({name: np.array(values) for name, values in samples.items()})
