"""What every runtime offers, and the checks that are the same for all of them."""

from __future__ import annotations

import hashlib
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from edge.errors import BundleError, RuntimeUnavailable
from edge.manifest import Artifact, Tensor
from edge.personal import PersonalWeights

# Runtime name in the manifest -> module with a class `Loaded` and the library's `VERSION`; the extra that brings it.
RUNTIMES = {
    "onnxruntime": ("edge.runtimes.onnxruntime", "cpu"),
    "executorch": ("edge.runtimes.executorch", "executorch"),
    "tensorrt": ("edge.runtimes.tensorrt", "tensorrt"),
    "coreml": ("edge.runtimes.coreml", "coreml"),
}
# Those that can put a person's tensors in the place of a shared program's own.
TAKE_WEIGHTS = ("onnxruntime", "executorch")
# What platform.machine() calls 64-bit ARM.
ARM64 = ("aarch64", "arm64")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """A verified program, and how it is to be run.

    Attributes:
        path: the file, or the folder of a runtime whose programs are folders.
        content: its bytes, verified; what runs is what was verified, even if the file changes. None for a folder.
        artifact: its entry in the manifest.
        threads: threads inside one operator; 0 leaves it to the runtime.
        provider: part of the device to run on, in the runtime's words; "" leaves it to the runtime.
        allow_fallback: False refuses to run what the provider does not take.
        weights: of one person, to stand in the place of the program's own; None leaves it as it was exported.
    """

    path: Path
    content: bytes | None
    artifact: Artifact
    threads: int = 0
    provider: str = ""
    allow_fallback: bool = True
    weights: PersonalWeights | None = None

    def program(self, name: str) -> bytes:
        """The program's bytes: the file itself, or the one of that name in a folder that also holds its weights.

        Raises:
            BundleError: the folder has no such file.
        """
        if self.content is not None:
            return self.content
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise BundleError(f"{self.path / name} cannot be read ({error.strerror}); export it again") from None


class Program(ABC):
    """One loaded program. Inputs and outputs are dictionaries of arrays by the names of the manifest."""

    def __init__(self, source: Source) -> None:
        self.artifact, self.threads = source.artifact, source.threads

    def run(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Runs the program once.

        Raises:
            ValueError: an input is missing, unknown, or differs from the manifest in type or shape (a bug of the
                caller: users never choose these).
        """
        self.check(inputs)
        outputs = self.run_unchecked(inputs)
        return dict(zip((tensor.name for tensor in self.artifact.outputs), outputs, strict=True))

    def check(self, inputs: dict[str, np.ndarray]) -> None:
        """Raises ValueError where the inputs are not those of the manifest."""
        if inputs.keys() != {tensor.name for tensor in self.artifact.inputs}:
            raise ValueError(f"{self.artifact.file} takes {[t.name for t in self.artifact.inputs]}, got {[*inputs]}")
        for tensor in self.artifact.inputs:
            _check(tensor, inputs[tensor.name], self.artifact.file)

    def bind(self, inputs: dict[str, np.ndarray]) -> Callable[[], dict[str, np.ndarray]]:
        """A call that runs the program on what these arrays hold when it is made; its answer is good until the next.

        Runtimes that can read and write the caller's memory do so: nothing is copied.

        Raises:
            ValueError: as :meth:`run`.
        """
        self.check(inputs)
        names = [tensor.name for tensor in self.artifact.outputs]
        return lambda: dict(zip(names, self.run_unchecked(inputs), strict=True))

    @abstractmethod
    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs in the manifest's order."""

    @abstractmethod
    def ran_on(self) -> str:
        """The provider or delegate in use."""

    @abstractmethod
    def close(self) -> None:
        """Frees the program's memory; it must not be run afterwards."""


def load_program(folder: Path, artifact: Artifact, threads: int = 0, provider: str = "", allow_fallback: bool = True,
                 personal: PersonalWeights | None = None) -> Program:  # fmt: skip
    """Loads one program of a verified bundle, as it is or with one person's weights.

    Args:
        personal: their carrier decides what is loaded: the same program, to be run with their tensors as further
            inputs; the same program with their tensors in the place of its own; or a program of their own instead of
            it. The program's ``artifact`` says what was loaded, with the feature space that follows from it.

    Raises:
        PersonalWeightsError: the weights do not fit the program.
        RuntimeUnavailable: its library is not installed, is refused, is older than the artifact needs, or does not have
            the provider and no fallback is allowed.
        BundleError: the runtime does not know the program, or cannot load it.
    """
    if artifact.runtime not in RUNTIMES:
        raise BundleError(f"{artifact.file} needs the runtime '{artifact.runtime}', this refocus knows {[*RUNTIMES]}")
    inside = personal if personal is not None and personal.carrier != "inputs" and not personal.is_program else None
    if inside is not None and artifact.runtime not in TAKE_WEIGHTS:
        raise RuntimeUnavailable(
            f"{artifact.runtime} takes no personal weights in the place of a shared program's; use"
            f" {' or '.join(TAKE_WEIGHTS)}, or weights that are inputs or a whole program"
        )
    module, extra = RUNTIMES[artifact.runtime]
    try:
        loader = importlib.import_module(module)
    except ImportError as error:
        raise RuntimeUnavailable(
            f"the runtime '{artifact.runtime}' is not installed ({error}): pip install 'refocus[{extra}]'"
        ) from None
    if version_numbers(loader.VERSION) < version_numbers(artifact.min_runtime_version):
        raise RuntimeUnavailable(
            f"{artifact.file} needs {artifact.runtime} {artifact.min_runtime_version} or newer, found"
            f" {loader.VERSION}: pip install --upgrade 'refocus[{extra}]'"
        )
    path, content = folder / artifact.file, None
    if personal is not None and personal.is_program:
        path, content = personal.path, bytes(personal.content)
    elif path.is_dir():
        verify(folder, artifact.file, artifact.sha256, artifact.size_bytes)
    else:
        content = verified_bytes(folder, artifact.file, artifact.sha256, artifact.size_bytes)
    if personal is not None:
        artifact = personal.artifact_of(artifact)
    source = Source(path, content, artifact, threads, provider, allow_fallback, inside)
    return cast(Program, loader.Loaded(source))


def verify(folder: Path, file: str, sha256: str, size_bytes: int) -> None:
    """Checks one file or folder of a bundle against the manifest.

    Raises:
        BundleError: it leads out of the folder, cannot be read, or was changed.
    """
    path = folder / file
    if not path.is_dir():
        verified_bytes(folder, file, sha256, size_bytes)
        return
    _check_inside(folder, path)
    digest, size = tree_sha256(path)
    _check_unchanged(path, digest == sha256, size, size_bytes)


def verified_bytes(folder: Path, file: str, sha256: str, size_bytes: int) -> bytes:
    """The bytes of one file of a bundle; no more than the manifest says are read.

    Raises:
        BundleError: it leads out of the folder, cannot be read, or was changed.
    """
    path = folder / file
    _check_inside(folder, path)
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            content = stream.read(size_bytes) if size == size_bytes else b""
    except OSError as error:
        raise BundleError(f"{path} is listed in the manifest but cannot be read ({error.strerror})") from None
    _check_unchanged(path, hashlib.sha256(content).hexdigest() == sha256, size, size_bytes)
    return content


def tree_sha256(folder: Path) -> tuple[str, int]:
    """Identity of a folder (names and contents of all its files) and their size in bytes.

    Raises:
        BundleError: a file leads out of the folder or cannot be read.
    """
    lines, total = [], 0
    for path in sorted(p for p in folder.rglob("*") if not p.is_dir()):
        _check_inside(folder, path)
        digest = hashlib.sha256()
        try:
            with path.open("rb") as stream:
                while block := stream.read(_CHUNK):
                    digest.update(block)
                    total += len(block)
        except OSError as error:
            raise BundleError(f"{path} cannot be read ({error.strerror}); fetch the bundle again") from None
        lines.append(f"{path.relative_to(folder).as_posix()} {digest.hexdigest()}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest(), total


def _check_inside(folder: Path, path: Path) -> None:
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"{path} leads out of the bundle; fetch the bundle again from its source")


def _check_unchanged(path: Path, same: bool, size: int, size_bytes: int) -> None:
    if size != size_bytes:
        raise BundleError(f"{path} was changed: it has {size} bytes, the manifest says {size_bytes}; fetch it again")
    if not same:
        raise BundleError(f"{path} was changed: its SHA-256 differs from the manifest; fetch the bundle again")


def _check(tensor: Tensor, value: np.ndarray, file: str) -> None:
    fits = len(value.shape) == len(tensor.shape) and all(
        isinstance(want, str) or want == have for want, have in zip(tensor.shape, value.shape, strict=True)
    )
    if not fits or value.dtype != tensor.dtype:
        raise ValueError(f"{file}: {tensor.name} is {tensor.dtype} {tensor.shape}, got {value.dtype} {value.shape}")


def version_numbers(version: str) -> tuple[int, ...]:
    """``1.28.0+cpu`` -> (1, 28, 0), to be compared."""
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split("+")[0].split(".")[:3])
