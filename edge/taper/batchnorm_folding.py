"""Batch normalisation folded into the convolution before it: the one definition, for export and device alike.

It is not linear in the statistics, so networks are mixed first and folded then.
"""

from __future__ import annotations

import numpy as np


def scale_and_shift(
    gamma: np.ndarray,
    beta: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    eps: float,
    bias: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """What a convolution takes over from the norm behind it.

    Args:
        gamma, beta, mean, variance: (O,) of the norm, O channels.
        bias: (O,) of the convolution.

    Returns:
        (O,) factor of the kernels of each output channel, and (O,) the bias of the folded convolution, float32.
    """
    scale = gamma / np.sqrt(variance.astype(np.float64) + eps)
    return scale.astype(np.float32), (beta + (bias - mean) * scale).astype(np.float32)
