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
    advice,
    cells,
    facts,
    markdown,
    paired_text,
    ratio_cells,
)
from refocus.edge.files import write_file

PAGE, TABLE = "report.html", "table.md"
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
svg { width: 100%; max-width: 40rem; height: auto; } svg text { fill: var(--ink); }
figure { margin: 0; } figcaption { font-weight: 600; }
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
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>{body}</body></html>\n"
    )


def _section(name: str, document: Document) -> str:
    valid = sum(row.verdict.valid for row in document.rows)
    summary = f"{valid} of {len(document.rows)} rows are valid; {document.mode} run of {document.started}"
    parts = [f"<h2>{escape(name)}</h2><p>{escape(summary)}. <code>{escape(document.command)}</code></p>"]
    parts.append(_list(facts(document)))
    if document.paired is not None:
        parts.append(f"<p><strong>{escape(paired_text(document.paired))}</strong></p>")
    if told := [*advice(document)]:
        parts.append("<h3>Before these figures are trusted</h3>" + _list(told))
    parts.append(_figures(charts(document)))
    for bundle, target in dict.fromkeys((row.bundle, row.target) for row in document.rows):
        rows = [_row(row) for row in document.rows if (row.bundle, row.target) == (bundle, target)]
        parts.append(f"<h3>{escape(bundle)} {escape(target)}</h3>{table(HEADINGS, rows)}")
    if document.ratios:
        rows = ["".join(f"<td>{escape(cell)}</td>" for cell in ratio_cells(ratio)) for ratio in document.ratios]
        parts.append("<h3>Timed in turns in one run</h3>" + table(RATIO_HEADINGS, rows))
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
