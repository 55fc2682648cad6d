"""ONNX, for ONNX Runtime."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import cast

import onnx
import torch

from export.errors import ExportError
from export.program import TorchProgram

RUNTIME = "onnxruntime"
SUFFIX = ".onnx"
PRECISIONS = ("fp32",)
OPSET = 18
MIN_RUNTIME_VERSION = "1.20"


def write(program: TorchProgram, captured: object, precision: str, path: Path) -> dict[str, str]:
    """Writes one ONNX file with all weights inside, checked by onnx's own full checker.

    Raises:
        ExportError: the exporter has no form for an operator, or what it wrote is not valid ONNX.
    """
    try:
        _write(program, captured, path)
    except (torch.onnx.errors.OnnxExporterError, onnx.checker.ValidationError) as error:
        first = str(error).strip().splitlines()[0]
        raise ExportError(f"the {program.role} cannot be written as ONNX opset {OPSET}: {first}") from error
    return {name: version(name) for name in ("torch", "onnx", "onnxscript")} | {"opset": str(OPSET)}


def _write(program: TorchProgram, captured: object, path: Path) -> None:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # deprecations inside torch and onnxscript, nothing a user could act on
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            cast(torch.export.ExportedProgram, captured),
            f=path,
            dynamo=True,
            input_names=[tensor.name for tensor in program.inputs],
            output_names=[tensor.name for tensor in program.outputs],
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )
        onnx.checker.check_model(str(path), full_check=True)
