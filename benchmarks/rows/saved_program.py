"""Programs on disk for ``refocus bench suite``: exported once, measured later, without the libraries that made them.

A pair's folder holds ``pair.json``, and a folder for each program: the program with its inputs, or a bank with a
network condensed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from refocus.benchmarks.document.schema import BenchError, Counted, Missing, Photos, Strict
from refocus.edge.bundle import Artifact, load_bundle
from refocus.edge.files import write_file
from refocus.edge.recognize import ClassShares, ShareSettings
from refocus.edge.runtimes import load_artifact, load_program
from refocus.edge.taper import Bank

INPUTS, PAIR = "inputs.npz", "pair.json"
BANK, PERSONAL = "bank", "personal"
COUNTED_PHOTOS = 256  # of the history behind class shares
Action = Callable[[], object]


class SavedProgram(Strict, frozen=True):
    """One program to measure.

    Attributes:
        name: of its method.
        kind: "program": a program with its inputs; "condensed": a bank, and a network condensed from it; "shares":
            nothing on disk, class shares of the device itself.
        counted: its size and multiply-adds.
        artifact: of a program.
        task: labels of a condensed network.
        classes: of class shares.
    """

    name: str
    kind: Literal["program", "condensed", "shares"]
    counted: Counted
    artifact: Artifact | None = None
    task: tuple[str, ...] = ()
    classes: int = 0


class SavedPair(Strict, frozen=True):
    """All programs of a backbone and a target. Its file is written last: where it is, nothing of the pair is missing.

    Attributes:
        programs: in the order of the rows; their folders have their names.
        missing: methods that could not be exported, with the reason.
        photos: that the programs were prepared with.
    """

    bundle: str
    target: str
    programs: tuple[SavedProgram, ...]
    missing: tuple[Missing, ...]
    photos: Photos


def save_inputs(folder: Path, inputs: Mapping[str, np.ndarray]) -> None:
    """Writes what a program is run with."""
    with (folder / INPUTS).open("wb") as stream:
        np.savez(stream, allow_pickle=False, **inputs)


def save_pair(folder: Path, pair: SavedPair) -> None:
    """Says that a pair is complete, and what its programs are."""
    write_file(folder / PAIR, msgspec.json.encode(pair))


def read_pair(folder: Path) -> SavedPair:
    """Reads what :func:`save_pair` wrote.

    Raises:
        BenchError: no complete pair of this version.
    """
    path = folder / PAIR
    try:
        return msgspec.json.decode(path.read_bytes(), type=SavedPair)
    except (OSError, msgspec.MsgspecError) as error:
        raise BenchError(f"{path} cannot be read ({error}); remove its folder and export it again") from None


def read_program(folder: Path) -> SavedProgram:
    """The program of a pair whose folder this is.

    Raises:
        BenchError: no complete pair of this version.
    """
    return next(program for program in read_pair(folder.parent).programs if program.name == folder.name)


def load_saved(folder: Path, program: SavedProgram) -> Action:
    """Loads a program on one thread; what is returned runs it once on its inputs."""
    if program.kind == "condensed":
        return _condensed_photo(folder)
    if program.kind == "shares":
        return _share_counting(program.classes)
    if program.artifact is None:
        raise BenchError(f"{folder.parent / PAIR} names no program; remove the folder and export it again")
    with np.load(folder / INPUTS, allow_pickle=False) as kept:
        inputs = {name: kept[name] for name in kept.files}
    return load_artifact(folder, program.artifact, threads=1).bind(inputs)


def condensing_of(folder: Path, program: SavedProgram, out: Path) -> Action:
    """Loads a bank; what is returned condenses it for the program's task."""
    bank = Bank.open(folder / BANK)
    return partial(bank.condense, bank.task(program.task), out)


def _condensed_photo(folder: Path) -> Action:
    bundle = load_bundle(folder / PERSONAL)
    runtime, precision = bundle.targets()[0]
    encoder, head = (load_program(bundle, role, runtime, precision, threads=1) for role in ("encoder", "head"))
    with np.load(folder / INPUTS, allow_pickle=False) as kept:
        encode = encoder.bind({"photo": kept["photo"]})

    def photo() -> object:
        return head.run(feature=encode()["feature"])

    return photo


def _share_counting(classes: int) -> Action:
    """Answers a photo with the shares of a history, and takes it into account."""
    shares = ClassShares(ShareSettings(capacity=COUNTED_PHOTOS), classes)
    logits = np.random.default_rng(0).standard_normal((COUNTED_PHOTOS, classes))
    shares.extend(shares.row(row) for row in logits)
    turn = 0

    def photo() -> object:
        nonlocal turn
        turn += 1
        answer = shares.answer(logits[turn % COUNTED_PHOTOS])
        shares.add(shares.row(logits[turn % COUNTED_PHOTOS]))
        return answer

    return photo
