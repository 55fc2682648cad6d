"""Publishing, promoting and withdrawing releases; and the rule that stops one, as data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import msgspec

from refocus.cloud_train.errors import ReleaseError
from refocus.cloud_train.release.repository import Repository
from refocus.edge.bundle import Bundle, load_bundle
from refocus.edge.runtimes import version_numbers
from refocus.edge.update import MAX_NUMBER, MAX_RELEASES, Channel, Program, Release, Report, files_of

OLDEST_REFOCUS = "0.1.0"  # the first that reads channels


@dataclass(frozen=True)
class StopRule:
    """When a staged release goes on, waits or is stopped, judged by what devices reported whose owners agreed to that.

    Attributes:
        returned: largest share of devices that took the release and had to return, or found it unfit.
        devices: fewest reports to go on with; fewer may stop a release.
        confidence: z of the Wilson interval around the share whose upper end must be below ``returned`` to go on; 1.96
            is 95 %.
        false_stops: of the releases whose share is just ``returned``, the part that may be stopped by chance, however
            often the rule is asked while reports come in.
    """

    returned: float = 0.02
    devices: int = 50
    confidence: float = 1.96
    false_stops: float = 0.025


@dataclass(frozen=True)
class Verdict:
    """What the stop rule says, and why."""

    verdict: Literal["go", "wait", "stop"]
    why: str


@dataclass(frozen=True)
class Published:
    """A release that was just published.

    Attributes:
        new_bytes: of its files, how many bytes the repository did not have.
    """

    release: Release
    new_bytes: int


def publish(
    repository: Repository, folder: Path, device_class: str, percent: float = 1.0, min_refocus: str = OLDEST_REFOCUS
) -> Published:
    """Signs a bundle as the next release of a class, for a part of its devices.

    Raises:
        BundleError: it is not whole, or one of its heads refuses the features of its encoder.
        ReleaseError: it fails parity, was condensed for one person, has no self-test, or is the newest release already;
            or the oldest version is none.
    """
    if not re.fullmatch(r"\d+(\.\d+){0,2}", min_refocus):
        raise ReleaseError(f"--min-refocus {min_refocus}: expected a version, such as 0.2.0")
    bundle = load_bundle(folder)
    _check_fit(bundle, percent)
    with repository.locked():
        channel = repository.channel(device_class)
        last = channel.releases[-1].number if channel.releases else 0
        if last >= MAX_NUMBER:
            raise ReleaseError(
                f"{device_class} has release {last}, the highest number; restore the repository as it was"
            )
        try:
            release = Release(
                number=last + 1,
                name=bundle.manifest.name,
                files=files_of(bundle),
                programs=tuple(_programs(bundle)),
                manifest_schema=bundle.manifest.schema_version,
                min_refocus=min_refocus,
                percent=percent,
                published=datetime.now(timezone.utc).replace(microsecond=0),
            )
        except ValueError as error:
            raise ReleaseError(f"{folder}: no device would take it: {error}") from None
        known = channel.of(release.identity)
        if known is not None:
            raise ReleaseError(f"{folder} is release {known.number} of {device_class} already; promote that one")
        new = sum(repository.put_file(folder / file.path, file.sha256) for file in release.files)
        repository.put_channel(_changed(channel, (*channel.releases, release)[-MAX_RELEASES:]))
    return Published(release, new)


def promote(
    repository: Repository,
    device_class: str,
    number: int,
    percent: float,
    reports: Sequence[Report] = (),
    rule: StopRule | None = None,
) -> Verdict:
    """Offers a release to more devices, if the stop rule lets it; a release that must stop is withdrawn.

    Args:
        reports: what devices reported.
        rule: None: whoever promotes has judged by other means.

    Raises:
        ReleaseError: no such release, a withdrawn one, or fewer devices than now.
    """
    with repository.locked():
        channel = repository.channel(device_class)
        release = _of(channel, number)
        if release.withdrawn:
            raise ReleaseError(f"release {number} is withdrawn ({release.withdrawn}); publish another one")
        if not release.percent <= percent <= 100:
            raise ReleaseError(
                f"--percent {percent}: release {number} is offered to {release.percent} % already; to take it"
                " from devices, withdraw it"
            )
        verdict = evaluate_reports(release, reports, rule) if rule is not None else Verdict("go", "no rule was asked")
        if verdict.verdict == "go":
            repository.put_channel(_with(channel, msgspec.structs.replace(release, percent=percent)))
        elif verdict.verdict == "stop":
            repository.put_channel(_with(channel, msgspec.structs.replace(release, withdrawn=verdict.why)))
    return verdict


def withdraw(repository: Repository, device_class: str, number: int, why: str) -> None:
    """Takes a release from all devices: they return to what they had before.

    Raises:
        ReleaseError: no such release, or no reason.
    """
    if not why.strip():
        raise ReleaseError("--why is empty: say why devices must not keep the release")
    with repository.locked():
        channel = repository.channel(device_class)
        try:
            release = msgspec.structs.replace(_of(channel, number), withdrawn=why.strip())
        except ValueError as error:
            raise ReleaseError(f"--why: {error}") from None
        repository.put_channel(_with(channel, release))


def evaluate_reports(release: Release, reports: Sequence[Report], rule: StopRule) -> Verdict:
    """What the reports of a release say by the rule.

    It stops once even the least share of devices that do not keep it (:func:`least_share`) is above the limit, and goes
    on once the upper end of the Wilson interval is below; in between, or with too few reports, it waits.
    """
    own = [report for report in reports if report.identity == release.identity]
    total, bad = sum(r.total for r in own), sum(r.refused + r.returned for r in own)
    low, (_, high) = least_share(bad, total, rule), wilson(bad, total, rule.confidence)
    interval = f"{low:.1%} to {high:.1%}; limit {rule.returned:.1%}"
    text = f"{bad} of {total} devices did not keep release {release.number} ({interval})"
    if total and low > rule.returned:
        return Verdict("stop", text)
    if total < rule.devices:
        return Verdict("wait", f"{text}; at least {rule.devices} reports are wanted")
    if high > rule.returned:
        return Verdict("wait", f"{text}; more reports are needed to say on which side of the limit it is")
    return Verdict("go", text)


def least_share(bad: int, total: int, rule: StopRule) -> float:
    """The lower end of an exact interval (Clopper and Pearson, 1934) around the share of devices that do not keep a
    release, which holds at all numbers of reports together.

    ``false_stops`` is spent over doublings of the reports, half of it up to ``devices``. Until a doubling is complete,
    the reports that it lacks count as kept: so asking at each of its reports spends no more than asking at its end.
    """
    if not bad:
        return 0.0
    end = 1 << (total - 1).bit_length()
    spent, before = (reports / (reports + rule.devices) for reports in (end, end // 2))
    level, low, high = rule.false_stops * (spent - before), 0.0, bad / end
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_least(bad, end, middle) < level else (low, middle)
    return low


def _at_least(count: int, total: int, share: float) -> float:
    """Probability of ``count`` or more of ``total``, where each is one with probability ``share`` < count / total."""
    ways = math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
    term = math.exp(ways + count * math.log(share) + (total - count) * math.log1p(-share))
    found, odds = term, share / (1 - share)
    while count < total and term > 1e-12 * found:  # terms get smaller beyond the mean
        term *= (total - count) / (count + 1) * odds
        count += 1
        found += term
    return found


def wilson(count: int, total: int, z: float) -> tuple[float, float]:
    """Interval around a share (Wilson, 1927); (0, 1) where nothing was counted."""
    if not total:
        return 0.0, 1.0
    share, square = count / total, z * z
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = z / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def _check_fit(bundle: Bundle, percent: float) -> None:
    manifest = bundle.manifest
    failed = [a.file for a in manifest.artifacts if a.parity is not None and not a.parity.passed]
    if failed:
        raise ReleaseError(
            f"{bundle.folder}: {failed[0]} was exported with --allow-mismatch; only what passed parity is released"
        )
    if manifest.task is not None:
        raise ReleaseError(f"{bundle.folder} was condensed for one task; release the bank it was made of")
    if not manifest.has_encoder or any(head.self_test is None for head in manifest.heads):
        raise ReleaseError(
            f"{bundle.folder} has no encoder or no self-test; export it whole: files that devices have"
            " already are not sent again"
        )
    if not 0 < percent <= 100:
        raise ReleaseError(f"--percent {percent}: expected more than 0 and at most 100")


def _programs(bundle: Bundle) -> Iterator[Program]:
    """What each complete recogniser of a bundle needs."""
    for target in bundle.targets():
        parts = [a for a in bundle.manifest.artifacts if (a.runtime, a.precision) == target]
        space = bundle.artifact("encoder", *target).feature_space or ""
        newest = max((a.min_runtime_version for a in parts), key=version_numbers)
        yield Program(target=":".join(target), min_version=newest, feature_space=space)


def _of(channel: Channel, number: int) -> Release:
    for release in channel.releases:
        if release.number == number:
            return release
    known = ", ".join(str(release.number) for release in channel.releases) or "none"
    raise ReleaseError(f"--number {number}: the class {channel.device_class} has releases {known}")


def _with(channel: Channel, changed: Release) -> Channel:
    return _changed(channel, tuple(changed if r.number == changed.number else r for r in channel.releases))


def _changed(channel: Channel, releases: tuple[Release, ...]) -> Channel:
    return msgspec.structs.replace(channel, releases=releases, serial=channel.serial + 1)


def read_reports(path: Path | None) -> list[Report]:
    """Counts of devices: a JSON list; none where no file is given.

    Raises:
        ReleaseError: it is something else.
    """
    if path is None:
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Report])
    except (OSError, msgspec.DecodeError) as error:
        raise ReleaseError(f"--reports {path}: expected a JSON list of counts ({error})") from None
