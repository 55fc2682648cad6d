"""Story of a fleet: figures from devices' logs and from the repository."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import numpy as np

from examples.fleet.device import Answered, News
from examples.fleet.fleet import Fleet, Owner
from examples.fleet.letters import photos_of
from refocus.edge.update import Channel


class Span(msgspec.Struct, frozen=True):
    """Time during which one release served a device, in seconds.

    Times count from the beginning of the demonstration.
    """

    release: int
    began: float
    ended: float


class End(msgspec.Struct, frozen=True):
    """End of an update on a device."""

    at: float
    release: int
    outcome: str
    why: str


class DeviceStory(msgspec.Struct, frozen=True):
    """Story of a device.

    Attributes:
        name: name of the owner.
        script: script that the owner writes.
        labels: whether the owner labels photos.
        tells: whether the owner allows the device to send counts.
        spans: times of the releases that served.
        ends: ends of updates.
        right: (photos answered, photos answered correctly) by release; devices do not know the true labels.
        longest_gap_s: longest time between two answers, in seconds.
        median_ms: median duration of an answer, in milliseconds.
        errors: messages of photos that were not answered.
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
    """Story of a retraining and its release.

    Attributes:
        name: name of the collection.
        what: description of the training photos.
        seconds: duration of the retraining.
        release: number of the release; None if the gates stopped it.
        figures: sentence with the accuracy of the evaluation people.
        reasons: reasons of the gates against it.
        report: page of the retraining, relative to the demonstration's folder.
        decisions: descriptions of the stop rule's decisions.
        percent: percentage of the devices that may take it in the end.
        withdrawn: reason for which it was withdrawn; "" if it was not.
    """

    name: str
    what: str
    seconds: float
    release: int | None
    figures: str = ""
    reasons: list[str] = []
    report: str = ""
    decisions: list[str] = []
    percent: float = 0.0
    withdrawn: str = ""


class Story(msgspec.Struct, frozen=True):
    """Story of the demonstration.

    Attributes:
        seconds: duration of the demonstration.
        photo_s: seconds between two photos of an owner.
        releases: retrainings and releases.
        devices: devices.
    """

    seconds: float
    photo_s: float
    releases: list[ReleaseStory]
    devices: list[DeviceStory]

    def share_right(self, release: int, scripts: Sequence[str] = ()) -> tuple[int, float]:
        """Return the number of photos that a release answered, and accuracy.

        Only owners of the given scripts count; default: all.
        """
        pairs = [
            device.right[release]
            for device in self.devices
            if release in device.right and (not scripts or device.script in scripts)
        ]
        photos, right = (sum(values) for values in zip(*pairs, strict=True)) if pairs else (0, 0)
        return photos, right / photos if photos else float("nan")

    def summary(self) -> str:
        """Return a summary of photos, errors, waiting times and updates."""
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


def story_of(fleet: Fleet, channel: Channel, trained: Sequence[ReleaseStory], began: float, ended: float) -> Story:
    """Read the logs of devices and the final state of releases."""
    signed = {release.number: release for release in channel.releases}
    releases = [
        msgspec.structs.replace(row, percent=0.0 if of.withdrawn else of.percent, withdrawn=of.withdrawn)
        if row.release is not None and (of := signed.get(row.release))
        else row
        for row in trained
    ]
    devices = [_device(owner, fleet.answers(owner), fleet.news(owner), began) for owner in fleet.owners]
    return Story(ended - began, fleet.pace.photo_s, releases, devices)


def _device(owner: Owner, answers: list[Answered], news: list[News], began: float) -> DeviceStory:
    truth = list(photos_of(owner.person, owner.photos).values())
    served = [row for row in answers if not row.error]
    right: dict[int, tuple[int, int]] = {}
    spans: list[Span] = []
    for release, rows in itertools.groupby(served, key=lambda row: row.release):
        times = [row.at - began for row in rows]
        spans.append(Span(release, times[0], times[-1]))
    spans = [Span(span.release, span.began, after.began) for span, after in itertools.pairwise(spans)] + spans[-1:]
    for row in served:
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
