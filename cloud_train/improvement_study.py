"""Self-improvement on streams of owners (TAPER section 5.2 and Fig. 3), through exported banks and the device's code.

An owner meets the classes of one task. Batches of their photos teach; the rest of their photos judge the model that
serves after each batch. The control meets all classes alike: for them nothing may get worse.

Notation: K owners, S steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloud_train.errors import DataError
from cloud_train.progress import track
from cloud_train.studies import STUDY_SCHEMA, paired
from cloud_train.taper_runs import TaperRun
from cloud_train.tasks import Around, TaskPhotos
from edge.condense import Bank
from edge.recognizer import Recognizer
from edge.self_improvement import SelfImprovement

OWNERS, BATCH, STEPS, JUDGED = 60, 16, 6, 40
_SEED, _TRIES = 2, 1000


def study_improvement(run: TaperRun, seeds: Sequence[int], command: str, owners: int = OWNERS) -> dict[str, Any]:
    """Accuracy of the generic model and of what serves, after each batch."""
    found = {content: [_of_seed(run, seed, content, owners) for seed in seeds] for content in ("own", "mixed")}
    rows = [
        {"name": content, "photos": BATCH * step, "generic": float(np.mean([f[0] for f in parts])),
         "served": float(np.mean([f[1][:, step] for f in parts])),
         "gain": paired([f[1][:, step] - f[0] for f in parts], np.full(owners, JUDGED))}
        for content, parts in found.items() for step in range(STEPS + 1)
    ]  # fmt: skip
    return {
        "schema_version": STUDY_SCHEMA, "study": "improvement", "command": command, "seeds": list(seeds), "rows": rows,
        "data": {"source": Path(run.config.source).name, "fingerprint": run.table.fingerprint(),
                 "classes": len(run.table.classes), "owners": owners, "targets": owners * JUDGED},
        "backbone": run.config.small.name, "batch": BATCH,
    }  # fmt: skip


def _of_seed(run: TaperRun, seed: int, content: str, owners: int) -> tuple[np.ndarray, np.ndarray]:
    """(K,) shares of right answers of the generic model, and (K, S + 1) of what serves after each batch."""
    bank, table = Bank.open(run.bank(seed).folder), run.table.of_split("test")
    index, around, rng = TaskPhotos(table.label, np.zeros(len(table), int)), run.around(), np.random.default_rng(_SEED)
    generic, served = np.zeros(owners), np.zeros((owners, STEPS + 1))
    for owner in track(range(owners), f"owners, {content}", owners):
        rows = _photos(index, around, rng) if content == "own" else np.arange(len(table))
        rows = rng.permutation(rows)[: BATCH * STEPS + JUDGED]
        contents = [table.read(name) for name in table.photo[rows].tolist()]
        labels = [table.classes[label] for label in table.label[rows]]
        teach, judge = contents[:-JUDGED], list(zip(contents[-JUDGED:], labels[-JUDGED:], strict=True))
        with tempfile.TemporaryDirectory() as folder, SelfImprovement(bank, Path(folder), threads=1) as improvement:
            generic[owner] = served[owner, 0] = _right(improvement.recognizer, judge)
            for step in range(STEPS):
                taught = improvement.step(teach[BATCH * step : BATCH * (step + 1)])
                served[owner, step + 1] = _right(improvement.recognizer, judge) if taught.personal else generic[owner]
    return generic, served


def _photos(index: TaskPhotos, around: Around, rng: np.random.Generator) -> np.ndarray:
    """Rows of a task that has photos enough, of any domain: the bank is told none.

    Raises:
        DataError: no task of many has.
    """
    for _ in range(_TRIES):
        rows = index.rows(index.draw(around, False, rng))
        if len(rows) >= BATCH * STEPS + JUDGED:
            return rows
    raise DataError(f"no task has {BATCH * STEPS + JUDGED} test photos; bring more photos, or tasks of more classes")


def _right(recognizer: Recognizer, judge: Sequence[tuple[bytes, str]]) -> float:
    return float(np.mean([recognizer.recognize(content).labels[0] == label for content, label in judge]))
