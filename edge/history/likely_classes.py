"""The most likely classes of each stored photo: a column that a classifier derives from the photo's feature.

It lies in two tables of its own, which a profile has once a bundle wants them, and belongs to the photo's row in
``feature``: triggers delete it with that row, whoever deletes or overwrites the row, Refocus 0.1 included. It is a
cache: what is missing, damaged or of another classifier is computed again from the feature; a recovery leaves it out.

Functions that take a database are a part of the caller's transaction.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from refocus.edge.history.schema import first_row

MOST = 256  # classes of one photo: 2 KB
MOST_CREDIT = 2.5
# Four columns each: a recovery, that of Refocus 0.1 included, takes rows of 3, 5, 6 or 8 columns for others.
LIKELY_TABLES = (
    "create table classifier (space text primary key, identity text not null, labels text not null,"
    " seal blob not null)",
    "create table likely (slot integer primary key, classifier text not null, seal blob not null, value blob not null)",
    "create trigger likely_erased after delete on feature begin delete from likely where slot = old.slot; end",
    "create trigger likely_evicted after update on feature begin delete from likely where slot = old.slot; end",
)
THERE = "select exists(select 1 from sqlite_master where name = 'likely')"
CLASSIFIER = "select identity, labels, seal from classifier where space = ?"
_OF_SPACE = "slot in (select slot from feature where space = ?)"


@dataclass(frozen=True)
class Classifier:
    """The classifier that computed the likely classes of a feature space.

    Attributes:
        identity: hash of everything that determines them: program, personal inputs, labels, settings.
        labels: C class names; a class is an index into them.
    """

    identity: str
    labels: tuple[str, ...]

    @cached_property
    def text(self) -> str:
        """The labels as they are stored."""
        return json.dumps(self.labels, ensure_ascii=False)


class LikelyClasses(NamedTuple):
    """Of one photo: its k most likely classes, most likely first.

    Attributes:
        classes: (k,) int32.
        probabilities: (k,) float32, calibrated; what they lack to 1 is the other classes'.
        credit: log likelihood ratio of "the photo shows the first class" to "none of the labels", by its score.
    """

    classes: np.ndarray
    probabilities: np.ndarray
    credit: float = 0.0

    @property
    def value(self) -> bytes:
        """Return the stored form of a row.

        It has k little-endian uint32 class indices and then k + 1 little-endian float32.
        """
        numbers = np.append(self.probabilities, self.credit)
        return self.classes.astype("<u4").tobytes() + numbers.astype("<f4").tobytes()


def size_of(count: int) -> int:
    """Return the size of a stored row of that many classes, in bytes."""
    return 8 * count + 4


class LikelyColumn(NamedTuple):
    """The likely classes of n photos of one space, oldest first.

    Attributes:
        photos: their identities.
        classes: (n, k) class numbers.
        probabilities: (n, k).
        credits: (n,).
        stored: identities of all photos that are stored, those without likely classes of this classifier too.
    """

    photos: tuple[str, ...]
    classes: np.ndarray
    probabilities: np.ndarray
    credits: np.ndarray
    stored: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Those without, oldest first."""
        known = set(self.photos)
        return tuple(photo for photo in self.stored if photo not in known)


def likely_seal(classifier: str, space: str, sequence: int, photo: str, value: bytes) -> bytes:
    """CRC-32 of a row of ``likely`` and of its photo's identity, so a row moved to another photo does not match."""
    return zlib.crc32(value, zlib.crc32(f"likely\0{classifier}\0{space}\0{sequence}\0{photo}".encode())).to_bytes(
        4, "big"
    )


def classifier_seal(space: str, identity: str, labels: str) -> bytes:
    """CRC-32 of a row of ``classifier``."""
    return zlib.crc32(f"classifier\0{space}\0{identity}\0{labels}".encode()).to_bytes(4, "big")


def claim(database: sqlite3.Connection, space: str, by: Classifier) -> None:
    """Notes the classifier of a space; what another one derived there is deleted."""
    query = "select identity from classifier where space = ?"
    found = first_row(database, query, space, THERE, LIKELY_TABLES)
    if found != (by.identity,):
        database.execute(f"delete from likely where classifier <> ? and {_OF_SPACE}", (by.identity, space))  # noqa: S608
        row = (space, by.identity, by.text, classifier_seal(space, by.identity, by.text))
        database.execute("insert or replace into classifier (space, identity, labels, seal) values (?, ?, ?, ?)", row)


def put(database: sqlite3.Connection, space: str, by: Classifier, found: Mapping[str, LikelyClasses]) -> None:
    """Stores likely classes by photo, in the place of earlier ones; those of photos that are gone are left out."""
    claim(database, space, by)
    for photo, likely in found.items():
        _put(database, space, by.identity, photo, likely.value)


def put_value(database: sqlite3.Connection, space: str, classifier: str, photo: str, value: bytes) -> None:
    """Stores the likely classes of a photo as bytes, if they are of the classifier that the space has now."""
    if claimed(database, space) == classifier:
        _put(database, space, classifier, photo, value)


def claimed(database: sqlite3.Connection, space: str) -> str:
    """Identity of the classifier of a space; "" where there is none."""
    if not database.execute(THERE).fetchone()[0]:
        return ""
    found = database.execute("select identity from classifier where space = ?", (space,)).fetchone()
    return found[0] if found else ""


def _put(database: sqlite3.Connection, space: str, classifier: str, photo: str, value: bytes) -> None:
    query = "select slot, sequence from feature where space = ? and photo = ?"
    for slot, sequence in database.execute(query, (space, photo)).fetchall():
        seal = likely_seal(classifier, space, sequence, photo, value)
        database.execute(
            "insert or replace into likely (slot, classifier, seal, value) values (?, ?, ?, ?)",
            (slot, classifier, seal, value),
        )


def forget(database: sqlite3.Connection, space: str | None) -> None:
    """Deletes the likely classes of a space, None: of all, and the notes of their classifiers."""
    if not database.execute(THERE).fetchone()[0]:
        return
    if space is None:
        database.execute("delete from likely")
        database.execute("delete from classifier")
    else:
        database.execute(f"delete from likely where {_OF_SPACE}", (space,))  # noqa: S608
        database.execute("delete from classifier where space = ?", (space,))


# Places and photos of a space in order, each with what is stored of its likely classes.
COLUMN = (
    "select sequence, photo, likely.classifier, likely.seal, likely.value from feature indexed by newest"
    " left join likely on likely.slot = feature.slot where space = ? and sequence < coalesce("
    "(select sequence from feature where space = ? and photo = ?), ?) order by sequence"
)
PHOTOS = COLUMN.replace("likely.classifier, likely.seal, likely.value", "null, null, null").replace(
    "left join likely on likely.slot = feature.slot ", ""
)  # of a file without the tables


def classifier_of(space: str, rows: Sequence[Sequence[Any]]) -> Classifier | None:
    """The classifier that the row of ``CLASSIFIER`` holds; None: there is none, or it is damaged."""
    for identity, labels, seal in rows:
        if seal == classifier_seal(space, identity, labels):
            return Classifier(identity, tuple(json.loads(labels)))
    return None


def column(space: str, by: Classifier, count: int, rows: Sequence[Sequence[Any]]) -> LikelyColumn:
    """What rows of ``COLUMN`` hold of one classifier, ``count`` classes of each photo; other rows count as missing."""
    sealed = [row for row in rows if _is_sealed(space, by, size_of(count), *row)]
    numbers = np.frombuffer(b"".join(row[4] for row in sealed), "<u4").reshape(len(sealed), 2 * count + 1)
    classes, floats = numbers[:, :count], numbers[:, count:].view("<f4")
    sound = (classes < len(by.labels)).all(axis=1) & np.isfinite(floats).all(axis=1)
    sound &= np.abs(floats[:, count]) <= MOST_CREDIT
    photos = tuple(row[1] for row, whole in zip(sealed, sound.tolist(), strict=True) if whole)
    floats = floats[sound]
    return LikelyColumn(photos, classes[sound], floats[:, :count], floats[:, count], tuple(row[1] for row in rows))


def by_label(space: str, by: Classifier, rows: Sequence[Sequence[Any]]) -> dict[str, list[tuple[str, float]]]:
    """The likely classes that rows of ``COLUMN`` hold, by photo, with their names."""
    counts = {len(row[4]) // 8 for row in rows if isinstance(row[4], bytes) and len(row[4]) <= size_of(MOST)}
    found = {}
    for part in (column(space, by, count, rows) for count in counts if count):
        for photo, classes, probabilities in zip(*part[:3], strict=True):
            names = (by.labels[number] for number in classes)
            found[photo] = list(zip(names, probabilities.tolist(), strict=True))
    return found


def _is_sealed(
    space: str, by: Classifier, size: int, sequence: int, photo: str, classifier: Any, seal: Any, value: Any
) -> bool:
    """Whether a row of ``COLUMN`` is as this classifier's row of that many bytes was written."""
    whole = classifier == by.identity and isinstance(value, bytes) and len(value) == size
    return whole and seal == likely_seal(by.identity, space, sequence, photo, value)
