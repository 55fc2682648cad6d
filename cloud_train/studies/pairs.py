"""Paired differences between what was evaluated on the same photos, and which orders of a paper they show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from refocus.benchmarks.measure import bootstrap_mean

Difference = dict[str, Any]
Order = tuple[str, str, str]  # what a paper found better, what it found worse, where


def paired(rows: Sequence[np.ndarray], sizes: np.ndarray) -> Difference:
    """A paired difference from that of each client, a row per seed; clients count by their targets, (clients,)."""
    interval = bootstrap_mean(np.mean(rows, axis=0), sizes)
    return {**interval.as_dict(), "seeds": [float(np.average(row, weights=sizes)) for row in rows]}


def differences(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [a - b for a, b in zip(one, other, strict=True)]


def judge_orders(
    orders: Iterable[Order], found: Mapping[str, Sequence[np.ndarray]], sizes: np.ndarray
) -> list[dict[str, Any]]:
    """Orders of a paper as far as both sides are there, paired on the same photos and seeds; reversed ones first.

    Args:
        found: by name, what is compared of each client, (clients,), a row per seed.
        sizes: (clients,) targets of each.
    """
    rows = [
        {
            "better": better,
            "other": other,
            "source": source,
            "difference": paired(differences(found[better], found[other]), sizes),
        }
        for better, other, source in orders
        if better in found and other in found
    ]
    return sorted(rows, key=lambda order: order["difference"]["high"] >= 0)
