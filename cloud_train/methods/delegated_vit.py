"""A prompted vision transformer in the operators that XNNPACK takes, for one photo at a time.

What torch.export makes of timm's own modules leaves layer norms, and the reshaping around a batched product, to
portable kernels, which cuts the delegate into pieces at every block. The same computation in other operators is taken
whole: means are products with a constant matrix, and heads stand in the first axis of three.

Notation: T tokens, K prompts, l width of a token, H heads, d = l / H.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloud_train.errors import UsageError
from cloud_train.methods.prompts import PromptedViT


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


class DelegatedBlock(nn.Module):
    """One block, (1, T, l) -> (1, T, l)."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        own = block.attn
        self.heads, self.scale = own.num_heads, own.scale
        self.norm1, self.norm2 = LinearNorm(block.norm1), LinearNorm(block.norm2)
        self.query, self.key, self.value = (_part(own.qkv, number) for number in range(3))
        self.proj, self.mlp = own.proj, nn.Sequential(block.mlp.fc1, block.mlp.act, block.mlp.fc2)
        self.scale1, self.scale2 = block.ls1, block.ls2

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        query, key, value = (self._heads(part(y)) for part in (self.query, self.key, self.value))
        scores = torch.bmm(query, key.permute(0, 2, 1)) * self.scale
        mixed = torch.bmm(scores.softmax(dim=-1), value).permute(1, 0, 2).reshape(1, -1, x.shape[2])
        x = x + self.scale1(self.proj(mixed))
        return x + self.scale2(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        """(1, T, l) -> (H, T, d)."""
        return x.reshape(x.shape[1], self.heads, -1).permute(1, 0, 2)


class DelegatedViT(nn.Module):
    """photo (1, 3, S, S), prompts (1 or N, K, l) -> features (1, D): what :class:`PromptedViT` computes.

    Raises:
        UsageError: a network with parts that are not laid out here.
    """

    places: Tensor
    even: Tensor

    def __init__(self, prompted: PromptedViT) -> None:
        super().__init__()
        network = prompted.network
        plain = (nn.Identity, nn.Dropout)
        blocks = [block.attn for block in network.blocks]
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
        first, places = network.num_prefix_tokens, network.pos_embed.detach()
        self.first = network.cls_token.detach() + places[:, :1] if first else None
        self.register_buffer("places", places[:, first:], persistent=False)
        self.norm = LinearNorm(network.norm) if isinstance(network.norm, nn.LayerNorm) else nn.Identity()
        self.after = LinearNorm(network.fc_norm) if isinstance(network.fc_norm, nn.LayerNorm) else nn.Identity()
        tokens = self.places.shape[1]
        self.averaged = network.global_pool == "avg"
        self.register_buffer("even", torch.full((1, 1, tokens), 1 / tokens), persistent=False)

    def forward(self, photo: Tensor, prompts: Tensor) -> Tensor:
        x = self.patches(photo).flatten(2).permute(0, 2, 1) + self.places
        head = [] if self.first is None else [self.first]
        before, behind = len(head), x
        x = torch.cat([*head, prompts[:1], behind], dim=1)
        for number, block in enumerate(self.blocks):
            if 0 < number < prompts.shape[0]:
                own = prompts[number : number + 1]
                x = torch.cat([x[:, :before], own, x[:, before + own.shape[1] :]], dim=1)
            x = block(x)
        if not self.averaged:
            return self.after(self.norm(x[:, :1])).reshape(1, -1)  # type: ignore[no-any-return]
        x = self.norm(x[:, before + prompts.shape[1] :])
        return self.after(torch.bmm(self.even, x)).reshape(1, -1)  # type: ignore[no-any-return]


def _part(qkv: nn.Linear, number: int) -> nn.Linear:
    """The query's, key's or value's third of a joint projection."""
    width = qkv.out_features // 3
    part = nn.Linear(qkv.in_features, width, bias=qkv.bias is not None)
    rows = slice(number * width, (number + 1) * width)
    part.weight = nn.Parameter(qkv.weight.detach()[rows].clone())
    if qkv.bias is not None:
        part.bias = nn.Parameter(qkv.bias.detach()[rows].clone())
    return part
