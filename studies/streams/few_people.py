"""Study of heads that are trained on few people.

It measures their gain over class shares, and whether they are delivered only where they help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refocus.cloud_train.evaluate import page
from refocus.cloud_train.progress import say
from refocus.cloud_train.settings import Count
from studies.experiment import Cache, Cell, Experiment, Group, Needs, Row, Study
from studies.streams.heads import TRAINED_PHOTOS, chosen_head, head_needs, with_people
from studies.streams.judging import evaluate_head, row
from studies.streams.pages import about_pseudo_people
from studies.streams.points import PointGrid, StreamSettings, prepare
from studies.streams.pseudo_people import BASE

HEAD = "iciia_t"


@dataclass(frozen=True)
class FewPeopleGrid(PointGrid):
    """Name what the study evaluates.

    Attributes:
        training_people: numbers of people on whose photos a head is trained.
    """

    training_people: tuple[Count, ...] = (10, 30, 100)


def needs(settings: StreamSettings, cell: Cell) -> Needs:
    """Return what the answers of heads of few people depend on."""
    return head_needs(settings, cell) | Needs({"people": settings.people}, {}, ("studies.streams.few_people",))


def evaluate_cell(settings: StreamSettings, cell: Cell, seed: int, cache: Cache) -> list[Row]:
    """Return the answers to test people with their own history.

    There are none if the training photos suffice for fewer people than the cell has.
    """
    point = prepare(settings, cache, str(cell["data"]), str(cell["encoder"]), seed)
    size = int(cell["training_people"])
    there = len(np.unique(with_people(point, "train", TRAINED_PHOTOS, seed).table.client))
    if size > there:
        say(f"{cell['data']}: training photos suffice for {there} people only")
        return []
    model, chosen = chosen_head(point, HEAD, settings, cache, cell, seed, size)
    people = point.people("test", BASE, settings.people, settings.targets, 100 * seed)
    split, g = point.splits["test"], f"{chosen['exponent']:g}"
    found = evaluate_head(model, people, split, point.knowledge, settings.shares, (chosen["exponent"],))
    ways = {"plain": "plain", "shares": "shares", "head": "head", "both": f"both {g}", "delivered": chosen["delivered"]}
    facts = {"chosen": chosen["delivered"].split()[0], "best_epoch": chosen["best_epoch"]}
    answers = point.answers(people, seed)
    return [row({"method": name}, answers, found[way], facts) for name, way in ways.items()]


def document(experiment: Experiment, cache: Cache, groups: list[Group]) -> dict[str, Any]:
    """Return the document's fields: a row for each number of training people."""
    by_size: dict[tuple[Any, ...], dict[str, Group]] = {}
    for group in groups:
        data, encoder, size, method = group.labels.values()
        by_size.setdefault((data, encoder, size), {})[str(method)] = group
    rows = [_row(of) for of in by_size.values()]
    return {"rows": rows, "steps": experiment.settings.steps, **experiment.settings.stated()}


def _row(of: dict[str, Group]) -> dict[str, Any]:
    plain = of["plain"]
    return {
        **{name: value for name, value in plain.labels.items() if name != "method"},
        "people": plain.record["people"],
        "original": plain.record["accuracy"],
        "gains": {name: group.over(plain) for name, group in of.items() if name != "plain"},
        "delivered_over_shares": of["delivered"].over(of["shares"]),
        "head_over_shares": of["both"].over(of["shares"]),
        "chosen": [one.facts["chosen"] for one in plain.rows],
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
STUDY = Study(StreamSettings(), FewPeopleGrid(), needs, evaluate_cell, document)
