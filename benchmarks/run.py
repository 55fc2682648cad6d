"""``refocus bench``: the whole table of one or more bundles, group by group; what fails is told and never stops it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from refocus.benchmarks.devices import cuda
from refocus.benchmarks.devices.host import Device, Meter, open_device
from refocus.benchmarks.devices.machine import REFOCUS, versions
from refocus.benchmarks.document.schema import Accuracy, BenchError, Conditions, Document, Energy, Memory, Missing, Ran
from refocus.benchmarks.measure.accuracy import evaluate as judge_accuracy
from refocus.benchmarks.measure.accuracy import read_labelled, runnable, summarise
from refocus.benchmarks.measure.machine_monitor import EVERY_S
from refocus.benchmarks.measure.target import Album, Target, check_names, read_album
from refocus.benchmarks.measure.timer import DEFAULT, QUICK
from refocus.benchmarks.rows import cold_start as fresh
from refocus.benchmarks.rows import personal, stages
from refocus.benchmarks.rows.recorder import Table
from refocus.edge.bundle import Bundle, load_bundle
from refocus.edge.errors import RefocusError

QUICK_TABLE_S = 210.0  # for all rows of a quick table, so that loading, starting and accuracy fit into five minutes
ROWS_OF_TARGET = 40
Group = Callable[[Table], None]
GROUPS: dict[str, Group] = {
    "stages": stages.stages,
    "overhead": stages.overhead,
    "history length": personal.history_length,
    "cache": personal.cache,
    "first photo": personal.switching,
    "profiles": personal.profiles,
    "prompt swap": personal.prompts,
    "condensing": personal.condensing,
    "threads": stages.threads,
    "batch and album": stages.batches,
}
OTHERS = ("start", "memory", "energy", "accuracy", "encoder on the device")


@dataclass(frozen=True)
class Labelled:
    """Labelled photos for the accuracy beside the times: folder or zip with ``metadata.csv``, and its columns."""

    data: Path
    person: str = "client"
    label: str = "label"
    split: str = ""
    photos_per_person: int = 64


@dataclass(frozen=True)
class Plan:
    """What is measured, and how long.

    Attributes:
        runtimes, precisions: of each bundle's targets, those; empty: all that run here.
        only: groups; empty: all.
        starts: fresh processes.
        photos: see :func:`refocus.benchmarks.measure.target.read_album`.
    """

    conditions: Conditions = DEFAULT
    mode: Literal["quick", "default", "custom"] = "default"
    runtimes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    starts: int = fresh.TIMES_ALL
    photos: Path | None = None
    labelled: Labelled | None = None
    head: str = ""
    device: str = "cpu"
    provider: str = ""
    allow_fallback: bool = True
    threads: int = 1

    def __post_init__(self) -> None:
        unknown = sorted(set(self.only) - {*GROUPS, *OTHERS})
        if unknown:
            raise BenchError(f"--only {', '.join(unknown)}: expected some of {', '.join((*GROUPS, *OTHERS))}")

    def wants(self, group: str) -> bool:
        return not self.only or group in self.only


def quick(plan: Plan, targets: int) -> Plan:
    """The plan of a whole table in five minutes: few samples, and no row may take long."""
    most = max(1.0, QUICK_TABLE_S / (ROWS_OF_TARGET * max(1, targets)))
    conditions = msgspec.structs.replace(QUICK, max_seconds=most, min_seconds=min(1.0, most))
    return replace(plan, conditions=conditions, mode="quick", starts=fresh.NEEDED)


def names_of(folders: Sequence[Path]) -> list[str]:
    """What each bundle is called in the document: its folder's name, with the folder above where that is not enough."""
    short = [folder.resolve().name for folder in folders]
    longer = ["/".join(folder.resolve().parts[-2:]) for folder in folders]
    return [long if short.count(name) > 1 else name for name, long in zip(short, longer, strict=True)]


def subjects(folders: Sequence[Path], plan: Plan, scratch: Path, missing: list[Missing]) -> Iterator[Target]:
    """One per bundle and target that runs here; what does not is added to ``missing``.

    Raises:
        BundleError: a folder is no bundle.
        BenchError: nothing can run, or two bundles have one name.
    """
    names = names_of(folders)
    check_names(names)
    bundles = [load_bundle(folder) for folder in folders]
    albums: list[Album] = [read_album(bundle, plan.photos) for bundle in bundles]
    for name, bundle, album in zip(names, bundles, albums, strict=True):
        for target in _targets(name, bundle, plan, missing):
            place = scratch / f"{name}-{'-'.join(target)}".replace("/", "-")
            place.mkdir()
            yield Target(
                name, bundle, target, album, place, plan.head, plan.provider, plan.allow_fallback, plan.threads
            )


def _targets(name: str, bundle: Bundle, plan: Plan, missing: list[Missing]) -> list[tuple[str, str]]:
    can, cannot = runnable(bundle, plan.head)
    missing += [Missing(what=f"{name} {target}", why=why) for target, why in cannot.items()]
    wanted = [
        (runtime, precision)
        for runtime, precision in can
        if (not plan.runtimes or runtime in plan.runtimes) and (not plan.precisions or precision in plan.precisions)
    ]
    if not wanted:
        has = ", ".join(":".join(target) for target in can) or "nothing"
        raise BenchError(f"{bundle.folder}: nothing of what was asked for can run here; {has} can")
    return wanted


def run(
    folders: Sequence[Path],
    plan: Plan,
    scratch: Path,
    command: str,
    say: Callable[[str], object] = lambda _: None,
    keep: Callable[[Document], object] = lambda _: None,
) -> Document:
    """Measures everything that the plan asks for.

    Args:
        folders: of the bundles.
        scratch: an empty folder, for profiles.
        command: for the document.
        say: is told what is being measured.
        keep: is given the document after each target, so that a run that is stopped keeps what it has.

    Raises:
        BenchError: as :func:`subjects`; everything later is told in ``missing`` instead.
    """
    begun, started = time.perf_counter(), datetime.now(timezone.utc)
    missing: list[Missing] = []
    with open_device(plan.device) as device:
        plan = replace(plan, provider=plan.provider or device.provider)
        chosen = list(subjects(folders, plan, scratch, missing))
        if plan.mode == "quick":
            plan = quick(plan, len(chosen))
        document = Document(
            command=command,
            refocus=versions((REFOCUS,)).get(REFOCUS, "unknown"),
            mode=plan.mode,
            seconds=0.0,
            started=started.isoformat(timespec="seconds"),
            machine=device.machine,
            photos=chosen[0].album.about,
            missing=tuple(missing),
        )
        for subject in chosen:
            found = _Found(Table(subject, device.machine, plan.conditions, partial(device.watch, EVERY_S)), device)
            found.measure(plan, say)
            document = found.added_to(document, time.perf_counter() - begun)
            keep(document)
    return document


class _Found:
    """What one subject gave."""

    def __init__(self, table: Table, device: Device) -> None:
        self.table, self.device = table, device
        self.ran: list[Ran] = []
        self.memory: list[Memory] = []
        self.energy: list[Energy] = []
        self.accuracy: list[Accuracy] = []

    def added_to(self, document: Document, seconds: float) -> Document:
        return msgspec.structs.replace(
            document,
            ran=(*document.ran, *self.ran),
            rows=(*document.rows, *self.table.rows),
            ratios=(*document.ratios, *self.table.ratios),
            memory=(*document.memory, *self.memory),
            energy=(*document.energy, *self.energy),
            accuracy=(*document.accuracy, *self.accuracy),
            missing=(*document.missing, *self.table.missing),
            seconds=seconds,
        )

    def measure(self, plan: Plan, say: Callable[[str], object]) -> None:
        """Every group; one that fails is named among what is missing."""
        try:
            self.ran.append(self.table.subject.ran())
        except RefocusError as error:  # it does not run on the provider that was asked for
            self.table.lacks("everything", str(error))
            return
        steps: dict[str, Callable[[], None]] = {
            "start": lambda: fresh.starts(self.table, plan.starts),
            "memory": lambda: self.memory.append(fresh.memory(self.table)),
            **{name: partial(group, self.table) for name, group in GROUPS.items()},
            "energy": lambda: self.energy.append(_energy(self.table, self.device.meter())),
        }
        if plan.device != "cpu":
            steps["encoder on the device"] = partial(cuda.split, self.table)
        if plan.labelled is not None:
            labelled = plan.labelled
            steps["accuracy"] = lambda: self.accuracy.append(_accuracy(self.table.subject, labelled))
        elif plan.wants("accuracy"):
            self.table.lacks("accuracy", "no labelled photos were given (--accuracy)")
        for name, step in steps.items():
            if plan.wants(name):
                say(f"{self.table.subject.name} {self.table.subject.target_name}: {name}")
                try:
                    step()
                except (RefocusError, OSError) as error:
                    self.table.lacks(name, str(error))


def _energy(table: Table, meter: Meter) -> Energy:
    """Of the whole, for as long as a row lasts."""
    subject = table.subject
    nothing = Energy(bundle=subject.name, target=subject.target_name, source=meter.source)
    if meter.source.startswith("not measured"):
        return nothing
    photos, seconds = 0, max(1.0, min(10.0, table.conditions.max_seconds))
    with subject.open("energy") as device:
        begin = time.perf_counter()

        def work() -> None:
            nonlocal photos
            while time.perf_counter() - begin < seconds:
                device.recognize(subject.album.next(), "photo")
                photos += 1

        joules = meter.joules(work)
    if joules is None:
        return nothing
    return msgspec.structs.replace(nothing, joules=joules, watts=joules / seconds, joules_per_photo=joules / photos)


def _accuracy(subject: Target, labelled: Labelled) -> Accuracy:
    photos = read_labelled(labelled.data, labelled.person, labelled.label, labelled.split, labelled.photos_per_person)
    judged = judge_accuracy(subject.bundle, photos, [subject.target], subject.head, subject.threads)
    (row,) = summarise(judged, photos)["rows"]
    return Accuracy(
        bundle=subject.name,
        target=subject.target_name,
        data=f"{photos.name} {photos.fingerprint[:12]}",
        photos=sum(len(rows) for rows in photos.people.values()),
        people=len(photos.people),
        with_history=row["delivered"],
        photo_alone=row["plain"],
        worst_decile=row["worst_decile"],
    )
