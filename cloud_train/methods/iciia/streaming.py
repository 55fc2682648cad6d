"""ICIIA in its streaming form: one new photo at a time, with the keys and values of the photos before it at hand.

With causal attention a photo looks back on the W - 1 before it, so each layer's keys and values of a photo never change
once they are computed. The device keeps them (S = W - 1 slots a layer, in ring order: there are no positions), and a
photo costs one row of every projection. Same weights, same answers as
:class:`refocus.cloud_train.methods.iciia.block.Iciia` over the whole stream. The projections are laid out for one row
(:mod:`refocus.cloud_train.methods.iciia.layout`), the scale of the scores is folded into the weights of the queries,
and the new photo's own score is computed apart, so that no cache is copied.

Notation: D feature width, S signature or slots, P partitions, d = D / P, k projections at once, H heads, N layers,
W attention window, C classes, K traits, L rows of traits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.iciia.block import Iciia, IciiaClassifier, IciiaConfig, IciiaLayer
from refocus.cloud_train.methods.iciia.device_head import DeviceHead
from refocus.cloud_train.methods.iciia.gate import StatisticsGate, WarmUpGate
from refocus.cloud_train.methods.iciia.layout import NEVER, Layout, RowProjection, attention_of

SLOTS = 1  # axis of the slots in every cache


class StreamingLayer(nn.Module):
    """One layer for one new row; see :class:`refocus.cloud_train.methods.iciia.block.IciiaLayer`."""

    def __init__(self, trained: IciiaLayer, heads: int, layout: Layout) -> None:
        super().__init__()
        attention = attention_of(trained)
        self.heads = heads
        self.qkv = RowProjection(attention.qkv, layout, (attention.scale, 1.0, 1.0))
        self.out = RowProjection(attention.out, layout, with_bias=False)
        self.expand = RowProjection(trained.expand, layout)
        self.contract = RowProjection(trained.contract, layout, with_bias=False)
        self.norm_attention, self.norm_feed_forward = trained.norm_attention, trained.norm_feed_forward

    def forward(self, row: Tensor, empty: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """row (1, 1, D), empty (1, 1, S) added to the scores of the slots, keys and values (H, S, D / H).

        Returns the row (1, 1, D), its attention (H, 1, S + 1) with itself last, and its own key and value, each
        (H, 1, D / H).
        """
        slots, width = keys.shape[1], keys.shape[2]
        query, key, value = self.qkv(row).reshape(3 * self.heads, 1, width).split(self.heads)
        own = torch.bmm(query, key.transpose(1, 2))
        attention = torch.cat([torch.bmm(query, keys.transpose(1, 2)) + empty, own], dim=-1).softmax(dim=-1)
        past, itself = attention.split([slots, 1], dim=-1)
        mixed = torch.bmm(past, values) + itself * value
        row = self.norm_attention(self.out(mixed) + self.out.bias + row)
        hidden = functional.relu(self.expand(row))
        return self.norm_feed_forward(self.contract(hidden) + self.contract.bias + row), attention, key, value


class StreamingIciia(nn.Module):
    """N layers for one new photo.

    One layer with full attention streams as it was trained: its keys and values are made of the features alone, and
    the answer is that of the newest photo, which sees all others either way.

    Raises:
        UsageError: several layers with attention that is not causal: what they computed for a photo changes with later
            ones.
    """

    def __init__(self, iciia: Iciia, layout: Layout = "elementwise") -> None:
        super().__init__()
        config = iciia.config
        if config.attention != "causal" and (config.attention != "full" or config.layers > 1):
            raise UsageError(
                f"{config.layers} layers of attention '{config.attention}' cannot be streamed: what they computed for a"
                " photo changes with later ones; train with block.attention=causal, or export with --form window"
            )
        self.slots = config.window - 1
        self.layers = nn.ModuleList(StreamingLayer(layer, config.heads, layout) for layer in iciia.layers)  # type: ignore[arg-type]

    def forward(self, row: Tensor, length: Tensor, *caches: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Calibrates one photo.

        Args:
            row: (1, D), its feature.
            length: (1,), photos seen before it; slots fill from the first.
            caches: keys and values (H, S, D / H) of each layer in turn.

        Returns:
            (1, D); its attention to each slot and, last, itself, (1, S + 1), the mean over layers and heads; and the
            keys and values of the new photo, in the order of the caches, each (H, 1, D / H).
        """
        slots = torch.arange(self.slots, device=length.device)[None, None]
        empty = torch.where(slots < length, 0.0, NEVER).to(row.dtype)
        row, weights, rows = row.reshape(1, 1, -1), [], []
        for number, layer in enumerate(self.layers):
            row, attention, key, value = layer(row, empty, caches[2 * number], caches[2 * number + 1])
            weights.append(attention)
            rows += [key, value]
        return row.reshape(1, -1), torch.cat(weights).mean(dim=0), rows


class StreamingHead(DeviceHead):
    """Everything after the encoder, for one new photo; see
    :class:`refocus.cloud_train.methods.iciia.programs.WindowHead`.

    Args:
        rows: L, of traits.
    """

    positions: Tensor

    def __init__(
        self,
        plain: nn.Linear,
        personal: IciiaClassifier,
        gate: StatisticsGate | WarmUpGate,
        rows: int,
        layout: Layout = "elementwise",
        several: bool = False,
    ) -> None:
        super().__init__(plain, personal, gate, StreamingIciia(personal.iciia, layout), several)
        self.caches = 2 * personal.iciia.config.layers
        self.register_buffer("positions", torch.arange(rows)[:, None])

    def forward(self, feature: Tensor, length: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """feature (1, D + S), length (1,), state: the caches of :meth:`StreamingIciia.forward`, then, with a gate on
        statistics, traits (L, K).

        Returns plain, calibrated and delivered logits, each (1, C), attention (1, S + 1), trust (1,), the rows of the
        caches, and with a gate on statistics the photo's traits (1, K).
        """
        calibrated, attention, rows = self.iciia(feature[:, : self.config.width], length, *state[: self.caches])
        kept = self.positions < length
        answers, traits = self.answers(feature, calibrated, attention, length, state[self.caches :], kept)
        return *answers, *rows, *traits


def cache_shapes(config: IciiaConfig) -> dict[str, tuple[int, int, int]]:
    """Name of each cache -> its shape; slots are along ``SLOTS``."""
    shape = config.heads, config.window - 1, config.width // config.heads
    return {f"{kind}_{layer}": shape for layer in range(config.layers) for kind in ("keys", "values")}
