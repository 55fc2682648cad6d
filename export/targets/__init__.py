"""Export targets. One more target is one more file here and one more line in ``TARGETS``."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor

from refocus.edge.bundle import PersonalFile, PlacedTensor, Placement
from refocus.export.errors import ExportError
from refocus.export.program.program import TorchProgram

TARGETS = {
    "onnx": "refocus.export.targets.onnx",
    "executorch": "refocus.export.targets.executorch",
    "executorch-coreml": "refocus.export.targets.executorch_coreml",
    "coreml": "refocus.export.targets.coreml",
    "tensorrt": "refocus.export.targets.tensorrt",
}
DEFAULT_OPSET = 18
TAKE_PERSONAL = ("onnx:fp32", "onnx:fp16", "executorch:fp32")  # of programs with tensors of each person inside


@dataclass(frozen=True)
class Settings:
    """How a program is written.

    Attributes:
        precision: fp32, fp16, int8 or palette6.
        opset: of ONNX files.
        calibration: real inputs of this program, each a tuple in the order of its inputs; for int8.
    """

    precision: str
    opset: int = DEFAULT_OPSET
    calibration: tuple[tuple[Tensor, ...], ...] = ()


@dataclass(frozen=True)
class Written:
    """What a target says about a file it wrote.

    Attributes:
        program: the program with the shapes that the file has.
        producer: versions of what made it.
        placement: which operators run where, if the file or a run of it tells.
        recipe: what else a reader must know to make the file again, or to use it.
        parity_note: why it cannot be run on this machine; "" if it can.
        weights: of a program with external weights, their file and what is where in it.
        personal: of a program some of whose tensors are each person's own, the same of these.
    """

    program: TorchProgram
    producer: dict[str, str]
    placement: Placement | None = None
    recipe: dict[str, str] = field(default_factory=dict)
    parity_note: str = ""
    weights: tuple[str, tuple[PlacedTensor, ...]] = ("", ())
    personal: PersonalFile | None = None


class Target(Protocol):
    """What the module of a target offers."""

    RUNTIME: str  # the runtime of `edge` that runs its files
    SUFFIX: str
    PRECISIONS: tuple[str, ...]

    def write(
        self, program: TorchProgram, captured: torch.export.ExportedProgram, settings: Settings, path: Path
    ) -> Written:
        """Writes the program; one with external weights (onnx and executorch alone) as a folder.

        Raises:
            ExportError: the target has no form for it.
        """

    def min_runtime_version(self, settings: Settings) -> str:
        """The oldest version of the runtime that runs what is written."""


def _extra(target: str) -> str:
    """Which extra of the distribution installs a target's library."""
    library = target.partition("-")[0]
    return "export" if library == "onnx" else library


def find_target(name: str) -> tuple[Target, str]:
    """``onnx`` or ``onnx:fp32`` -> the target and the precision.

    Raises:
        ExportError: unknown, its library is missing, or a precision the target does not have.
    """
    target, _, precision = name.partition(":")
    if target not in TARGETS:
        raise ExportError(f"--to {name}: unknown target '{target}'; choose from {', '.join(TARGETS)}")
    try:
        module = cast(Target, importlib.import_module(TARGETS[target]))
    except ModuleNotFoundError as error:
        raise ExportError(
            f"--to {name}: {error.name} is not installed: pip install 'refocus-edge[{_extra(target)}]'"
        ) from None
    precision = precision or module.PRECISIONS[0]
    if precision not in module.PRECISIONS:
        raise ExportError(f"--to {name}: {target} is exported in {', '.join(module.PRECISIONS)}")
    return module, precision
