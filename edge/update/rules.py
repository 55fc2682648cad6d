"""What a repository tells devices about releases, as types, and the rules by which a device chooses one: no I/O here.

One small signed document per device class, its *channel*, lists the releases. Their files are named by their SHA-256,
so what two releases share is stored, and downloaded, once. The format is docs/formats/release-channel.md.

Unknown fields of a channel are ignored, because a device must hear of a withdrawal from whatever Refocus published it.
A field that must not be ignored is named in ``critical`` beside it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec

from refocus.edge.bundle.load import MANIFEST
from refocus.edge.bundle.manifest import (
    MAX_ARTIFACT_BYTES,
    OLDEST_SCHEMA,
    SCHEMA_VERSION,
    NonNegative,
    Positive,
    Sha256,
    Strict,
    check_members,
    check_stays_inside,
)
from refocus.edge.bundle.precision import find_named_target
from refocus.edge.errors import UpdateError
from refocus.edge.runtimes.base import version_numbers

MAX_CHANNEL_BYTES = 8 << 20
MAX_RELEASES = 64  # that a channel lists; older ones are of no use to anybody
MAX_FILES = 4096  # of one release
MAX_NUMBER = 2**31 - 1  # of a release, and of any version that a device remembers
MAX_TEXT = 500  # characters of a name or a reason
PART = ".part"  # ending of a file that is being downloaded
CHANNEL = "channel.json"
CHANNEL_VERSION: Final = 2  # of a new channel: Refocus 0.2; 1 is Refocus 0.1

Number = Annotated[int, msgspec.Meta(gt=0, le=MAX_NUMBER)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
ClassName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9-]{0,31}\Z")]


class File(Strict, frozen=True, forbid_unknown_fields=False):
    """One file of a bundle; where it lies in it, and its identity."""

    path: str
    sha256: Sha256
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_ARTIFACT_BYTES)]

    def __post_init__(self) -> None:
        check_stays_inside(self.path)
        parts = self.path.split("/")
        if "." in parts or any(part.endswith(PART) for part in parts):
            raise ValueError(f"file {self.path!r}: expected no part that is '.' or ends with {PART}")


class Program(Strict, frozen=True, forbid_unknown_fields=False):
    """What a release needs of a device to run on one target.

    Attributes:
        target: runtime and precision, as ``onnxruntime:fp32``.
        min_version: of the runtime.
        feature_space: of its encoder.
    """

    target: str
    min_version: str
    feature_space: Sha256


class Release(Strict, frozen=True, forbid_unknown_fields=False):
    """One bundle, offered to devices.

    Attributes:
        number: grows with every release of the class; a device never goes to a lower one unless its own is withdrawn,
            or is newer than the newest one listed.
        name: of the bundle.
        files: all of them, the manifest among them.
        programs: one per target that a device may run.
        manifest_schema: of the bundle's manifest.
        min_refocus: oldest version of Refocus that can serve it.
        percent: of the devices that may take it.
        published: when.
        withdrawn: why no device may keep it; "" for one that is fine.
        critical: fields that a device must know to take this release, as ``NAME``, ``programs.NAME`` or ``files.NAME``.
    """

    number: Number
    name: str
    files: tuple[File, ...]
    programs: tuple[Program, ...]
    manifest_schema: Positive
    min_refocus: str
    percent: Percent
    published: datetime
    withdrawn: str = ""
    critical: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        paths = [file.path for file in self.files]
        if len(paths) > MAX_FILES or len(set(paths)) < len(paths) or MANIFEST not in paths:
            raise ValueError(f"release {self.number}: expected at most {MAX_FILES} distinct files, {MANIFEST} too")
        if clash := _clash(paths):
            raise ValueError(
                f"release {self.number}: {clash} is two files, or a file and a folder, on some file system"
            )
        for text in (self.name, self.withdrawn, *(program.target for program in self.programs)):
            if len(text) > MAX_TEXT or not text.isprintable():
                raise ValueError(
                    f"release {self.number}: {printable(text)[:80]}: expected at most {MAX_TEXT} printable characters"
                )
        if not self.programs:
            raise ValueError(f"release {self.number} runs nowhere: its programs are empty")

    @property
    def identity(self) -> str:
        """What a device compares, never a number alone."""
        return identity_of(self.files)

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(file.size_bytes for file in self.files)

    def program(self, target: str) -> Program | None:
        """The programs of a target; either side may use an old name of a precision."""
        found = find_named_target(target, [program.target for program in self.programs])
        return next((program for program in self.programs if program.target == found), None)


class Channel(Strict, frozen=True, forbid_unknown_fields=False):
    """The releases of one device class, oldest first.

    Attributes:
        serial: grows with every change.
        schema_version: a channel keeps the number it was made with until it holds what that number has not: devices of
            Refocus 0.1 read 1 alone.
        critical: fields of the channel itself that a reader must know; none of it is used otherwise.
    """

    device_class: ClassName
    serial: Positive
    schema_version: Literal[1, 2] = CHANNEL_VERSION
    releases: tuple[Release, ...] = ()
    critical: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        unknown = [name for name in self.critical or () if name not in self.__struct_fields__]
        if unknown:
            raise ValueError(f"its field '{unknown[0]}' must be understood, and is not known")
        if self.schema_version == 1 and self.critical_lists:
            raise ValueError("number 1 has no field 'critical'")
        numbers = [release.number for release in self.releases]
        if len(numbers) > MAX_RELEASES or numbers != sorted(set(numbers)):
            raise ValueError(f"releases are {numbers}; expected at most {MAX_RELEASES}, in order")

    @property
    def critical_lists(self) -> list[tuple[str, ...]]:
        """Every list of critical fields, of the channel and of its releases."""
        found = [self.critical, *(release.critical for release in self.releases)]
        return [names for names in found if not isinstance(names, msgspec.UnsetType)]

    def of(self, identity: str) -> Release | None:
        """The newest release of these files."""
        return next((release for release in reversed(self.releases) if release.identity == identity), None)


class Report(Strict, frozen=True):
    """How a release went, in counts: of one device, or added up over many. Nothing else is ever sent, and that only if
    the owner asks for it.
    """

    identity: Sha256
    committed: NonNegative = 0
    refused: NonNegative = 0
    returned: NonNegative = 0

    @property
    def total(self) -> int:
        """Ends of updates that were counted; one that was committed and returned later counts as returned."""
        return self.committed + self.refused + self.returned


_KNOWN = {
    *Release.__struct_fields__,
    *(f"{part}.{name}" for part, kind in (("programs", Program), ("files", File)) for name in kind.__struct_fields__),
}  # what a release may name in `critical`


@dataclass(frozen=True)
class Device:
    """What a device says about itself, to itself: nothing of it is sent.

    Attributes:
        identity: random, made once; decides when a staged release reaches this device.
        runtime, precision: of the programs it runs.
        runtime_version, refocus: versions installed.
    """

    identity: str
    device_class: str
    runtime: str
    precision: str
    runtime_version: str
    refocus: str


def identity_of(files: Iterable[File]) -> str:
    """Hash of names and contents of all files of a bundle."""
    lines = sorted(f"{file.path} {file.sha256}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def printable(text: str) -> str:
    """Text from outside for a terminal or a log: one line of at most ``MAX_TEXT`` characters, the rest escaped."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return plain if len(plain) <= MAX_TEXT else plain[: MAX_TEXT - 3] + "..."


def decode_channel(content: bytes, where: str) -> Channel:
    """Reads and validates a channel.

    Raises:
        UpdateError: not one, or one of a newer Refocus.
    """
    try:
        check_members(content)
        return msgspec.json.decode(content, type=Channel)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = printable(str(error))
        raise UpdateError(f"{where} holds no releases that this refocus can read ({why}); update refocus") from None


def check_whole(content: bytes, where: str) -> None:
    """Whoever changes a channel must understand all of it: fields that are not known would be lost.

    Raises:
        UpdateError: a newer Refocus wrote it.
    """
    unknown = _unknown(msgspec.json.decode(content), msgspec.to_builtins(decode_channel(content, where)))
    if unknown:
        raise UpdateError(
            f"{where} has the field '{unknown}', which a newer refocus wrote and this one would lose; update refocus"
            " before you publish"
        )


def _unknown(found: object, known: object) -> str:
    """The first field, with its path, that one document has and the other has not; "" if there is none."""
    if isinstance(found, list) and isinstance(known, (list, tuple)):
        return next(filter(None, map(_unknown, found, known)), "")
    if not isinstance(found, dict) or not isinstance(known, dict):
        return ""
    for name, value in found.items():
        if name not in known:
            return str(name)
        if inner := _unknown(value, known[name]):
            return f"{name}.{inner}"
    return ""


def encode_channel(channel: Channel) -> bytes:
    """A channel as stable JSON."""
    return msgspec.json.encode(channel, order="deterministic")


def _clash(paths: Iterable[str]) -> str:
    """A path that is another one's folder, or differs from another one in case alone; "" if there is none."""
    folded = sorted(path.casefold().split("/") for path in paths)
    clashes = (path for path, after in itertools.pairwise(folded) if after[: len(path)] == path)
    return "/".join(next(clashes, []))


def blob_path(sha256: str) -> str:
    """Where a file lies in a repository, below ``targets/``."""
    return f"files/{sha256[:2]}/{sha256}"


def bucket(device: str, release: Release) -> float:
    """Where in [0, 100) a device stands for a release; another order of devices for each, so that not always the same
    people go first."""
    digest = hashlib.sha256(f"{device}:{release.identity}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 * 100


def wanted(channel: Channel, device: str, active: int, withdrawn: bool, refused: Collection[str]) -> Release | None:
    """The release that a device should take next; None if it has the right one.

    Args:
        active: number of the installed release, 0 for none.
        withdrawn: whether it is withdrawn: then older ones count too.
        refused: identities that this device found unfit.
    """
    for release in reversed(channel.releases):
        if release.number == active or (release.number < active and not withdrawn):
            continue
        if not release.withdrawn and release.identity not in refused and bucket(device, release) < release.percent:
            return release
    return None


def misfit(release: Release, channel: Channel, device: Device) -> str:
    """Why a device cannot run a release, "" if it can; known before anything is downloaded."""
    target = f"{device.runtime}:{device.precision}"
    program = release.program(target)
    if channel.device_class != device.device_class:
        return f"it is for devices of the class {channel.device_class}, this is a {device.device_class}"
    if not OLDEST_SCHEMA <= release.manifest_schema <= SCHEMA_VERSION:
        reads = f"{OLDEST_SCHEMA} to {SCHEMA_VERSION}"
        return f"its manifest has schema {release.manifest_schema}, this refocus reads {reads}"
    if unknown := [name for name in release.critical or () if name not in _KNOWN]:
        return f"its field '{unknown[0]}' must be understood, and this refocus does not know it"
    if version_numbers(device.refocus) < version_numbers(release.min_refocus):
        return f"it needs refocus {release.min_refocus}, this is {device.refocus}"
    if program is None:
        return f"it has no programs for {target}, only for {', '.join(p.target for p in release.programs)}"
    if version_numbers(device.runtime_version) < version_numbers(program.min_version):
        return f"it needs {device.runtime} {program.min_version}, this device has {device.runtime_version}"
    return ""
