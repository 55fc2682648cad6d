"""Two commands on one folder: what one of them makes, the other waits for, or is refused."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.progress import say


@contextlib.contextmanager
def one_at_a_time(lock: Path, refusal: str = "") -> Iterator[int]:
    """One process at a time; another one says that it waits, and does. A process that dies lets go.

    Args:
        lock: an empty file that stays; its folder is what is waited for.
        refusal: what another process is told instead of waiting.

    Returns:
        The lock's descriptor: a child process that has it goes on holding the lock.

    Raises:
        UsageError: the lock is taken, and there is a refusal.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if refusal:
                raise UsageError(refusal) from None
            say(f"another command works on {lock.parent}; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream.fileno()
