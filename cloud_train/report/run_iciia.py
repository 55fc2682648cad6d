"""The report of a run of ``refocus train iciia``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from refocus.cloud_train.evaluate.page import Document, Table, judged_people
from refocus.cloud_train.evaluate.report import accuracy_rows, points
from refocus.cloud_train.report.run_story import (
    Story,
    asked_for,
    curve_charts,
    duration,
    gain_charts,
    not_ended,
    person_table,
    read_document,
    served_header,
    served_row,
)
from refocus.cloud_train.runs.folder import read_settings
from refocus.cloud_train.runs.iciia import RunConfig
from refocus.cloud_train.tracking import Curve, read_curves

ORIGINAL, DELIVERED = "original backbone", "delivered"


def iciia_story(folder: Path) -> Story:
    """Content of the report of a run folder with ICIIA heads.

    Raises:
        UsageError, DataError: a file of the run is damaged.
    """
    config = read_settings(folder / "run.json", RunConfig)
    results, encoder = read_document(folder / "results.json"), read_document(folder / "encoder.json")
    cards = {
        (path.parent.name.removeprefix("seed-"), path.stem): card
        for path in sorted(folder.glob("seed-*/*.json"))
        if (card := read_document(path)) is not None and "recipe" in card.get("config", {})
    }
    story = Story(f"Training run {folder.absolute().name}: ICIIA")
    network = Path(config.bundle).name if config.bundle else config.backbone
    story.facts = [("photos", Path(config.data.source).name), ("network", network), ("trained heads", str(len(cards)))]
    curves = read_curves(folder)
    begun = sum(what.startswith("iciia ") for what in curves)
    story.missing = [*_missing(folder, cards, begun, results)]
    if not any("validation_accuracy" in metrics for metrics in curves.values()):  # made without refocus train
        curves |= {f"{variant} seed {seed}": _of_card(card) for (seed, variant), card in cards.items()}
    story.curves = list(curve_charts(curves))
    steps = curves["encoder"]["loss"][0][-1] if "encoder" in curves else None
    story.budgets = _budgets(cards, encoder, steps)
    if results is not None:
        _judged(story, results)
    else:
        story.why_no_people = "Nobody is judged yet."
    return story


def _missing(
    folder: Path, cards: Mapping[tuple[str, str], Document], begun: int, results: Document | None
) -> Iterator[str]:
    """Sentences on what is not there.

    Args:
        begun: heads that have a curve.
    """
    asked = asked_for(folder)
    seeds = [str(seed) for seed in asked.get("seeds", [])]
    wanted = len(seeds) * max(1, len(asked.get("partitions", [])))
    if len(cards) < begun:
        seeds, wanted = [seed for seed, _ in cards], begun
    found = sum(seed in seeds for seed, _ in cards)
    if not cards or found < wanted:
        of = f"{found} of {wanted} heads are" if wanted else "no head is"
        yield not_ended(f"{of} trained")
    if cards and results is None:
        yield f"The heads are not evaluated: refocus evaluate {folder} judges them on unseen people."
    if results is not None and len(results["bundles"]) < len(cards):
        yield f"Some heads were trained after the evaluation: refocus evaluate {folder} judges them too."


def _of_card(card: Document) -> dict[str, Curve]:
    values = [float(value) for value in card["training"].get("validation_accuracy", [])]
    return {"validation_accuracy": ([*range(len(values))], values)} if values else {}


def _budgets(cards: Mapping[tuple[str, str], Document], encoder: Document | None, encoder_steps: int | None) -> Table:
    header = ["training", "epochs allowed", "epochs used", "best epoch", "gradient steps", "a step has", "time"]
    rows = []
    if encoder is not None and encoder_steps is not None:  # trained here
        recipe = encoder["training"]["recipe"]
        rows.append(["encoder", str(recipe["epochs"]), str(recipe["epochs"]), "", f"{encoder_steps:,}",
                     f"{recipe['batch']} photos", ""])  # fmt: skip
    for (seed, variant), card in cards.items():
        recipe, training = card["config"]["recipe"], card["training"]
        block = card["config"]["iciia"]
        length = block["window"] if block.get("attention", "full") != "causal" else recipe["stream"]
        rows.append(
            [
                f"{variant}, seed {seed}",
                f"{recipe['epochs']} (patience {recipe['patience']})",
                str(max(0, len(training.get("validation_accuracy", [])) - 1)),
                str(training.get("best_epoch", "")),
                f"{training['steps']:,}" if "steps" in training else "not noted",
                f"{recipe['windows_per_step']} windows of at most {length} photos",
                duration(training.get("seconds")),
            ]
        )
    return header, rows


def _judged(story: Story, results: Document) -> None:
    lengths, data = list(results["accuracy"]["original"]), results["data"]
    longest = lengths[-1]
    story.facts += [
        (
            "judged on",
            f"{data['targets']} photos of {data['test_clients']} {judged_people(results)} never seen in training",
        ),
        (f"gain at {longest} history photos", points(results["gain"]["delivered"][longest])),
        ("the same with a foreign history", points(results["gain"]["foreign_delivered"][longest])),
    ]
    story.tables.append(("Accuracy by history photos", (["", *lengths], accuracy_rows(results))))
    people = results.get("people")
    if not people:
        story.why_no_people = "The evaluation was made before it noted people; refocus evaluate makes it again."
        return
    names = [row["person"] for row in people["rows"]]
    before, now = (np.array([row[name] for row in people["rows"]]) for name in ("original", "delivered"))
    story.people = list(gain_charts({f"{DELIVERED}, {people['history']} history photos": now - before}, ORIGINAL))
    story.people_tables = [
        ("Share of right answers of each person", person_table(names, {ORIGINAL: before, DELIVERED: now}))
    ]
    story.worst = served_header(ORIGINAL), [served_row(ORIGINAL, before, None), served_row(DELIVERED, now, before)]
