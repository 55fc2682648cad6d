"""One ``torch.export`` capture for every target."""

from __future__ import annotations

import warnings

import torch

from refocus.export.errors import ExportError, told
from refocus.export.program.program import TorchProgram

# The last one: several targets ask for it in a row.
_FIXED: dict[torch.export.ExportedProgram, torch.export.ExportedProgram] = {}


def capture(program: TorchProgram) -> torch.export.ExportedProgram:
    """Captures the program's graph.

    Raises:
        ExportError: torch.export cannot follow the program.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shapes = program.dynamic_shapes()
            return torch.export.export(
                program.module.eval(), program.example_inputs(), dynamic_shapes=shapes if any(shapes) else None
            )
    except Exception as error:  # torch.export raises many types, all meaning that this program cannot be captured
        raise ExportError(f"torch.export cannot capture the {program.role} ({told(error)})") from error


def capture_freest(program: TorchProgram) -> tuple[TorchProgram, torch.export.ExportedProgram]:
    """Captures with free dimensions if the network allows it, else for one photo at a time; says which."""
    try:
        return program, capture(program)
    except ExportError:
        fixed = program.fixed()
        if fixed.inputs == program.inputs:
            raise
        return fixed, capture(fixed)


def for_one_photo(program: TorchProgram, captured: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The same capture with its free dimensions set to 1."""
    if program.fixed().inputs == program.inputs:
        return captured
    if captured not in _FIXED:
        _FIXED.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _FIXED[captured] = torch.export.export(captured.module(), program.fixed().example_inputs())
    return _FIXED[captured]
