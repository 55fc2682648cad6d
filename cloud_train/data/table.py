"""One table of photos: what was photographed, by whom, where, and which part of the study it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from refocus.cloud_train.data import partitions
from refocus.cloud_train.errors import DataError

SPLITS = ("train", "validation", "gate", "test")
_ALSO = {"training": "train", "val": "validation", "valid": "validation", "dev": "validation"}  # as others call them
TEXT = ("client", "domain", "parent", "split")
COLUMNS = ("photo", "label", *TEXT)


@dataclass(frozen=True)
class PhotoTable:
    """Photos in columns; row i of every column belongs to the same photo.

    Notation: R rows, C classes.

    Attributes:
        photo: (R,) names that ``read`` understands (a path below the data folder, or a recipe to draw).
        label: (R,) int64 class indices below C; or, of photos with several labels each, (R, C) uint8: 1 for every
            label that the photo has, 0 for every other one.
        client: (R,) the person who took the photo.
        domain: (R,) the kind of picture ("photo", "sketch", a script); "" where it is not known.
        split: (R,) one of ``SPLITS``, or "" before clients were split.
        classes: C class names, in the order of the label indices.
        read: returns the encoded bytes of one photo by its name.
        parent: (R,) the super-category of what is on the photo ("dog", "fruit"); "" where it is not known.
        stamp: returns what changes when the photo behind a name changes (size and time, or a checksum).
    """

    photo: np.ndarray
    label: np.ndarray
    client: np.ndarray
    domain: np.ndarray
    split: np.ndarray
    classes: tuple[str, ...]
    read: Callable[[str], bytes]
    stamp: Callable[[str], str] = str
    parent: np.ndarray = field(default_factory=lambda: np.array([], dtype="<U1"))

    def __post_init__(self) -> None:
        rows = len(self.photo)
        if not len(self.parent):
            object.__setattr__(self, "parent", np.full(rows, "", dtype="<U1"))
        for name in COLUMNS[1:]:
            if len(getattr(self, name)) != rows:
                raise DataError(f"column '{name}' has {len(getattr(self, name))} rows, 'photo' has {rows}")
        if self.several:
            if self.label.shape[1] != len(self.classes) or (rows and int(self.label.max()) > 1):
                raise DataError(
                    f"labels of shape {self.label.shape}: expected 0 or 1 for each of {len(self.classes)} classes"
                )
        elif rows and not (int(self.label.min()) >= 0 and int(self.label.max()) < len(self.classes)):
            raise DataError(f"labels must lie in [0, {len(self.classes)}), found up to {int(self.label.max())}")

    @classmethod
    def of(
        cls,
        photo: Sequence[str] | np.ndarray,
        labels: Sequence[str] | Sequence[int] | np.ndarray,
        read: Callable[[str], bytes],
        classes: tuple[str, ...] = (),
        **columns: Any,
    ) -> PhotoTable:
        """A table of lists; a column that is not given is empty.

        Args:
            labels: (R,) names of classes, which are sorted; or their indices where ``classes`` are given; or (R, C)
                uint8 of 0 and 1, of ``classes``.
        """
        index: np.ndarray = np.asarray(labels)
        if not classes:
            names, index = np.unique(index, return_inverse=True)
            classes = tuple(str(name) for name in names)
        text: dict[str, Any] = {name: np.asarray(columns.pop(name, [""] * len(photo))) for name in TEXT}
        text["split"] = text["split"].astype("<U10")
        kind = np.uint8 if index.ndim == 2 else np.int64
        return cls(np.asarray(photo), index.astype(kind), **text, classes=classes, read=read, **columns)

    def __len__(self) -> int:
        return len(self.photo)

    @property
    def several(self) -> bool:
        """Whether a photo may have several labels, or none."""
        return self.label.ndim == 2

    def names(self, row: int) -> tuple[str, ...]:
        """The labels of one photo; one where a photo has one."""
        found = np.flatnonzero(self.label[row]) if self.several else [self.label[row]]
        return tuple(self.classes[int(number)] for number in found)

    def rows(self, chosen: np.ndarray) -> PhotoTable:
        """The table of the chosen rows: a boolean mask (R,) or row indices, in the given order."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in COLUMNS})

    def of_split(self, split: str) -> PhotoTable:
        return self.rows(self.split == split)

    def with_clients(self, client: np.ndarray) -> PhotoTable:
        """The same photos handed to other clients; a photo whose client is "" belongs to nobody and is dropped."""
        return replace(self, client=client, split=np.full(len(self), "", dtype="<U10")).rows(client != "")

    def mixed(self, heterogeneity: float, seed: int) -> PhotoTable:
        """The same photos with only that share of the clients left as they are (:func:`partitions.mixed`)."""
        order, client = partitions.mixed(self.client, heterogeneity, seed)
        return replace(self.rows(order), client=client)

    def clients(self) -> Iterator[tuple[str, np.ndarray]]:
        """Each client with the indices of their rows, clients sorted by name, rows in table order; none of no rows."""
        if not len(self):
            return
        order = np.argsort(self.client, kind="stable")
        names, starts = np.unique(self.client[order], return_index=True)
        for name, rows in zip(names, np.split(order, starts[1:]), strict=True):
            yield str(name), rows

    @property
    def group(self) -> np.ndarray:
        """(R,) the parent category of each photo where any is known, otherwise its domain."""
        return self.parent if (self.parent != "").any() else self.domain

    def home(self, rows: np.ndarray) -> str:
        """The group that most of these photos are of: a writer's script, a client's parent category."""
        names, counts = np.unique(self.group[rows], return_counts=True)
        return str(names[counts.argmax()])

    def fingerprint(self) -> str:
        """SHA-256 over every column: two studies with the same fingerprint used the same photos in the same roles.

        Of domain and parent, a column without any value counts as absent: results of before there were two still match.
        """
        digest = hashlib.sha256()
        both = (self.parent != "").any() and (self.domain != "").any()
        for column in (self.photo, self.client, self.group, self.split, *([self.domain] if both else [])):
            digest.update("\0".join(column.tolist()).encode() + b"\1")
        digest.update(self.label.astype("<i8").tobytes() + "\0".join(self.classes).encode())
        return digest.hexdigest()


def foreigners_of(homes: Sequence[str], person: int) -> list[int]:
    """Numbers of all people of another home, or of all others where all have one; each person's begin with another."""
    strangers = [other for other, home in enumerate(homes) if home != homes[person]]
    strangers = strangers or [other for other in range(len(homes)) if other != person]
    first = person % max(1, len(strangers))
    return strangers[first:] + strangers[:first]


def split_named(word: str) -> str:
    """The split that a word names, in any case, also as other data sets call it; "" where it names none."""
    word = word.strip().lower()
    word = _ALSO.get(word, word)
    return word if word in SPLITS else ""


def split_clients(table: PhotoTable, shares: dict[str, float], seed: int) -> PhotoTable:
    """Puts every client whole into one split, at random, in the given shares (ICIIA section 4.1: splits by users).

    Args:
        table: any table; its present split column is replaced.
        shares: share of the clients per split name; they must add up to 1.
        seed: the same seed gives the same split.

    Raises:
        DataError: the shares are not a partition, or there are fewer clients than splits.
    """
    if set(shares) - set(SPLITS) or abs(sum(shares.values()) - 1) > 1e-9 or min(shares.values()) <= 0:
        raise DataError(f"shares {shares} must be positive, add up to 1 and name only {SPLITS}")
    names = np.unique(table.client)
    if len(names) < len(shares):
        raise DataError(f"{len(names)} clients cannot be split into {len(shares)} groups: provide at least one each")
    np.random.default_rng(seed).shuffle(names)
    ends = np.cumsum(_sizes(list(shares.values()), len(names)))
    split_of = {str(n): s for s, part in zip(shares, np.split(names, ends[:-1]), strict=True) for n in part}
    table = replace(table, split=np.array([split_of[str(c)] for c in table.client], dtype="<U10"))
    assert_clients_never_meet(table)
    return table


def _sizes(shares: list[float], count: int) -> list[int]:
    """Whole numbers near shares * count, at least 1 each, that add up to count; count >= len(shares)."""
    sizes = [max(1, round(share * count)) for share in shares]
    while sum(sizes) != count:
        step = 1 if sum(sizes) < count else -1
        sizes[int(np.argmax(sizes))] += step  # the largest group notices one client least
    return sizes


def assert_clients_never_meet(table: PhotoTable) -> None:
    """Raises DataError if one person's photos, or one photo, stand in two splits: the leak that flatters results."""
    for column, what in ((table.client, "client"), (table.photo, "photo")):
        pairs = np.unique(np.stack([column.astype(object).astype(str), table.split.astype(str)]), axis=1)
        names, counts = np.unique(pairs[0], return_counts=True)
        if (counts > 1).any():
            raise DataError(f"{what} '{names[counts > 1][0]}' is in more than one split; splits must be disjoint")


def copies_across_splits(table: PhotoTable) -> list[tuple[str, str]]:
    """Photos that stand in two splits, byte for byte, under two names: one of training people first, and its copy.

    Only photos whose stamps begin alike, with a size or a checksum, are read.
    """
    if table.stamp is str:  # drawn by their names
        return []
    alike: dict[str, list[int]] = {}
    for row, name in enumerate(table.photo.tolist()):
        alike.setdefault(table.stamp(name).partition(" ")[0], []).append(row)
    found, order = [], ("", *SPLITS)
    for rows in alike.values():
        if len(set(table.split[rows].tolist())) < 2:
            continue
        first: dict[bytes, int] = {}
        for row in sorted(rows, key=lambda row: order.index(str(table.split[row]))):
            one = first.setdefault(hashlib.sha256(table.read(table.photo[row])).digest(), row)
            if table.split[one] != table.split[row]:
                found.append((str(table.photo[one]), str(table.photo[row])))
    return found
