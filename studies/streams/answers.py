"""Answers to the photos of pseudo-people, over seeds, and intervals of what they differ by.

The photos of a set are dealt to people again for each seed, so several people are judged by one photo.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refocus.cloud_train.evaluate.pairs import over_people_and_photos
from studies.streams.points import Point
from studies.streams.pseudo_people import PseudoPerson

OVER = "people and photos"  # of what intervals are; documents that do not say so: people, the photos given


def photos_of(point: Point, people: Sequence[PseudoPerson], seed: int) -> list[list[int]]:
    """The photos by which each person is judged, as numbers; seeds that draw other owners share none."""
    first = seed * len(point.cache.table) if point.owned else 0
    return [[first + row for case in person.cases for row in case.steps[-1][1].tolist()] for person in people]


@dataclass(frozen=True)
class Answers:
    """Which answers there are.

    Attributes:
        person, photo: (n,) whose photo each answer is to, people of all seeds counted through, and which.
    """

    person: np.ndarray
    photo: np.ndarray

    @classmethod
    def of(cls, photos: Sequence[Sequence[Sequence[int]]], parts: Sequence[tuple[str, int]] | None = None) -> Answers:
        """Answers in parts, of which each has people.

        Args:
            photos: of each part those of each person, see :func:`photos_of`.
            parts: of each its photo set and seed; where both are the same, as with two encoders, so are the people.
                Default: one set, a seed each.
        """
        parts = parts or [("", seed) for seed in range(len(photos))]
        people = [(*part, number) for part, of in zip(parts, photos, strict=True) for number in range(len(of))]
        counts = [len(rows) for of in photos for rows in of]
        shown = [(name, row) for (name, _), of in zip(parts, photos, strict=True) for rows in of for row in rows]
        return cls(np.repeat(_numbers(people), counts), np.array(_numbers(shown)))

    @property
    def people(self) -> int:
        return int(self.person.max()) + 1

    def right(self, parts: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """(n,) whether each answer of a method is right, 0 or 1; parts by seed."""
        return np.concatenate([np.concatenate(part["flags"]) for part in parts]).astype(float)

    def by_person(self, values: np.ndarray) -> np.ndarray:
        """(people,) means."""
        means: np.ndarray = np.bincount(self.person, values) / np.bincount(self.person)
        return means

    def interval(self, values: np.ndarray) -> dict[str, float]:
        """Mean over people, and its interval over people and photos."""
        return over_people_and_photos(values, self.person, self.photo).as_dict()


def _numbers(names: Sequence[Hashable]) -> list[int]:
    """The same number for the same name, counted from 0."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(name, len(known)) for name in names]
