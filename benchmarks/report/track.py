"""Documents by machine and commit, and what got slower from one commit to the next.

    FOLDER/MACHINE/STARTED-COMMIT.json      a document as ``refocus bench`` wrote it
    FOLDER/history.html                     rows over time

Two documents are compared as :mod:`refocus.benchmarks.report.compare` does: only a difference that is certainly larger
than two runs of the same thing may show is called one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from refocus.benchmarks.document.schema import BenchError, Document, read_document, write_document
from refocus.benchmarks.report.charts import new_axes, svg
from refocus.benchmarks.report.compare import Difference, Key, compare, obstacles, rows_by_key
from refocus.benchmarks.report.report import page, table
from refocus.edge.files import write_file

PAGE = "history.html"
_COMMIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Tracked:
    """One document that is kept.

    Attributes:
        machine: name of its folder: the document's machine.
        commit: what was measured.
    """

    machine: str
    commit: str
    document: Document


@dataclass(frozen=True)
class Change:
    """A row that differs between two commits of one machine.

    Attributes:
        before, after: the commits.
    """

    machine: str
    before: str
    after: str
    difference: Difference

    def __str__(self) -> str:
        found = self.difference
        return f"{found.place}: {self.after} is {found.answer} than {self.before}: {found.interval}"


def current_commit() -> str:
    """The commit of the working folder's repository, and "+" where files differ from it.

    Raises:
        BenchError: it is none.
    """
    try:
        name, changed = (
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603  # fixed
            for command in (["git", "rev-parse", "--short=12", "HEAD"], ["git", "status", "--porcelain"])
        )
    except (OSError, subprocess.CalledProcessError):
        raise BenchError("this folder is not a git repository; name the commit with --commit NAME") from None
    return name + ("+" if changed else "")


def keep(folder: Path, document: Document, commit: str) -> Path:
    """Keeps a document under its machine and commit; the same one again changes nothing.

    Raises:
        BenchError: the commit cannot be the name of a file.
    """
    if not _COMMIT.fullmatch(commit):
        raise BenchError(f"--commit {commit[:80]}: expected letters, digits, '.', '_', '+' and '-', at most 64")
    started = _UNSAFE.sub("", document.started)
    path = folder / _UNSAFE.sub("-", document.machine.id) / f"{started}-{commit}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_document(document, path)
    return path


def tracked(folder: Path) -> list[Tracked]:
    """Everything that is kept, machine by machine, oldest first.

    Raises:
        BenchError: nothing is there, or a file is no document.
    """
    found = []
    for file in sorted(folder.glob("*/*.json")):
        document = read_document(file)
        commit = file.stem[len(_UNSAFE.sub("", document.started)) + 1 :]
        found.append(Tracked(file.parent.name, commit, document))
    if not found:
        raise BenchError(f"{folder} keeps no documents; refocus bench track {folder} DOCUMENT keeps one")
    return sorted(found, key=lambda kept: (kept.machine, kept.document.started))


def changes(kept: Sequence[Tracked], baseline: str = "") -> Iterator[Change]:
    """Rows that got slower or faster: each document against the latest comparable one of another commit before it.

    Args:
        baseline: compare with this commit instead, which also shows what got slower in many small steps.
    """
    for number, after in enumerate(kept):
        earlier = [k for k in kept[:number] if k.machine == after.machine and k.commit != after.commit]
        if baseline:
            earlier = [k for k in earlier if k.commit == baseline]
        before = next((k for k in reversed(earlier) if not any(obstacles(k.document, after.document))), None)
        for found in compare(before.document, after.document) if before else ():
            if found.answer in ("slower", "faster"):
                yield Change(after.machine, before.commit if before else "", after.commit, found)


def write_history(folder: Path, kept: Sequence[Tracked], found: Sequence[Change]) -> Path:
    """Writes the page: what changed, and each row's median over the commits, with its quartiles."""
    parts = []
    for machine in dict.fromkeys(one.machine for one in kept):
        own = [one for one in kept if one.machine == machine]
        parts.append(f"<h2>{escape(own[0].document.machine.cpu)}</h2><p>{len(own)} documents, machine {machine}</p>")
        told = [change for change in found if change.machine == machine]
        rows = ["".join(f"<td>{escape(cell)}</td>" for cell in (c.after, str(c))) for c in told]
        parts.append(table(("commit", "what changed"), rows) if rows else "<p>No difference seen.</p>")
        parts.append(f'<div class="charts">{"".join(_charts(own))}</div>')
    path = folder / PAGE
    write_file(path, page("Measured over time", "".join(parts)))
    return path


def _charts(own: Sequence[Tracked]) -> Iterator[str]:
    """One chart for each row that at least two documents have; a document whose row is not valid is drawn hollow."""
    for key in dict.fromkeys(key for one in own for key in rows_by_key(one.document)):
        if len(having := [one for one in own if key in rows_by_key(one.document)]) > 1:
            yield _chart(key, having)


def _chart(key: Key, own: Sequence[Tracked]) -> str:
    rows, title = [rows_by_key(one.document)[key] for one in own], " ".join(word for word in key if word)
    low, middle, high = np.array([np.percentile(row.samples_ms, [25, 50, 75]) for row in rows]).T
    axes = new_axes("commit", "ms")
    axes.errorbar(range(len(rows)), middle, [middle - low, high - middle], marker="o", label="median and quartiles")
    hollow = [number for number, row in enumerate(rows) if not row.verdict.valid]
    if hollow:
        axes.plot(hollow, middle[hollow], "o", markerfacecolor="white", label="not valid")
    axes.set_xticks(range(len(rows)), [one.commit for one in own], rotation=60)
    axes.set_ylim(bottom=0)
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg(axes, title)}</figure>"
