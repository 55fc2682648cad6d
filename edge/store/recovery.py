"""A damaged profile: its readable rows go into a fresh file, the damaged one is set aside and never deleted.

Recovery reads the file's pages itself, because SQLite gives up where the header or an inner page is lost. A row counts
if its checksum holds; the write-ahead log beside the file is read too, as far as it was committed.

The steps are ordered so that a kill at any moment leaves something to go on from, by itself, at the next start:

1. ``NAME.salvaging``: the fresh file while it grows. A kill leaves the profile as it was, and this to be made anew.
2. ``NAME.salvaged``: the same, complete and synced. From here on it is the profile.
3. ``NAME.damaged-N``: the damaged file, after its log ``NAME.damaged-N-wal``.
4. ``NAME``: the fresh file takes its place.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.store.pages import table_rows
from edge.store.schema import INSERT, PAGE, TWO_COLUMNS, create, feature_seal, pair_seal, recount


@dataclass(frozen=True)
class Recovery:
    """What became of a damaged profile.

    Attributes:
        features, labels, settings: rows that were readable and are in use again.
        aside: where the damaged file is now.
        reason: what was found, in SQLite's words.
    """

    features: int
    labels: int
    settings: int
    aside: Path
    reason: str

    def __str__(self) -> str:
        return (
            f"the file was damaged ({self.reason}); {self.features} features, {self.labels} labels and {self.settings}"
            f" settings were kept; the old file is {self.aside}"
        )


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the error says that the file itself is broken, rather than the disk full or the query wrong."""
    return isinstance(error, sqlite3.DatabaseError) and any(
        words in str(error) for words in ("malformed", "not a database")
    )  # Python 3.10 gives no error code


def beside(path: Path, ending: str) -> Path:
    """The side file NAME + ending."""
    return path.with_name(path.name + ending)


def set_aside_files(path: Path) -> list[Path]:
    """The damaged files, and their logs, that recoveries of this profile left."""
    return sorted(file for file in path.parent.iterdir() if file.name.startswith(path.name + ".damaged-"))


def recover(path: Path, reason: str) -> Recovery:
    """Salvages what is readable and sets the damaged file aside. The caller holds the profile's lock.

    Raises:
        OSError, sqlite3.Error: no room for the fresh file; the damaged one is where it was.
    """
    growing = beside(path, ".salvaging")
    for ending in (".salvaging", ".salvaging-journal"):
        beside(path, ending).unlink(missing_ok=True)
    os.close(os.open(growing, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        kept = _salvage(path, growing)
    except BaseException:
        growing.unlink(missing_ok=True)
        raise
    growing.rename(beside(path, ".salvaged"))
    return Recovery(*kept, aside=finish(path), reason=reason)


def finish(path: Path) -> Path:
    """Steps 3 and 4, from wherever a kill left them; returns where the damaged file is. The caller holds the lock."""
    number = 1
    while beside(path, f".damaged-{number}").exists():
        number += 1
    # The log goes first: while the file itself has not moved, the number stays the same after a kill.
    for ending, aside in (("-wal", f".damaged-{number}-wal"), ("", f".damaged-{number}")):
        with contextlib.suppress(FileNotFoundError):
            beside(path, ending).chmod(0o600)
            beside(path, ending).rename(beside(path, aside))
    beside(path, "-shm").unlink(missing_ok=True)
    beside(path, ".salvaged").rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return beside(path, f".damaged-{number}")


def _salvage(damaged: Path, fresh: Path) -> tuple[int, int, int]:
    """Writes the readable rows into a fresh file; (features, labels, settings)."""
    database = sqlite3.connect(fresh, isolation_level=None)
    try:
        for pragma in (f"page_size={PAGE}", "secure_delete=on", "journal_mode=delete", "synchronous=full"):
            database.execute(f"pragma {pragma}")
        database.execute("begin immediate")
        create(database)
        for table, row in readable_rows(damaged):
            if table == "feature":
                _keep_feature(database, row)
            else:
                database.execute(TWO_COLUMNS[table], row)
        recount(database)
        counts = [database.execute(f"select count(*) from {table}").fetchone()[0]  # noqa: S608
                  for table in ("feature", "label", "setting")]  # fmt: skip
        database.execute("commit")
    finally:
        database.close()
    return counts[0], counts[1], counts[2]


def _keep_feature(database: sqlite3.Connection, row: tuple[Any, ...]) -> None:
    """Of two rows of one photo, or of one place in the order, the first found stays."""
    with contextlib.suppress(sqlite3.IntegrityError):
        database.execute(INSERT, row)


def readable_rows(path: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every row of the file and its log whose checksum holds: its table and its columns."""
    for number, values in table_rows(path):
        try:
            row = _sealed(number, values)
        except (TypeError, AttributeError, UnicodeError):  # a row of another kind, or garbage
            continue
        if row is not None:
            yield row


def _sealed(number: int, values: list[Any]) -> tuple[str, tuple[Any, ...]] | None:
    """Which table a row is of, and its columns, if its checksum holds; the checksum tells labels from settings."""
    if len(values) == 8:
        _, space, sequence, photo, stored, name, seal, value = values
        if seal == feature_seal(space, sequence, photo, stored, name, value):
            return "feature", tuple(values[1:])
    elif len(values) == 3:
        for table in TWO_COLUMNS:
            if values[2] == pair_seal(table, values[0], values[1]):
                return table, tuple(values)
    elif len(values) in (5, 6):  # schema 1 or 2: sequence (as the row's number), space, photo, crc, value, name
        _, space, photo, crc, value = values[:5]
        name = values[5] if len(values) == 6 else ""
        if zlib.crc32(value) == crc:
            return "feature", (space, number, photo, 0, name, feature_seal(space, number, photo, 0, name, value), value)
    return None
