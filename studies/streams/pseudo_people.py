"""Photo streams of pseudo-people, or of the people who took the photos.

Pseudo-people (pseudo-clients) are dealt from a labelled set and differ only in the classes they meet. A photo of a
split can be dealt to many of them; splits share no photos. Streams differ in order and history. Notation: R photos, H
history photos, G targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Order = Literal["iid", "bursts", "sorted"]
Content = Literal["own", "mixed", "foreign", "turns", "changed", "recovery"]
BURST, TURN, RUN = 3, 4, 8  # photos of a class in a burst, of a person in a turn, of a class in a sorted stream
RECOVERY = (0, 4, 8, 16, 32)  # numbers of own photos after a history of another person
_TRIES = 60


@dataclass(frozen=True)
class Cell:
    """Cell of the protocol; the defaults are the base cell.

    Attributes:
        factor: name of the varied attribute; "base": none.
        classes: minimum and maximum number of classes of a person; None: all classes.
        order: order of the photos: i.i.d., bursts of ``BURST`` photos of a class, or sorted by class, ``RUN`` photos
            each.
        history: number of history photos H.
        content: content of the history. "own": the person's photos; "mixed": any photos; "foreign": another person's;
            "turns": alternately ``TURN`` own photos and ``TURN`` of another person; "changed": the first half is
            another person's; "recovery": another person's, then ``RECOVERY`` own ones, evaluated at each of these.
    """

    factor: str = "base"
    classes: tuple[int, int] | None = (5, 10)
    order: Order = "iid"
    history: int = 15
    content: Content = "own"

    @property
    def name(self) -> str:
        """Name of the cell: the value of the varied attribute."""
        values = {
            "classes": "all classes" if self.classes is None else f"{self.classes[0]}-{self.classes[1]} classes",
            "order": self.order,
            "history": f"history of {self.history}",
            "content": f"{self.content} history of {self.history}",
        }
        return values.get(self.factor, "base")


BASE = Cell()
CELLS = (
    BASE,
    *(Cell("classes", classes) for classes in ((2, 4), (11, 25), None)),
    *(Cell("order", order=order) for order in ("bursts", "sorted")),
    *(Cell("history", history=history) for history in (0, 3, 63)),
    *(Cell("content", content=content) for content in ("mixed", "foreign", "turns", "changed")),
    *(Cell("content", content=content, history=63) for content in ("mixed", "foreign", "recovery")),
)
OF_LONG_STREAMS = tuple(Cell("history", history=history) for history in (255, 1023))  # where people have that many


@dataclass(frozen=True)
class Case:
    """Steps of one stream: pairs of observed rows and answered rows.

    Answered rows are not observed.
    """

    steps: tuple[tuple[np.ndarray, np.ndarray], ...]


@dataclass(frozen=True)
class PseudoPerson:
    """Streams of one person, and the classes that they meet."""

    classes: np.ndarray
    cases: tuple[Case, ...]


def deal(
    label: np.ndarray, groups: Sequence[np.ndarray] | None, cell: Cell, people: int, targets: int, seed: int
) -> list[PseudoPerson]:
    """Deal the photos of one split to pseudo-people.

    Args:
        label: classes of the photos, (R,).
        groups: groups of classes, one of which each person has; None: random classes.
        cell: cell of the protocol.
        people: maximum number of people.
        targets: number of targets G per person.
        seed: random seed.

    Returns:
        The people; fewer if combinations of classes do not have enough photos, possibly none.
    """
    rng = np.random.default_rng(seed)
    return [person for _ in range(people) if (person := _person(label, groups, cell, targets, rng)) is not None]


def _person(
    label: np.ndarray, groups: Sequence[np.ndarray] | None, cell: Cell, targets: int, rng: np.random.Generator
) -> PseudoPerson | None:
    photos = cell.history + targets + (max(RECOVERY) if cell.content == "recovery" else 0)
    for _ in range(_TRIES):
        classes = _classes(label, groups, cell, rng)
        pools = {int(c): rng.permutation(np.flatnonzero(label == c)) for c in classes}
        if cell.order != "iid":
            cases = _ordered(pools, cell, targets, rng)
        else:
            own, cases = stream(pools, photos, rng), None
            if own is not None:
                foreign = None if cell.content in ("own", "mixed") else _foreign(label, groups, own, cell, rng)
                cases = _unordered(len(label), own, foreign, cell, targets, rng)
        if cases:
            return PseudoPerson(classes, tuple(cases))
    return None


def _classes(
    label: np.ndarray, groups: Sequence[np.ndarray] | None, cell: Cell, rng: np.random.Generator
) -> np.ndarray:
    present = np.unique(label)
    if cell.classes is None:
        return present
    if groups is not None:
        return groups[int(rng.integers(len(groups)))]
    least, most = (min(count, len(present)) for count in cell.classes)
    return rng.choice(present, int(rng.integers(least, most + 1)), replace=False)


def stream(pools: dict[int, np.ndarray], photos: int, rng: np.random.Generator) -> np.ndarray | None:
    """Draw different photos; return their rows, or None if there are too few.

    The class of each photo is drawn uniformly from those that have photos left.
    """
    if sum(map(len, pools.values())) < photos:
        return None
    left = {c: list(pool) for c, pool in pools.items() if len(pool)}
    rows = []
    for _ in range(photos):
        drawn = int(rng.choice(list(left)))
        rows.append(left[drawn].pop())
        if not left[drawn]:
            del left[drawn]
    return np.array(rows)


def deal_owners(
    label: np.ndarray, owner: np.ndarray, home: np.ndarray, cell: Cell, people: int, targets: int, seed: int
) -> list[PseudoPerson]:
    """Deal photos to the people who took them, otherwise as :func:`deal`.

    Args:
        label: classes of the photos, (R,); a person meets those of their photos.
        owner: person who took each photo, (R,).
        home: domain of each photo, such as its script, (R,); foreign histories are of a person of another domain if
            there is one.
        cell: cell of the protocol.
        people: maximum number of people.
        targets: number of targets G per person.
        seed: random seed.
    """
    rng, dealt = np.random.default_rng(seed), []
    photos = cell.history + targets + (max(RECOVERY) if cell.content == "recovery" else 0)
    for name in rng.permutation(np.unique(owner))[:people]:
        mine = rng.permutation(np.flatnonzero(owner == name))
        classes = np.unique(label[mine])
        if cell.order != "iid":
            cases = _ordered({int(c): mine[label[mine] == c] for c in classes}, cell, targets, rng)
        elif len(mine) < photos:
            cases = None
        else:
            away = np.flatnonzero(home != home[mine[0]])
            others = owner[away] if len(away) else owner[owner != name]
            theirs = rng.permutation(np.flatnonzero(owner == rng.choice(np.unique(others))))[: cell.history]
            cases = _unordered(len(label), mine[:photos], theirs, cell, targets, rng)
        if cases:
            dealt.append(PseudoPerson(classes, tuple(cases)))
    return dealt


def _foreign(
    label: np.ndarray, groups: Sequence[np.ndarray] | None, own: np.ndarray, cell: Cell, rng: np.random.Generator
) -> np.ndarray | None:
    """Draw photos of another pseudo-person, (H,); None: too few."""
    classes = _classes(label, groups, cell, rng)
    others = np.setdiff1d(np.arange(len(label)), own)
    pools = {int(c): rng.permutation(others[label[others] == c]) for c in classes}
    return stream(pools, cell.history, rng)


def _unordered(
    photos: int, own: np.ndarray, foreign: np.ndarray | None, cell: Cell, targets: int, rng: np.random.Generator
) -> list[Case] | None:
    """Return an i.i.d. stream whose history has the cell's content.

    Args:
        photos: number of all photos R.
        own: rows of the person's photos, (n,), the targets first.
        foreign: rows of another person's photos, (H,); None: there are too few.
        cell: cell of the protocol.
        targets: number of targets G.
        rng: random generator.

    Returns:
        The stream as the only item; None without enough photos.
    """
    length, judged, own = cell.history, own[:targets], own[targets:]
    if cell.content == "own":
        return [Case(((own[:length], judged),))]
    if cell.content == "mixed":
        others = np.setdiff1d(np.arange(photos), judged)
        return [Case(((rng.choice(others, length, replace=False), judged),))] if len(others) >= length else None
    if foreign is None or len(foreign) < length:
        return None
    if cell.content == "foreign":
        return [Case(((foreign, judged),))]
    if cell.content == "recovery":
        steps, start = [(foreign, judged)], 0
        for end in RECOVERY[1:]:
            steps.append((own[start:end], judged))
            start = end
        return [Case(tuple(steps))]
    if cell.content == "turns":
        turn = (np.arange(length) // TURN) % 2 == 1
        return [Case(((np.where(turn, foreign, own[:length]), judged),))]
    half = length // 2
    return [Case(((np.concatenate([foreign[:half], own[: length - half]]), judged),))]


def _ordered(pools: dict[int, np.ndarray], cell: Cell, targets: int, rng: np.random.Generator) -> list[Case] | None:
    """Return one stream per target, with the photos just before as history.

    None: too few photos.
    """
    each = RUN if cell.order == "sorted" else BURST
    cases = []
    for _ in range(targets):
        left = {c: list(rng.permutation(pool)) for c, pool in pools.items()}
        rows: list[int] = []
        while len(rows) < cell.history + 1 + each:
            usable = [c for c in left if len(left[c]) >= min(each, len(pools[c])) and left[c]]
            if not usable:
                return None
            drawn = int(rng.choice(usable))
            rows += [left[drawn].pop() for _ in range(min(each, len(left[drawn])))]
        start = int(rng.integers(each))
        taken = np.array(rows[start : start + cell.history + 1])
        cases.append(Case(((taken[:-1], taken[-1:]),)))
    return cases
