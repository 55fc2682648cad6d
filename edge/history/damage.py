"""Telling a damaged profile from a full disk, a lock or a mistake of the caller, and finding what SQLite misses."""

from __future__ import annotations

import errno
import re
import sqlite3
from pathlib import Path

from refocus.edge.errors import HistoryError
from refocus.edge.history.schema import APPLICATION, PAGE, TWO_COLUMNS, Damage, is_whole, is_whole_pair
from refocus.edge.history.sqlite_pages import is_damaged, newest_pages

# What Python raises where a file holds other types, texts or sizes than were written into it.
GARBAGE = (TypeError, ValueError, OverflowError, AttributeError, LookupError, MemoryError)
# Primary result codes of SQLite that speak of the system around the file: permission, busy, locked, no memory,
# read-only, interrupted, I/O error, disk full, cannot open, locking protocol, no large files, not authorised.
_ENVIRONMENT = {3, 5, 6, 7, 8, 9, 10, 13, 14, 15, 22, 23}
_ENVIRONMENT_TEXTS = (  # Python 3.10 gives no code
    "access permission denied|is locked|out of memory|readonly|interrupted|disk I/O error|is full|unable to open"
    "|locking protocol|large file support|not authorized"
)
_FULL = {10, 13}  # a full disk shows as an I/O error too, where shared memory cannot be made
_REFUSED = {3, 8, 10, 13, 14}  # permission, read-only, I/O error, disk full, cannot open
_REFUSED_TEXTS = "access permission denied|readonly|disk I/O error|is full|unable to open"
_REFUSED_BY_SYSTEM = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EIO}
_HEADER = 100
_MAGIC = b"SQLite format 3\0"


class Unwritable(HistoryError):
    """Nothing can be written where the profile is: a read-only or full disk, or missing rights."""


def refused(error: BaseException) -> type[HistoryError]:
    """The kind of error that speaks of a file that cannot be opened or written."""
    if isinstance(error, OSError):
        return Unwritable if error.errno in _REFUSED_BY_SYSTEM else HistoryError
    found = isinstance(error, sqlite3.Error) and _code_in(error, _REFUSED, _REFUSED_TEXTS)
    return Unwritable if found else HistoryError


def is_environment(error: sqlite3.Error) -> bool:
    """Whether the error speaks of the disk, a lock or permissions rather than of what is in the file."""
    return _code_in(error, _ENVIRONMENT, _ENVIRONMENT_TEXTS)


def is_full(error: BaseException | None) -> bool:
    """Whether the disk may be full."""
    return isinstance(error, sqlite3.Error) and _code_in(error, _FULL, "is full|disk I/O error")


def is_certain(error: BaseException) -> bool:
    """Whether the error alone says that the file is broken; others may come from a mistake of the caller."""
    return isinstance(error, Damage) or (
        isinstance(error, sqlite3.Error) and any(words in str(error) for words in ("malformed", "not a database"))
    )


def _code_in(error: sqlite3.Error, codes: set[int], texts: str) -> bool:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF in codes if code is not None else bool(re.search(texts, str(error)))


def seen_from_outside(path: Path, written: bytes, may_read: bool) -> str:
    """Damage of a file, or of its log ``written``, that SQLite would take for something else; "": none.

    Args:
        may_read: False if this process has the file open: closing a second descriptor would drop SQLite's locks.

    Raises:
        HistoryError: it is not a regular file.
    """
    if not path.exists():
        return "the file is missing, its log is not" if newest_pages(written) else ""
    if not path.is_file():
        raise HistoryError(f"{path} is not a regular file; give another --profile or --profiles")
    if not path.stat().st_size:
        return "the file is empty"
    if is_damaged(written):
        return "its write-ahead log is damaged"
    return _wrong_header(path, bool(newest_pages(written))) if may_read else ""


def _wrong_header(path: Path, has_log: bool) -> str:
    """What is wrong with the constant fields of the header of one of our files, which every one of them has alike.

    A flipped bit there makes SQLite read texts in another encoding, pass over the log, or refuse to write.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER)
    if header[:16] != _MAGIC or int.from_bytes(header[68:72], "big") != APPLICATION:
        return ""  # SQLite, or the tables, will tell what it is
    fields = {
        "page size": header[16:18] == PAGE.to_bytes(2, "big"),
        "journal mode": header[18:20] == b"\2\2" or (header[18:20] == b"\1\1" and not has_log),
        "page layout": header[20:24] == b"\0\x40\x20\x20",
        "schema format": header[44:48] == b"\0\0\0\4",
        "vacuum mode": header[52:56] == header[64:68] == bytes(4),
        "text encoding": header[56:60] == b"\0\0\0\1",
        "reserved bytes": header[72:92] == bytes(20),
    }
    wrong = [field for field, right in fields.items() if not right]
    return f"its header is damaged: {', '.join(wrong)}" if wrong else ""


def inspect(database: sqlite3.Connection, whole: bool) -> None:
    """Reads a profile and compares what must agree.

    Args:
        whole: read every feature too, which takes a time that grows with the file.

    Raises:
        Damage: something does not agree.
        sqlite3.Error: the file cannot be read.
    """
    try:
        _inspect_counts(database)
        _inspect_pairs(database)
        if whole:
            _inspect_features(database)
    except GARBAGE as error:
        raise Damage(f"a row holds an invalid value ({error})") from None


def _inspect_counts(database: sqlite3.Connection) -> None:
    query = "select space, count(*), sum(length(value)) from feature indexed by newest group by space"
    found = {space: (count, size) for space, count, size in database.execute(query)}
    tally = {space: (count, size) for space, count, size in database.execute("select * from tally") if count}
    if found != tally:
        raise Damage("the tally of features does not agree with their index")
    total = sum(count for count, _ in found.values())
    for source in ("not indexed", "indexed by photo"):
        if database.execute(f"select count(*) from feature {source}").fetchone()[0] != total:  # noqa: S608
            raise Damage("the table of features does not agree with its indexes")


def _inspect_pairs(database: sqlite3.Connection) -> None:
    for table in TWO_COLUMNS:
        for row in database.execute(f"select * from {table}"):  # noqa: S608
            if not is_whole_pair(table, *row):
                raise Damage(f"a {table} does not match its checksum")


def _inspect_features(database: sqlite3.Connection) -> None:
    found = database.execute("pragma integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise Damage(f"malformed: {found}")
    for row in database.execute("select space, sequence, photo, stored, name, seal, value from feature not indexed"):
        if not is_whole(*row):
            raise Damage("a feature does not match its checksum, or has NaN or infinite numbers")
