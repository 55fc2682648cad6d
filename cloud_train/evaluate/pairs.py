"""Compute paired differences between results on the same photos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from refocus.benchmarks.measure import bootstrap_mean

Difference = dict[str, Any]


def paired(rows: Sequence[np.ndarray], sizes: np.ndarray) -> Difference:
    """Average paired differences over seeds, with an interval over clients.

    Args:
        rows: differences per client, (clients,) for each seed.
        sizes: (clients,) number of targets, the weight of each client.
    """
    interval = bootstrap_mean(np.mean(rows, axis=0), sizes)
    return {**interval.as_dict(), "seeds": [float(np.average(row, weights=sizes)) for row in rows]}
