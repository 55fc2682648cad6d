"""The programs of ``refocus bench suite``: every method on every backbone, exported as it is delivered.

One pair of backbone and target is one process, so that one that crashes or eats all memory is one row with a reason.
Another process measures it (:mod:`refocus.benchmarks.suite_pair`), now, or later when the machine is quiet.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from refocus.benchmarks.devices import describe, new_document
from refocus.benchmarks.document import Conditions, Counted, Document, Missing, Photos, write_document
from refocus.benchmarks.document.schema import BARE
from refocus.benchmarks.rows.saved_program import PAIR, SavedPair, SavedProgram, save_inputs, save_pair
from refocus.benchmarks.suite import Backbone, Pair, as_json, left_to_do
from refocus.benchmarks.suite_pair import reason_of
from refocus.cloud_train.bench.candidates import METHODS, Candidate, Setup, bare, set_up, write
from refocus.cloud_train.bench.compatibility import CLASSES, photo_files
from refocus.cloud_train.bench.condensed import save_condensed
from refocus.cloud_train.errors import UsageError
from refocus.export.bank import BANK_TARGETS

TAPER, SHARES, W8A8 = "taper", "class_shares", "w8a8"
PROGRAMS = "programs"  # folder beside the documents


def prepare_pair(pair: Pair, photos: Path, folder: Path, weights: Path | None = None) -> SavedPair:
    """Exports all methods of a pair; one that fails is named in ``missing``.

    Args:
        folder: that is made.
        weights: folder of trained weights, NAME_in1k.safetensors; a network whose file is not there is untrained.
    """
    folder.mkdir(parents=True)
    setup = set_up(pair.backbone, pair.target, photos, weights)
    programs: list[SavedProgram] = []
    missing: list[Missing] = []
    for name in (BARE, *pair.backbone.methods):
        if name == TAPER and _bank_target(pair.target) not in BANK_TARGETS:
            why = f"a bank has no program for {pair.target}: 8 bits are for weights alone"
            missing.append(_missing(pair, name, why))
            continue
        try:
            programs.append(_prepared(name, setup, photos, folder / name))
            if name == TAPER and (other := _bank_target(pair.target)) != pair.target:
                why = f"a bank has 8 bits for weights alone; measured in {other}"
                missing.append(_missing(pair, f"{TAPER} in {W8A8}", why))
        except Exception as error:
            if name == BARE:
                raise
            missing.append(_missing(pair, name, reason_of(error)))
    about = Photos(source=photos.name, count=len(setup.pixels), fingerprint=setup.weights)
    saved = SavedPair(
        bundle=pair.backbone.name,
        target=pair.target,
        programs=tuple(programs),
        missing=tuple(missing),
        photos=about,
    )
    save_pair(folder, saved)
    return saved


def _prepared(name: str, setup: Setup, photos: Path, folder: Path) -> SavedProgram:
    """Exports one method into a folder."""
    about: dict[str, Any] = {"bundle": setup.spec.name, "target": setup.target, "name": name}
    if name == SHARES:
        counted = Counted(**about, parameters=0, flops=0.0, size_bytes=0)
        return SavedProgram(name=name, kind="shares", counted=counted, classes=CLASSES)
    if name == TAPER:
        task, size = save_condensed(setup.spec.name, setup.network, _bank_target(setup.target), photos, folder)
        save_inputs(folder, setup.photo)
        counted = Counted(**about, **_size_of(bare(setup)), size_bytes=size)
        return SavedProgram(name=name, kind="condensed", counted=counted, task=task)
    make = {**METHODS, BARE: bare}.get(name)
    if make is None:
        raise ValueError(f"no such method; known are {', '.join((*METHODS, TAPER, SHARES))}")
    candidate = make(setup)
    artifact, size = write(candidate, setup.target, folder)
    save_inputs(folder, candidate.inputs)
    counted = Counted(**about, **_size_of(candidate), size_bytes=size)
    return SavedProgram(name=name, kind="program", counted=counted, artifact=artifact)


def _bank_target(target: str) -> str:
    """That of a bank: calibrated ranges are those of one network, and a bank serves all tasks."""
    runtime, _, precision = target.partition(":")
    return f"{runtime}:{'w8' if precision == W8A8 else precision}"


def _size_of(candidate: Candidate) -> dict[str, Any]:
    return {"parameters": candidate.parameters, "flops": candidate.flops}


def _missing(pair: Pair, what: str, why: str) -> Missing:
    return Missing(what=f"{pair.backbone.name} {pair.target}: {what}", why=why)


# ---- each pair in processes of its own


class Processes:
    """Exports and measures pairs, each in processes of its own; what goes wrong becomes the document.

    Args:
        photos: folder of real photos.
        out: folder of the documents; exported programs wait below it until they are measured.
        command: as it was typed.
        limit_s: of each process.
        weights: folder of trained weights.

    Raises:
        UsageError: no photos.
    """

    def __init__(
        self,
        photos: Path,
        out: Path,
        conditions: Conditions,
        command: str,
        limit_s: float,
        weights: Path | None = None,
    ) -> None:
        if len(photo_files(photos)) == 0:
            raise UsageError(f"--photos {photos}: expected a folder of photos")
        self._photos, self._out, self._weights = photos, out, weights
        self._conditions, self._command, self._limit_s = conditions, command, limit_s

    def export(self, pair: Pair, path: Path) -> None:
        """Exports a pair, unless it waits to be measured already. One that cannot be gets its document at once."""
        folder = self._programs(pair)
        if (folder / PAIR).exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        weights = str(self._weights) if self._weights else ""
        asked = as_json(pair, photos=str(self._photos), folder=str(folder), weights=weights)
        if why := self._run("refocus.cloud_train.bench.suite", asked):
            shutil.rmtree(folder, ignore_errors=True)
            write_document(_empty(pair, self._photos, self._command, why), path)

    def measure(self, pair: Pair, path: Path) -> None:
        """Exports a pair where that was not done, measures it, and removes its programs."""
        self.export(pair, path)
        folder = self._programs(pair)
        if path.exists():
            return
        asked = as_json(pair, folder=str(folder), conditions=self._conditions, command=self._command, out=str(path))
        if why := self._run("refocus.benchmarks.suite_pair", asked):
            write_document(_empty(pair, self._photos, self._command, why), path)
        shutil.rmtree(folder)

    def _programs(self, pair: Pair) -> Path:
        return self._out / PROGRAMS / Path(pair.file).stem

    def _run(self, module: str, asked: bytes) -> str:
        """Runs a module of ours; returns why it failed, or nothing."""
        try:
            own = [sys.executable, "-m", module]
            done = subprocess.run(own, input=asked, capture_output=True, timeout=self._limit_s, check=False)  # noqa: S603
        except subprocess.TimeoutExpired:
            return f"not done after {self._limit_s:.0f} s"
        last = (done.stderr.decode(errors="replace").strip() or "no message").splitlines()[-1]
        return f"the process ended with status {done.returncode}: {last}"[:300] if done.returncode else ""


def export_suite(
    chosen: list[Pair], out: Path, export: Callable[[Pair, Path], None], say: Callable[[str], object]
) -> None:
    """Exports the pairs that have no document yet."""
    for pair, path in left_to_do(chosen, out, say, "exporting "):
        export(pair, path)


def _empty(pair: Pair, photos: Path, command: str, why: str) -> Document:
    missing = Missing(what=f"{pair.backbone.name} {pair.target}", why=why)
    about = Photos(source=photos.name, count=0, fingerprint="")
    return new_document(command, "suite", describe(), about, time.perf_counter(), missing=(missing,))


def main() -> None:
    """The process that exports: is asked on standard input."""
    asked = json.load(sys.stdin)
    pair = Pair(msgspec.convert(asked["backbone"], Backbone), asked["target"])
    weights = Path(asked["weights"]) if asked["weights"] else None
    try:
        prepare_pair(pair, Path(asked["photos"]), Path(asked["folder"]), weights)
    except Exception as error:
        sys.exit(reason_of(error))


if __name__ == "__main__":
    main()
