"""The mixer predictor of TAPER: the description of a task -> what part each base has in each block.

A 4-layer perceptron with batch norm and ReLU between, then a softmax over the bases. In numpy: a device has no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from refocus.edge.taper.batchnorm_folding import scale_and_shift

EPS = 1e-5  # of its batch norms
HIDDEN_LAYERS = (0, 3, 6)  # numbers of its linear layers; the norm of each is the next
LAST_LAYER = 9
NORM = ("weight", "bias", "running_mean", "running_var")


def predict_mixers(weights: Mapping[str, np.ndarray], description: np.ndarray, mixers: int) -> np.ndarray:
    """The mixers of one task.

    Args:
        weights: of the predictor, by name: ``layers.0.weight`` and so on.
        description: (E,).
        mixers: M.

    Returns:
        (M, Q) float32, each row on the simplex.
    """
    value = description.astype(np.float32)
    for number in HIDDEN_LAYERS:
        gamma, beta, mean, variance = (weights[f"layers.{number + 1}.{name}"] for name in NORM)
        scale, shift = scale_and_shift(gamma, beta, mean, variance, EPS)
        value = np.maximum(weights[f"layers.{number}.weight"] @ value * scale + shift, 0)
    scores = weights[f"layers.{LAST_LAYER}.weight"] @ value + weights[f"layers.{LAST_LAYER}.bias"]
    scores = scores.reshape(mixers, -1)
    parts = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: np.ndarray = (parts / parts.sum(axis=1, keepdims=True)).astype(np.float32)
    return found
