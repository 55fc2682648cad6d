"""A bank judged as a device uses it: tasks condensed by the device's code, photos answered by the exported programs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.methods.taper.tasks import Task
from refocus.cloud_train.progress import track
from refocus.cloud_train.runs.taper import TaperRun
from refocus.cloud_train.studies.iciia import STUDY_SCHEMA, paired
from refocus.cloud_train.studies.taper import Judged, data_of, inner, mean_share
from refocus.edge.bundle import load_bundle
from refocus.edge.recognize import Recognizer
from refocus.edge.taper import Bank, Condensed
from refocus.edge.taper import Task as BankTask

GENERIC, CONDENSED, FOREIGN = (
    "the bank's generic model, classes selected",
    "condensed for the task",
    "control: condensed for another task",
)


def replay_bank(run: TaperRun, seed: int, tasks: int, command: str) -> dict[str, Any]:
    """Judges ``tasks`` tasks of test photos, each by three models, all told which classes can occur.

    Returns:
        The results document (``docs/results-format.md``, study "bank").
    """
    judged, table = Judged.draw(run, count=tasks), run.table.of_split("test")
    bank = Bank.open(run.bank(seed).folder)
    shares: dict[str, list[float]] = {GENERIC: [], CONDENSED: [], FOREIGN: []}
    milliseconds, sizes = [], []
    with tempfile.TemporaryDirectory() as folder, Recognizer(load_bundle(bank.folder), threads=1) as generic:
        asked = [_task(bank, run, task) for task in judged.tasks]
        for k, rows in enumerate(track(judged.rows, "condensing and answering", len(judged.rows))):
            photos = [table.read(name) for name in table.photo[rows].tolist()]
            truth = table.label[rows]
            shares[GENERIC].append(_right(generic, photos, truth, asked[k].classes))
            elsewhere = asked[(k + 1) % len(asked)]
            for name, task in ((CONDENSED, asked[k]), (FOREIGN, replace(asked[k], mixers=elsewhere.mixers))):
                started = time.perf_counter()
                done: Condensed = bank.condense(task, Path(folder) / "personal")
                milliseconds.append(1000 * (time.perf_counter() - started))
                sizes.append(done.weights_bytes)
                with Recognizer(load_bundle(done.folder), threads=1) as personal:
                    shares[name].append(_right(personal, photos, truth, task.classes))
    first = np.array(shares[GENERIC])
    return {
        "schema_version": STUDY_SCHEMA,
        "study": "bank",
        "command": command,
        "seeds": [seed],
        "data": data_of(run, judged),
        "backbone": run.config.small.name,
        "ways": run.config.ways,
        "bases": run.config.bases,
        "inner": inner(run, judged, seed),
        "condense_ms": float(np.median(milliseconds)),
        "weights_bytes": int(np.median(sizes)),
        "rows": [
            {
                "name": name,
                "accuracy": mean_share([np.array(found)], judged.sizes),
                "gain": paired([np.array(found) - first], judged.sizes),
            }
            for name, found in shares.items()
        ],
    }


def _task(bank: Bank, run: TaperRun, task: Task) -> BankTask:
    return bank.task([bank.labels[number] for number in task.classes], run.words_of(task)[1])


def _right(model: Recognizer, photos: Sequence[bytes], truth: np.ndarray, classes: Sequence[int]) -> float:
    """Share of photos whose best class, among some, is the true one."""
    numbers = np.array(classes)
    best = np.array([numbers[model.recognize(content).logits[numbers].argmax()] for content in photos])
    return float((best == truth).mean())
