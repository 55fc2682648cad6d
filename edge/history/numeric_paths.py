"""What computed each stored feature: runtime, version and provider, beside the row of the feature.

One feature space takes features of one model, whatever runs it. The last bits differ between fp32 on a CPU, TF32 on a
GPU and NNAPI; here they are told apart. A space has one common path, and rows of their own are kept for photos of
another one alone: a device that does not change writes nothing more per photo.

The table belongs to the rows of ``feature`` as ``likely`` does: triggers delete a photo's row with its feature, and a
recovery leaves the table out. Functions that take a database are a part of the caller's transaction.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from typing import Any

UNKNOWN = ""  # of features that were stored before this was recorded, or whose row is damaged
# Four columns: a recovery, that of Refocus 0.1 included, takes rows of 3, 5, 6 or 8 columns for others. Slots below 0
# have the common path of a space, slots of `feature` that of one photo.
COMPUTED_TABLES = (
    "create table computed (slot integer primary key, space text not null, path text not null, seal blob not null)",
    "create trigger computed_erased after delete on feature begin delete from computed where slot = old.slot; end",
    "create trigger computed_evicted after update on feature begin delete from computed where slot = old.slot; end",
)
THERE = "select exists(select 1 from sqlite_master where name = 'computed')"
COMMON = "select slot, path, seal from computed where slot < 0 and space = ?"
ROWS = (
    "select feature.slot, computed.path, computed.seal from feature left join computed on computed.slot = feature.slot"
    " where feature.space = ?"
)


def seal_of(slot: int, space: str, path: str) -> bytes:
    """CRC-32 of a row of ``computed``."""
    return zlib.crc32(f"computed\0{slot}\0{space}\0{path}".encode()).to_bytes(4, "big")


def note(database: sqlite3.Connection, space: str, slot: int, path: str) -> None:
    """Records what computed the feature that was just put into a slot of ``feature``."""
    try:
        found = database.execute(COMMON, (space,)).fetchone()
    except sqlite3.OperationalError:
        if database.execute(THERE).fetchone()[0]:
            raise
        for statement in COMPUTED_TABLES:
            database.execute(statement)
        found = None
    if found is None:
        others = database.execute(
            "select 1 from feature where space = ? and slot <> ? limit 1", (space, slot)
        ).fetchone()
        lowest = database.execute("select min(slot) from computed").fetchone()[0] or 0
        common = UNKNOWN if others else path
        _put(database, min(lowest, 0) - 1, space, common)
    else:
        common = _whole(space, *found)
    if path != common:
        _put(database, slot, space, path)


def forget(database: sqlite3.Connection, space: str | None) -> None:
    """Deletes the common path of a space that was erased, None: of all; triggers delete those of photos."""
    if database.execute(THERE).fetchone()[0]:
        database.execute("delete from computed where slot < 0 and (? is null or space = ?)", (space, space))


def counts(space: str, common: Sequence[Sequence[Any]], rows: Sequence[Sequence[Any]]) -> dict[str, int]:
    """Number of features by what computed them, most first.

    Args:
        common: rows of ``COMMON``.
        rows: of ``ROWS``.
    """
    usual = _whole(space, *common[0]) if common else UNKNOWN
    found: dict[str, int] = {}
    for slot, path, seal in rows:
        name = usual if path is None else _whole(space, slot, path, seal)
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _put(database: sqlite3.Connection, slot: int, space: str, path: str) -> None:
    row = (slot, space, path, seal_of(slot, space, path))
    database.execute("insert or replace into computed (slot, space, path, seal) values (?, ?, ?, ?)", row)


def _whole(space: str, slot: Any, path: Any, seal: Any) -> str:
    return path if isinstance(path, str) and seal == seal_of(slot, space, path) else UNKNOWN
