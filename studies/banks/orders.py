"""Compare the orders that TAPER's paper prints with a study's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refocus.cloud_train.evaluate.bank_tasks import Shares
from studies.comparisons import judge_orders

Name = tuple[str, str]  # of a row: what it is, and its network, "small" or "large"
SELECTION, PLAIN, TAPER_ROW = ("classifier selection", "small"), ("no personalisation", "small"), ("TAPER", "small")
LARGER = ("classifier selection", "large")
NAIVE_ROW, AVERAGE = ("TAPER, naive training", "small"), ("uniform average of stage 2", "small")
TUNED_ROW = ("that average tuned on tasks, without descriptions", "small")
STAGE_1, SPECIALIST = ("TAPER after stage 1", "small"), ("TAPER after stage 2, the specialist of the task", "small")
BAG, ONE = ("TAPER, bag of words", "small"), ("TAPER, one mixer", "small")
ALL_CLASSES, FREE = ("TAPER, without classifier selection", "small"), ("TAPER, described in free words", "small")

ORDERS: tuple[tuple[Name, Name, str], ...] = (
    (SELECTION, PLAIN, "Tables 2, 4, 5 and 6"),
    (TAPER_ROW, SELECTION, "Tables 2, 4, 5 and 6"),
    (TAPER_ROW, LARGER, "Tables 2 and 5; Table 4 has the opposite"),
    (NAIVE_ROW, PLAIN, "Table 6"),
    (SELECTION, NAIVE_ROW, "Table 6"),
    (SELECTION, SPECIALIST, "Table 6"),
    (SPECIALIST, AVERAGE, "Table 6"),
    (TUNED_ROW, AVERAGE, "Table 6"),
    (TAPER_ROW, TUNED_ROW, "Table 6"),
    (TAPER_ROW, SPECIALIST, "Table 6"),
    (TAPER_ROW, BAG, "Table 6"),
    (TAPER_ROW, ONE, "Table 6"),
    (TAPER_ROW, ALL_CLASSES, "Table 6"),
    (ALL_CLASSES, STAGE_1, "Table 6"),
    (TAPER_ROW, FREE, "section 5.1"),
)


def judged(shares: Mapping[Name, Sequence[Shares]], sizes: np.ndarray) -> list[dict[str, Any]]:
    """Compare the orders whose two rows were evaluated, reversed ones first.

    Differences are paired by task, on the same photos and seeds.

    Args:
        shares: accuracy per task (K,) of each seed, by row.
        sizes: (K,) number of photos per task.
    """
    asked = [(_written(better), _written(other), source) for better, other, source in ORDERS]
    named = {name for order in ORDERS for name in order[:2]}  # other rows may be called alike
    return judge_orders(asked, {_written(name): found for name, found in shares.items() if name in named}, sizes)


def _written(name: Name) -> str:
    return f"{name[0]} ({name[1]} network)" if name == LARGER else name[0]
