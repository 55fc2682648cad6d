"""ExecuTorch with the Core ML delegate: ``.pte`` files for iPhones and Macs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import coremltools
import torch
from executorch.backends.apple.coreml.compiler import CoreMLBackend
from executorch.backends.apple.coreml.partition import CoreMLPartitioner

from refocus.export.program.program import TorchProgram
from refocus.export.targets import Settings, Written
from refocus.export.targets.executorch import lower, min_runtime_version

RUNTIME = "executorch"
SUFFIX = ".coreml.pte"
PRECISIONS = ("fp16",)
__all__ = ["PRECISIONS", "RUNTIME", "SUFFIX", "min_runtime_version", "write"]


def write(program: TorchProgram, captured: torch.export.ExportedProgram, settings: Settings, path: Path) -> Written:
    """Lowers the program to Core ML inside a ``.pte``; it runs where Core ML is."""
    specs = CoreMLBackend.generate_compile_specs(
        compute_precision=coremltools.precision.FLOAT16, minimum_deployment_target=coremltools.target.iOS17
    )
    written = lower(program, captured, settings, path, CoreMLPartitioner(compile_specs=specs), "CoreMLBackend")
    return replace(written, parity_note="parity: not run here: the Core ML delegate runs on macOS and iOS alone")
