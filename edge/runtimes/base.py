"""What every runtime offers, and the checks that are the same for all of them."""

from __future__ import annotations

import hashlib
import importlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import cast

import numpy as np

from edge.errors import BundleError, RuntimeUnavailable
from edge.manifest import Artifact, Tensor

# Runtime name in the manifest -> module with a class `Loaded` and the library's `VERSION`; the extra that brings it.
RUNTIMES = {"onnxruntime": ("edge.runtimes.onnxruntime", "cpu")}


class Program(ABC):
    """One loaded program. Inputs and outputs are dictionaries of arrays by the names of the manifest.

    Args:
        content: the program's bytes, verified.
        artifact: its entry in the manifest.
        threads: threads inside one operator; 0 leaves it to the runtime.
    """

    def __init__(self, content: bytes, artifact: Artifact, threads: int) -> None:
        self.artifact, self.threads = artifact, threads

    def run(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Runs the program once.

        Raises:
            ValueError: an input is missing, unknown, or differs from the manifest in type or shape (a bug of the
                caller: users never choose these).
        """
        if inputs.keys() != {tensor.name for tensor in self.artifact.inputs}:
            raise ValueError(f"{self.artifact.file} takes {[t.name for t in self.artifact.inputs]}, got {[*inputs]}")
        for tensor in self.artifact.inputs:
            _check(tensor, inputs[tensor.name], self.artifact.file)
        outputs = self.run_unchecked(inputs)
        return dict(zip((tensor.name for tensor in self.artifact.outputs), outputs, strict=True))

    @abstractmethod
    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs in the manifest's order."""

    @abstractmethod
    def ran_on(self) -> str:
        """The provider or delegate in use."""


def load_program(folder: Path, artifact: Artifact, threads: int = 0) -> Program:
    """Loads one program of a verified bundle.

    Raises:
        RuntimeUnavailable: its library is not installed, is refused, or is older than the artifact needs.
        BundleError: the runtime does not know the program, or cannot load it.
    """
    if artifact.runtime not in RUNTIMES:
        raise BundleError(f"{artifact.file} needs the runtime '{artifact.runtime}', this refocus knows {[*RUNTIMES]}")
    module, extra = RUNTIMES[artifact.runtime]
    try:
        loader = importlib.import_module(module)
    except ImportError as error:
        raise RuntimeUnavailable(
            f"the runtime '{artifact.runtime}' is not installed ({error}): pip install 'refocus[{extra}]'"
        ) from None
    if _numbers(loader.VERSION) < _numbers(artifact.min_runtime_version):
        raise RuntimeUnavailable(
            f"{artifact.file} needs {artifact.runtime} {artifact.min_runtime_version} or newer, found"
            f" {loader.VERSION}: pip install --upgrade 'refocus[{extra}]'"
        )
    # Bytes, not a path: what runs is what was verified, even if the file changes in between.
    content = verified_bytes(folder, artifact.file, artifact.sha256)
    return cast(Program, loader.Loaded(content, artifact, threads))


def verified_bytes(folder: Path, file: str, sha256: str) -> bytes:
    """The bytes of one file of a bundle.

    Raises:
        BundleError: it leads out of the folder, cannot be read, or was changed.
    """
    path = folder / file
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"{path} leads out of the bundle; fetch the bundle again from its source")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path} is listed in the manifest but cannot be read ({error.strerror})") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BundleError(f"{path} was changed: its SHA-256 differs from the manifest; fetch the bundle again")
    return content


def _check(tensor: Tensor, value: np.ndarray, file: str) -> None:
    fits = len(value.shape) == len(tensor.shape) and all(
        isinstance(want, str) or want == have for want, have in zip(tensor.shape, value.shape, strict=True)
    )
    if not fits or value.dtype != tensor.dtype:
        raise ValueError(f"{file}: {tensor.name} is {tensor.dtype} {tensor.shape}, got {value.dtype} {value.shape}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:3])
