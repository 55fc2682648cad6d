"""How a study's document is shown: its table, its picture, and what is said about it.

Each study declares a :class:`StudyPage` beside the code that makes its rows.
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
    """Readable name of a method or a control of the results document."""
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
    """Cells that show a field of the row, in a format of :func:`format`; nothing where it is None."""
    return lambda row: "" if row[key] is None else format(row[key], form)


def percent(key: str) -> Callable[[Row], str]:
    """Cells that show a share of the row."""
    return text(key, ".1%")


def gain(key: str = "gain") -> Callable[[Row], str]:
    """Cells that show a difference of the row with its interval."""
    return lambda row: short_points(row[key])


def short_points(difference: Mapping[str, Any]) -> str:
    """``+13.9 (+11.9 to +15.8)``, in percentage points."""
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * difference[name] for name in ("mean", "low", "high")))


VERDICTS = ("the other way round", "no difference seen", "holds")


def verdict(order: Row) -> str:
    """Whether what a paper found is seen: the interval of its difference leaves 0 out."""
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
    """Header and cells of rows."""
    return [*columns], [[cell(row) for cell in columns.values()] for row in rows]


def judged_people(document: Document) -> str:
    """The kind of those who are judged: people, or pseudo-people where clients were dealt."""
    return str(document["data"].get("people", "people"))


def data_line(document: Document) -> str:
    """Where the photos came from."""
    data = document["data"]
    return f"Data `{data['source']}` (fingerprint `{data['fingerprint'][:16]}`)"


def seeds_line(document: Document) -> str:
    return f"seeds {', '.join(map(str, document['seeds']))}"


def about_people(document: Document) -> str:
    """Of studies that are evaluated on unseen people with a history."""
    data, seconds = document["data"], [row["seconds"] for row in document["rows"] if "seconds" in row]
    time = f", {sum(seconds) / 60:.0f} minutes of one core" if seconds else ""
    return (
        f"{data['targets']} target photos of {data['test_clients']} unseen {judged_people(document)}, each with"
        f" {document['history']} history photos unless said otherwise, backbone `{document['backbone']}`,"
        f"{_block(document)} {seeds_line(document)}{time}."
    )


def _block(document: Document) -> str:
    """The block of ICIIA-T and its longest training, where a document states them."""
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
    """What people see of a study.

    Attributes:
        title: of its section.
        columns: of its table, or what they are of a document.
        about: what was measured, as :func:`data_line` goes on.
        plot: PNG of a study that is more than a table, else None.
        orders: columns of the table of what the papers found, where the document has one.
        plotted: field that the chart shows; a document without it has no chart.
    """

    title: str
    columns: Columns | Callable[[Document], Columns]
    about: Callable[[Document], str] = about_people
    plot: Callable[[Document], bytes | None] = no_plot
    orders: Columns = field(default_factory=lambda: ORDER_COLUMNS)
    plotted: str = "rows"

    def table(self, document: Document) -> Table:
        """Header and rows as people read them; differences in points."""
        columns = self.columns(document) if callable(self.columns) else self.columns
        return table(columns, document["rows"])

    def has_plot(self, document: Document) -> bool:
        """Return whether this document has a chart, without drawing it."""
        return self.plot is not no_plot and self.plotted in document

    def more(self, document: Document) -> Sequence[tuple[str, Table]]:
        """Additional tables with titles, shown before the table of all rows."""
        return ()


def study_document(study: str, command: str, seeds: Sequence[int], **more: Any) -> dict[str, Any]:
    """A study's results document (``docs/results-format.md``)."""
    return {"schema_version": STUDY_SCHEMA, "study": study, "command": command, "seeds": list(seeds), **more}


def data_of(source: str, photos: PhotoTable, **more: Any) -> dict[str, Any]:
    """The section ``data`` of a results document: all photos, of a source as it was given."""
    return {
        "source": Path(source).name,
        "fingerprint": photos.fingerprint(),
        "classes": len(photos.classes),
        **more,
    }


def new_figure(width: float = 6.5, height: float = 3.6) -> tuple[Any, Any]:
    """A figure of so many inches, and its one axes."""
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def accuracy_png(figure: Any, axes: Any, x_label: str) -> bytes:
    """Renders a plot of accuracies as PNG."""
    axes.set_xlabel(x_label)
    axes.set_ylabel("accuracy, %")
    axes.legend(fontsize=8, frameon=False)
    return png(figure)


def png(figure: Any) -> bytes:
    """A figure as PNG that is the same every time."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130, metadata={"Software": None})
    return stream.getvalue()
