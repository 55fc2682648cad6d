"""Files on disk: bounded reads, atomic writes, locks, hashes and syncing.

Inputs that a user names are regular files of a bounded size; outputs are written whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from refocus.edge.errors import BundleError, RefocusError

_BLOCK = 1 << 20
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)  # by the system's rules, whatever room there is
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def default_profiles() -> Path:
    """Where profiles live unless a caller says otherwise: the user's data folder.

    Raises:
        RefocusError: the user has none.
    """
    folder = _users_folder("XDG_DATA_HOME", ".local/share")
    if folder is None:
        raise RefocusError("this user has no home folder for profiles; say where they live (--profiles), or set HOME")
    return folder / "refocus" / "profiles"


def default_bundle(given: Path | None = None) -> Path:
    """Return the folder of the default bundle, which a package installs.

    The value of an entry point of the group ``refocus.bundles`` is the name of the folder in the package's
    distribution, an identifier. Of several the first by name that is there is taken.

    Args:
        given: path that was given in the place of a bundle and is none, for the message.

    Raises:
        BundleError: none is installed.
    """
    from importlib.metadata import entry_points

    for entry in sorted(entry_points(group="refocus.bundles"), key=lambda entry: entry.name):
        if entry.dist is not None and entry.value.isidentifier():
            folder = Path(str(entry.dist.locate_file(entry.value)))
            if folder.is_dir():
                return folder
    what = "no bundle is named" if given is None else f"{given} is not a bundle"
    how = "in a checkout: make bundle-wheel, then pip install dist/refocus_bundle_imagenet-*.whl"
    raise BundleError(f"{what} and no default bundle is installed; name a bundle, or install the default one ({how})")


def cache_folder() -> Path | None:
    """Where files live that can be made again; None: this user has no home folder, and none are kept."""
    folder = _users_folder("XDG_CACHE_HOME", ".cache")
    return folder / "refocus" if folder is not None else None


def _users_folder(variable: str, below_home: str) -> Path | None:
    """The folder that an environment variable names, or one below the user's home."""
    if named := os.environ.get(variable):
        return Path(named)
    try:
        return Path.home() / below_home
    except RuntimeError:  # a user without an entry, as in a container
        return None


def read_file(path: Path, limit: int, what: str, error: type[RefocusError] = RefocusError) -> bytes:
    """The content of a regular file, or of one that a link leads to.

    Args:
        limit: bytes; a larger file is refused before it is read.
        what: for messages, as "a photo".
        error: type to raise.

    Raises:
        RefocusError: of type ``error``: missing, unreadable, too large, changed while it is read, or a folder, a device
            or a pipe, which is not waited for.
    """
    try:
        stream, size = open_regular(path)
        with stream:
            content = stream.read(size + 1) if size <= limit else b""  # a buffer as large as what is asked for is made
    except IsADirectoryError:
        raise error(f"{path} is not a file; give the path of {what}") from None
    except (OSError, ValueError) as cause:
        raise error(f"{path} cannot be read ({reason(cause)}); check the path and its rights") from None
    if size > limit:
        raise error(f"{path} has {size} bytes, the limit is {limit}; give {what}")
    if len(content) > size:
        raise error(f"{path} was changed while it was read; try again once it is complete")
    return content


def open_regular(path: Path, flags: int = 0) -> tuple[BinaryIO, int]:
    """A regular file, open for reading, and its size.

    Args:
        flags: for ``os.open``, besides those of a file to read.

    Raises:
        IsADirectoryError: it is a folder, a device, a socket or a pipe, which is not waited for.
        OSError, ValueError: it cannot be opened.
    """
    flags |= getattr(os, "O_NONBLOCK", 0)
    stream = open(path, "rb", opener=lambda name, given: os.open(name, given | flags))  # noqa: SIM115
    status = os.fstat(stream.fileno())
    if not stat.S_ISREG(status.st_mode):
        stream.close()
        raise IsADirectoryError(errno.EISDIR, "it is no plain file")
    return stream, status.st_size


def reason(error: Exception) -> str:
    """The operating system's words for an error, without the path."""
    return getattr(error, "strerror", None) or str(error)


def check_output(path: Path) -> None:
    """Raises where an output must not be written.

    Raises:
        RefocusError: the path is a link, a folder, a device, a pipe or a socket.
    """
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise RefocusError(f"{path} cannot be written ({reason(error)}); check the path and its rights") from None
    if kind != stat.S_IFREG:
        raise RefocusError(f"{path} is {_KINDS.get(kind, 'no file')}, which is not replaced; give the name of a file")


def walk(folder: Path, seen: set[tuple[int, int]]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """A folder and those below it, as of :func:`os.walk`, linked ones followed, each looked into once.

    Args:
        seen: folders (device, inode) that were looked into, which are passed over; it grows.
    """
    for name, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(name)  # noqa: PTH116
        if (status.st_dev, status.st_ino) in seen:  # a link in a circle, or a second one
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        yield Path(name), folders, files


@contextlib.contextmanager
def new_file(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of a file once the block ends without an error, on the disk by then.

    Args:
        private: the file gets mode 0600, whatever the umask; otherwise that of any new file.

    Raises:
        RefocusError: as :func:`check_output`; nothing is written.
        OSError: it cannot be written; an earlier file is as it was.
    """
    check_output(path)
    prefix = f".refocus-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}-"
    sweep(path.parent, f"{prefix}*.tmp")
    descriptor, temporary = _unfinished(path, prefix, 0o600 if private else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(descriptor)
            temporary.replace(path)  # while it is locked: another writer's sweep takes what is not
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _unfinished(path: Path, prefix: str, mode: int) -> tuple[int, Path]:
    """A new file beside ``path``, open and locked."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        temporary = path.with_name(f"{prefix}{os.urandom(8).hex()}.tmp")
        descriptor = os.open(temporary, flags, mode)
        try:
            if _claim(descriptor, temporary):
                return descriptor, temporary
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def sweep(folder: Path, pattern: str) -> None:
    """Removes unfinished files that killed processes left; one that is being written is locked by its writer."""
    for left in folder.glob(pattern):
        with contextlib.suppress(OSError), _left_behind(left):
            left.unlink()


@contextlib.contextmanager
def working_folder(out: Path) -> Iterator[Path]:
    """An empty folder beside ``out``, its owner's alone, that is gone after the block.

    Those that killed processes left are removed, but where ``out`` is missing: one of them may hold what was there.

    Raises:
        OSError: it cannot be made.
    """
    prefix = f".refocus-{hashlib.sha256(os.fsencode(out.name)).hexdigest()[:16]}-"
    for left in out.parent.glob(f"{prefix}*.folder") if os.path.lexists(out) else ():
        with contextlib.suppress(OSError), _left_behind(left):
            shutil.rmtree(left)
    descriptor, made = _unfinished_folder(out, prefix)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(descriptor)


def _unfinished_folder(out: Path, prefix: str) -> tuple[int, Path]:
    """A new folder beside ``out``, open and locked."""
    while True:
        made = out.with_name(f"{prefix}{os.urandom(8).hex()}.folder")
        made.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):  # it was swept
            descriptor = os.open(made, os.O_RDONLY | os.O_NOFOLLOW)
            if _claim(descriptor, made):
                return descriptor, made


@contextlib.contextmanager
def _left_behind(path: Path) -> Iterator[None]:
    """Hold the lock of an unfinished file or folder whose writer has ended.

    Raises:
        OSError: its writer still holds the lock, or it is gone.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _claim(descriptor: int, path: Path) -> bool:
    """Locks what was just made; False: another writer's sweep came first, and removes it; it is closed then."""
    claimed = False
    try:
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            _lock(descriptor)
            claimed = os.path.samestat(os.fstat(descriptor), path.lstat())
    finally:
        if not claimed:
            os.close(descriptor)
    return claimed


def _lock(descriptor: int) -> None:
    """Takes the lock of a file that is being written; it goes with the process.

    Raises:
        OSError: another process has it.
    """
    import fcntl  # POSIX only, as are the devices we serve; imported here so that the module can be read elsewhere

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_file(path: Path, content: bytes | str, private: bool = False) -> None:
    """As :func:`new_file`, with all of the content at once; text becomes UTF-8."""
    with new_file(path, private) as stream:
        stream.write(content if isinstance(content, bytes) else printable(content).encode())


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a path whose file replaces ``path`` when the block ends without an error.

    For libraries that write to a path, and for files that can be made again: nothing is synced, and the next writer
    overwrites what a killed process left. One writer at a time.
    """
    temporary = path.with_suffix(".tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_durably(path: Path, content: bytes) -> None:
    """Replaces a state file of our own as a whole; file and name are on the disk when it returns."""
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_tree(folder: Path) -> None:
    """Puts every file of a folder, and their names, on the disk."""
    for path in (*sorted(folder.rglob("*")), folder):
        sync_folder(path)


def sync_folder(folder: Path) -> None:
    """Puts the names of a folder, such as that of a renamed file, on the disk; or one file's content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal, read in constant memory."""
    with path.open("rb") as stream:
        return stream_sha256(stream)


def stream_sha256(stream: BinaryIO) -> str:
    """As :func:`file_sha256`, of what an open stream has left."""
    digest = hashlib.sha256()
    while block := stream.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def locked(path: Path, wait: bool = True, reads: bool = False) -> Iterator[bool]:
    """Holds an exclusive lock between processes; the kernel releases it when a process dies.

    Args:
        path: the lock file; it is created and stays.
        wait: False yields False at once where another process holds the lock.
        reads: for who reads alone: a file that cannot be written, as on a read-only file system, is locked against
            writers alone; where there is none and none can be made, nobody writes, and nothing is locked.

    Raises:
        OSError: the file cannot be opened.
    """
    import fcntl

    kind, descriptor = fcntl.LOCK_EX, None
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if not reads or error.errno not in NOT_WRITABLE:
            raise
        kind, descriptor = fcntl.LOCK_SH, _open_if_there(path)
    if descriptor is None:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _open_if_there(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def printable(text: str | Path) -> str:
    """Text that can be encoded: bytes of a file's name that are not UTF-8 become ``\\udcXX``, as in JSON."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def original(text: str) -> Path:
    """The path of which :func:`printable` made a text, unless there is a file of that very name."""
    if os.path.lexists(text):  # False, too, for what cannot be a name
        return Path(text)
    return Path(re.sub(r"\\udc([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found[1], 16)), text))
