"""A network cut in two: a frozen trunk, whose activations are computed once, and the rest, whose weights TAPER mixes.

Bases that share a pretrained trunk need few photos and little time: what is trained sees activations of a late block.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.taper.bank import blocks_of
from refocus.cloud_train.progress import track

CLOSE = 1e-4  # of the largest logit: how far the two halves may be from the whole network
NO_SHIFT = "recipe.shift moves photos; the activations of frozen blocks cannot be moved: set recipe.shift to 0"
_BATCH = 32  # photos through the trunk at once


class Trunk(nn.Module):
    """The stem and the first blocks of a network: (B, 3, S, S) -> the input of the block behind them (B, F, S', S').

    Args:
        start: name of the first module that is not part of it.
    """

    class _Reached(Exception):
        def __init__(self, value: Tensor) -> None:
            self.value = value

    def __init__(self, network: nn.Module, start: str) -> None:
        super().__init__()
        self.network, self.start = network, start

    @torch.no_grad()
    def forward(self, photo: Tensor) -> Tensor:
        def stop(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            raise Trunk._Reached(inputs[0])

        hook = self.network.get_submodule(self.start).register_forward_pre_hook(stop)
        try:
            self.network.eval()(photo)
        except Trunk._Reached as reached:
            return reached.value
        finally:
            hook.remove()
        raise UsageError(f"the network never calls its block {self.start}")


def cut(network: Any, frozen: int, photo: Tensor) -> tuple[Trunk, Any]:
    """Cuts a network behind its stem and first blocks.

    Args:
        frozen: number of blocks of the trunk, besides the stem.
        photo: (1, 3, S, S), to compare the halves with the whole.

    Returns:
        The trunk, and the rest (B, F, S', S') -> (B, C): a copy whose tensors have the names that they have in the
        network.

    Raises:
        UsageError: no block would be left, or the network's blocks do not simply follow each other.
    """
    blocks, network = blocks_of(network), network.eval()
    last = max(blocks.values()) - 1
    if not 0 < frozen < last:
        raise UsageError(f"frozen {frozen}: expected 1 to {last - 1} of this network's {last} blocks behind the stem")
    rest = copy.deepcopy(network)
    start = _empty(rest, "", blocks, frozen)
    trunk = Trunk(network, start)
    try:
        with torch.no_grad():
            wanted, found = network(photo), rest(trunk(photo))
            apart = float((found - wanted).abs().max() / wanted.abs().max())
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(f"frozen {frozen}: this network cannot be cut between its blocks ({error})") from None
    if not apart <= CLOSE:
        raise UsageError(
            f"frozen {frozen}: this network's blocks do not simply follow each other (its halves differ from the whole"
            f" by {apart:.0%} of the largest logit); train all of it with frozen = 0"
        )
    return trunk, rest


def _empty(module: nn.Module, prefix: str, blocks: dict[str, int], frozen: int) -> str:
    """Puts an identity in the place of what belongs to the trunk, and returns the name of the first module that stays.

    Modules without parameters belong to what is in front of them.
    """
    for child, inner in list(module.named_children()):
        name = f"{prefix}{child}"
        here = {blocks[f"{name}.{parameter}"] for parameter, _ in inner.named_parameters()}
        if here and min(here) > frozen:
            return name
        if here and max(here) > frozen:
            return _empty(inner, f"{name}.", blocks, frozen)
        setattr(module, child, nn.Identity())
    raise UsageError(f"frozen {frozen}: no block of this network would be trained")


@dataclass(frozen=True)
class Activations(Photos):
    """Photos as the rest of a cut network sees them.

    Attributes:
        pixels: (R, 2, F, S', S') float16: what the trunk makes of each photo, and of its mirror image.
    """

    def batch(self, rows: np.ndarray | Tensor) -> Tensor:
        """Activations (B, F, S', S')."""
        return self.pixels[torch.as_tensor(rows), 0].float().contiguous(memory_format=torch.channels_last)

    def varied(self, rows: np.ndarray, flip: bool, most: int, rng: np.random.Generator) -> Tensor:
        """The same, half of them of mirrored photos (``flip``); activations cannot be moved, ``most`` must be 0."""
        if most:
            raise UsageError(NO_SHIFT)
        side = rng.integers(0, 2, len(rows)) if flip else np.zeros(len(rows), dtype=int)
        chosen = self.pixels[torch.as_tensor(rows), torch.as_tensor(side)]
        return chosen.float().contiguous(memory_format=torch.channels_last)


def activations(trunk: Trunk, photos: Photos, what: str) -> np.ndarray:
    """The trunk's activations for photos and their mirror images: (R, 2, F, S', S') float16."""
    found: np.ndarray | None = None
    parts = np.array_split(np.arange(len(photos)), max(1, -(-len(photos) // _BATCH)))
    for rows in track(parts, what, len(parts)):
        batch = photos.batch(rows)
        both = np.stack([trunk(seen).half().cpu().numpy() for seen in (batch, batch.flip(3))], axis=1)
        found = np.empty((len(photos), *both.shape[1:]), np.float16) if found is None else found
        found[rows] = both
    assert found is not None  # noqa: S101  # photos are never none
    return found


@torch.no_grad()
def restate_norms(network: nn.Module, photos: Photos, rows: np.ndarray) -> None:
    """States batch norms by the statistics of photos, so that they normalise in training as when they answer.

    Weights are published with norms that were folded into convolutions, whose statistics are 0 and 1: in training, such
    norms would change what the network computes. Gain and bias are changed with the statistics: what the network
    answers stays the same, to rounding.

    Args:
        rows: photos that are like those of training.
    """
    seen: dict[Any, list[Tensor]] = {}

    def note(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found = inputs[0].double()
        seen.setdefault(norm, []).append(torch.stack([found.mean((0, 2, 3)), found.square().mean((0, 2, 3))]))

    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d) and module.affine]
    hooks = [norm.register_forward_pre_hook(note) for norm in norms]
    try:
        for part in np.array_split(rows, max(1, len(rows) // _BATCH)):
            network.eval()(photos.batch(part))
    finally:
        for hook in hooks:
            hook.remove()
    for norm, found in seen.items():
        mean, square = torch.stack(found).mean(0)
        variance = (square - mean.square()).clamp_min(0)
        before, now = (norm.running_var.double() + norm.eps).sqrt(), (variance + norm.eps).sqrt()
        norm.bias += norm.weight * ((mean - norm.running_mean) / before).float()
        norm.weight *= (now / before).float()
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
