"""Windows and longer streams of one client's photos, as row indices.

A stream never crosses from one client to another. R rows, S streams, L photos in a stream.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError


def windows(table: PhotoTable, length: int, rng: np.random.Generator | None = None) -> np.ndarray:
    """Cuts each client's photos into windows of ``length``.

    Args:
        table: the photos; a client's order is the table's, or shuffled if ``rng`` is given.
        length: L. Photos that do not fill a window are left out this time; with ``rng`` they are others each time.
        rng: also shuffles the order of the windows.

    Returns:
        (S, L) row indices into the table.

    Raises:
        DataError: no client has ``length`` photos.
    """
    parts = []
    for _, rows in table.clients():
        rows = rng.permutation(rows) if rng is not None else rows
        parts.append(rows[: len(rows) // length * length].reshape(-1, length))
    cut = np.concatenate(parts) if parts else np.zeros((0, length), dtype=int)
    if not len(cut):
        raise DataError(f"no client has {length} photos; make block.window shorter, or add photos per person")
    return rng.permutation(cut) if rng is not None else cut


def streams(table: PhotoTable, longest: int) -> Iterator[tuple[str, np.ndarray]]:
    """Each client with their first ``longest`` rows, in the order the photos were taken."""
    for name, rows in table.clients():
        yield name, rows[:longest]


def common_length(table: PhotoTable) -> int:
    """The number of photos that at least half of the clients have: one short client decides nothing."""
    _, counts = np.unique(table.client, return_counts=True)
    return int(np.sort(counts)[len(counts) // 2]) if len(counts) else 0
