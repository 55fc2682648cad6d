"""Losses of one label or several of each photo, and steps of optimisers.

Notation: C classes, ... any leading dimensions.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from refocus.cloud_train.data.table import PhotoTable


def label_loss(logits: Tensor, labels: Tensor, reduction: Literal["mean", "sum", "none"] = "mean") -> Tensor:
    """Loss of n photos, in nats.

    Args:
        logits: (n, C).
        labels: (n,) class indices: cross-entropy; or (n, C) of 0 and 1: the mean over labels of binary cross-entropy.
        reduction: over photos; "none": (n,).
    """
    if labels.dim() < logits.dim():
        return functional.cross_entropy(logits, labels, reduction=reduction)
    each = functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").mean(-1)
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


def descend(
    loss: Tensor, optimiser: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler | None = None
) -> None:
    """Take one step of an optimiser, and of its schedule, down the gradient of a loss."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    if schedule is not None:
        schedule.step()


def right(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each photo, (...): whether the most likely class is its label; or the share of its C labels, there or not,
    that are right at a probability of one half.

    Args:
        logits: (..., C).
        labels: (...) or (..., C), as of :func:`label_loss`.
    """
    if labels.dim() < logits.dim():
        return logits.argmax(-1) == labels
    return ((logits > 0) == labels.bool()).double().mean(-1)


def guessing_loss(table: PhotoTable) -> float:
    """The loss of guessing: log C, or log 2 for each of several labels."""
    return math.log(2 if table.several else max(2, len(table.classes)))
