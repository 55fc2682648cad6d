"""Stream protocol: compare personalisation methods on pseudo-people.

One factor is varied at a time. Every method observes a stream of (feature, logits) of one person and answers their
photos. A point is one photo set, one encoder and one seed (:mod:`studies.streams.points`). Validation people choose
every setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from refocus.benchmarks.measure import interleave, worst_tenth
from refocus.cloud_train.errors import UsageError
from studies.experiment import Cache, Experiment, Group, Study
from studies.streams.judging import share_harmed
from studies.streams.methods import KNOWN, METHODS, WITHOUT_TRAINING, evaluate_cell, maker, needs
from studies.streams.points import PointGrid, StreamSettings, check_axis, prepare
from studies.streams.pseudo_people import BASE, CELLS, OF_LONG_STREAMS, RECOVERY
from studies.streams.rivals.method import StreamMethod

CELL_NAMES = tuple(cell.name for cell in (*CELLS, *OF_LONG_STREAMS))
TIMED_ROUNDS = 16  # rounds of a person's stream; each method runs once per round


@dataclass(frozen=True)
class StreamGrid(PointGrid):
    """Name what the stream study evaluates.

    Attributes:
        cell: names of cells; each varies the number of classes, or the order, length or content of the history.
        method: names of methods; a trained head stands for all ways to answer with it.
    """

    cell: tuple[str, ...] = CELL_NAMES
    method: tuple[str, ...] = METHODS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_axis("cell", self.cell, CELL_NAMES)
        check_axis("method", self.method, METHODS)


def document(experiment: Experiment, cache: Cache, groups: list[Group]) -> dict[str, Any]:
    """Return the document's fields: points, heads, times and rows.

    Rows get the people harmed, the calibration error and the size of the state.

    Raises:
        UsageError: a row lacks the classifier, the known classes or class shares to compare with.
    """
    by_name = {tuple(group.labels.values()): group for group in groups}
    rows, points, heads = [], dict[tuple[Any, ...], dict[str, Any]](), dict[str, dict[str, Any]]()
    for group in groups:
        data, encoder, cell, method = group.labels.values()
        for row in group.rows:
            where = {"data": data, "encoder": encoder, "seed": row.labels["seed"]}
            points.setdefault((*where.values(),), where).update(row.facts.get("point", {}))
            if "head" in row.facts:
                heads.setdefault(f"{row.facts['head']['head']} {where}", where | row.facts["head"])
        if method == KNOWN:
            continue
        try:
            plain, known, _ = (by_name[data, encoder, cell, name] for name in ("original", KNOWN, "shares"))
        except KeyError as missing:
            raise UsageError(f"the study needs the method {missing.args[0][-1]} in each cell") from None
        group.record.update(_details(group, plain, known))
        rows.append(group.record)
    rows.sort(key=lambda row: row["gain"]["mean"] if row["method"] == "shares" else 1.0)
    costs = [cost for data, encoder in dict.fromkeys(key[:2] for key in by_name) for cost in _costs(
        experiment, cache, str(data), str(encoder))]  # fmt: skip
    more = {"points": [*points.values()], "heads": [*heads.values()], "costs": costs}
    return {"rows": rows, **more, **experiment.settings.stated()}


def _details(group: Group, plain: Group, known: Group) -> dict[str, Any]:
    correct, without = group.values(), plain.values()
    gains = np.mean([row.facts["steps"] for row in group.rows], axis=0)
    gains -= np.mean([row.facts["steps"] for row in plain.rows], axis=0)
    details = {
        "known_gain": float((known.by_person(known.values()) - plain.by_person(without)).mean()),
        "ece": float(np.mean([row.facts["ece"] for row in group.rows])),
        "harmed": share_harmed(group, correct, without),
        "worst_tenth": worst_tenth(group.by_person(correct - without)),
        "state_bytes": max(row.facts["state_bytes"] for row in group.rows),
        "history": group.rows[0].facts["history"],
    }
    if len(gains) > 1:
        after = {str(photos): float(gain) for photos, gain in zip(RECOVERY, gains, strict=True)}
        details |= {"recovery": recovery(gains), "gain_after": after}
    return details


def recovery(gains: np.ndarray) -> int | None:
    """Return the number of own photos after which no gain is negative.

    Args:
        gains: gain after each number of own photos in ``RECOVERY``, (steps,).

    Returns:
        The number; None: more than were measured.
    """
    after = [photos for number, photos in enumerate(RECOVERY) if (gains[number:] >= 0).all()]
    return after[0] if after else None


def _costs(experiment: Experiment, cache: Cache, data: str, encoder: str) -> list[dict[str, Any]]:
    """Measure the time per photo of the methods without training.

    A photo is observed or answered; the person is one of the base cell. Times are measured again whenever the document
    is written, interleaved, so that other load during the evaluation of cells does not affect them.
    """
    settings, seed = experiment.settings, experiment.seeds[0]
    point = prepare(settings, cache, data, encoder, seed)
    [person] = point.people("test", BASE, 1, min(settings.targets, 8), seed)
    split, steps = point.splits["test"], person.cases[0].steps
    photos = sum(len(observed) + len(answered) for observed, answered in steps)

    def show(make: Any) -> None:
        method: StreamMethod = make(person)
        for observed, answered in steps:
            for row in observed.tolist():
                method.observe(split.features[row], split.logits[row])
            for row in answered.tolist():
                method.answer(split.features[row], split.logits[row])

    timed = [name for name in WITHOUT_TRAINING if name in experiment.grid.method]
    cells: list[dict[str, Any]] = [{"data": data, "encoder": encoder, "method": name} for name in timed]
    makers = {c["method"]: maker(point, settings, c["method"], c, seed, cache)[0] for c in cells}
    timings = interleave({name: partial(show, make) for name, make in makers.items()}, TIMED_ROUNDS, 2)
    return [cell | {"us_a_photo": 1e3 * timings.percentile(cell["method"], 50) / photos} for cell in cells]


STUDY = Study(StreamSettings(), StreamGrid(), needs, evaluate_cell, document)
