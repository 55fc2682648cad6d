"""The timer: candidates share every slow moment, nothing is dropped, intervals cover the truth."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from refocus.benchmarks.measure import timer as module
from refocus.benchmarks.measure.statistics import bootstrap_mean, bootstrap_median, bootstrap_ratio, worst_tenth
from refocus.benchmarks.measure.timer import MIN_ROUNDS, interleave


class Clock:
    """A clock that only moves when a candidate works."""

    def __init__(self, monkeypatch):
        self.now_ns = 0
        monkeypatch.setattr(module.time, "perf_counter_ns", lambda: self.now_ns)
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now_ns / 1e9)

    def work(self, ms: float) -> None:
        self.now_ns += round(ms * 1e6)


def test_every_candidate_runs_once_per_round_in_turns():
    calls: list[str] = []
    interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=MIN_ROUNDS, warm_up=0)
    rounds = [calls[i : i + 2] for i in range(0, len(calls), 2)]
    assert all(sorted(pair) == ["a", "b"] for pair in rounds)
    assert [pair[0] for pair in rounds[:4]] == ["a", "b", "a", "b"]


def test_a_machine_that_slows_down_does_not_change_the_ratio(monkeypatch):
    clock = Clock(monkeypatch)
    slowness = itertools.count(1)
    state = {"factor": 1.0}

    def base():
        state["factor"] = 1 + next(slowness) / 50
        clock.work(10 * state["factor"])

    timings = interleave({"base": base, "more": lambda: clock.work(12 * state["factor"])}, rounds=200)
    ratio = timings.ratio("more", "base")
    assert ratio.mean == pytest.approx(1.2, rel=0.01)
    assert ratio.low <= 1.2 * 1.01
    assert ratio.high >= 1.2 * 0.99
    assert timings.percentile("base", 90) > 2 * timings.percentile("base", 10)


def test_the_slow_tail_is_kept(monkeypatch):
    clock = Clock(monkeypatch)
    turns = itertools.count()
    timings = interleave(
        {"spiky": lambda: clock.work(100 if next(turns) % 50 == 49 else 1), "steady": lambda: clock.work(1)},
        rounds=200,
        warm_up=0,
    )
    assert timings.percentile("spiky", 100) == 100
    assert len(timings.samples_ms["spiky"]) == 200


def test_it_goes_on_until_both_rounds_and_time_are_enough(monkeypatch):
    clock = Clock(monkeypatch)
    timings = interleave({"a": lambda: clock.work(1), "b": lambda: clock.work(1)}, rounds=64, warm_up=0, min_seconds=1)
    assert len(timings.samples_ms["a"]) == 500


def test_one_candidate_alone_is_refused():
    with pytest.raises(ValueError, match="at least two"):
        interleave({"a": lambda: None})


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = [(lambda i: i.low <= 1.0 <= i.high)(bootstrap_mean(rng.normal(1.0, 2.0, 40), seed=n)) for n in range(200)]
    assert 0.88 < np.mean(covered) < 0.99


@pytest.mark.parametrize("people", [3, 5, 10])
@pytest.mark.parametrize("gains", ["normal", "skewed"])
def test_the_interval_over_few_people_covers_the_truth_about_as_often_as_over_many(gains, people):
    """Percentiles alone: 73 % with 3 people, 84 % with 5, 89 % with 10."""
    rng = np.random.default_rng(people)

    def draw():
        drawn = rng.normal(0, 2, people) if gains == "normal" else rng.gamma(4, 1, people) - 4  # of skewness 1
        return bootstrap_mean(drawn, rng.integers(16, 33, people), seed=int(rng.integers(1 << 30)))

    covered = np.mean([(lambda i: i.low <= 0 <= i.high)(draw()) for _ in range(500)])
    assert 0.92 <= covered < 0.98


def test_the_interval_over_many_people_is_that_of_the_percentiles():
    rng = np.random.default_rng(0)
    gains = rng.normal(0.02, 0.1, 100)
    drawn = gains[np.random.default_rng(0).integers(100, size=(4000, 100))].mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    interval = bootstrap_mean(gains)
    assert interval.high - interval.low == pytest.approx(high - low, rel=0.02)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=0.02 * (high - low))


def test_one_person_has_no_interval():
    interval = bootstrap_mean(np.array([0.25]))
    assert (interval.low, interval.mean, interval.high) == (0.25, 0.25, 0.25)


def test_the_interval_of_a_median_holds_the_median_even_with_two_modes():
    samples = np.where(np.arange(256) % 7 < 4, 1.0, 3.0)
    interval = bootstrap_median(samples, 8)
    assert interval.mean == 1.0
    assert interval.low <= interval.mean <= interval.high


def test_people_with_more_photos_weigh_more():
    interval = bootstrap_mean(np.array([0.0, 1.0]), np.array([1, 3]))
    assert interval.mean == 0.75


def test_a_ratio_is_of_sums_and_its_interval_covers_it():
    rng = np.random.default_rng(0)
    below = rng.uniform(1, 3, 200)
    interval = bootstrap_ratio(0.9 * below + rng.normal(0, 0.1, 200), below)
    assert interval.low < interval.mean < interval.high
    assert interval.mean == pytest.approx(0.9, abs=0.02)
    assert interval.high - interval.low < 0.05
    for nothing in (np.array([]), np.zeros(5)):
        with pytest.raises(ValueError, match="a positive denominator"):
            bootstrap_ratio(nothing, nothing)


def test_an_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one group"):
        bootstrap_mean(np.array([]))


@pytest.mark.parametrize(
    ("people", "worst"),
    [(1, [0.0]), (5, [0.0]), (9, [0.0]), (10, [0.0]), (15, [0.0]), (19, [0.0]), (20, [0.0, 0.01]), (25, [0.0, 0.01]),
     (30, [0.0, 0.01, 0.02])],
)  # fmt: skip
def test_the_worst_tenth_is_rounded_down_and_one_person_at_least(people, worst):
    shares = np.random.default_rng(0).permutation(np.arange(people)) / 100
    assert worst_tenth(shares) == pytest.approx(np.mean(worst))


def test_there_is_one_definition_of_the_worst_tenth():
    """Whoever reports a worst tenth or decile of people calls it, and sorts nothing by hand."""
    root = Path(__file__).parents[3]
    for path in (path for part in ("edge", "benchmarks", "cloud_train") for path in (root / part).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name != "statistics.py":
            assert "def worst_tenth" not in text, path
            assert not re.search(r"worst_(tenth|decile).*np\.sort", text), path
