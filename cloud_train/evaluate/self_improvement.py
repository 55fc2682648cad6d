"""Evaluate self-improvement on streams of owners (TAPER 5.2 and Fig. 3).

Exported banks and the device's own code are used. An owner meets the classes of one task. Batches of their photos
teach; on the rest of their photos the model is evaluated that serves after each batch: a network for the detected
classes, and the generic network with the shares of these classes added to its logits. The difference is the gain of the
network; an owner gets the model that the bank's card names. Control: owners who meet all classes equally, for whom the
accuracy must not fall.

Notation: K owners, S steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.evaluate.kept_answers import kept_numbers
from refocus.cloud_train.evaluate.pairs import paired
from refocus.cloud_train.methods.taper.tasks import Around, TaskPhotos
from refocus.cloud_train.progress import track
from refocus.cloud_train.runs.taper import TaperRun
from refocus.edge.bundle import SelfImprovementBy
from refocus.edge.recognize import Recognizer
from refocus.edge.taper import Bank, SelfImprovement

OWNERS, BATCH, STEPS, JUDGED = 60, 16, 6, 40
WAYS: tuple[SelfImprovementBy, ...] = ("networks", "shares")
_SERVED = {"networks": "networks", "shares": "class shares alone", "generic": "the generic model as it is"}
_SEED, _TRIES = 2, 1000


def study_improvement(run: TaperRun, seeds: Sequence[int], command: str, owners: int = OWNERS) -> dict[str, Any]:
    """Evaluate the generic and the serving model after each batch."""
    by_content = {content: [_of_seed(run, seed, content, owners) for seed in seeds] for content in ("own", "mixed")}
    rows = [
        {
            "name": content,
            "photos": BATCH * step,
            "generic": _mean(part.shares[:, 0] for part in parts),
            "shares_alone": _mean(part.shares[:, step] for part in parts),
            "networks": _mean(part.networks[:, step] for part in parts),
            "served": _mean(part.served[:, step] for part in parts),
            "gain": _paired(part.served[:, step] - part.served[:, 0] for part in parts),
            "by_network": _paired(part.networks[:, step] - part.shares[:, step] for part in parts),
        }
        for content, parts in by_content.items()
        for step in range(STEPS + 1)
    ]
    data = page.data_of(run.config.source, run.table, owners=owners, targets=owners * JUDGED)
    serves = [part.by for part in by_content["own"]]
    return page.study_document(
        "improvement", command, seeds, rows=rows, data=data, backbone=run.config.small.name, batch=BATCH, serves=serves
    )


@dataclass(frozen=True)
class _Owners:
    """Accuracy per owner before the first batch and after each, (K, S + 1).

    The first column is the accuracy of the generic model.

    Attributes:
        networks: with networks for the detected classes.
        shares: with the generic network and class shares alone.
        by: the model that the bank's owners get.
    """

    networks: np.ndarray
    shares: np.ndarray
    by: SelfImprovementBy

    @property
    def served(self) -> np.ndarray:
        """Accuracy (K, S + 1) with the model that the bank's owners get."""
        as_it_is = np.repeat(self.shares[:, :1], self.shares.shape[1], axis=1)
        return {"networks": self.networks, "shares": self.shares, "generic": as_it_is}[self.by]


def _of_seed(run: TaperRun, seed: int, content: str, owners: int) -> _Owners:
    """Evaluate the owners of one seed; the results are cached in the run."""
    bank, asked = Bank.open(run.bank(seed).folder), ["owners", content, owners, BATCH, STEPS, JUDGED]
    right = kept_numbers(run, seed, asked, lambda: _right_of(run, bank, content, owners))
    return _Owners(right["networks"], right["shares"], bank.card.self_improvement)


def _right_of(run: TaperRun, bank: Bank, content: str, owners: int) -> dict[str, np.ndarray]:
    """Compute the accuracy (K, S + 1) by networks and by class shares alone."""
    table = run.table.of_split("test")
    index, around, rng = TaskPhotos(table.label, np.zeros(len(table), int)), run.around(), np.random.default_rng(_SEED)
    right: dict[str, np.ndarray] = {by: np.zeros((owners, STEPS + 1)) for by in WAYS}
    for owner in track(range(owners), f"owners, {content}", owners):
        rows = _photos(index, around, rng) if content == "own" else np.arange(len(table))
        rows = rng.permutation(rows)[: BATCH * STEPS + JUDGED]
        contents = [table.read(name) for name in table.photo[rows].tolist()]
        teach, judge, truth = contents[:-JUDGED], contents[-JUDGED:], table.label[rows[-JUDGED:]]
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            improved = {by: SelfImprovement(bank, Path(folder) / by, threads=1, by=by) for by in WAYS}
            for one in improved.values():
                stack.enter_context(one)
            generic = _right(improved["shares"].recognizer, judge, truth)
            for by in WAYS:
                right[by][owner] = generic
            for step in range(1, STEPS + 1):
                photos = teach[BATCH * (step - 1) : BATCH * step]
                batch = np.array([improved["shares"].judge(photo) for photo in photos])
                for by, one in improved.items():
                    changed = one.learn(batch).changed
                    before = right[by][owner, step - 1]
                    right[by][owner, step] = _right(one.recognizer, judge, truth) if changed else before
    return right


def _photos(index: TaskPhotos, around: Around, rng: np.random.Generator) -> np.ndarray:
    """Draw the rows of a task that has enough photos.

    The task is of any domain; the bank is not informed of the domain.

    Raises:
        DataError: no task among many draws has enough photos.
    """
    most = 0
    for _ in range(_TRIES):
        rows = index.rows(index.draw(around, False, rng))
        if len(rows) >= BATCH * STEPS + JUDGED:
            return rows
        most = max(most, len(rows))
    raise DataError(
        f"no task has {BATCH * STEPS + JUDGED} test photos, the largest has {most}; add photos, or make tasks of more"
        " classes"
    )


def _right(recognizer: Recognizer, photos: Sequence[bytes], truth: np.ndarray) -> float:
    logits = np.array([recognizer.recognize(content).logits for content in photos])
    return float((logits.argmax(1) == truth).mean())


def _mean(shares: Iterable[np.ndarray]) -> float:
    return float(np.mean([*shares]))


def _paired(differences: Iterable[np.ndarray]) -> dict[str, float]:
    rows = [*differences]
    return paired(rows, np.full(len(rows[0]), JUDGED))


# ---- how the study is shown


def about_owners(document: page.Document) -> str:
    """Describe the data and the conditions of a document about owners."""
    data = document["data"]
    return (
        f"{data['classes']} classes; {data['owners']} owners, batches of {document['batch']}"
        f" unlabelled photos of each, judged on {data['targets']} other photos of theirs; through exported banks of"
        f" `{document['backbone']}`, {page.seeds_line(document)}."
        " Intervals are over owners, to whom one set of photos is dealt: for other photos they are wider."
        f"{_serving(document)}"
    )


def _serving(document: page.Document) -> str:
    """Describe the models that owners get by the card of each seed's bank.

    It returns "" for earlier documents, which do not state them.
    """
    serves = document.get("serves", [])
    said = ", ".join(f"{serves.count(by)} {_SERVED[by]}" for by in dict.fromkeys(serves))
    return f" By the validation photos of each seed's bank, owners get: {said}." if serves else ""


def _by_networks(row: page.Row) -> float:
    """Return the accuracy with networks for the detected classes.

    Documents without this field were served by networks.
    """
    return float(row.get("networks", row["served"]))


def improvement_plot(document: page.Document) -> bytes:
    """Plot accuracy by unlabelled photos, like Fig. 3, as PNG."""
    figure, axes = page.new_figure()
    for name, what, style in (("own", "photos of one task", "o-"), ("mixed", "photos of all classes", "s--")):
        rows = [row for row in document["rows"] if row["name"] == name]
        photos, shares = [row["photos"] for row in rows], [100 * row["shares_alone"] for row in rows]
        axes.plot(photos, [100 * _by_networks(row) for row in rows], style, ms=4, label=what)
        axes.plot(photos, shares, style[1:], lw=1, label=f"{what}: class shares alone")
        axes.axhline(100 * rows[0]["generic"], color=page.GREY, lw=1, ls=style[1:])
    return page.accuracy_png(figure, axes, "unlabelled photos seen (grey: the generic model)")


_OWNERS_PHOTOS = {"own": "of one task", "mixed": "of all classes (control)"}
COLUMNS = {
    "owner's photos": lambda row: _OWNERS_PHOTOS[row["name"]],
    "photos seen": page.text("photos"),
    "generic model": page.percent("generic"),
    "with class shares alone": page.percent("shares_alone"),
    "networks for the classes found": lambda row: f"{_by_networks(row):.1%}",
    "what serves": page.percent("served"),
    "gain": page.gain(),
    "by the network": page.gain("by_network"),
}
TITLE = "a task found in unlabelled photos (TAPER Fig. 3)"
PAGES = {"improvement": page.StudyPage(TITLE, COLUMNS, about_owners, improvement_plot)}
