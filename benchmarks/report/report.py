"""One self-contained HTML page and one Markdown table of all documents in a folder: no script, no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from refocus.benchmarks.document.schema import BenchError, Document, Row, read_document
from refocus.benchmarks.report.charts import accuracy_charts, charts
from refocus.benchmarks.report.text import (
    HEADINGS,
    RATIO_HEADINGS,
    RATIO_NOTE,
    cells,
    facts,
    fastest_lines,
    markdown,
    paired_text,
    ratio_cells,
    reasons,
)
from refocus.edge.files import write_file
from refocus.edge.pages import page as whole_page

PAGE, TABLE = "report.html", "table.md"
# Of tables: words on the left, and room for the reasons of a verdict.
_STYLE = """
td:nth-child(2), td:last-child, th:nth-child(2), th:last-child { text-align: left; }
td.no { white-space: normal; min-width: 12rem; }
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
    path = folder / PAGE
    write_file(path, html(documents))
    return path, len(documents)


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
    title = "How long recognising a photo takes"
    across = _figures(accuracy_charts(documents)) or (
        "<p>Accuracy against time: not measured, no labelled photos were given (<code>--accuracy</code>).</p>"
    )
    body = "".join(_section(name, document) for name, document in documents.items())
    return page(title, across + body)


def page(title: str, body: str) -> str:
    """A page in the one look of all of them."""
    return whole_page(title, body, _STYLE)


def _section(name: str, document: Document) -> str:
    valid = sum(row.verdict.valid for row in document.rows)
    summary = f"{valid} of {len(document.rows)} rows are valid; {document.mode} run of {document.started}"
    parts = [f"<h2>{escape(name)}</h2><p>{escape(summary)}. <code>{escape(document.command)}</code></p>"]
    parts.append(_list([*fastest_lines(document), *facts(document)]))
    if document.paired is not None:
        parts.append(f"<p><strong>{escape(paired_text(document.paired))}</strong></p>")
    if told := [*reasons(document.rows)]:
        parts.append("<h3>Before these figures are trusted</h3>" + _list(told))
    parts.append(_figures(charts(document)))
    for bundle, target in dict.fromkeys((row.bundle, row.target) for row in document.rows):
        rows = [_row(row) for row in document.rows if (row.bundle, row.target) == (bundle, target)]
        parts.append(f"<h3>{escape(bundle)} {escape(target)}</h3>{table(HEADINGS, rows)}")
    if document.ratios:
        found = [ratio_cells(ratio, document.rows) for ratio in document.ratios]
        rows = ["".join(f"<td>{escape(cell)}</td>" for cell in one) for one in found]
        parts.append(f"<h3>Timed in turns in one run</h3>{table(RATIO_HEADINGS, rows)}<p>{escape(RATIO_NOTE)}</p>")
    return "".join(parts)


def _list(lines: Iterable[str]) -> str:
    return '<ul class="facts">' + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _figures(drawn: Iterable[tuple[str, str]]) -> str:
    """Charts with their captions; "" where there are none."""
    found = "".join(f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>" for title, svg in drawn)
    return f'<div class="charts">{found}</div>' if found else ""


def table(headings: Sequence[str], rows: Sequence[str]) -> str:
    """A table of rows whose cells are HTML already."""
    head, body = "".join(f"<th>{name}</th>" for name in headings), "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(row: Row) -> str:
    *values, verdict = cells(row)
    why = "; ".join(f"{reason.code}: {reason.detail}" for reason in row.verdict.reasons)
    mark = f'<td class="{"yes" if row.verdict.valid else "no"}" title="{escape(why, quote=True)}">'
    return "".join(f"<td>{escape(value)}</td>" for value in values) + f"{mark}{escape(verdict)}</td>"
