"""ICIIA in its streaming form: one new photo at a time, with the keys and values of the photos before it at hand.

With causal attention a photo looks back on the W - 1 before it, so each layer's keys and values of a photo never change
once they are computed. The device keeps them (S = W - 1 slots a layer, in ring order: there are no positions), and a
photo costs one row of every projection. Same weights, same answers as :class:`cloud_train.methods.iciia.Iciia` over the
whole stream; what differs is the layout:

- the dot product of a partition is a sum over the first axis of (d, k d, P), whose last axis is long, so that a CPU
  multiplies P values at once; XNNPACK takes the same weights as a grouped 1x1 convolution;
- the shuffle is how that result is laid out, and costs nothing;
- the scale of the scores is folded into the weights of the queries;
- the new photo's own score is computed apart, so that no cache is copied.

Notation: D feature width, S signature or slots, P partitions, d = D / P, k projections at once, H heads, N layers,
W attention window, C classes, K traits, L rows of traits.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloud_train.errors import UsageError
from cloud_train.methods.gate import MOST_EVIDENCE, STATISTICS, StatisticsGate, WarmUpGate
from cloud_train.methods.iciia import Iciia, IciiaClassifier, IciiaConfig, IciiaLayer, IntraClientAttention
from cloud_train.methods.iciia import PartitionedLinear as Trained

Layout = Literal["elementwise", "grouped"]
_NEVER = -1e9  # score of an empty slot
_SMALL = 8  # d up to which a sum of products beats many small matrix products


class RowProjection(nn.Module):
    """A partitioned projection of one row, (1, 1, D) -> (k d, P) in the order of the flattened output (1, k D).

    Args:
        trained: the layer whose weights it takes.
        layout: "elementwise" or "grouped".
        scale: of the outputs, per projection, (k,); folded into the weights.
    """

    def __init__(self, trained: Trained, layout: Layout, scale: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.partitions, self.size, self.count = trained.partitions, trained.size, trained.projections
        self.shuffle = trained.shuffle
        factor = torch.tensor(scale or (1.0,) * self.count, dtype=trained.weight.dtype)
        weight = trained.weight.detach().view(self.partitions, self.count, self.size, self.size)
        weight = (weight * factor[:, None, None]).reshape(self.partitions, -1, self.size)
        bias = (trained.bias.detach().view(self.count, -1) * factor[:, None]).reshape(-1)
        self.form: str = "dense" if self.partitions == 1 else layout
        if self.form == "elementwise" and self.size > _SMALL:
            self.form = "batched"
        if self.form == "dense":
            weight = weight[0]
        elif self.form == "elementwise":
            weight = weight.permute(2, 1, 0)  # (d, k d, P)
        elif self.form == "batched":
            weight = weight.transpose(1, 2)  # (P, d, k d)
        else:
            weight = weight.reshape(-1, self.size, 1, 1)
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, row: Tensor) -> Tensor:
        """(1, 1, D) or any other shape of D values -> (1, 1, k D), without the bias."""
        if self.form == "dense":
            return functional.linear(row.reshape(1, 1, -1), self.weight)
        if self.form == "elementwise":
            parts = row.reshape(1, self.partitions, self.size).permute(2, 0, 1)
            projected = (self.weight * parts).sum(0)  # (k d, P)
        elif self.form == "batched":
            parts = torch.bmm(row.reshape(self.partitions, 1, self.size), self.weight)
            projected = parts.reshape(self.partitions, -1).transpose(0, 1)
        else:
            parts = functional.conv2d(row.reshape(1, -1, 1, 1), self.weight, groups=self.partitions)
            projected = parts.reshape(self.partitions, -1).transpose(0, 1)
        if not self.shuffle:
            projected = projected.reshape(self.count, self.size, self.partitions).transpose(1, 2)
        return projected.reshape(1, 1, -1)


class StreamingLayer(nn.Module):
    """One layer for one new row; see :class:`cloud_train.methods.iciia.IciiaLayer`."""

    def __init__(self, trained: IciiaLayer, heads: int, layout: Layout) -> None:
        super().__init__()
        attention = trained.attention
        if not isinstance(attention, IntraClientAttention):
            raise UsageError("a block without attention has nothing to stream; export its full-window head")
        self.heads = heads
        self.qkv = RowProjection(attention.qkv, layout, (attention.scale, 1.0, 1.0))
        self.out = RowProjection(attention.out, layout)
        self.expand, self.contract = RowProjection(trained.expand, layout), RowProjection(trained.contract, layout)
        self.norm_attention, self.norm_feed_forward = trained.norm_attention, trained.norm_feed_forward

    def forward(self, row: Tensor, empty: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """row (1, 1, D), empty (1, 1, S) added to the scores of the slots, keys (H, D / H, S), values (H, S, D / H).

        Returns the row (1, 1, D), its attention (H, 1, S + 1) with itself last, and its own key and value, each
        (H, 1, D / H).
        """
        slots, width = keys.shape[-1], keys.shape[1]
        query, key, value = (self.qkv(row) + self.qkv.bias).reshape(3 * self.heads, 1, width).split(self.heads)
        own = (query * key).sum(-1, keepdim=True)
        attention = torch.cat([query @ keys + empty, own], dim=-1).softmax(dim=-1)
        past, itself = attention.split([slots, 1], dim=-1)
        mixed = past @ values + itself * value
        row = self.norm_attention(self.out(mixed) + self.out.bias + row)
        hidden = functional.relu(self.expand(row) + self.expand.bias)
        return self.norm_feed_forward(self.contract(hidden) + self.contract.bias + row), attention, key, value


class StreamingIciia(nn.Module):
    """N layers for one new photo.

    Raises:
        UsageError: the block's attention is not causal: what it computed for a photo changes with later ones.
    """

    def __init__(self, iciia: Iciia, layout: Layout = "elementwise") -> None:
        super().__init__()
        config = iciia.config
        if config.attention != "causal":
            raise UsageError(f"attention {config.attention} cannot be streamed; train with --attention causal")
        self.slots = config.window - 1
        self.layers = nn.ModuleList(StreamingLayer(layer, config.heads, layout) for layer in iciia.layers)  # type: ignore[arg-type]

    def forward(self, row: Tensor, length: Tensor, *caches: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Calibrates one photo.

        Args:
            row: (1, D), its feature.
            length: (1,), photos seen before it; slots fill from the first.
            caches: keys (H, D / H, S) and values (H, S, D / H) of each layer in turn.

        Returns:
            (1, D); its attention to each slot and, last, itself, (1, S + 1), the mean over layers and heads; and the
            keys and values of the new photo, in the order of the caches, each (H, 1, D / H).
        """
        empty = torch.where(torch.arange(self.slots)[None, None] < length, 0.0, _NEVER).to(row.dtype)
        row, weights, rows = row[None], [], []
        for number, layer in enumerate(self.layers):
            row, attention, key, value = layer(row, empty, caches[2 * number], caches[2 * number + 1])
            weights.append(attention)
            rows += [key, value]
        return row[0], torch.cat(weights).mean(dim=0), rows


class StreamingGate(nn.Module):
    """:class:`StatisticsGate` for one photo: same statistics, fewer and smaller operators.

    Normalisation of the statistics and signs are folded into the first linear layer, constants of the traits are
    computed here once, and both answers are rows of one tensor.
    """

    inside: Tensor
    log_inside: Tensor
    between: Tensor
    positions: Tensor
    sign: Tensor

    def __init__(self, trained: StatisticsGate, rows: int) -> None:
        super().__init__()
        between = trained.between.detach()
        self.register_buffer("between", between)
        self.register_buffer("inside", 1 / (1 + between))
        self.register_buffer("log_inside", torch.log1p(between))
        self.register_buffer("positions", torch.arange(rows)[:, None])
        directions, centre = trained.directions.detach(), trained.centre.detach()
        self.trait = nn.Linear(directions.shape[0], directions.shape[1], dtype=directions.dtype)
        self.trait.weight.data.copy_(directions.T)
        self.trait.bias.data.copy_(-(centre.double() @ directions.double()))
        weight = trained.expand.weight.detach().double() / trained.std.double()
        bias = trained.expand.bias.detach().double() - weight @ trained.mean.double()
        column = dict(zip(STATISTICS, weight.T, strict=True))
        agree = column["agree"] / 2  # it comes twice
        # In the order in which `statistics` gives them.
        folded = [
            column["log_length"], column["inverse_length"], -column["entropy_plain"], -column["entropy_personal"],
            column["top_plain"], column["top_personal"], column["divergence_plain_personal"],
            column["divergence_personal_plain"], column["plain_of_personal_choice"],
            column["personal_of_plain_choice"], agree, agree, column["overlap"], column["attention_to_itself"],
            -column["attention_entropy"], column["same_person"], column["one_person"],
        ]  # fmt: skip
        self.expand = nn.Linear(len(folded), len(bias), dtype=directions.dtype)
        self.expand.weight.data.copy_(torch.stack(folded, dim=1))
        self.expand.bias.data.copy_(bias)
        self.decide = trained.decide
        self.register_buffer("sign", torch.tensor([[1.0], [-1.0]], dtype=directions.dtype))

    def forward(self, log: Tensor, attention: Tensor, trait: Tensor, past: Tensor, length: Tensor) -> Tensor:
        """The trust of one photo.

        Args:
            log: (2, C) log-probabilities, of the plain answer and of the personal one.
            attention: (1, S + 1), the photo itself last.
            trait: of the photo, (1, K).
            past: traits of its history in any order, (L, K); what is beyond ``length`` is not read.
            length: (1,), photos seen before it.

        Returns:
            (1,) in [0, 1]; exactly 0 without a history.
        """
        hidden = functional.relu(self.expand(self.statistics(log, attention, trait, past, length)[None]))
        return torch.sigmoid(self.decide(hidden))[:, 0] * length.clamp(max=1).to(log.dtype)

    def statistics(self, log: Tensor, attention: Tensor, trait: Tensor, past: Tensor, length: Tensor) -> Tensor:
        count = length.clamp(max=past.shape[0]).to(log.dtype)
        probability = log.exp()
        top, best = probability.max(dim=1, keepdim=True)
        crossed = probability.gather(1, best.flip(0))
        apart = ((log[:1] - log[1:]) * probability).sum(1, keepdim=True) * self.sign
        overlap = (log.mean(0, keepdim=True)).exp().sum(1)
        pairs = torch.cat([(probability * log).sum(1, keepdim=True), top, apart.clamp(max=10.0), crossed,
                           (crossed >= top).to(log.dtype)]).flatten()  # fmt: skip
        spread = (attention * attention.clamp(min=1e-6).log()).sum(1)
        more = count + 1
        return torch.cat([more.log(), 1 / more, pairs, overlap, attention[0, -1:], spread,
                          *self.evidence(trait, past, length, count)])  # fmt: skip

    def evidence(self, trait: Tensor, past: Tensor, length: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Same person, and one person, each (1,); see :meth:`StatisticsGate.evidence`."""
        kept = (self.positions < length).to(past.dtype)  # (L, 1)
        past = past * kept
        total, some = past.sum(0, keepdim=True), count.clamp(min=1)  # (1, K), (1,)
        mean = total / some
        known = 1 + count * self.between
        spread = self.between / known  # of the person's mean, given the history
        beyond, off = 1 + spread, trait - spread * total
        same = trait * trait * self.inside + self.log_inside - off * off / beyond - beyond.log()
        deviation = (past - mean) * kept
        inner = (deviation * deviation - past * past * self.inside).sum(0, keepdim=True)
        one = inner - count * self.log_inside + total * mean / known + known.log()
        limit = MOST_EVIDENCE
        return (0.5 * same.sum(1)).clamp(-limit, limit), (one.sum(1) / (-2 * some)).clamp(-limit, limit)


class StreamingHead(nn.Module):
    """Everything after the encoder, for one new photo; see :class:`cloud_train.models.WindowHead`."""

    def __init__(self, plain: nn.Linear, personal: IciiaClassifier, gate: StatisticsGate | WarmUpGate, rows: int,
                 layout: Layout = "elementwise") -> None:  # fmt: skip
        super().__init__()
        self.config: IciiaConfig = personal.iciia.config
        self.plain, self.iciia = plain, StreamingIciia(personal.iciia, layout)
        if self.config.classifier != "shared":
            self.classifier = personal.classifier
        self.gate = StreamingGate(gate, rows) if isinstance(gate, StatisticsGate) else gate

    def forward(self, feature: Tensor, length: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """feature (1, D + S), length (1,), state: the caches of :meth:`StreamingIciia.forward`, then, with a gate on
        statistics, traits (L, K).

        Returns plain, calibrated and delivered logits, each (1, C), attention (1, S + 1), trust (1,), the rows of the
        caches, and with a gate on statistics the photo's traits (1, K).
        """
        row = feature[:, : self.config.width]
        caches = 2 * len(self.iciia.layers)
        calibrated, attention, rows = self.iciia(row, length, *state[:caches])
        both = self._logits(row, functional.relu(calibrated))
        log = both.log_softmax(dim=1)
        if isinstance(self.gate, StreamingGate):
            trait = self.gate.trait(feature)
            trust = self.gate(log, attention, trait, state[caches], length)
            rows = [*rows, trait]
        else:
            trust = self.gate(length)
        delivered = log[:1] + trust[:, None] * (log[1:] - log[:1])
        return both[:1], both[1:], delivered, attention, trust, *rows

    def _logits(self, row: Tensor, activated: Tensor) -> Tensor:
        """The logits of the photo alone and with its history, (2, C)."""
        if self.config.classifier == "shared":
            both: Tensor = self.plain(torch.cat([row, activated]))  # its weights are read once
            return both
        plain, personal = self.plain(row), self.classifier(activated)
        return torch.cat([plain, personal + plain if self.config.classifier == "residual" else personal])


def cache_shapes(config: IciiaConfig) -> dict[str, tuple[tuple[int, ...], int]]:
    """Name of each cache -> its shape and the axis of its slots."""
    slots, width = config.window - 1, config.width // config.heads
    shapes: dict[str, tuple[tuple[int, ...], int]] = {}
    for layer in range(config.layers):
        shapes[f"keys_{layer}"] = (config.heads, width, slots), 2
        shapes[f"values_{layer}"] = (config.heads, slots, width), 1
    return shapes
