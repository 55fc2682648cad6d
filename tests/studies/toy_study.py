"""A study without photos, of which the tests of the runner know every answer."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.settings import Count
from studies.experiment import Cache, Cell, Needs, Row, Study

PHOTOS = 4  # of each person


@dataclass(frozen=True)
class ToySettings:
    """Attributes:
    people: in each cell.
    lift: probability by which "better" is better than "plain".
    source: a file that counts by its content.
    log: a file that gets a line for each evaluated cell.
    seconds: that a cell takes.
    dies_after: the process ends after so many cells; 0: never.
    """

    people: Count = 50
    lift: float = 0.25
    source: str = ""
    log: str = ""
    seconds: float = 0.0
    dies_after: int = 0


@dataclass(frozen=True)
class ToyGrid:
    place: tuple[str, ...] = ("home", "away")
    method: tuple[str, ...] = ("plain", "better")


def needs(settings: ToySettings, cell: Cell) -> Needs:
    own: dict[str, Any] = {"lift": settings.lift} if cell["method"] == "better" else {}
    files = {"source": Path(settings.source)} if settings.source else {}
    return Needs({"people": settings.people} | own, files, (__name__,))


def evaluate(settings: ToySettings, cell: Cell, seed: int, cache: Cache) -> list[Row]:
    """Answer one photo of each person correctly; "better" answers the others of the first people too."""
    log = Path(settings.log)
    if settings.dies_after and len(log.read_text().splitlines()) >= settings.dies_after:
        os._exit(9)
    with log.open("a") as stream:
        stream.write(f"{cell['place']} {cell['method']} {seed} {os.getpid()}\n")
    time.sleep(settings.seconds)
    person = np.repeat(np.arange(settings.people), PHOTOS)
    correct = np.tile([1, 0, 0, 0], settings.people)
    if cell["method"] == "better":
        correct[person < settings.lift * settings.people] = 1
    place = "seaside" if cell["place"] == "away" else cell["place"]
    return [Row({"place": place}, person, np.arange(len(person)), {"accuracy": correct}, {"seed": seed})]


STUDY = Study(ToySettings(), ToyGrid(), needs, evaluate)
