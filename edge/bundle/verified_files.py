"""Reading the files of a bundle: regular files only, each read once, checked, and used as they were checked.

No link below the bundle's folder is followed. Sizes are known and compared before a byte is read. What is returned is
a private copy: no later change of a file can reach it (docs/decisions/0021-closed-bundles.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import mmap
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from refocus.edge.bundle.manifest import check_stays_inside
from refocus.edge.errors import BundleError

IN_MEMORY = 256 * 1024**2  # bytes; a larger file is copied into an unnamed temporary file instead of memory
MAX_FILES = 4096  # in the folder of one artifact
MAX_DEPTH = 16
_CHUNK = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # does not wait for the other end of a FIFO

Content = bytes | memoryview
Files = Mapping[str, Content]  # by path below the artifact's folder; "" for an artifact that is one file
_Read = Callable[[int, int, Path], tuple[Content, str]]  # descriptor, size, path -> content and its SHA-256


def read_small(folder: Path, name: str, max_bytes: int) -> bytes:
    """The bytes of one regular file of at most ``max_bytes``.

    Raises:
        BundleError: it is larger, is not a regular file, or cannot be read.
    """
    path = folder / name
    with _opened(folder, name) as (descriptor, size):
        if size > max_bytes:
            raise BundleError(f"{path} has {size} bytes, at most {max_bytes} are read")
        return _in_memory(descriptor, size, path)[0]


def read_verified(
    folder: Path, file: str, sha256: str, size_bytes: int, keep: bool = True, scratch: Path | None = None
) -> Files:
    """Reads one file of a bundle, or one folder of files, and compares it with the manifest.

    Args:
        file: path below ``folder``.
        keep: False compares in constant memory, and returns nothing.
        scratch: folder for the copies of files above :data:`IN_MEMORY`; default: that for temporary files.

    Raises:
        BundleError: it leads out of the folder, is not made of regular files, cannot be read, or was changed.
    """
    path, sizes = folder / file, _sizes(folder, file)
    size = sum(sizes.values())
    if size != size_bytes:
        raise BundleError(f"{path} was changed: it has {size} bytes, the manifest says {size_bytes}; fetch it again")
    contents, digests = _read_all(folder, file, sizes, partial(_kept, scratch=scratch) if keep else _compared)
    if (digests[""] if "" in digests else tree_digest(digests)) != sha256:
        raise BundleError(f"{path} was changed: its SHA-256 differs from the manifest; fetch the bundle again")
    return contents if keep else {}


def tree_sha256(folder: Path) -> tuple[str, int]:
    """SHA-256 of a folder (of the sorted list of its files with the SHA-256 of each), and its size in bytes.

    Raises:
        BundleError: it holds something that is not a regular file, a name that no bundle may have, or cannot be read.
    """
    sizes = _sizes(folder, "")
    _, digests = _read_all(folder, "", sizes, _compared)
    return tree_digest(digests), sum(sizes.values())


def tree_digest(digests: Mapping[str, str]) -> str:
    """SHA-256 of a folder, from those of its files by their paths below it."""
    lines = (f"{name} {digests[name]}\n" for name in sorted(digests, key=lambda name: name.split("/")))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _read_all(folder: Path, file: str, sizes: Mapping[str, int], read: _Read) -> tuple[Files, dict[str, str]]:
    """Contents and SHA-256 of files whose sizes were just looked up, by name."""
    contents, digests = {}, {}
    for name, listed in sizes.items():
        below = "/".join(part for part in (file, name) if part)
        with _opened(folder, below) as (descriptor, size):
            if size != listed:
                raise _changes(folder / below)
            contents[name], digests[name] = read(descriptor, size, folder / below)
    return contents, digests


def _kept(descriptor: int, size: int, path: Path, scratch: Path | None) -> tuple[Content, str]:
    read = _in_memory if size <= IN_MEMORY else partial(_in_private_file, scratch=scratch)
    return read(descriptor, size, path)


def _in_memory(descriptor: int, size: int, path: Path) -> tuple[bytes, str]:
    with open(descriptor, "rb", closefd=False) as stream:
        content = stream.read(size)
    if len(content) != size:
        raise _changes(path)
    return content, hashlib.sha256(content).hexdigest()


def _compared(descriptor: int, size: int, path: Path) -> tuple[bytes, str]:
    digest = hashlib.sha256()
    for block in _blocks(descriptor, size, path):
        digest.update(block)
    return b"", digest.hexdigest()


def _in_private_file(descriptor: int, size: int, path: Path, scratch: Path | None) -> tuple[memoryview, str]:
    """Copies a file into one without a name, which no other user can open, and maps that."""
    digest = hashlib.sha256()
    blocks = _blocks(descriptor, size, path)
    try:
        with tempfile.TemporaryFile(dir=scratch) as copy:
            for block in blocks:
                digest.update(block)
                copy.write(block)
            copy.flush()
            mapped = mmap.mmap(copy.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BundleError(
            f"{scratch or tempfile.gettempdir()} cannot take a private copy of {path}, {size} bytes"
            f" ({error.strerror}); free space there, or set TMPDIR to a folder that has it"
        ) from None
    return memoryview(mapped), digest.hexdigest()


def _blocks(descriptor: int, size: int, path: Path) -> Iterator[bytes]:
    left = size
    while left:
        with _readable(path):
            block = os.read(descriptor, min(left, _CHUNK))
        if not block:
            raise _changes(path)
        left -= len(block)
        yield block


# ---- opening


@contextlib.contextmanager
def _opened(folder: Path, name: str) -> Iterator[tuple[int, int]]:
    """Descriptor and size of a regular file below a folder."""
    path = folder / name
    with _readable(path), contextlib.ExitStack() as stack:
        parent, last = _parent(stack, folder, name)
        _check_regular(os.stat(last, dir_fd=parent, follow_symlinks=False), path)  # opening a device can do something
        descriptor = _closing(stack, os.open(last, _FILE, dir_fd=parent))
        status = os.fstat(descriptor)
        _check_regular(status, path)
        yield descriptor, status.st_size


def _parent(stack: contextlib.ExitStack, folder: Path, name: str) -> tuple[int, str]:
    """Descriptor of the folder that a path below ``folder`` ends in, and the last part of the path."""
    *parents, last = name.split("/")
    place = _closing(stack, os.open(folder, _FOLDER))
    for part in parents:
        place = _closing(stack, os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=place))
    return place, last


def _closing(stack: contextlib.ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def _sizes(folder: Path, file: str) -> dict[str, int]:
    """Sizes of all files below a path, by their path below it; of a file its own, by ""."""
    path = folder / file
    with _readable(path), contextlib.ExitStack() as stack:
        if not file:
            return _list(_closing(stack, os.open(folder, _FOLDER)), path, {})
        parent, last = _parent(stack, folder, file)
        status = os.stat(last, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            _check_regular(status, path)
            return {"": status.st_size}
        return _list(_closing(stack, os.open(last, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)), path, {})


def _list(descriptor: int, path: Path, found: dict[str, int], prefix: str = "") -> dict[str, int]:
    """Adds the sizes of all files below an open folder to ``found``, and returns that."""
    with os.scandir(descriptor) as entries:
        for entry in entries:
            name, status = prefix + entry.name, entry.stat(follow_symlinks=False)
            _check_name(path, name)
            if not stat.S_ISDIR(status.st_mode):
                _check_regular(status, path / name)
                found[name] = status.st_size
                if len(found) > MAX_FILES:
                    raise BundleError(f"{path} holds more than {MAX_FILES} files; export the bundle again")
                continue
            with contextlib.ExitStack() as stack:
                below = _closing(stack, os.open(entry.name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor))
                _list(below, path, found, f"{name}/")
    return found


def _check_name(path: Path, name: str) -> None:
    try:
        check_stays_inside(name)
    except ValueError as error:
        raise BundleError(f"{path}: {error}; export the bundle again") from None
    if name.count("/") >= MAX_DEPTH:
        raise BundleError(f"{path} holds folders in more than {MAX_DEPTH} levels; export the bundle again")


def _check_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kinds = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
    raise BundleError(f"{path} is {kind}, a bundle holds plain files alone; fetch the bundle again from its source")


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name that the file system cannot have
        link = isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.ENOTDIR)
        why = "it leads through a link or a file" if link else getattr(error, "strerror", None) or str(error)
        raise BundleError(f"{path} cannot be read ({why}); fetch the bundle again") from None


def _changes(path: Path) -> BundleError:
    return BundleError(f"{path} was changed while it was read; try again once it is complete")


def exchange(one: Path, other: Path) -> bool:
    """Lets two existing names of one file system change places in one step; False where the system cannot.

    ``renameat2`` with ``RENAME_EXCHANGE`` on Linux, ``renamex_np`` with ``RENAME_SWAP`` on macOS.
    """
    library, paths = ctypes.CDLL(None, use_errno=True), (os.fsencode(one), os.fsencode(other))
    try:
        if sys.platform == "darwin":
            return bool(library.renamex_np(*paths, ctypes.c_uint(2)) == 0)
        at_cwd = ctypes.c_int(-100)
        return bool(library.renameat2(at_cwd, paths[0], at_cwd, paths[1], ctypes.c_uint(2)) == 0)
    except AttributeError:  # an older C library
        return False
