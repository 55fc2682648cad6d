"""One profile's file: opening, locking, transactions, and what is done when the file turns out to be damaged.

Every write and every checkpoint happens under an exclusive lock on a file of its own (``NAME.lock``): several
processes may share a profile, and SQLite before 3.51.3 can damage a write-ahead log that two connections write or
check-point at once. Reads take no lock and wait for nobody.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from edge.errors import HistoryError
from edge.store import schema
from edge.store.recovery import Recovery, beside, finish, is_damage, recover, set_aside_files

POWER_CUT_LOSS = 128  # photos that a power cut may take at most, with durability "process"
_PAGES_PER_APPEND = 3  # at least: an append writes its row, and an entry in each of two indexes
_BUSY_SECONDS = 5.0  # how long SQLite waits for a program that does not know our lock
_DURABILITY = {"process": "normal", "power": "full"}

Result = TypeVar("Result")
Row = tuple[Any, ...]


class ProfileFile:
    """An open profile.

    Args:
        path: the file; made, with its folder, if it is missing.
        durability: "process" or "power", as in :class:`edge.history.FeatureHistory`.

    Attributes:
        path: the file, links resolved: the lock must be the same for all who share it.
        recovered: what was done if this connection found the file damaged.
        damaged: rows of an older schema that were left out because their checksums did not hold.

    Raises:
        HistoryError: the file cannot be opened, is another program's or of a newer schema.
    """

    def __init__(self, path: Path, durability: str = "process") -> None:
        if durability not in _DURABILITY:
            raise HistoryError(f"durability '{durability}': expected one of {', '.join(_DURABILITY)}")
        self.path, self.damaged = path.resolve(), 0
        self.recovered: Recovery | None = None
        self._name = str(self.path)
        self._synchronous = _DURABILITY[durability]
        self._database: sqlite3.Connection | None = None
        self._locked = False
        self._identity = (0, 0)
        self._version, self._writes = 0, 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(beside(self.path, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise HistoryError(f"{path.parent} cannot hold a history ({error.strerror}); check its rights") from None
        try:
            self._under_lock(self._open)
        except BaseException:
            os.close(self._lock)
            raise

    # ---- opening

    def _open(self) -> sqlite3.Connection:
        """The caller holds the lock."""
        if beside(self.path, ".salvaged").exists():  # a recovery was killed between its steps
            finish(self.path)
        try:
            return self._connect()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            self.recovered = recover(self.path, str(error))
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        with contextlib.suppress(FileExistsError):  # SQLite would let others read it
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        if self.path.stat().st_mode & 0o077:
            self.path.chmod(0o600)
        database = sqlite3.connect(self.path, isolation_level=None, timeout=_BUSY_SECONDS)
        try:
            self._prepare(database)
        except BaseException:
            database.close()
            raise
        found = self.path.stat()
        self._database, self._identity = database, (found.st_dev, found.st_ino)
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        version = schema.check_ours(database, self.path)
        for pragma in (
            f"page_size={schema.PAGE}",
            "journal_mode=wal",
            f"synchronous={self._synchronous}",
            "secure_delete=on",
            "temp_store=memory",  # features go to no temporary file elsewhere
            f"wal_autocheckpoint={POWER_CUT_LOSS * _PAGES_PER_APPEND}",
        ):
            database.execute(f"pragma {pragma}")
        if version == 0:
            self._transaction(database, schema.create)
        elif version < schema.SAME_TABLES:
            self.damaged += schema.upgrade(database)

    # ---- reading and writing

    def read(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of one query, which sees the profile as it was at one moment.

        Raises:
            HistoryError: the file cannot be read.
        """

        def rows() -> list[Row]:
            return self._current().execute(query, parameters).fetchall()

        try:
            return rows()
        except sqlite3.ProgrammingError:  # a bug of the caller, such as use from another thread
            raise
        except sqlite3.Error as error:
            found = error

        def again() -> list[Row]:
            self._repair(found)
            return rows()

        return self._under_lock(again)

    def write(self, work: Callable[[sqlite3.Connection], Result], durably: bool = False) -> Result:
        """Runs one transaction under the lock. If the file is damaged, it is repaired and ``work`` runs again.

        Args:
            work: what to do with the connection; it may run twice, the first time without effect.
            durably: survive a power cut whatever the profile's durability.

        Raises:
            HistoryError: the disk is full, the file may not be written or cannot be repaired. Nothing was changed.
        """

        def run() -> Result:
            try:
                return self._transaction(self._current(), work, durably)
            except sqlite3.ProgrammingError:
                raise
            except sqlite3.Error as error:
                self._repair(error)
            return self._transaction(self._current(), work, durably)

        return self._under_lock(run)

    def repair(self, reason: str) -> None:
        """Recovers a file that SQLite has no complaint about, but whose rows contradict each other."""
        self._under_lock(lambda: self._repair(sqlite3.DatabaseError(f"malformed: {reason}")))

    def _transaction(
        self, database: sqlite3.Connection, work: Callable[[sqlite3.Connection], Result], durably: bool = False
    ) -> Result:
        if durably:
            database.execute("pragma synchronous=full")
        try:
            database.execute("begin immediate")
            result = work(database)
            database.execute("commit")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                database.execute("rollback")
            raise
        finally:
            if durably:
                database.execute(f"pragma synchronous={self._synchronous}")
        self._writes += 1
        return result

    def _repair(self, error: sqlite3.Error) -> None:
        """Recovers the file if the error says that it is damaged, else raises the error. The caller holds the lock."""
        if not is_damage(error):
            raise error
        if not self._replaced():  # otherwise another process has just done it
            self._disconnect()
            self.recovered = recover(self.path, str(error))
        self._reopen()

    def _under_lock(self, work: Callable[[], Result]) -> Result:
        """Runs ``work`` while no other connection writes; the kernel lets go of the lock when a process dies."""
        import fcntl  # POSIX only, as are the devices we serve; imported here so that the module can be read elsewhere

        if self._locked:
            return work()
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._locked = True
        try:
            return work()
        except sqlite3.ProgrammingError:
            raise
        except (sqlite3.Error, OSError) as error:
            what = error.strerror if isinstance(error, OSError) else error
            raise HistoryError(
                f"{self.path}: {what}; what was stored before is intact, free some space or check the file's rights"
            ) from None
        finally:
            self._locked = False
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    # ---- which file, which version

    def _current(self) -> sqlite3.Connection:
        """The connection, opened again if another process has put a recovered file in place of ours."""
        if self._database is None or self._replaced():
            self._under_lock(self._reopen)
        assert self._database is not None  # noqa: S101
        return self._database

    def _replaced(self) -> bool:
        try:
            found = os.stat(self._name)  # noqa: PTH116 - Path.stat takes twice as long, and this is asked per photo
        except FileNotFoundError:
            return True
        return (found.st_dev, found.st_ino) != self._identity

    def _reopen(self) -> None:
        self._disconnect()
        self._open()
        self._writes += self._version + 1  # versions never go back

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def version(self) -> int:
        """A number that grows with every write, whoever wrote."""
        return self.look("0", ())[0]

    def look(self, question: str, parameters: Sequence[Any]) -> tuple[int, bool]:
        """:meth:`version`, and the answer to a question, an SQL expression, as of that version."""
        # The count of changes by others is read within the transaction that answers the question.
        answer, self._version = self.read(f"select {question}, data_version from pragma_data_version", parameters)[0]  # noqa: S608
        return self._version + self._writes, bool(answer)

    # ---- the end

    def scrub(self, shrink: bool) -> None:
        """Makes sure that what was deleted is in no file any more.

        Args:
            shrink: give the space back too; takes a time that grows with what is left.

        Raises:
            HistoryError: another process reads an older state, which therefore stays in the log.
        """

        def work() -> None:
            database = self._current()
            if shrink:
                database.execute("vacuum")
            if database.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
                raise HistoryError(
                    f"{self.path}: erased, but another process still reads it, so old bytes remain in its log; close it"
                    " and erase again"
                )

        self._under_lock(work)

    def discard_set_aside(self) -> None:
        """Deletes the damaged files that recoveries set aside."""

        def work() -> None:
            for file in set_aside_files(self.path):
                file.unlink()

        self._under_lock(work)

    def close(self) -> None:
        if self._lock >= 0:
            self._under_lock(self._disconnect)  # the last to close makes a checkpoint
            os.close(self._lock)
            self._lock = -1
