"""Draw tasks of held-out photos and compute the accuracy on them.

Every evaluation of a bank uses this module. All rows of a document are evaluated on the same tasks and photos, so
differences are paired.

Notation: K tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.evaluate.pairs import paired
from refocus.cloud_train.methods.taper.tasks import Task, TaskPhotos
from refocus.cloud_train.methods.taper.train import best_of
from refocus.cloud_train.runs.taper import TaperRun

TASKS, PHOTOS_PER_TASK = 200, 60
MOST_KINDS = 48  # of tasks, in the picture of their mixers
_TASK_SEED = 1  # of the tasks of the evaluation; those of training are drawn by the run's own seeds
Shares = np.ndarray  # (K,) accuracy per task


@dataclass(frozen=True)
class Evaluation:
    """The tasks of one study with the photos of each.

    Attributes:
        rows: of each task, indices into the test photos.
    """

    photos: Photos
    tasks: list[Task]
    rows: list[np.ndarray]

    @classmethod
    def draw(cls, run: TaperRun, kind: str = "", count: int = TASKS, photos: Photos | None = None) -> Evaluation:
        """Draw tasks of photos, by default of all test photos.

        Where the same few tasks are drawn again and again, as whole super-categories are, each is taken once with all
        of its photos: intervals over tasks would be too narrow otherwise.
        """
        photos = photos or run.photos("test")
        index, around, rng = TaskPhotos.of(photos), run.around(kind), np.random.default_rng(_TASK_SEED)
        drawn = [index.draw(around, run.by_domain, rng) for _ in range(count)]
        distinct = [*dict.fromkeys(drawn)]
        if len(distinct) < count / 2:
            return cls(photos, distinct, [index.rows(task) for task in distinct])
        rows = [rng.permutation(index.rows(task))[:PHOTOS_PER_TASK] for task in drawn]
        return cls(photos, drawn, rows)

    @property
    def sizes(self) -> np.ndarray:
        """(K,) photos of each task."""
        return np.array([len(rows) for rows in self.rows])

    def right(self, number: int, logits: Tensor, select: bool) -> float:
        """Return the share of a task's photos with a correct prediction.

        Args:
            number: index of the task.
            logits: (photos, C) for the task's photos.
            select: whether to predict among the task's classes; otherwise among all.
        """
        label, task = self.photos.label[self.rows[number]], self.tasks[number]
        best = best_of(logits, task) if select else logits.argmax(1)
        return float((best == label).float().mean())

    def scores(self, shares: Sequence[Shares], first: Sequence[Shares]) -> dict[str, Any]:
        """Return the accuracy and its paired difference to another row.

        The accuracy is the mean over seeds; every photo has the same weight.
        """
        accuracy = float(np.mean([np.average(share, weights=self.sizes) for share in shares]))
        return {"accuracy": accuracy, "gain": paired([a - b for a, b in zip(shares, first, strict=True)], self.sizes)}

    def by_domain(self, shares: Sequence[Shares], domains: Sequence[str]) -> dict[str, float]:
        """Return the accuracy per domain, the mean over seeds.

        It is empty if a task covers all domains, or there is only one.
        """
        of_task, mean = np.array([task.domain for task in self.tasks]), np.mean(shares, axis=0)
        if len(domains) < 2 or of_task.min() < 0:
            return {}
        return {
            domains[number]: float(np.average(mean[of_task == number], weights=self.sizes[of_task == number]))
            for number in np.unique(of_task).tolist()
        }


def data_of_tasks(run: TaperRun, evaluation: Evaluation) -> dict[str, Any]:
    """Return the section ``data`` of a document about tasks."""
    tasks = {"tasks": len(evaluation.tasks), "targets": int(evaluation.sizes.sum())}
    return page.data_of(run.config.source, run.table, domains=len(run.domains), **tasks)


def inner(run: TaperRun, evaluation: Evaluation, seed: int) -> dict[str, Any]:
    """Compute the mixers by kind of task and the likeness of bases (Fig. 4).

    Returns:
        ``tasks``, names of the kinds; ``mixers``, per block a row per kind and a number per basis; ``similarity``, the
        cosine of every two bases' differences from the mean basis.
    """
    taper, descriptions = run.taper(seed), run.descriptions()
    with torch.no_grad():
        mixers = taper.predictor(torch.stack([descriptions.of(task) for task in evaluation.tasks]))
    kinds: dict[str, list[int]] = {}
    for k, task in enumerate(evaluation.tasks):
        group, domain = run.words_of(task)
        kinds.setdefault(f"{domain} {group}".strip(), []).append(k)
    names = sorted(kinds)[:MOST_KINDS]
    by_kind = torch.stack([mixers[kinds[name]].mean(0) for name in names], dim=1)
    apart = taper.bases.weights.detach() - taper.bases.weights.detach().mean(0)
    unit = apart / apart.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return {"tasks": names, "mixers": _rounded(by_kind), "similarity": _rounded(unit @ unit.T)}


def _rounded(values: Tensor) -> Any:
    return np.round(values.double().numpy(), 3).tolist()


def inner_plot(document: page.Document) -> bytes | None:
    """Plot the mixers of each block and the similarity of bases as PNG.

    The figure is like Fig. 4 of the paper: a row per kind of task, a column per basis.
    """
    from matplotlib.figure import Figure

    if "inner" not in document:
        return None
    about = document["inner"]
    blocks, names = about["mixers"], [shorten(name, 48, placeholder=" …") for name in about["tasks"]]
    figure = Figure(figsize=(3 + 2.3 * (len(blocks) + 1), 1.2 + 0.13 * len(names)), layout="constrained")
    *places, last = figure.subplots(1, len(blocks) + 1)
    for number, (axes, mixers) in enumerate(zip(places, blocks, strict=True), 1):
        shown = axes.imshow(mixers, aspect="auto", cmap="Blues", vmin=0, vmax=max(map(max, mixers)))
        axes.set_title(f"mixers of block {number}", fontsize=9)
        axes.set_yticks(range(len(names)), names if number == 1 else [""] * len(names), fontsize=6)
        axes.set_xlabel("basis", fontsize=8)
        figure.colorbar(shown, ax=axes, location="bottom", shrink=0.8).ax.tick_params(labelsize=6)
    shown = last.imshow(about["similarity"], cmap="RdBu_r", vmin=-1, vmax=1)
    last.set_title("likeness of bases", fontsize=9)
    figure.colorbar(shown, ax=last, location="bottom", shrink=0.8).ax.tick_params(labelsize=6)
    return page.png(figure)
