"""Inference runtimes, one module each; one more runtime is one more line in ``RUNTIMES``, or an entry point."""

from refocus.edge.runtimes.base import (
    EXECUTORCH_PROGRAM,
    EXECUTORCH_WEIGHTS,
    ONNX_PROGRAM,
    RUNTIMES,
    Program,
    Source,
    install,
    load_artifact,
    load_program,
    version_numbers,
)
from refocus.edge.runtimes.native_format import (
    CAUSAL,
    NATIVE_CLASSIFIERS,
    NATIVE_FORMS,
    NATIVE_PRECISIONS,
    NATIVE_VERSION,
    SEVERAL,
    SHUFFLE,
    NativeConfig,
    NativeWeights,
)
from refocus.edge.runtimes.placement import Part, fallback_text, profile_folder, profiled

__all__ = [
    "CAUSAL",
    "EXECUTORCH_PROGRAM",
    "EXECUTORCH_WEIGHTS",
    "NATIVE_CLASSIFIERS",
    "NATIVE_FORMS",
    "NATIVE_PRECISIONS",
    "NATIVE_VERSION",
    "ONNX_PROGRAM",
    "RUNTIMES",
    "SEVERAL",
    "SHUFFLE",
    "NativeConfig",
    "NativeWeights",
    "Part",
    "Program",
    "Source",
    "fallback_text",
    "install",
    "load_artifact",
    "load_program",
    "profile_folder",
    "profiled",
    "version_numbers",
]
