"""The first layer of a program that computes something else once it is exported.

Works for every target alike: the capture with the values of all its layers as outputs is written and run as the whole
one would be, and each value compared with eager PyTorch's. (Programs branch, so halving would miss the first.) The
program is then cut after the layer that was found and run again: one that only differs when its value is looked at is
not named.
"""

from __future__ import annotations

import copy
import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.graph import CodeGen

from refocus.edge.bundle import Tensor as TensorSpec
from refocus.export.bundle.artifacts import Export
from refocus.export.errors import NothingToQuantise
from refocus.export.parity.photos import Streams, distinct
from refocus.export.program.capture import capture, capture_freest
from refocus.export.program.checkpoint import Checkpoint
from refocus.export.program.eager_recognizer import EagerRecognizer
from refocus.export.program.program import TorchProgram
from refocus.export.targets import Settings, find_target, needs_ranges
from refocus.export.targets.single_program import load_single, write_single

# Relative to the largest value of the layer's own output.
RELATIVE_TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "w16": 2e-2, "w8a8": 0.25, "w8": 0.25, "palette6": 0.25}
SMALLEST_SCALE = 0.1
PHOTOS = 12  # so that the head has met a history


@dataclass(frozen=True)
class Bisection:
    """What bisecting one program for one target found.

    Attributes:
        layer: module and operator of the first layer that differs; "" if none does.
        difference: of that layer, or of the last one: largest difference over the largest value.
        layers, tried: layers in the program, and programs that were exported.
    """

    program: str
    target: str
    layer: str
    difference: float
    tolerance: float
    layers: int
    tried: int

    def __str__(self) -> str:
        found = f"first differs in {self.layer}" if self.layer else "no layer differs"
        return (
            f"{self.program} for {self.target}: {found} ({self.difference:.1e} of its largest value, tolerance"
            f" {self.tolerance:.0e}; {self.layers} layers, {self.tried} exported)"
        )


def bisect(checkpoint: Checkpoint, export: Export, streams: Streams) -> list[Bisection]:
    """Bisects the encoder and the head of a checkpoint for every target that runs here.

    Raises:
        ExportError: a target cannot run on this machine.
    """
    encoder, head = checkpoint.required("encoder").program(), checkpoint.program()
    person = EagerRecognizer(encoder, head)
    answers = [person.recognize(content) for _, content in list(distinct(next(iter(streams.values()))))[:PHOTOS]]
    given = {"encoder": [a.pixels for a in answers], "head": [a.given for a in answers]}
    return [
        bisect_program(program.laid_out_for(target), target, given[program.role], export.opset)
        for program in (encoder, head)
        if program.source is None
        for target in export.targets
    ]


def bisect_program(program: TorchProgram, target: str, inputs: list[tuple[Tensor, ...]], opset: int) -> Bisection:
    """Finds the first layer that differs on the last of the inputs.

    Args:
        inputs: real ones, in the order of the program's; all of them are calibration photos where that is needed.
    """
    _, precision = find_target(target)
    tolerance = RELATIVE_TOLERANCE[precision]
    # Cuts of a program that is captured for one photo: their shapes are then known.
    program = program.fixed()
    captured = capture(program)
    layers = [node for node in captured.graph.nodes if _is_layer(node)]
    found = differences(cut_after(program, captured, layers), target, inputs, opset)
    tried = 1
    for number, off in enumerate(found):
        if not off <= tolerance:
            tried += 1
            (alone,) = differences(cut_after(program, captured, [layers[number]]), target, inputs, opset)
            if not alone <= tolerance:
                return Bisection(program.role, target, _name(layers[number]), alone, tolerance, len(layers), tried)
    return Bisection(program.role, target, "", max(found), tolerance, len(layers), tried)


def cut_after(program: TorchProgram, captured: torch.export.ExportedProgram, layers: list[Node]) -> TorchProgram:
    """The part of a program up to the last of some layers, whose values are the outputs."""
    module = copy.deepcopy(captured.module())
    by_name = {n.name: n for n in module.graph.nodes}
    wanted = tuple(by_name[layer.name] for layer in layers)
    module.graph.erase_node(next(n for n in module.graph.nodes if n.op == "output"))
    module.graph.output(wanted)
    for later in reversed(list(module.graph.nodes)):
        if later.op not in ("placeholder", "output") and not later.users:
            module.graph.erase_node(later)
    # Without the packing of the whole program's outputs.
    module.graph.set_codegen(CodeGen())
    module.recompile()
    shapes = [tuple(int(size) for size in layer.meta["val"].shape) for layer in layers]
    return replace(
        program,
        module=_Cut(module),
        outputs=tuple(TensorSpec(name=f"value_{i}", dtype="float32", shape=s) for i, s in enumerate(shapes)),
        identity=hashlib.sha256(f"{program.identity} {[layer.name for layer in layers]}".encode()).hexdigest(),
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


def differences(cut: TorchProgram, name: str, inputs: list[tuple[Tensor, ...]], opset: int) -> list[float]:
    """Of each output, the largest difference between an exported program and eager PyTorch, over the largest value."""
    _, precision = find_target(name)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        program, captured = capture_freest(cut)
        rows = tuple(inputs) if needs_ranges(name) else ()
        try:
            written, path = write_single(name, program, captured, Settings(precision, opset, rows), Path(folder))
        except NothingToQuantise:
            return [0.0] * len(cut.outputs)  # so far in floating point, as the whole program has it
        device = load_single(name, written, path)
        wanted = [value.numpy() for value in cut.module(*inputs[-1])]
        feeds = {spec.name: value.numpy() for spec, value in zip(cut.inputs, inputs[-1], strict=True)}
        found = list(device.run(**feeds).values())
    return [_relative(a, b) for a, b in zip(found, wanted, strict=True)]


def _relative(found: np.ndarray, wanted: np.ndarray) -> float:
    # Where two nearly equal values were subtracted, what is left of them is small, and its error is theirs.
    scale = max(float(np.abs(wanted).max()), SMALLEST_SCALE)
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
