"""Measure the time to store a photo with and without the append journal.

The journal was removed, so a checkout of its last commit is needed::

    git worktree add ../with-journal d8ef39b6
    python -m studies.journal.measure --with-journal ../with-journal docs/results/journal.json

Every variant is a separate process that stores photos in a full history. It overwrites the processor's caches before
each photo, as an encoder does. The processes of one storage run blocks alternately, in an order drawn for each round,
so that other load affects all of them equally. Ratios are taken within a round. The storages are a disk, a folder in
memory, and a folder in memory whose ``fsync`` and ``fdatasync`` wait 20 ms first (``slow_sync.c``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
NOW = "SQLite alone"
JOURNAL = "with journal"
SCHEMA = 1


@dataclass(frozen=True)
class Variant:
    """Code and settings of one process."""

    name: str
    has_journal_code: bool
    journal: bool
    durability: str = "process"


VARIANTS = (
    Variant(JOURNAL, True, True),
    Variant("SQLite alone, before", True, False),
    Variant(NOW, False, False),
    Variant("SQLite alone, safe from power cuts", False, False, "power"),
)


@dataclass(frozen=True)
class Storage:
    """Folder of the profiles, and the delay that is added to a sync."""

    name: str
    folder: str
    delay_ms: int


STORAGES = (Storage("disk", "/tmp", 0), Storage("memory", "/dev/shm", 0), Storage("slow", "/dev/shm", 20))  # noqa: S108


@dataclass(frozen=True)
class Plan:
    """Size of the measurement.

    Attributes:
        rounds: number of rounds.
        photos: photos per block.
        filled: photos that each process stores before the measurement.
    """

    rounds: int = 40
    photos: int = 64
    filled: int = 384


def measure(with_journal: Path, plan: Plan) -> dict[str, Any]:
    """Measure all variants on all storages; return the results document."""
    rows, ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        shim = Path(folder) / "slow_sync.so"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(HERE / "slow_sync.c"), "-ldl"]
        subprocess.run(command, check=True)  # noqa: S603  # our own source
        load = os.getloadavg()[0]
        for storage in STORAGES:
            found = _measured(storage, with_journal, shim, plan)
            rows += [_row(storage, name, blocks) for name, blocks in found.items()]
            ratios += [
                _ratio(storage, name, found[name], found[JOURNAL], key)
                for name in found
                if name != JOURNAL
                for key in ("wall", "cpu")
            ]
    about = {**asdict(plan), "width": 1280, "capacity": 256, "cores": os.cpu_count(), "load_average": load,
             "machine": platform.machine(), "sqlite": sqlite3.sqlite_version}  # fmt: skip
    return {"schema_version": SCHEMA, "append_journal": about, "rows": rows, "ratios": ratios}


def _measured(storage: Storage, with_journal: Path, shim: Path, plan: Plan) -> dict[str, list[dict[str, Any]]]:
    """Return the blocks of each variant on one storage."""
    rng = random.Random(0)
    with contextlib.ExitStack() as stack:
        processes = {v.name: stack.enter_context(_worker(v, storage, with_journal, shim)) for v in VARIANTS}
        for process in processes.values():
            _block(process, plan.filled)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in processes}
        for _ in range(plan.rounds):
            for name in rng.sample([*processes], len(processes)):
                found[name].append(_block(processes[name], plan.photos))
        return found


@contextlib.contextmanager
def _worker(variant: Variant, storage: Storage, with_journal: Path, shim: Path) -> Iterator[subprocess.Popen[str]]:
    code = with_journal if variant.has_journal_code else HERE.parents[1]
    environment = {**os.environ, "PYTHONPATH": str(code), "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}
    environment["SYNC_DELAY_MS"] = str(storage.delay_ms)
    with tempfile.TemporaryDirectory(dir=storage.folder) as folder:
        command = [sys.executable, str(HERE / "worker.py"), folder, variant.durability]
        command.append("journal" if variant.journal else "sqlite")
        process = subprocess.Popen(  # noqa: S603  # our own program
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
        )
        try:
            yield process
        finally:
            process.communicate()


def _block(process: subprocess.Popen[str], photos: int) -> dict[str, Any]:
    assert process.stdin is not None  # noqa: S101
    assert process.stdout is not None  # noqa: S101
    process.stdin.write(f"{photos}\n")
    process.stdin.flush()
    block: dict[str, Any] = json.loads(process.stdout.readline())
    return block


def _row(storage: Storage, name: str, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the time per photo in µs, and the syncs per 100 photos."""
    times: dict[str, float] = {}
    for key in ("wall", "cpu"):
        all_of = 1e6 * np.concatenate([block[key] for block in blocks])
        times |= {f"{key}_p50_us": float(np.median(all_of)), f"{key}_mean_us": float(all_of.mean())}
        times[f"{key}_p99_us"] = float(np.percentile(all_of, 99))
    photos = sum(len(block["wall"]) for block in blocks)
    syncs = 100 * sum(block["syncs"] for block in blocks) / photos
    return {"storage": storage.name, "delay_ms": storage.delay_ms, "what": name, **times, "syncs_of_100": syncs}


def _ratio(
    storage: Storage, name: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]], key: str
) -> dict[str, Any]:
    """Return the mean time per photo over that with the journal.

    The 95 % interval is bootstrapped over rounds.
    """
    of_rounds = np.array([[np.mean(block[key]) for block in blocks] for blocks in (ours, theirs)])
    drawn = np.random.default_rng(0).integers(of_rounds.shape[1], size=(2000, of_rounds.shape[1]))
    sums = of_rounds[:, drawn].sum(axis=2)
    low, high = np.percentile(sums[0] / sums[1], [2.5, 97.5])
    mean, median = of_rounds.sum(axis=1), float(np.median(of_rounds[0] / of_rounds[1]))
    ratio = {"mean": float(mean[0] / mean[1]), "low": float(low), "high": float(high), "median": median}
    return {"storage": storage.name, "what": name, "over": JOURNAL, "time": key, "ratio": ratio}


def lines(document: Mapping[str, Any]) -> str:
    """Format the rows and ratios for the terminal."""
    found = []
    for row in document["rows"]:
        numbers = " ".join(f"{key} {value:.0f}" for key, value in row.items() if isinstance(value, float))
        found.append(f"{row['storage']:7} {row['what']:35} {numbers}")
    for row in document["ratios"]:
        numbers = " ".join(f"{key} {value:.2f}" for key, value in row["ratio"].items())
        found.append(f"{row['storage']:7} {row['what']:35} {row['time']} over journal: {numbers}")
    return "\n".join(found)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="file of the document, such as docs/results/journal.json")
    parser.add_argument("--with-journal", type=Path, required=True, help="checkout of the code that has the journal")
    parser.add_argument("--rounds", type=int, default=Plan.rounds)
    given = parser.parse_args()
    document = measure(given.with_journal.resolve(), Plan(rounds=given.rounds))
    command = "python -m studies.journal.measure --with-journal ../with-journal docs/results/journal.json"
    given.out.write_text(json.dumps({**document, "command": command}, indent=2) + "\n")
    sys.stdout.write(lines(document) + "\n")


if __name__ == "__main__":
    main()
