"""Notes, warnings and progress of commands on standard error.

Library code tells its news to the logger of its module, below ``refocus``; what is shown, and that it goes to standard
error, is for the command line alone to say.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from datetime import timedelta
from typing import TypeVar

T = TypeVar("T")
LINE_S = 30.0  # seconds between two lines of progress where no bar is drawn

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
    """Yields the items and reports what is being done, how far it is and how much time is left.

    A terminal shows a bar. Elsewhere the ``refocus`` logger gets a line every 30 seconds.

    Args:
        total: how many items there are; default: their length, if they have one.
    """
    total = len(items) if total is None and isinstance(items, Sized) else total
    if not shows_progress():
        yield from _told(items, what, total)
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
        task = progress.add_task(what, total=total)
        for item in items:
            yield item
            progress.advance(task)


def _told(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    """Yields the items and logs a line every 30 seconds."""
    began = said = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - said < LINE_S or done == total:
            continue
        said = now
        left = "" if total is None else f", {timedelta(seconds=round((now - began) / done * (total - done)))} left"
        logger.info("%s: %d%s%s", what, done, "" if total is None else f" of {total}", left)
