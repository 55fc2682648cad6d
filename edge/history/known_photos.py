"""What one process knows of a space of a profile while nobody else writes to it: enough to store photos without SQLite.

Which photos are stored answers whether one is there; how many, and which are the oldest, what the next one evicts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from refocus.edge.history import likely_classes
from refocus.edge.history.eviction import Bounds, oldest
from refocus.edge.history.journal import MOST_RECORDS

MOST_KNOWN = 1 << 16  # photos of a space: some 10 MB
Read = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]


@dataclass
class KnownPhotos:
    """The photos of one space, as of one version of the profile.

    Attributes:
        version: of the profile.
        photos: identities of all photos of the space.
        total: bytes of the features of all spaces.
        eldest: identity and bytes of the photos that go next, oldest first; those that are known.
        classifier: identity of the one whose likely classes the space has; "" where it has none.
    """

    space: str
    version: int
    photos: set[str] = field(default_factory=set)
    total: int = 0
    eldest: deque[tuple[str, int]] = field(default_factory=deque)
    classifier: str = ""

    def refresh(self, read: Read, bounds: Bounds) -> bool:
        """Reads all but the identities anew; False: they are not those of the file."""
        self.total = int(read("select total(bytes) from tally", ())[0][0])
        self.eldest.clear()
        if len(self.photos) + MOST_RECORDS > bounds.capacity:
            query = (
                "select photo, length(value) from feature indexed by newest where space = ? order by sequence limit ?"
            )
            self.eldest.extend((photo, size) for photo, size in read(query, (self.space, MOST_RECORDS)))
        self.classifier = ""
        if read(likely_classes.THERE, ())[0][0]:
            found = likely_classes.classifier_of(self.space, read(likely_classes.CLASSIFIER, (self.space,)))
            self.classifier = found.identity if found is not None else ""
        counted = read("select total(count) from tally where space = ?", (self.space,))
        return int(counted[0][0]) == len(self.photos)

    def evicted_for(self, size: int, bounds: Bounds) -> tuple[str, ...] | None:
        """Identities of the photos that one more of so many bytes evicts; None: only SQLite can tell."""
        if len(self.photos) < bounds.capacity and self.total + size <= bounds.max_bytes:
            return ()
        if len(self.photos) == bounds.capacity and bounds.victim is oldest and self.eldest:
            photo, freed = self.eldest[0]
            if self.total - freed + size <= bounds.max_bytes:
                return (photo,)
        return None

    def stored(self, photo: str, size: int, evicted: Sequence[str]) -> None:
        """A photo was stored in the journal, and others are evicted for it, the oldest first."""
        for gone in evicted:
            self.photos.discard(gone)
            self.total -= self.eldest.popleft()[1]
        self.photos.add(photo)
        self.total += size
        self.version += 1


def load(space: str, version: int, read: Read, bounds: Bounds) -> KnownPhotos | None:
    """What the file holds of a space; None where that is too much to be kept in memory."""
    known = KnownPhotos(space, version)
    counted = int(read("select total(count) from tally where space = ?", (space,))[0][0])
    if counted > MOST_KNOWN:
        return None
    known.photos.update(photo for (photo,) in read("select photo from feature where space = ?", (space,)))
    return known if known.refresh(read, bounds) else None
