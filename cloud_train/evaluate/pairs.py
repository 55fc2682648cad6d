"""Compute paired differences between what was evaluated on the same photos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from refocus.benchmarks.measure import bootstrap_mean

Difference = dict[str, Any]


def paired(rows: Sequence[np.ndarray], sizes: np.ndarray) -> Difference:
    """A paired difference from that of each client, a row per seed; clients count by their targets, (clients,)."""
    interval = bootstrap_mean(np.mean(rows, axis=0), sizes)
    return {**interval.as_dict(), "seeds": [float(np.average(row, weights=sizes)) for row in rows]}
