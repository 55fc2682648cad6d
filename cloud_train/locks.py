"""Two commands on one run folder: what one of them makes, the other waits for."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from refocus.cloud_train.progress import say


@contextlib.contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """One process at a time; another one says that it waits, and does. A process that dies lets go.

    Args:
        lock: an empty file that stays; its folder is what is waited for.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another command works on {lock.parent}; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
