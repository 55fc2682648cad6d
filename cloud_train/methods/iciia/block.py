"""ICIIA: intra-client, inter-image attention between a frozen encoder and its classifier (ICIIA sections 3.2-3.5).

The photos of one person form a sequence of features without positions. Each layer lets every photo attend to the
others and so shifts its feature towards what this person's photos have in common; nothing is trained on the device.

Notation: B windows, L photos in a window, D feature width, P partitions, d = D / P, H heads, N layers, C classes,
W attention window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.settings import DERIVED, Count, NotNegativeCount, Share

ATTENTION = ("full", "causal", "none", "alone")
TINY = 256  # P of ICIIA-T
WEIGHTS_PER_PHOTO = 3000  # of training, that the projections of a larger block than ICIIA-T may have
WINDOW = 16  # photos, at most where the window is chosen
CLASSIFIERS = ("own", "shared", "residual")


@dataclass(frozen=True)
class IciiaConfig:
    """One ICIIA block.

    Attributes:
        width: D, the width of the encoder's feature; 0: that of the backbone, see :meth:`on`.
        layers: N; the paper takes 1 (FEMNIST, CelebA), 2 (iNaturalist, UCF101) or 3 (ImageNet). 0, where the width is 0
            too: 1 for glyphs, else 3.
        partitions: P, any divisor of D; 1 is ICIIA-B, 256 is ICIIA-T (for a width that it does not divide: the most of
            two numbers or more, :func:`tiny_partitions`), D is "max" in the paper's Fig. 7.
        heads: H, a divisor of D.
        window: W photos, the target among them; 0: at most 16, fewer where half of the training people have fewer.
        attention: "full" is the paper (every photo of the window attends to all of it); "causal" is the streaming
            form (each photo attends to itself and the W - 1 before it); "none" is the ablation "- attention", which
            keeps the projections and drops the exchange between photos; "alone" is the ablation "- projection",
            attention among the features themselves, without projections and feed-forward layers.
        shuffle: False is the ablation "- shuffling".
        classifier: what turns a calibrated feature into logits. "own": a linear layer trained with ICIIA (the authors'
            code); "shared": the plain classifier, frozen, so that a head stores and reads one; "residual": the plain
            logits plus those of a linear layer that starts at zero.
        dropout: on attention weights, the attention's output and inside the feed-forward layer.
    """

    width: int = field(default=0, metadata=DERIVED)
    layers: int = 3
    partitions: Count = TINY
    heads: Count = 4
    window: NotNegativeCount = WINDOW
    attention: Literal["full", "causal", "none", "alone"] = "full"
    shuffle: bool = True
    classifier: Literal["own", "shared", "residual"] = "own"
    dropout: Share = 0.1

    def __post_init__(self) -> None:
        if min(self.layers or not self.width, self.partitions, self.heads, self.window or not self.width) < 1:
            raise UsageError("layers, partitions, heads and window must be at least 1")
        for name, count in (("partitions", self.partitions), ("heads", self.heads)):
            if self.width % count:
                near = [n for n in range(1, count) if not self.width % n][-3:]
                told = ", ".join(map(str, near))
                raise UsageError(
                    f"{name} {count} does not divide the feature width {self.width}; expected {told} or another divisor"
                    f" (block.{name})"
                )
        if self.attention not in ATTENTION:
            raise UsageError(f"attention {self.attention}: expected one of {', '.join(ATTENTION)}")
        if self.classifier not in CLASSIFIERS:
            raise UsageError(f"classifier {self.classifier}: expected one of {', '.join(CLASSIFIERS)}")

    def on(self, width: int, glyphs: bool, photos: int = WINDOW) -> IciiaConfig:
        """Return the block for features of D = ``width``, of glyphs or of photos.

        ICIIA-T has as many partitions as the width allows.

        Args:
            width: size D of a feature.
            glyphs: the photos are drawn characters, for which one layer is the default.
            photos: number that half of the training people have; it limits a window that is chosen.

        Raises:
            UsageError: partitions or heads do not divide the width.
        """
        partitions = tiny_partitions(width) if self.partitions == TINY else self.partitions
        layers, window = self.layers or (1 if glyphs else 3), self.window or max(2, min(WINDOW, photos))
        return replace(self, width=width, partitions=partitions, layers=layers, window=window)

    @property
    def receptive_field(self) -> int:
        """Return the number of photos that can influence one target's answer.

        That is N(W - 1) + 1 when causal, the target included.
        """
        return self.layers * (self.window - 1) + 1 if self.attention == "causal" else self.window


def tiny_partitions(width: int) -> int:
    """Return P of ICIIA-T for features of D = ``width``.

    256, or where that is no divisor, the most of 2 numbers or more.
    """
    return TINY if width % TINY == 0 else max(p for p in range(1, width // 2 + 1) if width % p == 0)


def roomy_partitions(block: IciiaConfig, photos: int) -> int:
    """Return P of the largest block that ``photos`` training photos support.

    One of 1, 4, 8 and 16, or that of ICIIA-T.
    """
    width, most = block.width, WEIGHTS_PER_PHOTO * photos
    fitting = (p for p in (1, 4, 8, 16) if width % p == 0 and 6 * block.layers * width**2 // p <= most)
    return next(fitting, tiny_partitions(width))


class PartitionedLinear(nn.Module):
    """Partitioned linear projection and feature shuffling (sections 3.3 and 3.4), for one or several projections.

    Partition p of the input, x[p] of d values, is projected by its own (d, d) matrix. The shuffle is a transpose and
    a reshape, (P, d) -> (d, P) -> D, so that whatever reads a slice of the result reads from all partitions. The bias
    is added last, in the order of the output. Costs D^2 / P weights a projection.
    """

    def __init__(self, width: int, partitions: int, shuffle: bool = True, projections: int = 1) -> None:
        super().__init__()
        self.partitions, self.projections, self.shuffle = partitions, projections, shuffle
        self.size = width // partitions
        self.weight = nn.Parameter(torch.empty(partitions, projections * self.size, self.size))
        self.bias = nn.Parameter(torch.zeros(projections * width))

    def reset_like_linear(self) -> None:
        """Initialise block by block as ``nn.Linear`` does.

        Kaiming-uniform(sqrt 5), bias in +-1/sqrt(d).
        """
        bound = 1 / math.sqrt(self.size)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def reset_xavier(self) -> None:
        """Initialise each block Xavier-uniform, bias 0, as attention does."""
        bound = math.sqrt(6 / (self.weight.shape[1] + self.weight.shape[2]))
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., projections * D), the projections one after another."""
        lead, rows = x.shape[:-1], math.prod(x.shape[:-1])
        if self.partitions == 1:
            return functional.linear(x, self.weight[0], self.bias)
        blocks = x.reshape(rows, self.partitions, self.size).transpose(0, 1)
        projected = torch.bmm(blocks, self.weight.transpose(1, 2))  # (P, rows, projections * d)
        if self.training and projected.requires_grad:  # else the backward pass copies each matrix of the batch
            projected.register_hook(torch.Tensor.contiguous)
        projected = projected.view(self.partitions, rows, self.projections, self.size)
        # Chunking happens inside each partition, so q, k and v stay apart with and without the shuffle.
        order = (1, 2, 3, 0) if self.shuffle else (1, 2, 0, 3)
        return projected.permute(order).reshape(*lead, -1) + self.bias


def _attention_weights(q: Tensor, k: Tensor, scale: float, allowed: Tensor, last_row_only: bool) -> Tensor:
    """Return weights (B, H, L or 1, L) of queries and keys.

    Both are (B, H, L, D / H), and allowed (B or 1, L, L).
    """
    if last_row_only:
        q, allowed = q[:, :, -1:], allowed[:, -1:]
    scores = (q @ k.transpose(-1, -2)) * scale
    return scores.masked_fill(~allowed.unsqueeze(1), -1e9).softmax(dim=-1)


class IntraClientAttention(nn.Module):
    """Apply multi-head attention among one person's photos (section 3.2).

    It is written out so that every runtime takes it.
    """

    def __init__(self, config: IciiaConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.scale = 1 / math.sqrt(config.width // config.heads)
        self.qkv = PartitionedLinear(config.width, config.partitions, config.shuffle, projections=3)
        self.out = PartitionedLinear(config.width, config.partitions, config.shuffle)
        self.dropout = nn.Dropout(config.dropout)
        self.qkv.reset_xavier()
        if config.partitions == 1:  # as torch's own attention layer, which the authors use for ICIIA-B
            self.out.reset_like_linear()
            nn.init.zeros_(self.out.bias)
        else:
            self.out.reset_xavier()

    def forward(self, x: Tensor, allowed: Tensor, last_row_only: bool) -> tuple[Tensor, Tensor]:
        """x (B, L, D) and allowed (B or 1, L, L), True where row i may attend to row j.

        Returns the attended rows (B, L or 1, D) and the weights (B, H, L or 1, L).
        """
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        weights = _attention_weights(q, k, self.scale, allowed, last_row_only)
        mixed = self.dropout(weights) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, -1, width)), weights


class _NoExchange(nn.Module):
    """Replace attention by Linear-ReLU-Linear: the ablation of Table 4.

    "- attention": no photo sees another.
    """

    def __init__(self, config: IciiaConfig) -> None:
        super().__init__()
        self.first = PartitionedLinear(config.width, config.partitions, config.shuffle)
        self.second = PartitionedLinear(config.width, config.partitions, config.shuffle)
        self.first.reset_like_linear()
        self.second.reset_like_linear()

    def forward(self, x: Tensor, allowed: Tensor, last_row_only: bool) -> tuple[Tensor, Tensor]:
        length = x.shape[1]
        itself = torch.eye(length, dtype=x.dtype, device=x.device).expand(x.shape[0], 1, length, length)
        if last_row_only:
            x, itself = x[:, -1:], itself[:, :, -1:]
        return self.second(functional.relu(self.first(x))), itself


class _AttentionAlone(nn.Module):
    """Attend among the features as they are: an ablation of Table 4.

    "- projection": no part of it is trained.
    """

    def __init__(self, config: IciiaConfig) -> None:
        super().__init__()
        self.heads, self.scale = config.heads, 1 / math.sqrt(config.width // config.heads)

    def forward(self, x: Tensor, allowed: Tensor, last_row_only: bool) -> tuple[Tensor, Tensor]:
        batch, length, width = x.shape
        keys = x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        weights = _attention_weights(keys, keys, self.scale, allowed, last_row_only)
        return (weights @ keys).transpose(1, 2).reshape(batch, -1, width), weights


class IciiaLayer(nn.Module):
    """Apply a post-norm transformer layer with hidden width D.

    x = LN(x + attention(x)); x = LN(x + feed-forward(x)).
    """

    def __init__(self, config: IciiaConfig) -> None:
        super().__init__()
        kinds = {"none": _NoExchange, "alone": _AttentionAlone}
        self.attention = kinds.get(config.attention, IntraClientAttention)(config)
        self.projects = config.attention != "alone"
        if self.projects:
            self.expand = PartitionedLinear(config.width, config.partitions, config.shuffle)
            self.contract = PartitionedLinear(config.width, config.partitions, config.shuffle)
            self.expand.reset_like_linear()
            self.contract.reset_like_linear()
        self.norm_attention = nn.LayerNorm(config.width)
        if self.projects:
            self.norm_feed_forward = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, allowed: Tensor, last_row_only: bool = False) -> tuple[Tensor, Tensor]:
        """Return rows (B, L or 1, D) and attention weights for x (B, L, D).

        The weights are (B, H, L or 1, L).
        """
        attended, weights = self.attention(x, allowed, last_row_only)
        if last_row_only:
            x = x[:, -1:]
        x = self.norm_attention(x + self.dropout(attended))
        if not self.projects:
            return x, weights
        hidden = self.dropout(functional.relu(self.expand(x)))
        return self.norm_feed_forward(x + self.dropout(self.contract(hidden))), weights


class Iciia(nn.Module):
    """N layers over the features of one person's photos."""

    def __init__(self, config: IciiaConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(IciiaLayer(config) for _ in range(config.layers))
        self.unit = 1.0  # of features, by which they are divided in training

    @torch.no_grad()
    def fold_unit(self) -> None:
        """Fold the division by ``unit`` into the first layer.

        Its norm cancels a common factor of its terms.
        """
        exchange = self.layers[0].attention
        into, out = list(exchange.children())[:2]  # type: ignore[union-attr]
        into.weight.div_(self.unit)  # type: ignore[operator]
        for parameter in out.parameters():  # type: ignore[union-attr]
            parameter.mul_(self.unit)
        self.unit = 1.0

    def allowed(self, valid: Tensor) -> Tensor:
        """Return which row may attend to which, (B, L, L), from valid (B, L).

        Each row may always attend to itself.
        """
        row = torch.arange(valid.shape[1], device=valid.device)
        distance = row[:, None] - row[None, :]
        allowed = valid[:, None, :].expand(-1, valid.shape[1], -1)
        if self.config.attention == "causal":
            allowed = allowed & ((distance >= 0) & (distance < self.config.window))
        return allowed | (distance == 0)

    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        """Calibrates every photo of each window.

        Args:
            features: (B, L, D), the photos of one person per window, oldest first.
            valid: (B, L) bool, False for padding; None when there is none.

        Returns:
            (B, L, D) calibrated features; rows of padding are meaningless.
        """
        valid = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device) if valid is None else valid
        allowed, features = self.allowed(valid), features / self.unit
        for layer in self.layers:
            features, _ = layer(features, allowed)
        return features

    def last(self, features: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Calibrates the last photo of each window alone; same result as :meth:`forward`, less work.

        Returns:
            (B, D) and the weight of each photo of the window for it, (B, L): the mean over layers and heads.
        """
        allowed, weights, features = self.allowed(valid), [], features / self.unit
        for layer in self.layers[:-1]:
            features, seen = layer(features, allowed)
            weights.append(seen[:, :, -1])
        features, seen = self.layers[-1](features, allowed, last_row_only=True)
        weights.append(seen[:, :, -1])
        return features[:, -1], torch.stack(weights).mean(dim=(0, 2))


class IciiaClassifier(nn.Module):
    """ICIIA, ReLU, and a classifier: by default its own, trained with it (the authors' code; the text is silent).

    Args:
        config: the block, and which classifier.
        classes: C.
        plain: the backbone's classifier, (C, D); needed, and never trained, if the classifier is shared or a residual.
    """

    def __init__(self, config: IciiaConfig, classes: int, plain: nn.Linear | None = None) -> None:
        super().__init__()
        self.iciia = Iciia(config)
        # In a list, so that it is no submodule: whoever owns the plain classifier saves and freezes it.
        self._plain = [] if plain is None else [plain]
        if config.classifier != "own" and plain is None:
            raise UsageError(f"--classifier {config.classifier} needs the plain classifier")
        if config.classifier != "shared":
            self.classifier = nn.Linear(config.width, classes)
        if config.classifier == "residual":
            nn.init.zeros_(self.classifier.weight)
            nn.init.zeros_(self.classifier.bias)

    def forward(self, features: Tensor, valid: Tensor | None = None) -> Tensor:
        """(B, L, D) -> logits (B, L, C)."""
        return self.logits(features, self.iciia(features, valid))

    def last(self, features: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """(B, L, D) -> logits of the last photo (B, C), and its attention (B, L)."""
        calibrated, attention = self.iciia.last(features, valid)
        return self.logits(features[:, -1], calibrated), attention

    def logits(self, features: Tensor, calibrated: Tensor) -> Tensor:
        """(..., D) features and calibrated features -> (..., C)."""
        kind, activated = self.iciia.config.classifier, functional.relu(calibrated)
        if kind == "shared":
            logits: Tensor = self._frozen(activated)
        else:
            logits = self.classifier(activated)
        return logits + self._frozen(features) if kind == "residual" else logits

    def _frozen(self, features: Tensor) -> Tensor:
        plain = self._plain[0]
        return functional.linear(features, plain.weight.detach(), plain.bias.detach())


def mac_count(width: int, partitions: int, layers: int, window: int, photos: int = 0) -> int:
    """Return the multiply-accumulates of ICIIA for one window of B photos.

    (6 B D^2 / P + 2 B^2 D) x N (section 3.5).

    Args:
        width: size D of a feature.
        partitions: number P of partitions of each projection.
        layers: number N of layers.
        window: number B of photos.
        photos: new ones that look at the window; 0: all B, none of which was computed before.
    """
    photos = photos or window
    return layers * (6 * photos * width * width // partitions + 2 * photos * window * width)
