"""Photos decoded once and kept in memory, for training on small pictures."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.progress import track
from refocus.edge.bundle import Preprocessing
from refocus.edge.errors import PhotoError
from refocus.edge.photos import cropped, decode_photo

LOOKED_AT = 16  # photos of a table that are opened to see how large they are, spread evenly


@dataclass(frozen=True)
class Photos:
    """Photos in memory, for small pictures.

    Attributes:
        pixels: (R, 3, S, S) uint8; of clips (R, T, 3, S, S).
        label: (R,) int64.
        domain: (R,) domain indices.
        mean, std: per RGB channel, in [0, 1].
    """

    pixels: Tensor
    label: Tensor
    domain: np.ndarray
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __len__(self) -> int:
        return len(self.label)

    def batch(self, rows: np.ndarray | Tensor) -> Tensor:
        """Normalised photos (B, 3, S, S), or clips (B, T, 3, S, S)."""
        device = self.pixels.device
        mean, std = (_channels(v, device) for v in (self.mean, self.std))
        chosen = self.pixels[torch.as_tensor(rows, device=device)].float()
        normalised = (chosen - mean) / std
        return normalised.contiguous(memory_format=torch.channels_last) if normalised.dim() == 4 else normalised

    def varied(self, rows: np.ndarray, flip: bool, most: int, rng: np.random.Generator) -> Tensor:
        """The same, half of them mirrored (``flip``), each moved by up to ``most`` pixels; what a move uncovers
        repeats the edge."""
        found = self.batch(rows)
        if flip:
            mirrored = torch.from_numpy(rng.random(len(found)) < 0.5).to(found.device)[:, None, None, None]
            found = torch.where(mirrored, found.flip(3), found)
        if most:
            moves = torch.from_numpy(rng.integers(-most, most + 1, (2, len(found)))).to(found.device)
            side = torch.arange(found.shape[3], device=found.device)
            down, across = ((side + move[:, None]).clamp(0, side[-1]) for move in moves)
            each = torch.arange(len(found), device=found.device)[:, None, None]
            found = found[each, :, down[:, :, None], across[:, None]].permute(0, 3, 1, 2)
        return found.contiguous(memory_format=torch.channels_last)


@functools.lru_cache(maxsize=64)
def _channels(value: tuple[float, float, float], device: torch.device) -> Tensor:
    """(3, 1, 1) of 8-bit channels; kept, since a copy to a GPU waits for what runs there."""
    return torch.tensor(value, device=device)[:, None, None] * 255


@dataclass(frozen=True)
class Features:
    """Cached features of photos from a frozen encoder; replaces :class:`Photos`.

    Attributes:
        rows: (R, D) float32.
        label: (R,) int64.
    """

    rows: Tensor
    label: Tensor

    def __len__(self) -> int:
        return len(self.label)

    def batch(self, rows: np.ndarray | Tensor) -> Tensor:
        """Features (B, D)."""
        return self.rows[torch.as_tensor(rows)]


def decoded(table: PhotoTable, contract: Preprocessing, what: str) -> np.ndarray:
    """All photos or clips of a table, resized and cropped as on the device: uint8 (R, 3, S, S) or (R, T, 3, S, S)."""
    pixels = np.empty((len(table), *contract.input_shape), dtype=np.uint8)
    for row, name in enumerate(track(table.photo.tolist(), what, len(table))):
        pixels[row] = np.moveaxis(cropped(table.read(name), contract, name), -1, -3)
    return pixels


def enlargement(table: PhotoTable, contract: Preprocessing) -> float:
    """How many times photos are enlarged for a network: its input's side over the median of their shorter sides.

    Photos that cannot be opened are passed over; they are named where they are used.
    """
    rows = np.linspace(0, len(table) - 1, min(LOOKED_AT, len(table))).astype(int)
    sides = []
    for name in table.photo[rows].tolist():
        with suppress(PhotoError):
            sides.append(min(decode_photo(table.read(name), name).size))
    return contract.crop / float(np.median(sides)) if sides else 1.0
