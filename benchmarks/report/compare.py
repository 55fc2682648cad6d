"""Two documents of separate runs: what differs, where that can be said at all.

Between two runs everything may have changed, also where a program's memory lies. So only rows with a valid verdict are
compared, and only a difference that is certainly larger than two runs of the same thing may show is called one.
``--paired`` sees smaller ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from refocus.benchmarks.document.schema import Document, Row
from refocus.benchmarks.measure.statistics import resampled_medians
from refocus.edge.bundle import find_named_target

BETWEEN_RUNS = 0.05  # two runs of one thing on one quiet machine differ by less; see decision 17
BLOCKS = 20  # of neighbouring samples, in one document
Key = tuple[str, str, str, str]
Answer = Literal["slower", "faster", "no difference seen", "not comparable"]


@dataclass(frozen=True)
class Difference:
    """One row of two documents.

    Attributes:
        key: target, group, name and place on the axis.
        ratio, low, high: second over first, with a 95 % interval; None where they are not comparable.
        why: they are not comparable; "" where they are.
    """

    key: Key
    answer: Answer
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def place(self) -> str:
        """Its key in words."""
        return " ".join(word for word in self.key if word)

    @property
    def interval(self) -> str:
        """How much slower the second is, with the interval; or why nobody can say."""
        if self.ratio is None or self.low is None or self.high is None:
            return self.why
        return f"{self.ratio - 1:+.1%} ({self.low - 1:+.1%} to {self.high - 1:+.1%})"


def obstacles(first: Document, second: Document) -> Iterator[str]:
    """Why two documents cannot be compared as a whole."""
    one, other = first.machine, second.machine
    yield from _differing(
        ("device", one.device, other.device),
        ("machine", f"{one.cpu} ({one.id})", f"{other.cpu} ({other.id})"),
        ("governor", one.governor or "unknown", other.governor or "unknown"),
        ("power mode", one.power_mode or "unknown", other.power_mode or "unknown"),
        ("photos", first.photos.fingerprint[:12], second.photos.fingerprint[:12]),
        ("threads", _facts(first, "threads") or "unknown", _facts(second, "threads") or "unknown"),
    )
    several = [path for path, document in (("first", first), ("second", second)) if len(_bundles(document)) != 1]
    if several and _bundles(first) != _bundles(second):
        yield f"the {' and the '.join(several)} document is of several bundles, and not of the same ones"


def changes(first: Document, second: Document) -> Iterator[str]:
    """What differs and may be what is compared."""
    yield from _differing(
        ("refocus", first.refocus, second.refocus),
        ("encoder", _facts(first, "encoder_sha256"), _facts(second, "encoder_sha256")),
        ("head", _facts(first, "head_sha256"), _facts(second, "head_sha256")),
        ("runtime", _facts(first, "runtime_version"), _facts(second, "runtime_version")),
        ("provider", _facts(first, "used"), _facts(second, "used")),
        ("system", first.machine.system, second.machine.system),
    )


def _differing(*facts: tuple[str, str, str]) -> Iterator[str]:
    for name, first, second in facts:
        if first != second:
            yield f"{name}: {first}, then {second}"


def compare(first: Document, second: Document) -> Iterator[Difference]:
    """Every row that both have, and those that one lacks; all "not comparable" where the documents are not."""
    why = "; ".join(obstacles(first, second))
    ours, theirs = _rows_of_both(first, second)
    for key in dict.fromkeys((*ours, *theirs)):
        if key not in ours or key not in theirs:
            missing = "first" if key not in ours else "second"
            yield Difference(key, "not comparable", why=f"the {missing} document has no such row")
        elif why:
            yield Difference(key, "not comparable", why=why)
        else:
            yield _difference(key, ours[key], theirs[key])


def shares_rows(first: Document, second: Document) -> bool:
    """Whether there is a row that both have; two documents of other targets share none."""
    ours, theirs = _rows_of_both(first, second)
    return not ours.keys().isdisjoint(theirs)


def _rows_of_both(first: Document, second: Document) -> tuple[dict[Key, Row], dict[Key, Row]]:
    return rows_by_key(first, {row.target for row in second.rows}), rows_by_key(second)


def _difference(key: Key, first: Row, second: Row) -> Difference:
    for name, row in (("first", first), ("second", second)):
        if not row.verdict.valid:
            codes = ", ".join(reason.code for reason in row.verdict.reasons)
            return Difference(key, "not comparable", why=f"the {name} is not valid: {codes}")
    if first.photos != second.photos:
        return Difference(key, "not comparable", why=f"samples of {first.photos} and of {second.photos} photos")
    one, other = np.array(first.samples_ms), np.array(second.samples_ms)
    ratio = float(np.median(other) / np.median(one))
    blocks = [max(1, len(samples) // BLOCKS) for samples in (one, other)]
    ratios = resampled_medians(other, blocks[1], 1) / resampled_medians(one, blocks[0], 0)
    low, high = (float(value) for value in np.percentile(ratios, [2.5, 97.5]))
    answer: Answer = "no difference seen"
    if low > 1 + BETWEEN_RUNS:
        answer = "slower"
    elif high < 1 / (1 + BETWEEN_RUNS):
        answer = "faster"
    return Difference(key, answer, ratio, low, high)


def rows_by_key(document: Document, targets: Collection[str] = ()) -> dict[Key, Row]:
    """Rows by key; a target that ``targets`` has by another name of its precision (0.1 wrote int8) gets that name."""
    several = len(_bundles(document)) > 1
    found = {}
    for row in document.rows:
        target = find_named_target(row.target, targets) or row.target
        found[f"{row.bundle} {target}" if several else target, row.group, row.name, row.at] = row
    return found


def _bundles(document: Document) -> list[str]:
    return sorted({row.bundle for row in document.rows})


def _facts(document: Document, name: str) -> str:
    return ", ".join(sorted({str(getattr(ran, name))[:24] for ran in document.ran}))
