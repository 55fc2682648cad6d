"""Rows of a profile as they are read: what is known of photos, with and without their features."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from refocus.edge.history import schema

Row = tuple[Any, ...]  # slot, sequence, photo, stored, name, seal, value


@dataclass(frozen=True)
class HistorySlice:
    """Photos of the past, oldest first.

    Attributes:
        features: (n, D) float32.
        photos: identities of the n photos (SHA-256 of their bytes).
        names: what the n photos were called when they were stored; "" where nobody said.
    """

    features: np.ndarray
    photos: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """What is stored about one photo in one feature space, without the feature.

    Attributes:
        photo: identity of the photo (SHA-256 of its bytes).
        name: what it was called when it was stored; "" where nobody said.
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
    """What is stored of one feature space: how many photos, bytes of their features, D."""

    count: int
    size: int
    width: int


def is_whole(space: str, row: Row) -> bool:
    """Whether a row that was found in a space is as it was written there."""
    return schema.is_whole(space, *row[1:])


def remembered(rows: Sequence[Row], width: int) -> HistorySlice:
    """The photos of whole rows of D = ``width``."""
    features = np.frombuffer(b"".join(row[6] for row in rows), dtype="<f4").reshape(-1, width)
    return HistorySlice(features, tuple(row[2] for row in rows), tuple(row[4] for row in rows))


def delete(database: sqlite3.Connection, slots: Sequence[int]) -> None:
    """Deletes rows, inside the caller's transaction."""
    database.executemany("delete from feature where slot = ?", [(slot,) for slot in slots])
    schema.recount(database)
