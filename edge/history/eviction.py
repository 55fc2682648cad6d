"""Which photo a full history gives up. One more policy is one more function and its line in :data:`POLICIES`.

A policy is asked for one photo of one space, and looks only at photos that are not protected (the newest ones, which
a head's window needs). What it costs does not grow with the number of stored photos.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refocus.edge.errors import HistoryError
from refocus.edge.history.schema import NO_SEQUENCE, Tally

SAMPLE = 8  # photos that `redundant` draws from each of its two sources


# Space, how many of its newest photos may not be chosen (unless there are no others), and identity of the photo that
# needs room, a source of chance that a replay repeats -> slot of the photo to give up, bytes of its feature, identity.
Policy = Callable[[sqlite3.Connection, str, int, str], "Victim"]
Victim = tuple[int, int, str]


def _limit(database: sqlite3.Connection, space: str, protect: int) -> int:
    """The newest sequence that may go."""
    found = database.execute(
        "select sequence from feature indexed by newest where space = ? order by sequence desc limit 1 offset ?",
        (space, protect),
    ).fetchone()
    return int(found[0]) if found else NO_SEQUENCE


def _victim(row: Victim | None) -> Victim:
    if row is None:
        raise sqlite3.DatabaseError("malformed: the tally counts photos that are not there")
    return row


def oldest(database: sqlite3.Connection, space: str, protect: int, photo: str) -> Victim:
    """The photo stored first."""
    query = "select slot, length(value), photo from feature indexed by newest where space = ? order by sequence limit 1"
    return _victim(database.execute(query, (space,)).fetchone())


def reservoir(database: sqlite3.Connection, space: str, protect: int, photo: str) -> Victim:
    """The photo with the smallest identity.

    Identities are SHA-256, so those that stay are a uniform sample of all photos ever stored, and the same sample
    whatever the order: no seed and no counter to keep.
    """
    query = (
        "select slot, length(value), photo from feature indexed by photo where space = ? and sequence <= ?"
        " order by photo limit 1"
    )
    return _victim(database.execute(query, (space, _limit(database, space, protect))).fetchone())


def redundant(database: sqlite3.Connection, space: str, protect: int, photo: str) -> Victim:
    """The older one of the two most similar photos (cosine of features) in a sample, so that a memory stays diverse.

    Half of the sample are the youngest photos that may go, where the copies of a burst lie together; the other half
    comes from anywhere: the photos whose identities follow that of the new one.
    """
    head = "select slot, length(value), photo, sequence, value from feature indexed by "
    near = head + "newest where space = ? and sequence <= ? order by sequence desc limit ?"
    far = head + "photo where space = ? and photo >= ? and sequence <= ? order by photo limit ?"
    limit = _limit(database, space, protect)
    rows: list[Any] = database.execute(near, (space, limit, SAMPLE)).fetchall()
    for start in (photo, ""):  # from the new photo's identity on, then round to the first
        missing = 2 * SAMPLE - len(rows)
        rows += database.execute(far, (space, start, limit, missing)).fetchall()
    _, width, _ = _victim(rows[0][:3] if rows else None)
    sample = sorted({row[3]: row for row in rows if row[1] == width}.values(), key=lambda row: row[3])
    features = np.frombuffer(b"".join(row[4] for row in sample), dtype="<f4").reshape(len(sample), -1)
    length = np.linalg.norm(features, axis=1, keepdims=True)
    features = np.nan_to_num(features / np.maximum(length, np.finfo(np.float32).tiny))
    similarity = features @ features.T
    similarity[np.tril_indices(len(sample))] = -2  # below any cosine: each pair once, no photo with itself
    older = int(np.argmax(similarity)) // len(sample)
    slot, size, identity = sample[older][:3]
    return slot, size, identity


POLICIES: dict[str, Policy] = {"oldest": oldest, "redundant": redundant, "reservoir": reservoir}


@dataclass(frozen=True)
class Bounds:
    """How much a profile keeps, and how it chooses.

    Attributes:
        capacity: features per feature space.
        max_bytes: of features, over all spaces.
        protect: newest photos of each space that the policy may not choose; the bounds win over it.
        victim: the policy.
        paths: what computes features, by feature space; recorded beside each of them.
        capacities: of feature spaces whose model keeps more than ``capacity``.
        shrinks: whether a space that holds more than its capacity is cut to it; else it gives up one photo for each
            that is stored.
    """

    capacity: int
    max_bytes: int
    protect: int
    victim: Policy
    paths: Mapping[str, str] = field(default_factory=dict)
    capacities: Mapping[str, int] = field(default_factory=dict)
    shrinks: bool = True

    def capacity_of(self, space: str, held: int = 0) -> int:
        """Features that one space may hold, which holds some now."""
        most = max(self.capacity, self.capacities.get(space, 0))
        return most if self.shrinks else max(most, held)


def make_room(
    database: sqlite3.Connection, bounds: Bounds, tally: Tally, space: str, photo: str, size: int
) -> tuple[int | None, list[tuple[str, str]]]:
    """Evicts until one more feature of ``size`` bytes fits, and brings the tally up to date with it.

    A space at its capacity gives way itself, by one photo where the bounds do not shrink it; for the bytes of the
    profile, the space that holds most gives way.

    Args:
        tally: as it is in the database; brought up to date as well.

    Returns:
        the slot of the last evicted photo, for the new one to overwrite, None if nothing had to go; and space and
        identity of the evicted photos.
    """
    before, after = dict(tally.spaces), tally.spaces
    slot, evicted = None, []
    capacity = bounds.capacity_of(space, before.get(space, (0, 0))[0])
    while True:
        count, used = after.get(space, (0, 0))
        if count >= capacity:
            crowded = space
        elif sum(used for _, used in after.values()) + size > bounds.max_bytes:
            crowded = max(after, key=lambda name: (after[name][1], name == space))
        else:
            break
        if slot is not None:
            database.execute("delete from feature where slot = ?", (slot,))
        slot, freed, gone = bounds.victim(database, crowded, bounds.protect, photo)
        evicted.append((crowded, gone))
        after[crowded] = after[crowded][0] - 1, after[crowded][1] - freed
    after[space] = count + 1, used + size
    for name in after:
        if after[name] != before.get(name):
            database.execute("insert or replace into tally values (?, ?, ?)", (name, *after[name]))
    return slot, evicted


def policy(name: str) -> Policy:
    """The policy of that name.

    Raises:
        HistoryError: there is none.
    """
    if name not in POLICIES:
        raise HistoryError(f"eviction '{name}': expected one of {', '.join(POLICIES)}")
    return POLICIES[name]
