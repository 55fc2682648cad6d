"""``refocus accuracy``."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from refocus.benchmarks.commands.bench import register as register_bench
from refocus.benchmarks.commands.flags import Label, Person, PhotosPerStream, Split
from refocus.benchmarks.commands.outputs import naming, ready
from refocus.edge.commands import MEASURE, Head, Json, Shares, ThreadsOption, options, print_json, track
from refocus.edge.files import write_file

logger = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=MEASURE)(accuracy)
    register_bench(app)


def accuracy(
    bundle: options.Bundle,
    data: Annotated[Path, typer.Option(help="folder or zip of labelled photos with metadata.csv")],
    person: Person = "client",
    label: Label = "label",
    split: Split = "",
    photos_per_person: PhotosPerStream = 64,
    head: Head = "",
    threads: ThreadsOption = 1,
    shares: Shares = True,
    training_photos: Annotated[
        bool, typer.Option("--with-training-photos", help="also evaluate on photos that the bundle was trained on")
    ] = False,
    record: Annotated[bool, typer.Option("--record", help="record the accuracy in the bundle's manifest")] = False,
    out: Annotated[Path | None, typer.Option(help="output file for the results document (JSON)")] = None,
    as_json: Json = False,
) -> None:
    """Replay labelled photos of many people through every target of a bundle.

    Says how often each target is right for each person, with the history and for the photo alone.

    Native heads are targets too, each behind the first encoder whose features it accepts.
    """
    from refocus.benchmarks.choose import carry_over
    from refocus.benchmarks.measure.accuracy import (
        evaluate,
        read_labelled,
        runnable,
        summarise,
        without_training_photos,
    )
    from refocus.benchmarks.measure.accuracy import record as record_accuracy
    from refocus.edge.bundle import load_bundle
    from refocus.edge.errors import RuntimeUnavailable
    from refocus.edge.recognize import read_choice

    if out is not None:
        ready(out)
    loaded = load_bundle(bundle)
    photos, who = read_labelled(data, person, label, split, photos_per_person), ""
    if not training_photos:
        left, who = without_training_photos(photos, loaded, head)
        logger.warning(who + ("" if left is photos else "; --with-training-photos keeps them"))
        photos = left
    can, cannot = runnable(loaded, head, threads=threads)
    for target, why in cannot.items():
        logger.warning(f"{target}: not run here: {why}")
    if not can:
        raise RuntimeUnavailable(f"{bundle}: nothing in it can run on this machine")
    progress = partial(track, what="people")
    targets, heads = zip(*can, strict=True)
    document = summarise(evaluate(loaded, photos, targets, head, threads, progress, shares, heads), photos, who)
    document["command"] = (
        f"refocus accuracy BUNDLE --data {data.name} --person {person} --label {label}"
        + (f" --split {split}" if split else "")
        + f" --photos-per-person {photos_per_person}"
        + ("" if shares else " --no-shares")
        + (" --with-training-photos" if training_photos else "")
    )
    try:
        if out is not None:
            with naming(out):
                write_file(out, json.dumps(document, indent=2) + "\n")
        if record:
            chosen, _ = read_choice(bundle)
            if why := carry_over(chosen, record_accuracy(loaded, document, head)):
                logger.warning(why)
    finally:  # what was measured is seen even where it cannot be written
        if as_json:
            print_json(document)
        else:
            _print(document)


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    about = document["accuracy_of_targets"]
    title = f"{about['photos']} photos of {about['people']} people, {about['data']}"
    both, people, points = "with history / photo alone", "people worse / better", partial(Column, no_wrap=True)
    table = Table(
        "target", both, points("gain of the history"), people, f"worst tenth: {both}", title=title, caption=_GAIN
    )
    if about["people"] == 1:
        table.caption = "the photos are one person's: no interval over people, and so no differences"
    for row in document["rows"]:
        gain = row.get("gain")
        table.add_row(
            row["target"],
            f"{row['delivered']:.2%} / {row['plain']:.2%}",
            _points(gain) if gain else "",
            f"{row['worse_than_alone']:.0%} / {row['better_than_alone']:.0%}" if gain else "",
            f"{row['worst_decile']:.2%} / {row['plain_worst_decile']:.2%}",
        )
    console = Console()
    console.width = max(console.width, 110)  # a row in pieces cannot be read
    console.print(table)
    changed = [row for row in document["rows"] if "change" in row]
    if changed:
        title = f"against {about['reference']}, with the same photos"
        table = Table("target", points("with history"), people, points("photo alone"), title=title, caption=_CHANGE)
        for row in changed:
            share = f"{row['made_worse']:.0%} / {row['made_better']:.0%}"
            table.add_row(row["target"], _points(row["change"]), share, _points(row["plain_change"]))
        console.print(table)
    if any("label_sets" in row for row in document["rows"]):
        console.print(label_sets_table(document["rows"]))


_CHANGE = "points, with 95 % intervals over people"
_GAIN = "gain: points over the same photo alone, with its 95 % interval over people"
_OF_GAINS = "gains: points, with 95 % intervals over people; control: gain of the average precision, of the same photos"


def label_sets_table(rows: list[dict[str, Any]]) -> Any:
    """Photos with several labels: mean average precision, and the gain with the history of the person and another's."""
    from rich.table import Table

    what = "mean average precision", "gain of it", "gain in right labels", "control: own", "control: another person's"
    table = Table("target", *what, title="photos with several labels", caption=_OF_GAINS)
    for row in rows:
        sets = row["label_sets"]
        both, gain, control = sets["mean_average_precision"], sets.get("gain", {}), sets.get("control", {})
        table.add_row(
            row["target"],
            f"{both['delivered']:.2%} (photo alone {both['plain']:.2%})",
            *(_points(gain[name]) if gain else "" for name in ("mean_average_precision", "right_labels")),
            *(_points(control[name]["mean_average_precision"]) if control else "" for name in ("own", "foreign")),
        )
    return table


def _points(change: dict[str, float]) -> str:
    mean, low, high = (100 * change[key] for key in ("mean", "low", "high"))
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"
