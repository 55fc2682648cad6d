"""Keeps a few known lines of libraries off standard error; whatever else is said there stays."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def without_warning(name: str, words: str) -> Iterator[None]:
    """Leaves out what the logger of that name says with these words while the block runs."""

    def other(record: logging.LogRecord) -> bool:
        return words not in record.getMessage()

    logger = logging.getLogger(name)
    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)


@contextlib.contextmanager
def without_native_lines(known: bytes) -> Iterator[None]:
    """Leaves out lines that native code writes to the file descriptor 2 while the block runs; for short blocks.

    The descriptor is the process's: what other threads write meanwhile comes out when the block ends.

    Args:
        known: the beginning of such a line, a regular expression.
    """
    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(tempfile.TemporaryFile())
            before = os.dup(2)
        except OSError:  # no place for the lines, or a service without standard error: they are left as they are
            log = None
        if log is None:
            yield
            return
        try:
            os.dup2(log.fileno(), 2)
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            log.seek(0)
            if others := [line for line in log.read().splitlines(keepends=True) if not re.match(known, line)]:
                os.write(2, b"".join(others))
