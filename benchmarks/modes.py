"""Other runs than the table: one load for a long time, and two bundles in turns."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from refocus.benchmarks.devices.host import Device, open_device
from refocus.benchmarks.devices.machine import REFOCUS, versions
from refocus.benchmarks.document.schema import BenchError, Conditions, Document, Machine, Missing, Paired
from refocus.benchmarks.measure import paired
from refocus.benchmarks.measure.machine_monitor import EVERY_S
from refocus.benchmarks.measure.target import Target
from refocus.benchmarks.measure.timer import Series, measure
from refocus.benchmarks.rows.recorder import Table
from refocus.benchmarks.run import Plan, subjects

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
LOOK_EVERY_S = 1.0  # half an hour has 1800 observations


def duration_seconds(text: str) -> float:
    """``90s``, ``30m`` or ``1h`` in seconds.

    Raises:
        BenchError: it is none of these.
    """
    found = _DURATION.fullmatch(text)
    if not found:
        raise BenchError(f"--sustained {text}: expected a duration as 90s, 30m or 1h")
    return float(found[1]) * _SECONDS[found[2]]


def sustained(folders: Sequence[Path], plan: Plan, scratch: Path, command: str, seconds: float) -> Document:
    """The whole, photo after photo, for a given time; every target of every bundle, one after the other."""
    began, missing = time.perf_counter(), list[Missing]()
    with open_device(plan.device) as device:
        plan = replace(plan, provider=plan.provider or device.provider)
        chosen = list(subjects(folders, plan, scratch, missing))
        tables = []
        for subject in chosen:
            wanted = Conditions(min_queries=1, min_seconds=seconds, max_seconds=2 * seconds)
            table = Table(subject, device.machine, wanted, partial(device.watch, LOOK_EVERY_S))
            table.add("sustained", _photo_after_photo(subject, table), "whole")
            tables.append(table)
        document = _begin(plan, command, "sustained", chosen[0], missing, device.machine)
    return _end(document, began, chosen, tables)


def _photo_after_photo(subject: Target, table: Table) -> Series:
    with subject.open("sustained") as device:
        subject.fill(device, device.keeping.capacity, subject.features(device))
        whole = {"whole": lambda: device.recognize(subject.album.next(), "photo")}
        return measure(whole, table.conditions, table.watch())["whole"]


def pair(folders: Sequence[Path], plan: Plan, scratch: Path, command: str) -> Document:
    """Two bundles' wholes in turns.

    Raises:
        BenchError: not two bundles, or they have no target in common that runs here.
    """
    if len(folders) != 2:
        raise BenchError(f"--paired compares two bundles, A and B; {len(folders)} were given")
    with open_device(plan.device) as device:
        return _pair(folders, replace(plan, provider=plan.provider or device.provider), scratch, command, device)


def _pair(folders: Sequence[Path], plan: Plan, scratch: Path, command: str, device: Device) -> Document:
    began, missing = time.perf_counter(), list[Missing]()
    a, b = (_one_of(folder, plan, scratch / side, missing) for folder, side in zip(folders, "AB", strict=True))
    common = [target for target in a if target in b]
    if not common:
        raise BenchError(
            f"A runs {', '.join(map(':'.join, a))} here and B {', '.join(map(':'.join, b))}: nothing in"
            " common; choose with --runtime and --precision"
        )
    one, other = a[common[0]], b[common[0]]
    one.name, other.name = f"A {one.name}", f"B {other.name}"
    how = paired.QUICK if plan.mode == "quick" else paired.Plan()
    if plan.mode == "custom":
        how = paired.Plan(pairs=-(-plan.conditions.min_queries // how.loads), min_seconds=plan.conditions.min_seconds)
    found = paired.compare(loaded(one), loaded(other), how, partial(device.watch, EVERY_S))
    document = _begin(plan, command, "paired", one, missing, device.machine)
    tables = []
    for subject, series in ((one, found.a), (other, found.b)):
        table = Table(
            subject, document.machine, Conditions(min_queries=how.loads * how.pairs, min_seconds=how.min_seconds * 0.9)
        )
        table.add("paired", series, "whole")
        tables.append(table)
    document = _end(document, began, [one, other], tables)
    return _with(
        document,
        paired=Paired(
            a=one.name,
            b=other.name,
            answer=found.answer,
            sentence=found.sentence,
            ratio=found.ratio,
            low=found.low,
            high=found.high,
            loads=how.loads,
            pairs=min(len(found.a.samples_ms), len(found.b.samples_ms)) // how.loads,
            by_load=found.by_load,
        ),
    )


def _one_of(folder: Path, plan: Plan, scratch: Path, missing: list[Missing]) -> dict[tuple[str, str], Target]:
    scratch.mkdir()
    return {subject.target: subject for subject in subjects([folder], plan, scratch, missing)}


def loaded(subject: Target) -> paired.Open:
    """Loads a bundle's recogniser, with a profile that is as full as the head looks back, and gives its whole."""
    full = subject.profile("full")
    with subject.open("full") as device:
        subject.fill(device, device.window, subject.features(device))

    numbers = itertools.count()

    @contextlib.contextmanager
    def open_it() -> Iterator[Callable[[], object]]:
        own = f"paired-{next(numbers)}"
        shutil.copyfile(full, subject.profile(own))
        with subject.open(own) as device:
            yield lambda: device.recognize(subject.album.next(), "photo")
        subject.profile(own).unlink()

    return open_it


def _begin(
    plan: Plan,
    command: str,
    mode: Literal["sustained", "paired"],
    subject: Target,
    missing: list[Missing],
    machine: Machine,
) -> Document:
    return Document(
        command=command,
        refocus=versions((REFOCUS,)).get(REFOCUS, "unknown"),
        mode=mode,
        seconds=0.0,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine,
        photos=subject.album.about,
        missing=tuple(missing),
    )


def _end(document: Document, began: float, chosen: Sequence[Target], tables: Sequence[Table]) -> Document:
    return _with(
        document,
        ran=tuple(subject.ran() for subject in chosen),
        seconds=time.perf_counter() - began,
        rows=tuple(row for table in tables for row in table.rows),
    )


def _with(document: Document, **changes: Any) -> Document:
    return msgspec.structs.replace(document, **changes)
