"""A count of what a profile holds, kept outside its database file.

The record lies in the first 48 bytes of the lock file (``NAME.lock``) and is renewed with every write. SQLite drops the
newest transactions of a damaged log by itself, and takes an emptied file for a new database; only a count kept
elsewhere shows that something is missing.

A write that only adds features renews the record after its commit: a kill in between leaves the record one photo
behind the file. Every other write first marks the record as unsure, so a kill never leaves a record that counts more
than was acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import zlib
from dataclasses import dataclass, replace
from typing import NamedTuple

from refocus.edge.history.schema import Tally, tally

_RECORD = struct.Struct("<4sIqqqqI")  # magic, sure, features, labels, settings, newest, digest; then their CRC-32
_MAGIC = b"RfW1"
_SIZE = _RECORD.size + 4


class Counts(NamedTuple):
    """Rows of a profile, by kind."""

    features: int = 0
    labels: int = 0
    settings: int = 0


NOTHING = Counts()


@dataclass(frozen=True)
class Held:
    """What a profile held at one moment.

    Attributes:
        counts: its rows.
        newest: the highest place (``sequence``) of any photo; 0 if there is none.
        digest: CRC-32 over the checksums of all labels and settings.
        sure: False while a write that may remove rows is on its way.
    """

    counts: Counts = NOTHING
    newest: int = 0
    digest: int = 0
    sure: bool = True


def read(lock: int) -> Held | None:
    """The record in an open lock file; None if there is none or it is damaged."""
    record = os.pread(lock, _SIZE, 0)
    if len(record) < _SIZE or record[-4:] != zlib.crc32(record[:-4]).to_bytes(4, "little"):
        return None
    magic, sure, features, labels, settings, newest, digest = _RECORD.unpack(record[:-4])
    return Held(Counts(features, labels, settings), newest, digest, bool(sure)) if magic == _MAGIC else None


def write(lock: int, held: Held, durably: bool = False) -> None:
    """Renews the record. A disk that takes no byte leaves the profile without one, which is not an error."""
    record = _RECORD.pack(_MAGIC, held.sure, *held.counts, held.newest, held.digest)
    with contextlib.suppress(OSError):
        os.pwrite(lock, record + zlib.crc32(record).to_bytes(4, "little"), 0)
        if durably:
            os.fsync(lock)


def mark_unsure(lock: int, durably: bool) -> None:
    """Marks the record as uncertain while rows are removed."""
    write(lock, replace(read(lock) or Held(), sure=False), durably)


def with_features(held: Held, tally: Tally) -> Held:
    """The record with the features of a tally."""
    features = sum(count for count, _ in tally.spaces.values())
    return Held(Counts(features, held.counts.labels, held.counts.settings), tally.newest, held.digest)


def count(database: sqlite3.Connection) -> Held:
    """What a database holds now."""
    digest, numbers = 0, []
    for table, key in (("label", "photo"), ("setting", "name")):
        seals = database.execute(f"select seal from {table} order by {key}").fetchall()  # noqa: S608
        numbers.append(len(seals))
        digest = zlib.crc32(b"".join(seal for (seal,) in seals), digest)
    return with_features(Held(Counts(0, *numbers), digest=digest), tally(database))


def missing(before: Held | None, now: Held) -> Counts:
    """Rows that the record counts and a file, which SQLite finds whole, has no more."""
    if before is None or not before.sure:
        return NOTHING
    features = 0
    if now.newest <= before.newest:  # else the file is ahead of the record, by a write that a kill interrupted
        appended = min(before.newest - now.newest, before.counts.features)
        features = max(before.counts.features - now.counts.features, appended)
    labels = max(before.counts.labels - now.counts.labels, 0)
    settings = max(before.counts.settings - now.counts.settings, 0)
    if before.digest != now.digest and not labels + settings:
        labels = 1  # at least: one is an older one again
    return Counts(features, labels, settings)
