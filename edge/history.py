"""A person's feature history: bounded, durable, and never mixed between encoders.

One SQLite file per profile. Every write is one transaction under an exclusive file lock: several processes may share
a profile, and SQLite before 3.51.3 can damage a write-ahead log that two connections write at once. The store
promises that a feature is there after the process is killed at any moment once :meth:`FeatureHistory.append` has
returned; a power cut may take the newest appends, never the file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import cast

import numpy as np

from edge.errors import HistoryError

CAPACITY = 256  # features per profile and feature space: 1.3 MB at D = 1280
_SCHEMA = 2  # 2: the column name
_APPLICATION = 0x52664373  # marks the file as ours; SQLite keeps it in the header
_LOCK_SUFFIX = ".lock"


@dataclass(frozen=True)
class Remembered:
    """Photos of the past, oldest first.

    Attributes:
        features: (n, D) float32.
        photos: identities of the n photos (SHA-256 of their bytes).
        names: what the n photos were called when they were stored; "" where nobody said.
    """

    features: np.ndarray
    photos: tuple[str, ...]
    names: tuple[str, ...]


class FeatureHistory:
    """The features of one profile, oldest first.

    A feature belongs to the feature space that made it, and to the photo it was made of: the same photo is stored
    once. Rows carry a checksum; a damaged row is deleted when it is met, and counted in :attr:`damaged`.

    Args:
        path: the profile's file; made, readable by its owner only, if it is missing.
        capacity: features kept per feature space; the oldest go first.

    Raises:
        HistoryError: the file cannot be opened, is no history, or is of a newer schema.
    """

    def __init__(self, path: Path, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise HistoryError(f"capacity {capacity}: a history keeps at least one feature")
        self.path, self.capacity, self.damaged = path, capacity, 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path.with_name(path.name + _LOCK_SUFFIX), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise HistoryError(f"{path.parent} cannot hold a history ({error.strerror}); check its rights") from None
        try:
            with self._exclusive():
                self._db = self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> sqlite3.Connection:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite would let others read it
        database = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        try:
            self._check_ours(database)
            database.execute("pragma journal_mode=wal")
            database.execute("pragma synchronous=normal")
            database.execute("pragma secure_delete=on")
            database.execute(
                "create table if not exists feature (sequence integer primary key autoincrement, space text not null,"
                " photo text not null, crc integer not null, value blob not null, name text not null default '',"
                " unique (space, photo))"
            )
            self._upgrade(database)
            database.execute(f"pragma user_version={_SCHEMA}")
            database.execute(f"pragma application_id={_APPLICATION}")
        except BaseException:
            database.close()
            raise
        return database

    def _check_ours(self, database: sqlite3.Connection) -> None:
        """Before anything is written: a file of another program is left as it is."""
        application = database.execute("pragma application_id").fetchone()[0]
        tables = database.execute("select count(*) from sqlite_master").fetchone()[0]
        if application != _APPLICATION and (application or tables):
            raise HistoryError(f"{self.path} is a database of another program; give another --profile or --profiles")
        schema = database.execute("pragma user_version").fetchone()[0]
        if schema > _SCHEMA:
            raise HistoryError(f"{self.path} has schema {schema}, this refocus reads {_SCHEMA}; update refocus")

    @staticmethod
    def _upgrade(database: sqlite3.Connection) -> None:
        """A file of schema 1 gets what schema 2 added; nothing in it is lost."""
        columns = {row[1] for row in database.execute("pragma table_info(feature)")}
        if "name" not in columns:
            database.execute("alter table feature add column name text not null default ''")

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Holds the file lock; the kernel lets go of it when a process dies."""
        import fcntl  # POSIX only, as are the devices we serve; imported here so that the module can be read elsewhere

        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            yield
        except sqlite3.ProgrammingError:  # a bug of the caller, such as use from another thread
            raise
        except sqlite3.Error as error:
            raise HistoryError(
                f"{self.path}: {error}; what was stored before is intact, free some space or check the file's rights"
            ) from None
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def append(self, space: str, photo: str, feature: np.ndarray, name: str = "") -> None:
        """Stores one feature; survives a kill once it returns. A photo already there is left as it is.

        Args:
            space: feature space of the encoder.
            photo: identity of the photo (its SHA-256).
            feature: (D,) float32.
            name: where the photo is, for explanations; never read otherwise.
        """
        value = np.ascontiguousarray(feature, dtype="<f4").tobytes()
        row = (space, photo, zlib.crc32(value), value, name)
        with self._exclusive(), self._transaction():
            self._db.execute(
                "insert or ignore into feature (space, photo, crc, value, name) values (?, ?, ?, ?, ?)", row
            )
            self._db.execute(
                "delete from feature where space = ? and sequence <= (select sequence from feature where space = ?"
                " order by sequence desc limit 1 offset ?)",
                (space, space, self.capacity),
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("begin immediate")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("rollback")
            raise
        try:
            self._db.execute("commit")
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("rollback")
            raise

    def recent(self, space: str, count: int, width: int, before: str | None = None) -> np.ndarray:
        """The features of :meth:`recall`, (n, D)."""
        return self.recall(space, count, width, before).features

    def recall(self, space: str, count: int, width: int, before: str | None = None) -> Remembered:
        """The newest photos of one space, oldest first.

        Args:
            space: only features of this space are ever returned.
            count: at most this many.
            width: D; a row of another width is damaged.
            before: identity of a photo; if it is stored, only features older than it are returned: a photo
                recognised again meets the photos before it that are still kept, and never itself.

        Returns:
            n photos, n <= count.
        """
        while True:
            rows = self._read(space, count, before)[::-1]
            damaged = [(row[0],) for row in rows if len(row[1]) != 4 * width or zlib.crc32(row[1]) != row[2]]
            if not damaged:
                features = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f4").reshape(-1, width)
                return Remembered(features, tuple(row[3] for row in rows), tuple(row[4] for row in rows))
            # They would hide older, whole rows for ever, and keep their photos from being stored again.
            self.damaged += len(damaged)
            with self._exclusive(), self._transaction():
                self._db.executemany("delete from feature where sequence = ?", damaged)

    def _read(self, space: str, count: int, before: str | None) -> list[tuple[int, bytes, int, str, str]]:
        """(sequence, value, checksum, photo, name) of the newest rows, newest first."""
        try:
            return self._db.execute(
                "select sequence, value, crc, photo, name from feature where space = ? and sequence < coalesce("
                "(select sequence from feature where space = ? and photo = ?), 9223372036854775807)"
                " order by sequence desc limit ?",
                (space, space, before, count),
            ).fetchall()
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.Error as error:
            raise HistoryError(f"{self.path} cannot be read ({error}); move the file aside to start afresh") from None

    def count(self, space: str) -> int:
        """Features stored of one space."""
        return cast(int, self._db.execute("select count(*) from feature where space = ?", (space,)).fetchone()[0])

    def erase(self) -> None:
        """Forgets every feature of this profile, in the file too (a person's right)."""
        with self._exclusive():
            with self._transaction():
                self._db.execute("delete from feature")
            self._db.execute("vacuum")
            if self._db.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
                raise HistoryError(
                    f"{self.path}: erased, but another process still reads it, so old bytes remain in its log; close it"
                    " and erase again"
                )

    def close(self) -> None:
        if self._lock >= 0:
            with self._exclusive():
                self._db.close()
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> FeatureHistory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
