"""Gates judge people, not means: what a candidate must satisfy before it is released, as data and plain functions.

Every gate says its value, its limit and why. People are paired with themselves: each was recognised, photo by photo
from an empty history, by the current release and by the candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from refocus.benchmarks.measure import bootstrap_mean, worst_tenth
from refocus.cloud_train.errors import ReleaseError
from refocus.edge.bundle import NonNegativeFloat, Strict

HAIR = 1e-9  # of a share: what rounding may put between two that are equal on paper, as 0.8 - 0.75 and 0.05


class GateLimits(Strict, frozen=True):
    """The limits of all gates.

    Attributes:
        accuracy_lost: of the mean over all photos.
        worst_decile_lost: of the mean over the tenth of the people who are served worst.
        noticeable: difference of a person's share of right answers below which nobody would notice.
        made_worse: share of people who are noticeably worse off than under the current release.
        below_backbone: share of people whose delivered answers are noticeably worse than the plain classifier's.
        size_ratio, latency_ratio: of the candidate to the current release.
        least_people: with fewer a decile means nothing.
    """

    accuracy_lost: NonNegativeFloat = 0.0
    worst_decile_lost: NonNegativeFloat = 0.01
    noticeable: NonNegativeFloat = 0.05
    made_worse: NonNegativeFloat = 0.15
    below_backbone: NonNegativeFloat = 0.05
    size_ratio: NonNegativeFloat = 1.1
    latency_ratio: NonNegativeFloat = 1.15
    least_people: int = 10


@dataclass(frozen=True)
class Evidence:
    """What was measured of the current release and of a candidate. Notation: G people.

    What was not measured keeps its default; its gates are not to be judged then.

    Attributes:
        photos: (G,) photos of each person.
        current, candidate: (G,) share of right answers delivered to each.
        plain: (G,) share of right answers of the candidate's classifier without history.
        current_bytes, candidate_bytes: size of the bundles.
        latency_ratio: candidate over current, median within interleaved rounds; and the lower end of its interval.
        parity: artifacts of the candidate, and whether each agrees with PyTorch; None where it was not run.
    """

    photos: np.ndarray
    current: np.ndarray
    candidate: np.ndarray
    plain: np.ndarray
    current_bytes: int = 0
    candidate_bytes: int = 0
    latency_ratio: tuple[float, float] = (math.nan, math.nan)
    parity: dict[str, bool | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Gate:
    """One gate's finding.

    Attributes:
        value: what was found.
        limit: the last value that passes.
        why: what the value means, for people.
    """

    name: str
    value: float
    limit: float
    passed: bool
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {'passed' if self.passed else 'FAILED'}: {self.why}"


Rule = Callable[[Evidence, GateLimits], Gate]


def evaluate_gates(evidence: Evidence, limits: GateLimits, gates: Sequence[Rule] | None = None) -> list[Gate]:
    """Every gate; all are evaluated, so that one run tells all that is wrong.

    Args:
        gates: those to evaluate; default: all.

    Raises:
        ReleaseError: too few people to judge people by.
    """
    people = len(evidence.photos)
    if people < limits.least_people:
        raise ReleaseError(
            f"{people} people are too few to evaluate a release; give photos of {limits.least_people} or more"
        )
    return [gate(evidence, limits) for gate in (GATES if gates is None else gates)]


def accuracy(evidence: Evidence, limits: GateLimits) -> Gate:
    """The mean over all photos must not fall."""
    change = bootstrap_mean(evidence.candidate - evidence.current, evidence.photos.astype(float))
    interval = f"{change.low:+.2%} to {change.high:+.2%} over people"
    if len(evidence.photos) < 2:
        interval = "one person: no interval"
    why = f"right answers change by {change.mean:+.2%} ({interval}), at most {limits.accuracy_lost:.2%} may be lost"
    return Gate("accuracy", change.mean, -limits.accuracy_lost, change.mean >= -limits.accuracy_lost - HAIR, why)


def worst_decile(evidence: Evidence, limits: GateLimits) -> Gate:
    """Those who are served worst must not pay for the others."""
    before, after = worst_tenth(evidence.current), worst_tenth(evidence.candidate)
    why = (
        f"the worst served tenth of {len(evidence.photos)} people has {after:.2%} right answers, {before:.2%} under the"
        f" current release; at most {limits.worst_decile_lost:.2%} may be lost"
    )
    change, least = after - before, -limits.worst_decile_lost
    return Gate("worst decile", change, least, change >= least - HAIR, why)


def made_worse(evidence: Evidence, limits: GateLimits) -> Gate:
    """Few people may be worse off than today."""
    change, than = evidence.candidate - evidence.current, "than under the current release"
    return _share_below("made worse", change, limits.noticeable, limits.made_worse, than)


def never_worse(evidence: Evidence, limits: GateLimits) -> Gate:
    """History may not make somebody's answers worse than no history."""
    change, than = evidence.candidate - evidence.plain, "than by the plain classifier"
    return _share_below("never worse than the backbone", change, limits.noticeable, limits.below_backbone, than)


def size(evidence: Evidence, limits: GateLimits) -> Gate:
    """What devices have to store and fetch."""
    ratio = evidence.candidate_bytes / evidence.current_bytes
    why = (
        f"{evidence.candidate_bytes} bytes, {ratio:.2f} times the current release's {evidence.current_bytes}; at most"
        f" {limits.size_ratio} times are allowed"
    )
    return Gate("size", ratio, limits.size_ratio, ratio <= limits.size_ratio, why)


def latency(evidence: Evidence, limits: GateLimits) -> Gate:
    """A photo's time: the lower end of the interval must be below the limit, so that noise stops nobody."""
    middle, low = evidence.latency_ratio
    limit = f"at most {limits.latency_ratio} times are allowed"
    why = f"a photo takes {middle:.2f} times as long ({low:.2f} at least); {limit}"
    return Gate("latency", low, limits.latency_ratio, low <= limits.latency_ratio, why)


def parity(evidence: Evidence, limits: GateLimits) -> Gate:
    """Every program that could be run must answer as PyTorch does, and one at least must have been run."""
    failed = [file for file, passed in evidence.parity.items() if passed is False]
    ran = sum(passed is not None for passed in evidence.parity.values())
    agree = f"{ran - len(failed)} of {ran} programs that were run agree with PyTorch"
    why = f"{agree}; {len(evidence.parity) - ran} were not run"
    why += f"; {failed[0]} does not" if failed else ""
    return Gate("parity", float(len(failed)), 0.0, not failed and ran > 0, why)


PEOPLE: tuple[Rule, ...] = (accuracy, worst_decile, made_worse, never_worse)
COST: tuple[Rule, ...] = (size, latency)
GATES: tuple[Rule, ...] = (*PEOPLE, *COST, parity)


def read_limits(path: Path | None) -> GateLimits:
    """Limits from a TOML file; those that are not named keep their defaults.

    Raises:
        ReleaseError: no such file, an unknown limit, or one that is not a number.
    """
    if path is None:
        return GateLimits()
    try:
        return msgspec.toml.decode(path.read_bytes(), type=GateLimits)
    except (OSError, msgspec.DecodeError) as error:
        known = ", ".join(GateLimits.__struct_fields__)
        raise ReleaseError(f"--limits {path}: {error}; expected lines as 'made_worse = 0.1', of {known}") from None


def _share_below(name: str, change: np.ndarray, noticeable: float, limit: float, than: str) -> Gate:
    share = float((change < -noticeable - HAIR).mean())
    why = (
        f"{share:.1%} of {len(change)} people are served worse {than} by more than {noticeable:.0%};"
        f" at most {limit:.1%} may be"
    )
    return Gate(name, share, limit, share <= limit, why)
