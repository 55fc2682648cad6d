"""The append journal of a profile: photos that are stored, and not yet in the database (docs/formats/profile.md).

``NAME.journal`` holds one record per photo, written by one call. What is in it, and whether anybody wrote anything
since one last looked, says a state of 44 bytes in the lock file. Both are changed under the profile's lock, and read
without it. A record survives a kill of the process as soon as it is written; it counts once the state counts it.

A record carries the bounds of the history that stored it: whoever moves it to the database evicts what its writer
would have evicted.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import struct
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from refocus.edge.history import likely_classes, rows, schema
from refocus.edge.history.eviction import Bounds, oldest, policy

MOST_RECORDS, MOST_BYTES = 32, 4 << 20  # in the journal at once; then they move to the database
MOST_READ = 256 << 20  # bytes of a journal whose state is lost
_MARK = b"RfJ1"
_FRAME = struct.Struct("<4sII")  # mark, bytes of the content, their CRC-32
_NUMBERS = struct.Struct("<Qqqqq")  # serial, stored, capacity, max_bytes, protect
_SIZES = struct.Struct("<8I")  # bytes of eviction, space, photo, name, classifier, path; likely classes, feature
_OFFSET = 64  # of the state in the lock file
_STATE = struct.Struct("<4sIQQQQ")  # mark, unsynced, changes, folded, last, used; then their CRC-32
_SIZE = _STATE.size + 4


class Record(NamedTuple):
    """One photo as its writer stored it.

    Attributes:
        serial: number of the record, from 1, larger by one than that of the record before.
        stored: milliseconds since 1970, UTC.
        capacity, max_bytes, protect, eviction: bounds of the history that stored it.
        space, photo, name: as in the table ``feature``.
        classifier: identity of what derived ``likely``; "" where nothing did.
        path: what computed the feature, as in the table ``computed``; "" if unknown.
        likely: value of the row of ``likely``.
        value: of the feature.
    """

    serial: int
    stored: int
    capacity: int
    max_bytes: int
    protect: int
    eviction: str
    space: str
    photo: str
    name: str
    classifier: str
    path: str
    likely: bytes
    value: bytes

    @property
    def is_text(self) -> bool:
        """Whether the database can hold its texts: releases before 0.2 took file names that are not UTF-8."""
        try:
            "".join(self[5:11]).encode()
        except UnicodeEncodeError:
            return False
        return True

    def encode(self) -> bytes:
        """The record as it is in the file."""
        texts = (text.encode("utf-8", "surrogatepass") for text in self[5:11])
        parts = (*texts, self.likely, self.value)
        content = b"".join((_NUMBERS.pack(*self[:5]), _SIZES.pack(*map(len, parts)), *parts))
        return _FRAME.pack(_MARK, len(content), zlib.crc32(content)) + content


def _decoded(content: bytes) -> Record:
    """Raises ValueError, struct.error: it is no record."""
    numbers = _NUMBERS.unpack_from(content)
    sizes = _SIZES.unpack_from(content, _NUMBERS.size)
    at = _NUMBERS.size + _SIZES.size
    if at + sum(sizes) != len(content):
        raise ValueError("the parts are not as long as the record")
    parts = []
    for size in sizes:
        parts.append(content[at : at + size])
        at += size
    return Record(*numbers, *(part.decode("utf-8", "surrogatepass") for part in parts[:6]), *parts[6:])


def scan(journal: bytes) -> tuple[list[Record], int]:
    """The whole records of a journal in order, and how many stretches between or before them are none."""
    records: list[Record] = []
    at, gaps, inside = 0, 0, False
    while (at := journal.find(_MARK, at)) >= 0:
        record = None
        with contextlib.suppress(ValueError, struct.error):
            _, size, seal = _FRAME.unpack_from(journal, at)
            content = journal[at + _FRAME.size : at + _FRAME.size + size]
            if len(content) == size and zlib.crc32(content) == seal:
                record = _decoded(content)
        if record is None:
            inside, at = True, at + 1
            continue
        gaps, inside = gaps + inside, False
        records.append(record)
        at += _FRAME.size + size
    return records, gaps


class State(NamedTuple):
    """State that all processes share which have a profile open.

    Attributes:
        changes: another number after every write, by whomever; odd while a transaction is on its way, or after it was
            killed.
        folded: serial of the last record that was moved to the database.
        last: serial of the last record in the journal, or of the last that was.
        used: bytes of the journal that count.
        unsynced: photos that moved to the database since its log was last written back.
    """

    changes: int = 0
    folded: int = 0
    last: int = 0
    used: int = 0
    unsynced: int = 0

    @property
    def pending(self) -> int:
        """Number of records not yet folded into the database."""
        return max(self.last - self.folded, 0)

    @property
    def is_settled(self) -> bool:
        """Whether no transaction is on its way."""
        return not self.changes & 1

    @classmethod
    def new(cls) -> State:
        """Where there was none: ``changes`` is like that of no other state."""
        return cls(changes=2 * int.from_bytes(os.urandom(6), "little"))

    def during_a_write(self) -> State:
        """While a transaction is on its way."""
        return self._replace(changes=self.changes | 1)

    def after_a_write(self) -> State:
        """Once it has ended."""
        return self._replace(changes=(self.changes | 1) + 1, unsynced=self.unsynced + 1)

    def encode(self) -> bytes:
        """The state as it is in the lock file."""
        content = _STATE.pack(_MARK, self.unsynced, self.changes, self.folded, self.last, self.used)
        return content + zlib.crc32(content).to_bytes(4, "little")


def read_raw(lock: int) -> bytes:
    """The bytes of the state; fewer where there is none."""
    return os.pread(lock, _SIZE, _OFFSET)


def write_raw(lock: int, raw: bytes) -> None:
    """Overwrites the journal state in the lock file.

    Raises:
        OSError: the write failed, for example on a full disk.
    """
    os.pwrite(lock, raw, _OFFSET)


def decode_state(raw: bytes) -> State | None:
    """A state; None if there is none or it is damaged."""
    if len(raw) < _SIZE or raw[-4:] != zlib.crc32(raw[:-4]).to_bytes(4, "little"):
        return None
    mark, unsynced, changes, folded, last, used = _STATE.unpack(raw[:-4])
    return State(changes, folded, last, used, unsynced) if mark == _MARK else None


class JournalFile:
    """The file ``NAME.journal``, opened when it is needed.

    Whoever has it open holds a shared lock on it, so that only the last to leave deletes it. All calls but :meth:`read`
    are made under the profile's lock.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._descriptor = path, -1
        self._name, self._identity = str(path), (0, 0)

    def open(self, make: bool = False) -> bool:
        """Opens the file, and makes it if it is missing and shall be; False: there is none that can be used.

        Raises:
            OSError: it cannot be made, or not be opened.
        """
        if self._descriptor >= 0:
            return True
        import fcntl  # POSIX only, as are the devices we serve; imported here so that the module can be read elsewhere

        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if make else 0)
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            if make and not isinstance(error, IsADirectoryError) and not self.path.is_symlink():
                raise
            return False
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        self._descriptor, self._identity = descriptor, (found.st_dev, found.st_ino)
        return True

    @property
    def is_writable(self) -> bool:
        """Whether a record that is written now can be found by others; the file is made if none is open.

        Raises:
            OSError: as :meth:`open`.
        """
        return self.is_there if self._descriptor >= 0 else self.open(make=True)

    @property
    def size(self) -> int:
        """Bytes in the open file."""
        return os.fstat(self._descriptor).st_size

    @property
    def is_there(self) -> bool:
        """Whether the open file still has its name."""
        try:
            found = os.stat(self._name)  # noqa: PTH116 - Path.stat takes twice as long, and this is asked per photo
        except OSError:
            return False
        return self._descriptor >= 0 and (found.st_dev, found.st_ino) == self._identity

    def write(self, record: bytes, at: int) -> None:
        """Writes a record at a place.

        Raises:
            OSError: the disk is full; the record does not count.
        """
        written = os.pwrite(self._descriptor, record, at)
        while written < len(record):
            written += os.pwrite(self._descriptor, record[written:], at + written)

    def read(self, size: int) -> bytes:
        """At most so many bytes from the beginning; empty if there is no file.

        Raises:
            OSError: it cannot be read.
        """
        if not self.open():
            return b""
        parts, at = [], 0
        size = min(size, MOST_READ)
        while at < size and (part := os.pread(self._descriptor, size - at, at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def empty(self, durably: bool = False) -> None:
        """Cuts the file to nothing; one that lost its name is let go."""
        if self._descriptor < 0:
            return
        os.ftruncate(self._descriptor, 0)
        if durably:
            os.fsync(self._descriptor)
        if not self.is_there:
            self.close()

    def close(self, delete: bool = False) -> None:
        """Closes the file, and deletes it if that is wanted and nobody else has it open."""
        import fcntl

        if self._descriptor < 0:
            return
        try:
            if delete and self.is_there:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self.path.unlink(missing_ok=True)
        finally:
            os.close(self._descriptor)
            self._descriptor = -1


def lost(found: Sequence[Record], gaps: int, state: State | None, folded: int) -> int:
    """Photos that were in the journal and cannot be read.

    Args:
        found: whole records that were not moved to the database before.
        gaps: stretches of the journal that are not records.
        state: None where it is lost too; then each stretch counts as one.
        folded: serial of the last record that was moved to the database.
    """
    if state is None:
        return gaps
    return max(state.last - folded - len(found), 0)


class Unfolded(NamedTuple):
    """Photos of a journal that are not in the database.

    Attributes:
        records: those that can be read.
        whole: those of them that the database can hold.
        lost: photos that were in the journal and cannot be stored.
        folded: serial of the last record that was moved to the database.
    """

    records: list[Record]
    whole: list[Record]
    lost: int
    folded: int


def unfolded(journal: bytes, state: State | None, known: int) -> Unfolded:
    """The records of a journal that were not moved to the database yet.

    Args:
        known: serial of the last one that the database knows of.
    """
    records, gaps = scan(journal)
    done = max(state.folded if state is not None else 0, known)
    records = [record for record in records if record.serial > done]
    whole = [record for record in records if record.is_text]
    return Unfolded(records, whole, lost(records, gaps, state, done) + len(records) - len(whole), done)


# ---- moving records to the database, in the caller's transaction

_FOLDED = "journal"  # name of the row of ``about`` that has the serial of the last record in the database


def folded(database: sqlite3.Connection) -> int:
    """Serial of the last record that is in the database; 0 where none is known."""
    if not schema.is_sealed(database):
        return 0
    row = database.execute("select name, value, seal from about where name = ?", (_FOLDED,)).fetchone()
    return int(row[1]) if row is not None and schema.is_whole_pair("about", *row) else 0


def fold(database: sqlite3.Connection, records: Sequence[Record]) -> None:
    """Stores what records hold, as their writers would have done; those that are in the database already are passed
    over, whatever became of them there."""
    known = folded(database)
    for record in records:
        if record.serial <= known or rows.has(database, record.space, record.photo):
            continue
        paths = {record.space: record.path} if record.path else {}
        bounds = Bounds(record.capacity, record.max_bytes, record.protect, policy(record.eviction), paths)
        values = {record.space: record.value}
        rows.append(database, bounds, record.photo, values, record.name, record.stored, any_width=True)
        if record.classifier:
            likely_classes.put_value(database, record.space, record.classifier, record.photo, record.likely)
    if not schema.is_sealed(database):
        schema.seal_schema(database)
    text = str(records[-1].serial)
    database.execute(schema.ABOUT_ROW, (_FOLDED, text, schema.pair_seal("about", _FOLDED, text)))


# ---- what one process knows of a space while nobody else writes: enough to store photos without SQLite

MOST_KNOWN = 1 << 16  # photos of a space: some 10 MB


@dataclass
class KnownPhotos:
    """The photos of one space, as of one version of the profile.

    Attributes:
        version: of the profile.
        photos: identities of all photos of the space.
        total: bytes of the features of all spaces.
        eldest: identity and bytes of the photos that go next, oldest first; those that are known.
        size: bytes of the feature of the newest photo.
        classifier: identity of the one whose likely classes the space has; "" where it has none.
    """

    space: str
    version: int
    photos: set[str] = field(default_factory=set)
    total: int = 0
    eldest: deque[tuple[str, int]] = field(default_factory=deque)
    size: int = 0
    classifier: str = ""

    def refresh(self, read: rows.Read, bounds: Bounds) -> bool:
        """Reads all but the identities again; False: they are not those of the file."""
        self.total = int(read("select total(bytes) from tally", ())[0][0])
        self.eldest.clear()
        if len(self.photos) + MOST_RECORDS > self.capacity(bounds):
            query = (
                "select photo, length(value) from feature indexed by newest where space = ? order by sequence limit ?"
            )
            self.eldest.extend((photo, size) for photo, size in read(query, (self.space, MOST_RECORDS)))
        newest = read(rows.NEWEST_SIZE, (self.space,))
        self.size = newest[0][0] if newest else 0
        self.classifier = ""
        if read(likely_classes.THERE, ())[0][0]:
            found = likely_classes.classifier_of(self.space, read(likely_classes.CLASSIFIER, (self.space,)))
            self.classifier = found.identity if found is not None else ""
        counted = read("select total(count) from tally where space = ?", (self.space,))
        return int(counted[0][0]) == len(self.photos)

    def capacity(self, bounds: Bounds) -> int:
        """Photos that the space may hold, as it is now."""
        return bounds.capacity_of(self.space, len(self.photos))

    def evicted_for(self, size: int, bounds: Bounds) -> tuple[str, ...] | None:
        """Identities of the photos that one more of so many bytes evicts; None: only SQLite can tell."""
        capacity = self.capacity(bounds)
        if len(self.photos) < capacity and self.total + size <= bounds.max_bytes:
            return ()
        if len(self.photos) == capacity and bounds.victim is oldest and self.eldest:
            photo, freed = self.eldest[0]
            if self.total - freed + size <= bounds.max_bytes:
                return (photo,)
        return None

    def stored(self, photo: str, size: int, evicted: Sequence[str]) -> None:
        """A photo was stored in the journal, and others are evicted for it, the oldest first."""
        for gone in evicted:
            self.photos.discard(gone)
            self.total -= self.eldest.popleft()[1]
        self.photos.add(photo)
        self.total += size
        self.version += 1


def known_of(space: str, version: int, read: rows.Read, bounds: Bounds) -> KnownPhotos | None:
    """What the file holds of a space; None where that is too much to be kept in memory."""
    known = KnownPhotos(space, version)
    counted = int(read("select total(count) from tally where space = ?", (space,))[0][0])
    if counted > MOST_KNOWN:
        return None
    known.photos.update(photo for (photo,) in read("select photo from feature where space = ?", (space,)))
    return known if known.refresh(read, bounds) else None
