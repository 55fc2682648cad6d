"""What happened to a fleet, as figures: of the devices' own files, and of the repository's list of releases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from refocus.cloud_train.demos.fleet.device import Answered, News
from refocus.cloud_train.demos.fleet.fleet import Fleet, Owner
from refocus.cloud_train.demos.fleet.letters import photos_of
from refocus.cloud_train.demos.fleet.rollout import RollOut
from refocus.edge.update import Channel


@dataclass(frozen=True)
class Candidate:
    """One retraining.

    Attributes:
        what: it was trained on, in words.
        began, ended: seconds since 1970.
        release: its number; None where the gates stopped it.
        figures: what the people who judged got of it, in words.
        reasons: what the gates said against it.
        report: the page of the retraining, below the demonstration's folder.
        roll_out: how it went on devices.
    """

    name: str
    what: str
    began: float
    ended: float
    release: int | None
    figures: str = ""
    reasons: tuple[str, ...] = ()
    report: str = ""
    roll_out: RollOut | None = None


class Span(msgspec.Struct, frozen=True):
    """A time during which one release served a device: seconds since the beginning."""

    release: int
    began: float
    ended: float


class End(msgspec.Struct, frozen=True):
    """How an update ended on a device, and when."""

    at: float
    release: int
    outcome: str
    why: str


class DeviceStory(msgspec.Struct, frozen=True):
    """One device.

    Attributes:
        right: by release, (photos answered, right answers); the owner's truth, which no device knows.
        longest_gap_s: between two answers.
        errors: photos that were not answered.
    """

    name: str
    script: str
    labels: bool
    tells: bool
    spans: list[Span]
    ends: list[End]
    right: dict[int, tuple[int, int]]
    longest_gap_s: float
    median_ms: float
    errors: list[str]


class ReleaseStory(msgspec.Struct, frozen=True):
    """One retraining and what became of it."""

    name: str
    what: str
    seconds: float
    release: int | None
    figures: str
    reasons: list[str]
    report: str
    decisions: list[str]
    percent: float
    withdrawn: str


class Story(msgspec.Struct, frozen=True):
    """The whole demonstration.

    Attributes:
        photo_s: between two photos of an owner.
    """

    seconds: float
    photo_s: float
    releases: list[ReleaseStory]
    devices: list[DeviceStory]

    def share_right(self, release: int, scripts: Sequence[str] = ()) -> tuple[int, float]:
        """Photos that a release answered for owners of these scripts (all, if none is given), and the share right."""
        pairs = [
            device.right[release]
            for device in self.devices
            if release in device.right and (not scripts or device.script in scripts)
        ]
        photos, right = (sum(values) for values in zip(*pairs, strict=True)) if pairs else (0, 0)
        return photos, right / photos if photos else float("nan")

    def summary(self) -> str:
        """The last words, of what was counted."""
        answered = sum(photos for device in self.devices for photos, _ in device.right.values())
        errors = sum(len(device.errors) for device in self.devices)
        gap = max(device.longest_gap_s for device in self.devices)
        ends = [end.outcome for device in self.devices for end in device.ends]
        serving = {device.spans[-1].release for device in self.devices if device.spans}
        wait = f"the longest wait for an answer was {gap:.1f} s at a photo every {self.photo_s:g} s"
        counts = ", ".join(f"{ends.count(outcome)} {outcome}" for outcome in ("committed", "refused", "returned"))
        return (
            f"{len(self.devices)} devices recognised {answered} photos, {errors} failed; {wait}. Updates: {counts}. In"
            f" the end all run release {', '.join(map(str, sorted(serving)))}. {self.seconds:.0f} s in all."
        )


def story_of(fleet: Fleet, channel: Channel, candidates: Sequence[Candidate], began: float, ended: float) -> Story:
    """Reads what the devices wrote."""
    releases = [_release(candidate, channel) for candidate in candidates]
    devices = [_device(owner, fleet.answers(owner), fleet.news(owner), began) for owner in fleet.owners]
    return Story(ended - began, fleet.pace.photo_s, releases, devices)


def _release(candidate: Candidate, channel: Channel) -> ReleaseStory:
    signed = next((release for release in channel.releases if release.number == candidate.release), None)
    asked = candidate.roll_out.decisions if candidate.roll_out else ()
    return ReleaseStory(
        name=candidate.name,
        what=candidate.what,
        seconds=candidate.ended - candidate.began,
        release=candidate.release,
        figures=candidate.figures,
        reasons=list(candidate.reasons),
        report=candidate.report,
        decisions=[f"{d.percent:g} % to {d.asked:g} %: {d.verdict.verdict}: {d.verdict.why}" for d in asked],
        percent=signed.percent if signed and not signed.withdrawn else 0.0,
        withdrawn=signed.withdrawn if signed else "",
    )


def _device(owner: Owner, answers: list[Answered], news: list[News], began: float) -> DeviceStory:
    truth = list(photos_of(owner.person, owner.photos).values())
    served = [row for row in answers if not row.error]
    spans: list[Span] = []
    right: dict[int, tuple[int, int]] = {}
    for row in served:
        last = spans[-1] if spans and spans[-1].release == row.release else None
        if last is not None:
            spans.pop()
        elif spans:
            spans[-1] = Span(spans[-1].release, spans[-1].began, row.at - began)
        spans.append(Span(row.release, last.began if last else row.at - began, row.at - began))
        count, good = right.get(row.release, (0, 0))
        right[row.release] = count + 1, good + (row.label == truth[row.photo])
    ends = [End(row.at - began, end.number, end.outcome, end.why) for row in news for end in row.ended]
    gaps = np.diff([row.at for row in answers])
    return DeviceStory(
        name=owner.name,
        script=owner.script,
        labels=owner.labels,
        tells=owner.tells,
        spans=spans,
        ends=ends,
        right=right,
        longest_gap_s=float(gaps.max()) if len(gaps) else 0.0,
        median_ms=float(np.median([row.ms for row in served])) if served else 0.0,
        errors=[row.error for row in answers if row.error],
    )
