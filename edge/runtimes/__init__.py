"""Inference runtimes, one module each; one more runtime is one more line in ``RUNTIMES``."""

from refocus.edge.runtimes.base import (
    EXECUTORCH_PROGRAM,
    EXECUTORCH_WEIGHTS,
    ONNX_PROGRAM,
    RUNTIMES,
    Program,
    load_artifact,
    load_program,
    version_numbers,
)

__all__ = [
    "EXECUTORCH_PROGRAM",
    "EXECUTORCH_WEIGHTS",
    "ONNX_PROGRAM",
    "RUNTIMES",
    "Program",
    "load_artifact",
    "load_program",
    "version_numbers",
]
