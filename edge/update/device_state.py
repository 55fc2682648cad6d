"""The releases on a device: one folder each, and one small record that says which of them serves.

The record is replaced as a whole, by one rename that is on the disk before it counts, so a kill or a power cut leaves
exactly one stage. docs/decisions/0019-updates.md draws the stages.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Concatenate, Final, Literal, ParamSpec

import msgspec

from refocus.edge.bundle.load import Bundle
from refocus.edge.bundle.manifest import NonNegative, Sha256, Strict
from refocus.edge.errors import UpdateError
from refocus.edge.files import file_sha256, locked, write_durably
from refocus.edge.update.rules import ClassName, File, Release, Report

RECORD = "record.json"
RECORD_VERSION: Final = 2  # of a new record: Refocus 0.2; 1 is Refocus 0.1
STAGING = ".staging"
LONGEST_WAIT = timedelta(days=7)  # until a postponed release is tried again
P = ParamSpec("P")
_SINCE_2 = ("postponed",)  # fields that a record of number 1 has not; each new field belongs here

# settled: `active` serves; `previous` is kept, with its history, to return to.
# staging: as before; files of `candidate` are being fetched.
# testing: as before; `candidate` is whole and verified, and has to prove itself.
# moving: as before, but person by person the history moves to `candidate`, which serves those who are warm.
# trial: `candidate` has become `active`; the first process that serves lets it answer one of its own photos.
# returning: `active` serves again everybody; what was stored for `candidate` alone is taken back.
StageName = Literal["settled", "staging", "testing", "moving", "trial", "returning"]


class Slot(Strict, frozen=True):
    """One release on this device.

    Attributes:
        number: of the release; 0 for a bundle that was there before any.
        space: feature space of the programs that this device runs.
    """

    number: NonNegative
    identity: Sha256
    name: str
    space: Sha256

    @property
    def folder(self) -> str:
        return f"{self.number}-{self.identity[:16]}"


class Outcome(Strict, frozen=True):
    """How one update ended: "committed", "refused" before it served anybody, or "returned" after it had."""

    number: NonNegative
    identity: Sha256
    outcome: Literal["committed", "refused", "returned"]
    why: str = ""


class TrustedVersions(Strict, frozen=True):
    """The newest metadata this device has trusted, kept apart from that metadata: a wiped cache forgets nothing.

    Attributes:
        versions: by role; with the identities of the keys that signed it, because new keys may begin again.
        clock: when that was; a clock that is earlier now is wrong.
    """

    versions: dict[str, tuple[int, str]] = msgspec.field(default_factory=dict)
    clock: datetime | None = None


class Postponed(Strict, frozen=True):
    """A release whose tests were interrupted again and again, which says nothing about the release.

    Attributes:
        times: it was postponed; each wait is twice the one before.
        until: when it may be tried again.
        why: what interrupted it.
    """

    times: NonNegative
    until: datetime
    why: str = ""

    def waits(self, now: datetime) -> bool:
        """Whether it is too early; a wait that is longer than any comes from a wrong clock and does not count."""
        return now < self.until <= now + LONGEST_WAIT


class UpdateState(Strict, frozen=True):
    """The persistent update state of a device.

    Attributes:
        device: random identity; never sent anywhere.
        attempts: tests of the candidate, or of the release on trial, that were begun and not ended.
        release: the candidate's, from the signed channel.
        refused: releases that are not tried again, by identity: why.
        postponed: releases that are tried again later, by identity.
        schema_version: a record of number 1 keeps it until it holds what number 1 has not, so that a device that goes
            back to Refocus 0.1 still serves.
    """

    device: str
    device_class: ClassName
    url: str
    schema_version: Literal[1, 2] = RECORD_VERSION
    stage: StageName = "settled"
    active: Slot | None = None
    previous: Slot | None = None
    candidate: Slot | None = None
    release: Release | None = None
    attempts: NonNegative = 0
    refused: dict[str, str] = msgspec.field(default_factory=dict)
    postponed: dict[str, Postponed] = msgspec.field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()
    seen: TrustedVersions = TrustedVersions()


def encode_record(record: UpdateState) -> bytes:
    """A record as JSON, at its own number if that has all that it holds, else at the newest."""
    fields = msgspec.to_builtins(record)
    if record.schema_version == 1:
        newer = {name: fields.pop(name) for name in _SINCE_2}
        if any(newer.values()) or (record.release is not None and record.release.critical):
            fields |= newer | {"schema_version": RECORD_VERSION}
    return msgspec.json.encode(fields)


class Slots:
    """The releases installed on a device: folder and update state.

    Raises:
        UpdateError: the folder has no update state, or a newer Refocus wrote it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read()

    @classmethod
    def create(cls, folder: Path, device_class: str, url: str, root: bytes) -> Slots:
        """Makes the folder; ``root`` is the metadata in which all trust begins.

        Raises:
            UpdateError: there is one already, or no class can have that name.
        """
        try:
            msgspec.convert(device_class, ClassName)
        except msgspec.ValidationError:
            raise UpdateError(
                f"--device-class {device_class}: expected small letters, digits and -, at most 32"
            ) from None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (folder / RECORD).exists():
            raise UpdateError(f"{folder} is set up already; refocus update status says how")
        write_durably(folder / "root.json", root)
        record = UpdateState(device=secrets.token_hex(16), device_class=device_class, url=url)
        write_durably(folder / RECORD, encode_record(record))
        return cls(folder)

    def lacks_first(self, device_class: str, url: str, root: bytes) -> bool:
        """Whether the folder was set up like this, and no release came into it."""
        record = self.read()
        same = (record.device_class, record.url, self.root) == (device_class, url, root)
        return same and record.active is None and record.candidate is None

    @property
    def root(self) -> bytes:
        """The metadata in which all trust begins."""
        return (self.folder / "root.json").read_bytes()

    def read(self) -> UpdateState:
        """The stored state.

        Raises:
            UpdateError: there is none, or a newer Refocus wrote it.
        """
        path = self.folder / RECORD
        try:
            return msgspec.json.decode(path.read_bytes(), type=UpdateState)
        except FileNotFoundError:
            raise UpdateError(f"{self.folder} is not set up for updates; run refocus update init first") from None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UpdateError(f"{path} cannot be read ({error}); a newer refocus may have written it") from None

    def change(
        self, transition: Callable[Concatenate[UpdateState, P], UpdateState | None], *given: P.args, **more: P.kwargs
    ) -> UpdateState:
        """Makes one transition, and returns the state after it.

        Args:
            transition: from the stored state, and what is given beside, to the next state; None leaves it.
        """
        with locked(self.folder / ".record.lock"):
            before = self.read()
            after = transition(before, *given, **more)
            if after is None:
                return before
            content = encode_record(after)
            write_durably(self.folder / RECORD, content)
            return msgspec.json.decode(content, type=UpdateState)

    def mark(self) -> tuple[int, int]:
        """A value that differs after every change of the record; costs microseconds.

        Raises:
            UpdateError: there is no record.
        """
        try:
            status = (self.folder / RECORD).stat()
        except OSError as error:
            raise UpdateError(f"{self.folder / RECORD} cannot be read ({error.strerror}); check the folder") from None
        return status.st_ino, status.st_mtime_ns

    def path(self, slot: Slot) -> Path:
        """The folder of an installed bundle."""
        return self.folder / "slots" / slot.folder

    def staging(self, slot: Slot) -> Path:
        """Where a release is put together."""
        return self.folder / "slots" / (slot.folder + STAGING)

    def working(self) -> contextlib.AbstractContextManager[bool]:
        """One worker at a time; False for a second one."""
        return locked(self.folder / ".worker.lock", wait=False)

    def trying(self) -> contextlib.AbstractContextManager[bool]:
        """One process at a time tries a release; the others wait until it has, or is dead."""
        return locked(self.folder / ".trial.lock")

    def looking(self) -> contextlib.AbstractContextManager[bool]:
        """One process at a time asks the repository; False for a second one."""
        return locked(self.folder / ".look.lock", wait=False)

    def sweep(self) -> None:
        """Removes what no slot of the record names: given up, replaced, or left by a kill."""
        record = self.read()
        kept = {slot.folder for slot in (record.active, record.previous, record.candidate) if slot}
        if record.candidate and record.stage == "staging":
            kept.add(record.candidate.folder + STAGING)
        for path in (self.folder / "slots").glob("*"):
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def merged(one: TrustedVersions, other: TrustedVersions) -> TrustedVersions:
    """The newest of what two looks have seen, which may have ended in the other order.

    Of a role with two keys, the one counts that a newer root, or newer targets, name.
    """
    versions = dict(one.versions)
    newer = _rank(other) > _rank(one)
    for role, (version, key) in other.versions.items():
        known = versions.get(role)
        if known is None or (version > known[0] if key == known[1] else newer):
            versions[role] = (version, key)
    clocks = [clock for clock in (one.clock, other.clock) if clock is not None]
    return TrustedVersions(versions=versions, clock=max(clocks, default=None))


def _rank(seen: TrustedVersions) -> tuple[int, ...]:
    """Grows with the metadata that names keys."""
    return tuple(seen.versions.get(role, (0, ""))[0] for role in ("root", "targets"))


def counted(record: UpdateState) -> list[Report]:
    """How each release went here, in counts; the last end of each counts."""
    last = {outcome.identity: outcome.outcome for outcome in record.outcomes}
    return [Report(identity=identity, **{outcome: 1}) for identity, outcome in last.items()]


def files_of(bundle: Bundle) -> tuple[File, ...]:
    """The files of a verified bundle, each with its identity."""
    found = ((name, bundle.folder / name) for name in bundle.files())
    return tuple(File(path=name, sha256=file_sha256(path), size_bytes=path.stat().st_size) for name, path in found)
