"""Staged roll-out of a release, decided by the counts of devices.

Devices send them with their owner's consent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from examples.fleet.fleet import Fleet, LoopbackServer
from refocus.cloud_train.release.repository import Repository
from refocus.cloud_train.release.stages import StopRule, Verdict, promote
from refocus.edge.update import Release, UpdateState, bucket

WIDEN = 10.0  # percent more devices if too few can report for the rule


@dataclass(frozen=True)
class Decision:
    """Decision of the stop rule of a staged roll-out.

    Attributes:
        at: seconds since 1970.
        percent: percentage of the devices that were offered the release.
        asked: requested percentage.
        verdict: verdict of the rule.
    """

    at: float
    percent: float
    asked: float
    verdict: Verdict


@dataclass(frozen=True)
class RollOut:
    """Result of the roll-out of a release.

    Attributes:
        number: number of the release.
        percent: percentage of the devices that may take it in the end; 0 if it was withdrawn.
        decisions: decisions of the stop rule.
    """

    number: int
    percent: float
    decisions: tuple[Decision, ...]

    @property
    def stopped(self) -> str:
        """Reason for which it was withdrawn; "" if it was not."""
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
    """Offer a published release in stages, until the stop rule stops it.

    Before each stage, the function waits until every device that may take the release has taken or refused it and sent
    its counts if the owner allows it. With real devices this takes a day and cannot be observed. The decision uses only
    the counts. If there are too few counts, ten percent more of the devices are offered the release and the rule decides
    again.

    Args:
        repository: repository with the release.
        device_class: device class of the release.
        number: number of the release.
        fleet: devices, observed only to wait for them.
        server: server that receives the counts.
        stages: rising percentages after the one of publication.
        rule: stop rule.
        limit_s: time limit per stage in seconds.
        say: function that prints a message.

    Raises:
        ReleaseError: devices were not ready within the time limit.
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
    time.sleep(2 * fleet.pace.look_s)  # the last device has sent its counts by then


def has_ended(record: UpdateState, release: Release) -> bool:
    """Return whether a device took or refused a release.

    Devices that are not offered the release count as done.
    """
    if bucket(record.device, release) >= release.percent:
        return True
    return record.stage == "settled" and any(o.identity == release.identity for o in record.outcomes)


def _is_back(record: UpdateState, release: Release) -> bool:
    active = record.active
    return record.stage == "settled" and active is not None and active.identity != release.identity


def _release(repository: Repository, device_class: str, number: int) -> Release:
    return next(r for r in repository.channel(device_class).releases if r.number == number)
