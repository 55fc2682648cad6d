"""Print a summary and write a self-contained HTML page of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import rich.table
import typer
from rich.console import Console

from refocus.cloud_train.evaluate import bank_replay, clients, self_improvement
from refocus.cloud_train.evaluate.page import (
    BLUE,
    CONTENTS,
    GREEN,
    GREY,
    NAMES,
    Document,
    StudyPage,
    Table,
    judged_people,
    method_name,
    new_figure,
    png,
    table,
)
from refocus.cloud_train.render import render
from refocus.edge.commands import print_json
from refocus.edge.files import write_file
from refocus.edge.pages import data_uri

STUDIES: Mapping[str, StudyPage] = clients.PAGES | bank_replay.PAGES | self_improvement.PAGES
MOST_PRINTED = 40  # rows of a study whose other tables sum them up; longer ones are for the results page
COLOURS = {"original": GREY, "iciia_b": "#b45309", "iciia_t": BLUE, "delivered": GREEN}
ReadPhoto = Callable[[str], bytes]


WAYS = {"original": "original", "shares": "class shares", "head": "ICIIA", "both": "ICIIA and class shares"}
WAYS["uniform"] = "ICIIA with uniform attention"


def print_summary(results: Document) -> None:
    """Print accuracies by history length, for methods and controls."""
    lengths, methods = list(results["accuracy"]["original"]), len(results["accuracy"])
    shown = rich.table.Table("accuracy by history photos", *lengths, title=_title(results), title_justify="left")
    for number, row in enumerate(accuracy_rows(results)):
        shown.add_row(*row, style="dim" if number >= methods else None, end_section=number == methods - 1)
    console = Console(width=110)
    console.print(shown)
    longest, worse = lengths[-1], results["never_worse"]
    console.print(f"delivered at {longest} history photos: {points(results['gain']['delivered'][longest])}")
    for content in ("foreign", "mixed"):
        console.print(f"delivered with a {content} history, all lengths pooled: {points(worse[content])}")
    console.print("share of the ungated gain that is delivered: " + kept_text(results))
    ways = results.get("ways")
    if ways:
        console.print(
            f"after {ways['history']} photos: "
            + ", ".join(f"{WAYS[row['way']]} {row['accuracy']:.1%}" for row in ways["rows"])
            + f"; validation people choose {', '.join(sorted(set(ways['chosen'])))}"
        )
    latency = results["latency_ms"]
    console.print(
        "latency, one thread, p50: "
        + ", ".join(f"{name} {latency[name]['p50']:.2f} ms" for name in ("encoder", "head", "whole"))
    )


def print_study(document: Document, studies: Mapping[str, StudyPage] = STUDIES) -> None:
    """Print the rows of a study's document."""
    study = studies[document["study"]]
    more = study.more(document)
    if not more or len(document["rows"]) <= MOST_PRINTED:
        more = [(_study_title(document), study.table(document)), *more]
    for title, cells in more:
        _print_table(cells, title)
    if document.get("orders"):
        _print_table(table(study.orders, document["orders"]), "what the papers found")


def show_study(document: Document, path: Path, as_json: bool, studies: Mapping[str, StudyPage] = STUDIES) -> None:
    """Print a study's document as JSON, or its tables and where it lies."""
    if as_json:
        print_json(document)
    else:
        print_study(document, studies)
        typer.echo(f"results: {path}")


def _study_title(document: Document) -> str:
    source = document.get("data", {}).get("source")  # studies of several sets name them in their rows
    return f"{document['study']} on {source}" if source else str(document["study"])


def _print_table(cells: Table, title: str) -> None:
    header, rows = cells
    shown = rich.table.Table(*header, title=title, title_justify="left")
    for row in rows:
        shown.add_row(*row)
    Console(width=140).print(shown)


def write_report(results: Document, read: ReadPhoto, path: Path, studies: Sequence[Document] = ()) -> None:
    """Write one HTML file that contains all pictures and styles.

    Args:
        results: document of an evaluation.
        read: reads a photo by name.
        path: output file.
        studies: documents of a TAPER bank, for an additional section.
    """
    bundle = next(row for row in results["bundles"] if row["variant"] == results["delivered_variant"])
    page = render(
        "evaluate/report.html.j2",
        results=results,
        title=_title(results),
        lengths=list(results["accuracy"]["original"]),
        accuracy_image=_image(accuracy_plot(results)),
        accuracy_rows=accuracy_rows(results),
        latency_image=_image(latency_plot(results)),
        photo=lambda name: _image(read(name)),
        head_bytes=bundle["head_bytes"],
        kept=kept_text(results),
        studies=[(each, STUDIES[each["study"]].table(each), STUDIES[each["study"]].plot(each)) for each in studies],
        image=_image,
        method_name=method_name,
        ways=WAYS,
        points=points,
    )
    write_file(path, page)


def accuracy_plot(results: Document) -> bytes:
    """Plot each method by history length, its control dashed, as PNG."""
    figure, axes = new_figure(7.5, 4.2)
    for name in methods_of(results["accuracy"]):
        row = results["accuracy"][name]
        width = 2.6 if name == "iciia_t" else 1.8
        axes.plot(
            [int(k) for k in row],
            [100 * v for v in row.values()],
            "o-",
            color=COLOURS.get(name),
            lw=width,
            ms=4,
            label=method_name(name),
            zorder=3 if name == "iciia_t" else 2,
        )
        for prefix, style in (("foreign_", "--"), ("mixed_", ":")):
            control = results["control"].get(f"{prefix}{name}")
            if control:
                axes.plot(
                    [int(k) for k in control],
                    [100 * v for v in control.values()],
                    style,
                    lw=1.1,
                    alpha=0.8,
                    color=COLOURS.get(name),
                    label=f"{method_name(name)}, {CONTENTS[prefix]}",
                )
    axes.set_xlabel("history photos (unlabelled)")
    axes.set_ylabel("accuracy of unseen people's photos, %")
    axes.legend(fontsize=7.5, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return png(figure)


def latency_plot(results: Document) -> bytes:
    """Plot p50 and p90 of encoder, head and whole recogniser as PNG."""
    figure, axes = new_figure(6.0, 1.9)
    names = list(results["latency_ms"])
    p50 = [results["latency_ms"][name]["p50"] for name in names]
    p90 = [results["latency_ms"][name]["p90"] for name in names]
    axes.barh(names, p90, color="#dbeafe", label="p90")
    axes.barh(names, p50, color="#1d4ed8", height=0.5, label="p50")
    axes.invert_yaxis()
    axes.set_xlabel("ms per photo, one thread")
    axes.legend(fontsize=8, frameon=False)
    return png(figure)


def _image(content: bytes) -> str:
    return data_uri(content, "image/png")


def methods_of(rows: Mapping[str, Any]) -> list[str]:
    """Return the methods of a document, the known ones first in fixed order."""
    return [name for name in NAMES if name in rows] + sorted(set(rows) - set(NAMES))


def accuracy_rows(results: Document) -> list[list[str]]:
    """Return the accuracy of methods, then controls, by history length."""
    accuracy, control = results["accuracy"], results["control"]
    rows = [(name, accuracy[name]) for name in methods_of(accuracy)] + [*control.items()]
    return [[method_name(name), *(f"{row[k]:.1%}" for k in accuracy["original"])] for name, row in rows]


def _title(results: Document) -> str:
    data, seeds = results["data"], len(results["seeds"])
    return (
        f"{data['source']}: {data['targets']} photos of {data['test_clients']} {judged_people(results)} never seen in training,"
        f" {seeds} seed{'s' if seeds > 1 else ''}"
    )


def kept_text(results: Document) -> str:
    """Format the share of the ungated gain that the gate keeps."""
    kept = results["never_worse"]["kept"]
    rows = [(k, kept[k]) for k in ("3", "15") if k in kept] or list(kept.items())[-1:]
    shares = (f"{r['mean']:.0%} at {k} history photos ({r['low']:.0%} to {r['high']:.0%})" for k, r in rows)
    return ", ".join(shares) if rows else "the ungated head has no gain that is above its interval"


def points(gain: Mapping[str, Any], digits: int = 1) -> str:
    """Format a gain and its interval in percentage points."""
    mean, low, high = (f"{100 * gain[name]:+.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} points (95 % interval {low} to {high})"
