"""The report of a run of ``refocus train federated`` or ``refocus train prompt``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.evaluate.clients import kept_round, shares
from refocus.cloud_train.evaluate.page import Document, Table
from refocus.cloud_train.federated.checkpoint import read_log
from refocus.cloud_train.federated.methods import METHODS, title_of
from refocus.cloud_train.federated.run import FederatedConfig
from refocus.cloud_train.report.run_story import (
    MOST_LINES,
    Chart,
    Story,
    curve_charts,
    duration,
    gain_charts,
    line_chart,
    not_ended,
    person_table,
    read_document,
    served_header,
    served_row,
)
from refocus.cloud_train.runs.folder import read_settings
from refocus.cloud_train.tracking import Curve, read_curves

ALONE = "local"


@dataclass(frozen=True)
class Training:
    """One method with one seed and one choice of rates.

    Attributes:
        log: a record per round.
        result: how clients are served; None while training has not ended.
    """

    method: str
    rate: str
    seed: int
    log: Sequence[Mapping[str, Any]]
    result: Document | None


def federated_story(folder: Path) -> Story:
    """Content of the report of a run folder of federated training.

    Raises:
        UsageError, DataError: a file of the run is damaged.
    """
    config = read_settings(folder / "federated.json", FederatedConfig)
    document, trainings = read_document(folder / "studies" / "federated.json"), _trainings(folder)
    story = Story(f"Training run {folder.absolute().name}: clients who train together")
    judged = [training for training in trainings if training.result is not None]
    # A deployed run has no document.
    ended = (folder / "deployment.json").exists() and 0 < len(trainings) == len(judged)
    if document is None and not ended:
        story.missing.append(not_ended(f"{len(judged)} of the {len(trainings)} trainings that were begun are judged"))
    story.facts = [
        ("photos", Path(config.source).name),
        ("network", config.backbone),
        ("clients", f"{config.partition}"),
        ("rounds", f"{config.recipe.rounds}, {config.recipe.participation:.0%} of the clients in each"),
        ("methods", ", ".join(dict.fromkeys(title_of(training.method) for training in trainings)) or "none begun"),
    ]
    if document is not None:
        data = document["data"]
        story.facts[2] = ("clients", f"{data['clients']} ({data['partition']}), {data['unseen']} who come afterwards")
    story.curves = [*_curve_charts(trainings), *curve_charts(_before(folder))]
    story.budgets = _budgets(trainings, config)
    _people(story, judged)
    return story


def _before(folder: Path) -> dict[str, dict[str, Curve]]:
    """Curves of what is trained before clients are: a body or a tower."""
    return {what: metrics for what, metrics in read_curves(folder).items() if not what.startswith("seed ")}


def _trainings(folder: Path) -> list[Training]:
    """Those that were begun, without short ones that only tried rates, in the order of methods, rates and seeds."""
    found = []
    for place in folder.glob("seed-*/*"):
        method = max((name for name in METHODS if place.name.startswith(f"{name}-")), key=len, default="")
        seed = place.parent.name.removeprefix("seed-")
        if not method or not seed.isdigit() or not place.is_dir():
            continue
        result = read_document(place / "result.json")
        log = result["log"] if result is not None else read_log(place)
        found.append(Training(method, place.name.removeprefix(f"{method}-"), int(seed), log, result))
    order = [*METHODS]
    return sorted(found, key=lambda one: (order.index(one.method), one.rate, one.seed))


def _curve_charts(trainings: Sequence[Training]) -> Iterator[Chart]:
    """Validation accuracy and loss by round, the mean over seeds; a line for each method and rate."""
    for metric, title in (("validation", "validation accuracy"), ("loss", "training loss")):
        lines: dict[str, list[dict[int, float]]] = {}
        for one in trainings:
            values = {int(record["round"]): float(record[metric]) for record in one.log if metric in record}
            if values:
                lines.setdefault(f"{title_of(one.method)}, rate {one.rate}", []).append(values)
        named = [*lines.items()]
        for first in range(0, len(named), MOST_LINES):
            part = {name: _mean_curve(curves) for name, curves in named[first : first + MOST_LINES]}
            caption = f"{title} by round, mean over clients and seeds"
            yield caption, line_chart(part, caption, "round", metric)


def _mean_curve(curves: Sequence[Mapping[int, float]]) -> Curve:
    """Mean over seeds of the rounds that all of them have; of those of the first seed where they share none."""
    rounds = sorted(set(curves[0]).intersection(*curves[1:])) or sorted(curves[0])
    own = [curve for curve in curves if set(rounds) <= set(curve)]
    return rounds, [float(np.mean([curve[number] for curve in own])) for number in rounds]


def _budgets(trainings: Sequence[Training], config: FederatedConfig) -> Table:
    header = ["training", "rounds allowed", "rounds used", "round that is kept", "steps of a client in a round",
              "clients in a round", "bytes sent by a client", "bytes sent to a client", "time"]  # fmt: skip
    rows = []
    for one in trainings:
        kept = str(kept_round(one.result)) if one.result is not None else "not ended"
        steps = [record["steps"] for record in one.log if "steps" in record]
        allowed = config.recipe.steps or None
        rows.append(
            [
                f"{title_of(one.method)}, rate {one.rate}, seed {one.seed}",
                str(config.recipe.rounds),
                str(len(one.log)),
                kept,
                (f"{np.mean(steps):.1f}" if steps else "") + (f" of {allowed}" if allowed else ""),
                f"{np.mean([record['clients'] for record in one.log]):.1f}" if one.log else "",
                f"{sum(record['bytes_up'] for record in one.log):,}",
                f"{sum(record['bytes_down'] for record in one.log):,}",
                duration(sum(record["seconds"] for record in one.log)),
            ]
        )
    return header, rows


def _people(story: Story, judged: Sequence[Training]) -> None:
    """Clients by the methods that are judged, each against training alone; the means over the seeds of both."""
    used: dict[str, list[np.ndarray]] = {}
    for one in judged:
        if one.result is not None:
            used.setdefault(one.method, []).append(np.array(shares(one.result, "members", "used")))
    if not used:
        story.why_no_people = "No client is judged yet."
        return
    means = {title_of(method): np.mean(rows, axis=0) for method, rows in used.items()}
    alone = means.get(title_of(ALONE))
    first = next(one.result for one in judged if one.result is not None)
    names = [client["name"] for client in first["members"]]
    story.people_tables = [("Share of right answers of each client", person_table(names, means))]
    story.worst = (
        served_header(title_of(ALONE)),
        [
            served_row(name, of, None if alone is None or name == title_of(ALONE) else alone)
            for name, of in means.items()
        ],
    )
    if alone is not None:
        story.people = list(
            gain_charts({n: of - alone for n, of in means.items() if n != title_of(ALONE)}, title_of(ALONE))
        )
