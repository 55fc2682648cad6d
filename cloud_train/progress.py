"""Progress bars on standard error, silent where nobody watches."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yields the items while a bar shows what is being done, how far it is, and how long it may take.

    Processes that torchrun started after the first one show nothing.
    """
    if os.environ.get("RANK", "0") != "0":
        yield from items
        return
    columns = TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = Console(file=sys.stderr)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        for item in items:
            yield item
            progress.advance(task)


def say(line: str) -> None:
    """One line of news on standard error, from the first process alone."""
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
