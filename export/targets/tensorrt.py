"""TensorRT: the bundle holds ONNX made for it and the recipe; the device builds the engine on first use."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from refocus.export.program.program import TorchProgram
from refocus.export.targets import OPSETS, QUANTISATION, Settings, Written
from refocus.export.targets import onnx as onnx_target

RUNTIME = "tensorrt"
SUFFIX = ".onnx"
PRECISIONS = ("fp16", "fp32", "w8a8")
MOST_PHOTOS = 8


def write(program: TorchProgram, captured: torch.export.ExportedProgram, settings: Settings, path: Path) -> Written:
    """Writes a strongly typed ONNX file: every type, and for w8a8 every Q/DQ pair, is in the graph.

    fp32 and fp16 are the very file that ONNX Runtime gets; w8a8 is one of its own, because TensorRT takes symmetric
    ranges alone.
    """
    if settings.precision == "w8a8":
        model = onnx_target.model_of(program, captured, settings)
        model, how = onnx_target.to_w8a8(model, program, settings, symmetric=True)
        onnx_target.save(model, path)
        recipe = {"opset": str(settings.opset), QUANTISATION: how}
    else:
        recipe = onnx_target.write(program, captured, settings, path).recipe
    recipe["trtexec"] = trtexec(program, path)
    return Written(program, onnx_target.versions(), None, recipe, not_run())


def min_runtime_version(settings: Settings) -> str:
    return max("10.0", OPSETS[settings.opset][1], key=lambda v: [int(n) for n in v.split(".")])


def file_name(stem: str, precision: str) -> str:
    """fp32 and fp16 share ONNX Runtime's file."""
    return f"{stem}-w8a8-symmetric{SUFFIX}" if precision == "w8a8" else f"{stem}-{precision}{SUFFIX}"


def trtexec(program: TorchProgram, path: Path) -> str:
    """The command that builds the same engine by hand."""
    line = f"trtexec --onnx={path.name} --saveEngine={path.stem}.engine --stronglyTyped"
    free = [tensor for tensor in program.inputs if any(isinstance(size, str) for size in tensor.shape)]
    for flag, photos in (("min", 1), ("opt", 1), ("max", MOST_PHOTOS)) if free else ():
        shapes = ",".join(
            f"{t.name}:" + "x".join(str(photos if isinstance(n, str) else n) for n in t.shape) for t in free
        )
        line += f" --{flag}Shapes={shapes}"
    return line


def not_run() -> str:
    """Why no engine can be built here; "" if one can."""
    if importlib.util.find_spec("tensorrt") is None:
        return "parity: not run here: TensorRT is not installed, so the file was not even parsed by it"
    if not torch.cuda.is_available():
        return "parity: not run here: TensorRT builds and runs engines on an NVIDIA GPU alone, and there is none"
    return ""
