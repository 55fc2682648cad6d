"""Redirects the output of libraries (file descriptors 1 and 2) to a log while an export runs."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Say = Callable[[str], object]


@contextmanager
def kept_apart(verbose: bool = False) -> Iterator[Say]:
    """Sends everything that is written to the file descriptors 1 and 2 into a log; yields what writes a line past it.

    Python's warnings and loggers are in it, what native code prints (cpuinfo, XNNPACK), and the second process. It is
    shown if the block ends with an error that nobody has put into words: of a named one, ``--verbose`` shows it. What
    the ``refocus`` logger is told is our own and goes past the log.

    Args:
        verbose: leave both as they are.
    """
    from refocus.edge.errors import RefocusError

    ours = logging.getLogger("refocus")
    say = logging.getLogger("refocus.export").info
    if verbose:
        yield say
        return
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        before = [os.dup(descriptor) for descriptor in (1, 2)]
        handlers, past = ours.handlers, os.fdopen(os.dup(before[1]), "w", errors="backslashreplace")
        ours.handlers = [logging.StreamHandler(past)] if handlers else []
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
        try:
            yield say
        except Exception as error:
            if not isinstance(error, RefocusError | OSError):
                _restore(before)
                log.seek(0)
                os.write(2, log.read())
            raise
        finally:
            ours.handlers = handlers
            past.close()
            _restore(before)
            for descriptor in before:
                os.close(descriptor)


def _restore(before: list[int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor, kept in zip((1, 2), before, strict=True):
        os.dup2(kept, descriptor)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that what is half made is removed; the status is 143 then."""

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
