"""ExecuTorch with the XNNPACK delegate: ``.pte`` files for phones and boards."""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes.external_constants_pass import delegate_external_constants_pass_unlifted
from torch.fx import Node
from torchao.quantization.pt2e import MinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.utils import _fuse_conv_bn_

from refocus.edge.bundle import PersonalFile, PlacedTensor, Placement
from refocus.edge.runtimes import EXECUTORCH_PROGRAM, EXECUTORCH_WEIGHTS
from refocus.export.errors import ExportError, told
from refocus.export.program.capture import for_one_photo, quiet
from refocus.export.program.program import TorchProgram
from refocus.export.targets import NO_CALIBRATION, QUANTISATION, Settings, Written
from refocus.export.targets.external_weights import digest, digests, found_in, places_in, probes

RUNTIME = "executorch"
SUFFIX = ".pte"
PRECISIONS = ("fp32", "w8a8")
PORTABLE = "portable"
_BACKENDS = {"XnnpackBackend": "xnnpack", "CoreMLBackend": "coreml"}

_ATEN = torch.ops.aten
_LAYERS = {_ATEN.conv2d.default, _ATEN.conv2d.padding, _ATEN.linear.default, _ATEN.conv1d.default}
_ACTIVATIONS = {_ATEN.relu.default, _ATEN.relu_.default, _ATEN.hardtanh.default, _ATEN.hardtanh_.default}
# Between quantised layers these carry quantised values on; anywhere else they stay in floating point.
_CARRIERS = {
    *(_ATEN.add.Tensor, _ATEN.add_.Tensor, _ATEN.cat.default),
    *(_ATEN.mean.dim, _ATEN.adaptive_avg_pool2d.default, _ATEN.max_pool2d.default),
    *(_ATEN.pad.default, _ATEN.flatten.using_ints, _ATEN.view.default, _ATEN.reshape.default, _ATEN.dropout.default),
}


def write(program: TorchProgram, captured: torch.export.ExportedProgram, settings: Settings, path: Path) -> Written:
    """Lowers the program for one photo at a time to XNNPACK, and what it does not take to portable operators."""
    return lower(program, captured, settings, path, XnnpackPartitioner(), "XnnpackBackend")


def min_runtime_version(settings: Settings) -> str:
    return "1.0"


def lower(
    program: TorchProgram,
    captured: torch.export.ExportedProgram,
    settings: Settings,
    path: Path,
    partitioner: Any,
    backend: str,
) -> Written:
    """Lowers for any delegate.

    Raises:
        ExportError: ExecuTorch has no form for the program.
    """
    fixed, recipe = program.fixed(), {}
    try:
        with quiet(), reasons() as why:
            one = folded(program, captured)
            if settings.precision == "w8a8":
                one, recipe[QUANTISATION] = to_w8a8(one, program, settings)
            if program.external or program.personal:
                one = _marked(one, digests(program.personal))
            lowered = to_edge_transform_and_lower(one, partitioner=[partitioner])
            placed_weights, personal = _save(lowered, program, path)
    except ExportError:
        raise
    except Exception as error:  # exir raises many types, all meaning that this program cannot be lowered
        raise ExportError(f"the {program.role} cannot be lowered to ExecuTorch ({told(error)})") from error
    placed = placement(lowered.exported_program().graph_module, _BACKENDS[backend], why)
    producer = {name: version(name) for name in ("torch", "executorch", "torchao")}
    weights = (EXECUTORCH_WEIGHTS if placed_weights else "", placed_weights)
    return Written(fixed, {**producer, "delegates": backend}, placed, recipe, weights=weights, personal=personal)


def _marked(captured: torch.export.ExportedProgram, alone: set[bytes]) -> torch.export.ExportedProgram:
    """The same capture, whose delegate is to keep its weights outside the program.

    Args:
        alone: digests of those that it is to keep there; none: all.
    """
    module = captured.module()

    def mark(node: Node) -> str | None:
        return (
            Path(EXECUTORCH_WEIGHTS).stem
            if not alone or digest(_value(module, str(node.target)).numpy()) in alone
            else None
        )

    delegate_external_constants_pass_unlifted(module, mark)
    return torch.export.export(module, captured.example_inputs[0], strict=True)


def _value(module: torch.nn.Module, name: str) -> torch.Tensor:
    """The parameter, buffer or constant of that name."""
    owner, _, attribute = name.rpartition(".")
    found: torch.Tensor = getattr(module.get_submodule(owner), attribute)
    return found.detach()


def _save(lowered: Any, program: TorchProgram, path: Path) -> tuple[tuple[PlacedTensor, ...], PersonalFile | None]:
    """Writes a program as one file or, with external weights or each person's own tensors, as a folder.

    Returns:
        where the external weights are in their file, or where each person's tensors are.

    Raises:
        ExportError: a tensor is not in the weight file exactly once.
    """
    if not (program.external or program.personal):
        path.write_bytes(lowered.to_executorch().buffer)
        return (), None
    outside = _personal_inputs(lowered, program)

    def place(node: Node) -> str | None:
        return Path(EXECUTORCH_WEIGHTS).stem if program.external or node.name in outside else None

    made = lowered.to_executorch(ExecutorchBackendConfig(external_constants=place))
    path.mkdir()
    (path / EXECUTORCH_PROGRAM).write_bytes(made.buffer)
    made.write_tensor_data_to_file(str(path))
    content, what = (path / EXECUTORCH_WEIGHTS).read_bytes(), f"the {program.role} for executorch"
    if program.personal:
        return (), PersonalFile(file=EXECUTORCH_WEIGHTS, tensors=tuple(places_in(content, program.personal, what)))
    return tuple(found_in(content, probes(program.module, program.external), what)), None


def _personal_inputs(lowered: Any, program: TorchProgram) -> set[str]:
    """Names of the graph's nodes that hold each person's own tensors."""
    alone, own = digests(program.personal), lowered.exported_program()
    signature, held = own.graph_signature, {**own.constants, **own.state_dict}
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    return {name for name, source in names.items() if digest(held[source].detach().numpy()) in alone}


# The last one: fp32 and w8a8 ask for it in a row.
_FOLDED: dict[torch.export.ExportedProgram, torch.export.ExportedProgram] = {}


def folded(program: TorchProgram, captured: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The capture for one photo with batch norms folded into convolutions: far fewer nodes to lower."""
    if captured not in _FOLDED:
        _FOLDED.clear()
        module = for_one_photo(program, captured).module()
        _fuse_conv_bn_(module)
        _FOLDED[captured] = torch.export.export(module, tuple(program.fixed().example_inputs()))
    return _FOLDED[captured]


def to_w8a8(
    captured: torch.export.ExportedProgram, program: TorchProgram, settings: Settings
) -> tuple[torch.export.ExportedProgram, str]:
    """PT2E quantisation: weights per channel, activations per tensor over the ranges of the calibration photos.

    Raises:
        ExportError: no calibration photos.
    """
    if not settings.calibration:
        raise ExportError(NO_CALIBRATION)
    quantizer = _Quantizer(program.quantisable)
    prepared = prepare_pt2e(captured.module(), quantizer)
    with torch.no_grad():
        for row in settings.calibration:
            prepared(*row)
    converted = convert_pt2e(prepared)
    text = (
        f"{quantizer.layers} layers: weights int8 per channel, activations int8 asymmetric, ranges of"
        f" {len(settings.calibration)} photos"
    )
    return torch.export.export(converted, tuple(program.fixed().example_inputs())), text


class _Quantizer(XNNPACKQuantizer):  # type: ignore[misc]  # the library is not typed
    """XNNPACK's quantiser, kept to the layers of some modules and what carries their values.

    It also leaves out the range between a layer and its ReLU6: XNNPACK runs the two as one, and quantised in between,
    the values would share 256 steps with a range that the ReLU6 cuts away.

    Args:
        modules: names of the modules.
    """

    # Batch norms are folded before. The library traces an example of each pattern that has one, which takes seconds.
    SUPPORTED_PATTERNS = [p for p in XNNPACKQuantizer.SUPPORTED_PATTERNS if "bn" not in p.name]  # noqa: RUF012

    def __init__(self, modules: tuple[str, ...]) -> None:
        super().__init__()
        self.modules, self.layers = modules, 0
        usual = get_symmetric_quantization_config(is_per_channel=True)
        # The whole range that was seen, as for ONNX: histograms found no better one, in many times the time.
        whole = {
            name: replace(getattr(usual, name), observer_or_fake_quant_ctr=MinMaxObserver.with_args(eps=2**-12))
            for name in ("input_activation", "output_activation")
        }
        self.set_global(replace(usual, **whole))

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        annotated: torch.fx.GraphModule = super().annotate(model)
        inside: set[Node] = set()
        for node in annotated.graph.nodes:
            if self._belongs(node, inside):
                inside.add(node)
            elif node.op == "call_function":
                node.meta.pop("quantization_annotation", None)
        for node in inside:
            before = node.args[0]
            if node.target in _ACTIVATIONS and isinstance(before, Node) and before.target in _LAYERS:
                _fold(before, node)
        self.layers = sum(node.target in _LAYERS for node in inside)
        return annotated

    def _belongs(self, node: Node, inside: set[Node]) -> bool:
        if node.op != "call_function" or "quantization_annotation" not in node.meta:
            # Pads, views and the like carry no annotation of their own, and need none.
            return node.target in _CARRIERS and _all_inside(node, inside)
        if node.target in _LAYERS:
            return _weight_name(node).startswith(tuple(f"{module}." for module in self.modules))
        return node.target in _CARRIERS | _ACTIVATIONS and _all_inside(node, inside)


def _all_inside(node: Node, inside: set[Node]) -> bool:
    sources = [n for n in node.all_input_nodes if n.op != "get_attr"]
    return bool(sources) and all(n in inside for n in sources)


def _weight_name(node: Node) -> str:
    """The name of a layer's weight with dots, through the copy that folding a batch norm makes."""
    weight = node.args[1]
    name = str(weight.target) if isinstance(weight, Node) else ""
    return name if "." in name else name.replace("_", ".", 1)


def _fold(layer: Node, activation: Node) -> None:
    if len(layer.users) > 1:
        return
    first, second = layer.meta["quantization_annotation"], activation.meta.get("quantization_annotation")
    if second is not None and first.output_qspec is not None:
        second.output_qspec = first.output_qspec
        second.input_qspec_map = {}
        first.output_qspec = None


def placement(graph: torch.fx.GraphModule, delegate: str, why: dict[str, str]) -> Placement:
    """Which operators the delegate has, and why it left the others to the portable library.

    Args:
        why: reasons by name of the node, as the partitioner gave them.
    """
    taken: Counter[str] = Counter()
    left: Counter[str] = Counter()
    fallbacks: dict[str, str] = {}
    for node in graph.graph.nodes:
        if node.op != "call_function" or "getitem" in str(node.target) or _short(node) == "alloc":
            continue
        if "executorch_call_delegate" in str(node.target):
            module = getattr(graph, str(node.args[0].target))
            taken.update(_operators(module.original_module.graph))
            continue
        name = _short(node)
        left[name] += 1
        fallbacks.setdefault(name, why.get(node.name, why.get(name, f"no {delegate} operator of this kind")))
    operators = {delegate: dict(sorted(taken.items())), PORTABLE: dict(sorted(left.items()))}
    return Placement(
        asked=delegate, operators={k: v for k, v in operators.items() if v}, fallbacks=fallbacks, how="compiled"
    )


def _operators(graph: torch.fx.Graph) -> list[str]:
    return [_short(n) for n in graph.nodes if n.op == "call_function" and "getitem" not in str(n.target)]


def _short(node: Node) -> str:
    """``aten.add.Tensor`` -> ``add``."""
    parts = str(getattr(node.target, "__name__", node.target)).split(".")
    return parts[-2] if len(parts) > 1 else parts[0]


@contextlib.contextmanager
def reasons() -> Iterator[dict[str, str]]:
    """What the partitioner says about each node that it does not take, by the node's name."""
    found: dict[str, str] = {}

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            match = re.search(r"Node (\S+) was not partitioned because (.+)", record.getMessage(), re.DOTALL)
            if match:
                found.setdefault(match[1], match[2].strip().rstrip("."))

    logger, handler = logging.getLogger("executorch.backends.xnnpack.partition"), Handler()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
