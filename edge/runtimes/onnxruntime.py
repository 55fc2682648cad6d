"""ONNX Runtime."""

from __future__ import annotations

import os
from typing import cast

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before the library is loaded; the bound below is the real guard

import numpy as np
import onnxruntime

from edge.errors import BundleError, RuntimeUnavailable
from edge.runtimes.base import Program, Source

FIRST_WITH_TELEMETRY = (1, 29)


def refuse_telemetry(version: str) -> None:
    """Official builds from 1.29 report to their maker's servers unless told not to: photos must stay on the device.

    Raises:
        RuntimeUnavailable: the version is 1.29 or newer.
    """
    if tuple(int(part) for part in version.split(".")[:2]) >= FIRST_WITH_TELEMETRY:
        raise RuntimeUnavailable(
            f"onnxruntime {version} carries telemetry; Refocus needs >=1.20,<1.29: pip install 'onnxruntime<1.29'"
        )


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
        if not source.allow_fallback:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        try:
            self.session = onnxruntime.InferenceSession(source.content, options, providers=self._providers(source))
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

    def ran_on(self) -> str:
        return cast(str, self.session.get_providers()[0]) + (f" ({self.fallback})" if self.fallback else "")
