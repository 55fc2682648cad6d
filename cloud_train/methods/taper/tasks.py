"""Tasks: the few classes that somebody asks for, and how they are drawn for training and evaluation (TAPER section 4).

Every sampler makes a task around one class, so that a task can be drawn for any photo: its own class is in it.

Notation: C classes, k ways.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.errors import UsageError


@dataclass(frozen=True)
class Task:
    """A task: some classes, and perhaps a domain of pictures.

    Attributes:
        classes: class indices, ascending, each once.
        domain: index of the domain; -1: any.
    """

    classes: tuple[int, ...]
    domain: int = -1


_TRIES = 1000  # photos of classes that are alone in their super-category
Around = Callable[[int, np.random.Generator], tuple[int, ...]]  # one class -> the classes of a task


def _with(label: int, others: np.ndarray) -> tuple[int, ...]:
    return tuple(sorted({label, *map(int, others)}))


def fixed(classes: int, ways: int = 20) -> Around:
    """Any k classes."""
    return dynamic(classes, ways, ways)


def dynamic(classes: int, fewest: int = 5, most: int = 100) -> Around:
    """Any number of any classes between two bounds (Table 3)."""
    _check(classes, most)

    def around(label: int, rng: np.random.Generator) -> tuple[int, ...]:
        others = np.delete(np.arange(classes), label)
        return _with(label, rng.choice(others, int(rng.integers(fewest, most + 1)) - 1, replace=False))

    return around


def nearest(distances: np.ndarray, ways: int = 20) -> Around:
    """k of the 2k classes that are nearest (ImageNet in section 4.2).

    Args:
        distances: (C, C) between classes.
    """
    _check(len(distances), ways)
    ranked = np.argsort(distances + np.diag(np.full(len(distances), -np.inf)), axis=1, kind="stable")[:, 1:]

    def around(label: int, rng: np.random.Generator) -> tuple[int, ...]:
        return _with(label, rng.choice(ranked[label, : 2 * ways], ways - 1, replace=False))

    return around


def same_group(groups: np.ndarray, ways: int = 20) -> Around:
    """k classes of one super-category (iNaturalist in section 4.3); all of it where it has fewer.

    Args:
        groups: (C,) the super-category of each class.
    """

    def around(label: int, rng: np.random.Generator) -> tuple[int, ...]:
        others = np.flatnonzero(groups == groups[label])
        others = others[others != label]
        return _with(label, rng.choice(others, min(ways - 1, len(others)), replace=False))

    return around


class TaskPhotos:
    """Which photos belong to a task.

    Args:
        label: (R,) class of each photo.
        domain: (R,) domain index of each photo.
    """

    def __init__(self, label: np.ndarray, domain: np.ndarray) -> None:
        self.label, self.domain = label, domain
        order = np.lexsort((label, domain))
        keys = np.stack([domain[order], label[order]])
        starts = np.flatnonzero(np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)])
        self._cells = {
            (int(keys[0, start]), int(keys[1, start])): rows
            for start, rows in zip(starts, np.split(order, starts[1:]), strict=True)
        }
        self._domains = sorted({domain for domain, _ in self._cells})

    @classmethod
    def of(cls, photos: Photos) -> TaskPhotos:
        return cls(photos.label.cpu().numpy(), photos.domain)

    def rows(self, task: Task) -> np.ndarray:
        """Row indices of all photos of a task."""
        domains = self._domains if task.domain < 0 else [task.domain]
        found = [self._cells[d, c] for d in domains for c in task.classes if (d, c) in self._cells]
        return np.concatenate(found) if found else np.zeros(0, dtype=int)

    def draw(self, around: Around, by_domain: bool, rng: np.random.Generator) -> Task:
        """A task of two classes or more around a photo drawn at random.

        Args:
            by_domain: the task is of that photo's domain alone.

        Raises:
            UsageError: tasks have one class each.
        """
        for _ in range(_TRIES):
            row = int(rng.integers(len(self.label)))
            classes = around(int(self.label[row]), rng)
            if len(classes) > 1:
                return Task(classes, int(self.domain[row]) if by_domain else -1)
        raise UsageError(
            "every super-category has one class: there is nothing to tell apart; take tasks of another kind"
        )


def _check(classes: int, ways: int) -> None:
    if not 2 <= ways <= classes:
        raise UsageError(f"--ways {ways}: tasks have 2 to {classes} classes here")
