"""``refocus bench``: the whole table of one or more bundles, group by group; what fails is told and never stops it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from refocus.benchmarks.devices import cuda
from refocus.benchmarks.devices.energy import energy_of
from refocus.benchmarks.devices.host import Device, open_device
from refocus.benchmarks.devices.machine import new_document
from refocus.benchmarks.document.schema import Accuracy, BenchError, Conditions, Document, Energy, Missing, Mode
from refocus.benchmarks.measure.accuracy import evaluate, read_labelled, runnable, summarise, without_training_photos
from refocus.benchmarks.measure.machine_monitor import EVERY_S, StartBelow
from refocus.benchmarks.measure.target import Target, fastest, options_of, read_album, refused
from refocus.benchmarks.measure.timer import DEFAULT, QUICK
from refocus.benchmarks.rows import cold_start, personal, stages
from refocus.benchmarks.rows.recorder import Table
from refocus.edge.bundle import Bundle, find_precision, find_runtime, load_bundle
from refocus.edge.errors import RefocusError

QUICK_TABLE_S = 210.0  # for all rows of a quick table, so that loading, starting and accuracy fit into five minutes
ROWS_OF_TARGET = 40

logger = logging.getLogger(__name__)


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
        start_below: wait for a cool device before each row.
        head_target: program of the head, as of :class:`refocus.edge.Recognizer`.
    """

    conditions: Conditions = DEFAULT
    mode: Mode = "default"
    runtimes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    starts: int = cold_start.TIMES_ALL
    photos: Path | None = None
    labelled: Labelled | None = None
    head: str = ""
    device: str = "cpu"
    provider: str = ""
    allow_fallback: bool = True
    threads: int = 1
    start_below: StartBelow | None = None
    head_target: str = ""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.only) - {*GROUPS})
        if unknown:
            raise BenchError(f"--only {', '.join(unknown)}: expected some of {', '.join(GROUPS)}")

    def wants(self, group: str) -> bool:
        return not self.only or group in self.only


Group = Callable[[Table, Plan, Device], None]


def quick(plan: Plan, targets: int) -> Plan:
    """Measurement plan of ``--quick``: fewer samples and a time limit per row, about five minutes in all."""
    most = max(1.0, QUICK_TABLE_S / (ROWS_OF_TARGET * max(1, targets)))
    conditions = msgspec.structs.replace(QUICK, max_seconds=most, min_seconds=min(1.0, most))
    return replace(plan, conditions=conditions, mode="quick", starts=cold_start.NEEDED)


def names_of(folders: Sequence[Path]) -> list[str]:
    """What each bundle is called in the document: its folder's name, with the folder above where that is not enough.

    Raises:
        BenchError: two could not be told apart in the document.
    """
    short = [folder.resolve().name for folder in folders]
    longer = ["/".join(folder.resolve().parts[-2:]) for folder in folders]
    names = [long if short.count(name) > 1 else name for name, long in zip(short, longer, strict=True)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BenchError(f"two bundles are called {', '.join(twice)}; rename the folder of one of them")
    return names


def targets_of(folders: Sequence[Path], plan: Plan, scratch: Path, missing: list[Missing]) -> Iterator[Target]:
    """One per bundle and target that runs here; what does not is added to ``missing``.

    Raises:
        BundleError: a folder is not a bundle.
        BenchError: nothing can run, or two bundles have one name.
    """
    names = names_of(folders)
    bundles = [load_bundle(folder) for folder in folders]
    albums = [read_album(bundle, plan.photos) for bundle in bundles]
    for name, bundle, album in zip(names, bundles, albums, strict=True):
        for target in _targets(name, bundle, plan, missing):
            place = scratch / f"{name}-{'-'.join(target)}".replace("/", "-")
            place.mkdir()
            yield Target(name, bundle, target, album, place, **options_of(plan))


def _targets(name: str, bundle: Bundle, plan: Plan, missing: list[Missing]) -> list[tuple[str, str]]:
    runtimes = {find_runtime(name) for name in plan.runtimes}

    def wanted(target: tuple[str, str]) -> bool:
        runtime, precision = target
        return (not runtimes or runtime in runtimes) and (
            not plan.precisions or bool(find_precision(precision, plan.precisions))
        )

    can, cannot = runnable(bundle, plan.head, behind=False, threads=plan.threads, wanted=wanted)
    missing += [Missing(what=f"{name} {target}", why=why) for target, why in cannot.items()]
    if not can:
        others, _ = runnable(bundle, plan.head, behind=False, threads=plan.threads)
        has = ", ".join(":".join(target) for target, _ in others) or "nothing"
        raise BenchError(f"{bundle.folder}: none of the requested targets can run on this machine; {has} can")
    return [target for target, _ in can]


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
        keep: is given the document after each target, also after one whose groups fail or are stopped, so that
            what was measured is kept.

    Raises:
        BenchError: as :func:`targets_of`; everything later is told in ``missing`` instead.
    """
    began, missing = time.perf_counter(), list[Missing]()
    with open_device(plan.device, plan.start_below) as device:
        plan = replace(plan, provider=plan.provider or device.provider)
        chosen = list(targets_of(folders, plan, scratch, missing))
        if plan.mode == "quick":
            plan = quick(plan, len(chosen))
        about = chosen[0].album.about
        document = new_document(command, plan.mode, device.machine, about, began, missing=tuple(missing))
        for target in chosen:
            table = Table(target, device.machine, plan.conditions, partial(device.monitor, EVERY_S))
            try:
                _measure(table, plan, device, say)
            finally:  # what was measured is kept where a group is stopped, or fails as nobody foresaw
                seconds = time.perf_counter() - began
                document = msgspec.structs.replace(table.added_to(document), seconds=seconds)
                document = msgspec.structs.replace(document, fastest=(*fastest(chosen, document),))
                keep(document)
    return document


def _measure(table: Table, plan: Plan, device: Device, say: Callable[[str], object]) -> None:
    """Every group; one that fails is named among what is missing."""
    try:
        ran = table.target.ran()
    except RefocusError as error:  # it does not run at all
        table.lacks("everything", str(error))
        return
    table.ran.append(ran)
    if not plan.allow_fallback and (why := refused(ran)):
        table.lacks("everything", why)
        return
    for name, measure in GROUPS.items():
        if plan.wants(name):
            say(f"{table.bundle} {table.target_name}: {name}")
            try:
                measure(table, plan, device)
            except (RefocusError, OSError) as error:
                table.lacks(name, str(error))


def _energy(table: Table, plan: Plan, device: Device) -> None:
    """Of the whole, for as long as a row lasts."""
    target, seconds = table.target, max(1.0, min(10.0, table.conditions.max_seconds))
    with target.open("energy") as recognizer:
        found = energy_of(device.meter, lambda: recognizer.recognize(target.album.next(), "photo"), seconds)
    table.energy.append(Energy(bundle=table.bundle, target=table.target_name, **found))


def _accuracy(table: Table, plan: Plan, device: Device) -> None:
    if plan.labelled is None:
        table.lacks("accuracy", "no labelled photos were given (--accuracy)")
        return
    target, given = table.target, plan.labelled
    photos = read_labelled(given.data, given.person, given.label, given.split, given.photos_per_person)
    photos, who = without_training_photos(photos, target.bundle, target.head)
    logger.warning(who)
    evaluated = evaluate(
        target.bundle,
        photos,
        [target.pair],
        target.head,
        target.threads,
        heads=[target.head_target],
        provider=target.provider,
        allow_fallback=target.allow_fallback,
    )
    document = summarise(evaluated, photos)
    about, (row,) = document["accuracy_of_targets"], document["rows"]
    table.accuracy.append(
        Accuracy(
            bundle=table.bundle,
            target=table.target_name,
            data=f"{photos.name} {photos.fingerprint[:12]}",
            photos=about["photos"],
            people=about["people"],
            with_history=row["delivered"],
            photo_alone=row["plain"],
            worst_decile=row["worst_decile"],
        )
    )


def _of(measure: Callable[[Table], None]) -> Group:
    """A group that needs its table alone."""
    return lambda table, plan, device: measure(table)


GROUPS: dict[str, Group] = {
    "start": lambda table, plan, device: cold_start.starts(table, plan.starts),
    "memory": _of(cold_start.memory),
    "stages": _of(stages.stages),
    "overhead": _of(stages.overhead),
    "history length": _of(personal.history_length),
    "cache": _of(personal.cache),
    "first photo": _of(personal.switching),
    "profiles": _of(personal.profiles),
    "prompt swap": _of(personal.prompts),
    "condensing": _of(personal.condensing),
    "threads": _of(stages.threads),
    "batch and album": _of(stages.batches),
    "energy": _energy,
    "encoder on the device": lambda table, plan, device: cuda.split(table) if plan.device != "cpu" else None,
    "accuracy": _accuracy,
}
