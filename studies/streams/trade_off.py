"""Trade-off of class shares between own and foreign histories.

Shares gain with a person's own history and lose with another person's, by how much they are held back. The study
evaluates the families of :mod:`studies.streams.rivals.trade_off` on pseudo-people of several sets and encoders.
Validation people choose the default of ``elsewhere``; test people measure its gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from refocus.benchmarks.measure import worst_tenth
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.methods.iciia.delivery import FOREIGN_PART
from refocus.cloud_train.progress import say
from studies import experiment
from studies.experiment import Cache, Experiment, Group, Needs, Row, Study
from studies.streams.judging import share_harmed
from studies.streams.pages import about_pseudo_people
from studies.streams.points import FEWEST, PointGrid, StreamSettings, check_axis, point_needs, prepare
from studies.streams.pseudo_people import BASE, Cell
from studies.streams.rivals.trade_off import FAMILIES, answered_right, best_point, median_similarity

OWN = (BASE, Cell("history", history=63))
FOREIGN = tuple(Cell("content", content="foreign", history=history) for history in (15, 63))
MIXED = tuple(Cell("content", content="mixed", history=history) for history in (15, 63))
CELLS = {"own": OWN, "mixed": MIXED, "foreign": FOREIGN}
EVERY = {cell.name: cell for cell in (*OWN, *MIXED, *FOREIGN)}
WANTED = {
    "own": (1 / 3, 1 / 2),
    "foreign": -0.003,
    "mixed": -0.003,
}  # parts of the known gain; accuracy
CODE = (
    "refocus.edge.recognize.class_shares",
    "studies.streams.rivals.shares",
    "studies.streams.rivals.trade_off",
    "studies.streams.trade_off",
)


@dataclass(frozen=True)
class TradeOffGrid(PointGrid):
    """Name what the study evaluates.

    Attributes:
        cell: names of cells, which vary the content and length of the history.
    """

    cell: tuple[str, ...] = tuple(EVERY)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_axis("cell", self.cell, EVERY)


def needs(settings: StreamSettings, cell: experiment.Cell) -> Needs:
    """Return what the answers of all families depend on."""
    own = {"people": settings.people, "targets": settings.targets, "shares": asdict(settings.shares)}
    return point_needs(settings, cell) | Needs(own, {}, CODE)


def evaluate_cell(settings: StreamSettings, cell: experiment.Cell, seed: int, cache: Cache) -> list[Row]:
    """Return the answers to validation and test people.

    They are those of the classifier, among known classes, and of each family.
    """
    point = prepare(settings, cache, str(cell["data"]), str(cell["encoder"]), seed)
    held, history = point.splits["validation"], EVERY[str(cell["cell"])]
    near, number, rows = median_similarity(held.features, held.label), [*EVERY].index(history.name), list[Row]()
    for name in ("validation", "test"):
        split = point.splits[name]
        people = point.people(name, history, settings.people, settings.targets, 7000 + 100 * seed + number)
        if len(people) < FEWEST:
            continue
        values: dict[str, list[np.ndarray]] = {}
        for person in people:
            ((observed, answered),) = person.cases[0].steps
            label, logits = split.label[answered], split.logits[answered]
            among = np.where(np.isin(np.arange(logits.shape[1]), person.classes), logits, -np.inf)
            past, photos = (split.features[observed], split.logits[observed]), (split.features[answered], logits)
            families = answered_right(point.knowledge, settings.shares, past, photos, label, near)
            correct = {"plain": logits.argmax(1) == label, "known": among.argmax(1) == label}
            correct |= {measure(f, v): of for f in families for v, of in zip(FAMILIES[f][0], families[f], strict=True)}
            for key, of in correct.items():
                values.setdefault(key, []).append(of.astype(int))
        answers = {key: np.concatenate(of) for key, of in values.items()}
        rows.append(Row({"split": name}, *point.answers(people, seed), answers, {"history": history.history}))
    return rows


def measure(family: str, value: float) -> str:
    """Return the name of the measure of one point of a family's grid."""
    return f"{family} {value:g}"


def document(experiment: Experiment, cache: Cache, groups: list[Group]) -> dict[str, Any]:
    """Return the document's fields: the chosen value, rows and curve.

    Validation people choose the value; rows and curve have gains of test people.

    Raises:
        DataError: no validation people have enough photos.
    """
    chosen, elsewhere = choose_elsewhere(groups), experiment.settings.shares.elsewhere
    say(f"elsewhere = {chosen:g} by validation people; in use: {elsewhere:g}")
    more = {"chosen": chosen, "rows": _rows(groups, elsewhere), "curve": [*_pooled(groups)]}
    return {**more, **experiment.settings.stated()}


def choose_elsewhere(groups: Sequence[Group]) -> float:
    """Return the value of ``elsewhere`` that validation people choose.

    Sets, encoders and seeds are weighted by their number of people.
    """
    pooled = {(row["cell"], row["value"]): row["gain"]["mean"] for row in _pooled(groups, "validation", ("elsewhere",))}
    grid = FAMILIES["elsewhere"][0]
    empty = [cell.name for cell in (*OWN, *FOREIGN) if (cell.name, grid[0]) not in pooled]
    if empty:
        raise DataError(f"no validation people have photos enough for {', '.join(empty)}; give more photos, or sets")
    own, foreign = (
        np.array([np.mean([pooled[cell.name, value] for cell in cells]) for value in grid]) for cells in (OWN, FOREIGN)
    )
    return grid[best_point(own, foreign)]


def _pooled(
    groups: Sequence[Group], split: str = "test", families: Sequence[str] = tuple(FAMILIES)
) -> Iterator[dict[str, Any]]:
    """Yield the gain of each point of each family, pooled over sets."""
    for cell in EVERY:
        wanted = {"cell": cell, "split": split}.items()
        rows = [row for group in groups if wanted <= group.labels.items() for row in group.rows]
        if not rows:
            continue
        group, apart = Group.of({}, rows, ("data",)), Group.of({}, rows, ("data", "encoder"))
        plain = group.values("plain")
        for family in families:
            for value in FAMILIES[family][0]:
                correct = group.values(measure(family, value))
                gain = group.interval(correct - plain)
                del gain["seeds"]  # of rows, which are of several sets
                row = {"cell": cell, "family": family, "value": value, "people": group.record["people"]}
                yield row | {"gain": gain, "harmed": share_harmed(apart, correct, plain)}


def _rows(groups: Sequence[Group], elsewhere: float) -> list[dict[str, Any]]:
    """Return rows with the gain of test people, the least gain first.

    Shares are held back by the given value of ``elsewhere``.
    """
    contents = {cell.name: content for content, cells in CELLS.items() for cell in cells}
    rows = []
    for group in (group for group in groups if group.labels["split"] == "test"):
        plain, correct = group.values("plain"), group.values(measure("elsewhere", elsewhere))
        known = group.by_person(group.values("known")) - group.by_person(plain)
        row = {
            "data": group.labels["data"],
            "encoder": group.labels["encoder"],
            "content": contents[str(group.labels["cell"])],
            "history": group.rows[0].facts["history"],
            "people": group.record["people"],
            "known_gain": float(known.mean()),
            "gain": group.interval(correct - plain),
            "harmed": share_harmed(group, correct, plain),
            "worst_tenth": worst_tenth(group.by_person(correct - plain)),
        }
        rows.append(row)
    return sorted(rows, key=lambda row: row["gain"]["mean"])


COLUMNS: page.Columns = {
    "data": page.text("data"),
    "encoder": page.text("encoder"),
    "history": lambda row: f"{row['history']} {row['content']}",
    "people": page.text("people"),
    "shares": page.gain(),
    "classes known": lambda row: f"{100 * row['known_gain']:+.1f}",
    "of the way": lambda row: f"{row['gain']['mean'] / row['known_gain']:.0%}" if row["content"] == "own" else "",
    "people harmed": lambda row: f"{row['harmed']:.0%}",
    "worst tenth": lambda row: f"{100 * row['worst_tenth']:+.1f}",
}


def _about(document: page.Document) -> str:
    return (
        f"{' '.join(_losses(document, content) for content in ('foreign', 'mixed'))} {_closures(document)}"
        f" {about_pseudo_people(document)} {document['people']} people of each set, encoder, history and seed."
        f" `elsewhere` = {document['settings']['elsewhere']:g}; validation people choose {document['chosen']:g}: of the"
        f" values within a tenth of a point of the largest expected gain where {FOREIGN_PART:.0%} of the photos are of"
        " anything, the one that holds back most. A person is harmed where their own 95 % interval lies below zero. The"
        " picture has every point that was tried, of four ways to hold shares back."
    )


def _losses(document: page.Document, content: str) -> str:
    """Return a sentence with the loss of shares with other histories."""
    rows = [row for row in document["rows"] if row["content"] == content]
    people = [row["people"] for row in rows]
    mean, part = (np.average(column, weights=people) for column in (
        [row["gain"]["mean"] for row in rows], [row["harmed"] for row in rows]))  # fmt: skip
    worst, limit = min(rows, key=lambda row: row["gain"]["mean"]), WANTED[content]
    verdict = "within" if mean >= limit else "beyond"  # type: ignore[operator]
    return (
        f"With {content} histories shares change accuracy by {100 * mean:+.2f} points, {verdict} the {100 * limit:+.1f}"  # type: ignore[operator]
        f" that were aimed at ({worst['data']}, {worst['encoder']}, {worst['history']} photos:"
        f" {page.short_points(worst['gain'])}), and {part:.0%} of the people are harmed."
    )


def _closures(document: page.Document) -> str:
    """Return a sentence with the part of the gain of known classes.

    Histories are the person's own.
    """
    parts = []
    for history, wanted in zip((15, 63), (1 / 3, 1 / 2), strict=True):
        rows = [row for row in document["rows"] if (row["content"], row["history"]) == ("own", history)]
        closed = {f"{row['data']}, {row['encoder']}": row["gain"]["mean"] / row["known_gain"] for row in rows}
        short = [f"{name} {part:.0%}" for name, part in sorted(closed.items(), key=lambda i: i[1]) if part < wanted]
        reached = f"{len(closed) - len(short)} of {len(closed)} sets and encoders reach {wanted:.0%}"
        parts.append(f"at {history} own photos {reached}" + (f" (not {', '.join(short)})" if short else ""))
    return f"Of the way to classes that are known, {'; '.join(parts)}."


def _plot(document: page.Document) -> bytes:
    """Draw the gain with own against the loss with foreign histories.

    Each family has a line.
    """
    figure, axes = page.new_figure()

    def mean(family: str, value: float, cells: Sequence[Cell]) -> float:
        names = {cell.name for cell in cells}
        found = [r for r in document["curve"] if r["cell"] in names and (r["family"], r["value"]) == (family, value)]
        return 100 * float(np.mean([row["gain"]["mean"] for row in found]))

    for family, (grid, _) in FAMILIES.items():
        there = {row["value"] for row in document["curve"] if row["family"] == family}
        points = [(mean(family, value, FOREIGN), mean(family, value, OWN)) for value in grid if value in there]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=family)
    value = document["settings"]["elsewhere"]
    default = mean("elsewhere", value, FOREIGN), mean("elsewhere", value, OWN)
    axes.plot(*default, "k*", markersize=11, label="default")
    axes.set_ylabel("gain, own histories, points")
    axes.set_xlabel("gain, foreign histories, points")
    axes.legend(fontsize=8, frameon=False)
    return page.png(figure)


PAGES = {"trade-off": page.StudyPage("Class shares: own histories against those of others", COLUMNS, _about, _plot)}
STUDY = Study(StreamSettings(), TradeOffGrid(), needs, evaluate_cell, document)
