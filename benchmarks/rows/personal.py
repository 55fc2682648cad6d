"""The axes of personalisation: how much history there is, how warm it is, whose it is, and what is swapped."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable
from functools import partial

import numpy as np

from refocus.benchmarks.document.schema import Conditions
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
    subject = table.subject
    devices: dict[str, Recognizer] = {}
    for count in HISTORIES:
        device = subject.open(f"length-{count}")
        subject.fill(device, count, subject.features(device))
        devices[str(count)] = device
    candidates: dict[str, Callable[[], object]] = {
        length: partial(subject.recognise, device, remember=False) for length, device in devices.items()
    }
    found = table.time("history length", candidates, name="recogniser")
    for length in [*found][1:]:
        table.ratio("history length", found, length, "0")
    for device in devices.values():
        device.close()


def cache(table: Table) -> None:
    """What the head keeps in memory of the past, warm; and lost, so that the photo waits until it is computed again."""
    subject = table.subject
    with subject.open("cache") as device:
        subject.fill(device, device.keeping.capacity, subject.features(device))
        found = table.time(
            "cache",
            {
                "warm": lambda: subject.recognise(device),
                "cold": lambda: subject.recognise(device),
            },
            {"cold": lambda: lose(device), "warm": lambda: subject.recognise(device)},
        )
    table.ratio("cache", found, "cold", "warm")


def lose(device: Recognizer) -> None:
    """As after a restart: what the head keeps of the past in memory is gone."""
    for _ in device.replay(()):
        pass


def switching(table: Table) -> None:
    """The first photo of the day in a process that runs, the next one, and the first after somebody else's."""
    subject = table.subject
    people = [subject.profile(name) for name in ("anna", "bob")]
    with subject.open(None) as device:
        for person in people:
            device.switch(person)
            subject.fill(device, device.keeping.capacity, subject.features(device))
        turn = itertools.cycle(people)

        def first() -> None:
            device.switch(people[0])
            subject.recognise(device)

        def other() -> None:
            device.switch(next(turn))
            subject.recognise(device)

        found = table.time(
            "first photo",
            {
                "next photo": lambda: subject.recognise(device),
                "first photo of the day": first,
                "first photo after a switch": other,
            },
            {"first photo of the day": device.leave},
        )
    for name in ("first photo of the day", "first photo after a switch"):
        table.ratio("first photo", found, name, "next photo")


def profiles(table: Table) -> None:
    """Switching to one of many profiles on disk, and its first photo."""
    subject = table.subject
    with subject.open("0-model") as device:
        subject.fill(device, device.keeping.capacity, subject.features(device))
    stored = subject.profile("0-model")
    devices: dict[str, tuple[Recognizer, list[str]]] = {}
    for count in PROFILES:
        names = [f"of-{count}-{number}" for number in range(count)]
        for name in names:
            shutil.copyfile(stored, subject.profile(name))
        devices[str(count)] = subject.open(None), names
    draw = random.Random(0)

    def one(device: Recognizer, names: list[str]) -> Callable[[], None]:
        def visit() -> None:
            device.switch(subject.profile(draw.choice(names)))
            subject.recognise(device)

        return visit

    found = table.time("profiles", {many: one(*pair) for many, pair in devices.items()}, name="switch and photo")
    for many in [*found][1:]:
        table.ratio("profiles", found, many, "1")
    for device, _ in devices.values():
        device.close()


def prompts(table: Table) -> None:
    """Switching between two people whose personal weights are inputs of the programs."""
    subject = table.subject
    encoder = subject.bundle.artifact("encoder", *subject.target)
    head = subject.bundle.artifact("head", *subject.target, subject.head)
    defaults = {**subject.bundle.defaults(encoder), **subject.bundle.defaults(head)}
    if not defaults:
        table.lacks("prompt swap", "its programs take no personal weights as inputs")
        return
    weights = PersonalWeightStore(subject.scratch / "weights")
    people = ("carla", "david")
    for number, person in enumerate(people):
        own = {name: np.ascontiguousarray(value * np.float32(1 + number / 100)) for name, value in defaults.items()}
        weights.put(person, model_of(encoder, head), NewWeights("inputs", "bench", own))
    with subject.open(None, weights=weights) as device:
        profiles_of = [subject.profile(person) for person in people]
        for profile in profiles_of:
            device.switch(profile)
            subject.fill(device, device.keeping.capacity, subject.features(device))
        turn = itertools.cycle(profiles_of)

        def swap() -> None:
            device.switch(next(turn))
            subject.recognise(device)

        found = table.time(
            "prompt swap",
            {
                "next photo": lambda: subject.recognise(device),
                "swap of prompts, then a photo": swap,
            },
        )
    table.ratio("prompt swap", found, "swap of prompts, then a photo", "next photo")


def condensing(table: Table) -> None:
    """A personal bundle from a bank, for a task of a few classes."""
    subject = table.subject
    if subject.bundle.manifest.bank is None:
        table.lacks("condensing", "it is no bank")
        return
    bank = Bank.open(subject.bundle.folder)
    task = bank.task(bank.labels[:TASK_CLASSES])
    out = subject.scratch / "condensed"
    condense: dict[str, Callable[[], object]] = {"condense": lambda: bank.condense(task, out, [subject.target_name])}
    try:
        table.time("condensing", condense, conditions=CONDENSED)
    except RefocusError as error:
        table.lacks("condensing", str(error))
