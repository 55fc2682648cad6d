"""TAPER: Q networks of one architecture, mixed weight by weight into one for a task that was described in words.

Chen, Li, Cui, Zhang, Chao and Zhang, "Train-Once-for-All Personalization", CVPR 2023, section 3. What the paper leaves
open and how it is settled here (widths, which mixer serves stem and classifier, batch normalisation) is in
``docs/decisions/0013-taper.md``.

Notation: Q bases, M mixers (one per block of the network, or one for all), n numbers of a network, E width of a
description, T tasks.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

ONE_BY_ONE = 200_000  # numbers of a network
HIDDEN = 256  # of the mixer predictor; the paper gives its depth alone
_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Slot:
    """Where one tensor of the network is among the n numbers.

    Attributes:
        mixer: which of the M mixers serves it.
        learned: False for running statistics, which no gradient changes.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    mixer: int
    learned: bool


@dataclass(frozen=True)
class Layout:
    """The order of a network's n numbers: parameters first, running statistics last, each by mixer.

    So one matrix-vector product per run of columns mixes a whole block.
    """

    slots: tuple[Slot, ...]
    mixers: int

    @property
    def size(self) -> int:
        """n."""
        return self.slots[-1].stop

    @property
    def learned(self) -> int:
        """Number of columns that are parameters."""
        return max(slot.stop for slot in self.slots if slot.learned)

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """(mixer, start, stop) of neighbouring columns with one mixer, in order."""
        for (_, mixer), slots in groupby(self.slots, key=lambda slot: (slot.learned, slot.mixer)):
            several = list(slots)
            yield mixer, several[0].start, several[-1].stop

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """(n,) -> the network's tensors by name, as views; no gradient goes through running statistics."""
        # One split: of as many slices, each would hand back a gradient of n numbers.
        parts = zip(self.slots, flat.split([slot.stop - slot.start for slot in self.slots]), strict=True)
        views = ((slot, part.view(slot.shape)) for slot, part in parts)
        return {slot.name: part if slot.learned else part.detach() for slot, part in views}

    def join(self, state: Mapping[str, Tensor]) -> Tensor:
        """The network's tensors -> (n,)."""
        return torch.cat([state[slot.name].detach().reshape(-1).float() for slot in self.slots])

    def part(self, names: Container[str]) -> Layout:
        """The layout of some tensors alone, with the same mixers."""
        slots, end = [], 0
        for slot in self.slots:
            if slot.name in names:
                slots.append(replace(slot, start=end, stop=end + slot.stop - slot.start))
                end = slots[-1].stop
        return Layout(tuple(slots), self.mixers)


def blocks_of(network: Any) -> dict[str, int]:
    """The block of each parameter: 0 is the stem, the last the classifier (timm's ``group_matcher``, coarse)."""
    from timm.models import group_parameters

    found = group_parameters(network, network.group_matcher(coarse=True), reverse=True)
    return {str(name): int(number) for name, number in found.items()}


def layout_of(network: Any, blockwise: bool = True, frozen: int = 0) -> Layout:
    """The layout of a timm network's parameters and running statistics.

    Blocks are timm's own (``group_matcher``, coarse): of a ResNet its four stages. The stem goes with the first block
    and the classifier with the last: the paper has 4Q mixers for a ResNet-18 and says no more.

    Args:
        blockwise: False: one mixer for the whole network (ablation 10 of Table 6).
        frozen: blocks behind the stem that are the same in all bases; they get no mixer of their own.
    """
    group = blocks_of(network)
    module_group = {name.rpartition(".")[0]: number for name, number in group.items()}
    last = max(2, max(group.values()) - 1)
    tensors = [(name, value, True) for name, value in network.named_parameters()]
    tensors += [(name, value, False) for name, value in network.named_buffers() if name.endswith(_STATISTICS)]

    def mixer_of(name: str) -> int:
        number = group.get(name, module_group.get(name.rpartition(".")[0], last))
        return max(min(number, last) - 1 - frozen, 0) if blockwise else 0

    tensors.sort(key=lambda item: (not item[2], mixer_of(item[0])))  # stable: else as in the network
    slots, end = [], 0
    for name, value, learned in tensors:
        slots.append(Slot(name, tuple(value.shape), end, end + value.numel(), mixer_of(name), learned))
        end += value.numel()
    return Layout(tuple(slots), 1 + max(slot.mixer for slot in slots))


class Bases(nn.Module):
    """Q networks as the rows of one matrix.

    Args:
        rows: (Q, n).
    """

    statistics: Tensor

    def __init__(self, layout: Layout, rows: Tensor) -> None:
        super().__init__()
        self.layout = layout
        self.weights = nn.Parameter(rows[:, : layout.learned].clone())
        self.register_buffer("statistics", rows[:, layout.learned :].clone())

    def rows(self) -> Tensor:
        """(Q, n)."""
        return torch.cat([self.weights, self.statistics], dim=1)

    def mix(self, mixers: Tensor) -> Tensor:
        """Mixers (…, M, Q) of tasks -> their networks (…, n): eq. 1, with a mixer per block."""
        parts, runs, learned = [], [*self.layout.runs()], self.layout.learned
        # One split: of as many slices, each would hand back a gradient of Q n numbers.
        trained = self.weights.split([stop - start for _, start, stop in runs if start < learned], dim=1)
        for number, (mixer, start, stop) in enumerate(runs):
            if start < learned:
                parts.append(mixers[..., mixer, :] @ trained[number])
            else:
                here = self.statistics[:, start - learned : stop - learned]
                parts.append(mixers[..., mixer, :].detach() @ here)
        return torch.cat(parts, dim=-1)

    @torch.no_grad()
    def follow(self, mixers: Tensor, seen: Mapping[str, Tensor], momentum: float) -> None:
        """Moves the running statistics of each basis towards what a task's photos showed, by its part in the mix.

        Args:
            seen: mean and variance of one batch, by the name of the running statistic.
        """
        for slot in self.layout.slots:
            if not slot.learned:
                here = self.statistics[:, slot.start - self.layout.learned : slot.stop - self.layout.learned]
                # Divided by the squares, so that the mixed statistic itself moves by `momentum`.
                part = mixers[slot.mixer] / mixers[slot.mixer].square().sum()
                error = seen[slot.name].reshape(-1) - mixers[slot.mixer] @ here
                here += momentum * part[:, None] * error[None]


class MixerPredictor(nn.Module):
    """Descriptions (T, E) -> mixers (T, M, Q), each on the simplex (eq. 2): a 4-layer MLP with BN and ReLU between."""

    def __init__(self, width: int, mixers: int, bases: int, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.mixers, self.bases = mixers, bases
        layers: list[nn.Module] = []
        for fan_in in (width, hidden, hidden):
            layers += [nn.Linear(fan_in, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, mixers * bases))

    def forward(self, descriptions: Tensor) -> Tensor:
        scores: Tensor = self.layers(descriptions)
        return scores.view(-1, self.mixers, self.bases).softmax(dim=2)


class Taper(nn.Module):
    """Bases and mixer predictor, with the network whose weights they make.

    Args:
        network: of the bases' architecture; its own weights are never used.
        norm: what batch normalisation does while mixers are learned: "mixed": running statistics are mixed like
            weights and used as they are; "task": a task's photos are normalised by their own statistics, which the
            bases' running statistics follow.
    """

    def __init__(self, network: Any, bases: Bases, predictor: MixerPredictor, norm: str = "mixed") -> None:
        super().__init__()
        self.bases, self.predictor, self.norm = bases, predictor, norm
        self._network = (network,)  # not a child: its weights are not ours

    @property
    def network(self) -> Any:
        """Of the bases' architecture; its own weights mean nothing."""
        return self._network[0]

    def personal(self, mixers: Tensor) -> Tensor:
        """Mixers (M, Q) -> the network of one task, (n,)."""
        return self.bases.mix(mixers)

    def answer(self, flat: Tensor, photos: Tensor) -> Tensor:
        """Logits (B, C) of the network (n,) for photos (B, 3, S, S), as on a device."""
        found: Tensor = functional_call(self._network[0].eval(), self.bases.layout.split(flat), (photos,))
        return found

    def learn(
        self,
        mixers: Tensor,
        photos: Tensor,
        momentum: float = 0.1,
        autocast: AbstractContextManager[Any] | None = None,
    ) -> Tensor:
        """While training: logits (T, B, C) of T tasks' networks for T tasks' photos (T, B, 3, S, S).

        Args:
            mixers: (T, M, Q).
            momentum: how far running statistics follow each task's own photos, for the norm "task".
            autocast: the context of the forward passes; weights are mixed outside.
        """
        flat = self.bases.mix(mixers)
        network, split = self._network[0].train(self.norm == "task"), self.bases.layout.split
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d) and self.norm == "task":
                module.momentum = 1.0  # what is left in the running statistics is this batch's own

        def one_task(one: Tensor, batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            tensors, seen = split(one), {}
            if self.norm == "task":
                seen = {name: value.clone() for name, value in tensors.items() if name.endswith(_STATISTICS)}
            return functional_call(network, {**tensors, **seen}, (batch,)), seen

        # Small networks of several tasks are faster together, as one with grouped convolutions; large ones on a CPU
        # are not, and autocast knows no such convolution.
        if autocast is not None or (flat.device.type == "cpu" and flat.shape[1] > ONE_BY_ONE):
            with autocast or nullcontext():
                each = [one_task(one, batch) for one, batch in zip(flat, photos, strict=True)]
            found = torch.stack([logits for logits, _ in each])
            seen = {name: torch.stack([of_task[name] for _, of_task in each]) for name in each[0][1]}
        else:
            found, seen = vmap(one_task)(flat, photos)
        if not seen:
            return found
        for task, mixer in enumerate(mixers.detach()):
            self.bases.follow(mixer, {name: value[task] for name, value in seen.items()}, momentum)
        return found
