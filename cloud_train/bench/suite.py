"""The programs of ``refocus bench suite``: every method on every backbone, as it is exported, over the bare backbone.

One pair of backbone and target is one process, so that one that crashes or eats all memory is one row with a reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from refocus.benchmarks.devices import describe, new_document
from refocus.benchmarks.document import Conditions, Counted, Document, Missing, Photos, write_document
from refocus.benchmarks.rows.personal import CONDENSED
from refocus.benchmarks.rows.recorder import Rows
from refocus.benchmarks.suite import BARE, GROUP, Backbone, Pair, as_json
from refocus.cloud_train.bench.candidates import METHODS, UNTRAINED, Candidate, Setup, bare, load, set_up
from refocus.cloud_train.bench.compatibility import photo_files
from refocus.cloud_train.bench.condensed import condensed
from refocus.cloud_train.errors import UsageError

TAPER, W8A8 = "taper", "w8a8"
Action = Callable[[], Any]


def measure_pair(pair: Pair, photos: Path, conditions: Conditions, command: str) -> Document:
    """All methods of a pair, in turns with the bare backbone; a method that fails is named in ``missing``."""
    began = time.perf_counter()
    setup = set_up(pair.backbone, pair.target, photos)
    table = Rows(pair.backbone.name, pair.target, describe(), conditions)
    counted: list[Counted] = []
    actions: dict[str, Action] = {}
    condense: Action | None = None
    with tempfile.TemporaryDirectory() as temporary:
        for name in (BARE, *pair.backbone.methods):
            folder = Path(temporary) / name
            try:
                if name == TAPER:
                    folder.mkdir()
                    runtime, _, precision = pair.target.partition(":")
                    if precision == W8A8:  # calibrated ranges are those of one network, and a bank serves all tasks
                        table.lacks(f"{TAPER} in {W8A8}", "a bank has 8 bits for weights alone; measured in w8")
                        precision = "w8"
                    own = condensed(pair.backbone.name, setup.network, f"{runtime}:{precision}", photos, folder)
                    actions[name], condense, size = own.photo, own.condense, own.size_bytes
                    candidate = bare(setup)
                else:
                    candidate = _candidate(name, setup)
                    program, size = load(candidate, pair.target, folder)
                    action = program.bind(dict(candidate.inputs))
                    action()  # what cannot run is found here, where it stops nothing else
                    actions[name] = action
            except Exception as error:
                if name == BARE:
                    raise
                table.lacks(name, reason_of(error))
                continue
            costs: dict[str, Any] = {"parameters": candidate.parameters, "flops": candidate.flops, "size_bytes": size}
            counted.append(Counted(bundle=table.bundle, target=table.target_name, name=name, **costs))
        time_over_first(table, GROUP, actions)
        if condense is not None:
            table.time("condensing", {"condense": condense}, conditions=CONDENSED)
    about = Photos(source=photos.name, count=len(setup.pixels), fingerprint=UNTRAINED)
    return table.added_to(new_document(command, "suite", table.machine, about, began, counted=tuple(counted)))


def _candidate(name: str, setup: Setup) -> Candidate:
    make = {**METHODS, BARE: bare}.get(name)
    if make is None:
        raise ValueError(f"no such method; known are {', '.join((*METHODS, TAPER))}")
    return make(setup)


def time_over_first(table: Rows, group: str, actions: Mapping[str, Action], reference: str = "") -> None:
    """Times actions in turns, with the ratio of each to a reference, by default the first."""
    series = table.time(group, actions)
    for name in [*actions][1:]:
        table.ratio(group, series, name, reference or next(iter(actions)))


def reason_of(error: Exception) -> str:
    """Why something is missing, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


# ---- each pair in a process


def in_a_process(photos: Path, conditions: Conditions, command: str, limit_s: float) -> Callable[[Pair, Path], None]:
    """Measures a pair in a process of its own; what went wrong becomes the document."""
    if len(photo_files(photos)) == 0:
        raise UsageError(f"--photos {photos}: expected a folder of photos")

    def measure(pair: Pair, path: Path) -> None:
        asked = as_json(pair, photos=str(photos), conditions=conditions, command=command, out=str(path))
        try:
            own = [sys.executable, "-m", "refocus.cloud_train.bench.suite"]
            done = subprocess.run(own, input=asked, capture_output=True, timeout=limit_s, check=False)  # noqa: S603
            last = (done.stderr.decode(errors="replace").strip() or "no message").splitlines()[-1]
            why = f"the process ended with status {done.returncode}: {last}"
        except subprocess.TimeoutExpired:
            why = f"not done after {limit_s:.0f} s"
        if not path.exists():
            write_document(_empty(pair, photos, command, why[:300]), path)

    return measure


def _empty(pair: Pair, photos: Path, command: str, why: str) -> Document:
    missing = Missing(what=f"{pair.backbone.name} {pair.target}", why=why)
    about = Photos(source=photos.name, count=0, fingerprint="")
    return new_document(command, "suite", describe(), about, time.perf_counter(), missing=(missing,))


def main() -> None:
    """The process: is asked on standard input, writes the document."""
    asked = json.load(sys.stdin)
    pair = Pair(msgspec.convert(asked["backbone"], Backbone), asked["target"])
    conditions = msgspec.convert(asked["conditions"], Conditions)
    photos, out = Path(asked["photos"]), Path(asked["out"])
    try:
        document = measure_pair(pair, photos, conditions, asked["command"])
    except Exception as error:
        document = _empty(pair, photos, asked["command"], reason_of(error))
    write_document(document, out)


if __name__ == "__main__":
    main()
