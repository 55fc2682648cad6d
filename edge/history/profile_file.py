"""One profile's file: opening, locking, transactions, and what is done when the file turns out to be damaged.

Every write and every checkpoint happens under an exclusive lock on a file of its own (``NAME.lock``): several
processes may share a profile, and SQLite before 3.51.3 can damage a write-ahead log that two connections write or
check-point at once. Reads take no lock and wait for nobody, but for photos in the append journal (``journal.py``),
which they move to the database first.
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
from refocus.edge.history import damage, journal, schema, witness
from refocus.edge.history.damage import GARBAGE
from refocus.edge.history.journal import JournalFile, Record, State
from refocus.edge.history.opening import POWER_CUT_LOSS, connect
from refocus.edge.history.recovery import Recovery, beside, finish, make, overwrite, recover, set_aside_files
from refocus.edge.history.rows import Row
from refocus.edge.history.schema import Result
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

    def __init__(self, lock: int, journal: JournalFile) -> None:
        self.lock, self.journal = lock, journal
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
        self.journal.close()
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
        reads: queries so far.

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
        self._state: State | None
        self._locked = False
        self._identity = (0, 0)
        self.version, self.reads = 0, 0
        self._journal = JournalFile(beside(self.path, ".journal"))
        self._raw, self._state = b"", None  # of the journal, when this connection last looked
        self._changed_by_others = -1  # SQLite's count
        self._owner = os.getpid(), threading.get_ident()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(beside(self.path, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            kind = damage.refused(error)
            raise kind(f"{path.parent} cannot hold a history ({error.strerror}); check its rights") from None
        self._left = _Left(self._lock, self._journal)
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
        self._fold_if_room()

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
                witness.write(self._lock, now)
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
        self._publish_write()

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
        self.reads += 1
        return self.peek(query, parameters)

    def peek(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """As :meth:`read`, and not counted among the queries."""
        self._check_usable()
        self._settle()
        return self.guarded(lambda: self._current().execute(query, parameters).fetchall())

    def write(self, work: Callable[[sqlite3.Connection], Result], durably: bool = False, adds: bool = False) -> Result:
        """Runs one transaction under the lock. If the file is damaged, it is repaired and ``work`` runs again.

        Args:
            work: what to do with the connection; it may run twice, the first time without effect.
            durably: survive a power cut whatever the profile's durability. A write of labels or settings does.
            adds: it stores a new photo, and removes none but those that the bounds evict for it.

        Raises:
            HistoryError: the disk is full, the file may not be written or cannot be repaired. Nothing was changed.
        """

        def once() -> Result:
            return self._transaction(self._current(), work, durably, adds)

        def settled() -> Result:
            self._fold()
            result = self.guarded(once)
            self.version += 1
            return result

        return self._under_lock(settled)

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
            self._fold_if_room()
            try:
                damage.inspect(self._current(), whole=True)
            except sqlite3.Error as error:
                self._repair(error)

        self._under_lock(work)

    def _transaction(
        self, database: sqlite3.Connection, work: Callable[[sqlite3.Connection], Result], durably: bool, adds: bool
    ) -> Result:
        """One transaction, after which the record beside the file counts what it left."""
        before, held = witness.read(self._lock), Held()
        if (state := self._look_at_state()) is not None:
            self._publish(state.during_a_write())

        def counted(database: sqlite3.Connection) -> Result:
            nonlocal held
            result = work(database)
            known = before if before is not None and before.sure and not durably else None
            held = witness.count(database) if known is None else witness.with_features(known, database)
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
            self._publish_write()
        witness.write(self._lock, held)
        self._write_log_back()
        return result

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
        """:attr:`version`, and the answer to a question, an SQL expression, as of that version."""
        # The count of changes by others is read within the transaction that answers the question.
        query = f"select {question}, data_version from pragma_data_version"  # noqa: S608
        answer, others = self.peek(query, parameters)[0]
        self._note_others(others)
        return self.version, bool(answer)

    def _note_others(self, others: int) -> None:
        """Takes note of SQLite's count of changes by other connections, Refocus 0.1 among them."""
        self.version += others != self._changed_by_others
        self._changed_by_others = others

    # ---- the journal

    @property
    def is_unchanged(self) -> bool:
        """Whether nobody wrote since this connection last looked, and the file is in its place: no query is made."""
        if self._lock < 0 or self._database is None or self._state is None or not self._state.is_settled:
            return False
        return journal.read_raw(self._lock) == self._raw and not self._replaced()

    def append_to_journal(self, record: Record) -> bool:
        """Stores a photo in the journal; it survives a kill once this returns.

        Args:
            record: its serial is given here.

        Returns:
            False if it was not stored: somebody else wrote since this connection last looked, or the journal is full.

        Raises:
            HistoryError: the disk is full, or the file may not be written. Nothing was stored.
        """
        if self._owner[1] != threading.get_ident():
            raise sqlite3.ProgrammingError("a profile that was opened in one thread is used in another")
        return self._under_lock(lambda: self._append_to_journal(record))

    def _append_to_journal(self, record: Record) -> bool:
        state = self._state
        if not self.is_unchanged or state is None or state.pending >= journal.MOST_RECORDS:
            return False
        if state.used >= journal.MOST_BYTES or not self._journal.is_writable:
            return False
        content = record._replace(serial=state.last + 1).encode()
        self._journal.write(content, state.used)
        now = state._replace(changes=state.changes + 2, last=state.last + 1, used=state.used + len(content))
        raw = now.encode()
        journal.write_raw(self._lock, raw)
        self._raw, self._state = raw, now
        self.version += 1
        return True

    def _look_at_state(self) -> State | None:
        """The state that all processes share; a change by others counts as a new version."""
        raw = journal.read_raw(self._lock)
        if raw != self._raw or not raw:
            before, self._raw, self._state = self._state, raw, journal.decode_state(raw)
            self.version += before is None or self._state is None or self._state.changes != before.changes
        return self._state

    def _publish(self, state: State) -> None:
        """Changes the state. Where the disk takes no byte there is none, and everybody asks SQLite."""
        self._state, self._raw = state, state.encode()
        try:
            journal.write_raw(self._lock, self._raw)
        except OSError:
            self._raw = b""

    def _publish_write(self) -> None:
        """Counts a write. Where there is no state none is made: a new one says that the journal holds nothing, which
        :meth:`_fold` alone can say."""
        if (state := self._look_at_state()) is not None:
            self._publish(state.after_a_write())

    def _settle(self) -> None:
        """Moves photos in the journal to the database, so that a query finds them."""
        state = self._look_at_state()
        if state is None or state.pending:
            self._under_lock(self._fold_if_room)

    def _fold_if_room(self) -> None:
        """As :meth:`_fold`; on a full disk the photos stay in the journal, and queries find those in the database."""
        try:
            self._fold()
        except sqlite3.Error as error:
            if not damage.is_full(error):
                raise

    def _fold(self) -> None:
        """Moves photos in the journal to the database. The caller holds the lock."""
        self._current()  # which may open another file, and do all of this
        state = self._look_at_state()
        if state is not None and not state.pending:
            if self._journal.open() and self._journal.size:  # of records that are in the database
                self._journal.empty()
            return
        found = self._journal.read(state.used if state is not None else journal.MOST_READ)
        records, whole, gone, folded = journal.unfolded(
            found, state, self.guarded(lambda: journal.folded(self._current()))
        )
        if whole:
            self.guarded(lambda: self._transaction(self._current(), lambda d: journal.fold(d, whole), False, True))
        self._journal.empty()
        now = self._state or State.new()
        last = max(now.last, folded, *(record.serial for record in records))
        self._publish(now._replace(folded=last, last=last, used=0, unsynced=now.unsynced + len(records)))
        self._write_log_back()
        self._note_others(self._current().execute("pragma data_version").fetchone()[0])
        if gone:
            held = witness.read(self._lock) or Held()
            self._note(Recovery(*held.counts, None, "its journal is damaged", Counts(gone), state is not None))

    def _write_log_back(self) -> None:
        """Syncs the log before a power cut could take more photos than is promised."""
        state = self._state
        if state is not None and state.unsynced >= POWER_CUT_LOSS - journal.MOST_RECORDS:
            with contextlib.suppress(sqlite3.Error):  # a full disk: the log goes on
                self._current().execute("pragma wal_checkpoint(passive)").fetchone()
            self._publish(state._replace(unsynced=0))

    # ---- the end

    def scrub(self, shrink: bool) -> None:
        """Makes sure that what was deleted is in no file any more.

        Args:
            shrink: give the space back too; takes a time that grows with what is left.

        Raises:
            HistoryError: another process reads an older state, which therefore stays in the log.
        """

        def work() -> None:
            self._fold()
            self._journal.empty(durably=True)
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
            state = self._look_at_state() or State.new()
            self._journal.close()
            for ending in ("-wal", "", "-shm", ".journal"):
                overwrite(beside(self.path, ending))
            make(self.path)
            witness.write(self._lock, self._connect())
            self._publish(state._replace(folded=state.last, used=0, unsynced=0).after_a_write())
            self.version += 1

        self._under_lock(work)

    def discard_set_aside(self) -> None:
        """Deletes the damaged files that recoveries set aside."""

        def work() -> None:
            for file in set_aside_files(self.path):
                file.unlink()

        self._under_lock(work)

    def close(self) -> None:
        """Moves photos in the journal to the database. Where that fails, they wait in it for the next opening."""
        if self._lock >= 0:
            try:
                if self._owner[0] == os.getpid():
                    self._under_lock(self._leave)
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

    def _leave(self) -> None:
        try:
            with contextlib.suppress(sqlite3.Error, HistoryError, OSError):
                if self._database is not None:
                    self._fold()
            state = self._look_at_state()
            self._journal.close(delete=state is not None and not state.pending)
        finally:
            self._disconnect()  # the last to close makes a checkpoint


def seen_from_outside(path: Path, log: bytes) -> str:
    """Damage of a file or its log ``log`` that SQLite would take for something else; "": none.

    Raises:
        HistoryError: it is not a regular file.
    """
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        return damage.seen_from_outside(path, log, may_read=not _CONNECTED[found.st_dev, found.st_ino])
    return damage.seen_from_outside(path, log, may_read=False)
