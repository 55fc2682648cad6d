"""Visual prompts: learned tokens beside those of the photo, in front of a vision transformer that stays frozen.

Jia et al., "Visual Prompt Tuning", ECCV 2022: shallow prompts enter before the first block and pass through all; deep
prompts are new before each block. pFedPG (Yang, Wang and Wang, ICCV 2023, section 3.2.1) forms ``[c, P, z]``: class
token, prompts, patches. Prompts are put in after positions were added, so they have none.

Notation: B photos, T tokens, K prompts, l the width of a token, N blocks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from refocus.cloud_train.errors import UsageError


class Prompts(nn.Module):
    """K prompts for a network of width l, before the first block alone or before each of N.

    Attributes:
        tokens: (1 or N, K, l), uniform in +-sqrt(6 / (3 p^2 + l)) for patches of p pixels (VPT, as Xavier would).
    """

    def __init__(self, count: int, width: int, patch: int, depth: int = 1) -> None:
        super().__init__()
        bound = math.sqrt(6 / (3 * patch**2 + width))
        self.tokens = nn.Parameter(torch.empty(depth, count, width).uniform_(-bound, bound))


class PromptedViT(nn.Module):
    """A timm vision transformer with prompts between its own prefix tokens and its patches.

    Args:
        network: any network of timm's ``VisionTransformer`` family.
        count: K.
        deep: new prompts before each block, in the place of what became of the last ones.
    """

    def __init__(self, network: Any, count: int, deep: bool = False) -> None:
        super().__init__()
        self.network = vision_transformer(network, "prompts")
        self.prompts = Prompts(
            count, network.embed_dim, network.patch_embed.patch_size[0], len(network.blocks) if deep else 1
        )

    def forward(self, photo: Tensor, tokens: Tensor | None = None) -> Tensor:
        """photo (B, 3, S, S), tokens as of :class:`Prompts` (default: its own) -> features (B, D)."""
        tokens = self.prompts.tokens if tokens is None else tokens
        network, first = self.network, self.network.num_prefix_tokens
        x = network.norm_pre(network._pos_embed(network.patch_embed(photo)))
        after = first
        for block, own in zip(network.blocks, _by_block(tokens, len(network.blocks)), strict=True):
            if own is not None:
                x = torch.cat([x[:, :first], own.expand(len(x), -1, -1), x[:, after:]], dim=1)
                after = first + tokens.shape[1]
            x = block(x)
        x = torch.cat([x[:, :first], x[:, after:]], dim=1)
        return network.forward_head(network.norm(x), pre_logits=True)  # type: ignore[no-any-return]


def _by_block(tokens: Tensor, blocks: int) -> list[Tensor | None]:
    own: list[Tensor | None] = list(tokens.unbind(0))
    return own + [None] * (blocks - len(own))


def vision_transformer(network: Any, what: str) -> Any:
    """The network itself.

    Raises:
        UsageError: it is none that ``what`` can be put into.
    """
    from timm.models.vision_transformer import VisionTransformer

    if not isinstance(network, VisionTransformer):
        raise UsageError(
            f"{what} need a vision transformer (timm's vit_*, deit_* and similar); {type(network).__name__} is not one"
        )
    return network
