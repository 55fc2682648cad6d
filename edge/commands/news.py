"""Notes, warnings and progress of commands on standard error.

Library code tells its news to the logger of its module, below ``refocus``; what is shown, and that it goes to standard
error, is for the command line alone to say.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")

logger = logging.getLogger("refocus")


class _StandardError(logging.Handler):
    """Writes to what is standard error when a line comes, not to what was when it was made."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def show_news(quiet: bool = False) -> None:
    """Shows what the ``refocus`` logger is told on standard error: notes and warnings, or warnings alone.

    Args:
        quiet: warnings alone, and no progress bars.
    """
    if not any(isinstance(handler, _StandardError) for handler in logger.handlers):
        logger.addHandler(_StandardError())
    logger.propagate = False  # some libraries give the root logger a handler of their own
    logger.setLevel(logging.WARNING if quiet else logging.INFO)


def shows_progress() -> bool:
    """Whether somebody watches: standard error is a terminal, and notes are shown."""
    return sys.stderr.isatty() and logger.isEnabledFor(logging.INFO)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yields the items while a bar shows what is being done, how far it is, and how long it may take.

    Args:
        total: how many items there are; default: their length, if they have one.
    """
    if not shows_progress():
        yield from items
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TimeRemainingColumn(), console=Console(file=sys.stderr)) as progress:
        task = progress.add_task(what, total=len(items) if total is None and isinstance(items, Sized) else total)
        for item in items:
            yield item
            progress.advance(task)
