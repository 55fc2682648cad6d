"""One profile's file: opening, locking, transactions, and what is done when the file turns out to be damaged.

Every write and every checkpoint happens under an exclusive lock on a file of its own (``NAME.lock``): several
processes may share a profile, and SQLite before 3.51.3 can damage a write-ahead log that two connections write or
check-point at once. Reads take no lock and wait for nobody.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from refocus.edge.errors import HistoryError
from refocus.edge.history import damage, old_journal, schema, witness
from refocus.edge.history.damage import GARBAGE
from refocus.edge.history.opening import POWER_CUT_LOSS, connect
from refocus.edge.history.recovery import Recovery, beside, finish, make, overwrite, recover, set_aside_files
from refocus.edge.history.rows import Row
from refocus.edge.history.schema import Result, Tally
from refocus.edge.history.sqlite_pages import read_log
from refocus.edge.history.witness import Counts, Held

_DURABILITY = {"process": "normal", "power": "full"}

# Connections of this process by file (device, inode). Closing any descriptor of a file drops a process's POSIX locks.
_CONNECTED: Counter[tuple[int, int]] = Counter()
_CONNECTING = threading.Lock()
_INHERITED: list[sqlite3.Connection] = []  # made before a fork; never closed here


class _Left:
    """Descriptors and the connection count of an open profile, which outlive it where nobody closes it.

    Attributes:
        lock: descriptor.
        connected: file (device, inode) of the connection; None: there is none.
    """

    def __init__(self, lock: int) -> None:
        self.lock = lock
        self.connected: tuple[int, int] | None = None

    def connect(self, identity: tuple[int, int]) -> None:
        """Notes a connection."""
        with _CONNECTING:
            _CONNECTED[identity] += 1
        self.connected = identity

    def disconnect(self) -> None:
        """Notes that it is no more."""
        if self.connected is not None:
            with _CONNECTING:
                _CONNECTED[self.connected] -= 1
                if not _CONNECTED[self.connected]:
                    del _CONNECTED[self.connected]
            self.connected = None

    def close(self) -> None:
        """Gives everything back."""
        self.disconnect()
        os.close(self.lock)


class ProfileFile:
    """An open profile, for the thread and the process that opened it.

    Args:
        path: the file; made, with its folder, if it is missing.
        durability: "process" or "power", as in :class:`refocus.edge.history.feature_history.FeatureHistory`.

    Attributes:
        path: the file, links resolved: the lock must be the same for all who share it.
        recovered: what was done if this connection found the file damaged, and what was lost since it was opened.
        damaged: features that this connection found lost or unusable.
        version: a number that grows with every write that this connection knows of, by whomever.

    Raises:
        Unwritable: nothing can be written there.
        HistoryError: the file cannot be opened, is another program's or of a newer schema.
    """

    def __init__(self, path: Path, durability: str = "process") -> None:
        if durability not in _DURABILITY:
            raise HistoryError(f"durability '{durability}': expected one of {', '.join(_DURABILITY)}")
        try:
            self.path, self.damaged = path.resolve(), 0
        except (OSError, RuntimeError) as error:  # links in a circle, until Python 3.13
            raise HistoryError(f"{path} cannot be opened ({error}); check what it links to") from None
        self.recovered: Recovery | None = None
        self._name = str(self.path)
        self._synchronous = _DURABILITY[durability]
        self._database: sqlite3.Connection | None = None
        self._locked = False
        self._unfolded = False  # whether an old journal waits for room in the database
        self._identity = (0, 0)
        self.version = 0
        self._changed_by_others = -1  # SQLite's count
        self._owner = os.getpid(), threading.get_ident()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(beside(self.path, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            kind = damage.refused(error)
            raise kind(f"{path.parent} cannot hold a history ({error.strerror}); check its rights") from None
        self._left = _Left(self._lock)
        self._finalizer = weakref.finalize(self, self._left.close)  # of a profile that nobody closes
        self._finalizer.atexit = False
        try:
            self._under_lock(self._open)
        except BaseException:
            self._let_go()
            raise

    # ---- opening

    def _open(self) -> None:
        """Opens the file, and makes or recovers it first where that is needed. The caller holds the lock."""
        if beside(self.path, ".salvaged").exists():  # a recovery was killed between its steps
            finish(self.path)
        held, log = witness.read(self._lock), read_log(self.path)
        reason = seen_from_outside(self.path, log) or self._make_first(held) or self._try_to_connect(held, log)
        if reason:
            self._recover(reason, held)
        try:
            self._fold()
        except sqlite3.Error as error:
            if not damage.is_full(error):
                raise

    def _make_first(self, held: Held | None) -> str:
        """Makes the file if it is missing; what is wrong if it should not be."""
        if self.path.exists():
            return ""
        if held is not None and held.sure and any(held.counts):
            return "the file is missing"
        make(self.path)
        return ""

    def _try_to_connect(self, held: Held | None, log: bytes) -> str:
        """What is wrong if the file is damaged; then its log is again what it was before SQLite saw it."""
        try:
            now = self._connect()
            lost = witness.missing(held, now)
            reason = "its newest writes are missing" if any(lost) else ""
            if reason and not log:  # nothing to salvage them from
                self._note(Recovery(*now.counts, None, reason, lost))
            if not log or not reason:
                self._count(held, now)
                return ""
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.Error as error:
            if damage.is_environment(error):
                raise
            reason = str(error)
        self._disconnect()
        if log and not beside(self.path, "-wal").exists():
            beside(self.path, "-wal").write_bytes(log)
        return reason

    def _recover(self, reason: str, held: Held | None) -> None:
        """Puts what is readable into a fresh file and opens that. The caller holds the lock."""
        self._note(recover(self.path, reason, held))
        witness.write(self._lock, self._connect())

    def _note(self, found: Recovery) -> None:
        self.recovered = found.after(self.recovered)
        self.damaged += found.lost.features

    def _connect(self) -> Held:
        """Opens the file as it is; what it holds."""
        database, now = connect(self.path, self._synchronous)
        found = self.path.stat()
        self._database, self._identity = database, (found.st_dev, found.st_ino)
        self._changed_by_others = database.execute("pragma data_version").fetchone()[0]
        self._left.connect(self._identity)
        return now

    # ---- reading and writing

    def read(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of one query, which sees the profile as it was at one moment.

        Raises:
            HistoryError: the file cannot be read.
        """
        self._check_usable()
        return self.guarded(lambda: self._current().execute(query, parameters).fetchall())

    def write(self, work: Callable[[sqlite3.Connection], Result], durably: bool = False) -> Result:
        """Runs one transaction under the lock. If the file is damaged, it is repaired and ``work`` runs again.

        Args:
            work: what to do with the connection; it may run twice, the first time without effect.
            durably: survive a power cut whatever the profile's durability. A write of labels or settings does.

        Raises:
            HistoryError: the disk is full, the file may not be written or cannot be repaired. Nothing was changed.
        """
        return self._write(lambda database, _: work(database), durably, adds=False)

    def add(self, work: Callable[[sqlite3.Connection, Tally], Result]) -> Result:
        """Run work that only adds photos, in a transaction like :meth:`write`.

        The bounds may evict photos for a new one; nothing else is removed.

        Args:
            work: gets the tally as it is in the database, and brings it up to date.
        """
        return self._write(work, durably=False, adds=True)

    def _write(self, work: Callable[[sqlite3.Connection, Tally], Result], durably: bool, adds: bool) -> Result:
        def once() -> Result:
            return self._transaction(self._current(), work, durably, adds)

        def folded() -> Result:
            if self._unfolded:
                self._fold()
            result = self.guarded(once)
            self.version += 1
            return result

        return self._under_lock(folded)

    def guarded(self, work: Callable[[], Result]) -> Result:
        """Runs ``work``, which reads or writes rows; if the file turns out to be damaged, repairs it and runs it again.

        Raises:
            HistoryError: the file cannot be read or repaired.
        """
        try:
            return work()
        except sqlite3.ProgrammingError:  # a bug of the caller, such as use from another thread
            raise
        except (sqlite3.Error, *GARBAGE) as error:
            found = error

        def again() -> Result:
            self._repair(found)
            return work()

        return self._under_lock(again)

    def repair(self, reason: str) -> None:
        """Recovers a file that SQLite has no complaint about, but whose rows contradict each other."""
        self._under_lock(lambda: self._repair(schema.Damage(reason)))

    def verify(self) -> None:
        """Reads every row, and recovers the file if anything in it is damaged.

        Raises:
            HistoryError: the file cannot be read or repaired.
        """

        def work() -> None:
            try:
                damage.inspect(self._current(), whole=True)
            except sqlite3.Error as error:
                self._repair(error)

        self._under_lock(work)

    def _transaction(
        self,
        database: sqlite3.Connection,
        work: Callable[[sqlite3.Connection, Tally], Result],
        durably: bool,
        adds: bool,
    ) -> Result:
        """One transaction, after which the record beside the file counts what it left."""
        before, held = witness.read(self._lock), Held()

        def counted(database: sqlite3.Connection) -> Result:
            nonlocal held
            tally = schema.tally(database)
            result = work(database, tally)
            if before is None or not before.sure or durably:
                held = witness.count(database)
            else:
                held = witness.with_features(before, tally if adds else schema.tally(database))
            if not adds:
                witness.mark_unsure(self._lock, durably)
            return result

        if durably:
            database.execute("pragma synchronous=full")
        try:
            result = schema.commit(database, counted)
        except BaseException:
            if before is not None and not adds:
                witness.write(self._lock, before)
            raise
        finally:
            if durably:
                database.execute(f"pragma synchronous={self._synchronous}")
        self._count(before, held)
        return result

    def _count(self, before: Held | None, now: Held) -> None:
        """Renews the record beside the file, and first syncs the log where a power cut could take more photos than is
        promised: the record stays behind until that is done, whoever is killed."""
        if before is None or before.newest // POWER_CUT_LOSS != now.newest // POWER_CUT_LOSS:
            with contextlib.suppress(sqlite3.Error):  # a full disk: the log goes on
                self._current().execute("pragma wal_checkpoint(passive)").fetchone()
        witness.write(self._lock, now)

    def _fold(self) -> None:
        """Moves photos to the database that a development version of 0.2 left in a journal. The caller holds the lock.

        On a full disk they stay there; whoever writes next tries again.
        """
        self._unfolded = True
        if (left := old_journal.look(self.path, self._lock)) is not None:
            lost = self.guarded(
                lambda: self._transaction(
                    self._current(), lambda database, _: old_journal.fold(database, left), durably=True, adds=False
                )
            )
            if lost:
                held = witness.count(self._current())
                self._note(Recovery(*held.counts, None, "its journal is damaged", Counts(lost), left.state is not None))
        old_journal.forget(self.path, self._lock)
        self._unfolded = False

    def _repair(self, error: BaseException) -> None:
        """Recovers the file if it is damaged, else raises the error. The caller holds the lock."""
        if self._replaced():  # another process has just recovered it
            self._reopen()
            return
        if not self._is_damaged(error):
            raise error
        held = witness.read(self._lock)
        self._disconnect()
        self._recover(str(error), held)
        self.version += 1

    def _is_damaged(self, error: BaseException) -> bool:
        if isinstance(error, sqlite3.Error) and damage.is_environment(error):
            return self.path.exists() and not self.path.stat().st_size
        if damage.is_certain(error) or self._database is None:
            return damage.is_certain(error)
        try:
            damage.inspect(self._database, whole=True)
        except sqlite3.Error as found:
            return not damage.is_environment(found)
        return False

    def _under_lock(self, work: Callable[[], Result]) -> Result:
        """Runs ``work`` while no other connection writes; the kernel lets go of the lock when a process dies."""
        import fcntl  # POSIX only, as are the devices we serve; imported here so that the module can be read elsewhere

        if self._locked:
            return work()
        self._check_usable()
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._locked = True
        try:
            return work()
        except sqlite3.ProgrammingError:
            raise
        except (sqlite3.Error, OSError) as error:
            what = error.strerror if isinstance(error, OSError) else error
            raise damage.refused(error)(
                f"{self.path}: {what}; what was stored before is intact, free some space or check the file's rights"
            ) from None
        finally:
            self._locked = False
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _check_usable(self) -> None:
        """Raises HistoryError where the profile is closed, or was inherited from another process.

        After a fork both processes have the one lock, and SQLite allows no connection of the other's.
        """
        if self._lock < 0:
            raise HistoryError(f"{self.path}: this history is closed; open it again")
        if self._owner[0] != os.getpid():
            raise HistoryError(f"{self.path} was opened before this process was forked; open it again here")

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
        self.version += 1

    def _disconnect(self) -> None:
        if self._database is not None:
            self._left.disconnect()
            self._database.close()
            self._database = None

    def look(self, question: str, parameters: Sequence[Any]) -> tuple[int, bool]:
        """:attr:`version`, and the answer to a question, an SQL expression, as of that version or just before it."""
        answer = self.read(f"select {question}", parameters)[0][0]
        # Asked second: a write in between makes the version newer than the answer, and a reader looks once more.
        self._note_others(self._current().execute("pragma data_version").fetchone()[0])
        return self.version, bool(answer)

    def _note_others(self, others: int) -> None:
        """Takes note of SQLite's count of changes by other connections."""
        self.version += others != self._changed_by_others
        self._changed_by_others = others

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
                try:
                    database.execute("vacuum")
                except sqlite3.OperationalError as error:
                    if not damage.is_full(error):  # what was deleted is overwritten already
                        raise
            if database.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
                raise HistoryError(
                    f"{self.path}: erased, but another process still reads it, so old bytes remain in its log; close it"
                    " and erase again"
                )

        self._under_lock(work)

    def make_room(self) -> None:
        """Writes the log back and cuts it to nothing, for a write that found the disk full."""
        self._under_lock(lambda: self._current().execute("pragma wal_checkpoint(truncate)").fetchone())

    def start_over(self) -> None:
        """Overwrites all that is stored, deletes it, and begins a new file: erasing everything on a full disk.

        A kill on the way leaves a damaged file of which nothing can be recovered.

        Raises:
            HistoryError: a file cannot be written.
        """

        def work() -> None:
            self._disconnect()
            witness.mark_unsure(self._lock, durably=True)
            old_journal.forget(self.path, self._lock)
            for ending in ("-wal", "", "-shm"):
                overwrite(beside(self.path, ending))
            make(self.path)
            witness.write(self._lock, self._connect())
            self._unfolded = False
            self.version += 1

        self._under_lock(work)

    def discard_set_aside(self) -> None:
        """Deletes the damaged files that recoveries set aside."""

        def work() -> None:
            for file in set_aside_files(self.path):
                file.unlink()

        self._under_lock(work)

    def close(self) -> None:
        """Closes the profile; the last connection to it writes the log back."""
        if self._lock >= 0:
            try:
                if self._owner[0] == os.getpid():
                    self._under_lock(self._disconnect)
            finally:
                self._let_go()

    def _let_go(self) -> None:
        """Gives back the descriptors, without a word to the files. A connection that was made before a fork stays as it
        is: closing it would write.
        """
        if self._owner[0] != os.getpid() and self._database is not None:
            _INHERITED.append(self._database)
        self._database = None
        self._finalizer()
        self._lock = -1


def seen_from_outside(path: Path, log: bytes) -> str:
    """Damage of a file or its log ``log`` that SQLite would take for something else; "": none.

    Raises:
        HistoryError: it is not a regular file.
    """
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        return damage.seen_from_outside(path, log, may_read=not _CONNECTED[found.st_dev, found.st_ino])
    return damage.seen_from_outside(path, log, may_read=False)
