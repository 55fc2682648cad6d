"""The signature of a photo: twelve numbers of its light, colours and grain that go with the feature."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

SIGNATURE = 12  # S: mean, deviation and covariance of the colours, and grain
CLIP_AXES = 5  # of a batch of clips
_SIDE = 56  # pixels looked at, each way: a glance, not a pass over the whole photo


class SignedEncoder(nn.Module):
    """Normalised pixels -> rows (B, D + S): the input of the classifier, and the photo's signature.

    A classifier's feature forgets what does not tell classes apart: light, paper, ink, the grain of a camera. These
    tell people apart, so twelve numbers of the photo itself go with the feature. Only the gate reads them.

    Args:
        network: photo (B, 3, side, side) -> feature (B, D).
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, photo: Tensor) -> Tensor:
        return torch.cat([self.network(photo), signature(photo)], dim=1)


def sizes(signed: np.ndarray) -> np.ndarray:
    """Sizes of the numbers of a signature, to which their rounding is in proportion: (12,) -> (12,).

    Of a covariance it is the product of both deviations, of the others the pixels of their channel.
    """
    mean, deviation = signed[:3], signed[3:6]
    pixels = np.abs(mean) + deviation
    red, green, blue = deviation
    return np.concatenate([pixels, pixels, [red * green, red * blue, green * blue], pixels])


def signature(photo: Tensor) -> Tensor:
    """(B, 3, side, side) normalised pixels -> (B, 12) statistics of the photo itself.

    Of clips (B, T, 3, side, side) it is the mean over their frames.

    Per channel the mean, the standard deviation and the mean step between neighbouring pixels (grain), and the three
    covariances of the channels, over a grid of about 56 x 56 pixels.
    """
    if photo.dim() == CLIP_AXES:
        frames: Tensor = signature(photo.flatten(0, 1)).unflatten(0, (-1, photo.shape[1]))
        return frames.mean(1)
    stride = max(1, photo.shape[-1] // _SIDE)
    grid = photo[:, :, ::stride, ::stride].flatten(2)
    mean = grid.mean(2)
    centred = grid - mean[:, :, None]
    red, green, blue = centred.unbind(1)
    covariances = [(a * b).mean(1) for a, b in ((red, green), (red, blue), (green, blue))]
    left, right = photo[:, :, ::stride, 0:-1:stride], photo[:, :, ::stride, 1::stride]
    grain = (right[..., : left.shape[-1]] - left[..., : right.shape[-1]]).abs().mean((2, 3))
    deviation = (centred**2).mean(2).sqrt()
    return torch.cat([mean, deviation, torch.stack(covariances, dim=1), grain], dim=1)
