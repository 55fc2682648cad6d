"""ICIIA's partitioned projections laid out for one photo, or one window, on a device: same weights, same answers.

- The dot products of a partition are a sum over the first axis of (d, k d, P), whose last axis is long, so that a CPU
  multiplies P values at once. XNNPACK takes the same weights as a grouped 1x1 convolution.
- The rows of a window stand side by side, (D, L), so that the shuffle moves whole rows of L numbers; a few partitions
  together make one matrix product, because hundreds of tiny ones cost their calls.
- The shuffle is how a result is laid out, and costs nothing, or one transpose.
- Matrix products of attention are `bmm`, not `@`: ExecuTorch copies every cache for what `@` might have to broadcast.

Notation: D feature width, P partitions, d = D / P, k projections at once, L photos of a window, g partitions together.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.iciia.block import IciiaConfig, IciiaLayer, IntraClientAttention, PartitionedLinear

Layout = Literal["elementwise", "grouped"]
NEVER = -1e9  # score of an empty slot, or of padding
_SMALL = 8  # d up to which a sum of products beats many small matrix products
_TOGETHER = 20  # numbers of the partitions that make one matrix product


def attention_of(layer: IciiaLayer) -> IntraClientAttention:
    """The attention of a layer that has one.

    Raises:
        UsageError: it is the ablation without.
    """
    if not isinstance(layer.attention, IntraClientAttention):
        raise UsageError("a block without attention has no form for devices; export it as it was trained")
    return layer.attention


def scaled(trained: PartitionedLinear, scale: tuple[float, ...], projections: slice) -> tuple[Tensor, Tensor]:
    """Weight (P, k, d, d) and bias (k, D) of some projections of a trained layer, each times its factor."""
    count, size = trained.projections, trained.size
    factor = torch.tensor(scale or (1.0,) * count, dtype=trained.weight.dtype)
    weight = trained.weight.detach().view(trained.partitions, count, size, size) * factor[:, None, None]
    bias = trained.bias.detach().view(count, -1) * factor[:, None]
    return weight[:, projections], bias[projections]


class RowProjection(nn.Module):
    """A partitioned projection of one row, (1, 1, D) -> (1, 1, k D), or without its bias (k D,).

    Args:
        trained: the layer whose weights it takes.
        layout: "elementwise" or "grouped".
        scale: of the outputs, per projection, (k,); folded into the weights.
        projections: which of the k projections; default: all.
        with_bias: add it here; the caller adds it where a layer norm follows, which runtimes fuse.
    """

    ones: Tensor

    def __init__(
        self,
        trained: PartitionedLinear,
        layout: Layout,
        scale: tuple[float, ...] = (),
        projections: slice = slice(None),
        with_bias: bool = True,
    ) -> None:
        super().__init__()
        self.with_bias = with_bias
        whole, bias = scaled(trained, scale, projections)
        self.partitions, self.size, self.count = trained.partitions, trained.size, len(bias)
        self.shuffle = trained.shuffle
        weight = whole.reshape(self.partitions, -1, self.size)
        self.form: str = "dense" if self.partitions == 1 else layout
        if self.form == "elementwise" and self.size > _SMALL:
            self.form = "batched"
        if self.form == "dense":
            weight = weight[0].T
        elif self.form == "elementwise":
            weight = weight.permute(2, 1, 0)  # (d, k d, P)
            # A row of ones times a matrix sums its rows, bias included, in an eighth of the time that a sum takes.
            self.register_buffer("ones", torch.ones(1, self.size, dtype=weight.dtype))
        elif self.form == "batched":
            weight = weight.transpose(1, 2)  # (P, d, k d)
        else:
            weight = weight.reshape(-1, self.size, 1, 1)
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self.bias = nn.Parameter(bias.reshape(-1), requires_grad=False)

    def forward(self, row: Tensor) -> Tensor:
        """Any shape of D values -> (1, 1, k D), or (1, k D) with the bias."""
        if self.form == "elementwise":
            parts = row.reshape(1, self.partitions, self.size).permute(2, 0, 1)
            products = self.weight * parts
            if self.shuffle and self.with_bias:
                return torch.addmm(self.bias, self.ones, products.reshape(self.size, -1))
            projected = self.ones[None] @ products.reshape(1, self.size, -1)
            if self.shuffle:
                return projected
        elif self.form == "dense":
            projected = row.reshape(1, 1, -1) @ self.weight
        elif self.form == "batched":
            parts = torch.bmm(row.reshape(self.partitions, 1, self.size), self.weight)
            projected = parts.reshape(self.partitions, -1).transpose(0, 1)
        else:
            parts = functional.conv2d(row.reshape(1, -1, 1, 1), self.weight, groups=self.partitions)
            projected = parts.reshape(self.partitions, -1).transpose(0, 1)
        if not self.shuffle and self.form != "dense":
            projected = projected.reshape(self.count, self.size, self.partitions).transpose(1, 2)
        projected = projected.reshape(1, 1, -1)
        return projected + self.bias if self.with_bias else projected


class RowsProjection(nn.Module):
    """A partitioned projection of a window, (1, D, T) -> (k D, T), without the bias (k D,) unless activated.

    Args:
        trained: the layer whose weights it takes.
        layout: "elementwise" stands for matrix products here, "grouped" for a grouped convolution.
        scale: of the outputs, per projection, (k,); folded into the weights.
        projections: which of the k projections; default: all.
        activated: add the bias and apply ReLU; as part of a convolution, because adding one number to each row of T
            numbers is slow.
    """

    mask: Tensor

    def __init__(
        self,
        trained: PartitionedLinear,
        layout: Layout,
        scale: tuple[float, ...] = (),
        projections: slice = slice(None),
        activated: bool = False,
    ) -> None:
        super().__init__()
        weight, bias = scaled(trained, scale, projections)
        self.partitions, self.size, self.shuffle = trained.partitions, trained.size, trained.shuffle
        self.count, self.grouped = len(bias), layout == "grouped"
        together = max(1, _TOGETHER // self.size)
        self.together = together if self.partitions % together == 0 and not self.grouped else 1
        if self.grouped:
            weight = weight.reshape(-1, self.size, 1, 1)
        else:  # (P / g, k d, g, 1, d): of each output, the partition it belongs to and its weights
            blocks = weight.reshape(self.partitions // self.together, self.together, -1, self.size)
            weight = blocks.transpose(1, 2).unsqueeze(3)
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self.bias = nn.Parameter(bias.reshape(-1), requires_grad=False)
        self.register_buffer("mask", torch.eye(self.together, dtype=weight.dtype)[:, :, None])
        self.inner_bias = nn.Parameter(self._before_the_shuffle(bias), requires_grad=False) if activated else None

    def _before_the_shuffle(self, bias: Tensor) -> Tensor:
        """Bias (k, D) in the order in which the products come out, (k D,)."""
        shape = (self.count, self.size, self.partitions) if self.shuffle else (self.count, self.partitions, self.size)
        by_partition = bias.reshape(shape).permute((2, 0, 1) if self.shuffle else (1, 0, 2))  # (P, k, d)
        grouped = by_partition.reshape(self.partitions // self.together, self.together, -1)
        return grouped.transpose(1, 2).reshape(-1)

    def forward(self, rows: Tensor) -> Tensor:
        length, size, together = rows.shape[-1], self.size, self.together
        groups = self.partitions // together
        # Block-diagonal: the file holds the blocks, a runtime fills in the zeros when it loads them.
        blocks = self.weight if together == 1 else self.weight * self.mask
        if self.grouped or self.inner_bias is not None:
            # XNNPACK takes a kernel that is a parameter as it stands, and no other.
            kernel = self.weight if self.grouped else blocks.reshape(-1, together * size, 1, 1)
            projected = functional.conv2d(rows.reshape(1, -1, 1, length), kernel, self.inner_bias, groups=groups)
            if self.inner_bias is not None:
                projected = functional.relu(projected)
        else:
            matrix = blocks.reshape(groups, -1, together * size)
            projected = torch.bmm(matrix, rows.reshape(groups, together * size, length))
        # (P / g, k d, g, T) -> (k d, P / g, g, T): whole rows of g T numbers move.
        projected = projected.reshape(groups, self.count * size, together, length).transpose(0, 1)
        if not self.shuffle:
            projected = projected.reshape(self.count, size, self.partitions, length).transpose(1, 2)
        return projected.reshape(-1, length)


def both_logits(
    plain: nn.Linear, own: nn.Linear | None, config: IciiaConfig, row: Tensor, calibrated: Tensor
) -> Tensor:
    """The logits of the photo alone and with its history, (2, C); see :class:`IciiaClassifier`.

    Args:
        own: ICIIA's classifier, if it is not the plain one.
        row, calibrated: (1, D), before and after ICIIA.
    """
    activated = functional.relu(calibrated)
    if own is None:
        both: Tensor = plain(torch.cat([row, activated]))  # its weights are read once
        return both
    alone, personal = plain(row), own(activated)
    return torch.cat([alone, personal + alone if config.classifier == "residual" else personal])
