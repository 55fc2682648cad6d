"""Orders of papers, and whether results show them.

The results are those of studies and of the programme of federated tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refocus.cloud_train.evaluate.page import ORDER_COLUMNS, VERDICTS, Document, short_points, table, text, verdict
from refocus.cloud_train.federated.methods import title_of
from studies.federated import orders as federated
from studies.federated.programme import Programme, load_programme, of_these_settings, resolved
from studies.report.negatives import Negative
from studies.report.sections import Pictures, Section, markdown, render
from studies.report.topics import PAPERS, page_of_paper

PROGRAMME = "federated-programme.toml"  # next to the folder of documents
FEDERATED = "Federated methods under their papers' conditions"
_VERDICTS = {federated.REVERSED: VERDICTS[0], federated.NOT_SEEN: VERDICTS[1], federated.HOLDS: VERDICTS[2]}
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Judged:
    """Programme of federated tables, with documents and verdicts on orders."""

    programme: Programme
    documents: Mapping[str, Document]
    rows: Rows
    attempts: Rows

    def of(self, paper: str) -> Judged:
        """Return the orders of one paper."""
        rows, attempts = (
            [row for row in part if paper_of(row["source"]) == paper] for part in (self.rows, self.attempts)
        )
        return Judged(self.programme, self.documents, rows, attempts)


def judge_programme(folder: Path) -> Judged | None:
    """Return the verdicts of the programme next to a folder of documents.

    Returns:
        None without a programme.
    """
    path = folder.parent / PROGRAMME
    if not path.is_file():
        return None
    programme = load_programme(path)
    check_papers(programme)
    # Documents of other settings would be compared at unequal budgets.
    documents = of_these_settings(programme, federated.read_documents(folder / "federated"))
    attempts = federated.judge(programme, documents, programme.attempts)
    return Judged(programme, documents, federated.judge(programme, documents), attempts)


def paper_of(source: str, page: str = "") -> str:
    """Return the paper of a source such as "pFedPG Table 1".

    A source without the name of a paper is of the paper of the page.
    """
    first = source.split()[0]
    if first in PAPERS:
        return first
    return next((paper for paper, own in PAPERS.items() if own == page), first)


def study_orders(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return the orders of all studies, reversed ones first.

    Each has its document, place and paper.
    """
    found = [
        {"document": one.name, "place": one.place, "paper": paper_of(order["source"], one.page), **order}
        for one in sections
        for order in one.document.get("orders", ())
    ]
    return sorted(found, key=lambda order: VERDICTS.index(verdict(order)))


def counts(verdicts: Sequence[str]) -> list[int]:
    """Return how many orders hold, are not seen, and are reversed."""
    count = Counter(_VERDICTS.get(one, one) for one in verdicts)
    return [count[one] for one in reversed(VERDICTS)]


def orders_text(found: Rows) -> str:
    """Return the section with the orders of all studies; "" without any."""
    if not found:
        return ""
    count = Counter(verdict(order) for order in found)
    cells = table({"section": text("document"), **ORDER_COLUMNS}, found)
    return render("templates/orders.md.j2", count=count, cells=cells, markdown=markdown)


def paper_orders_text(paper: str, found: Rows) -> str:
    """Return the section with a paper's orders in studies; "" without any."""
    own = [order for order in found if order["paper"] == paper]
    if not own:
        return ""
    cells = table({"section": lambda row: f"[{row['document']}]({row['place']})", **ORDER_COLUMNS}, own)
    holds, unseen, turned = counts([verdict(order) for order in own])
    return (
        f"## What the {paper} paper found, in studies\n"
        f"Of {len(own)} orders {turned} are reversed, {unseen} show no difference, {holds} hold;"
        " differences are in points, paired on the same photos and seeds.\n\n"
        f"{markdown(cells)}\n"
    )


def programme_text(judged: Judged) -> str:
    """Return the section with all orders of a programme, without its tables."""
    return _rendered(judged, FEDERATED, [], [], [])


def programme_paper_text(judged: Judged, paper: str, pictures: Pictures) -> str:
    """Return the section of a paper's orders and tables.

    It is "" if the programme has no table of the paper.
    """
    programme, documents = judged.programme, judged.documents
    names = [name for name in programme.tables if paper_of(resolved(programme, name).paper) == paper]
    if not names:
        return ""
    tables = []
    for name in names:
        if rows := federated.table_rows(programme, name, documents):
            pictures[f"federated-{name}.png"] = lambda name=name: federated.density_and_curves(  # type: ignore[misc]
                programme, name, documents
            )
            about = federated.about_table(programme, name, documents)
            tables.append({"name": name, "about": about, "rows": table(federated.ROW_COLUMNS, rows)})
    averages = []
    for one in programme.averages:
        rows = federated.average_rows(programme, one, documents) if paper_of(one.paper) == paper else []
        if rows:
            cells = list(rows[0]), [list(row.values()) for row in rows]
            averages.append({"paper": one.paper, "tables": one.tables, "rows": cells})
    missing = [name for name in names if name not in {one["name"] for one in tables}]
    return _rendered(judged.of(paper), f"{paper} under its paper's conditions", averages, tables, missing)


def check_papers(programme: Programme) -> None:
    """Check that every table, order and average has a page.

    Raises:
        DataError: a paper has no page.
    """
    sources = [one.source for one in (*programme.orders, *programme.attempts)]
    papers = [resolved(programme, name).paper for name in programme.tables]
    for source in (*sources, *papers, *(one.paper for one in programme.averages)):
        page_of_paper(source)


def negatives_of(judged: Judged) -> list[Negative]:
    """Return the negative results of a programme.

    They are its reversed orders, including further attempts, and the number of orders that are not seen.
    """
    found = [
        Negative(
            f"reversed: {title_of(row['better'])} over {title_of(row['other'])} ({row['source']}):"
            f" {short_points(row['difference'])} points",
            100 * row["difference"]["mean"],
        )
        for row in (*judged.rows, *judged.attempts)
        if row["verdict"] == federated.REVERSED
    ]
    unseen = sum(row["verdict"] == federated.NOT_SEEN for row in judged.rows)
    more = [Negative(f"no difference is seen for {unseen} of the paper's {len(judged.rows)} orders")] if unseen else []
    return [*found, *more]


def _rendered(
    judged: Judged,
    title: str,
    averages: Sequence[Mapping[str, Any]],
    tables: Sequence[Mapping[str, Any]],
    missing: Sequence[str],
) -> str:
    return render(
        "templates/federated_programme.md.j2",
        title=title,
        summary=federated.summary(judged.rows),
        orders=table(federated.ORDER_COLUMNS, judged.rows),
        attempts=table(federated.ORDER_COLUMNS, judged.attempts) if judged.attempts else None,
        averages=averages,
        tables=tables,
        missing=missing,
        markdown=markdown,
    )
