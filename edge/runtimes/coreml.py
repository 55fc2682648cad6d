"""Core ML, through coremltools; prediction exists on macOS alone."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import numpy as np

from edge.errors import BundleError, RuntimeUnavailable
from edge.runtimes.base import Program, Source

VERSION = version("coremltools")
PROVIDERS = {"": "ALL", "all": "ALL", "cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "ane": "CPU_AND_NE"}


class Loaded(Program):
    """A compiled ML program."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        if sys.platform != "darwin":
            raise RuntimeUnavailable(f"{source.artifact.file}: Core ML predicts on macOS and iOS alone")
        if source.provider not in PROVIDERS:
            raise RuntimeUnavailable(f"--provider {source.provider}: coreml has {', '.join(filter(None, PROVIDERS))}")
        import coremltools

        self._units: str = PROVIDERS[source.provider]
        try:
            units = getattr(coremltools.ComputeUnit, self._units)
            self._model: Any = coremltools.models.MLModel(str(source.path), compute_units=units)
        except Exception as error:  # many private types for a program that Core ML cannot take
            raise BundleError(f"{source.artifact.file} is no program for Core ML: {error}") from None

    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        given = {k: v.astype(np.int32) if v.dtype == np.int64 else v for k, v in inputs.items()}
        found = self._model.predict(given)
        return [np.asarray(found[tensor.name], dtype=np.float32) for tensor in self.artifact.outputs]

    def ran_on(self) -> str:
        return f"Core ML ({self._units})"

    def close(self) -> None:
        del self._model
