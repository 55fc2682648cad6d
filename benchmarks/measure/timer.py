"""The measuring core: one query after the other, every sample kept, until both conditions are met.

Several candidates are timed in turns, so that a machine that slows down slows all of them alike. Between queries, and
never inside one, the machine is looked at (:mod:`refocus.benchmarks.measure.machine_monitor`).
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from refocus.benchmarks.document.schema import Conditions, Observation, Percentile, Start, Summary
from refocus.benchmarks.measure.machine_monitor import MachineMonitor
from refocus.benchmarks.measure.statistics import Interval, bootstrap_median

QUICK = Conditions(min_queries=128, min_seconds=1.0, warm_up=16)
DEFAULT = Conditions(min_queries=1024, min_seconds=10.0, warm_up=32)
MIN_ROUNDS = 64
BLOCK = 8  # neighbouring rounds that are drawn together, because their noise is shared
_BEYOND = 10  # samples beyond a percentile, for it to be more than an anecdote


@dataclass(frozen=True)
class Series:
    """Samples of one candidate.

    Attributes:
        samples_ms: (n,) in order.
        starts_s: (n,) when each began, since the first query of the run.
        observations: of the machine, during all of it.
        start: the wait for a cool device before it.
    """

    samples_ms: np.ndarray
    starts_s: np.ndarray
    observations: tuple[Observation, ...] = field(default=(), repr=False)
    start: Start | None = None

    @property
    def seconds(self) -> float:
        """From the first query's start to the last one's end."""
        return float(self.starts_s[-1] - self.starts_s[0] + self.samples_ms[-1] / 1000)

    def summary(self) -> Summary:
        """Percentiles of all samples."""
        values = self.samples_ms
        found = {
            name: _percentile(values, share)
            for name, share in (("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99_9", 99.9))
        }
        return Summary(
            count=len(values),
            seconds=self.seconds,
            mean_ms=float(values.mean()),
            min_ms=float(values.min()),
            max_ms=float(values.max()),
            **found,
        )


def _percentile(values: np.ndarray, share: float) -> Percentile:
    supported = round(len(values) * (100 - share) / 100, 6) >= _BEYOND
    return Percentile(ms=float(np.percentile(values, share)), supported=supported)


def measure(
    candidates: Mapping[str, Callable[[], object]],
    conditions: Conditions,
    monitor: MachineMonitor | None = None,
    before: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, Series]:
    """Times every candidate once per round, in an order that rotates from round to round.

    Args:
        candidates: what to call, by name.
        conditions: rounds go on until there are ``min_queries`` of them and ``min_seconds`` have passed, but not longer
            than ``max_seconds`` for each candidate.
        monitor: looks at the machine between rounds; default: a new one.
        before: called before each query of the candidate of that name, outside its time.

    Returns:
        one series per candidate, over the same rounds.

    Raises:
        ValueError: nothing to time.
    """
    if not candidates:
        raise ValueError("nothing to time: give at least one candidate")
    names = list(candidates)
    actions = list(candidates.values())
    prepare = [(before or {}).get(name, _nothing) for name in names]
    monitor = monitor or MachineMonitor()
    monitor.wait_until_cool()
    warm_until = time.perf_counter() + conditions.max_seconds * len(names) / 4
    for _ in range(conditions.warm_up):
        for ready, action in zip(prepare, actions, strict=True):
            ready()
            action()
        if time.perf_counter() > warm_until:
            break
    clock = time.perf_counter_ns
    begins: list[list[int]] = [[] for _ in names]
    ends: list[list[int]] = [[] for _ in names]
    with without_collector():
        monitor.start()
        started, done = clock(), 0
        enough_ns = started + int(conditions.min_seconds * 1e9)
        latest_ns = started + int(conditions.max_seconds * len(names) * 1e9)
        while (done < conditions.min_queries or clock() < enough_ns) and (not done or clock() < latest_ns):
            for turn in range(len(names)):
                number = (done + turn) % len(names)
                prepare[number]()
                action = actions[number]
                begin = clock()
                action()
                end = clock()
                begins[number].append(begin)
                ends[number].append(end)
            done += 1
            monitor.look()
        monitor.finish()
    return {
        name: Series(
            (np.array(ends[number]) - np.array(begins[number])) / 1e6,
            (np.array(begins[number]) - started) / 1e9,
            monitor.observations,
            monitor.waited,
        )
        for number, name in enumerate(names)
    }


def _nothing() -> None:
    """Most queries need no preparation."""


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Disables Python's garbage collector, which would slow down some samples and not others."""
    was_enabled = gc.isenabled()
    gc.collect(1)  # all generations would take a third of a second beside a large library
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def per_minute(series: Series, minute_s: float = 60.0) -> Iterator[tuple[float, float, float, float | None]]:
    """(minute, p50 ms, p90 ms, temperature) of a long run."""
    minutes = (series.starts_s // minute_s).astype(int)
    for minute in np.unique(minutes):
        part = series.samples_ms[minutes == minute]
        warm = [
            o.temperature_c
            for o in series.observations
            if o.temperature_c is not None and int(o.at_s // minute_s) == minute
        ]
        p50, p90 = np.percentile(part, [50, 90])
        yield float(minute), float(p50), float(p90), max(warm, default=None)


# ---- candidates compared


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
