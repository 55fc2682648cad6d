"""Evaluate a bank with the code that condenses and answers on devices.

Models are interleaved photo by photo, so times per photo are comparable even on a busy machine.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.evaluate.bank_tasks import Evaluation, data_of_tasks, inner, inner_plot
from refocus.cloud_train.methods.taper.tasks import Task
from refocus.cloud_train.progress import track
from refocus.cloud_train.runs.taper import ONNX, TaperRun
from refocus.edge.bundle import Bundle, load_bundle
from refocus.edge.recognize import Recognizer, processor
from refocus.edge.taper import Bank
from refocus.edge.taper import Task as BankTask

GENERIC, PLAIN, CONDENSED, FOREIGN = (
    "the bank's generic model, classes selected",
    "the bank's generic model",
    "condensed for the task",
    "control: condensed for another task",
)


@dataclass
class _Seen:
    """Accuracy and times of one target's models.

    Attributes:
        shares: accuracy per task, by row.
        photo_ms: milliseconds per photo from its file to its answer, for two interleaved models.
        condense_ms: milliseconds per condensed task.
        weights_bytes: size of the weights per condensed task.
    """

    shares: dict[str, list[float]]
    photo_ms: dict[str, list[float]]
    condense_ms: list[float]
    weights_bytes: list[int]


def replay_bank(
    run: TaperRun, seeds: Sequence[int], tasks: int, command: str, targets: Sequence[str] = (ONNX,)
) -> dict[str, Any]:
    """Evaluate generic and condensed models on tasks of test photos.

    Each seed's generic model is compared with the models that are condensed from its bank.

    Args:
        run: trained banks and their photos.
        seeds: seeds of the banks.
        tasks: number of drawn tasks.
        command: command line, stored in the document.
        targets: such as ``onnx:fp32`` and ``executorch:fp32``; each gets a separate bundle.

    Returns:
        The results document (``docs/results-format.md``, study "bank").
    """
    if not targets:
        raise UsageError("no target to evaluate the bank on; pass at least one, such as onnx:fp32,executorch:fp32")
    for target in targets:  # a failed export is reported before the first photo
        for seed in seeds:
            run.bank(seed, target)
    evaluation, rows = Evaluation.draw(run, count=tasks), []
    for target in targets:
        seen = [_replay(run, seed, evaluation, target) for seed in seeds]
        for name in (GENERIC, PLAIN, CONDENSED, FOREIGN):
            shares, first = ([np.array(one.shares[row]) for one in seen] for row in (name, GENERIC))
            row = {"name": name, "target": target, **evaluation.scores(shares, first)}
            times = [milliseconds for one in seen for milliseconds in one.photo_ms.get(name, ())]
            if times:
                row["photo_ms"] = {f"p{q}": float(np.percentile(times, q)) for q in (10, 50, 90)}
            if name == CONDENSED:
                row["condense_ms"] = float(np.median([one.condense_ms for one in seen]))
                row["weights_bytes"] = int(np.median([one.weights_bytes for one in seen]))
            rows.append(row)
    return page.study_document(
        "bank",
        command,
        seeds,
        data=data_of_tasks(run, evaluation),
        backbone=run.config.small.name,
        ways=run.config.ways,
        bases=run.config.bases,
        inner=inner(run, evaluation, seeds[0]),
        machine={"processor": processor(), "cores": os.cpu_count(), "threads": 1, "load": os.getloadavg()[0]},
        rows=rows,
    )


def _replay(run: TaperRun, seed: int, evaluation: Evaluation, target: str) -> _Seen:
    table, bank = run.table.of_split("test"), Bank.open(run.bank(seed, target).folder)
    seen = _Seen({name: [] for name in (GENERIC, PLAIN, CONDENSED, FOREIGN)}, {GENERIC: [], CONDENSED: []}, [], [])
    with tempfile.TemporaryDirectory() as folder, _open(load_bundle(bank.folder)) as generic:
        asked = [_task(bank, run, task) for task in evaluation.tasks]
        for k, rows in enumerate(track(evaluation.rows, f"condensing and answering, {target}", len(evaluation.rows))):
            photos = [table.read(name) for name in table.photo[rows].tolist()]
            truth, classes = table.label[rows], np.array(asked[k].classes)
            foreign = replace(asked[k], mixers=asked[(k + 1) % len(asked)].mixers)
            made = []
            for name, task in (("own", asked[k]), ("other", foreign)):
                started = time.perf_counter()
                done = bank.condense(task, Path(folder) / name)
                seen.condense_ms.append(1000 * (time.perf_counter() - started))
                seen.weights_bytes.append(done.weights_bytes)
                made.append(load_bundle(done.folder))
            with _open(made[0]) as own, _open(made[1]) as other:
                by_model = {GENERIC: generic, CONDENSED: own, FOREIGN: other}
                logits, times = _take_turns(by_model, photos)
            for name, found in logits.items():
                seen.shares[name].append(float((classes[found[:, classes].argmax(1)] == truth).mean()))
            seen.shares[PLAIN].append(float((logits[GENERIC].argmax(1) == truth).mean()))
            for name, timed in seen.photo_ms.items():
                timed += times[name][1:]  # a model's first photo also sets up its memory
    return seen


def _open(bundle: Bundle) -> Recognizer:
    """Open a recogniser for the only target of a bundle, on one thread."""
    offered = bundle.targets()
    if len(offered) != 1:
        raise UsageError(f"{bundle.folder} has {len(offered)} targets, expected one; remove the folder")
    [(runtime, precision)] = offered
    return Recognizer(bundle, runtime=runtime, precision=precision, threads=1)


def _take_turns(
    models: dict[str, Recognizer], photos: Sequence[bytes]
) -> tuple[dict[str, np.ndarray], dict[str, list[float]]]:
    """Run all models on every photo, one photo at a time.

    The model that runs first changes with every photo.

    Returns:
        Logits (photos, C) of each model, and its milliseconds per photo.
    """
    logits: dict[str, list[np.ndarray]] = {name: [] for name in models}
    times: dict[str, list[float]] = {name: [] for name in models}
    order = [*models]
    for content in photos:
        order = [*order[1:], order[0]]
        for name in order:
            started = time.perf_counter()
            logits[name].append(models[name].recognize(content).logits)
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: np.stack(found) for name, found in logits.items()}, times


def _task(bank: Bank, run: TaperRun, task: Task) -> BankTask:
    return bank.task([bank.labels[number] for number in task.classes], run.words_of(task)[1])


def about_bank(document: page.Document) -> str:
    """Describe the data and the conditions of a document about a bank."""
    data, machine = document["data"], document["machine"]
    unequal = "on one thread with ONNX Runtime and on as many as there are cores with ExecuTorch"
    threads = "on one thread" if "threads" in machine else unequal  # as documents before were measured
    return (
        f"{data['classes']} classes; {data['tasks']} tasks of {document['ways']} classes with"
        f" {data['targets']} photos that nobody trained on, by the exported programs of a bank of {document['bases']}"
        f" `{document['backbone']}`, {page.seeds_line(document)}. Models of one target take turns photo by photo; a"
        f" photo's time is from its file to its answer, with the tenth and ninetieth percentile, {threads}"
        f" ({machine['cores']} cores of {machine['processor']}, load {machine['load']:.1f} at the end). Differences are"
        " to the first row of the same target."
    )


def _milliseconds(row: page.Row) -> str:
    times = row.get("photo_ms")
    return f"{times['p50']:.1f} ({times['p10']:.1f} to {times['p90']:.1f})" if times else ""


COLUMNS = {
    "": page.text("name"),
    "target": page.text("target"),
    "accuracy": page.percent("accuracy"),
    "against the first row": page.gain(),
    "a photo, ms": _milliseconds,
    "condensed in, ms": lambda row: f"{row['condense_ms']:.0f}" if "condense_ms" in row else "",
    "weights": lambda row: f"{row['weights_bytes'] / 1e6:.3g} MB" if "weights_bytes" in row else "",
}
PAGES = {
    "bank": page.StudyPage("a bank through its exported programs", COLUMNS, about_bank, inner_plot, plotted="inner")
}
