"""A staged roll-out over a fleet, driven by what devices' owners let them tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from examples.fleet.fleet import Fleet, LoopbackServer
from refocus.cloud_train.release.repository import Repository
from refocus.cloud_train.release.stages import StopRule, Verdict, promote
from refocus.edge.update import Release, UpdateState, bucket

WIDEN = 10.0  # percent more devices, where the rule asks for more reports than so few devices can give


@dataclass(frozen=True)
class Decision:
    """One decision of the stop rule of a staged rollout.

    Attributes:
        at: seconds since 1970.
        percent: of the devices that were offered the release when it was asked.
        asked: percent that it was asked for.
    """

    at: float
    percent: float
    asked: float
    verdict: Verdict


@dataclass(frozen=True)
class RollOut:
    """How a release went.

    Attributes:
        percent: of the devices that may take it in the end; 0 where it was withdrawn.
    """

    number: int
    percent: float
    decisions: tuple[Decision, ...]

    @property
    def stopped(self) -> str:
        """Why it was withdrawn; "" if it was not."""
        last = self.decisions[-1].verdict if self.decisions else Verdict("go", "")
        return last.why if last.verdict == "stop" else ""


def roll_out(
    repository: Repository,
    device_class: str,
    number: int,
    fleet: Fleet,
    server: LoopbackServer,
    stages: Sequence[float],
    rule: StopRule,
    limit_s: float = 300,
    say: Callable[[str], None] = print,
) -> RollOut:
    """Offers a published release to more and more devices, as long as the stop rule lets it.

    Before each stage every device that may take the release has taken or refused it, and told so if its owner lets it:
    what takes a day in the field, and what nobody could see there. The decision itself sees only the counts. Where the
    rule cannot tell from so few, a few more devices are offered the release, and it is asked again.

    Args:
        stages: percents after the one that it was published with, rising.
        limit_s: seconds for the devices, for each stage.

    Raises:
        ReleaseError: devices did not do their part in time.
    """
    decisions: list[Decision] = []
    release = _release(repository, device_class, number)
    _await(fleet, release, limit_s)
    for stage in stages:
        while release.percent < stage:
            verdict = promote(repository, device_class, number, stage, server.reports(), rule)
            decisions.append(Decision(time.time(), release.percent, stage, verdict))
            say(f"  {release.percent:g} % → {stage:g} %: {verdict.verdict}: {verdict.why}")
            if verdict.verdict == "stop":
                fleet.wait(partial(_is_back, release=release), f"release {number} is taken back", limit_s)
                return RollOut(number, 0, tuple(decisions))
            if verdict.verdict == "wait":
                more = min(release.percent + WIDEN, 100.0)
                promote(repository, device_class, number, more)
                say(f"  too few reports to tell: {more:g} % of the devices may take it, and the rule is asked again")
            release = _release(repository, device_class, number)
            _await(fleet, release, limit_s)
    return RollOut(number, release.percent, tuple(decisions))


def _await(fleet: Fleet, release: Release, limit_s: float) -> None:
    what = f"release {release.number} to {release.percent:g} %"
    fleet.wait(lambda record: has_ended(record, release), what, limit_s)
    time.sleep(2 * fleet.pace.look_s)  # in which the last of them has told


def has_ended(record: UpdateState, release: Release) -> bool:
    """Whether a device has done with a release what it will do, or is not offered it."""
    if bucket(record.device, release) >= release.percent:
        return True
    return record.stage == "settled" and any(o.identity == release.identity for o in record.outcomes)


def _is_back(record: UpdateState, release: Release) -> bool:
    active = record.active
    return record.stage == "settled" and active is not None and active.identity != release.identity


def _release(repository: Repository, device_class: str, number: int) -> Release:
    return next(r for r in repository.channel(device_class).releases if r.number == number)
