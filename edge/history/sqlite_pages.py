"""The pages of an SQLite file and of its write-ahead log, read without SQLite.

SQLite drops everything behind the first damaged frame of a log silently, and refuses files that it cannot follow. Rows
that are read here are not trusted: a page, a row or a pointer that makes no sense is passed over, and whoever asks
checks each row's own checksum. The format is https://sqlite.org/fileformat2.html; section 4 is that of the log.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from refocus.edge.history.schema import PAGE

_HEADER, _FRAME_HEADER = 32, 24
_FRAME = _FRAME_HEADER + PAGE
_MAGIC = 0x377F0682  # the lowest bit says in which byte order checksums are made
_LARGEST = 128 << 20  # bytes of a log that is looked at before SQLite opens it; it has 1.6 MB as a rule
_TABLE_LEAF = 13  # type of the pages that hold rows
_LARGEST_ROW = 1 << 24  # bytes; a longer one is garbage that looks like a row
_FILE_HEADER = 100
_COLUMNS = (3, 5, 6, 8)  # of the tables that any schema had
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)


def read_log(path: Path) -> bytes:
    """The log of a database; empty if there is none, or one of extraordinary size."""
    log = path.with_name(path.name + "-wal")
    try:
        return log.read_bytes() if log.stat().st_size <= _LARGEST else b""
    except FileNotFoundError:
        return b""


def newest_pages(log: Any) -> dict[int, int]:
    """Where the newest committed copy of each page (numbered from 0) lies in a log, bytes or mapped.

    Checksums of frames are not looked at, nor salts within the log: rows have checksums of their own.
    """
    frames = _frames(log)
    if not len(frames):
        return {}
    current = (frames[:, 8:16] == np.frombuffer(log[16:24], np.uint8)).all(axis=1)
    if not current.any():  # the log's own header is damaged; the first frame is always of the newest generation
        current = (frames[:, 8:16] == frames[0, 8:16]).all(axis=1)
    (commits,) = np.nonzero(current & frames[:, 4:8].any(axis=1))
    last = commits[-1] if len(commits) else -1
    numbers = np.ascontiguousarray(frames[: last + 1, :4]).view(">u4")[:, 0].tolist()
    return {number - 1: _HEADER + at * _FRAME + _FRAME_HEADER for at, number in enumerate(numbers)}


def is_damaged(log: bytes) -> bool:
    """Whether SQLite would drop a committed transaction.

    A kill leaves at most one half frame, the last one written, so a commit behind a bad frame tells of damage. Whether
    a bad last frame does, the log alone cannot tell.
    """
    frames = _frames(log)
    if not len(frames):
        return False
    magic, _, page, _, *salts_and_sums = struct.unpack(">8I", log[:_HEADER])
    order = ">u4" if magic & 1 else "<u4"
    sums = _checksums(np.frombuffer(log[:24], order)[None], np.zeros((1, 2), np.uint32))[0]
    if magic | 1 != _MAGIC | 1 or page != PAGE or sums.tolist() != salts_and_sums[2:]:
        return True
    current = (frames[:, 8:16] == np.frombuffer(log[16:24], np.uint8)).all(axis=1)
    stored = np.ascontiguousarray(frames[:, 16:24]).view(">u4").astype(np.uint32)
    words = np.concatenate([frames[:, :8], frames[:, _FRAME_HEADER:]], axis=1).view(order)
    good = current & (_checksums(words, np.vstack([sums, stored[:-1]])) == stored).all(axis=1)
    if good.all():
        return False
    behind = int(np.argmin(good)) + 1
    return bool((current & frames[:, 4:8].any(axis=1))[behind:].any())


def _frames(log: Any) -> np.ndarray:
    """The whole frames of a log, (n, 24 + PAGE) bytes."""
    count = max(0, (len(log) - _HEADER) // _FRAME)
    return np.frombuffer(log, np.uint8, count * _FRAME, _HEADER if count else 0).reshape(count, _FRAME)


def _checksums(words: np.ndarray, before: np.ndarray) -> np.ndarray:
    """SQLite's checksums over rows of 32-bit words (n, 2k), each continuing one before it: (n, 2) -> (n, 2)."""
    weights, onward = _weights(words.shape[1] // 2)
    sums: np.ndarray = words.astype(np.uint32) @ weights + before.astype(np.uint32) @ onward
    return sums


@functools.cache
def _weights(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """What each word (2k, 2), and each of the two sums before them (2, 2), adds to the two sums, modulo 2^32.

    A step is ``s0 += x0 + s1; s1 += x1 + s0``, so a contribution (a, b) is (a + b, a + 2 b) a step later.
    """
    weights = np.empty((2 * steps, 2), np.uint32)
    first, second, carried = (1, 1), (0, 1), (1, 0)
    for at in reversed(range(steps)):
        weights[2 * at], weights[2 * at + 1] = first, second
        first, second, carried = _later(first), _later(second), _later(carried)
    return weights, np.array([carried, second], np.uint32)


def _later(sums: tuple[int, int]) -> tuple[int, int]:
    return (sums[0] + sums[1]) & 0xFFFFFFFF, (sums[0] + 2 * sums[1]) & 0xFFFFFFFF


def table_rows(path: Path) -> Iterator[tuple[int, list[Any]]]:
    """Every row of every table, in the file and in the committed part of its write-ahead log: number and columns.

    Either of the two may be missing.
    """
    with contextlib.ExitStack() as stack:
        places: dict[int, tuple[BinaryIO | mmap.mmap, int]] = {}
        with contextlib.suppress(FileNotFoundError):
            file = stack.enter_context(path.open("rb"))
            places = {number: (file, number * PAGE) for number in range(path.stat().st_size // PAGE)}
        with contextlib.suppress(FileNotFoundError, ValueError):  # ValueError: an empty file cannot be mapped
            opened = stack.enter_context(path.with_name(path.name + "-wal").open("rb"))
            log = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            places.update({number: (log, offset) for number, offset in newest_pages(log).items()})
        pages = _Pages(places)
        for number in sorted(places):
            yield from pages.rows(number)


class _Pages:
    """The pages of a file, each wherever its newest copy is.

    Args:
        places: page, numbered from 0 -> file and offset.
    """

    def __init__(self, places: dict[int, tuple[BinaryIO | mmap.mmap, int]]) -> None:
        self._places = places

    def _read(self, number: int) -> bytes:
        file, offset = self._places[number]
        file.seek(offset)
        return file.read(PAGE)

    def rows(self, number: int) -> Iterator[tuple[int, list[Any]]]:
        """The rows of one page; none if it is no leaf of a table."""
        page = self._read(number)
        start = _FILE_HEADER if number == 0 else 0
        if len(page) < PAGE or page[start] != _TABLE_LEAF:
            return
        count = min(int.from_bytes(page[start + 3 : start + 5], "big"), PAGE // 4)
        for pointer in struct.unpack_from(f">{count}H", page, start + 8):
            # What makes no sense leads out of a page, out of the file, or to text that is none.
            with contextlib.suppress(IndexError, KeyError, ValueError, struct.error):
                size, after = _varint(page, pointer)
                row, after = _varint(page, after)
                if size <= _LARGEST_ROW and _is_record(page[after:], size):
                    yield row, _columns(self._payload(page, after, size))

    def _payload(self, page: bytes, start: int, size: int) -> bytes:
        """A row's bytes: what is in the leaf, and what continues on a chain of other pages."""
        if size <= PAGE - 35:
            return page[start : start + size]
        least = (PAGE - 12) * 32 // 255 - 23
        local = least + (size - least) % (PAGE - 4)
        if local > PAGE - 35:
            local = least
        parts, missing = [page[start : start + local]], size - local
        following = int.from_bytes(page[start + local : start + local + 4], "big")
        while missing > 0:
            more = self._read(following - 1)
            parts.append(more[4 : 4 + missing])
            missing -= PAGE - 4
            following = int.from_bytes(more[:4], "big")
        return b"".join(parts)


def _is_record(data: bytes, size: int) -> bool:
    """Whether a record begins here whose columns take ``size`` bytes; garbage must not lead along chains of pages."""
    header, at = _varint(data, 0)
    kinds: list[int] = []
    while at < header:
        kind, at = _varint(data, at)
        kinds.append(kind)
        if len(kinds) > max(_COLUMNS):
            return False
    return len(kinds) in _COLUMNS and header + sum(map(_size, kinds)) == size


def _size(kind: int) -> int:
    """Bytes of a column of a serial type."""
    return _INTEGER_BYTES[kind] if kind < 7 else 8 if kind == 7 else 0 if kind < 12 else (kind - 12) // 2


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """SQLite's integer of 1 to 9 bytes, and where it ends."""
    value = 0
    for place in range(at, at + 8):
        value = value << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9


def _columns(payload: bytes) -> list[Any]:
    """The columns of a record: None, int, str or bytes; a float, which we never store, is None."""
    columns: list[Any] = []
    body, at = _varint(payload, 0)
    end = body
    while at < end:
        kind, at = _varint(payload, at)
        size = _size(kind)
        data = payload[body : body + size]
        if len(data) < size:
            raise ValueError("the record is longer than its row")
        body += size
        if kind >= 12:
            columns.append(data.decode() if kind % 2 else data)
        elif kind in (8, 9):
            columns.append(kind - 8)
        else:
            columns.append(int.from_bytes(data, "big", signed=True) if 0 < kind < 7 else None)
    return columns
