"""Placement of a program on a device, measured in one profiled run: nodes and time by provider, delegate or unit.

The providers that a session registers say what may run; the profile says what ran. A provider that takes a part of a
graph, or nothing of it, is seen here and nowhere else.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

WARM_UP = 3  # runs before the one that is read: the first ones reserve memory and pack weights


@dataclass(frozen=True)
class OperatorTime:
    """All nodes of one operator in a profiled run.

    Attributes:
        name: in the runtime's words, as ``Conv`` or ``QLinearConv``.
        nodes: how many there are.
        ms: their time in the run.
    """

    name: str
    nodes: int
    ms: float


@dataclass(frozen=True)
class Part:
    """Part of a program that one provider, delegate or compute unit has.

    Attributes:
        provider: its name, in the runtime's words.
        asked: whether it is the one that was asked for; False is a fallback.
        nodes: operators of the graph that it has; for TensorRT layers of the engine.
        partitions: contiguous pieces of the run in which it had control; a border between two costs a copy or a
            conversion.
        ms: time of its nodes in the profiled run; None where the runtime does not say.
        time_share: of the whole program's time, 0 to 1; for Core ML its own estimate; None where nothing says so.
        operators: its time by operator, the longest first; empty where the runtime does not say.
    """

    provider: str
    asked: bool
    nodes: int
    partitions: int
    ms: float | None = None
    time_share: float | None = None
    operators: tuple[OperatorTime, ...] = ()


class Ran(NamedTuple):
    """One node, or one call of a delegate, in the order of the run; ``operator`` in the runtime's words."""

    provider: str
    ms: float
    operator: str = ""


def operators_of(ran: Iterable[Ran], provider: str) -> tuple[OperatorTime, ...]:
    """A provider's time by operator, the longest first."""
    times: dict[str, list[float]] = {}
    for one in ran:
        if one.operator and one.provider == provider:
            times.setdefault(one.operator, []).append(one.ms)
    found = [OperatorTime(name, len(of_name), sum(of_name)) for name, of_name in times.items()]
    return tuple(sorted(found, key=lambda operator: -operator.ms))


def parts_of(
    ran: Sequence[Ran], asked: Iterable[str], nodes: Mapping[str, int] | None = None, within: Sequence[Ran] = ()
) -> tuple[Part, ...]:
    """Sums up a run by provider, in the order in which they first had control.

    Args:
        ran: nodes in the order of the run.
        asked: providers that were asked for.
        nodes: nodes of the graph by provider, where the runtime says so; default: those of the run. A compiled
            partition is one node of the run.
        within: operators within the calls of the run, where these are not operators themselves.
    """
    wanted, whole = set(asked), sum(one.ms for one in ran)
    names = dict.fromkeys([*(one.provider for one in ran), *(nodes or {})])
    found = []
    for name in names:
        of_name = [one for one in ran if one.provider == name]
        ms = sum(one.ms for one in of_name)
        borders = sum(a.provider != name and b.provider == name for a, b in itertools.pairwise(ran))
        pieces = borders + bool(ran and ran[0].provider == name)
        count = (nodes or {}).get(name, len(of_name))
        share = ms / whole if whole else None
        found.append(Part(name, name in wanted, count, pieces, ms, share, operators_of(within or ran, name)))
    return tuple(found)


def fallback_text(parts: Sequence[Part]) -> str:
    """What runs elsewhere than asked, in one sentence; "" where nothing does."""
    elsewhere, nodes = [part for part in parts if not part.asked], sum(part.nodes for part in parts)
    said = []
    for part in elsewhere:
        share = f" ({part.nodes / nodes:.0%})" if nodes else ""
        time = f", {part.time_share:.0%} of the time" if part.time_share is not None else ""
        said.append(f"{part.nodes} of {nodes} nodes{share}{time}, run on {part.provider}")
    return "; ".join(said)


class Profiled(Protocol):
    """A program that was loaded with a profile, as of :class:`refocus.edge.runtimes.Program`."""

    def run(self, **inputs: np.ndarray) -> dict[str, np.ndarray]: ...

    def placement(self) -> tuple[Part, ...]: ...

    def close(self) -> None: ...


def profiled(program: Profiled, inputs: Mapping[str, np.ndarray]) -> tuple[Part, ...]:
    """Runs a program that was loaded with ``profile`` and reads its placement; closes it.

    Raises:
        ValueError: as :meth:`refocus.edge.runtimes.base.Program.run`.
        BundleError: the program fails.
    """
    try:
        for _ in range(WARM_UP + 1):
            program.run(**dict(inputs))
        return program.placement()
    finally:
        program.close()


def profile_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the files of one profile, of this user alone."""
    return tempfile.TemporaryDirectory(prefix="refocus-profile-")


def whole(provider: str, nodes: int = 1, ms: float | None = None) -> tuple[Part, ...]:
    """The placement of a program that runs as a whole in one place."""
    return (Part(provider, True, nodes, 1, ms, 1.0),)


def no_profile(file: str) -> ValueError:
    return ValueError(f"{file} was loaded without a profile; give load_program profile=FOLDER")
