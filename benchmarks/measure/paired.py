"""Is B slower than A? Both in turns in one run, loaded afresh several times, and an answer that is seldom wrong.

Where a program's memory happens to lie changes its speed by a percent or two until it is loaded again. So a load, not a
query, is the unit: each gives one ratio, and the interval is over loads. The reasons are in decision 17.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from refocus.benchmarks.document.schema import BenchError, Conditions, Observation
from refocus.benchmarks.measure.machine_monitor import MachineMonitor
from refocus.benchmarks.measure.timer import Series, measure

LEAST_LOADS = 8  # fewer cannot give an interval of 99 %
LEVEL = 0.99
MARGIN = 0.01  # a difference that is not certainly more than this is none that anybody should act on
Open = Callable[[], AbstractContextManager[Callable[[], object]]]
Answer = Literal["B is slower", "B is faster", "no difference seen"]


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        loads: how often both are loaded afresh.
        pairs: pairs of samples after each load, at least.
        min_seconds: of all loads together, at least.
    """

    loads: int = 16
    pairs: int = 64
    min_seconds: float = 20.0

    def __post_init__(self) -> None:
        if self.loads < LEAST_LOADS:
            raise BenchError(f"{self.loads} loads: at least {LEAST_LOADS} are needed for an interval of {LEVEL:.0%}")


QUICK = Plan(loads=12, pairs=24, min_seconds=2.0)


@dataclass(frozen=True)
class Comparison:
    """B's time over A's.

    Attributes:
        by_load: (loads,) of each load.
        a, b: all samples.
    """

    answer: Answer
    sentence: str
    ratio: float
    low: float
    high: float
    by_load: tuple[float, ...]
    a: Series
    b: Series


def compare(
    open_a: Open, open_b: Open, plan: Plan, monitor: Callable[[], MachineMonitor] = MachineMonitor
) -> Comparison:
    """Loads both afresh, times them in turns, and again.

    Args:
        open_a, open_b: load a candidate and give the call to be timed; left, they let go of it.
        monitor: makes the machine monitor of one load.
    """
    conditions = Conditions(min_queries=plan.pairs, min_seconds=plan.min_seconds / plan.loads, warm_up=4)
    logs: list[float] = []
    runs: list[dict[str, Series]] = []
    for load in range(plan.loads):
        # Whichever is loaded first has other memory: they take turns in that, too.
        first, second = (open_a, open_b) if load % 2 == 0 else (open_b, open_a)
        with first() as one, second() as other:
            a, b = (one, other) if load % 2 == 0 else (other, one)
            runs.append(measure({"A": a, "B": b}, conditions, monitor()))
        logs.append(shift(np.log(runs[-1]["A"].samples_ms), np.log(runs[-1]["B"].samples_ms)))
    middle, low, high = (math.exp(log) for log in signed_rank_interval(logs))
    answer, sentence = decide(middle, low, high)
    ratios = tuple(math.exp(log) for log in logs)
    return Comparison(answer, sentence, middle, low, high, ratios, _joined(runs, "A"), _joined(runs, "B"))


def shift(a: np.ndarray, b: np.ndarray) -> float:
    """How much larger b is than a: the median of all differences (Hodges and Lehmann, 1963).

    Unlike a mean it stays where it is when a few samples were struck by something else, and none is left out for it.
    """
    return float(np.median(b[:, None] - a[None, :]))


def signed_rank_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float, float]:
    """Centre of a few values with an exact interval: the one that Wilcoxon's signed-rank test leaves.

    No distribution is assumed but that errors up and down are alike.

    Args:
        values: one per load, at least ``LEAST_LOADS`` for 99 %.

    Returns:
        the median of all pairwise means, and the interval's ends.

    Raises:
        ValueError: too few values for an interval of this level.
    """
    found = np.asarray(values)
    rows, columns = np.triu_indices(len(found))
    means = np.sort((found[rows] + found[columns]) / 2)
    cut = _cut(len(found), (1 - level) / 2)
    if cut < 1:
        raise ValueError(f"{len(found)} values have no interval of {level:.0%}")
    return float(np.median(means)), float(means[cut - 1]), float(means[-cut])


def _cut(count: int, tail: float) -> int:
    """How many of the smallest pairwise means lie outside: the signed-rank statistic's quantile, from its exact law."""
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1
    for rank in range(1, count + 1):
        ways[rank:] = ways[rank:] + ways[:-rank].copy()
    below = np.cumsum(ways) / 2.0**count
    return int(np.searchsorted(below, tail, side="right"))


def decide(ratio: float, low: float, high: float) -> tuple[Answer, str]:
    """Better, worse, or no difference seen: only what is certainly larger than the margin counts.

    An interval on one side of zero that reaches within the margin needs a word: it looks like a difference.
    """
    interval = f"{ratio - 1:+.1%} ({LEVEL:.0%} interval {low - 1:+.1%} to {high - 1:+.1%})"
    if low > 1 + MARGIN:
        return "B is slower", f"B is slower than A by {interval}"
    if high < 1 / (1 + MARGIN):
        return "B is faster", f"B is faster than A: {interval}"
    most = max(high - 1, 1 - low)
    one_side = low > 1 or high < 1
    within = f", which may be less than {MARGIN:.0%}, as two loads of one thing may differ" if one_side else ""
    noticed = f"one of up to {most:.1%} would not have been noticed"
    return "no difference seen", f"no difference seen: {interval}{within}; {noticed}"


def _joined(runs: Sequence[dict[str, Series]], name: str) -> Series:
    """All loads one after the other; the time between them, in which nothing was timed, is left out."""
    samples, starts, seen, at = [], [], list[Observation](), 0.0
    for run in runs:
        series = run[name]
        samples.append(series.samples_ms)
        starts.append(series.starts_s + at)
        seen += _after(series.observations, seen[-1] if seen else None, at)
        # The machine is watched for longer than this candidate is timed: the other one has the first or the last turn.
        at += max(series.seconds, *(o.at_s for o in series.observations[-1:]))
    waits = [start for run in runs if (start := run[name].start) is not None]
    warmest = max(waits, key=lambda start: start.reached_c, default=None)
    return Series(np.concatenate(samples), np.concatenate(starts), tuple(seen), warmest)


def _after(run: Sequence[Observation], before: Observation | None, at_s: float) -> Iterator[Observation]:
    """The observations of one run behind the last of the runs before, as if no time had passed between them."""
    for seen in run:
        moved: dict[str, float] = {"at_s": seen.at_s + at_s}
        for name in ("busy_s", "own_s", "steal_s", "waited_s"):
            first, last, now = getattr(run[0], name), getattr(before, name) if before else 0.0, getattr(seen, name)
            if None not in (first, last, now):
                moved[name] = last + now - first
        yield msgspec.structs.replace(seen, **moved)
