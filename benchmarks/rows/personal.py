"""The axes of personalisation: how much history there is, how warm it is, whose it is, and what is swapped."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from refocus.benchmarks.document.schema import Conditions
from refocus.benchmarks.measure.target import Target
from refocus.benchmarks.rows.recorder import Table
from refocus.edge.bundle import NewWeights, model_of
from refocus.edge.errors import RefocusError
from refocus.edge.personal import PersonalWeightStore
from refocus.edge.recognize import Recognizer
from refocus.edge.taper import Bank

HISTORIES = (0, 1, 4, 16, 64, 256)
PROFILES = (1, 10, 100)
TASK_CLASSES = 20
CONDENSED = Conditions(min_queries=20, min_seconds=0.0, warm_up=2, least=20)


def history_length(table: Table) -> None:
    """A photo after 0, 1, … stored ones; nothing is remembered, so that each length stays."""
    target = table.target
    devices: dict[str, Recognizer] = {}
    for count in HISTORIES:
        device = target.open(f"length-{count}")
        target.fill(device, count)
        devices[str(count)] = device
    candidates: dict[str, Callable[[], object]] = {
        length: partial(target.recognise, device, remember=False) for length, device in devices.items()
    }
    table.time("history length", candidates, name="recogniser", over="0")
    for device in devices.values():
        device.close()


def cache(table: Table) -> None:
    """Head state kept in memory, and the same after it was lost: then the photo waits until it is computed again."""
    target = table.target
    with target.open_full("cache") as device:
        recognise = partial(target.recognise, device)
        before: dict[str, Callable[[], object]] = {"cold": lambda: lose(device), "warm": recognise}
        table.time("cache", {"warm": recognise, "cold": recognise}, before, over="warm")


def lose(device: Recognizer) -> None:
    """As after a restart: what the head keeps of the past in memory is gone."""
    for _ in device.replay(()):
        pass


def visit(target: Target, device: Recognizer, profile: Path) -> None:
    """One photo of a person, after a switch from another one or not."""
    device.switch(profile)
    target.recognise(device)


def fill_all(target: Target, device: Recognizer, profiles: Sequence[Path]) -> None:
    """Each profile with as many photos as it keeps."""
    for profile in profiles:
        device.switch(profile)
        target.fill(device, device.capacity)


def switching(table: Table) -> None:
    """The first photo of the day in a process that runs, the next one, and the first after somebody else's."""
    target = table.target
    people = [target.profile(name) for name in ("anna", "bob")]
    with target.open(None) as device:
        fill_all(target, device, people)
        turn = itertools.cycle(people)
        candidates: dict[str, Callable[[], object]] = {
            "next photo": lambda: target.recognise(device),
            "first photo of the day": lambda: visit(target, device, people[0]),
            "first photo after a switch": lambda: visit(target, device, next(turn)),
        }
        table.time("first photo", candidates, {"first photo of the day": device.leave}, over="next photo")


def profiles(table: Table) -> None:
    """Switching to one of many profiles on disk, and its first photo."""
    target = table.target
    target.open_full("0-model").close()
    stored = target.profile("0-model")
    devices: dict[str, tuple[Recognizer, list[str]]] = {}
    for count in PROFILES:
        names = [f"of-{count}-{number}" for number in range(count)]
        for name in names:
            shutil.copyfile(stored, target.profile(name))
        devices[str(count)] = target.open(None), names
    draw = random.Random(0)

    def switch(device: Recognizer, names: list[str]) -> None:
        visit(target, device, target.profile(draw.choice(names)))

    candidates: dict[str, Callable[[], object]] = {many: partial(switch, *pair) for many, pair in devices.items()}
    table.time("profiles", candidates, name="switch and photo", over="1")
    for device, _ in devices.values():
        device.close()


def prompts(table: Table) -> None:
    """Switching between two people whose personal weights are inputs of the programs."""
    target = table.target
    encoder = target.bundle.artifact("encoder", *target.pair)
    head = target.bundle.artifact("head", *target.pair, target.head)
    defaults = {**target.bundle.defaults(encoder), **target.bundle.defaults(head)}
    if not defaults:
        table.lacks("prompt swap", "its programs take no personal weights as inputs")
        return
    weights = PersonalWeightStore(target.scratch / "weights")
    people = ("carla", "david")
    for number, person in enumerate(people):
        own = {name: np.ascontiguousarray(value * np.float32(1 + number / 100)) for name, value in defaults.items()}
        weights.put(person, model_of(encoder, head), NewWeights("inputs", "bench", own))
    with target.open(None, weights=weights) as device:
        profiles_of = [target.profile(person) for person in people]
        fill_all(target, device, profiles_of)
        turn = itertools.cycle(profiles_of)
        candidates: dict[str, Callable[[], object]] = {
            "next photo": lambda: target.recognise(device),
            "swap of prompts, then a photo": lambda: visit(target, device, next(turn)),
        }
        table.time("prompt swap", candidates, over="next photo")


def condensing(table: Table) -> None:
    """A personal bundle from a bank, for a task of a few classes."""
    target = table.target
    if target.bundle.manifest.bank is None:
        table.lacks("condensing", "it is no bank")
        return
    bank = Bank.open(target.bundle.folder)
    task = bank.task(bank.labels[:TASK_CLASSES])
    out = target.scratch / "condensed"
    condense: dict[str, Callable[[], object]] = {"condense": lambda: bank.condense(task, out, [target.target_name])}
    try:
        table.time("condensing", condense, conditions=CONDENSED)
    except RefocusError as error:
        table.lacks("condensing", str(error))
