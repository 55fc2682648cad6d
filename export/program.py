"""A torch program with the names and shapes that every export target uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from edge.manifest import Preprocessing, State
from edge.manifest import Tensor as TensorSpec

_DTYPES = {"float32": torch.float32, "int64": torch.int64}


@dataclass(frozen=True)
class TorchProgram:
    """What a model builder returns and :mod:`export` turns into artifacts.

    Attributes:
        role: "encoder" or "head".
        module: takes the inputs in order, returns the outputs in order.
        inputs, outputs: a dimension given by name is free at run time.
        identity: SHA-256 of everything that decides what the program computes: weights and architecture.
        preprocessing: of an encoder.
        state: of a head, what is kept between photos.
        personalisation: of a head, the fields of the manifest's section.
        parts: modules whose size is worth stating apart, by name.
    """

    role: Literal["encoder", "head"]
    module: nn.Module
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    identity: str
    preprocessing: Preprocessing | None = None
    state: tuple[State, ...] = ()
    personalisation: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, nn.Module] = field(default_factory=dict)

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Distinct example tensors; a free dimension is 2, because 1 would be taken for a constant."""
        generator = torch.Generator().manual_seed(0)
        examples = []
        for spec in self.inputs:
            shape = [2 if isinstance(size, str) else size for size in spec.shape]
            if _DTYPES[spec.dtype] == torch.int64:
                examples.append(torch.ones(shape, dtype=torch.int64))
            else:
                examples.append(torch.randn(shape, generator=generator))
        return tuple(examples)

    def dynamic_shapes(self) -> tuple[dict[int, Any], ...]:
        """The free dimensions, in the form ``torch.export`` takes."""
        named: dict[str, Any] = {}
        shapes = []
        for spec in self.inputs:
            free = {axis: size for axis, size in enumerate(spec.shape) if isinstance(size, str)}
            shapes.append({axis: named.setdefault(name, torch.export.Dim(name)) for axis, name in free.items()})
        return tuple(shapes)

    def parts_bytes(self) -> dict[str, int]:
        return {
            name: sum(p.numel() * p.element_size() for p in module.parameters()) for name, module in self.parts.items()
        }
