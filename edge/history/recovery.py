"""A damaged profile: its readable rows go into a fresh file, the damaged one is set aside and never deleted.

Recovery reads the file's pages itself, because SQLite gives up where the header or an inner page is lost. A row counts
if its checksum holds; the write-ahead log beside the file is read too, as far as it was committed.

The steps are ordered so that a kill at any moment leaves something to go on from, by itself, at the next start:

1. ``NAME.salvaging``: the fresh file while it grows. A kill leaves the profile as it was, and this to be made again.
2. ``NAME.salvaged``: the same, complete and synced. From here on it is the profile.
3. ``.NAME.damaged-N``: the damaged file, after its log ``.NAME.damaged-N-wal``. No profile's name begins with a dot.
4. ``NAME``: the fresh file takes its place.

A new profile is made in the same way, so a file that is empty, or lacks its tables, is always a damaged one.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from refocus.edge.errors import HistoryError
from refocus.edge.files import sync_folder
from refocus.edge.history import witness
from refocus.edge.history.schema import (
    INSERT,
    PAGE,
    SCHEMA,
    TWO_COLUMNS,
    create,
    feature_seal,
    is_finite,
    is_whole,
    is_whole_pair,
    recount,
)
from refocus.edge.history.sqlite_pages import table_rows
from refocus.edge.history.witness import NOTHING, Counts, Held


@dataclass(frozen=True)
class Recovery:
    """What became of a damaged profile.

    Attributes:
        features, labels, settings: rows that were readable and are in use again.
        aside: where the damaged file is now; None if there was none to set aside.
        reason: what was found, in SQLite's words.
        lost: rows that were there and are not any more.
        exact: False if ``lost`` is what could be counted, and there may have been more.
    """

    features: int
    labels: int
    settings: int
    aside: Path | None
    reason: str
    lost: Counts = NOTHING
    exact: bool = True

    def __str__(self) -> str:
        lost = f"{self.lost.features} features, {self.lost.labels} labels and {self.lost.settings} settings were lost"
        file = f"; the old file is {self.aside}" if self.aside is not None else ""
        return (
            f"the file was damaged ({self.reason}); {self.features} features, {self.labels} labels and {self.settings}"
            f" settings were kept; {'' if self.exact else 'at least '}{lost}{file}"
        )

    def after(self, earlier: Recovery | None) -> Recovery:
        """This recovery with the losses of an earlier one of the same profile."""
        if earlier is None:
            return self
        lost = Counts(*(now + before for now, before in zip(self.lost, earlier.lost, strict=True)))
        return replace(self, lost=lost, exact=self.exact and earlier.exact)


def beside(path: Path, ending: str) -> Path:
    """The side file NAME + ending."""
    return path.with_name(path.name + ending)


def set_aside_files(path: Path) -> list[Path]:
    """The damaged files, and their logs, that recoveries of this profile left, those of release 0.1.0 included."""
    ours = re.compile(rf"(\.?){re.escape(path.name)}\.damaged-[0-9]+(-wal)?")
    found = ((file, ours.fullmatch(file.name)) for file in path.parent.iterdir())
    # Release 0.1.0 put no dot in front; a profile that somebody gave such a name has a lock file.
    return sorted(file for file, named in found if named and (named[1] or not beside(file, ".lock").exists()))


def make(path: Path) -> None:
    """Makes an empty profile, whole or not at all. The caller holds the profile's lock."""
    with _growing(path) as growing:
        _build(growing, iter(()))
        growing.rename(path)
    sync_folder(path.parent)


def recover(path: Path, reason: str, held: Held | None) -> Recovery:
    """Salvages what is readable and sets the damaged file aside. The caller holds the profile's lock.

    Args:
        reason: what was found.
        held: what the profile held before, if that is known.

    Raises:
        HistoryError: a newer Refocus wrote the file.
        OSError, sqlite3.Error: no room for the fresh file; the damaged one is where it was.
    """
    broken: Counter[str] = Counter()
    with _growing(path) as growing:
        kept = _build(growing, readable_rows(path, broken))
        growing.rename(beside(path, ".salvaged"))
    lost, exact = _lost(held, kept, broken)
    return Recovery(*kept.counts, finish(path), reason, lost, exact)


def _lost(held: Held | None, kept: Held, broken: Counter[str]) -> tuple[Counts, bool]:
    """Rows that were lost, and whether their number is known."""
    if held is not None and held.sure:
        gone = [max(before - now, 0) for before, now in zip(held.counts, kept.counts, strict=True)]
        if not gone[0]:  # as many as before, but perhaps older ones
            gone[0] = max(0, min(held.newest - kept.newest, held.counts.features))
        return Counts(*gone), True
    counted = max(broken["feature"], broken["tally"] - kept.counts.features)
    return Counts(counted, broken["pair"], 0), False


@contextlib.contextmanager
def _growing(path: Path) -> Iterator[Path]:
    """A place for a fresh file, which is gone afterwards unless it was renamed."""
    growing = beside(path, ".salvaging")
    growing.unlink(missing_ok=True)
    os.close(os.open(growing, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield growing
    except BaseException:
        growing.unlink(missing_ok=True)
        raise


def finish(path: Path) -> Path | None:
    """Steps 3 and 4, from wherever a kill left them; returns where the damaged file is. The caller holds the lock."""
    number = 1
    while _aside(path, number).exists() or beside(path, f".damaged-{number}").exists():
        number += 1
    aside = None
    # The log goes first: while the file itself has not moved, the number stays the same after a kill.
    for ending in ("-wal", ""):
        with contextlib.suppress(FileNotFoundError):
            beside(path, ending).chmod(0o600)
            aside = beside(path, ending).rename(beside(_aside(path, number), ending))
    beside(path, "-shm").unlink(missing_ok=True)
    beside(path, ".salvaged").rename(path)
    sync_folder(path.parent)
    return aside


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f".{path.name}.damaged-{number}")


def overwrite(file: Path) -> None:
    """Fills a file with zeros in place, which needs no room, and deletes it."""
    with contextlib.suppress(FileNotFoundError):
        with file.open("r+b") as opened:
            left = file.stat().st_size
            while left > 0:
                left -= opened.write(bytes(min(left, 1 << 20)))
            opened.flush()
            os.fsync(opened.fileno())
        file.unlink()


def _build(fresh: Path, rows: Iterator[tuple[str, tuple[Any, ...]]]) -> Held:
    """Writes rows into a fresh file; what it holds then."""
    database = sqlite3.connect(fresh, isolation_level=None)
    try:
        for pragma in (f"page_size={PAGE}", "secure_delete=on", "journal_mode=memory", "synchronous=off"):
            database.execute(f"pragma {pragma}")
        database.execute("begin immediate")
        create(database)
        for table, row in rows:
            with contextlib.suppress(sqlite3.IntegrityError):  # of two rows of one photo, the first found stays
                database.execute(INSERT if table == "feature" else TWO_COLUMNS[table], row)
        recount(database)
        held = witness.count(database)
        database.execute("commit")
    finally:
        database.close()
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    return held


def readable_rows(path: Path, broken: Counter[str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every row of the file and its log whose checksum holds: its table and its columns.

    Args:
        broken: counts what looks like a row and is none, as "feature" or "pair"; and, as "tally", how many features
            the file itself counted. The tally has no checksum.

    Raises:
        HistoryError: a newer Refocus wrote the file.
    """
    for number, values in table_rows(path):
        try:
            row = _sealed(number, values)
        except (TypeError, AttributeError, UnicodeError):  # a row of another kind, or garbage
            row = None
        if row is None:
            _count_broken(values, broken)
        elif row[0] != "about":
            yield row
        elif row[1][0] == "schema" and int(row[1][1]) > SCHEMA:
            raise HistoryError(f"{path} has schema {row[1][1]}, this refocus reads 1 to {SCHEMA}; update refocus")


def _count_broken(values: list[Any], broken: Counter[str]) -> None:
    if len(values) in (5, 6, 8) and values[0] is None:  # a number of its own, as SQLite stores that of a row
        broken["feature"] += 1
    elif len(values) == 3 and isinstance(values[2], bytes):
        broken["pair"] += 1
    elif len(values) == 3 and isinstance(values[1], int) and 0 <= values[1] < 1 << 32:
        broken["tally"] += values[1]


def _sealed(number: int, values: list[Any]) -> tuple[str, tuple[Any, ...]] | None:
    """Which table a row is of, and its columns, if its checksum holds; the checksum tells labels from settings."""
    if len(values) == 8:
        return ("feature", tuple(values[1:])) if is_whole(*values[1:]) else None
    if len(values) == 3:
        found = [table for table in (*TWO_COLUMNS, "about") if is_whole_pair(table, *values)]
        return (found[0], tuple(values)) if found else None
    if len(values) in (5, 6):  # schema 1 or 2: sequence (as the row's number), space, photo, crc, value, name
        _, space, photo, crc, value = values[:5]
        name = values[5] if len(values) == 6 else ""
        if zlib.crc32(value) == crc and is_finite(value):
            return "feature", (space, number, photo, 0, name, feature_seal(space, number, photo, 0, name, value), value)
    return None
