"""The network of a client, and its parts: what a method shares, keeps or freezes is said in modules, never in names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.peft.adapters import Adapter
from refocus.cloud_train.methods.peft.fedclip_adapter import AttAI
from refocus.cloud_train.methods.peft.prefixes import Prefix
from refocus.cloud_train.methods.peft.prompts import Prompts, vision_transformer

Tensors = dict[str, Tensor]

PEFT_MODULES = (Prompts, Prefix, Adapter, AttAI)
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


FEATURES = 2  # dimensions of a batch of features; photos have four


class ClientNetwork(nn.Module):
    """A body that gives features, and the classifier behind it.

    Args:
        body: photo (B, 3, S, S) -> features (B, D).
        head: features -> logits (B, C).
        personal: a second classifier, whose logits are added (FedRoD).
    """

    def __init__(self, body: nn.Module, head: nn.Module, personal: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.head, self.personal = body, head, personal

    @property
    def device(self) -> torch.device:
        """Device of the network's tensors; the CPU if it has none."""
        return next((tensor.device for tensor in tensors_of(self).values()), torch.device("cpu"))

    def encode(self, photo: Tensor) -> Tensor:
        """What the encoder gives for photos (B, 3, S, S), before an adapter behind it: (B, D)."""
        encoder: Any = self.body[0] if self._adapted else self.body  # type: ignore[index]
        return encoder(photo)  # type: ignore[no-any-return]

    @property
    def _adapted(self) -> bool:
        return isinstance(self.body, nn.Sequential) and isinstance(self.body[-1], AttAI)

    def forward(self, photo: Tensor) -> Tensor:
        """Photos (B, 3, S, S), or their features (B, D) from :meth:`encode`, -> logits (B, C)."""
        encoded = photo if photo.ndim == FEATURES else self.encode(photo)
        features = self.body[1](encoded) if self._adapted else encoded  # type: ignore[index]
        logits: Tensor = self.head(features)
        return logits if self.personal is None else logits + self.personal(features)


Group = Callable[[ClientNetwork], Iterable[nn.Module | nn.Parameter]]


def everything(network: ClientNetwork) -> Iterable[nn.Module]:
    return [network]


def head(network: ClientNetwork) -> Iterable[nn.Module]:
    return [network.head]


def personal_head(network: ClientNetwork) -> Iterable[nn.Module]:
    return [] if network.personal is None else [network.personal]


def body(network: ClientNetwork) -> Iterable[nn.Module]:
    return [network.body]


def peft_modules(network: ClientNetwork) -> Iterable[nn.Module]:
    """What was inserted: prompts, prefixes, adapters, attention over features."""
    return [module for module in network.modules() if isinstance(module, PEFT_MODULES)]


def norms(network: ClientNetwork) -> Iterable[nn.Module]:
    return [module for module in network.modules() if isinstance(module, NORMS)]


def attention(network: ClientNetwork) -> Iterable[nn.Module]:
    """The self-attention of every block.

    Raises:
        UsageError: the network is not a vision transformer.
    """
    return [block.attn for block in _transformer(network, "personal self-attention").blocks]


def mlps(network: ClientNetwork) -> Iterable[nn.Module]:
    """The feed-forward part of every block.

    Raises:
        UsageError: the network is not a vision transformer.
    """
    return [block.mlp for block in _transformer(network, "personal feed-forward parts").blocks]


def patches(network: ClientNetwork) -> Iterable[nn.Module]:
    """The projection of patches to tokens.

    Raises:
        UsageError: the network is not a vision transformer.
    """
    return [_transformer(network, "personal patch embeddings").patch_embed]


def positions(network: ClientNetwork) -> Iterable[nn.Parameter]:
    """The position embedding.

    Raises:
        UsageError: the network is not a vision transformer.
    """
    return [_transformer(network, "personal position embeddings").pos_embed]


def _transformer(network: ClientNetwork, what: str) -> Any:
    inner: Any = getattr(network.body, "network", network.body)
    return vision_transformer(inner, what)


def names_in(network: ClientNetwork, groups: Sequence[Group]) -> list[str]:
    """Names of the parameters and running statistics in some groups, in the network's order."""
    parts = [part for group in groups for part in group(network)]
    chosen = {id(tensor) for part in parts for tensor in _inside(part)}
    return [name for name, tensor in tensors_of(network).items() if id(tensor) in chosen]


def _inside(part: nn.Module | nn.Parameter) -> Iterable[Tensor]:
    return [part] if isinstance(part, nn.Parameter) else tensors_of(part).values()


def tensors_of(module: nn.Module) -> Tensors:
    """Parameters and floating-point buffers that are saved: everything a network knows, but for counters."""
    kept = module.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in kept.items() if tensor.is_floating_point()}


@torch.no_grad()
def put(network: ClientNetwork, tensors: Mapping[str, Tensor]) -> None:
    """Sets some tensors of a network, in place.

    Raises:
        UsageError: one is of another network.
    """
    own = tensors_of(network)
    for name, value in tensors.items():
        if name not in own or own[name].shape != value.shape:
            raise UsageError(
                f"{name} {tuple(value.shape)} is not a parameter of this network; the run is of another one"
            )
        own[name].copy_(value)


def on(tensors: Mapping[str, Tensor], device: torch.device | str) -> Tensors:
    """The tensors on a device; those that are there already are not copied."""
    return {name: value.to(device) for name, value in tensors.items()}


def taken(network: ClientNetwork, names: Iterable[str]) -> Tensors:
    """Copies of some tensors of a network."""
    own = tensors_of(network)
    return {name: own[name].detach().clone() for name in names}
