"""Notes and progress bars from the first process alone, however many torchrun started."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

from refocus.edge.commands import track as track_here

T = TypeVar("T")

_logger = logging.getLogger("refocus.cloud_train")


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """As :func:`refocus.edge.commands.track`; processes that torchrun started after the first one show nothing."""
    return track_here(items, what, total) if is_first() else iter(items)


def say(line: str) -> None:
    """One line of news to the ``refocus`` logger, from the first process alone."""
    if is_first():
        _logger.info(line)


def is_first() -> bool:
    """Whether this is the first of the processes that torchrun started, or the only one."""
    return os.environ.get("RANK", "0") == "0"
