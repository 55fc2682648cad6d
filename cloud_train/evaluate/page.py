"""Show a study's document as a table, a picture and text.

Each study declares a :class:`StudyPage` next to the code that computes its rows.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refocus.cloud_train.data.table import PhotoTable

STUDY_SCHEMA = 2  # 1: Refocus 0.1; the same fields
GREY, BLUE, GREEN = "#6b7280", "#1d4ed8", "#15803d"  # the original backbone, ICIIA-T, what is delivered

Document = Mapping[str, Any]
Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str]]  # header -> cell of a row
Table = tuple[list[str], list[list[str]]]  # header, rows


NAMES = {
    "original": "original backbone",
    "iciia_b": "ICIIA-B",
    "iciia_t": "ICIIA-T",
    "iciia_b_gated": "ICIIA-B, gated",
    "iciia_t_causal": "ICIIA-T, streaming",
    "iciia_t_causal_gated": "ICIIA-T, streaming, gated",
    "delivered": "delivered",
}
_OTHER_PARTITIONS = re.compile("iciia_p([0-9]+)(_causal)?(_gated)?")
CONTENTS = {"foreign_": "foreign history", "mixed_": "mixed history"}


def method_name(name: str) -> str:
    """Return the readable name of a method or control of the document."""
    if name == "chance":
        return "chance (labels in another order)"
    prefix = next((prefix for prefix in CONTENTS if name.startswith(prefix)), "")
    if prefix:
        return f"control: {method_name(name.removeprefix(prefix))}, {CONTENTS[prefix]}"
    head = _OTHER_PARTITIONS.fullmatch(name)
    if head is None:
        return NAMES.get(name, name)
    partitions, streaming, gated = head.groups()
    return f"ICIIA, P={partitions}" + (", streaming" if streaming else "") + (", gated" if gated else "")


def text(key: str, form: str = "") -> Callable[[Row], str]:
    """Return a column that formats a field of the row.

    The format is one of :func:`format`. The cell is empty if the field is None.
    """
    return lambda row: "" if row[key] is None else format(row[key], form)


def percent(key: str) -> Callable[[Row], str]:
    """Return a column that shows a share of the row."""
    return text(key, ".1%")


def gain(key: str = "gain") -> Callable[[Row], str]:
    """Return a column that shows a difference and its interval."""
    return lambda row: short_points(row[key])


def short_points(difference: Mapping[str, Any]) -> str:
    """Format a difference in points, such as ``+13.9 (+11.9 to +15.8)``."""
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * difference[name] for name in ("mean", "low", "high")))


VERDICTS = ("the other way round", "no difference seen", "holds")


def verdict(order: Row) -> str:
    """Compare an order of a paper with the interval of its difference.

    The order is confirmed or reversed only if the interval does not contain 0.
    """
    difference = order["difference"]
    if difference["low"] > 0:
        return VERDICTS[2]
    return VERDICTS[0] if difference["high"] < 0 else VERDICTS[1]


# What a paper found, of documents that compare this.
ORDER_COLUMNS: Columns = {
    "order": lambda row: f"{row['better']} over {row['other']}",
    "found in": text("source"),
    "difference here": gain("difference"),
    "": verdict,
}


def table(columns: Columns, rows: Sequence[Row]) -> Table:
    """Return the header and the cells of rows."""
    return [*columns], [[cell(row) for cell in columns.values()] for row in rows]


def judged_people(document: Document) -> str:
    """Return the kind of evaluated clients: people, or pseudo-people.

    They are pseudo-people if photos were dealt to clients.
    """
    return str(document["data"].get("people", "people"))


def seeds_line(document: Document) -> str:
    """Return the seeds of a document as text."""
    return f"seeds {', '.join(map(str, document['seeds']))}"


def about_people(document: Document) -> str:
    """Describe a study that is evaluated on unseen people with a history."""
    data, seconds = document["data"], [row["seconds"] for row in document["rows"] if "seconds" in row]
    time = f", {sum(seconds) / 60:.0f} minutes of one core" if seconds else ""
    return (
        f"{data['targets']} target photos of {data['test_clients']} unseen {judged_people(document)}, each with"
        f" {document['history']} history photos unless said otherwise, backbone `{document['backbone']}`,"
        f"{_block(document)} {seeds_line(document)}{time}."
    )


def _block(document: Document) -> str:
    """Describe the block of ICIIA-T, or return "" if a document has none."""
    if "block" not in document:
        return ""
    block, epochs = document["block"], document["recipe"]["epochs"]
    return (
        f" ICIIA-T of {block['layers']} layers, {block['partitions']} partitions and {block['heads']} heads unless said"
        f" otherwise, at most {epochs} epochs,"
    )


def no_plot(document: Document) -> None:
    """Draw nothing: the chart of a study that is a table only."""


@dataclass(frozen=True)
class StudyPage:
    """Presentation of a study.

    Attributes:
        title: title of its section.
        columns: columns of its table, or a function of the document that returns them.
        about: describes the measurement; the text continues a line on the source of the photos.
        plot: returns the PNG of a study that is more than a table, otherwise None.
        orders: columns of the table of the papers' orders, if the document has one.
        plotted: field that the chart shows; a document without it has no chart.
    """

    title: str
    columns: Columns | Callable[[Document], Columns]
    about: Callable[[Document], str] = about_people
    plot: Callable[[Document], bytes | None] = no_plot
    orders: Columns = field(default_factory=lambda: ORDER_COLUMNS)
    plotted: str = "rows"

    def table(self, document: Document) -> Table:
        """Return the header and rows as text; differences are in points."""
        columns = self.columns(document) if callable(self.columns) else self.columns
        return table(columns, document["rows"])

    def more(self, document: Document) -> Sequence[tuple[str, Table]]:
        """Return titled tables to show before the table of all rows."""
        return ()


def study_document(study: str, command: str, seeds: Sequence[int], **more: Any) -> dict[str, Any]:
    """Build a study's results document (``docs/results-format.md``)."""
    return {"schema_version": STUDY_SCHEMA, "study": study, "command": command, "seeds": list(seeds), **more}


def data_of(source: str, photos: PhotoTable, **more: Any) -> dict[str, Any]:
    """Build the section ``data`` of a results document.

    It describes all photos of a source; the source's name is the last part of the given path.
    """
    return {
        "source": Path(source).name,
        "fingerprint": photos.fingerprint(),
        "classes": len(photos.classes),
        **more,
    }


def new_figure(width: float = 6.5, height: float = 3.6) -> tuple[Any, Any]:
    """Create a figure of a size in inches, and its only axes."""
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def accuracy_png(figure: Any, axes: Any, x_label: str) -> bytes:
    """Label a plot of accuracies and return it as PNG."""
    axes.set_xlabel(x_label)
    axes.set_ylabel("accuracy, %")
    axes.legend(fontsize=8, frameon=False)
    return png(figure)


def png(figure: Any) -> bytes:
    """Render a figure as PNG; equal figures give equal bytes."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130, metadata={"Software": None})
    return stream.getvalue()
