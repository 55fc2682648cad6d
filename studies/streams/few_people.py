"""What a head that few people trained is worth, and whether it is delivered only where it helps.

RUN/few-people/DATA-ENCODER-SEED.json    one point: a head for each number of training people
RUN/studies/few-people.json              the results document
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.evaluate import page
from refocus.cloud_train.progress import say
from studies.streams.answers import OVER, Answers, photos_of
from studies.streams.heads import HEADS, TRAINED_PHOTOS, choose, train_head, with_people
from studies.streams.judging import evaluate_head, kept_flags
from studies.streams.pages import about_pseudo_people
from studies.streams.points import Point, StreamSettings, of_all_points, prepare
from studies.streams.pseudo_people import BASE

SIZES = (10, 30, 100)
HEAD = "iciia_t"


def run_few(settings: StreamSettings, run: Path, data: str, encoder: str, seed: int) -> dict[str, Any]:
    """One point: of each number of training people, answers of test people with a history of their own."""
    point = prepare(settings, run, data, encoder, seed)
    there = len(np.unique(with_people(point, "train", TRAINED_PHOTOS, seed).table.client))
    sizes = [size for size in SIZES if size <= there]
    if len(sizes) < len(SIZES):
        say(f"{data}: training photos suffice for {there} people only")
    return {str(size): _trained_by(point, settings, seed, size) for size in sizes}


def _trained_by(point: Point, settings: StreamSettings, seed: int, size: int) -> dict[str, Any]:
    trained = train_head(point, HEADS[HEAD], settings, seed, size)
    chosen = choose(point, trained, settings, seed)
    people = point.people("test", BASE, settings.people, settings.targets, 100 * seed)
    split, g = point.splits["test"], f"{chosen['exponent']:g}"
    found = evaluate_head(trained.model, people, split, point.knowledge, settings.shares, (chosen["exponent"],))
    ways = {"plain": "plain", "shares": "shares", "head": "head", "both": f"both {g}", "delivered": chosen["delivered"]}
    answers = {name: {"flags": kept_flags(found[way])} for name, way in ways.items()}
    photos = photos_of(point, people, seed)
    chose = chosen["delivered"].split()[0]
    return {"chosen": chose, "photos": photos, "answers": answers, "best_epoch": trained.best_epoch}


def study_few_people(settings: StreamSettings, run: Path, seeds: Sequence[int], command: str) -> dict[str, Any]:
    """The results document; points that are there are not computed again.

    Raises:
        UsageError: an unknown name.
        DataError: a photo set or weights are not there.
    """
    points = of_all_points(settings, run, "few-people", run_few, seeds)
    rows = [
        _row(data, encoder, size, [one[str(size)] for one in of if str(size) in one])
        for (data, encoder), of in points.items()
        for size in SIZES
        if any(str(size) in one for one in of)
    ]
    said = {"people": settings.people, "targets": settings.targets, "photos_per_class": settings.photos_per_class}
    more = {"rows": rows, "steps": settings.steps, "settings": asdict(settings.shares)}
    return page.study_document("few-people", command, seeds, intervals=OVER, **said, **more)


def _row(data: str, encoder: str, size: int, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    answers = Answers.of([one["photos"] for one in found])
    right = {name: answers.right([one["answers"][name] for one in found]) for name in found[0]["answers"]}
    gains = {name: answers.interval(of - right["plain"]) for name, of in right.items() if name != "plain"}
    return {
        "data": data,
        "encoder": encoder,
        "training_people": size,
        "people": answers.people,
        "original": float(answers.by_person(right["plain"]).mean()),
        "gains": gains,
        "delivered_over_shares": answers.interval(right["delivered"] - right["shares"]),
        "head_over_shares": answers.interval(right["both"] - right["shares"]),
        "chosen": [one["chosen"] for one in found],
    }


def _gain(name: str) -> Any:
    return lambda row: page.short_points(row["gains"][name])


COLUMNS: page.Columns = {
    "data": page.text("data"),
    "encoder": page.text("encoder"),
    "training people": page.text("training_people"),
    "judged": page.text("people"),
    "original": page.percent("original"),
    "class shares": _gain("shares"),
    "ICIIA-T": _gain("head"),
    "ICIIA-T+shares": _gain("both"),
    "delivered": _gain("delivered"),
    "delivered over shares": page.gain("delivered_over_shares"),
    "chosen by seed": lambda row: ", ".join(row["chosen"]),
}


def _about(document: page.Document) -> str:
    worst = min(document["rows"], key=lambda row: row["delivered_over_shares"]["mean"])
    kept = [row for row in document["rows"] if any(way in ("both", "gated", "head") for way in row["chosen"])]
    furthest = f"{worst['data']}, {worst['encoder']}, {worst['training_people']} training people"
    return (
        f"Where delivered is furthest behind shares alone ({furthest}) it is"
        f" {page.short_points(worst['delivered_over_shares'])} points. A head is delivered on {len(kept)} of"
        f" {len(document['rows'])} rows by one seed or more. {about_pseudo_people(document)} Of each row"
        f" a head is trained for {document['steps']} steps at most, stopped by validation people, who also choose what"
        f" is delivered; {document['people']} people with a history of 15 judge it."
    )


PAGES = {"few-people": page.StudyPage("Heads that few people trained", COLUMNS, _about)}
