"""A bank evaluated as a device uses it: its code condenses tasks, and the exported programs answer photos."""

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
from refocus.cloud_train.studies import page
from refocus.cloud_train.studies.banks.evaluation import Evaluation
from refocus.cloud_train.studies.banks.tables import data_of_tasks, inner, inner_plot
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
    """Evaluates ``tasks`` tasks of test photos, each by three models, all told which classes can occur.

    Returns:
        The results document (``docs/results-format.md``, study "bank").
    """
    evaluation, table = Evaluation.draw(run, count=tasks), run.table.of_split("test")
    bank = Bank.open(run.bank(seed).folder)
    shares: dict[str, list[float]] = {GENERIC: [], CONDENSED: [], FOREIGN: []}
    milliseconds, sizes = [], []
    with tempfile.TemporaryDirectory() as folder, Recognizer(load_bundle(bank.folder), threads=1) as generic:
        asked = [_task(bank, run, task) for task in evaluation.tasks]
        for k, rows in enumerate(track(evaluation.rows, "condensing and answering", len(evaluation.rows))):
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
    return page.study_document(
        "bank",
        command,
        [seed],
        data=data_of_tasks(run, evaluation),
        backbone=run.config.small.name,
        ways=run.config.ways,
        bases=run.config.bases,
        inner=inner(run, evaluation, seed),
        condense_ms=float(np.median(milliseconds)),
        weights_bytes=int(np.median(sizes)),
        rows=[{"name": name, **evaluation.scores([np.array(share)], [first])} for name, share in shares.items()],
    )


def _task(bank: Bank, run: TaperRun, task: Task) -> BankTask:
    return bank.task([bank.labels[number] for number in task.classes], run.words_of(task)[1])


def _right(model: Recognizer, photos: Sequence[bytes], truth: np.ndarray, classes: Sequence[int]) -> float:
    """Share of photos whose best class, among some, is the true one."""
    numbers = np.array(classes)
    best = np.array([numbers[model.recognize(content).logits[numbers].argmax()] for content in photos])
    return float((best == truth).mean())


def about_bank(document: page.Document) -> str:
    data = document["data"]
    return (
        f"{data['classes']} classes; {data['tasks']} tasks of {document['ways']} classes with"
        f" {data['targets']} photos that nobody trained on, by the exported programs of a bank of {document['bases']}"
        f" `{document['backbone']}`, condensed in {document['condense_ms']:.0f} ms (median)."
    )


COLUMNS = {"": page.text("name"), "accuracy": page.percent("accuracy"), "against the first row": page.gain()}
PAGES = {"bank": page.StudyPage("a bank through its exported programs", COLUMNS, about_bank, inner_plot)}
