"""Rows of a profile: what is known of photos, with and without their features, and where each photo stands.

A photo has one place, the same in every feature space. So one space can be filled from the photos of another in any
order, and while new photos arrive: all come to lie as they were seen.

Each function that takes a database is a part of the caller's transaction.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from refocus.edge.errors import HistoryError
from refocus.edge.history import likely_classes
from refocus.edge.history.eviction import Bounds, make_room, oldest
from refocus.edge.history.schema import (
    INSERT,
    NO_SEQUENCE,
    TWO_COLUMNS,
    Tally,
    feature_seal,
    first_row,
    pair_seal,
    recount,
    tally,
)

Row = tuple[Any, ...]  # slot, sequence, photo, stored, name, seal, value
Read = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]  # a query and its parameters -> its rows

NEWEST_SIZE = "select length(value) from feature indexed by newest where space = ? order by sequence desc limit 1"
# Photos of one space that another lacks and has room for; no two photos have one place, so theirs is free there.
_LACKING = (
    "from feature as source indexed by newest where space = :source and sequence > :floor"
    " and not exists (select 1 from feature where space = :target and photo = source.photo)"
)


@dataclass(frozen=True)
class HistorySlice:
    """Photos of the past, oldest first.

    Attributes:
        features: (n, D) float32.
        photos: identities of the n photos (SHA-256 of their bytes).
        names: what the n photos were called when they were stored; "" if unknown.
    """

    features: np.ndarray
    photos: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """What is stored about one photo in one feature space, without the feature.

    Attributes:
        photo: identity of the photo (SHA-256 of its bytes).
        name: what it was called when it was stored; "" if unknown.
        space: feature space of the encoder.
        stored: when, in UTC; None where an older version did not say.
        size: bytes of the feature.
    """

    photo: str
    name: str
    space: str
    stored: datetime | None
    size: int


@dataclass(frozen=True)
class Space:
    """Stored features of one feature space: number of photos, bytes, feature width D."""

    count: int
    size: int
    width: int


def remembered(rows: Sequence[Row], width: int) -> HistorySlice:
    """The photos of whole rows of D = ``width``."""
    features = np.frombuffer(b"".join(row[6] for row in rows), dtype="<f4").reshape(-1, width)
    return HistorySlice(features, tuple(row[2] for row in rows), tuple(row[4] for row in rows))


class Filling(NamedTuple):
    """From which space photos are taken over to which, and whether a full one gives up its oldest for younger ones."""

    source: str
    target: str
    make_room: bool = False


class Setting(NamedTuple):
    """What a setting must be for a change to go on; None: it must be missing."""

    name: str
    value: str | None


def append(
    database: sqlite3.Connection,
    bounds: Bounds,
    photo: str,
    values: Mapping[str, bytes],
    name: str,
    stored: int = 0,
    any_width: bool = False,
    held: Tally | None = None,
) -> list[tuple[str, str]]:
    """Stores a photo of which no space has anything, by space, as the newest of the profile.

    Args:
        stored: milliseconds since 1970, UTC; 0: now.
        any_width: stores features of other widths than a space has, too: those that somebody was told are stored.
        held: tally of the database, if the caller has read it; brought up to date.

    Returns:
        space and identity of the photos that were evicted for it.

    Raises:
        HistoryError: as :func:`check_width`.
    """
    held, evicted, stored = held or tally(database), [], stored or milliseconds()
    for space, value in values.items() if not any_width else ():
        if held.sizes.get(space, len(value)) != len(value):
            check_width(reading(database), space, len(value))
    for space, value in values.items():
        evicted += _put(database, bounds, held, (space, held.newest + 1, photo, stored, name), value)
    held.newest += 1
    return evicted


def reading(database: sqlite3.Connection) -> Read:
    """Runs queries in the caller's transaction."""
    return lambda query, given: database.execute(query, given).fetchall()


def milliseconds() -> int:
    """Now, since 1970, UTC."""
    return time.time_ns() // 1_000_000


def has(database: sqlite3.Connection, space: str, photo: str) -> bool:
    """Whether a photo's feature of that space is stored."""
    return bool(database.execute("select 1 from feature where space = ? and photo = ?", (space, photo)).fetchone())


def check_width(read: Read, space: str, size: int) -> None:
    """Checks that features of one space are of one width, whoever stored them.

    Args:
        read: runs a query on the profile.
        size: bytes of a feature.

    Raises:
        HistoryError: the space has features, none of which has so many bytes.
    """
    alike = "select 1 from feature indexed by newest where space = ? and length(value) = ? limit 1"
    found = read(NEWEST_SIZE, (space,))
    if found and found[0][0] != size and not read(alike, (space, size)):
        raise HistoryError(
            f"feature space {space[:12]} has features of {found[0][0] // 4} numbers in this profile, expected"
            f" {size // 4}; use the bundle that made them, or another --profile"
        )


def lacking(
    database: sqlite3.Connection, bounds: Bounds, what: Filling, width: int, limit: int
) -> list[tuple[str, str]]:
    """Identity and name of photos that :func:`fill` would take over, newest first.

    Args:
        what: from where to where.
        width: D of the space that is filled.
        limit: at most so many.
    """
    given = {**what._asdict(), "floor": _floor(database, bounds, what, 4 * width), "limit": limit}
    query = f"select photo, name {_LACKING} order by sequence desc limit :limit"
    return database.execute(query, given).fetchall()


def fill(database: sqlite3.Connection, bounds: Bounds, what: Filling, photo: str, value: bytes) -> bool:
    """Stores a feature in one space at the place, time and name that its photo has in another.

    It evicts one photo at most: a space that holds more than its bounds was filled under others, which are not known.

    Returns:
        False if nothing was stored: the photo is not in the source, is in the target, or there is no room for it.

    Raises:
        HistoryError: as :func:`check_width`.
    """
    check_width(reading(database), what.target, len(value))
    given = {**what._asdict(), "floor": _floor(database, bounds, what, len(value)), "photo": photo}
    query = f"select sequence, photo, stored, name, seal, value {_LACKING} and photo = :photo"
    row = database.execute(query, given).fetchone()
    if row is None:
        return False
    place, photo, stored, name, seal, theirs = row
    if seal != feature_seal(what.source, place, photo, stored, name, theirs):
        return False  # the place may be damaged too
    bounds = replace(bounds, victim=oldest, shrinks=False)
    _put(database, bounds, tally(database), (what.target, place, photo, stored, name), value)
    return True


def forget(database: sqlite3.Connection, space: str) -> None:
    """Deletes all features of a space, and what is known of them; their bytes are gone from the file after the next
    scrub."""
    likely_classes.forget(database, space)
    database.execute("delete from feature where space = ?", (space,))
    forget_paths(database, space)
    recount(database)


def holds(database: sqlite3.Connection, expected: Setting) -> bool:
    """Whether a setting is as expected; a damaged one counts as missing, as it does for readers."""
    row = database.execute("select value, seal from setting where name = ?", (expected.name,)).fetchone()
    found = row[0] if row and row[1] == pair_seal("setting", expected.name, row[0]) else None
    return found == expected.value


def change(database: sqlite3.Connection, expected: Setting, value: str | None) -> bool:
    """Gives a setting another value, None removes it; False, and no change, if it is not as expected."""
    if not holds(database, expected):
        return False
    name = expected.name
    if value is None:
        database.execute("delete from setting where name = ?", (name,))
    else:
        database.execute(TWO_COLUMNS["setting"], (name, value, pair_seal("setting", name, value)))
    return True


def _put(
    database: sqlite3.Connection, bounds: Bounds, held: Tally, row: tuple[str, int, str, int, str], value: bytes
) -> list[tuple[str, str]]:
    """Stores a row: space, sequence, photo, time and name, and the feature's bytes; what was evicted for it."""
    space, _, photo, _, _ = row
    slot, evicted = make_room(database, bounds, held, space, photo, len(value))
    whole = (*row, feature_seal(*row, value), value)
    if slot is None:
        slot = int(database.execute(INSERT, whole).lastrowid or 0)
    else:
        database.execute(
            "update feature set space = ?, sequence = ?, photo = ?, stored = ?, name = ?, seal = ?, value = ?"
            " where slot = ?",
            (*whole, slot),
        )
    if space in bounds.paths:
        note_path(database, space, slot, bounds.paths[space])
    return evicted


def _floor(database: sqlite3.Connection, bounds: Bounds, what: Filling, size: int) -> int:
    """The place that a photo must be above to be taken over.

    No photo of another space is ever evicted for it: that would eat up the history that one may want to go back to.
    """
    spaces = tally(database).spaces
    if sum(used for _, used in spaces.values()) + size > bounds.max_bytes:
        return NO_SEQUENCE
    if spaces.get(what.target, (0, 0))[0] < bounds.capacity_of(what.target):
        return -1
    if not what.make_room:
        return NO_SEQUENCE
    query = "select min(sequence) from feature indexed by newest where space = ?"
    return int(database.execute(query, (what.target,)).fetchone()[0])


# ---- what computed each stored feature: runtime, version and provider, beside the row of the feature
#
# One feature space takes features of one model, whatever runs it. The last bits differ between fp32 on a CPU, TF32 on a
# GPU and NNAPI; here they are told apart. A space has one common path, and rows of their own are kept for photos of
# another one alone: a device that does not change writes nothing more per photo. The table belongs to the rows of
# ``feature`` as ``likely`` does: triggers delete a photo's row with its feature, and a recovery leaves the table out.

UNKNOWN_PATH = ""  # of features that were stored before this was recorded, or whose row is damaged
# Four columns: a recovery, that of Refocus 0.1 included, takes rows of 3, 5, 6 or 8 columns for others. Slots below 0
# have the common path of a space, slots of `feature` that of one photo.
_COMPUTED_TABLES = (
    "create table computed (slot integer primary key, space text not null, path text not null, seal blob not null)",
    "create trigger computed_erased after delete on feature begin delete from computed where slot = old.slot; end",
    "create trigger computed_evicted after update on feature begin delete from computed where slot = old.slot; end",
)
PATHS_THERE = "select exists(select 1 from sqlite_master where name = 'computed')"
COMMON_PATH = "select slot, path, seal from computed where slot < 0 and space = ?"
PATH_ROWS = (
    "select feature.slot, computed.path, computed.seal from feature left join computed on computed.slot = feature.slot"
    " where feature.space = ?"
)


def path_seal(slot: int, space: str, path: str) -> bytes:
    """CRC-32 of a row of ``computed``."""
    return zlib.crc32(f"computed\0{slot}\0{space}\0{path}".encode()).to_bytes(4, "big")


def note_path(database: sqlite3.Connection, space: str, slot: int, path: str) -> None:
    """Records what computed the feature that was just put into a slot of ``feature``."""
    found = first_row(database, COMMON_PATH, space, PATHS_THERE, _COMPUTED_TABLES)
    if found is None:
        others = database.execute(
            "select 1 from feature where space = ? and slot <> ? limit 1", (space, slot)
        ).fetchone()
        lowest = database.execute("select min(slot) from computed").fetchone()[0] or 0
        common = UNKNOWN_PATH if others else path
        _put_path(database, min(lowest, 0) - 1, space, common)
    else:
        common = _whole_path(space, *found)
    if path != common:
        _put_path(database, slot, space, path)


def forget_paths(database: sqlite3.Connection, space: str | None) -> None:
    """Deletes the common path of a space that was erased, None: of all; triggers delete those of photos."""
    if database.execute(PATHS_THERE).fetchone()[0]:
        database.execute("delete from computed where slot < 0 and (? is null or space = ?)", (space, space))


def path_counts(space: str, common: Sequence[Sequence[Any]], rows: Sequence[Sequence[Any]]) -> dict[str, int]:
    """Number of features by what computed them, most first.

    Args:
        common: rows of ``COMMON_PATH``.
        rows: of ``PATH_ROWS``.
    """
    usual = _whole_path(space, *common[0]) if common else UNKNOWN_PATH
    found = Counter(usual if path is None else _whole_path(space, slot, path, seal) for slot, path, seal in rows)
    return dict(found.most_common())


def _put_path(database: sqlite3.Connection, slot: int, space: str, path: str) -> None:
    row = (slot, space, path, path_seal(slot, space, path))
    database.execute("insert or replace into computed (slot, space, path, seal) values (?, ?, ?, ?)", row)


def _whole_path(space: str, slot: Any, path: Any, seal: Any) -> str:
    return path if isinstance(path, str) and seal == path_seal(slot, space, path) else UNKNOWN_PATH
