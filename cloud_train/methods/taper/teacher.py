"""Knowledge distillation: a network learns from the logits of a larger, pretrained one besides the labels.

Hinton et al., "Distilling the knowledge in a neural network", 2015. The teacher's logits are computed once, of each
training photo as it is; mirrored and moved ones have the same.
Notation: R training photos, B of a step, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from refocus.cloud_train.methods.taper.tasks import Task


@dataclass(frozen=True)
class Teacher:
    """Cached logits of a pretrained network for the training photos, and their part in the loss.

    Attributes:
        logits: (R, C).
        weight: of the teacher's term in the loss; that of the labels has 1 - weight.
        temperature: by which the logits of both networks are divided in that term.
    """

    logits: Tensor
    weight: float
    temperature: float

    def divergence(self, logits: Tensor, rows: np.ndarray, task: Task, select: bool = True) -> Tensor:
        """Mean Kullback-Leibler divergence of a network's softmax from the teacher's, in nats, times the square of the
        temperature, so that its gradient is as large at any.

        Args:
            logits: (B, C) of the network.
            rows: (B,) the training photos that they are of.
            select: over the classes of the task only; False: over all.
        """
        told = self.logits[torch.from_numpy(rows)].to(logits.device)
        if select:
            classes = torch.tensor(task.classes, device=logits.device)
            logits, told = logits[:, classes], told[:, classes]
        found, wanted = ((values / self.temperature).log_softmax(1) for values in (logits, told))
        return functional.kl_div(found, wanted, reduction="batchmean", log_target=True) * self.temperature**2
