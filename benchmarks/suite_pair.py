"""One pair of the suite, measured: its programs in turns in one process, then starts and memory in fresh ones.

The process imports the device's own code alone: the programs were exported before, by another process.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from refocus.benchmarks.devices import describe, new_document
from refocus.benchmarks.devices.energy import EnergyMeter, energy_of
from refocus.benchmarks.document.schema import BARE, GROUP, Conditions, Counted, Document, Energy, write_document
from refocus.benchmarks.rows import cold_start
from refocus.benchmarks.rows.personal import CONDENSED
from refocus.benchmarks.rows.recorder import Rows
from refocus.benchmarks.rows.saved_program import Action, SavedProgram, condensing_of, load_saved, read_pair

# Programs whose memory is measured, and how often each is started for its rows of a start; 0: once, for memory alone.
STARTED = {BARE: 5, "iciia_t": 0, "iciia_t_streaming": 0, "iciia_t_native": 0, "iciia_t_native_streaming": 0}


def measure_pair(folder: Path, conditions: Conditions, command: str) -> Document:
    """Times all programs of a pair in turns with the bare backbone; energy is that of the backbone.

    Args:
        folder: as of :mod:`refocus.benchmarks.rows.saved_program`.
        conditions: of each timed row.

    Returns:
        a document, in whose ``missing`` a program stands that does not run here.
    """
    began = time.perf_counter()
    pair = read_pair(folder)
    table = Rows(pair.bundle, pair.target, describe(), conditions, missing=[*pair.missing])
    actions: dict[str, Action] = {}
    counted: list[Counted] = []
    running: list[SavedProgram] = []
    for program in pair.programs:
        try:
            action = load_saved(folder / program.name, program)
            action()  # what cannot run is found here, where it stops nothing else
        except Exception as error:
            table.lacks(program.name, reason_of(error))
            continue
        actions[program.name] = action
        counted.append(program.counted)
        running.append(program)
    if BARE in actions:
        time_over_first(table, GROUP, actions)
        energy = energy_of(EnergyMeter(), actions[BARE], max(1.0, min(10.0, conditions.max_seconds)))
        table.energy.append(Energy(bundle=table.bundle, target=table.target_name, **energy))
    for program in running:
        _beside(table, folder / program.name, program)
    return table.added_to(new_document(command, "suite", table.machine, pair.photos, began, counted=tuple(counted)))


def _beside(table: Rows, folder: Path, program: SavedProgram) -> None:
    """Condensing, start and memory of one program, measured alone."""
    try:
        if program.kind == "condensed":
            with tempfile.TemporaryDirectory() as out:
                condense = condensing_of(folder, program, Path(out) / "again")
                table.time("condensing", {"condense": condense}, conditions=CONDENSED)
        if program.artifact is not None and program.name in STARTED:
            cold_start.program(table, folder, program.artifact.runtime, program.name, STARTED[program.name])
    except Exception as error:
        table.lacks(f"{program.name}, start and memory", reason_of(error))


def time_over_first(table: Rows, group: str, actions: Mapping[str, Action], reference: str = "") -> None:
    """Times actions in turns, with the ratio of each to a reference, by default the first."""
    series = table.time(group, actions)
    for name in [*actions][1:]:
        table.ratio(group, series, name, reference or next(iter(actions)))


def reason_of(error: Exception) -> str:
    """Why something is missing, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def main() -> None:
    """The process: is asked on standard input, writes the document."""
    asked = json.load(sys.stdin)
    conditions = msgspec.convert(asked["conditions"], Conditions)
    write_document(measure_pair(Path(asked["folder"]), conditions, asked["command"]), Path(asked["out"]))


if __name__ == "__main__":
    main()
