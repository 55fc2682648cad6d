"""The paper's form of ICIIA, laid out for a device: the whole window, one target, full attention.

Same weights and same answers as :class:`refocus.cloud_train.methods.iciia.programs.WindowHead`, which is the
definition. The photos of the window stand side by side, (D, T); the last layer computes the target's row alone.

Notation: D feature width, S signature width, L history photos, T = L + 1 photos of the window, H heads, C classes,
K traits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.iciia.block import Iciia, IciiaClassifier, IciiaLayer, PartitionedLinear
from refocus.cloud_train.methods.iciia.device_head import DeviceHead
from refocus.cloud_train.methods.iciia.gate import StatisticsGate, WarmUpGate
from refocus.cloud_train.methods.iciia.layout import NEVER, Layout, RowProjection, RowsProjection, attention_of


class WindowLayer(nn.Module):
    """One layer over all photos of the window; see :class:`IciiaLayer`.

    Three of its biases cost nothing: that of the keys shifts all scores of a query alike, so softmax does not see it;
    that of the values comes out of attention as it went in, and joins that of the output; that of the queries is one
    more score per key.
    """

    query_bias: Tensor

    def __init__(self, trained: IciiaLayer, heads: int, layout: Layout) -> None:
        super().__init__()
        attention = attention_of(trained)
        self.heads = heads
        self.qkv = RowsProjection(attention.qkv, layout, (attention.scale, 1.0, 1.0))
        self.out = RowsProjection(attention.out, layout)
        self.expand = RowsProjection(trained.expand, layout, activated=True)
        self.contract = RowsProjection(trained.contract, layout)
        self.norm_attention, self.norm_feed_forward = trained.norm_attention, trained.norm_feed_forward
        query, _, value = self.qkv.bias.detach().reshape(3, -1)
        self.register_buffer("query_bias", query.reshape(heads, 1, -1))
        self.out_bias = nn.Parameter(_bias_after(attention.out, value), requires_grad=False)

    def forward(self, rows: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """rows (1, T, D) and padding (1, 1, T), added to scores -> rows, and the target's weights (H, 1, T)."""
        shape = 1, rows.shape[2], rows.shape[1]
        q, k, v = self.qkv(rows.transpose(1, 2)).reshape(3 * self.heads, -1, shape[2]).split(self.heads)
        scores = torch.bmm(q.transpose(1, 2), k) + (torch.bmm(self.query_bias, k) + padding)
        weights = scores.softmax(dim=-1)
        mixed = torch.bmm(v, weights.transpose(1, 2))
        attended = self.out(mixed).reshape(shape).transpose(1, 2)
        rows = self.norm_attention(attended + self.out_bias + rows)
        hidden = self.expand(rows.transpose(1, 2)).reshape(shape)
        contracted = self.contract(hidden).reshape(shape).transpose(1, 2)
        return self.norm_feed_forward(contracted + self.contract.bias + rows), weights[:, -1:]


class LastLayer(nn.Module):
    """The last layer, for the target alone."""

    def __init__(self, trained: IciiaLayer, heads: int, layout: Layout) -> None:
        super().__init__()
        attention = attention_of(trained)
        self.heads = heads
        self.kv = RowsProjection(attention.qkv, layout, projections=slice(1, 3))
        self.query = RowProjection(attention.qkv, layout, (attention.scale, 1.0, 1.0), slice(0, 1))
        self.out = RowProjection(attention.out, layout, with_bias=False)
        self.expand = RowProjection(trained.expand, layout)
        self.contract = RowProjection(trained.contract, layout, with_bias=False)
        self.norm_attention, self.norm_feed_forward = trained.norm_attention, trained.norm_feed_forward
        value = self.kv.bias.detach().reshape(2, -1)[1]
        self.out_bias = nn.Parameter(_bias_after(attention.out, value), requires_grad=False)

    def forward(self, rows: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """As :class:`WindowLayer`, but gives the target's row, (1, 1, D)."""
        k, v = self.kv(rows.transpose(1, 2)).reshape(2 * self.heads, -1, rows.shape[1]).split(self.heads)
        row = rows[:, -1:]
        weights = (torch.bmm(self.query(row).reshape(self.heads, 1, -1), k) + padding).softmax(dim=-1)
        mixed = torch.bmm(v, weights.transpose(1, 2))
        row = self.norm_attention(self.out(mixed) + self.out_bias + row)
        hidden = functional.relu(self.expand(row))
        return self.norm_feed_forward(self.contract(hidden) + self.contract.bias + row), weights


def _bias_after(out: PartitionedLinear, value: Tensor) -> Tensor:
    """The output's bias with what it makes of the values' bias, (D,)."""
    with torch.no_grad():
        return out(value[None])[0]


class WindowIciia(nn.Module):
    """N layers over one window.

    Raises:
        UsageError: attention is not full.
    """

    def __init__(self, iciia: Iciia, layout: Layout = "elementwise") -> None:
        super().__init__()
        config, layers = iciia.config, list(iciia.layers)
        if config.attention != "full":
            raise UsageError(f"attention {config.attention} is not the paper's window")
        self.layers = nn.ModuleList(WindowLayer(layer, config.heads, layout) for layer in layers[:-1])  # type: ignore[arg-type]
        self.last = LastLayer(layers[-1], config.heads, layout)  # type: ignore[arg-type]

    def forward(self, window: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """window (1, T, D) with the target last, valid (T,) bool -> calibrated (1, D) and attention (1, T)."""
        padding = torch.where(valid, 0.0, NEVER).to(window.dtype)[None, None]
        weights = []
        for layer in self.layers:
            window, seen = layer(window, padding)
            weights.append(seen)
        row, seen = self.last(window, padding)
        return row.reshape(1, -1), torch.cat([*weights, seen]).mean(dim=0)


class DeviceWindowHead(DeviceHead):
    """Everything after the encoder, for one photo and its window; as
    :class:`refocus.cloud_train.methods.iciia.programs.WindowHead`.
    """

    def __init__(
        self,
        plain: nn.Linear,
        personal: IciiaClassifier,
        gate: StatisticsGate | WarmUpGate,
        layout: Layout = "elementwise",
        several: bool = False,
    ) -> None:
        super().__init__(plain, personal, gate, WindowIciia(personal.iciia, layout), several)

    def forward(self, feature: Tensor, history: Tensor, length: Tensor, *traits: Tensor) -> tuple[Tensor, ...]:
        """feature (1, D + S), history (1, L, D + S) with its newest row last, length (1,), traits (1, L, K)."""
        slots, width = history.shape[1], self.config.width
        valid = torch.arange(slots + 1, device=length.device) >= slots - length
        calibrated, attention = self.iciia(torch.cat([history, feature[:, None]], dim=1)[..., :width], valid)
        past = tuple(rows[0] for rows in traits)
        answers, own = self.answers(feature, calibrated, attention, length, past, valid[:slots, None])
        return *answers, *own
