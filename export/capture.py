"""One ``torch.export`` capture for every target."""

from __future__ import annotations

import warnings

import torch

from export.errors import ExportError
from export.program import TorchProgram


def capture(program: TorchProgram) -> torch.export.ExportedProgram:
    """Captures the program's graph.

    Raises:
        ExportError: torch.export cannot follow the program.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(
                program.module.eval(), program.example_inputs(), dynamic_shapes=program.dynamic_shapes()
            )
    except Exception as error:  # torch.export raises many types, all meaning that this program cannot be captured
        first = str(error).strip().splitlines()[0]
        raise ExportError(
            f"torch.export cannot capture the {program.role} ({type(error).__name__}: {first})"
        ) from error
