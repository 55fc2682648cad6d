"""Core ML, through coremltools; prediction exists on macOS alone."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.runtimes.base import Program, Source, in_one_line
from refocus.edge.runtimes.placement import Part, no_profile

VERSION = version("coremltools")
PROVIDERS = {"": "ALL", "all": "ALL", "cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "ane": "CPU_AND_NE"}
# Units that a choice asks for; the CPU that stands beside another one is its fallback.
_ASKED = {
    "ALL": ("CPU", "GPU", "NeuralEngine"),
    "CPU_ONLY": ("CPU",),
    "CPU_AND_GPU": ("GPU",),
    "CPU_AND_NE": ("NeuralEngine",),
}


class Loaded(Program):
    """A compiled ML program."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.threads = 0  # Core ML takes no number
        if sys.platform != "darwin":
            raise RuntimeUnavailable(f"{source.artifact.file}: Core ML predicts on macOS and iOS alone")
        if source.provider not in PROVIDERS:
            raise RuntimeUnavailable(f"--provider {source.provider}: coreml has {', '.join(filter(None, PROVIDERS))}")
        import coremltools

        self._units: str = PROVIDERS[source.provider]
        self._profiled: bool = source.profile is not None
        # The library takes a path alone, so it gets a copy of what was verified, in a folder of this user alone.
        self._folder: tempfile.TemporaryDirectory[str] = tempfile.TemporaryDirectory(prefix="refocus-")
        try:
            path = _written(source, Path(self._folder.name))
            units = getattr(coremltools.ComputeUnit, self._units)
            self._model: Any = coremltools.models.MLModel(str(path), compute_units=units)
        except Exception as error:  # many private types for a program that Core ML cannot take
            self._folder.cleanup()
            raise BundleError(f"{source.artifact.file} is not a program for Core ML: {in_one_line(error)}") from None

    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        given = {k: v.astype(np.int32) if v.dtype == np.int64 else v for k, v in inputs.items()}
        try:
            found = self._model.predict(given)
        except Exception as error:  # many private types
            raise self.failed(error) from None
        return [np.asarray(found[tensor.name], dtype=np.float32) for tensor in self.artifact.outputs]

    def ran_on(self) -> str:
        return f"Core ML ({self._units})"

    def placement(self) -> tuple[Part, ...]:
        """Operators by compute unit, with Core ML's own estimate of their cost (macOS 14.4 and newer)."""
        if not self._profiled:
            raise no_profile(self.artifact.file)
        import coremltools
        from coremltools.models.compute_plan import MLComputePlan

        units = getattr(coremltools.ComputeUnit, self._units)
        plan = MLComputePlan.load_from_path(self._model.get_compiled_model_path(), compute_units=units)
        placed: list[tuple[str, float]] = []
        for function in plan.model_structure.program.functions.values():
            for operation in function.block.operations:
                usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
                cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
                if usage is not None:  # constants have no place
                    unit = type(usage.preferred_compute_device).__name__
                    unit = unit.removeprefix("ML").removesuffix("ComputeDevice")
                    placed.append((unit, cost.weight if cost is not None else 0.0))
        return by_unit(placed, _ASKED[self._units])

    def numeric_path(self) -> str:
        return f"coreml {platform.mac_ver()[0]} {self._units} {platform.machine()}"

    def close(self) -> None:
        self.closed, self._model = True, None
        self._folder.cleanup()


def by_unit(placed: Sequence[tuple[str, float]], asked: Sequence[str]) -> tuple[Part, ...]:
    """Sums up operators by compute unit.

    Args:
        placed: unit and estimated cost of each operator, in order.
        asked: units that were asked for.
    """
    whole = sum(cost for _, cost in placed)
    found = []
    for unit in dict.fromkeys(unit for unit, _ in placed):
        costs = [cost for name, cost in placed if name == unit]
        pieces = sum(name == unit and (i == 0 or placed[i - 1][0] != unit) for i, (name, _) in enumerate(placed))
        found.append(Part(unit, unit in asked, len(costs), pieces, None, sum(costs) / whole if whole else None))
    return tuple(found)


def _written(source: Source, folder: Path) -> Path:
    """Writes a program's files into a folder, and returns the path of the program."""
    path = folder / Path(source.artifact.file).name
    for name, content in source.files.items():
        file = path / name if name else path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return path
