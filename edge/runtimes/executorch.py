"""ExecuTorch's Python runtime: for checks on a desktop and for boards; a phone loads the same file natively.

The one module of ``edge`` that brings torch with it: ExecuTorch's Python package imports it for its tensors.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, cast

import numpy as np
import torch
from executorch.runtime import Runtime, Verification

from edge.errors import BundleError, RuntimeUnavailable
from edge.runtimes.base import Program, Source

VERSION = version("executorch")
METHOD = "forward"


class Loaded(Program):
    """A program in ExecuTorch. The delegate is fixed when the program is exported; there is none to choose here."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        if source.provider not in ("", "xnnpack"):
            raise RuntimeUnavailable(f"--provider {source.provider}: a .pte file runs on the delegate it was made for")
        runtime, artifact = Runtime.get(), source.artifact
        missing = [name for name in _delegates(artifact.producer) if not runtime.backend_registry.is_available(name)]
        if missing:
            raise RuntimeUnavailable(f"{artifact.file} needs {', '.join(missing)}, which this executorch has not")
        # The program reads from these bytes for as long as it lives.
        self._content = source.content
        try:
            self._program = runtime.load_program(
                cast(bytes, source.content), verification=Verification.InternalConsistency
            )
            self._method: Any = self._program.load_method(METHOD)
        except (RuntimeError, ValueError) as error:
            raise BundleError(f"{artifact.file} is no program for executorch {VERSION}: {error}") from None
        metadata = self._method.metadata
        found = metadata.num_inputs(), metadata.num_outputs()
        if found != (len(artifact.inputs), len(artifact.outputs)):
            raise BundleError(
                f"{artifact.file} has {found[0]} inputs and {found[1]} outputs, its manifest says"
                f" {len(artifact.inputs)} and {len(artifact.outputs)}; export it again"
            )

    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        # A feature that came from the store is read-only memory, which torch warns about; nothing writes to inputs.
        tensors = [torch.from_numpy(_writable(inputs[tensor.name])) for tensor in self.artifact.inputs]
        # Outputs live in the program's own memory until the next run.
        return [output.numpy().copy() for output in self._method.execute(tensors)]

    def ran_on(self) -> str:
        return ", ".join(_delegates(self.artifact.producer)) or "portable operators"


def _writable(value: np.ndarray) -> np.ndarray:
    value = np.ascontiguousarray(value)
    return value if value.flags.writeable else value.copy()


def _delegates(producer: dict[str, str]) -> list[str]:
    return [name for name in producer.get("delegates", "").split(",") if name]
