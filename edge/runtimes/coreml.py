"""Core ML, through coremltools; prediction exists on macOS alone."""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.runtimes.base import Program, Source, in_one_line

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
        # The library takes a path alone, so it gets a copy of what was verified, in a folder of this user alone.
        self._folder: tempfile.TemporaryDirectory[str] = tempfile.TemporaryDirectory(prefix="refocus-")
        try:
            path = _written(source, Path(self._folder.name))
            units = getattr(coremltools.ComputeUnit, self._units)
            self._model: Any = coremltools.models.MLModel(str(path), compute_units=units)
        except Exception as error:  # many private types for a program that Core ML cannot take
            self._folder.cleanup()
            raise BundleError(f"{source.artifact.file} is no program for Core ML: {in_one_line(error)}") from None

    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        given = {k: v.astype(np.int32) if v.dtype == np.int64 else v for k, v in inputs.items()}
        try:
            found = self._model.predict(given)
        except Exception as error:  # many private types
            raise self.failed(error) from None
        return [np.asarray(found[tensor.name], dtype=np.float32) for tensor in self.artifact.outputs]

    def ran_on(self) -> str:
        return f"Core ML ({self._units})"

    def close(self) -> None:
        self.closed, self._model = True, None
        self._folder.cleanup()


def _written(source: Source, folder: Path) -> Path:
    """Writes a program's files into a folder, and returns the path of the program."""
    path = folder / Path(source.artifact.file).name
    for name, content in source.files.items():
        file = path / name if name else path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return path
