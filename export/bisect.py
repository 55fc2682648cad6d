"""The first layer of a program that computes something else once it is exported.

Works for every target alike: the capture is cut after a layer, the cut program is written and run as the whole one
would be, and its value compared with eager PyTorch's; halving finds the first cut that differs.
"""

from __future__ import annotations

import copy
import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.graph import CodeGen

from edge.manifest import Tensor as TensorSpec
from export.capture import capture, capture_freest
from export.checkpoint import Checkpoint
from export.errors import NothingToQuantise
from export.parity import EagerRecognizer, Streams, distinct
from export.program import TorchProgram
from export.single import load_single, write_single
from export.targets import Settings, find_target

if TYPE_CHECKING:
    from export.bundle import Export

# Relative to the largest value of the layer's own output.
RELATIVE_TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "int8": 0.25, "palette6": 0.25}
PHOTOS = 12  # so that the head has met a history


@dataclass(frozen=True)
class Bisection:
    """What bisecting one program for one target found.

    Attributes:
        layer: module and operator of the first layer that differs; "" if none does.
        difference: of that layer, or of the last one: largest difference over the largest value.
        layers, tried: layers in the program, and cuts that were exported.
    """

    program: str
    target: str
    layer: str
    difference: float
    tolerance: float
    layers: int
    tried: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        found = f"first differs in {self.layer}" if self.layer else "no layer differs"
        return (
            f"{self.program} for {self.target}: {found} ({self.difference:.1e} of its largest value, tolerance"
            f" {self.tolerance:.0e}; {self.layers} layers, {self.tried} cuts exported)"
        )


def bisect(checkpoint: Checkpoint, export: Export, streams: Streams) -> list[Bisection]:
    """Bisects the encoder and the head of a checkpoint for every target that runs here.

    Raises:
        ExportError: a target cannot run on this machine.
    """
    encoder, head = checkpoint.required("encoder").program(), checkpoint.program()
    answers, person = [], EagerRecognizer(encoder, head)
    for _, content in list(distinct(next(iter(streams.values()))))[:PHOTOS]:
        answers.append(person.recognize(content))
    given = {"encoder": [a.pixels for a in answers], "head": [a.given for a in answers]}
    return [
        bisect_program(program, target, given[program.role], export.opset)
        for program in (encoder, head) for target in export.targets
    ]  # fmt: skip


def bisect_program(program: TorchProgram, target: str, inputs: list[tuple[Tensor, ...]], opset: int) -> Bisection:
    """Finds the first layer that differs on the last of the inputs.

    Args:
        inputs: real ones, in the order of the program's; all of them are calibration photos where that is needed.
    """
    _, precision = find_target(target)
    tolerance = RELATIVE_TOLERANCE[precision]
    # Cuts of a program that is captured for one photo: their shapes are then known.
    captured = capture(program.fixed())
    layers = [node for node in captured.graph.nodes if _is_layer(node)]
    tried: dict[int, float] = {}

    def differs(number: int) -> bool:
        if number not in tried:
            cut = cut_after(program.fixed(), captured, layers[number])
            tried[number] = difference(cut, target, inputs, opset)
        return not tried[number] <= tolerance

    first = _first(len(layers), differs)
    layer = _name(layers[first]) if first is not None else ""
    shown = tried[first if first is not None else len(layers) - 1]
    return Bisection(program.role, target, layer, shown, tolerance, len(layers), len(tried))


def _first(count: int, differs: Callable[[int], bool]) -> int | None:
    """The first number that differs, when all after it do too; None if the last does not."""
    if not differs(count - 1):
        return None
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(middle) else (middle + 1, high)
    return low


def cut_after(program: TorchProgram, captured: torch.export.ExportedProgram, layer: Node) -> TorchProgram:
    """The part of a program up to a layer, whose value is the one output."""
    module = copy.deepcopy(captured.module())
    node = next(n for n in module.graph.nodes if n.name == layer.name)
    output = next(n for n in module.graph.nodes if n.op == "output")
    module.graph.erase_node(output)
    with module.graph.inserting_after(node):
        module.graph.output((node,))
    last = next(n for n in module.graph.nodes if n.op == "output")
    for later in reversed(list(module.graph.nodes)):
        if later is last:
            continue
        if later.op != "placeholder" and not later.users:
            module.graph.erase_node(later)
    # Without the packing of the whole program's outputs.
    module.graph.set_codegen(CodeGen())
    module.recompile()
    shape = tuple(int(size) for size in layer.meta["val"].shape)
    return replace(
        program,
        module=_Cut(module),
        outputs=(TensorSpec(name="value", dtype="float32", shape=shape),),
        identity=hashlib.sha256(f"{program.identity} {layer.name}".encode()).hexdigest(),
        parts={},
        state=(),
    )


class _Cut(nn.Module):
    """A cut graph as a module that may be put in eval mode again, which exported graphs refuse."""

    def __init__(self, graph: nn.Module) -> None:
        super().__init__()
        self.inner = graph

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        value = self.inner(*inputs)
        return tuple(v.clone() for v in value)

    def train(self, mode: bool = True) -> _Cut:
        return self


def difference(cut: TorchProgram, name: str, inputs: list[tuple[Tensor, ...]], opset: int) -> float:
    """Largest difference between an exported program and eager PyTorch, over the largest value."""
    _, precision = find_target(name)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        program, captured = capture_freest(cut)
        rows = tuple(inputs) if precision == "int8" else ()
        try:
            written, path = write_single(name, program, captured, Settings(precision, opset, rows), Path(folder))
        except NothingToQuantise:
            return 0.0  # so far in floating point, as the whole program has it
        device = load_single(name, written, path)
        wanted = cut.module(*inputs[-1])[0].numpy()
        feeds = {spec.name: value.numpy() for spec, value in zip(cut.inputs, inputs[-1], strict=True)}
        found = device.run(**feeds)["value"]
    scale = float(np.abs(wanted).max()) or 1.0
    return float(np.abs(found - wanted).max()) / scale if np.isfinite(found).all() else float("inf")


def _is_layer(node: Node) -> bool:
    value = node.meta.get("val")
    return (
        node.op == "call_function"
        and isinstance(value, Tensor)
        and value.dtype == torch.float32
        and value.dim() > 0
        and "aten" in str(node.target)
    )


def _name(node: Node) -> str:
    """Module and operator, as ``network.blocks.1.0.conv_dw (conv2d)``."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    module = str(stack[-1][0]) if stack else ""
    operator = str(node.target).split(".")[1] if "." in str(node.target) else str(node.target)
    return f"{module or 'the program itself'} ({operator}, {node.name})"
