"""One ``torch.export`` capture for every target."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

import torch

from refocus.export.errors import ExportError, told
from refocus.export.program.program import TorchProgram

# The last one: several targets ask for it in a row.
_FIXED: dict[torch.export.ExportedProgram, torch.export.ExportedProgram] = {}

# What torch says of code whose path depends on the values of tensors, in several of its layers.
_DATA_DEPENDENT = ("data-dependent", "data dependent", "DataDependent", "Dynamic control flow", "bool(tensor)")
_BRANCHES = (
    "; its code takes another path for other values of a tensor (if, while), and a program has one path for all: use"
    " torch.where or torch.cond there"
)
_LEAVES_TORCH = (
    "; its code converts a tensor to a NumPy array on the way, and a program holds operations of torch alone: compute"
    " this step with torch"
)


@contextlib.contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Without what torch and the converters print, warn of and log: nothing in it that a user could act on."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("torch", *loggers))}
    silent = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
        warnings.simplefilter("ignore")
        for logger in levels:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in levels.items():
                logger.setLevel(level)


def capture(program: TorchProgram) -> torch.export.ExportedProgram:
    """Captures the program's graph.

    Raises:
        ExportError: torch.export cannot follow the program.
    """
    try:
        with quiet("torch.fx", "torch._dynamo", "torch.export"):
            shapes = tuple(program.dynamic_shapes())
            return torch.export.export(
                program.module.eval(), tuple(program.example_inputs()), dynamic_shapes=shapes if any(shapes) else None
            )
    except Exception as error:  # torch.export raises many types, all meaning that this program cannot be captured
        raise ExportError(f"torch.export cannot capture the {program.role} ({told(error)}){_advice(error)}") from error


def _advice(error: Exception) -> str:
    """The change of the network's code that would let torch.export follow it, where the error tells."""
    if any(sign in f"{type(error).__name__} {error}" for sign in _DATA_DEPENDENT):
        return _BRANCHES
    return _LEAVES_TORCH if ".numpy()" in str(error) else ""


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
            _FIXED[captured] = torch.export.export(captured.module(), tuple(program.fixed().example_inputs()))
    return _FIXED[captured]
