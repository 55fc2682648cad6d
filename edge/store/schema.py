"""The tables of a profile's file, the checksums in them, and how older files become today's.

The table ``feature`` is a ring: when it is full, a new row overwrites the evicted one in its slot. That writes half as
many pages as an insert with a delete, and leaves no copy of an evicted feature behind.
"""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from pathlib import Path

from edge.errors import HistoryError

# 2: the column name. 3: slots, time of storing, checksums over whole rows, labels, settings. 4: Refocus 0.2; the tables
# of 3, so a file of 3 is used as it is and stays readable for Refocus 0.1 (docs/formats/profile.md).
SCHEMA = 4
SAME_TABLES = 3  # the oldest number whose files need no upgrade
APPLICATION = 0x52664373  # marks the file as ours; SQLite keeps it in the header
NO_SEQUENCE = (1 << 63) - 1  # above any
PAGE = 4096  # bytes; fixed, so that a file whose header is lost can still be read

# `sequence` orders the photos of one space. `stored` is UTC in milliseconds, 0 where an older file did not say.
# `tally` is what the bounds are checked against: counting thousands of rows per photo would be slow.
TABLES = (
    "create table feature (slot integer primary key, space text not null, sequence integer not null,"
    " photo text not null, stored integer not null, name text not null, seal blob not null, value blob not null)",
    "create unique index photo on feature (space, photo)",
    "create unique index newest on feature (space, sequence)",
    "create table tally (space text primary key, count integer not null, bytes integer not null)",
    "create table label (photo text primary key, label text not null, seal blob not null)",
    "create table setting (name text primary key, value text not null, seal blob not null)",
)
INSERT = "insert into feature (space, sequence, photo, stored, name, seal, value) values (?, ?, ?, ?, ?, ?, ?)"
TWO_COLUMNS = {
    "label": "insert or replace into label (photo, label, seal) values (?, ?, ?)",
    "setting": "insert or replace into setting (name, value, seal) values (?, ?, ?)",
}


def feature_seal(space: str, sequence: int, photo: str, stored: int, name: str, value: bytes) -> bytes:
    """CRC-32 of a whole row of ``feature``: a feature that turns up under another space or photo does not match."""
    return zlib.crc32(value, zlib.crc32(f"{space}\0{sequence}\0{photo}\0{stored}\0{name}".encode())).to_bytes(4, "big")


def pair_seal(table: str, key: str, value: str) -> bytes:
    """CRC-32 of a row of ``label`` or ``setting``."""
    return zlib.crc32(f"{table}\0{key}\0{value}".encode()).to_bytes(4, "big")


def create(database: sqlite3.Connection) -> None:
    """Makes the tables, inside the caller's transaction."""
    for statement in TABLES:
        database.execute(statement)
    _sign(database)


def _sign(database: sqlite3.Connection) -> None:
    database.execute(f"pragma user_version={SCHEMA}")
    database.execute(f"pragma application_id={APPLICATION}")


def recount(database: sqlite3.Connection) -> None:
    """Writes ``tally`` anew, inside the caller's transaction."""
    database.execute("delete from tally")
    database.execute("insert into tally select space, count(*), sum(length(value)) from feature group by space")


def check_ours(database: sqlite3.Connection, path: Path) -> int:
    """The schema of the file, 0 if it is empty. Writes nothing: a file of another program is left as it is.

    Raises:
        HistoryError: another program's file, or one of a newer Refocus.
    """
    application = database.execute("pragma application_id").fetchone()[0]
    tables = database.execute("select count(*) from sqlite_master").fetchone()[0]
    if application != APPLICATION and (application or tables):
        raise HistoryError(f"{path} is a database of another program; give another --profile or --profiles")
    schema: int = database.execute("pragma user_version").fetchone()[0]
    if schema > SCHEMA:
        raise HistoryError(f"{path} has schema {schema}, this refocus reads 1 to {SCHEMA}; update refocus")
    return schema if tables else 0


def upgrade(database: sqlite3.Connection) -> int:
    """Turns a file of schema 1 or 2 into today's, in one transaction.

    Returns:
        the number of damaged rows that were left out.
    """
    columns = {row[1] for row in database.execute("pragma table_info(feature)")}
    name = "name" if "name" in columns else "''"
    left_out = 0
    database.execute("begin immediate")
    try:
        database.execute("alter table feature rename to old_feature")
        create(database)
        rows = database.execute(f"select sequence, space, photo, crc, value, {name} from old_feature")  # noqa: S608
        for sequence, space, photo, crc, value, called in rows:
            if zlib.crc32(value) != crc:
                left_out += 1
                continue
            seal = feature_seal(space, sequence, photo, 0, called, value)
            database.execute(INSERT, (space, sequence, photo, 0, called, seal, value))
        database.execute("drop table old_feature")
        recount(database)
        database.execute("commit")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            database.execute("rollback")
        raise
    with contextlib.suppress(sqlite3.Error):  # it only makes the file smaller, and may lack the room to do so
        database.execute("vacuum")
    return left_out
