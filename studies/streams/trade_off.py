"""What class shares gain with a person's own history, and lose with somebody else's, by how they are held back.

The families of :mod:`studies.streams.rivals.trade_off` on pseudo-people of several sets and encoders.
Validation people choose the default of ``elsewhere``; test people show what it is worth.

    RUN/features/, RUN/plain/             as of the study ``stream``, in whose run this one may be made
    RUN/curves/DATA-ENCODER-SEED.json     one point
    RUN/studies/trade-off.json            the results document
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from refocus.benchmarks.measure import worst_tenth
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.methods.iciia.delivery import FOREIGN_PART
from refocus.cloud_train.progress import say
from studies.streams.answers import OVER, Answers, photos_of
from studies.streams.judging import harmed
from studies.streams.pages import about_pseudo_people
from studies.streams.points import FEWEST, Point, StreamSettings, of_all_points, prepare
from studies.streams.pseudo_people import BASE, Cell
from studies.streams.rivals.trade_off import FAMILIES, answered_right, best_point, median_similarity

OWN = (BASE, Cell("history", history=63))
FOREIGN = tuple(Cell("content", content="foreign", history=history) for history in (15, 63))
MIXED = tuple(Cell("content", content="mixed", history=history) for history in (15, 63))
CELLS = {"own": OWN, "mixed": MIXED, "foreign": FOREIGN}
WANTED = {"own": (1 / 3, 1 / 2), "foreign": -0.003, "mixed": -0.003}  # of the way to known classes; points
Curves = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]  # set and encoder -> by seed


def run_curve(settings: StreamSettings, run: Path, data: str, encoder: str, seed: int) -> dict[str, Any]:
    """Of validation and test people, by cell: what known classes would gain, and each family's gains and harm."""
    point = prepare(settings, run, data, encoder, seed)
    held = point.splits["validation"]
    near = median_similarity(held.features, held.label)
    return {name: _curve(point, settings, name, seed, near) for name in ("validation", "test")}


def _curve(point: Point, settings: StreamSettings, of: str, seed: int, near: float) -> dict[str, Any]:
    split, found = point.splits[of], dict[str, Any]()
    for number, cell in enumerate((*OWN, *MIXED, *FOREIGN)):
        people = point.people(of, cell, settings.people, settings.targets, 7000 + 100 * seed + number)
        if len(people) < FEWEST:
            continue
        flags: dict[str, list[list[list[int]]]] = {name: [] for name in FAMILIES}
        harm: dict[str, list[list[bool]]] = {name: [] for name in FAMILIES}
        known: list[float] = []
        unchanged: list[list[int]] = []
        for person in people:
            ((observed, answered),) = person.cases[0].steps
            label, logits = split.label[answered], split.logits[answered]
            plain = logits.argmax(1) == label
            among = np.where(np.isin(np.arange(logits.shape[1]), person.classes), logits, -np.inf)
            unchanged.append(plain.astype(int).tolist())
            known.append(float((among.argmax(1) == label).mean() - plain.mean()))
            history = split.features[observed], split.logits[observed]
            photos = split.features[answered], logits
            for name, right in answered_right(point.knowledge, settings.shares, history, photos, label, near).items():
                flags[name].append(right.astype(int).tolist())
                harm[name].append([harmed(one, plain) for one in right])
        judged = {"photos": photos_of(point, people, seed), "plain": unchanged, "flags": flags}
        found[cell.name] = {"known": known, **judged, "harmed": harm}
    return found


def study_trade_off(settings: StreamSettings, run: Path, seeds: Sequence[int], command: str) -> dict[str, Any]:
    """The results document; points that are there are not computed again.

    Raises:
        UsageError: an unknown name.
        DataError: a photo set or weights are not there, or no people have photos enough.
    """
    curves = of_all_points(settings, run, "curves", run_curve, seeds)
    chosen = choose_elsewhere(curves)
    say(f"elsewhere = {chosen:g} by validation people; in use: {settings.shares.elsewhere:g}")
    more = {"chosen": chosen, "rows": _rows(curves, settings.shares.elsewhere), "curve": _pooled(curves)}
    return page.study_document("trade-off", command, seeds, intervals=OVER, people=settings.people, **more) | {
        "settings": asdict(settings.shares)
    }


def choose_elsewhere(curves: Curves) -> float:
    """The value that validation people choose; sets, encoders and seeds count by their people."""
    pooled = {(row["cell"], row["value"]): row["gain"]["mean"] for row in _pooled(curves, "validation", ("elsewhere",))}
    grid = FAMILIES["elsewhere"][0]
    empty = [cell.name for cell in (*OWN, *FOREIGN) if (cell.name, grid[0]) not in pooled]
    if empty:
        raise DataError(f"no validation people have photos enough for {', '.join(empty)}; give more photos, or sets")
    own, foreign = (
        np.array([np.mean([pooled[cell.name, value] for cell in cells]) for value in grid]) for cells in (OWN, FOREIGN)
    )
    return grid[best_point(own, foreign)]


def _pooled(curves: Curves, split: str = "test", families: Sequence[str] = tuple(FAMILIES)) -> list[dict[str, Any]]:
    rows = []
    for cell in (*OWN, *MIXED, *FOREIGN):
        there = [
            ((data, seed), one[split][cell.name])
            for (data, _), of in curves.items()
            for seed, one in enumerate(of)
            if cell.name in one[split]
        ]
        found = [one for _, one in there]
        for family in families if found else ():
            answers, gains = _gains(found, family, [part for part, _ in there])
            harm = np.concatenate([one["harmed"][family] for one in found])
            for number, value in enumerate(FAMILIES[family][0]):
                row = {"cell": cell.name, "family": family, "value": value, "people": answers.people}
                gain = answers.interval(gains[number])
                rows.append(row | {"gain": gain, "harmed": float(harm[:, number].mean())})
    return rows


def _gains(
    found: Sequence[Mapping[str, Any]], family: str, parts: Sequence[tuple[str, int]] | None = None
) -> tuple[Answers, np.ndarray]:
    """Answers of one cell, and by how much each point of a family's grid is ahead of the classifier, (points, n)."""
    plain = np.concatenate([np.concatenate(one["plain"]) for one in found])
    right = np.concatenate([np.concatenate(one["flags"][family], axis=1) for one in found], axis=1)
    return Answers.of([one["photos"] for one in found], parts), right - plain


def _rows(curves: Curves, elsewhere: float) -> list[dict[str, Any]]:
    """Of each set, encoder and cell, test people at one value of ``elsewhere``; the least gain first."""
    number, rows = FAMILIES["elsewhere"][0].index(elsewhere), []
    for (data, encoder), of in curves.items():
        for content, cells in CELLS.items():
            for cell in cells:
                found = [one["test"][cell.name] for one in of if cell.name in one["test"]]
                if not found:
                    continue
                answers, gains = _gains(found, "elsewhere")
                by_seed = [_gains([one], "elsewhere")[1][number] for one in found]
                known = np.concatenate([one["known"] for one in found])
                harm = np.concatenate([np.array(one["harmed"]["elsewhere"])[:, number] for one in found])
                rows.append(
                    {
                        "data": data,
                        "encoder": encoder,
                        "content": content,
                        "history": cell.history,
                        "people": answers.people,
                        "known_gain": float(known.mean()),
                        "gain": {**answers.interval(gains[number]), "seeds": [float(part.mean()) for part in by_seed]},
                        "harmed": float(harm.mean()),
                        "worst_tenth": worst_tenth(answers.by_person(gains[number])),
                    }
                )
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
    """What shares lose with histories that are not the person's own."""
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
    """Which part of the way to known classes shares go with own histories."""
    parts = []
    for history, wanted in zip((15, 63), (1 / 3, 1 / 2), strict=True):
        rows = [row for row in document["rows"] if (row["content"], row["history"]) == ("own", history)]
        closed = {f"{row['data']}, {row['encoder']}": row["gain"]["mean"] / row["known_gain"] for row in rows}
        short = [f"{name} {part:.0%}" for name, part in sorted(closed.items(), key=lambda i: i[1]) if part < wanted]
        reached = f"{len(closed) - len(short)} of {len(closed)} sets and encoders reach {wanted:.0%}"
        parts.append(f"at {history} own photos {reached}" + (f" (not {', '.join(short)})" if short else ""))
    return f"Of the way to classes that are known, {'; '.join(parts)}."


def _plot(document: page.Document) -> bytes:
    """Gain with own histories against loss with foreign ones, a line for each way to hold shares back."""
    figure, axes = page.new_figure()

    def mean(family: str, value: float, cells: Sequence[Cell]) -> float:
        names = {cell.name for cell in cells}
        found = [r for r in document["curve"] if r["cell"] in names and (r["family"], r["value"]) == (family, value)]
        return 100 * float(np.mean([row["gain"]["mean"] for row in found]))

    for family, (grid, _) in FAMILIES.items():
        points = [(mean(family, value, FOREIGN), mean(family, value, OWN)) for value in grid]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=family)
    value = document["settings"]["elsewhere"]
    default = mean("elsewhere", value, FOREIGN), mean("elsewhere", value, OWN)
    axes.plot(*default, "k*", markersize=11, label="default")
    axes.set_ylabel("gain, own histories, points")
    axes.set_xlabel("gain, foreign histories, points")
    axes.legend(fontsize=8, frameon=False)
    return page.png(figure)


PAGES = {"trade-off": page.StudyPage("Class shares: own histories against those of others", COLUMNS, _about, _plot)}
