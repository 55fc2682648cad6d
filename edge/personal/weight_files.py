"""Files of personal weights: what their names say, how they are written, opened and verified."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from refocus.edge.bundle.personal_weights import TENSORS, Carrier, NewWeights, PersonalWeights
from refocus.edge.bundle.tensor_file import decode_tensors, encode_tensors
from refocus.edge.errors import PersonalWeightsError

_TENSORS = TENSORS[1:]
# Carrier -> suffixes of files that it takes instead of tensors.
_FILES: dict[str, tuple[str, ...]] = {"inputs": (), "weights": ("ptd",), "whole": ("onnx", "pte")}
PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MODEL = re.compile(r"[0-9a-f]{64}")
METHOD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
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


def entry_of(path: Path) -> Entry | None:
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


def last_use(entry: Entry) -> tuple[int, Path]:
    """Sorts entries, the least recently used first."""
    return entry.used_ns, entry.path


def check_name(pattern: re.Pattern[str], value: str, what: str) -> None:
    """Names become parts of paths.

    Raises:
        PersonalWeightsError: the value could lead out of the folder.
    """
    if not pattern.fullmatch(value):
        raise PersonalWeightsError(f"{what} {value[:80]!r}: expected {pattern.pattern}; names must stay in the folder")


def open_verified(entry: Entry) -> PersonalWeights | None:
    """Maps one file and compares it with the SHA-256 of its name; None if it was changed.

    Raises:
        FileNotFoundError: another process removed it just now.
        PersonalWeightsError: it cannot be read, or is whole and no file of tensors.
    """
    path = entry.path
    try:
        with _regular(path, os.O_NOFOLLOW) as (descriptor, size):
            content = memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b"")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PersonalWeightsError(f"{path} cannot be read ({error.strerror}); check its rights") from None
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        return None
    tensors = decode_tensors(content, str(path)) if path.suffix == f".{_TENSORS}" else {}
    return PersonalWeights(entry.carrier, entry.method, entry.model, entry.sha256, path, content, tensors)


@contextlib.contextmanager
def _regular(path: Path, flags: int = 0) -> Iterator[tuple[int, int]]:
    """Descriptor and size of a regular file; a FIFO is not waited for.

    Raises:
        OSError: it is something else, or cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def parts_of(weights: NewWeights) -> tuple[str, Iterable[bytes | memoryview]]:
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
    with contextlib.ExitStack() as stack:
        try:
            descriptor, _ = stack.enter_context(_regular(file))
        except OSError as error:
            raise PersonalWeightsError(f"{file} cannot be read ({error.strerror}); fetch the weights again") from None
        while chunk := os.read(descriptor, _CHUNK):
            yield chunk


def write(stream: int, parts: Iterable[bytes | memoryview], max_bytes: int) -> str:
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
