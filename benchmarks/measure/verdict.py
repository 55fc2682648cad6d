"""Can a row be trusted? If not, why, and what to do. The limits and their reasons are in decision 17.

Pure functions over samples and observations: a verdict of recorded samples is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from refocus.benchmarks.document.schema import Conditions, Machine, Observation, Reason, Verdict
from refocus.benchmarks.measure.timer import Series

SPREAD = 0.10  # of the median, between the quartiles
UNSTEADY = 0.15  # between the medians of the fastest and the slowest tenth of the run
DRIFT = 0.05  # of the median, from the start to the end
STEP = 0.08  # between two levels
CLOCK = 0.05  # between the slowest and the fastest clock seen, or yardstick
TREND = 31  # of 45 pairs of ten medians, Kendall's S: by chance in fewer than 1 of 100 runs
OTHER_LOAD = 0.10  # cores
STEAL = 0.02  # cores
WAITED = 0.02  # of the time
HOT_C = 85.0
WARMED_C = 3.0
_TENTHS, _PIECES = 10, 20
_TAIL = 3.0  # p99 over p50 that is worth a note
_LEAST_SECONDS = 0.5  # processor time is counted in hundredths of a second: below this a share says little


def verdict_of(series: Series, conditions: Conditions, machine: Machine | None = None) -> Verdict:
    """The verdict of one row.

    Args:
        series: its samples and what was seen meanwhile.
        conditions: what it was to meet.
        machine: where it ran, for the governor.
    """
    samples, seen = series.samples_ms, series.observations
    reasons = [*_too_few(series, conditions)]
    if len(samples) >= conditions.least:
        reasons += [*_spread(samples)]
    if len(samples) >= max(conditions.least, 2 * _PIECES):
        reasons += [*_levels(series)]
    reasons += [*_clocks(seen), *_start(series), *_heat(samples, seen), *_governor(seen, machine), *_load(seen)]
    first = {reason.code: reason for reason in reversed(reasons)}  # one of each kind
    kept = tuple(reason for reason in reasons if first[reason.code] is reason)
    return Verdict(valid=not reasons, reasons=kept, notes=tuple(_notes(series)))


def _too_few(series: Series, conditions: Conditions) -> Iterator[Reason]:
    count, wanted = len(series.samples_ms), max(conditions.min_queries, conditions.least)
    advice = "measure longer: leave out --quick, or raise"
    if count < wanted:
        yield Reason("too few samples", f"{count} samples, {wanted} are needed", f"{advice} --queries")
    elif series.seconds < conditions.min_seconds * 0.95:  # the last query may begin before the end
        detail = f"{series.seconds:.1f} s, {conditions.min_seconds:g} s are needed"
        yield Reason("too few samples", detail, f"{advice} --seconds")


def _spread(samples: np.ndarray) -> Iterator[Reason]:
    low, median, high = np.percentile(samples, [25, 50, 75])
    share = (high - low) / median
    advice = "close other programs, fix the clock, pin the threads; then measure longer"
    if share > SPREAD:
        yield Reason("spread", f"half of the samples lie {share:.0%} of the median apart", advice)
    elif len(samples) >= 2 * _PIECES:
        medians = _medians(samples, _TENTHS)
        share = medians.max() / medians.min() - 1
        if share > UNSTEADY:
            yield Reason("spread", f"the slowest tenth of the run is {share:.0%} slower than the fastest", advice)


def _levels(series: Series) -> Iterator[Reason]:
    """A step from one level to another, or else a drift: whichever describes the run better."""
    medians = _medians(series.samples_ms, _PIECES)
    after, step = best_step(medians)
    line = _line(medians)
    if abs(step) > STEP and _misfit(medians, _as_step(medians, after)) < _misfit(medians, line):
        when = series.starts_s[int(len(series.samples_ms) * after / _PIECES)]
        detail = f"the level changed by {step:+.0%} after {when:.1f} s and stayed, as when the clock changes"
        yield Reason("clock", detail, "fix the clock (governor performance, no turbo), measure again")
        return
    tenths = _medians(series.samples_ms, _TENTHS)
    change = (line[-1] - line[0]) / np.median(medians)
    if abs(kendall(tenths)) >= TREND and abs(change) > DRIFT:
        detail = f"the run got {abs(change):.0%} {'slower' if change > 0 else 'faster'} from start to end"
        yield Reason("drift", detail, "let the device cool down or warm up first; see --sustained for the long run")


def _clocks(seen: Sequence[Observation]) -> Iterator[Reason]:
    fastest = [max(o.clocks_mhz) for o in seen if o.clocks_mhz]
    advice = "fix the clock: sudo cpupower frequency-set --governor performance, and switch turbo off"
    if len(fastest) > 1 and max(fastest) / min(fastest) - 1 > CLOCK:
        yield Reason("clock", f"the clock moved between {min(fastest):.0f} and {max(fastest):.0f} MHz", advice)
        return
    yardsticks = np.array([o.yardstick_us for o in seen if o.yardstick_us])
    if len(yardsticks) >= 4:
        first, last = (np.median(part) for part in np.array_split(yardsticks, 2))
        change = last / first - 1
        if abs(change) > CLOCK and abs(kendall(yardsticks)) >= 0.5 * len(yardsticks) * (len(yardsticks) - 1) / 2:
            detail = (
                f"a fixed piece of work took {change:+.0%} in the second half of the run: the clock, or what shares the"
                " core, changed"
            )
            yield Reason("clock", detail, advice)


def _start(series: Series) -> Iterator[Reason]:
    """A device that was too warm, or slowed for heat already, when the row began."""
    start, seen = series.start, series.observations
    if start is not None and start.reached_c >= start.below_c:
        detail = f"it began at {start.reached_c:.0f} °C after waiting {start.waited_s:.0f} s for {start.below_c:g} °C"
        yield Reason("throttling", detail, "cool the device, or raise --start-below or --start-within")
    if seen and seen[0].slowed:
        detail = f"{seen[0].slowed} parts of the machine were slowed for heat when it began"
        yield Reason("throttling", detail, "let it rest first: --start-below 45C waits for it")


def _heat(samples: np.ndarray, seen: Sequence[Observation]) -> Iterator[Reason]:
    counts = [o.throttled for o in seen if o.throttled is not None]
    warm = [o.temperature_c for o in seen if o.temperature_c is not None]
    advice = "cool the device, let it rest, or report the sustained figure (--sustained)"
    if counts and counts[-1] > counts[0]:
        yield Reason("throttling", f"cores were slowed for heat {counts[-1] - counts[0]} times", advice)
        return
    medians = _medians(samples, min(_TENTHS, len(samples)))
    slower = medians[-1] / medians[0] - 1
    if warm and slower > DRIFT and (max(warm) >= HOT_C or warm[-1] - warm[0] >= WARMED_C):
        detail = f"{slower:.0%} slower while it warmed from {warm[0]:.0f} to {max(warm):.0f} °C"
        yield Reason("throttling", detail, advice)


def _governor(seen: Sequence[Observation], machine: Machine | None) -> Iterator[Reason]:
    if machine is None or machine.governor in ("", "performance"):
        return
    fastest = [max(o.clocks_mhz) for o in seen if o.clocks_mhz]
    if not fastest or max(fastest) / min(fastest) - 1 > CLOCK / 2:
        moved = "and the clock moved" if fastest else "and nothing says whether the clock moved"
        advice = "sudo cpupower frequency-set --governor performance"
        yield Reason("governor", f"the governor is {machine.governor}, {moved}", advice)


def other_load(seen: Sequence[Observation]) -> tuple[float, float] | None:
    """CPU load of other processes and steal time of the hypervisor during a run, in cores; None if unknown."""
    known = [o for o in seen if o.busy_s is not None and o.own_s is not None]
    if len(known) < 2 or known[-1].at_s - known[0].at_s < _LEAST_SECONDS:
        return None
    first, last = known[0], known[-1]
    seconds = last.at_s - first.at_s
    others = ((last.busy_s or 0) - (first.busy_s or 0)) - ((last.own_s or 0) - (first.own_s or 0))
    stolen = (last.steal_s or 0) - (first.steal_s or 0)
    return max(0.0, others / seconds), max(0.0, stolen / seconds)


def waited(seen: Sequence[Observation]) -> float | None:
    """Share of a run in which this process was ready and another one ran; None where nothing says so."""
    known = [(o.at_s, o.waited_s) for o in seen if o.waited_s is not None]
    if len(known) < 2 or known[-1][0] - known[0][0] < _LEAST_SECONDS:
        return None
    return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


def _load(seen: Sequence[Observation]) -> Iterator[Reason]:
    share, found = waited(seen), other_load(seen)
    if share is not None and share > WAITED:
        detail = f"it waited for a core for {share:.0%} of the time"
        yield Reason("other load", detail, "stop other programs (top shows which) and measure again")
    if found is None:
        return
    others, stolen = found
    if others > OTHER_LOAD:
        detail = f"other programs used {others:.2f} cores meanwhile"
        yield Reason("other load", detail, "stop them (top shows which) and measure again")
    if stolen > STEAL:
        detail = f"the hypervisor gave {stolen:.2f} cores to other machines"
        yield Reason("other load", detail, "measure on a machine of one's own, or when its neighbours are quiet")


def _notes(series: Series) -> Iterator[str]:
    p50, p99 = np.percentile(series.samples_ms, [50, 99])
    if p99 > _TAIL * p50:
        yield f"a long tail: p99 is {p99 / p50:.1f} times p50"
    if not any(o.clocks_mhz for o in series.observations):
        yield "this machine does not say its clock"
    if not any(o.temperature_c is not None for o in series.observations):
        yield "this machine does not say its temperature"
    if other_load(series.observations) is None:
        yield "too short, or the machine says too little, to see other programs"


# ---- shapes of a run


def _medians(samples: np.ndarray, pieces: int) -> np.ndarray:
    """(pieces,) medians of equal parts of a run in order."""
    return np.array([np.median(part) for part in np.array_split(samples, pieces)])


def kendall(values: np.ndarray) -> int:
    """Kendall's S against time: pairs that rise minus pairs that fall."""
    differences = np.sign(values[None, :] - values[:, None])
    return int(np.triu(differences, 1).sum())


def best_step(medians: np.ndarray) -> tuple[int, float]:
    """Where a run changes its level most clearly, and by what share; 0 where the two sides overlap.

    Args:
        medians: (n,) of pieces of the run; a level lasts three of them at least.
    """
    best, at = 0.0, 0
    for split in range(3, len(medians) - 2):
        before, after = medians[:split], medians[split:]
        apart = np.mean(np.sign(after[:, None] - before[None, :]))
        share = float(np.median(after) / np.median(before) - 1)
        if abs(apart) > 0.95 and abs(share) > abs(best):
            best, at = share, split
    return at, best


def _as_step(medians: np.ndarray, split: int) -> np.ndarray:
    return np.concatenate(
        [np.full(split, np.median(medians[:split])), np.full(len(medians) - split, np.median(medians[split:]))]
    )


def _line(medians: np.ndarray) -> np.ndarray:
    """Theil-Sen: the line with the median slope of all pairs."""
    times = np.arange(len(medians))
    rows, columns = np.triu_indices(len(medians), 1)
    slope = np.median((medians[columns] - medians[rows]) / (columns - rows))
    line: np.ndarray = np.median(medians - slope * times) + slope * times
    return line


def _misfit(values: np.ndarray, model: np.ndarray) -> float:
    return float(np.abs(values - model).mean())
