"""ONNX Runtime."""

from __future__ import annotations

import os
from typing import cast

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before the library is loaded; the bound below is the real guard

import numpy as np
import onnxruntime

from edge.errors import BundleError, RuntimeUnavailable
from edge.manifest import Artifact
from edge.runtimes.base import Program

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


class Loaded(Program):
    """A program in an ONNX Runtime session."""

    def __init__(self, content: bytes, artifact: Artifact, threads: int) -> None:
        super().__init__(content, artifact, threads)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        try:
            self.session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library raises many private types for a program it cannot take
            raise BundleError(f"{artifact.file} is no program for onnxruntime {VERSION}: {error}") from None
        declared = [tensor.name for tensor in artifact.inputs], [tensor.name for tensor in artifact.outputs]
        found = [node.name for node in self.session.get_inputs()], [node.name for node in self.session.get_outputs()]
        if (sorted(declared[0]), declared[1]) != (sorted(found[0]), found[1]):
            raise BundleError(
                f"{artifact.file} has inputs and outputs {found}, its manifest says {declared}; export it again"
            )

    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return cast(list[np.ndarray], self.session.run(None, inputs))

    def ran_on(self) -> str:
        return cast(str, self.session.get_providers()[0])
