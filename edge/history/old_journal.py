"""Read the append journal of a profile of a 0.2 development version.

Those versions stored photos in ``NAME.journal`` first, and counted its records in 44 bytes of the lock file
(docs/formats/profile.md, "Journal"). Opening a profile moves the records to the database. This version writes no
journal. Its content is not trusted: sizes are bounded and every record has a checksum.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from refocus.edge.history import likely_classes, rows, schema
from refocus.edge.history.eviction import POLICIES, Bounds

_MOST = 128 << 20  # maximum bytes to read; writers began no record after 4 MB
_MOST_MARKS = 256  # maximum marks to check; writers kept at most 33 records
_LATEST = 1 << 43  # milliseconds since 1970
_MARK = b"RfJ1"
_FRAME = struct.Struct("<4sII")  # mark, bytes of the content, their CRC-32
_CONTENT = struct.Struct("<Qqqqq8I")  # serial, stored, capacity, max_bytes, protect; bytes of the eight parts
_STATE = struct.Struct("<4sIQQQQI")  # mark, unsynced, changes, folded, last, used; CRC-32 of what is before
_STATE_AT = 64  # in the lock file
_FOLDED = "journal"  # name of the row of ``about`` that has the serial of the last record in the database


class Record(NamedTuple):
    """Record of a photo, with the bounds of the history that stored it."""

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


class Left(NamedTuple):
    """Content of a journal and its state.

    Attributes:
        content: bytes that may hold records.
        state: serials of the last record in the database and of the last record; None if the state is lost.
    """

    content: bytes
    state: tuple[int, int] | None


def look(path: Path, lock: int | None) -> Left | None:
    """Return the journal of a profile; None if there is nothing to fold.

    Args:
        path: file of the profile.
        lock: descriptor of its lock file; None if there is no such file.
    """
    raw = os.pread(lock, _STATE.size, _STATE_AT) if lock is not None else b""
    state, used = None, _MOST
    if len(raw) == _STATE.size:
        mark, _, _, folded, last, size, crc = _STATE.unpack(raw)
        if mark == _MARK and crc == zlib.crc32(raw[:-4]):
            state, used = (folded, last), min(size, _MOST)
    content = None
    with contextlib.suppress(OSError), _opened(_beside(path)) as file:
        content = os.pread(file, min(used, os.fstat(file).st_size), 0)
    if not content and (state is None or state[0] >= state[1]):
        return None
    return Left(content or b"", state)


def fold(database: sqlite3.Connection, left: Left) -> int:
    """Store the photos of a journal in the caller's transaction.

    Each is stored once, as its writer would have stored it.

    Returns:
        Number of photos that were in the journal and are lost.
    """
    whole, gaps = _records(left.content)
    folded, last = left.state or (0, 0)
    done = max(_folded(database), folded)
    found = [record for record in whole if record.serial > done]
    for record in found:
        _store(database, record)
    if not schema.is_sealed(database):
        schema.seal_schema(database)
    text = str(max(done, last, *(record.serial for record in found)))
    database.execute(schema.ABOUT_ROW, (_FOLDED, text, schema.pair_seal("about", _FOLDED, text)))
    return gaps if left.state is None else max(last - done - len(found), 0)


def _folded(database: sqlite3.Connection) -> int:
    """Return the serial of the last record in the database; 0 if unknown."""
    if not schema.is_sealed(database):
        return 0
    row = database.execute("select name, value, seal from about where name = ?", (_FOLDED,)).fetchone()
    return int(row[1]) if row is not None and schema.is_whole_pair("about", *row) else 0


def _store(database: sqlite3.Connection, record: Record) -> None:
    if rows.has(database, record.space, record.photo):
        return
    paths = {record.space: record.path} if record.path else {}
    bounds = Bounds(record.capacity, record.max_bytes, record.protect, POLICIES[record.eviction], paths)
    values = {record.space: record.value}
    rows.append(database, bounds, record.photo, values, record.name, record.stored, any_width=True)
    if record.classifier:
        likely_classes.put_value(database, record.space, record.classifier, record.photo, record.likely)


def forget(path: Path, lock: int) -> None:
    """Overwrite and delete a journal, and delete its state.

    Its photos are in the database or erased.
    """
    with contextlib.suppress(OSError), _opened(_beside(path), os.O_RDWR) as file:
        os.pwrite(file, bytes(min(os.fstat(file).st_size, _MOST)), 0)
        os.fsync(file)
        _beside(path).unlink()
    if os.pread(lock, 1, _STATE_AT):
        os.pwrite(lock, bytes(_STATE.size), _STATE_AT)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".journal")


@contextlib.contextmanager
def _opened(path: Path, how: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, how | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            yield descriptor
        else:
            raise FileNotFoundError(f"{path} is not a regular file")
    finally:
        os.close(descriptor)


def _records(content: bytes) -> tuple[list[Record], int]:
    """Return the complete records in order, and the number of gaps.

    A gap is damaged content before a record.
    """
    found: list[Record] = []
    at, gaps, inside = 0, 0, False
    for _ in range(_MOST_MARKS):
        if (at := content.find(_MARK, at)) < 0:
            break
        try:
            _, size, crc = _FRAME.unpack_from(content, at)
            begin, end = at + _FRAME.size, at + _FRAME.size + size
            if end > len(content) or zlib.crc32(memoryview(content)[begin:end]) != crc:
                raise ValueError("half a record, or a damaged one")
            found.append(_decoded(content[begin:end]))
        except (ValueError, struct.error):
            inside, at = True, at + 1
        else:
            gaps, inside, at = gaps + inside, False, end
    return found, gaps


def _decoded(content: bytes) -> Record:
    """Return the record that a frame holds.

    Raises:
        ValueError: it is not a record, or the database cannot hold it.
        struct.error: it is shorter than a record.
    """
    fields = _CONTENT.unpack_from(content)
    parts, at = [], _CONTENT.size
    for size in fields[5:]:
        parts.append(content[at : at + size])
        at += size
    record = Record(*fields[:5], *(part.decode() for part in parts[:6]), *parts[6:])
    bounded = record.capacity > 0 and len(record.value) <= record.max_bytes and 0 <= record.stored < _LATEST
    known = record.eviction in POLICIES
    if at != len(content) or not bounded or not known or not schema.is_finite(record.value):
        raise ValueError("no photo that a history could have stored")
    return record
