"""ONNX Runtime."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import cast

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before the library is loaded; the bound below is the real guard

import numpy as np
import onnxruntime

from edge.errors import BundleError, PersonalWeightsError, RuntimeUnavailable
from edge.personal_places import weight_file_of
from edge.runtimes.base import ARM64, Program, Source, version_numbers
from edge.runtimes.onnx_external import External, external_tensors

PROGRAM = "program.onnx"  # in a folder that also holds the files of its external tensors
FIRST_WITH_TELEMETRY = (1, 29)
WRONG_WITH_SME = (1, 24), (1, 28)  # the first version with wrong convolutions, and the first without


def refuse_telemetry(version: str) -> None:
    """Official builds from 1.29 report to their maker's servers unless told not to: photos must stay on the device.

    Raises:
        RuntimeUnavailable: the version is 1.29 or newer.
    """
    if tuple(int(part) for part in version.split(".")[:2]) >= FIRST_WITH_TELEMETRY:
        raise RuntimeUnavailable(
            f"onnxruntime {version} carries telemetry; Refocus needs >=1.20,<1.29: pip install 'onnxruntime<1.29'"
        )


def session_entries(version: str, machine: str) -> dict[str, str]:
    """Session entries without which a version computes wrong features on some processors of a machine.

    From 1.24 to 1.27, convolutions of KleidiAI are wrong on arm64 processors with SME. 1.24 cannot be told to leave
    KleidiAI out and ignores the entry; there the bundle's self-test alone protects (:func:`edge.check.ensure_checked`).

    Args:
        machine: as ``platform.machine()`` names it.
    """
    first, fixed = WRONG_WITH_SME
    affected = machine.lower() in ARM64 and first <= version_numbers(version) < fixed
    return {"mlas.disable_kleidiai": "1"} if affected else {}


VERSION = str(onnxruntime.__version__)
refuse_telemetry(VERSION)


# What a user calls a provider -> what ONNX Runtime calls it.
PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
    "nnapi": "NnapiExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
}


class Loaded(Program):
    """A program in an ONNX Runtime session."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        artifact, self.fallback = source.artifact, ""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = source.threads
        options.log_severity_level = 3
        for key, value in session_entries(VERSION, platform.machine()).items():
            options.add_session_config_entry(key, value)
        if not source.allow_fallback:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        program = source.program(PROGRAM)
        values = personal_values(program, source)
        options.add_external_initializers(list(values), list(values.values()))
        if source.content is None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(source.path))
        try:
            self.session = onnxruntime.InferenceSession(program, options, providers=self._providers(source))
        except RuntimeUnavailable:
            raise
        except Exception as error:  # the library raises many private types for a program it cannot take
            raise BundleError(f"{artifact.file} is no program for onnxruntime {VERSION}: {error}") from None
        declared = [tensor.name for tensor in artifact.inputs], [tensor.name for tensor in artifact.outputs]
        found = [node.name for node in self.session.get_inputs()], [node.name for node in self.session.get_outputs()]
        if (sorted(declared[0]), declared[1]) != (sorted(found[0]), found[1]):
            raise BundleError(
                f"{artifact.file} has inputs and outputs {found}, its manifest says {declared}; export it again"
            )

    def _providers(self, source: Source) -> list[str]:
        cpu, asked = PROVIDERS["cpu"], source.provider or "cpu"
        if asked not in PROVIDERS:
            raise RuntimeUnavailable(f"--provider {asked}: onnxruntime has {', '.join(PROVIDERS)}")
        wanted, there = PROVIDERS[asked], onnxruntime.get_available_providers()
        if wanted == cpu:
            return [cpu]
        if wanted in there:
            return [wanted, cpu] if source.allow_fallback else [wanted]
        self.fallback = f"{asked} is not in this build of onnxruntime {VERSION}, which has {', '.join(there)}"
        if not source.allow_fallback:
            raise RuntimeUnavailable(f"{self.fallback}; install one that has it, or allow the fallback to the CPU")
        return [cpu]

    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return cast(list[np.ndarray], self.session.run(None, inputs))

    def bind(self, inputs: dict[str, np.ndarray]) -> Callable[[], dict[str, np.ndarray]]:
        self.check(inputs)
        shapes = {t.name: [n for n in t.shape if isinstance(n, int)] for t in self.artifact.outputs}
        if any(len(shapes[t.name]) < len(t.shape) for t in self.artifact.outputs):
            return super().bind(inputs)  # how large they will be is known at run time alone
        outputs = {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()}
        binding = self.session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
        run = self.session.run_with_iobinding

        def bound() -> dict[str, np.ndarray]:
            run(binding)
            return outputs

        return bound

    def ran_on(self) -> str:
        return cast(str, self.session.get_providers()[0]) + (f" ({self.fallback})" if self.fallback else "")

    def close(self) -> None:
        del self.session


def personal_values(program: bytes, source: Source) -> dict[str, onnxruntime.OrtValue]:
    """A person's tensors, without a copy, by the names of the external tensors whose place they take.

    What they leave out comes from files beside the program. Without such files ONNX Runtime would look for them in the
    working directory, which nobody verified.

    Raises:
        BundleError: the program is no ONNX file.
        PersonalWeightsError: a tensor that the graph does not keep outside itself, or of another shape or type; or one
            is missing that neither they nor the bundle have.
    """
    file, weights, placed = source.artifact.file, source.weights, source.artifact.personal
    declared = external_tensors(program, file)
    given = weights.tensors if weights is not None else {}
    if weights is not None and placed is not None:
        theirs = {name: tensor for name, tensor in declared.items() if tensor.location == placed.file}
        given = _seen_in(weight_file_of(weights, source.path, placed), theirs, file)
    if weights is not None and not given:
        raise weights.does_not_fit(f"{weights.path.name} is for another runtime than onnxruntime")
    for name, value in given.items():
        found = f"{value.dtype.name} {value.shape}"
        wanted = f"{declared[name].dtype} {declared[name].shape}" if name in declared else "no such external tensor"
        if weights is not None and found != wanted:
            raise weights.does_not_fit(f"{name} is {found}, {file} has {wanted}")
    for name in sorted(declared.keys() - given.keys()):
        if source.content is not None or not _is_beside(source.path, declared[name].location):
            raise PersonalWeightsError(
                f"{file} keeps {name} outside itself, and neither the bundle nor the person's weights have it; fetch"
                " weights for this version of the model"
            )
    return {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in given.items()}


def _seen_in(content: np.ndarray, tensors: dict[str, External], file: str) -> dict[str, np.ndarray]:
    """Arrays over the bytes of a weight file.

    Raises:
        BundleError: the graph says that a tensor lies outside the file.
    """
    found = {}
    for name, tensor in tensors.items():
        size = math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize
        part = content[tensor.offset : tensor.offset + size]
        if len(part) != size:
            raise BundleError(f"{file}: {name} lies outside {tensor.location}; export the bundle again")
        found[name] = part.view(tensor.dtype).reshape(tensor.shape)
    return found


def _is_beside(folder: Path, location: str) -> bool:
    return location == Path(location).name and (folder / location).is_file()
