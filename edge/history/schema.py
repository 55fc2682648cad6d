"""The tables of a profile's file, the checksums in them, and how older files become today's.

The table ``feature`` is a ring: when it is full, a new row overwrites the evicted one in its slot. That writes half as
many pages as an insert with a delete, and leaves no copy of an evicted feature behind.
"""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from refocus.edge.errors import HistoryError

# 2: the column name. 3: slots, time of storing, checksums over whole rows, labels, settings. 4: Refocus 0.2; the tables
# of 3, so a file of 3 is used as it is and stays readable for Refocus 0.1 (docs/formats/profile.md).
SCHEMA = 4
SAME_TABLES = 3  # the oldest number whose files need no upgrade
APPLICATION = 0x52664373  # marks the file as ours; SQLite keeps it in the header
NO_SEQUENCE = (1 << 63) - 1  # above any
PAGE = 4096  # bytes; fixed, so that a file whose header is lost can still be read

# `sequence` orders the photos of one space. `stored` is UTC in milliseconds, 0 where an older file did not say.
# `about` has the number of the schema again, sealed: the one in the file's header has no checksum; and which records of
# the journal were moved here. Release 0.1.0 did not write it. `tally` is what the bounds are checked against: counting
# thousands of rows per photo would be slow.
ABOUT = "create table about (name text primary key, value text not null, seal blob not null)"
ABOUT_ROW = "insert or replace into about (name, value, seal) values (?, ?, ?)"
_TABLES_OF_3 = (
    "create table feature (slot integer primary key, space text not null, sequence integer not null,"
    " photo text not null, stored integer not null, name text not null, seal blob not null, value blob not null)",
    "create unique index photo on feature (space, photo)",
    "create unique index newest on feature (space, sequence)",
    "create table tally (space text primary key, count integer not null, bytes integer not null)",
    "create table label (photo text primary key, label text not null, seal blob not null)",
    "create table setting (name text primary key, value text not null, seal blob not null)",
)
TABLES = (*_TABLES_OF_3, ABOUT)
INSERT = "insert into feature (space, sequence, photo, stored, name, seal, value) values (?, ?, ?, ?, ?, ?, ?)"
TWO_COLUMNS = {
    "label": "insert or replace into label (photo, label, seal) values (?, ?, ?)",
    "setting": "insert or replace into setting (name, value, seal) values (?, ?, ?)",
}

Result = TypeVar("Result")


class Damage(sqlite3.DatabaseError):
    """The profile's database is corrupt, even if SQLite reports no error."""


def commit(database: sqlite3.Connection, work: Callable[[sqlite3.Connection], Result]) -> Result:
    """Runs ``work`` as one transaction."""
    try:
        database.execute("begin immediate")
        result = work(database)
        database.execute("commit")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            database.execute("rollback")
        raise
    return result


def feature_seal(space: str, sequence: int, photo: str, stored: int, name: str, value: bytes) -> bytes:
    """CRC-32 of a whole row of ``feature``: a feature that turns up under another space or photo does not match."""
    return zlib.crc32(value, zlib.crc32(f"{space}\0{sequence}\0{photo}\0{stored}\0{name}".encode())).to_bytes(4, "big")


def pair_seal(table: str, key: str, value: str) -> bytes:
    """CRC-32 of a row of ``label`` or ``setting``."""
    return zlib.crc32(f"{table}\0{key}\0{value}".encode()).to_bytes(4, "big")


def is_whole(space: Any, sequence: Any, photo: Any, stored: Any, name: Any, seal: Any, value: Any) -> bool:
    """Whether a row of ``feature`` is as it was written, and a feature of finite numbers."""
    texts, numbers = (space, photo, name), (sequence, stored)
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(number, int) for number in numbers):
        return False
    return (
        isinstance(value, bytes)
        and seal == feature_seal(space, sequence, photo, stored, name, value)
        and is_finite(value)
    )


def is_finite(value: bytes) -> bool:
    """Whether bytes are float32 numbers, none of them NaN or infinite."""
    if len(value) % 4:
        return False
    numbers = np.frombuffer(value, "<f4")
    return bool(np.isfinite(numbers).all())


def is_whole_pair(table: str, key: Any, value: Any, seal: Any) -> bool:
    """Whether a row of ``label``, ``setting`` or ``about`` is as it was written."""
    return isinstance(key, str) and isinstance(value, str) and seal == pair_seal(table, key, value)


def create(database: sqlite3.Connection) -> None:
    """Makes the tables, inside the caller's transaction."""
    for statement in TABLES:
        database.execute(statement)
    _sign(database)


def _sign(database: sqlite3.Connection) -> None:
    database.execute(f"pragma user_version={SCHEMA}")
    database.execute(f"pragma application_id={APPLICATION}")
    _seal(database, SCHEMA)


def _seal(database: sqlite3.Connection, number: int) -> None:
    row = ("schema", str(number), pair_seal("about", "schema", str(number)))
    database.execute(ABOUT_ROW, row)


def seal_schema(database: sqlite3.Connection) -> None:
    """Adds the table ``about`` to a file of release 0.1.0, inside the caller's transaction; its number stays."""
    database.execute(ABOUT.replace("create table", "create table if not exists"))
    _seal(database, database.execute("pragma user_version").fetchone()[0])


def is_sealed(database: sqlite3.Connection) -> bool:
    """Whether the file has the table ``about``."""
    return bool(database.execute("select 1 from sqlite_master where name = 'about'").fetchone())


def recount(database: sqlite3.Connection) -> None:
    """Writes ``tally`` again, inside the caller's transaction."""
    database.execute("delete from tally")
    database.execute("insert into tally select space, count(*), sum(length(value)) from feature group by space")


@dataclass
class Tally:
    """Features of a profile.

    Attributes:
        spaces: number of features and their bytes, by space.
        sizes: bytes of the newest feature, by space; only of spaces with features.
        newest: place of the newest photo; 0 if there is none.
    """

    spaces: dict[str, tuple[int, int]]
    sizes: dict[str, int]
    newest: int


_TALLY = (
    "select space, count, bytes, (select max(sequence) from feature indexed by newest where space = tally.space),"
    " (select length(value) from feature indexed by newest where space = tally.space order by sequence desc limit 1)"
    " from tally"
)


def tally(database: sqlite3.Connection) -> Tally:
    """Read the tally and the newest photo of each space, in a time that does not grow with the number of features."""
    rows = database.execute(_TALLY).fetchall()
    return Tally(
        {space: (count, used) for space, count, used, _, _ in rows},
        {space: size for space, _, _, _, size in rows if size is not None},
        max((sequence or 0 for _, _, _, sequence, _ in rows), default=0),
    )


def check_ours(database: sqlite3.Connection, path: Path) -> int:
    """The schema of the file. Writes nothing: a file of another program is left as it is.

    The number in the header has no checksum. It is compared with the sealed one in ``about`` and with the tables, so
    that a damaged header is not taken for the file of a newer Refocus.

    Raises:
        HistoryError: another program's file, or one of a newer Refocus.
        Damage: the header, the tables and the sealed number contradict each other.
    """
    application = database.execute("pragma application_id").fetchone()[0]
    declared: int = database.execute("pragma user_version").fetchone()[0]
    tables = dict(database.execute("select name, sql from sqlite_master where type = 'table'").fetchall())
    built = _built(tables)
    if application != APPLICATION and tables and not built:
        raise HistoryError(f"{path} is a database of another program; give another --profile or --profiles")
    sealed = _sealed_schema(database) if "about" in tables else None
    newest = max(declared, sealed or 0)
    if newest > SCHEMA and (sealed or 0) <= SCHEMA and not _may_be_newer(tables, sealed, built):
        raise Damage(f"its header says schema {declared}, its tables are of schema {sealed or built}")
    if newest > SCHEMA:
        raise HistoryError(f"{path} has schema {newest}, this refocus reads 1 to {SCHEMA}; update refocus")
    if application != APPLICATION or not built:
        raise Damage("its header or its list of tables is damaged")
    if declared < (sealed or 0) or (declared < 3 and declared != built) or (declared >= 3 and built != 3):
        raise Damage(f"its header says schema {declared}, its tables are of schema {sealed or built}")
    if "about" in tables and sealed is None:
        raise Damage("its sealed schema number is damaged")
    return declared


def _built(tables: Mapping[str, Any]) -> int:
    """The schema that a file's tables were made for, 3 standing for 3 and later; 0: they are not ours."""
    feature = str(tables.get("feature"))
    if not all(column in feature for column in ("space text not null", "photo text not null", "value blob not null")):
        return 0
    return 3 if "slot integer primary key" in feature else 2 if "name text" in feature else 1


def _sealed_schema(database: sqlite3.Connection) -> int | None:
    """The number in ``about``; None if it is damaged."""
    row = database.execute("select name, value, seal from about where name = 'schema'").fetchone()
    return int(row[1]) if row is not None and is_whole_pair("about", *row) else None


def _may_be_newer(tables: Mapping[str, Any], sealed: int | None, built: int) -> bool:
    """Whether a file whose header names an unknown schema may really be of it, though no sealed number says so."""
    found = {str(sql).lower() for name, sql in tables.items() if not name.startswith("sqlite_")}
    as_in_0_1_0 = found == {sql for sql in _TABLES_OF_3 if sql.startswith("create table")}
    return sealed is None and bool(tables) and built in (0, 3) and not as_in_0_1_0


def upgrade(database: sqlite3.Connection) -> None:
    """Turns a file of schema 1 or 2 into today's, in one transaction.

    Raises:
        Damage: a row does not match its checksum.
    """
    columns = {row[1] for row in database.execute("pragma table_info(feature)")}
    name = "name" if "name" in columns else "''"

    def work(database: sqlite3.Connection) -> None:
        database.execute("alter table feature rename to old_feature")
        create(database)
        rows = database.execute(f"select sequence, space, photo, crc, value, {name} from old_feature")  # noqa: S608
        for sequence, space, photo, crc, value, called in rows:
            if zlib.crc32(value) != crc:
                raise Damage("a feature does not match its checksum")
            seal = feature_seal(space, sequence, photo, 0, called, value)
            database.execute(INSERT, (space, sequence, photo, 0, called, seal, value))
        database.execute("drop table old_feature")
        recount(database)

    commit(database, work)
    with contextlib.suppress(sqlite3.Error):  # it only makes the file smaller, and may lack the room to do so
        database.execute("vacuum")


def first_row(database: sqlite3.Connection, query: str, space: str, there: str, tables: Sequence[str]) -> Any:
    """First row of a space in a table that is made when it is first written to; None where there is no row.

    Args:
        there: query that tells whether the table exists.
        tables: statements that make it.
    """
    try:
        return database.execute(query, (space,)).fetchone()
    except sqlite3.OperationalError:
        if database.execute(there).fetchone()[0]:
            raise
        for statement in tables:
            database.execute(statement)
        return None
