"""Export targets. One more target is one more file here and one more line in ``TARGETS``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol, cast

from export.errors import ExportError
from export.program import TorchProgram

TARGETS = {"onnx": "export.targets.onnx"}


class Target(Protocol):
    """What the module of a target offers."""

    RUNTIME: str  # the runtime of `edge` that runs its files
    SUFFIX: str
    PRECISIONS: tuple[str, ...]
    MIN_RUNTIME_VERSION: str

    def write(self, program: TorchProgram, captured: object, precision: str, path: Path) -> dict[str, str]:
        """Writes the program; returns the producers' names and versions."""


def find_target(name: str) -> tuple[Target, str]:
    """``onnx`` or ``onnx:fp32`` -> the target and the precision.

    Raises:
        ExportError: unknown, or a precision the target does not have.
    """
    target, _, precision = name.partition(":")
    if target not in TARGETS:
        raise ExportError(f"--to {name}: unknown target '{target}'; choose from {', '.join(TARGETS)}")
    module = cast(Target, importlib.import_module(TARGETS[target]))
    precision = precision or module.PRECISIONS[0]
    if precision not in module.PRECISIONS:
        raise ExportError(f"--to {name}: {target} is exported in {', '.join(module.PRECISIONS)}")
    return module, precision
