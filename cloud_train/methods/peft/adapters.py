"""Adapters: a small bottleneck behind every feed-forward part of a vision transformer (FedPerfix section 5.3).

Pfeiffer et al., "AdapterHub", EMNLP 2020. W_up starts at zero, so a new adapter changes nothing; W_down does not,
because with both at zero no gradient ever reaches either.

Notation: B photos, T tokens, l the width of a token, r the width inside an adapter.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from refocus.cloud_train.methods.peft.prompts import vision_transformer


class Adapter(nn.Module):
    """y (B, T, l) -> y + tanh(y W_down) W_up."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, inner), nn.Linear(inner, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, y: Tensor) -> Tensor:
        return y + self.up(self.down(y).tanh())  # type: ignore[no-any-return]


def insert_adapters(network: Any, inner: int) -> Any:
    """Puts an adapter behind the feed-forward part of every block of a timm vision transformer, in place.

    Raises:
        UsageError: no vision transformer.
    """
    for block in vision_transformer(network, "adapters").blocks:
        block.mlp = nn.Sequential(block.mlp, Adapter(network.embed_dim, inner))
    return network
