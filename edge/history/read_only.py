"""A profile in a place that takes no writes: a copy in memory, to be read.

SQLite writes beside a file that it reads. Here the database, its log and the journal that a development version may
have left are put together in memory, and nothing is written to any disk. The copy is made again once a file of the
profile has changed: somebody else may be able to write there.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from refocus.edge.errors import HistoryError
from refocus.edge.history import damage, old_journal, schema, witness
from refocus.edge.history.damage import GARBAGE, Unwritable
from refocus.edge.history.old_journal import Left
from refocus.edge.history.opening import BUSY_SECONDS, READ_AT_OPENING
from refocus.edge.history.profile_file import ProfileFile, seen_from_outside
from refocus.edge.history.recovery import Recovery, beside
from refocus.edge.history.rows import Row
from refocus.edge.history.schema import Result
from refocus.edge.history.sqlite_pages import read_log
from refocus.edge.history.witness import Counts, Held

_ATTEMPTS = 3  # to copy files that others write meanwhile


class ReadOnlyFile(ProfileFile):
    """A profile that can be read; everything that would write it is refused.

    Args:
        path: the file.
        refusal: why it cannot be written.

    Attributes:
        recovered: what is missing from the files, if anything is.

    Raises:
        Unwritable: there is no such file, or it cannot be read either.
        HistoryError: it is another program's or of a newer schema.
    """

    def __init__(self, path: Path, refusal: Unwritable) -> None:
        self.path, self._refusal = path.resolve(), refusal
        self.recovered: Recovery | None = None
        self.damaged, self.version = 0, 0
        self._database: sqlite3.Connection | None = None
        self._copied: tuple[object, ...] = ()  # what the files were then
        self._closed = False
        self._current()

    # ---- reading

    def read(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """As of :class:`ProfileFile`."""
        return self.guarded(lambda: self._current().execute(query, parameters).fetchall())

    def guarded(self, work: Callable[[], Result]) -> Result:
        """Runs ``work``, which reads rows.

        Raises:
            HistoryError: the file is damaged, or cannot be read any more.
        """
        try:
            return work()
        except sqlite3.ProgrammingError:  # a bug of the caller, such as use from another thread
            raise
        except (sqlite3.Error, *GARBAGE) as error:
            raise self._unreadable(error) from None

    def look(self, question: str, parameters: Sequence[Any]) -> tuple[int, bool]:
        """As of :class:`ProfileFile`."""
        answer = self.read(f"select {question}", parameters)[0][0]
        return self.version, bool(answer)

    def verify(self) -> None:
        """Reads every row.

        Raises:
            HistoryError: something is damaged.
        """
        self.guarded(lambda: damage.inspect(self._current(), whole=True))

    # ---- what is refused

    def repair(self, reason: str) -> None:
        raise self._unreadable(reason)

    def _under_lock(self, work: Callable[[], Result]) -> Result:
        raise HistoryError(str(self._refusal))

    def _unreadable(self, reason: object) -> Unwritable:
        return Unwritable(f"{self._refusal}; and {self.path.name} cannot be read there ({reason})")

    # ---- the copy

    def _current(self) -> sqlite3.Connection:
        if self._closed:
            raise HistoryError(f"{self.path}: this history is closed; open it again")
        for _ in range(_ATTEMPTS):
            now = tuple(map(self._seen, ("", "-wal", ".journal", ".lock")))
            if self._database is not None and now == self._copied:
                break
            self._drop()
            try:
                self._database = self._copy()
            except (sqlite3.Error, OSError, *GARBAGE) as error:
                raise self._unreadable(error) from None
            self._copied = now
            self.version += 1
        assert self._database is not None  # noqa: S101
        return self._database

    def _seen(self, ending: str) -> object:
        try:
            found = beside(self.path, ending).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _copy(self) -> sqlite3.Connection:
        """The profile in memory.

        The journal is read first: photos that somebody moves to the database meanwhile are in both, and count once.
        """
        held, left = self._beside()
        log = read_log(self.path)
        if not self.path.exists():
            raise self._refusal
        if reason := seen_from_outside(self.path, log):
            raise schema.Damage(reason)
        memory = sqlite3.connect(":memory:", isolation_level=None)
        try:
            memory.execute("pragma temp_store=memory")
            with contextlib.closing(self._source()) as source:
                version = schema.check_ours(source, self.path)
                source.backup(memory)
            if version < schema.SAME_TABLES:
                schema.upgrade(memory)
            damage.inspect(memory, whole=self.path.stat().st_size <= READ_AT_OPENING)
            self._add_journal(memory, held, left)
        except BaseException:
            memory.close()
            raise
        return memory

    def _source(self) -> sqlite3.Connection:
        """The database. Where there is no log nobody has it open, and SQLite needs no file beside it."""
        log = beside(self.path, "-wal")
        how = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
        return sqlite3.connect(f"{self.path.as_uri()}?{how}", uri=True, isolation_level=None, timeout=BUSY_SECONDS)

    def _beside(self) -> tuple[Held | None, Left | None]:
        """The record in the lock file, and the journal."""
        try:
            lock = os.open(beside(self.path, ".lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None, old_journal.look(self.path, None)
        try:
            return witness.read(lock), old_journal.look(self.path, lock)
        finally:
            os.close(lock)

    def _add_journal(self, memory: sqlite3.Connection, held: Held | None, left: Left | None) -> None:
        """Moves the journal's photos to the copy, and notes what is missing."""
        self.recovered, now = None, witness.count(memory)
        if any(lost := witness.missing(held, now)):
            self.recovered = Recovery(*now.counts, None, "its newest writes are missing", lost)
        if left is not None and (missing := schema.commit(memory, lambda database: old_journal.fold(database, left))):
            counts = witness.count(memory).counts
            noted = Recovery(*counts, None, "its journal is damaged", Counts(missing), left.state is not None)
            self.recovered = noted.after(self.recovered)
        self.damaged = self.recovered.lost.features if self.recovered is not None else 0

    # ---- the end

    def close(self) -> None:
        """Frees the copy."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
