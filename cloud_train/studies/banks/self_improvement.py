"""Self-improvement on streams of owners (TAPER section 5.2 and Fig. 3), through exported banks and the device's code.

An owner meets the classes of one task. Batches of their photos teach; the rest of their photos judge the model that
serves after each batch. Two controls: owners who meet all classes alike, for whom nothing may get worse, and the
generic network with the class shares that were found added to its logits, which says how much the network adds.

Notation: K owners, S steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.errors import DataError
from refocus.cloud_train.methods.taper.tasks import Around, TaskPhotos
from refocus.cloud_train.progress import track
from refocus.cloud_train.runs.taper import TaperRun
from refocus.cloud_train.studies import page
from refocus.cloud_train.studies.pairs import paired
from refocus.edge.recognize import Recognizer
from refocus.edge.taper import Bank, SelfImprovement, class_shares, shift_of

OWNERS, BATCH, STEPS, JUDGED = 60, 16, 6, 40
_SEED, _TRIES = 2, 1000


def study_improvement(run: TaperRun, seeds: Sequence[int], command: str, owners: int = OWNERS) -> dict[str, Any]:
    """Accuracy of the generic model and of what serves, after each batch."""
    by_content = {content: [_of_seed(run, seed, content, owners) for seed in seeds] for content in ("own", "mixed")}
    rows = [
        {
            "name": content,
            "photos": BATCH * step,
            "generic": _mean(part.served[:, 0] for part in parts),
            "shares_alone": _mean(part.shares_alone[:, step] for part in parts),
            "served": _mean(part.served[:, step] for part in parts),
            "gain": _paired(part.served[:, step] - part.served[:, 0] for part in parts),
            "by_network": _paired(part.served[:, step] - part.shares_alone[:, step] for part in parts),
        }
        for content, parts in by_content.items()
        for step in range(STEPS + 1)
    ]
    data = page.data_of(run.config.source, run.table, owners=owners, targets=owners * JUDGED)
    return page.study_document(
        "improvement", command, seeds, rows=rows, data=data, backbone=run.config.small.name, batch=BATCH
    )


@dataclass(frozen=True)
class _Owners:
    """Shares of right answers (K, S + 1), before the first batch and after each: of what serves, which at first is the
    generic model, and of the generic network with the class shares alone."""

    served: np.ndarray
    shares_alone: np.ndarray


def _of_seed(run: TaperRun, seed: int, content: str, owners: int) -> _Owners:
    bank, table = Bank.open(run.bank(seed).folder), run.table.of_split("test")
    index, around, rng = TaskPhotos(table.label, np.zeros(len(table), int)), run.around(), np.random.default_rng(_SEED)
    result = _Owners(np.zeros((owners, STEPS + 1)), np.zeros((owners, STEPS + 1)))
    for owner in track(range(owners), f"owners, {content}", owners):
        rows = _photos(index, around, rng) if content == "own" else np.arange(len(table))
        rows = rng.permutation(rows)[: BATCH * STEPS + JUDGED]
        contents = [table.read(name) for name in table.photo[rows].tolist()]
        teach, judge, truth = contents[:-JUDGED], contents[-JUDGED:], table.label[rows[-JUDGED:]]
        with tempfile.TemporaryDirectory() as folder, SelfImprovement(bank, Path(folder), threads=1) as improvement:
            generic = served = alone = _logits(improvement.recognizer, judge)
            result.served[owner, 0] = result.shares_alone[owner, 0] = _right(generic, truth)
            seen = np.zeros((0, len(bank.labels)))
            for step in range(1, STEPS + 1):
                batch = np.array([improvement.judge(photo) for photo in teach[BATCH * (step - 1) : BATCH * step]])
                taught, seen = improvement.learn(batch), np.concatenate([seen, batch])
                if taught.changed:
                    served = _logits(improvement.recognizer, judge)
                    alone = generic + shift_of(class_shares(seen)) if taught.personal else generic
                result.served[owner, step], result.shares_alone[owner, step] = (
                    _right(served, truth),
                    _right(alone, truth),
                )
    return result


def _photos(index: TaskPhotos, around: Around, rng: np.random.Generator) -> np.ndarray:
    """Rows of a task that has photos enough, of any domain: the bank is told none.

    Raises:
        DataError: no task of many has.
    """
    for _ in range(_TRIES):
        rows = index.rows(index.draw(around, False, rng))
        if len(rows) >= BATCH * STEPS + JUDGED:
            return rows
    raise DataError(f"no task has {BATCH * STEPS + JUDGED} test photos; add photos, or tasks of more classes")


def _logits(recognizer: Recognizer, photos: Sequence[bytes]) -> np.ndarray:
    return np.array([recognizer.recognize(content).logits for content in photos])


def _right(logits: np.ndarray, truth: np.ndarray) -> float:
    return float((logits.argmax(1) == truth).mean())


def _mean(shares: Iterable[np.ndarray]) -> float:
    return float(np.mean([*shares]))


def _paired(differences: Iterable[np.ndarray]) -> dict[str, float]:
    rows = [*differences]
    return paired(rows, np.full(len(rows[0]), JUDGED))


# ---- how the study is shown


def about_owners(document: page.Document) -> str:
    data = document["data"]
    return (
        f"{data['classes']} classes; {data['owners']} owners, batches of {document['batch']}"
        f" unlabelled photos of each, judged on {data['targets']} other photos of theirs; through exported banks of"
        f" `{document['backbone']}`, {page.seeds_line(document)}. Intervals are over owners."
    )


def improvement_plot(document: page.Document) -> bytes:
    """PNG like Fig. 3."""
    figure, axes = page.new_figure()
    for name, what, style in (("own", "photos of one task", "o-"), ("mixed", "photos of all classes", "s--")):
        rows = [row for row in document["rows"] if row["name"] == name]
        photos, shares = [row["photos"] for row in rows], [100 * row["shares_alone"] for row in rows]
        axes.plot(photos, [100 * row["served"] for row in rows], style, ms=4, label=what)
        axes.plot(photos, shares, style[1:], lw=1, label=f"{what}: class shares alone")
        axes.axhline(100 * rows[0]["generic"], color=page.GREY, lw=1, ls=style[1:])
    return page.accuracy_png(figure, axes, "unlabelled photos seen (grey: the generic model)")


_OWNERS_PHOTOS = {"own": "of one task", "mixed": "of all classes (control)"}
COLUMNS = {
    "owner's photos": lambda row: _OWNERS_PHOTOS[row["name"]],
    "photos seen": page.text("photos"),
    "generic model": page.percent("generic"),
    "with class shares alone": page.percent("shares_alone"),
    "what serves": page.percent("served"),
    "gain": page.gain(),
    "by the network": page.gain("by_network"),
}
TITLE = "a task found in unlabelled photos (TAPER Fig. 3)"
PAGES = {"improvement": page.StudyPage(TITLE, COLUMNS, about_owners, improvement_plot)}
