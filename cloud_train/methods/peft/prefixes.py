"""Prefixes: keys and values of a client's own in every self-attention of a vision transformer.

Sun et al., "FedPerfix", ICCV 2023. In the paper a prefix is *concatenated*: each token also attends to keys P_k and
values P_v (eq. 3 and 5), which is a mixture of the shared attention and one over the prefix (eq. 6). In the published
code it is *added*: qkv(x) + s [0, P_k, P_v]. Both are here, by these names; the figures of the paper are of the code.
P_k and P_v come from the block's normalised input through a parallel adapter, tanh(x W_down) W_up (eq. 4), through one
matrix (the code's "vanilla" prefix), or are learned vectors (the paper's).

Notation: B photos, T tokens, l the width of a token, H heads, r the width inside an adapter, M learned vectors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.peft.prompts import vision_transformer

FORMS, SOURCES = ("added", "concatenated"), ("adapter", "linear", "vectors")


class Prefix(nn.Module):
    """x (B, T, l) -> s [P_k, P_v], (B, T or M, 2 l): what is learned for one self-attention.

    Args:
        width: l.
        source: where it comes from: "adapter", "linear" or "vectors".
        inner: r of an adapter, M of vectors.
        scale: s.
        zero: start from no prefix at all; for "adapter" W_up alone is zero, else no gradient would ever flow.
    """

    def __init__(
        self, width: int, source: str = "adapter", inner: int = 256, scale: float = 1.0, zero: bool = False
    ) -> None:
        super().__init__()
        self.scale = scale
        self.vectors: Tensor | None = None
        layers: list[nn.Module] = []
        if source == "vectors":
            self.vectors = nn.Parameter(torch.empty(1, inner, 2 * width).normal_(std=0.0 if zero else 0.02))
        elif source == "linear":
            layers = [nn.Linear(width, 2 * width)]
        else:
            layers = [nn.Linear(width, inner), nn.Tanh(), nn.Linear(inner, 2 * width)]
        self.layers = nn.Sequential(*layers)
        if zero and layers:
            for parameter in layers[-1].parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layers(x) if self.vectors is None else self.vectors.expand(len(x), -1, -1)
        return self.scale * found  # type: ignore[no-any-return]


class AddedPrefix(nn.Module):
    """A block's joint projection with the prefix added to its keys and values: qkv(x) + s [0, P_k, P_v]."""

    def __init__(self, qkv: nn.Linear, prefix: Prefix) -> None:
        super().__init__()
        self.qkv, self.prefix = qkv, prefix

    def forward(self, x: Tensor) -> Tensor:
        return self.qkv(x) + functional.pad(self.prefix(x), (x.shape[-1], 0))


class PrefixedAttention(nn.Module):
    """A timm self-attention whose tokens also attend to the prefix (eq. 3 and 5)."""

    def __init__(self, attention: Any, prefix: Prefix) -> None:
        super().__init__()
        self.attention, self.prefix = attention, prefix

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x (B, T, l) -> (B, T, l).

        Raises:
            UsageError: a mask is given; no network that sees whole photos has one.
        """
        if attn_mask is not None or is_causal:
            raise UsageError("prefixes and masked attention do not go together")
        own = self.attention
        query, key, value = (self._heads(part) for part in own.qkv(x).chunk(3, dim=-1))
        prefix_key, prefix_value = (self._heads(part) for part in self.prefix(x).chunk(2, dim=-1))
        key, value = torch.cat([prefix_key, own.k_norm(key)], dim=2), torch.cat([prefix_value, value], dim=2)
        scores = (own.q_norm(query) * own.scale) @ key.transpose(2, 3)
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return own.proj(own.norm(mixed))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, l) -> (B, H, T, l / H)."""
        return x.unflatten(-1, (self.attention.num_heads, -1)).transpose(1, 2)


def insert_prefixes(
    network: Any, form: str = "added", source: str = "adapter", inner: int = 256, scale: float = 1.0, zero: bool = False
) -> Any:
    """Puts a prefix into every block of a timm vision transformer, in place.

    Raises:
        UsageError: no vision transformer, or learned vectors that are to be added: they belong to no token.
    """
    if form not in FORMS or source not in SOURCES or (form, source) == ("added", "vectors"):
        raise UsageError(
            f"a prefix from {source} cannot be {form}: expected {' or '.join(FORMS)}, from"
            f" {', '.join(SOURCES)}; vectors are concatenated"
        )
    for block in vision_transformer(network, "prefixes").blocks:
        prefix = Prefix(network.embed_dim, source, inner, scale, zero)
        if form == "added":
            block.attn.qkv = AddedPrefix(block.attn.qkv, prefix)
        else:
            block.attn = PrefixedAttention(block.attn, prefix)
    return network
