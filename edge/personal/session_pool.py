"""Warm sessions: programs that stay loaded, because loading costs many recognitions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from refocus.edge.runtimes import Program


class SessionPool:
    """Loaded programs by key; when there are too many, the least recently used goes first and is closed.

    A program that the pool returned is good until a later :meth:`get` closes it: ask the pool on every switch, do not
    keep one for later. For one thread; another thread has its own pool.

    Args:
        max_programs: programs kept.
        max_bytes: of the sizes that callers state. The program asked for is kept whatever its size.
    """

    def __init__(self, max_programs: int = 4, max_bytes: int = 512 * 1024**2) -> None:
        if max_programs < 1:
            raise ValueError(f"max_programs {max_programs}: a pool holds at least one program")
        self.max_programs, self.max_bytes = max_programs, max_bytes
        self._warm: OrderedDict[Hashable, tuple[Program, int]] = OrderedDict()

    def get(self, key: Hashable, load: Callable[[], Program], size_bytes: int = 0) -> Program:
        """The program of that key: a warm one, or the one that ``load`` returns.

        The new one is loaded before an old one is closed, so an error in ``load`` leaves every program as it was;
        memory holds one more than the bound meanwhile.

        Args:
            key: everything that decides what ``load`` returns: SHA-256 of program and weights, runtime, threads.
            size_bytes: what it takes of ``max_bytes``.
        """
        if key in self._warm:
            self._warm.move_to_end(key)
        else:
            self._warm[key] = load(), size_bytes
            while self._too_many():
                _, (program, _) = self._warm.popitem(last=False)
                program.close()
        return self._warm[key][0]

    def _too_many(self) -> bool:
        over = sum(size for _, size in self._warm.values()) > self.max_bytes
        return len(self._warm) > 1 and (over or len(self._warm) > self.max_programs)

    def close(self) -> None:
        """Closes every program."""
        while self._warm:
            _, (program, _) = self._warm.popitem()
            program.close()

    def __len__(self) -> int:
        return len(self._warm)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._warm
