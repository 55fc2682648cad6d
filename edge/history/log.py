"""SQLite's write-ahead log, read without SQLite, which drops everything behind the first damaged frame silently.

The format is section 4 of https://sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path
from typing import Any

import numpy as np

from refocus.edge.history.schema import PAGE

_HEADER, _FRAME_HEADER = 32, 24
_FRAME = _FRAME_HEADER + PAGE
_MAGIC = 0x377F0682  # the lowest bit says in which byte order checksums are made
_LARGEST = 128 << 20  # bytes of a log that is looked at before SQLite opens it; it has 1.6 MB as a rule


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
