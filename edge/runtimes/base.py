"""What every runtime offers, and the checks that are the same for all of them."""

from __future__ import annotations

import ctypes
import functools
import importlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import cast

import numpy as np

from refocus.edge.bundle.load import Bundle
from refocus.edge.bundle.manifest import Artifact, Tensor
from refocus.edge.bundle.personal_weights import PersonalWeights
from refocus.edge.bundle.verified_files import Content, Files, read_verified
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.registry import Registry
from refocus.edge.runtimes.placement import Part

GROUP = "refocus.runtimes"
# Runtime name in the manifest -> module with a class `Loaded` and the library's `VERSION`; the extra that installs it.
# Runtimes of other packages are entry points of the group: a name, and such a module.
_OWN = {
    "onnxruntime": ("refocus.edge.runtimes.onnxruntime", "cpu"),
    "executorch": ("refocus.edge.runtimes.executorch", "executorch"),
    "tensorrt": ("refocus.edge.runtimes.tensorrt", "tensorrt"),
    "coreml": ("refocus.edge.runtimes.coreml", "coreml"),
    "native": ("refocus.edge.runtimes.native", ""),  # heads alone; the package brings it where it was built
}
RUNTIMES: Registry[tuple[str, str]] = Registry(_OWN, GROUP, lambda entry: (entry.value, ""))
# Names in the folder of a program whose weights are files of their own.
ONNX_PROGRAM = "program.onnx"
EXECUTORCH_PROGRAM, EXECUTORCH_WEIGHTS = "program.pte", "weights.ptd"
# Those that can put a person's tensors in the place of a shared program's own.
TAKE_WEIGHTS = ("onnxruntime", "executorch")
# Those whose runs can be ended from outside.
TAKE_TIME_LIMIT = ("onnxruntime",)
_MAX_SAID = 500  # characters of a library's own words in an error
# Names that platform.machine() has for 64-bit ARM.
ARM64 = ("aarch64", "arm64")


@dataclass(frozen=True)
class Source:
    """A verified program, and how it is to be run.

    Attributes:
        files: verified contents, by path below the program's folder; "" for a program that is one file. What runs is
            what was verified, even if the files change.
        artifact: its entry in the manifest.
        threads: threads inside one operator; 0 leaves it to the runtime. ExecuTorch runs all programs of a process on
            as many as the first; Core ML and TensorRT take no number.
        provider: part of the device to run on, in the runtime's words; "" leaves it to the runtime.
        allow_fallback: False refuses to run what the provider does not take.
        weights: of one person, to stand in the place of the program's own; None leaves it as it was exported.
        time_limit: seconds that one run may take; 0 sets none.
        profile: folder for the profile of the program's runs, which :meth:`Program.placement` reads; None: no profile.
    """

    files: Files
    artifact: Artifact
    threads: int = 0
    provider: str = ""
    allow_fallback: bool = True
    weights: PersonalWeights | None = None
    time_limit: float = 0
    profile: Path | None = None

    @property
    def is_folder(self) -> bool:
        """Whether the program has files beside it, such as its weights."""
        return "" not in self.files

    def program(self, name: str) -> bytes:
        """The program's bytes: the file itself, or the one of that name in a folder.

        Raises:
            BundleError: the folder has no such file.
        """
        return bytes(self.file(name if self.is_folder else ""))

    def file(self, name: str) -> Content:
        """The content of one file.

        Raises:
            BundleError: there is none of that name.
        """
        if name not in self.files:
            raise BundleError(f"{self.artifact.file}/{name} cannot be read (there is none); export it again")
        return self.files[name]


class Program(ABC):
    """A program loaded by an inference runtime. Inputs and outputs are arrays by the tensor names of the manifest.

    Attributes:
        threads: inside one operator, those that it runs on; 0: as many as the runtime takes.
    """

    closed = False

    def __init__(self, source: Source) -> None:
        self.artifact, self.threads = source.artifact, source.threads

    def run(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Runs the program once.

        Raises:
            ValueError: an input is missing, unknown, or differs from the manifest in type or shape, or the program was
                closed (a bug of the caller: users never choose these).
            BundleError: the program fails, or gives outputs of other types or shapes than the manifest says.
        """
        self.check(inputs)
        return self.named(self.run_unchecked(inputs), inputs)

    def named(self, outputs: Sequence[np.ndarray], inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name, once each is what the manifest says; an axis named as one of the inputs' has its size.

        Raises:
            BundleError: one is of another type or shape, or missing.
        """
        declared, sizes = self.artifact.outputs, self._sizes(inputs)
        if len(outputs) != len(declared):
            raise BundleError(
                f"{self.artifact.file} gives {len(outputs)} outputs, its manifest lists {len(declared)};"
                " export it again"
            )
        for tensor, value in zip(declared, outputs, strict=True):
            if not _fits(tensor, value, sizes):
                raise BundleError(
                    f"{self.artifact.file} gives {tensor.name[:80]} as {value.dtype} {value.shape}, its manifest says"
                    f" {tensor.dtype} {tensor.shape}; export it again"
                )
        return {tensor.name: value for tensor, value in zip(declared, outputs, strict=True)}

    def _sizes(self, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Sizes of named axes, by their names."""
        found = {}
        for tensor in self.artifact.inputs:
            for name, size in zip(tensor.shape, inputs[tensor.name].shape, strict=True):
                if isinstance(name, str):
                    found[name] = size
        return found

    def failed(self, error: BaseException) -> BundleError:
        """The error for a program that its runtime could not run."""
        return BundleError(f"{self.artifact.file} failed while it ran ({in_one_line(error)}); export the bundle again")

    def check_open(self) -> None:
        """Raises ValueError where the program was closed."""
        if self.closed:
            raise ValueError(f"{self.artifact.file} was closed; load it again")

    def check(self, inputs: dict[str, np.ndarray]) -> None:
        """Raises ValueError where the inputs are not those of the manifest, or the program was closed."""
        self.check_open()
        if inputs.keys() != {tensor.name for tensor in self.artifact.inputs}:
            raise ValueError(f"{self.artifact.file} takes {[t.name for t in self.artifact.inputs]}, got {[*inputs]}")
        for tensor in self.artifact.inputs:
            if not _fits(tensor, value := inputs[tensor.name]):
                raise ValueError(
                    f"{self.artifact.file}: {tensor.name} is {tensor.dtype} {tensor.shape}, got {value.dtype}"
                    f" {value.shape}"
                )

    def bind(
        self, inputs: dict[str, np.ndarray], outputs: Mapping[str, np.ndarray] = MappingProxyType({})
    ) -> Callable[[], dict[str, np.ndarray]]:
        """A call that runs the program on what these arrays hold when it is made; its answer is good until the next.

        Runtimes that can read and write the caller's memory do so: nothing is copied.

        Args:
            outputs: float32 arrays of the caller's that take outputs of these names, contiguous and of their shapes;
                the answer has them. Default: the program makes its own.

        Raises:
            ValueError: as :meth:`run`.
        """
        self.check(inputs)

        def bound() -> dict[str, np.ndarray]:
            self.check_open()
            found = self.named(self.run_unchecked(inputs), inputs)
            for name, array in outputs.items():
                np.copyto(array, found[name])
            return {**found, **outputs}

        return bound

    @abstractmethod
    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs in the manifest's order."""

    @abstractmethod
    def ran_on(self) -> str:
        """The provider or delegate in use."""

    @abstractmethod
    def placement(self) -> tuple[Part, ...]:
        """Where the newest run's nodes ran, of a program that was loaded with a profile; it ends the profile.

        Raises:
            ValueError: it was loaded without a profile, or its profile has ended.
        """

    @abstractmethod
    def numeric_path(self) -> str:
        """What decides the last bits of the answers: runtime, version, provider, and what is special about it.

        Two programs of one feature space may differ in it, as fp32 on a CPU and TF32 on a GPU do.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the program's memory and handles; it cannot be run afterwards. Closing again does nothing."""


def load_program(
    bundle: Bundle,
    role: str,
    runtime: str,
    precision: str = "fp32",
    threads: int = 0,
    head: str = "",
    provider: str = "",
    allow_fallback: bool = True,
    personal: PersonalWeights | None = None,
    time_limit: float = 0,
    profile: Path | None = None,
) -> Program:
    """Loads a bundle's encoder or head, as it is or with one person's weights.

    Its content is not kept: the runtime has its own copy. Loaded again, it is read and verified again.

    Args:
        role, runtime, precision, head: as of :meth:`refocus.edge.bundle.load.Bundle.artifact`.
        threads, provider, allow_fallback, personal, time_limit, profile: as of :func:`load_artifact`.

    Raises:
        BundleError, PersonalWeightsError, RuntimeUnavailable: as :func:`load_artifact`; or the bundle has no such
            artifact.
    """
    artifact = bundle.artifact(role, runtime, precision, head)
    files = None if personal is not None and personal.is_program else bundle.files_of(artifact)
    try:
        how = threads, provider, allow_fallback, personal, files, time_limit, profile
        return load_artifact(bundle.folder, artifact, *how)
    finally:
        bundle.release(artifact)


def load_artifact(
    folder: Path,
    artifact: Artifact,
    threads: int = 0,
    provider: str = "",
    allow_fallback: bool = True,
    personal: PersonalWeights | None = None,
    files: Files | None = None,
    time_limit: float = 0,
    profile: Path | None = None,
) -> Program:
    """Loads one program of a verified bundle, as it is or with one person's weights.

    Args:
        personal: their carrier decides what is loaded: the same program, to be run with their tensors as further
            inputs; the same program with their tensors in the place of its own; or a program of their own instead of
            it. The program's ``artifact`` says what was loaded, with the feature space that follows from it.
        files: the program's contents, verified by the caller; default: read from ``folder`` and verified here.
        time_limit: seconds that one run may take; 0 sets none.
        profile: existing folder for the profile of its runs, for :meth:`Program.placement`; None: no profile.

    Raises:
        PersonalWeightsError: the weights do not fit the program.
        RuntimeUnavailable: its library is not installed, is refused, is older than the artifact needs, does not have
            the provider and no fallback is allowed, or knows no time limit.
        BundleError: the runtime does not know the program, or cannot load it.
    """
    if artifact.runtime not in RUNTIMES:
        raise BundleError(
            f"{artifact.file} needs the runtime '{artifact.runtime[:40]}', this refocus knows {[*RUNTIMES]}"
        )
    inside = personal if personal is not None and personal.carrier != "inputs" and not personal.is_program else None
    if inside is not None and artifact.runtime not in TAKE_WEIGHTS:
        raise RuntimeUnavailable(
            f"{artifact.runtime} takes no personal weights in the place of a shared program's; use"
            f" {' or '.join(TAKE_WEIGHTS)}, or weights that are inputs or a whole program"
        )
    if time_limit and artifact.runtime not in TAKE_TIME_LIMIT:
        raise RuntimeUnavailable(
            f"{artifact.runtime} cannot end a run that takes too long; use {' or '.join(TAKE_TIME_LIMIT)}, or no time"
            " limit"
        )
    loader = loader_of(artifact)
    if personal is not None and personal.is_program:
        files = {"": bytes(personal.content)}
    elif files is None:
        files = read_verified(folder, artifact.file, artifact.sha256, artifact.size_bytes)
    if personal is not None:
        artifact = personal.artifact_of(artifact)
    source = Source(files, artifact, threads, provider, allow_fallback, inside, time_limit, profile)
    program = cast(Program, loader.Loaded(source))
    del source, files  # a runtime that reads the file in place keeps it itself
    # Loading needed, with ONNX Runtime, three times the size of the weights; glibc would keep it as long as the process
    # lives.
    _malloc_trim()(0)
    return program


@functools.cache
def _malloc_trim() -> Callable[[int], int]:
    """glibc's own; elsewhere nothing, the allocators of other systems give memory back by themselves."""
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0) if sys.platform == "linux" else lambda _: 0


def loader_of(artifact: Artifact) -> ModuleType:
    """The module of an artifact's runtime.

    Raises:
        RuntimeUnavailable: its library is not installed, or older than the artifact needs.
    """
    module, extra = RUNTIMES[artifact.runtime]
    try:
        loader = importlib.import_module(module)
    except ImportError as error:
        raise RuntimeUnavailable(
            f"the runtime '{artifact.runtime}' is not installed ({error}): {install(module, extra)}"
        ) from None
    if version_numbers(loader.VERSION) < version_numbers(artifact.min_runtime_version):
        raise RuntimeUnavailable(
            f"{artifact.file} needs {artifact.runtime} {artifact.min_runtime_version} or newer, found"
            f" {loader.VERSION}: {install(module, extra, '--upgrade ')}"
        )
    return loader


def install(module: str, extra: str, flags: str = "") -> str:
    """The command that installs the library of a runtime's module."""
    own = module.startswith("refocus.")
    name = f"'refocus-edge[{extra}]'" if extra else "refocus-edge" if own else module.partition(".")[0]
    return f"pip install {flags}{name}"


def _fits(tensor: Tensor, value: np.ndarray, sizes: Mapping[str, int] | None = None) -> bool:
    if value.dtype != tensor.dtype or len(value.shape) != len(tensor.shape):
        return False
    if value.shape == tensor.shape:
        return value.size > 0
    wanted = (
        (sizes or {}).get(size, have) if isinstance(size, str) else size
        for size, have in zip(tensor.shape, value.shape, strict=True)
    )
    return all(want == have for want, have in zip(wanted, value.shape, strict=True)) and (value.size > 0)


def in_one_line(error: BaseException) -> str:
    """A library's words, or its error's type where it has none: one printable line."""
    said = " ".join(str(error).split())[:_MAX_SAID] or type(error).__name__
    return "".join(character if character.isprintable() else "?" for character in said)


def version_numbers(version: str) -> tuple[int, ...]:
    """``1.28.0+cpu`` -> (1, 28, 0), to be compared; a part that begins with no digit counts as 0."""
    found = (re.match("[0-9]{1,9}", part) for part in version.split("+")[0].split(".")[:3])
    return tuple(int(match[0]) if match else 0 for match in found)
