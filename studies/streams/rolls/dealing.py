"""Dealing of camera rolls to pseudo-people.

A roll has a history to learn from, and targets that are only answered.

Notation: H known photos of the history, G targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

ROLLS = ("plain", "one-off", "bursts", "changed", "foreign")
MIXED = "mixed"  # unknown photos: equally many of each kind
REPEATED = "repeated"  # the same, of few subjects
BURST = 3  # photos of a burst: a photo, then near-copies of it
ONE_OFF = 1 / 3  # part of the known photos whose class occurs once


@dataclass(frozen=True)
class Roll:
    """Describe the rolls of a cell.

    Attributes:
        classes: number of a person's own classes.
        unknown: share of the history's photos that are unknown.
        kind: kind of the unknown photos; "mixed": equally many of each kind; "repeated": the same, and those of each
            kind show as few subjects as the person has classes, or more if their photos do not suffice.
        roll: "plain": known photos are of the own classes. "one-off": a third is of classes that occur once. "bursts":
            each photo occurs three times in a row, to be replaced by near-copies. "changed": the first half of the
            history has other classes. "foreign": the history is of a person with other classes.
        history: number H of known photos in the history; unknown photos are added to them.
    """

    classes: int = 15
    unknown: float = 0.5
    kind: str = MIXED
    roll: str = "plain"
    history: int = 15

    @property
    def strangers(self) -> int:
        """Number of unknown photos in the history."""
        return round(self.history * self.unknown / (1 - self.unknown))


@dataclass(frozen=True)
class Person:
    """A person's photos, as rows of the photos that are dealt.

    Attributes:
        classes: classes of the targets and of the person's own photos.
        history: photos in the order in which they are learned.
        known: photos whose class is known, (G,), answered without being learned.
        unknown: unknown photos, (G,), answered likewise; empty where there are no unknown photos.
    """

    classes: np.ndarray
    history: np.ndarray
    known: np.ndarray
    unknown: np.ndarray


def deal_rolls(
    label: np.ndarray,
    pools: Mapping[str, np.ndarray],
    subject: np.ndarray,
    roll: Roll,
    people: int,
    targets: int,
    seed: int,
) -> list[Person]:
    """Deal rolls to people; there are fewer if the photos do not suffice.

    Args:
        label: classes of all photos, (R,); negative: unknown.
        pools: rows of the unknown photos of each kind.
        subject: numbers of the classes that photos have in their own sets, (R,).
        roll: description of the rolls.
        people: number of people.
        targets: number of targets G.
        seed: random seed; a person's known photos do not depend on the unknown ones.
    """
    of_class = {int(c): np.flatnonzero(label == c) for c in np.unique(label[label >= 0])}
    if len(of_class) < roll.classes:
        return []
    dealt = []
    for number in range(people):
        of_unknown = np.random.default_rng([seed, number, 1])
        strangers = _strangers(pools, subject, roll, targets, of_unknown)
        person = _person(of_class, strangers, roll, targets, np.random.default_rng([seed, number, 0]), of_unknown)
        if person is not None:
            dealt.append(person)
    return dealt


def _person(
    of_class: Mapping[int, np.ndarray],
    strangers: np.ndarray | None,
    roll: Roll,
    targets: int,
    rng: np.random.Generator,
    of_unknown: np.random.Generator,
) -> Person | None:
    order = rng.permutation([*of_class])
    own, others = order[: roll.classes], order[roll.classes :]
    learned = -(-roll.history // BURST) if roll.roll == "bursts" else roll.history
    elsewhere = {"changed": learned // 2, "foreign": learned}.get(roll.roll, 0)  # photos of the other classes
    once = round(ONE_OFF * learned) if roll.roll == "one-off" else 0
    once_asked = min(round(ONE_OFF * targets), len(others)) if roll.roll == "one-off" else 0
    single = [rng.choice(of_class[int(c)], 1)[0] for c in others[:once]]
    free = [np.setdiff1d(of_class[int(c)], single) for c in others[::-1][:once_asked]]
    asked_once = [rng.choice(rows) for rows in free if len(rows)]
    mine = _draw(of_class, own, targets - len(asked_once) + learned - elsewhere - len(single), rng)
    if mine is None or strangers is None:
        return None
    left = {c: np.setdiff1d(rows, mine) for c, rows in of_class.items()}
    theirs = _draw(left, _classes_of_another(own, others, rng), elsewhere, rng)
    if theirs is None:
        return None
    asked = rng.permutation(np.concatenate([mine[: targets - len(asked_once)], asked_once]).astype(int))
    later = rng.permutation(np.concatenate([mine[targets - len(asked_once) :], single]).astype(int))
    known = np.concatenate([rng.permutation(theirs), later])
    unasked = strangers[targets:] if len(strangers) else strangers
    classes = np.concatenate([own, others[:once], others[::-1][:once_asked]])
    return Person(np.unique(classes), _interleaved(known, unasked, roll, of_unknown), asked, strangers[:targets])


def _classes_of_another(own: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return as many classes, which are not the own ones if there are enough."""
    return others[: len(own)] if len(others) >= len(own) else rng.permutation(np.concatenate([own, others]))[: len(own)]


def _draw(
    of_class: Mapping[int, np.ndarray], classes: Sequence[int] | np.ndarray, photos: int, rng: np.random.Generator
) -> np.ndarray | None:
    """Draw different photos, each of a random class; None: too few."""
    left = {int(c): [*rng.permutation(of_class[int(c)])] for c in classes if len(of_class[int(c)])}
    if sum(map(len, left.values())) < photos:
        return None
    rows = []
    for _ in range(photos):
        drawn = int(rng.choice([*left]))
        rows.append(left[drawn].pop())
        if not left[drawn]:
            del left[drawn]
    return np.array(rows, dtype=int)


def _strangers(
    pools: Mapping[str, np.ndarray], subject: np.ndarray, roll: Roll, targets: int, rng: np.random.Generator
) -> np.ndarray | None:
    """Draw unknown photos, targets first; none without pools, None: too few."""
    kinds = [*pools] if roll.kind in (MIXED, REPEATED) else [roll.kind] if roll.kind in pools else []
    if not kinds:
        return np.zeros(0, dtype=int) if roll.kind == MIXED and not roll.unknown else None
    learned = -(-roll.strangers // (BURST if roll.roll == "bursts" else 1))
    if roll.kind == REPEATED:
        most = -(-targets // len(kinds)) - (-learned // len(kinds))  # photos of a kind
        pools = {kind: _of_few_subjects(pools[kind], subject, roll.classes, most, rng) for kind in kinds}
    drawn = list[np.ndarray]()
    for part in (targets, learned):
        sizes = np.bincount(np.arange(part) % len(kinds), minlength=len(kinds))
        for kind, size in zip(rng.permutation(kinds), sizes, strict=True):
            free = np.setdiff1d(pools[str(kind)], np.concatenate(drawn)) if drawn else pools[str(kind)]
            if len(free) < size:
                return None
            drawn.append(rng.choice(free, size, replace=False))
    asked = rng.permutation(np.concatenate(drawn[: len(kinds)]))
    return np.concatenate([asked, rng.permutation(np.concatenate(drawn[len(kinds) :]))])


def _of_few_subjects(
    rows: np.ndarray, subject: np.ndarray, subjects: int, photos: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the photos of a few subjects, or of more for enough photos."""
    of_subject = [rows[subject[rows] == number] for number in rng.permutation(np.unique(subject[rows]))]
    reached = np.cumsum([len(one) for one in of_subject])
    return np.concatenate(of_subject[: max(subjects, int(np.searchsorted(reached, photos)) + 1)])


def _interleaved(known: np.ndarray, unknown: np.ndarray, roll: Roll, rng: np.random.Generator) -> np.ndarray:
    """Mix unknown photos into known ones, whose order is kept."""
    is_known = rng.permutation(np.repeat([True, False], [len(known), len(unknown)]))
    mixed = np.empty(len(is_known), dtype=int)
    mixed[is_known], mixed[~is_known] = known, unknown
    return np.repeat(mixed, BURST) if roll.roll == "bursts" else mixed
