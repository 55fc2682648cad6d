"""A vision transformer, plain or with inserted parts, in the operators that XNNPACK takes, for one photo at a time.

What torch.export makes of timm's own modules leaves layer norms, and the reshaping around a batched product, to
portable kernels, which cuts the delegate into pieces at every block. The same computation in other operators is taken
whole: means are products with a constant matrix, and heads stand in the first axis of three. Every
tensor of the network is kept as it is, or in rows, so that a person's can stand in its place.

Notation: T tokens, K prompts, l width of a token, H heads, d = l / H, P tokens of a prefix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.peft.prefixes import AddedPrefix, Prefix, PrefixedAttention
from refocus.cloud_train.methods.peft.prompts import PromptedViT, vision_transformer


class LinearNorm(nn.Module):
    """``nn.LayerNorm`` over the last axis: mean and variance as products with a column of 1 / l."""

    mean: Tensor

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        width = norm.normalized_shape[0]
        self.register_buffer("mean", torch.full((1, width), 1 / width), persistent=False)
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - functional.linear(x, self.mean)
        variance = functional.linear(centred * centred, self.mean)
        return centred / (variance + self.eps).sqrt() * self.weight + self.bias


class DelegatedPrefix(nn.Module):
    """y (1, T, l) -> keys and values, each (1, P, l): what :class:`Prefix` gives, in two halves.

    Raises:
        UsageError: a prefix of learned vectors.
    """

    def __init__(self, prefix: Prefix) -> None:
        super().__init__()
        if prefix.vectors is not None:
            raise UsageError("a prefix of learned vectors is not laid out for XNNPACK")
        *before, last = prefix.layers
        self.scale, self.before = prefix.scale, nn.Sequential(*before)
        self.keys, self.values = (_rows(last, number, 2) for number in range(2))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.before(y)
        return self.scale * self.keys(inner), self.scale * self.values(inner)


class DelegatedBlock(nn.Module):
    """One block, (1, T, l) -> (1, T, l)."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        own, prefix = _attention_of(block)
        qkv = own.qkv.qkv if isinstance(own.qkv, AddedPrefix) else own.qkv
        self.concatenated = isinstance(block.attn, PrefixedAttention)
        self.prefix = DelegatedPrefix(prefix) if prefix is not None else None
        self.heads, self.scale = own.num_heads, own.scale
        self.norm1, self.norm2 = LinearNorm(block.norm1), LinearNorm(block.norm2)
        self.query, self.key, self.value = (_rows(qkv, number, 3) for number in range(3))
        mlp, *adapters = [*block.mlp] if isinstance(block.mlp, nn.Sequential) else [block.mlp]
        self.proj, self.mlp = own.proj, nn.Sequential(mlp.fc1, mlp.act, mlp.fc2, *adapters)
        self.scale1, self.scale2 = block.ls1, block.ls2

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        query, key, value = self.query(y), self.key(y), self.value(y)
        if self.prefix is not None:
            keys, values = self.prefix(y)
            key = torch.cat([keys, key], dim=1) if self.concatenated else key + keys
            value = torch.cat([values, value], dim=1) if self.concatenated else value + values
        query, key, value = self._heads(query), self._heads(key), self._heads(value)
        scores = torch.bmm(query, key.permute(0, 2, 1)) * self.scale
        mixed = torch.bmm(scores.softmax(dim=-1), value).permute(1, 0, 2).reshape(1, -1, x.shape[2])
        x = x + self.scale1(self.proj(mixed))
        return x + self.scale2(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        """(1, T, l) -> (H, T, d)."""
        return x.reshape(x.shape[1], self.heads, -1).permute(1, 0, 2)


class DelegatedViT(nn.Module):
    """photo (1, 3, S, S), prompts (1 or N, K, l) if any -> features (1, D): what the network computes.

    Args:
        network: a :class:`PromptedViT`, whose prompts are then given; or one of timm's ``VisionTransformer`` family,
            with prefixes or adapters where they were inserted.

    Raises:
        UsageError: a network with parts that are not laid out here.
    """

    even: Tensor

    def __init__(self, network: Any) -> None:
        super().__init__()
        network = network.network if isinstance(network, PromptedViT) else network
        plain = (nn.Identity, nn.Dropout)
        blocks = [_attention_of(block)[0] for block in vision_transformer(network, "layouts for XNNPACK").blocks]
        if (
            any(type(attn).__name__ != "Attention" or attn.gate is not None for attn in blocks)
            or not all(isinstance(part, plain) for attn in blocks for part in (attn.q_norm, attn.k_norm, attn.norm))
            or not all(isinstance(block.norm1, nn.LayerNorm) for block in network.blocks)
            or not isinstance(network.norm_pre, plain)
            or network.global_pool not in ("token", "avg")
            or network.reg_token is not None
            or network.pos_embed is None
            or network.no_embed_class
        ):
            raise UsageError(f"{type(network).__name__} has parts that are not laid out for XNNPACK")
        self.patches, self.blocks = network.patch_embed.proj, nn.ModuleList(map(DelegatedBlock, network.blocks))
        self.class_token, self.places = network.cls_token, network.pos_embed
        self.norm = LinearNorm(network.norm) if isinstance(network.norm, nn.LayerNorm) else nn.Identity()
        self.after = LinearNorm(network.fc_norm) if isinstance(network.fc_norm, nn.LayerNorm) else nn.Identity()
        self.averaged, self.head = network.global_pool == "avg", network.head
        tokens = self.places.shape[1] - network.num_prefix_tokens
        self.register_buffer("even", torch.full((1, 1, tokens), 1 / tokens), persistent=False)

    def forward(self, photo: Tensor, prompts: Tensor | None = None) -> Tensor:
        x = self.patches(photo).flatten(2).permute(0, 2, 1)
        before = 0 if self.class_token is None else 1
        if self.class_token is not None:
            x = torch.cat([self.class_token, x], dim=1)
        x = x + self.places
        count = 0 if prompts is None else prompts.shape[1]
        for number, block in enumerate(self.blocks):
            if prompts is not None and number < prompts.shape[0]:
                own, behind = prompts[number : number + 1], x[:, before + (count if number else 0) :]
                x = torch.cat([*([x[:, :before]] if before else []), own, behind], dim=1)
            x = block(x)
        if not self.averaged:
            return self.head(self.after(self.norm(x[:, :1])).reshape(1, -1))  # type: ignore[no-any-return]
        x = self.norm(x[:, before + count :])
        return self.head(self.after(torch.bmm(self.even, x)).reshape(1, -1))  # type: ignore[no-any-return]


def _attention_of(block: Any) -> tuple[Any, Prefix | None]:
    """The self-attention of a block as timm made it, and the prefix that was inserted into it."""
    if isinstance(block.attn, PrefixedAttention):
        return block.attn.attention, block.attn.prefix
    return block.attn, block.attn.qkv.prefix if isinstance(block.attn.qkv, AddedPrefix) else None


def _rows(layer: Any, number: int, of: int) -> nn.Linear:
    """One of several equal parts of a linear layer's outputs."""
    width = layer.out_features // of
    part = nn.Linear(layer.in_features, width, bias=layer.bias is not None)
    rows = slice(number * width, (number + 1) * width)
    part.weight = nn.Parameter(layer.weight.detach()[rows].clone())
    if layer.bias is not None:
        part.bias = nn.Parameter(layer.bias.detach()[rows].clone())
    return part
