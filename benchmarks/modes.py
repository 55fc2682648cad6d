"""Other runs than the table: one load for a long time, and two bundles in turns."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from refocus.benchmarks.devices.host import Device, open_device
from refocus.benchmarks.devices.machine import new_document
from refocus.benchmarks.document.schema import BenchError, Conditions, Document, Missing, Mode, Paired
from refocus.benchmarks.measure import paired
from refocus.benchmarks.measure.machine_monitor import EVERY_S, StartBelow
from refocus.benchmarks.measure.target import Target
from refocus.benchmarks.rows.recorder import Table
from refocus.benchmarks.run import Plan, targets_of
from refocus.edge.recognize import Recognizer

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)")
_CELSIUS = re.compile(r"(\d+(?:\.\d+)?) ?°?[Cc]?")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
LOOK_EVERY_S = 1.0  # half an hour has 1800 observations


def start_below(celsius: str, within: str) -> StartBelow:
    """``37C`` and ``10m`` as a limit of the temperature at the start of a row.

    Raises:
        BenchError: they are not.
    """
    found = _CELSIUS.fullmatch(celsius)
    if not found:
        raise BenchError(f"--start-below {celsius}: expected degrees Celsius as 37C")
    return StartBelow(float(found[1]), duration_seconds(within, "--start-within"))


def duration_seconds(text: str, option: str = "--sustained") -> float:
    """``90s``, ``30m`` or ``1h`` in seconds.

    Raises:
        BenchError: it is none of these.
    """
    found = _DURATION.fullmatch(text)
    if not found:
        raise BenchError(f"{option} {text}: expected a duration as 90s, 30m or 1h")
    return float(found[1]) * _SECONDS[found[2]]


def sustained_plan(plan: Plan, seconds: float) -> Plan:
    """The plan of one load for so long."""
    wanted = Conditions(min_queries=1, min_seconds=seconds, max_seconds=2 * seconds)
    return replace(plan, conditions=wanted, mode="sustained")


def sustained(folders: Sequence[Path], plan: Plan, scratch: Path, command: str, seconds: float) -> Document:
    """Sustained load: photos recognised one after another for ``seconds``, for each target of each bundle in turn."""
    began, missing = time.perf_counter(), list[Missing]()
    plan = sustained_plan(plan, seconds)
    with open_device(plan.device, plan.start_below) as device:
        plan = replace(plan, provider=plan.provider or device.provider)
        tables = []
        for target in list(targets_of(folders, plan, scratch, missing)):
            table = Table(target, device.machine, plan.conditions, partial(device.monitor, LOOK_EVERY_S))
            with target.open_full("sustained") as recognizer:
                whole = partial(_whole, recognizer, target)
                table.time("sustained", {"whole": whole})
            tables.append(table)
    return _document(command, "sustained", began, missing, tables)


def _whole(recognizer: Recognizer, target: Target) -> object:
    return recognizer.recognize(target.album.next(), "photo")


def pair(
    folders: Sequence[Path],
    plan: Plan,
    scratch: Path,
    command: str,
    say: Callable[[str], object] = lambda _: None,
) -> Document:
    """Two bundles' wholes in turns.

    Args:
        say: is told which target is measured, where others were possible.

    Raises:
        BenchError: not two bundles, or they have no target in common that runs here.
    """
    if len(folders) != 2:
        raise BenchError(f"--paired compares two bundles, A and B; {len(folders)} were given")
    with open_device(plan.device, plan.start_below) as device:
        return _pair(folders, replace(plan, provider=plan.provider or device.provider), scratch, command, device, say)


def _pair(
    folders: Sequence[Path], plan: Plan, scratch: Path, command: str, device: Device, say: Callable[[str], object]
) -> Document:
    began, missing = time.perf_counter(), list[Missing]()
    a, b = (_one_of(folder, plan, scratch / side, missing) for folder, side in zip(folders, "AB", strict=True))
    common = [target for target in a if target in b]
    if not common:
        raise BenchError(
            f"A runs {', '.join(map(':'.join, a))} here and B {', '.join(map(':'.join, b))}: nothing in"
            " common; choose with --runtime and --precision"
        )
    if len(a) > 1 or len(b) > 1:
        say(_which(a, b, common))
    one, other = a[common[0]], b[common[0]]
    one.name, other.name = f"A {one.name}", f"B {other.name}"
    how = paired.QUICK if plan.mode == "quick" else paired.Plan()
    if plan.mode == "custom":
        how = paired.Plan(pairs=-(-plan.conditions.min_queries // how.loads), min_seconds=plan.conditions.min_seconds)
    found = paired.compare(loaded(one), loaded(other), how, partial(device.monitor, EVERY_S))
    wanted = Conditions(min_queries=how.loads * how.pairs, min_seconds=how.min_seconds * 0.9)
    tables = [Table(target, device.machine, wanted) for target in (one, other)]
    for table, series in zip(tables, (found.a, found.b), strict=True):
        table.add("paired", series, "whole")
    result = Paired(
        a=one.name,
        b=other.name,
        loads=how.loads,
        pairs=min(len(found.a.samples_ms), len(found.b.samples_ms)) // how.loads,
        **{name: getattr(found, name) for name in ("answer", "sentence", "ratio", "low", "high", "by_load")},
    )
    return _document(command, "paired", began, missing, tables, paired=result)


def _which(a: Iterable[tuple[str, str]], b: Iterable[tuple[str, str]], common: Sequence[tuple[str, str]]) -> str:
    """The target that two bundles are compared by, though nobody asked for it alone."""
    here = "; ".join(f"{name} runs {', '.join(map(':'.join, each))} here" for name, each in (("A", a), ("B", b)))
    which = "the only target" if len(common) == 1 else "the first target"
    return f"{':'.join(common[0])} is measured, {which} in common ({here}); --runtime and --precision choose"


def _one_of(folder: Path, plan: Plan, scratch: Path, missing: list[Missing]) -> dict[tuple[str, str], Target]:
    scratch.mkdir()
    return {target.pair: target for target in targets_of([folder], plan, scratch, missing)}


def loaded(target: Target) -> paired.Open:
    """Loads a bundle's recogniser, with a profile that is as full as the head looks back, and gives its whole."""
    full = target.profile("full")
    with target.open("full") as device:
        target.fill(device, device.window)

    numbers = itertools.count()

    @contextlib.contextmanager
    def open_it() -> Iterator[Callable[[], object]]:
        own = f"paired-{next(numbers)}"
        shutil.copyfile(full, target.profile(own))
        with target.open(own) as device:
            yield partial(_whole, device, target)
        target.profile(own).unlink()

    return open_it


def _document(
    command: str, mode: Mode, began: float, missing: Sequence[Missing], tables: Sequence[Table], **found: Any
) -> Document:
    about, machine = tables[0].target.album.about, tables[0].machine
    ran = [table.target.ran() for table in tables]
    document = new_document(command, mode, machine, about, began, missing=tuple(missing), ran=tuple(ran), **found)
    for table in tables:
        document = table.added_to(document)
    return document
