"""Opening the database of a profile."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from refocus.edge.history import damage, schema, witness
from refocus.edge.history.witness import Held

POWER_CUT_LOSS = 128  # photos that a power cut may take at most, with durability "process"
_PAGES_OF_LOG = 1000  # after which it is written back, if its photos were not counted
READ_AT_OPENING = 16 << 20  # bytes: every row of a file so large is checked when it is opened
BUSY_SECONDS = 5.0  # how long SQLite waits for a program that does not know our lock


def connect(path: Path, synchronous: str) -> tuple[sqlite3.Connection, Held]:
    """An open database that was found sound, and what it holds. The caller holds the profile's lock.

    Raises:
        HistoryError: it is another program's or a newer Refocus'.
        sqlite3.Error: it is damaged, or the system does not let it be opened (``damage.is_environment``).
    """
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    try:
        return _connect(path, synchronous, "normal")
    except sqlite3.OperationalError as error:
        if not damage.is_full(error):
            raise
        # A full disk has no room for shared memory; a connection that has the file for itself needs none.
        return _connect(path, synchronous, "exclusive")


def _connect(path: Path, synchronous: str, locking_mode: str) -> tuple[sqlite3.Connection, Held]:
    database = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)
    try:
        database.execute(f"pragma locking_mode={locking_mode}")
        return database, _prepare(database, path, synchronous)
    except damage.GARBAGE as error:
        database.close()
        raise schema.Damage(f"it holds an invalid value ({error})") from None
    except BaseException:
        database.close()
        raise


def _prepare(database: sqlite3.Connection, path: Path, synchronous: str) -> Held:
    version = schema.check_ours(database, path)
    for pragma in (
        "journal_mode=wal",
        f"synchronous={synchronous}",
        "secure_delete=on",
        "temp_store=memory",  # features go to no temporary file elsewhere
        f"wal_autocheckpoint={_PAGES_OF_LOG}",
    ):
        database.execute(f"pragma {pragma}")
    if version < schema.SAME_TABLES:
        schema.upgrade(database)
    damage.inspect(database, whole=path.stat().st_size <= READ_AT_OPENING)
    _seal(database)
    return witness.count(database)


def _seal(database: sqlite3.Connection) -> None:
    """Gives a file of release 0.1.0 its sealed schema number, as soon as there is room for it."""
    if schema.is_sealed(database):
        return
    try:
        schema.commit(database, schema.seal_schema)
    except sqlite3.Error as error:
        if not damage.is_environment(error):
            raise
