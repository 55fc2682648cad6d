"""One self-contained HTML page and one Markdown table of all documents in a folder: no script, no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

import numpy as np

from refocus.benchmarks.document.schema import BenchError, Document, Row, read_document
from refocus.benchmarks.measure.timer import Series, per_minute
from refocus.benchmarks.report.svg import Axis, Line, chart
from refocus.benchmarks.report.text import HEADINGS, advice, cells, facts, markdown, paired_text
from refocus.edge.files import write_file

PAGE, TABLE = "report.html", "table.md"
_CDF_GROUPS = ("stages", "overhead", "sustained", "paired")
_CDF_POINTS = 200
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --line: #d5d5d5; --bad: #b3261e; --good: #1b6e3c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #161616; --line: #3a3a3a; --bad: #ff8a80;
  --good: #7bd99b; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .6rem 0 1.4rem; display: block; overflow-x: auto; }
th, td { padding: .18rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { border-bottom-width: 2px; } td:first-child, td:nth-child(2), td:last-child, th:first-child, th:nth-child(2),
th:last-child { text-align: left; } td.no { color: var(--bad); white-space: normal; min-width: 12rem; }
td.yes { color: var(--good); }
svg { width: 100%; max-width: 40rem; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
svg .grid { stroke: var(--line); stroke-width: .6; } figure { margin: 0; } figcaption { font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1.2rem; }
ul.facts { padding-left: 1.1rem; } details { margin: .5rem 0 1rem; }
"""


def write_report(folder: Path) -> tuple[Path, int]:
    """Writes the page and the table beside the documents.

    Returns:
        the page, and how many documents are in it.

    Raises:
        BenchError: no document, or one that cannot be read.
    """
    documents = read_all(folder)
    write_file(folder / TABLE, markdown(documents) + "\n")
    page = folder / PAGE
    write_file(page, html(documents))
    return page, len(documents)


def read_all(folder: Path) -> dict[str, Document]:
    """The documents of a folder by file name, in order.

    Raises:
        BenchError: as of :func:`write_report`.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise BenchError(f"{folder} holds no documents; refocus bench BUNDLE --out {folder} makes one")
    return {file.name: read_document(file) for file in files}


def html(documents: Mapping[str, Document]) -> str:
    """The page."""
    body = "".join(_section(name, document) for name, document in documents.items())
    title = "How long recognising a photo takes"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"{_across(documents)}{body}</body></html>\n"
    )


def _section(name: str, document: Document) -> str:
    heads = [escape(line) for line in facts(document)]
    told = [escape(line) for line in advice(document)]
    valid = sum(row.verdict.valid for row in document.rows)
    summary = f"{valid} of {len(document.rows)} rows are valid; {document.mode} run of {document.started}"
    parts = [f"<h2>{escape(name)}</h2><p>{escape(summary)}. <code>{escape(document.command)}</code></p>", _list(heads)]
    if document.paired is not None:
        parts.append(f"<p><strong>{escape(paired_text(document.paired))}</strong></p>")
    if told:
        parts.append("<h3>Before these figures are trusted</h3>" + _list(told))
    charts = "".join(_figure(title, drawn) for title, drawn in _charts(document))
    parts.append(f'<div class="charts">{charts}</div>' if charts else "")
    for bundle, target in dict.fromkeys((row.bundle, row.target) for row in document.rows):
        rows = [row for row in document.rows if (row.bundle, row.target) == (bundle, target)]
        parts.append(f"<h3>{escape(bundle)} {escape(target)}</h3>{_table(rows)}")
    if document.ratios:
        parts.append("<h3>Timed in turns in one run</h3>" + _ratios(document))
    return "".join(parts)


def _list(lines: list[str]) -> str:
    return '<ul class="facts">' + "".join(f"<li>{line}</li>" for line in lines) + "</ul>"


def _figure(title: str, drawn: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawn}</figure>"


def _table(rows: list[Row]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADINGS)
    body = ""
    for row in rows:
        *values, verdict = cells(row)
        why = "; ".join(f"{reason.code}: {reason.detail}" for reason in row.verdict.reasons)
        mark = f'<td class="{"yes" if row.verdict.valid else "no"}" title="{escape(why, quote=True)}">'
        body += "<tr>" + "".join(f"<td>{escape(value)}</td>" for value in values) + f"{mark}{escape(verdict)}</td></tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _ratios(document: Document) -> str:
    body = "".join(
        f"<tr><td>{escape(r.group)}</td><td>{escape(f'{r.name} ({r.bundle} {r.target})')}</td><td>{escape(r.over)}</td>"
        f"<td>{r.ratio:.3f}</td><td>{r.low:.3f} to {r.high:.3f}</td></tr>"
        for r in document.ratios
    )
    head = "".join(f"<th>{name}</th>" for name in ("group", "what", "over", "ratio", "95 % interval"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


# ---- charts


def _charts(document: Document) -> Iterator[tuple[str, str]]:
    wholes = [row for row in document.rows if row.group in _CDF_GROUPS]
    for group in _CDF_GROUPS:
        lines = [_cdf(row, document) for row in wholes if row.group == group]
        if lines:
            drawn = chart(lines, Axis("ms", logarithmic=True), Axis("share", from_zero=True), f"CDF of {group}")
            yield f"{group}: share of samples below a time", drawn
    for group, name in (
        ("history length", "stored photos"),
        ("profiles", "profiles on disk"),
        ("threads", "threads"),
        ("batch", "photos at once"),
    ):
        rows = [row for row in document.rows if row.group == group]
        if rows:
            yield f"{group}: p50 and p90", _along(rows, name, document)
    for row in document.rows:
        if row.group == "sustained":
            yield f"sustained: {_label(row, document)}", _sustained(row)


def _label(row: Row, document: Document) -> str:
    many = len({(r.bundle, r.target) for r in document.rows}) > 1
    return f"{row.name} ({row.bundle} {row.target})" if many else row.name


def _cdf(row: Row, document: Document) -> Line:
    values = np.sort(np.array(row.samples_ms))
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), _CDF_POINTS)).round().astype(int))
    shares = (chosen + 1) / len(values)
    return Line(_label(row, document), values[chosen].tolist(), shares.tolist())


def _along(rows: list[Row], axis: str, document: Document) -> str:
    """Bars from p50 to p90 along the group's axis, photo by photo."""
    places = tuple(dict.fromkeys(row.at for row in rows))
    lines = []
    for label in dict.fromkeys(_label(row, document) for row in rows):
        own = [row for row in rows if _label(row, document) == label]
        p50 = [row.summary.p50.ms / row.photos for row in own]
        p90 = [row.summary.p90.ms / row.photos for row in own]
        lines.append(Line(label, [float(places.index(row.at)) for row in own], p50, p50, p90))
    return chart(lines, Axis(axis, labels=places), Axis("ms a photo", from_zero=True), f"along {axis}")


def _sustained(row: Row) -> str:
    series = Series(np.array(row.samples_ms), np.array(row.starts_s), row.observations)
    piece_s = 60.0 if row.summary.seconds >= 180 else max(row.summary.seconds / 20, 1e-3)
    found = [*per_minute(series, piece_s)]
    at = [number * piece_s / 60 for number, *_ in found]
    lines = [Line("p50", at, [p50 for _, p50, _, _ in found]), Line("p90", at, [p90 for _, _, p90, _ in found])]
    warm = [(minute, celsius) for minute, (_, _, _, celsius) in zip(at, found, strict=True) if celsius is not None]
    drawn = chart(lines, Axis("minutes"), Axis("ms", from_zero=True), "sustained")
    if warm:
        heat = [Line("warmest sensor", [minute for minute, _ in warm], [celsius for _, celsius in warm])]
        drawn += chart(heat, Axis("minutes"), Axis("°C"), "temperature")
    return drawn


def _across(documents: Mapping[str, Document]) -> str:
    """Accuracy against time and against size, of everything that has both."""
    points = [*_points(documents)]
    if not points:
        return "<p>Accuracy against time: not measured, no labelled photos were given (<code>--accuracy</code>).</p>"
    best = pareto([(ms, right) for _, right, ms, _ in points])
    figures = []
    for title, name, column in (("accuracy against time", "whole, p50 ms", 2), ("accuracy against size", "MB", 3)):
        scale = 1 if column == 2 else 1e6
        lines = [
            Line(
                f"{p[0]}{' (none is faster and better)' if column == 2 and n in best else ''}",
                [float(p[column]) / scale],
                [100 * float(p[1])],
                marks=True,
            )
            for n, p in enumerate(points)
        ]
        figures.append(_figure(title, chart(lines, Axis(name, logarithmic=True), Axis("right, %"), title)))
    return f'<div class="charts">{"".join(figures)}</div>'


def _points(documents: Mapping[str, Document]) -> Iterator[tuple[str, float, float, float]]:
    """(name, share of right answers, p50 ms of the whole, bytes)."""
    for document in documents.values():
        sizes = {(ran.bundle, ran.target): ran.size_bytes for ran in document.ran}
        for found in document.accuracy:
            whole = _whole(document, found.bundle, found.target)
            if whole is not None:
                size = float(sizes.get((found.bundle, found.target), 0))
                yield f"{found.bundle} {found.target}", found.with_history, whole, size


def _whole(document: Document, bundle: str, target: str) -> float | None:
    rows = (r for r in document.rows if (r.bundle, r.target, r.group, r.name) == (bundle, target, "stages", "whole"))
    return next((row.summary.p50.ms for row in rows), None)


def pareto(points: list[tuple[float, float]]) -> set[int]:
    """Which (cost, worth) are on the front: no other costs no more, is worth no less, and differs."""
    return {
        n
        for n, (cost, worth) in enumerate(points)
        if not any(c <= cost and w >= worth and (c, w) != (cost, worth) for c, w in points)
    }
