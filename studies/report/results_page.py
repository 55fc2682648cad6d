"""Results pages: a front page, topics, and pages of long tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from refocus.edge.files import write_file
from studies.report import orders
from studies.report.front_page import front_page
from studies.report.negatives import Negative, negatives
from studies.report.sections import DAMAGES, Pictures, Section, damaged, sections_of
from studies.report.topics import ORDERS, PAPERS, TOPICS

LONG = 20_000  # bytes of a section; the longest table of a longer section has separate pages
PART = 36_000  # maximum bytes of such a page
Lost = list[tuple[Section | None, Negative]]  # negative results of a page, with their sections
COMMAND = "python -m studies results docs/results --out docs/results.md"


@dataclass(frozen=True)
class ResultsPages:
    """Hold all pages as text, and the functions that draw their pictures.

    Attributes:
        front: front page.
        topics: other pages by file name without ``.md``; they belong in the folder of the documents.
        pictures: functions that draw pictures, by file name.
    """

    front: str
    topics: Mapping[str, str]
    pictures: Pictures

    @property
    def text(self) -> str:
        """Text of the front page and of all others."""
        return "\n".join((self.front, *self.topics.values()))


def results_pages(folder: Path) -> ResultsPages:
    """Return the pages of a folder of result documents.

    No picture is drawn.

    Raises:
        DataError: the folder holds none, or one that no page can show.
    """
    pictures: Pictures = {}
    sections = sections_of(folder, pictures)
    judged = orders.judge_programme(folder)
    found = orders.study_orders(sections)
    topics: dict[str, str] = {}
    worst: dict[str, Lost] = {}
    for page, title in TOPICS.items():
        own = [one for one in sections if one.page == page]
        paper = next((paper for paper, of in PAPERS.items() if of == page), "")
        parts, lost = _parts(paper, own, found, judged, pictures)
        if parts:
            worst[page] = lost
            topics |= _page(page, title, own, lost, parts)
    programme = orders.programme_text(judged) if judged else ""
    if both := [part for part in (orders.orders_text(found), programme) if part]:
        topics[ORDERS] = "\n".join(["# What papers found, and whether it is seen here\n" + _made(), *both])
    return ResultsPages(front_page(folder, sections, worst, found, judged), topics, pictures)


def write_results_pages(folder: Path, out: Path, draw: bool = True) -> None:
    """Write the results pages and their pictures.

    The other pages go to the folder with the name of the front page, pictures to ``pictures`` next to it.

    Args:
        folder: folder of result documents.
        out: file of the front page.
        draw: write the pictures too, which takes most of the time.

    Raises:
        DataError: the folder holds no result document, or one that no page can show.
    """
    pages = results_pages(folder)
    write_file(out, pages.front)
    out.with_suffix("").mkdir(parents=True, exist_ok=True)
    for name, text in pages.topics.items():
        write_file(out.with_suffix("") / f"{name}.md", text)
    if draw:
        (out.parent / "pictures").mkdir(parents=True, exist_ok=True)
        for name, picture in pages.pictures.items():
            write_file(out.parent / "pictures" / name, picture())


def _parts(
    paper: str,
    own: Sequence[Section],
    found: orders.Rows,
    judged: orders.Judged | None,
    pictures: Pictures,
) -> tuple[list[str], Lost]:
    """Return the parts of a page, and its negative results with sections."""
    parts, lost = list[str](), Lost()
    if judged and paper:
        parts.append(orders.programme_paper_text(judged, paper, pictures))
        lost += [(None, one) for one in orders.negatives_of(judged.of(paper))]
    parts.append(orders.paper_orders_text(paper, found))
    lost += [(one, negative) for one in own for negative in _negatives(one)]
    return [part for part in (*parts, *(one.text for one in own)) if part], lost


def _negatives(section: Section) -> list[Negative]:
    try:
        return negatives(section.document)
    except DAMAGES as error:
        raise damaged(section.name, error) from error


def _page(page: str, title: str, own: Sequence[Section], lost: Lost, parts: Sequence[str]) -> dict[str, str]:
    """Return the page of a topic and the pages of its long tables."""
    pages, kept = {}, []
    for part in parts:
        short, tables = _without_long_table(part)
        name = part.splitlines()[0].lstrip("# ").split(":")[0]
        links = [f"[part {number}]({name}-rows-{number}.md)" for number in range(1, len(tables) + 1)]
        kept.append(short.replace(_PLACE, f"All rows: {', '.join(links)}."))
        for number, rows in enumerate(tables, 1):
            about = f"# {name}: all rows, part {number} of {len(tables)}\nOf the section [{name}]({page}.md).\n"
            pages[f"{name}-rows-{number}"] = f"{about}{_made()}\n{rows}\n"
    lines = [f"- {_linked(section, negative)}" for section, negative in lost] or [
        "- none found by the rules of this page"
    ]
    documents = ", ".join(f"[{one.name}]({one.name}.json)" for one in own)
    head = f"# {title}\n{_made()}\n## Negative results\n" + "\n".join(lines) + "\n"
    foot = [f"## Documents\n{documents}\n"] if documents else []
    return {page: "\n".join([head, *kept, *foot]), **pages}


def _linked(section: Section | None, negative: Negative) -> str:
    if section is None:
        return negative.text
    return f"[{section.name}](#{section.place.split('#')[1]}): {negative.text}"


def _made() -> str:
    return f"One of the [results](../results.md), generated by `{COMMAND}`; [fields](../results-format.md).\n"


_PLACE = "@long-table@"


def _without_long_table(text: str) -> tuple[str, list[str]]:
    """Split off the longest table of a long section.

    Returns:
        The section with a placeholder, and parts of the table, each with its header; no parts if the section is short.
    """
    if len(text.encode()) <= LONG:
        return text, []
    lines = text.split("\n")
    runs, start = [], 0
    for number, line in enumerate([*lines, ""]):
        if not line.startswith("|"):
            runs.append((sum(len(one.encode()) for one in lines[start:number]), start, number))
            start = number + 1
    _, start, end = max(runs)
    header, rows = lines[start : start + 2], lines[start + 2 : end]
    parts, size = [list(header)], 0
    for row in rows:
        size += len(row.encode()) + 1
        if size > PART:
            parts.append(list(header))
            size = len(row.encode()) + 1
        parts[-1].append(row)
    return "\n".join([*lines[:start], _PLACE, *lines[end:]]), ["\n".join(part) for part in parts]
