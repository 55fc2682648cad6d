"""Compute ceilings of TAPER from a task's training photos.

Mixers are optimised by gradient descent on the photos, or batch-norm statistics are measured on the mix. The mixer
predictor sees a description alone. Mixers that were fitted to a task's own labelled photos show the best accuracy of
the bases; the difference between both is the loss of the predictor, and the remaining error is due to the bases and the
data.

Notation as in :mod:`refocus.cloud_train.methods.taper.bank`: Q bases, M mixers, n numbers of a network.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.methods.taper.bank import Taper
from refocus.cloud_train.methods.taper.tasks import Task
from refocus.cloud_train.methods.taper.train import task_loss

STEPS, RATE, BATCH = 60, 0.1, 64  # of Adam, on scores of which mixers are the softmax
NEAR = 0.3  # share of the mixers that is even at the second start
MEASURED = 512  # photos whose loss or statistics are measured


def oracle_mixers(taper: Taper, mixers: Tensor, photos: Photos, rows: np.ndarray, task: Task, seed: int = 0) -> Tensor:
    """Optimise mixers (M, Q) on a task's photos; the bases stay unchanged.

    The loss is that of the task's classes. It is not convex in the mixers, so the descent starts twice, at the
    predicted mixers and near the best single basis, and the result with the lower loss is returned.

    Args:
        taper: trained bank.
        mixers: (M, Q), those of the predictor.
        photos: photos of the training split.
        rows: rows of the task's photos.
        task: the task.
        seed: seed of the draw of photos.
    """
    shown = np.random.default_rng(seed).permutation(rows)[:MEASURED]

    def loss_of(tried: Tensor) -> float:
        with torch.no_grad():
            logits = taper.answer(taper.personal(tried), photos.batch(shown))
            return float(task_loss(logits, photos.label[shown], task))

    alone = torch.eye(mixers.shape[1])[:, None].expand(-1, *mixers.shape)  # (Q, M, Q)
    best = min(alone, key=loss_of)
    even = torch.full_like(mixers, 1 / mixers.shape[1])
    starts = mixers, (1 - NEAR) * best + NEAR * even
    return min((_descend(taper, one, photos, rows, task, seed) for one in starts), key=loss_of)


def _descend(taper: Taper, mixers: Tensor, photos: Photos, rows: np.ndarray, task: Task, seed: int) -> Tensor:
    rng, scores = np.random.default_rng(seed), mixers.clamp_min(1e-6).log().detach().requires_grad_()
    optimiser = torch.optim.Adam([scores], RATE)
    for _ in range(STEPS):
        chosen = rng.choice(rows, min(BATCH, len(rows)), replace=False)
        logits = taper.answer(taper.personal(scores.softmax(1)), photos.batch(chosen))
        [scores.grad] = torch.autograd.grad(task_loss(logits, photos.label[chosen], task), [scores])  # the bases' none
        optimiser.step()
    return scores.detach().softmax(1)


@torch.no_grad()
def with_own_statistics(taper: Taper, flat: Tensor, photos: Photos, rows: np.ndarray, seed: int = 0) -> Tensor:
    """Return the condensed network (n,) with measured batch-norm statistics.

    The statistics are those of the network's activations for some photos. Statistics that are mixed like weights are
    not those of the mixed network (the bases' activations do not add up).

    Args:
        taper: trained bank.
        flat: (n,) numbers of the condensed network.
        photos: photos of the training split.
        rows: rows of photos like the task's; the first ``MEASURED`` of a draw are used.
        seed: seed of the draw.
    """
    chosen = np.random.default_rng(seed).permutation(rows)[:MEASURED]
    network, layout = taper.network, taper.bases.layout
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [module.momentum for module in norms]
    tensors = {name: value.clone() for name, value in layout.split(flat).items()}
    try:
        for module in norms:
            module.momentum = 1.0  # of one batch
        functional_call(network.train(), tensors, (photos.batch(chosen),))
    finally:
        for module, momentum in zip(norms, before, strict=True):
            module.momentum = momentum
        network.eval()
    return layout.join(tensors)
