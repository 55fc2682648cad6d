"""Charts of documents as SVG text, for a report that opens without a network and without a script."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from refocus.benchmarks.document.schema import Document, Row
from refocus.benchmarks.measure.timer import Series, per_minute

# Distinguishable without colour vision too (Okabe and Ito, 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
_CDF_GROUPS = ("stages", "overhead", "sustained", "paired")
_CDF_POINTS = 200
_AXIS_OF_GROUP = {
    "history length": "stored photos",
    "profiles": "profiles on disk",
    "threads": "threads",
    "batch": "photos at once",
}


def charts(document: Document) -> Iterator[tuple[str, str]]:
    """Caption and SVG of each chart of one document."""
    for group in _CDF_GROUPS:
        rows = [row for row in document.rows if row.group == group]
        if rows:
            yield f"{group}: share of samples below a time", _cdf(rows, document)
    for group, axis in _AXIS_OF_GROUP.items():
        rows = [row for row in document.rows if row.group == group]
        if rows:
            yield f"{group}: p50 and p90", _along(rows, axis, document)
    for row in document.rows:
        if row.group == "sustained":
            yield f"sustained: {_label(row, document)}", _sustained(row)


def _label(row: Row, document: Document) -> str:
    many = len({(r.bundle, r.target) for r in document.rows}) > 1
    return f"{row.name} ({row.bundle} {row.target})" if many else row.name


def _cdf(rows: Sequence[Row], document: Document) -> str:
    axes = new_axes("ms", "share")
    for row in rows:
        values = np.sort(np.array(row.samples_ms))
        chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), _CDF_POINTS)).round().astype(int))
        axes.plot(values[chosen], (chosen + 1) / len(values), label=_label(row, document))
    axes.set_ylim(bottom=0)
    return svg(axes, f"CDF of {rows[0].group}", logarithmic=True)


def _along(rows: Sequence[Row], axis: str, document: Document) -> str:
    """Bars from p50 to p90 along the group's axis, photo by photo."""
    axes, places = new_axes(axis, "ms a photo"), [*dict.fromkeys(row.at for row in rows)]
    for label in dict.fromkeys(_label(row, document) for row in rows):
        own = [row for row in rows if _label(row, document) == label]
        p50, p90 = (np.array([getattr(row.summary, p).ms / row.photos for row in own]) for p in ("p50", "p90"))
        axes.errorbar([places.index(row.at) for row in own], p50, [0 * p50, p90 - p50], marker="o", label=label)
    axes.set_xticks(range(len(places)), places)
    axes.set_ylim(bottom=0)
    return svg(axes, f"along {axis}")


def _sustained(row: Row) -> str:
    series = Series(np.array(row.samples_ms), np.array(row.starts_s), row.observations)
    piece_s = 60.0 if row.summary.seconds >= 180 else max(row.summary.seconds / 20, 1e-3)
    at, p50, p90, celsius = zip(*per_minute(series, piece_s), strict=True)
    minutes = np.array(at) * piece_s / 60
    axes = new_axes("minutes", "ms")
    axes.plot(minutes, p50, marker="o", label="p50")
    axes.plot(minutes, p90, marker="o", label="p90")
    axes.set_ylim(bottom=0)
    drawn = svg(axes, "sustained")
    warm = [(minute, value) for minute, value in zip(minutes, celsius, strict=True) if value is not None]
    if warm:
        axes = new_axes("minutes", "°C")
        axes.plot(*zip(*warm, strict=True), marker="o", label="warmest sensor")
        drawn += svg(axes, "temperature")
    return drawn


def accuracy_charts(documents: Mapping[str, Document]) -> Iterator[tuple[str, str]]:
    """Caption and SVG of accuracy against time and against size, of everything that has both."""
    points = [*_points(documents)]
    if not points:
        return
    best = pareto([(ms, right) for _, right, ms, _ in points])
    for title, name, column, unit in (
        ("accuracy against time", "whole, p50 ms", 2, 1.0),
        ("accuracy against size", "MB", 3, 1e6),
    ):
        axes = new_axes(name, "right, %")
        for n, point in enumerate(points):
            mark = " (none is faster and better)" if column == 2 and n in best else ""
            axes.plot([float(point[column]) / unit], [100 * point[1]], "o", label=f"{point[0]}{mark}")
        yield title, svg(axes, title, logarithmic=True)


def _points(documents: Mapping[str, Document]) -> Iterator[tuple[str, float, float, float]]:
    """(name, share of right answers, p50 ms of the whole, bytes)."""
    for document in documents.values():
        sizes = {(ran.bundle, ran.target): ran.size_bytes for ran in document.ran}
        wholes = {(r.bundle, r.target): r for r in document.rows if (r.group, r.name) == ("stages", "whole")}
        for found in document.accuracy:
            key = found.bundle, found.target
            if key in wholes:
                yield " ".join(key), found.with_history, wholes[key].summary.p50.ms, float(sizes.get(key, 0))


def pareto(points: list[tuple[float, float]]) -> set[int]:
    """Which (cost, worth) are on the front: no other costs no more, is worth no less, and differs."""
    return {
        n
        for n, (cost, worth) in enumerate(points)
        if not any(c <= cost and w >= worth and (c, w) != (cost, worth) for c, w in points)
    }


# ---- one chart


def new_axes(across: str, up: str) -> Any:
    """Empty matplotlib axes of one chart, with the names of both axes."""
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    axes = Figure(figsize=(6.4, 3.6), layout="constrained").subplots()
    axes.set(xlabel=across, ylabel=up)
    axes.set_prop_cycle(color=COLOURS)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color("#808080")  # on light and on dark paper
    axes.tick_params(color="#808080")
    return axes


def svg(axes: Any, title: str, logarithmic: bool = False) -> str:
    """A chart with its legend as an ``svg`` element that refers to nothing outside itself.

    Args:
        logarithmic: of the axis across.

    Raises:
        ValueError: no points.
    """
    import matplotlib
    from matplotlib.ticker import LogLocator

    low, high = axes.dataLim.intervalx
    if low > high:
        raise ValueError(f"the chart '{title}' has no points")
    if logarithmic:
        low, pad = max(low, 1e-6), 1.15 if high > 5 * low else 2.0  # else there may be no tick in it
        axes.set(xscale="log", xlim=(low / pad, max(high, low) * pad))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    axes.figure.legend(loc="outside lower center", ncols=2, frameon=False)
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        axes.figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    drawn = stream.getvalue()
    # Nothing that names a place: the XML header, namespaces that HTML knows, and clipping, which no line here needs.
    drawn = _own_ids(re.sub(r' (clip-path|xmlns:xlink)="[^"]*"', "", drawn[drawn.index("<svg") :]))
    return drawn.replace("<svg", f'<svg role="img" aria-label="{escape(title, quote=True)}"', 1)


def _own_ids(drawn: str) -> str:
    """An ``svg`` element whose ids are no other chart's of the page: those that nothing refers to are left out."""
    used, own = {*re.findall(r'"#([^"]+)"', drawn)}, hashlib.sha256(drawn.encode()).hexdigest()[:8]

    def renamed(found: re.Match[str]) -> str:
        return f' id="{own}-{found[1]}"' if found[1] in used else ""

    return re.sub(r'"#([^"]+)"', rf'"#{own}-\1"', re.sub(r' id="([^"]*)"', renamed, drawn))
