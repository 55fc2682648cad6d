"""Personal weights on disk: per profile and model version, bounded, verified, mapped into memory.

A file's name says everything about it: ``<profile>/<model>.<sha256>.<carrier>.<method>.<suffix>``. So there is no
index that could be lost or could disagree with the files, one rename puts an entry in place, and a kill at any moment
leaves either the older weights or the newer ones, both whole. A file's time is that of its last use. Files are never
written in place, so what is mapped stays what was verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from refocus.edge.bundle.personal_weights import TENSORS, Carrier, NewWeights, PersonalWeights
from refocus.edge.bundle.tensor_file import decode_tensors, encode_tensors
from refocus.edge.errors import PersonalWeightsError
from refocus.edge.files import NOT_WRITABLE, locked, open_regular, reason, sweep, sync_folder

MAX_BYTES = 512 * 1024**2
KEPT_MAPPED = 64  # weights that one cache object keeps mapped and need not verify again
_DAMAGED = ".damaged"
_WRITING = ".writing-"
_TENSORS = TENSORS[1:]
# Carrier -> suffixes of files that it takes instead of tensors.
_FILES: dict[str, tuple[str, ...]] = {"inputs": (), "weights": ("ptd",), "whole": ("onnx", "pte")}
_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MODEL = re.compile(r"[0-9a-f]{64}")
_METHOD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_ENTRY = re.compile(
    r"([0-9a-f]{64})\.([0-9a-f]{64})\.(inputs|weights|whole)\.([A-Za-z0-9_-]{1,40})\.(safetensors|ptd|onnx|pte)"
)
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """What the cache holds for one profile and model version; fields as of :class:`PersonalWeights`.

    Attributes:
        used_ns: when it was last used; entries are ordered by it. Nanoseconds since 1970 where the clock is right.
    """

    profile: str
    model: str
    method: str
    carrier: Carrier
    sha256: str
    size_bytes: int
    used_ns: int
    path: Path


class PersonalWeightStore:
    """The personal weights of every profile on a device.

    Several processes may use one folder; they wait for each other only while files are found, renamed or removed, not
    while they are written or verified. From a folder that cannot be written, as on a read-only file system, weights are
    served all the same; when they were used is not kept then.

    Args:
        folder: made, for its owner only, if it is missing.
        max_bytes: of all entries; the least recently used go first. A file being written counts once it is whole.
        sync: whether weights are on the disk, not only in the system's memory, before they count as kept. Without it
            a power cut may damage the newest, which is then found when they are next read.

    Raises:
        PersonalWeightsError: the folder cannot be made or read.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES, sync: bool = True) -> None:
        self.folder, self.max_bytes, self.sync = folder.resolve(), max_bytes, sync
        self._lock = self.folder / ".lock"
        self._mapped: dict[tuple[str, str], PersonalWeights] = {}  # least recently used first
        with self._exclusive(reads=True):  # a folder without rights is noticed here
            self._last_use_ns = self._lock.stat().st_mtime_ns if self._lock.exists() else 0

    @classmethod
    def beside(cls, profiles: Path) -> PersonalWeightStore | None:
        """What was learned for the people of a folder of profiles; None if nothing ever was."""
        folder = profiles / "weights"
        return cls(folder) if folder.is_dir() else None

    def put(self, profile: str, model: str, weights: NewWeights) -> Entry:
        """Keeps one person's weights for one model version, instead of older ones; survives a kill once it returns.

        Raises:
            PersonalWeightsError: a name that could leave the folder, weights that are none, larger than the whole
                cache, a full disk, or a folder that cannot be written. What was there before is then unchanged.
        """
        return self._put(profile, model, weights, ())

    def put_each(self, profile: str, models: Sequence[str], weights: NewWeights) -> list[Entry]:
        """:meth:`put` for several model versions, each with a copy of its own; none of them pushes another out.

        Raises:
            PersonalWeightsError: all copies together are larger than the whole cache, and nothing is changed; or as
                :meth:`put`, of one of them.
        """
        _, parts = _parts_of(weights)
        size = sum(map(len, parts))
        if size * len(models) > self.max_bytes:
            raise PersonalWeightsError(
                f"the weights have {size} bytes, {size * len(models)} with a copy for each target of the bundle: more"
                f" than the {self.max_bytes} bytes that the whole cache may have; export the bundle for fewer targets,"
                " or raise max_bytes"
            )
        entries: list[Entry] = []
        for model in models:
            entries.append(self._put(profile, model, weights, [entry.path for entry in entries]))
        return entries

    def _put(self, profile: str, model: str, weights: NewWeights, kept: Sequence[Path]) -> Entry:
        """As :meth:`put`.

        Args:
            kept: files that do not give way.
        """
        _check_name(_PROFILE, profile, "profile")
        _check_name(_MODEL, model, "model")
        _check_name(_METHOD, weights.method, "method")
        suffix, parts = _parts_of(weights)
        with self._writing() as (stream, temporary):
            sha256 = _write(stream, parts, self.max_bytes)
            if self.sync:
                os.fsync(stream)
            path = self.folder / profile / f"{model}.{sha256}.{weights.carrier}.{weights.method}.{suffix}"
            with self._exclusive():
                self._check_own(path.parent)
                path.parent.mkdir(exist_ok=True, mode=0o700)
                older = [entry.used_ns for entry in self._of(path.parent, model)]
                self._last_use_ns = max([self._last_use_ns, *older])
                self._use(temporary)  # of two, the one that was used last is served: this one from now on
                temporary.replace(path)
                if self.sync:
                    sync_folder(path.parent)
                for other in path.parent.glob(f"{model}.*"):
                    if other != path:
                        other.unlink(missing_ok=True)
                self._use(self._lock)
                self._mapped.pop((profile, model), None)
                self._make_room({path, *kept})
                return cast(Entry, _entry_of(path))

    def get(self, profile: str, model: str) -> PersonalWeights | None:
        """One person's weights for exactly this model version; None if there are none.

        They are verified when this object first opens them, which reads them once; later calls cost microseconds.

        Raises:
            PersonalWeightsError: the file was changed or cannot be read. A changed one is set aside, so that the next
                call returns None, unless the folder cannot be written.
        """
        weights = self._mapped.get((profile, model))
        if weights is not None and self._use(weights.path):
            self._mapped[profile, model] = self._mapped.pop((profile, model), weights)  # the last now; threads share it
            return weights
        _check_name(_PROFILE, profile, "profile")
        _check_name(_MODEL, model, "model")
        # Another process may replace or remove what was just found; then look again.
        while entry := self._newest(profile, model):
            weights = self._open(entry)
            if weights is not None and self._use(weights.path):
                self._use(self._lock)  # its time carries the order of uses over a restart with a wrong clock
                self._mapped[profile, model] = weights
                while len(self._mapped) > KEPT_MAPPED:
                    with contextlib.suppress(KeyError, RuntimeError):  # another thread was faster
                        self._mapped.pop(next(iter(self._mapped)))
                return weights
        return None

    def drop(self, profile: str, model: str | None = None) -> int:
        """Removes a person's weights (their right), of one model version or of all, damaged ones too.

        Returns:
            Number of files removed. Storage may keep bytes of removed files until it needs the room.
        """
        _check_name(_PROFILE, profile, "profile")
        if model is not None:
            _check_name(_MODEL, model, "model")
        folder = self.folder / profile
        self._check_own(folder)
        with self._exclusive():
            gone = list(folder.glob(f"{model or ''}*"))
            for path in gone:
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # other models' weights are still in it, or it never was
                folder.rmdir()
        return len(gone)

    def holds(self, profile: str) -> bool:
        """Whether there is any file of a person, for whatever model version, a damaged one too."""
        return _PROFILE.fullmatch(profile) is not None and any(self.folder.glob(f"{profile}/*"))

    def entries(self) -> list[Entry]:
        """Everything that would be served, least recently used first."""
        found: dict[tuple[str, str], Entry] = {}
        with self._exclusive(reads=True):
            entries = sorted(self._all(), key=_last_use)
        for entry in entries:
            found.pop((entry.profile, entry.model), None)
            found[entry.profile, entry.model] = entry
        return list(found.values())

    def _all(self) -> Iterator[Entry]:
        with os.scandir(self.folder) as folders:
            for folder in folders:
                if folder.is_dir(follow_symlinks=False):
                    yield from self._of(Path(folder.path))

    def _of(self, folder: Path, model: str = "") -> Iterator[Entry]:
        """Whole entries of one profile; during a replacement there may be two of one model."""
        try:
            names = os.listdir(folder)  # noqa: PTH208  # half the time of Path.iterdir
        except FileNotFoundError:
            return
        except OSError as error:
            raise PersonalWeightsError(
                f"{folder} cannot be read as a folder of personal weights ({error.strerror}); check it and its rights"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            for name in names:
                entry = _entry_of(folder / name) if name.startswith(model) else None
                if entry is not None:
                    yield entry

    def _newest(self, profile: str, model: str) -> Entry | None:
        self._check_own(self.folder / profile)
        with self._exclusive(reads=True):  # a listing during a replacement may show neither file
            return max(self._of(self.folder / profile, model), key=_last_use, default=None)

    def _check_own(self, folder: Path) -> None:
        """A profile's folder is its own, not a link to another's.

        Raises:
            PersonalWeightsError: it is a link.
        """
        if folder.is_symlink():
            raise PersonalWeightsError(
                f"{folder} is a link, so the weights behind it may be another person's; remove the link"
            )

    def _open(self, entry: Entry) -> PersonalWeights | None:
        """Verifies and maps one file; None if another process removed it just now."""
        try:
            weights = _open_verified(entry)
            if weights is not None:
                return weights
            with self._exclusive(reads=True):
                weights = _open_verified(entry)  # unless another process put it there anew meanwhile
                if weights is None:
                    entry.path.rename(entry.path.with_name(entry.path.name + _DAMAGED))
        except FileNotFoundError:
            return None
        except OSError as error:
            aside = f"it cannot be set aside ({reason(error)})"
        else:
            aside = "it was set aside"
        if weights is None:
            raise PersonalWeightsError(
                f"{entry.path} was changed: its SHA-256 is not that of its name; {aside}, fetch the weights of profile"
                f" {entry.profile} again"
            )
        return weights

    def _make_room(self, kept: set[Path]) -> None:
        """Removes damaged files, then the least recently used entries but ``kept``, until the rest fits."""
        for damaged in self.folder.glob(f"*/*{_DAMAGED}"):
            damaged.unlink(missing_ok=True)
        entries = sorted(self._all(), key=_last_use)
        total = sum(entry.size_bytes for entry in entries)
        for entry in entries:
            if total <= self.max_bytes:
                return
            if entry.path not in kept:
                entry.path.unlink(missing_ok=True)
                total -= entry.size_bytes
                with contextlib.suppress(OSError):  # not empty
                    entry.path.parent.rmdir()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[int, Path]]:
        """A new file, open for writing and locked while its writer lives; gone afterwards unless it was renamed."""
        import fcntl

        temporary = self.folder / f"{_WRITING}{os.getpid()}-{time.monotonic_ns()}"
        try:
            with self._exclusive():
                sweep(self.folder, f"{_WRITING}*")
                stream = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                fcntl.flock(stream, fcntl.LOCK_EX)
            try:
                yield stream, temporary
            finally:
                os.close(stream)
                temporary.unlink(missing_ok=True)
        except OSError as error:
            what_to_do = "check its rights" if error.errno in NOT_WRITABLE else "free some space"
            raise PersonalWeightsError(
                f"{self.folder} cannot take the weights ({error.strerror}); what was there before is intact,"
                f" {what_to_do}"
            ) from None

    @contextlib.contextmanager
    def _exclusive(self, reads: bool = False) -> Iterator[None]:
        """Holds the folder's lock; opened again each time, so that a forked process has a lock of its own.

        Args:
            reads: as of :func:`refocus.edge.files.locked`.
        """
        with contextlib.ExitStack() as held:
            try:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                held.enter_context(locked(self._lock, reads=reads))
            except OSError as error:
                raise PersonalWeightsError(
                    f"{self.folder} cannot hold personal weights ({error.strerror}); check its rights"
                ) from None
            yield

    def _use(self, path: Path) -> bool:
        """Marks a file as the last used, also where the clock was set back; False if the file is gone. One whose time
        cannot be changed, as on a read-only file system, is served all the same.
        """
        self._last_use_ns = max(time.time_ns(), self._last_use_ns + 1)
        try:
            os.utime(path, ns=(self._last_use_ns, self._last_use_ns))
        except FileNotFoundError:
            return False
        except OSError:
            pass
        return True


def _entry_of(path: Path) -> Entry | None:
    """What a file's name and size say; None for a file that is no entry, or is gone."""
    named = _ENTRY.fullmatch(path.name)
    if named is None:
        return None
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):  # a link is refused when it is opened
        return None
    model, sha256, carrier, method, _ = named.groups()
    size, used = status.st_size, status.st_mtime_ns
    return Entry(path.parent.name, model, method, cast(Carrier, carrier), sha256, size, used, path)


def _last_use(entry: Entry) -> tuple[int, Path]:
    """Sorts entries, the least recently used first."""
    return entry.used_ns, entry.path


def _check_name(pattern: re.Pattern[str], value: str, what: str) -> None:
    """Names become parts of paths.

    Raises:
        PersonalWeightsError: the value could lead out of the folder.
    """
    if not pattern.fullmatch(value):
        raise PersonalWeightsError(f"{what} {value[:80]!r}: expected {pattern.pattern}; names must stay in the folder")


def _open_verified(entry: Entry) -> PersonalWeights | None:
    """Maps one file and compares it with the SHA-256 of its name; None if it was changed.

    Raises:
        FileNotFoundError: another process removed it just now.
        PersonalWeightsError: it cannot be read, or is whole and no file of tensors.
    """
    path = entry.path
    try:
        stream, size = open_regular(path, os.O_NOFOLLOW)
        with stream:
            content = memoryview(mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ) if size else b"")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PersonalWeightsError(f"{path} cannot be read ({error.strerror}); check its rights") from None
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        return None
    tensors = decode_tensors(content, str(path)) if path.suffix == f".{_TENSORS}" else {}
    return PersonalWeights(entry.carrier, entry.method, entry.model, entry.sha256, path, content, tensors)


def _parts_of(weights: NewWeights) -> tuple[str, Iterable[bytes | memoryview]]:
    """Suffix of the file that will hold them, and its bytes in pieces.

    Raises:
        PersonalWeightsError: tensors or a file that the carrier does not take, or a file that cannot be read.
    """
    if weights.file is None:
        return _TENSORS, encode_tensors(weights.tensors)
    suffix = weights.file.suffix[1:]
    if weights.tensors or suffix not in _FILES[weights.carrier]:
        takes = " or ".join(["tensors", *(f"a .{suffix} file" for suffix in _FILES[weights.carrier])])
        raise PersonalWeightsError(f"the carrier {weights.carrier} takes {takes}, got {weights.file}")
    return suffix, _chunks(weights.file)


def _chunks(file: Path) -> Iterator[bytes]:
    try:
        stream, _ = open_regular(file)
    except OSError as error:
        raise PersonalWeightsError(f"{file} cannot be read ({error.strerror}); fetch the weights again") from None
    with stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


def _write(stream: int, parts: Iterable[bytes | memoryview], max_bytes: int) -> str:
    """Writes everything and returns its SHA-256.

    Raises:
        PersonalWeightsError: there are more bytes than ``max_bytes``.
    """
    digest, size = hashlib.sha256(), 0
    for part in parts:
        size += len(part)
        if size > max_bytes:
            raise PersonalWeightsError(
                f"the weights have more than the {max_bytes} bytes that the whole cache may have; raise its max_bytes"
            )
        digest.update(part)
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(stream, rest) :]
    return digest.hexdigest()
