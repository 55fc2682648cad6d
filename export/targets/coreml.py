"""Core ML: ``.mlpackage`` folders (mlprogram, iOS 17 and later)."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind

# It warns, when imported, of every part that exists on a Mac alone, and of versions that the tests here cover.
logging.getLogger("coremltools").setLevel(logging.ERROR)

import coremltools
import coremltools.optimize.coreml as optimize

from refocus.edge.bundle import Placement
from refocus.export.errors import ExportError, told
from refocus.export.program.capture import for_one_photo, quiet
from refocus.export.program.program import TorchProgram
from refocus.export.targets import Settings, Written

RUNTIME = "coreml"
SUFFIX = ".mlpackage"
PRECISIONS = ("fp16", "fp32", "w8", "palette6")

_ATEN = torch.ops.aten
_NOTHING = {_ATEN.alias.default, _ATEN.detach.default, _ATEN.detach_.default, _ATEN.lift_fresh_copy.default}
# On truth values these are the same; the converter knows the second form alone.
_LOGICAL = {
    _ATEN.__or__.Tensor: _ATEN.logical_or.default,
    _ATEN.__and__.Tensor: _ATEN.logical_and.default,
    _ATEN.bitwise_or.Tensor: _ATEN.logical_or.default,
    _ATEN.bitwise_and.Tensor: _ATEN.logical_and.default,
    _ATEN.bitwise_not.default: _ATEN.logical_not.default,
}


def write(program: TorchProgram, captured: torch.export.ExportedProgram, settings: Settings, path: Path) -> Written:
    """Converts the program for one photo at a time, and checks what was written as far as this machine can.

    w8 and palette6 compress weights alone (per channel; 64 values): values stay fp16.

    Raises:
        ExportError: the converter has no form for an operator, or the file has other inputs, outputs or weights.
    """
    fixed = program.fixed()
    half = settings.precision != "fp32"
    try:
        with quiet("coremltools"):
            model = coremltools.convert(
                _simplified(for_one_photo(program, captured), [t.name for t in fixed.inputs]),
                minimum_deployment_target=coremltools.target.iOS17,
                compute_precision=coremltools.precision.FLOAT16 if half else coremltools.precision.FLOAT32,
                outputs=[coremltools.TensorType(name=t.name, dtype=np.float32) for t in fixed.outputs],
                skip_model_load=True,
            )
            model = _compressed(model, settings.precision)
            model.user_defined_metadata.pop("com.github.apple.coremltools.conversion_date", None)
            model.save(str(path))
    except Exception as error:  # the converter raises many types, all meaning that this program cannot be converted
        raise ExportError(f"the {program.role} cannot be converted to Core ML ({told(error)})") from error
    for extra in path.glob("*.json"):
        if extra.name != "Manifest.json":
            extra.unlink()
    operators = check(path, fixed)
    placed = Placement(asked="Core ML", operators={"mlprogram": operators}, how="device")
    recipe = {
        "deployment_target": "iOS 17, macOS 14",
        "photo": "an array, prepared by the host as the manifest's preprocessing says; no image type, because Core ML's"
        " own scaling has no kernel that is equal to it",
        "same_bytes": "no: the package carries identifiers of its own; its weights are the same",
    }
    versions = {name: version(name) for name in ("torch", "coremltools")}
    return Written(fixed, versions, placed, recipe, not_run())


def min_runtime_version(settings: Settings) -> str:
    return "9.0"


def not_run() -> str:
    """Why it cannot be run on this machine; "" if it can."""
    if sys.platform == "darwin":
        return ""
    return (
        "parity: not run here: Core ML predicts on macOS and iOS alone; interface, operators and weights were checked"
    )


def check(path: Path, program: TorchProgram) -> dict[str, int]:
    """Reads a package back: specification, names and shapes of inputs and outputs, weights; returns its operators.

    Raises:
        ExportError: they are not those of the program.
    """
    model = coremltools.models.MLModel(str(path), skip_model_load=True)
    specification = model.get_spec()
    for kind, wanted, found in (
        ("inputs", program.inputs, specification.description.input),
        ("outputs", program.outputs, specification.description.output),
    ):
        declared = {t.name: tuple(t.shape) for t in wanted}
        shapes = {f.name: tuple(f.type.multiArrayType.shape) for f in found}
        if declared != shapes:
            raise ExportError(f"{path.name} has {kind} {shapes}, the program has {declared}")
    weights = sum(p.stat().st_size for p in path.rglob("weight.bin"))
    if specification.WhichOneof("Type") != "mlProgram" or not weights:
        raise ExportError(f"{path.name} is not an ML program with weights")
    operators: Counter[str] = Counter()
    for function in specification.mlProgram.functions.values():
        for block in function.block_specializations.values():
            operators.update(operation.type for operation in block.operations)
    operators.pop("const", None)
    return dict(sorted(operators.items()))


def _simplified(captured: torch.export.ExportedProgram, names: list[str]) -> torch.export.ExportedProgram:
    """The same program in operators that the converter knows, with inputs of these names."""
    program: torch.export.ExportedProgram = captured.run_decompositions({})
    graph = program.graph_module.graph
    specs = [s for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for spec, name in zip(specs, names, strict=True):
        node = placeholders[spec.arg.name]
        if node.name != name:
            node.name = node.target = name
            spec.arg = dataclasses.replace(spec.arg, name=node.name)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _NOTHING:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target in _LOGICAL and _is_truth(node):
            node.target = _LOGICAL[node.target]
    program.graph_module.recompile()
    return program


def _is_truth(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool


def _compressed(model: Any, precision: str) -> Any:
    if precision == "w8":
        how = optimize.OpLinearQuantizerConfig(mode="linear_symmetric", granularity="per_channel")
        return optimize.linear_quantize_weights(model, optimize.OptimizationConfig(global_config=how))
    if precision == "palette6":
        how = optimize.OpPalettizerConfig(mode="kmeans", nbits=6)
        return optimize.palettize_weights(model, optimize.OptimizationConfig(global_config=how))
    return model
