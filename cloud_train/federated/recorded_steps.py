"""Gradient steps on a GPU as CUDA graphs: recorded once for each shape of a mini-batch, then replayed.

A step of a small network is hundreds of kernels that take longer to start than to run; a replay starts all at once.
The arithmetic is that of the step that was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from refocus.cloud_train.federated.parameters import ClientNetwork, Tensors, put, tensors_of

WARM_UP = 3  # steps before one is recorded: memory is allocated and kernels are chosen, and what they change is undone


class Told(NamedTuple):
    """Mean loss and logits (B, C) of a step's mini-batch, both detached."""

    loss: Tensor
    logits: Tensor


Step = Callable[[Tensor, Tensor], Told]  # photos or features (B, ...) and labels (B,)


@dataclass(frozen=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    photos: Tensor
    label: Tensor
    told: Told


class RecordedSteps:
    """The recorded steps of one network, whose tensors must stay where they are.

    Attributes:
        still: tensors that steps read besides the network's own, by name; kept at one place from round to round.
    """

    def __init__(self, network: ClientNetwork) -> None:
        self.still: Tensors = {}
        self._network = network
        self._recorded: dict[Hashable, _Recorded] = {}

    def keep(self, what: str, tensors: Mapping[str, Tensor]) -> Tensors:
        """Copies of tensors at the place where recorded steps expect them."""
        for name, value in tensors.items():
            place = self.still.get(f"{what}.{name}")
            if place is None or place.shape != value.shape:
                self._recorded.clear()  # they read the place before
                self.still[f"{what}.{name}"] = value.detach().clone()
            else:
                place.copy_(value)
        return {name: self.still[f"{what}.{name}"] for name in tensors}

    def step(self, what: Hashable, step: Step, photos: Tensor, label: Tensor) -> Told:
        """One step, which is recorded if none of its kind and shape was.

        Args:
            what: kind of step: everything that decides what ``step`` does, but for tensors.
        """
        key = (what, photos.shape, photos.stride())
        if key not in self._recorded:
            self._recorded[key] = self._record(step, photos, label)
        found = self._recorded[key]
        found.photos.copy_(photos)
        found.label.copy_(label)
        found.graph.replay()
        return found.told

    def _record(self, step: Step, photos: Tensor, label: Tensor) -> _Recorded:
        photos, label = photos.clone(), label.clone()
        before = {name: tensor.detach().clone() for name, tensor in tensors_of(self._network).items()}
        still = {name: tensor.clone() for name, tensor in self.still.items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step(photos, label)
        torch.cuda.current_stream().wait_stream(side)
        put(self._network, before)
        for name, tensor in still.items():
            self.still[name].copy_(tensor)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # runs nothing
            told = step(photos, label)
        return _Recorded(graph, photos, label, told)
