"""``refocus bench --choose``: which target of a bundle is the fastest here, of those whose answers hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import structs

from refocus.benchmarks.document.schema import BenchError, Missing
from refocus.benchmarks.measure import Timings, interleave
from refocus.benchmarks.measure.target import Target, loses_accuracy
from refocus.benchmarks.run import Plan, targets_of
from refocus.edge.bundle import Bundle
from refocus.edge.errors import RefocusError
from refocus.edge.recognize import (
    DEFAULT_TARGET,
    ChosenTarget,
    Measured,
    check,
    choice_path,
    keep_choice,
    library_version,
    processor,
)

ROUNDS = 256


def choose(folder: Path, plan: Plan, scratch: Path, say: Callable[[str], object]) -> ChosenTarget:
    """Measures the targets that run here in turns, and keeps the fastest whose answers hold.

    The default stays chosen unless another one's interval of the ratio to it lies below 1. A target's answers hold
    where its self-test passes on this machine, its parity passed when it was exported, and, where its accuracy was
    measured, the interval of the change includes no loss above ``MOST_LOST``; of one person's photos there is no
    interval, and the default stays before what was compared with it on them.

    Args:
        folder: of the bundle.
        scratch: an empty folder, for profiles.

    Raises:
        BenchError: nothing can run, or no target's answers hold.
        BundleError: no bundle, or one without self-test.
    """
    missing: list[Missing] = []
    targets = {target.target_name: target for target in targets_of([folder], plan, scratch, missing)}
    for absent in missing:
        say(f"not run here: {absent.what}: {absent.why}")
    some = next(iter(targets.values()))
    head = some.bundle.manifest.head(plan.head).name
    refused = {name: why for name, one in targets.items() if (why := loses_accuracy(one.bundle, one.pair, head))}
    failed = {
        row.target: f"its self-test fails here: {row.failures[0]}"
        for row in check(some.bundle, plan.provider, plan.allow_fallback, threads=plan.threads)
        if row.head == head and row.failures
    }
    refused |= failed
    default = ":".join(DEFAULT_TARGET) if ":".join(DEFAULT_TARGET) in targets else next(iter(targets))
    allowed = [name for name in targets if name not in refused]
    if not allowed:
        raise BenchError(f"{folder}: no target's answers hold: " + "; ".join(f"{n}: {w}" for n, w in refused.items()))
    say(f"timing {', '.join(targets)}, in turns")
    timings = _timed([*targets.values()])
    rows = tuple(_rows(timings, [default, *(name for name in targets if name != default)], refused))
    runtime, precision = targets[_fastest(rows, default, allowed)].pair
    version, machine = library_version(runtime), processor()
    choice = ChosenTarget(choice_path(folder).stem, runtime, precision, version, machine, head, plan.threads, rows)
    say(f"kept in {keep_choice(folder, choice)}")
    return choice


def carry_over(choice: ChosenTarget | None, bundle: Bundle) -> str:
    """Keeps a choice for a bundle in whose manifest accuracies were recorded since it was made.

    Returns:
        Why it is kept no longer; "" where it is, or nothing was chosen.
    """
    if choice is None:
        return ""
    try:
        why = loses_accuracy(bundle, (choice.runtime, choice.precision), choice.head)
        if not why:
            keep_choice(bundle.folder, structs.replace(choice, manifest=choice_path(bundle.folder).stem))
            return ""
    except (RefocusError, OSError) as error:
        why = str(error)
    return (
        f"the chosen target {choice.target} is used no longer: {why}; refocus bench --choose measures again, and"
        f" --runtime {choice.runtime} --precision {choice.precision} goes on with the histories of its features"
    )


def _timed(targets: Sequence[Target]) -> Timings:
    """A photo decoded before, to its remembered answer, of every target in turns."""
    with ExitStack() as stack:
        devices = {target.target_name: stack.enter_context(target.open("chosen")) for target in targets}
        actions = {target.target_name: partial(target.recognise, devices[target.target_name]) for target in targets}
        if len(actions) == 1:  # nothing to compare it with but itself
            ((name, action),) = actions.items()
            return Timings({name: interleave({name: action, "again": action}, ROUNDS).samples_ms[name]})
        return interleave(actions, ROUNDS)


def _rows(timings: Timings, order: Sequence[str], refused: dict[str, str]) -> Iterator[Measured]:
    for name in order:
        over = timings.ratio(name, order[0]) if name != order[0] else None
        ratio = (over.mean, over.low, over.high) if over is not None else None
        yield Measured(name, float(np.median(timings.samples_ms[name])), ratio, refused.get(name, ""))


def _fastest(rows: Sequence[Measured], default: str, allowed: Sequence[str]) -> str:
    """Of the allowed targets the one with the lowest ratio to the default; the default where none is surely faster."""
    ratios = {row.target: row.over_default or (1.0, 1.0, 1.0) for row in rows if row.target in allowed}
    if default not in ratios:
        return min(ratios, key=lambda name: ratios[name][0])
    faster = {name: ratio for name, ratio in ratios.items() if ratio[2] < 1}
    return min(faster, key=lambda name: faster[name][0], default=default)


def lines(choice: ChosenTarget) -> Iterator[str]:
    """The choice for people."""
    for row in choice.measured:
        over = row.over_default
        ratio = "the default" if over is None else f"{over[0]:.2f} ({over[1]:.2f} to {over[2]:.2f}) of the default"
        refused = f"; not taken: {row.refused}" if row.refused else ""
        yield f"{row.target}: p50 {row.p50_ms:.2f} ms, {ratio}{refused}"
    yield f"chosen: {choice.target}"
