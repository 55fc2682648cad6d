"""Export targets. One more target is one more file here and one more line in ``TARGETS``, or an entry point."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from refocus.edge.bundle import PRECISIONS, PersonalFile, PlacedTensor, Placement, find_precision
from refocus.edge.registry import Registry
from refocus.export.errors import ExportError, TargetUnavailable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from refocus.export.program.program import TorchProgram

GROUP = "refocus.targets"
# Target name -> its module, which offers what :class:`Target` says. Targets of other packages are entry points of the
# group: a name, and such a module.
_OWN = {
    "onnx": "refocus.export.targets.onnx",
    "executorch": "refocus.export.targets.executorch",
    "executorch-coreml": "refocus.export.targets.executorch_coreml",
    "coreml": "refocus.export.targets.coreml",
    "tensorrt": "refocus.export.targets.tensorrt",
    "native": "refocus.export.targets.native",
}
TARGETS: Registry[str] = Registry(_OWN, GROUP, lambda entry: entry.value)
DEFAULT_OPSET = 18
# Opset of ONNX files -> the oldest ONNX Runtime and the oldest TensorRT that read it.
OPSETS = {17: ("1.12", "8.5"), 18: ("1.14", "10.0"), 19: ("1.15", "10.0"), 20: ("1.17", "10.0"), 21: ("1.18", "10.8")}
# What a Jetson's system image brings -> the newest opset that its TensorRT reads.
PRESETS = {"jetpack5": 17, "jetpack6": 18, "jetpack7": 20}
QUANTISATION = "quantisation"  # member of a recipe: how weights and activations were quantised
NO_CALIBRATION = "w8a8 needs calibration photos: give --calibration, one folder of photos per person"
TAKE_PERSONAL = ("onnx:fp32", "onnx:fp16", "executorch:fp32")  # of programs with tensors of each person inside


@dataclass(frozen=True)
class Settings:
    """How a program is written.

    Attributes:
        precision: one that the target offers.
        opset: of ONNX files.
        calibration: real inputs of this program, each a tuple in the order of its inputs, where
            the precision has calibrated activations.
    """

    precision: str
    opset: int = DEFAULT_OPSET
    calibration: tuple[tuple[Tensor, ...], ...] = ()


@dataclass(frozen=True)
class Written:
    """What a target says about a file it wrote.

    Attributes:
        program: the program with the shapes that the file has.
        producer: versions of what made it.
        placement: which operators run where, if the file or a run of it tells.
        recipe: what else a reader must know to make the file again, or to use it.
        parity_note: why it cannot be run on this machine; "" if it can.
        weights: of a program with external weights, their file and what is where in it.
        personal: of a program some of whose tensors are each person's own, the same of these.
    """

    program: TorchProgram
    producer: dict[str, str]
    placement: Placement | None = None
    recipe: dict[str, str] = field(default_factory=dict)
    parity_note: str = ""
    weights: tuple[str, tuple[PlacedTensor, ...]] = ("", ())
    personal: PersonalFile | None = None


class Target(Protocol):
    """What the module of a target offers."""

    RUNTIME: str  # the runtime of `edge` that runs its files
    SUFFIX: str
    PRECISIONS: tuple[str, ...]  # names of refocus.edge.bundle.PRECISIONS; the first is the default

    def write(
        self, program: TorchProgram, captured: torch.export.ExportedProgram, settings: Settings, path: Path
    ) -> Written:
        """Writes the program; one with external weights (onnx and executorch alone) as a folder.

        Raises:
            ExportError: the target has no form for it.
        """

    def min_runtime_version(self, settings: Settings) -> str:
        """The oldest version of the runtime that runs what is written."""


def _extra(target: str) -> str:
    """Which extra of the distribution installs a target's library."""
    library = target.partition("-")[0]
    return "export" if library == "onnx" else library


def parse_opset(text: str) -> int:
    """``18`` or ``jetpack6`` -> the opset.

    Raises:
        ExportError: neither.
    """
    if text in PRESETS:
        return PRESETS[text]
    if text.isdigit() and int(text) in OPSETS:
        return int(text)
    raise ExportError(f"--opset {text}: expected one of {', '.join(map(str, [*OPSETS, *PRESETS]))}")


def check_name(name: str) -> None:
    """Check a target and its precision without the library of the target.

    Raises:
        ExportError: there is no such target, or no such precision.
    """
    target, _, precision = name.partition(":")
    if target not in TARGETS:
        raise ExportError(f"--to {name}: unknown target '{target}'; choose from {', '.join(TARGETS)}")
    if precision and not find_precision(precision, PRECISIONS):
        raise refused(name, list(PRECISIONS), "Refocus")


def find_target(name: str) -> tuple[Target, str]:
    """``onnx`` or ``onnx:fp32`` -> the target and the precision, by its present name where an old one is given.

    Raises:
        TargetUnavailable: its library is missing.
        ExportError: unknown, or a precision the target does not offer.
    """
    check_name(name)
    target, _, precision = name.partition(":")
    try:
        module = cast(Target, importlib.import_module(TARGETS[target]))
    except ModuleNotFoundError as error:
        raise TargetUnavailable(
            f"--to {name}: {error.name} is not installed: pip install 'refocus-edge[{_extra(target)}]'"
        ) from None
    found = find_precision(precision, module.PRECISIONS) if precision else module.PRECISIONS[0]
    if not found:
        raise refused(name, [f"{target}:{offered}" for offered in module.PRECISIONS])
    return module, found


def refused(name: str, offered: Sequence[str], whose: str = "", why: str = "") -> ExportError:
    """The one error for a precision that is not offered.

    Args:
        name: the target that was asked for, as ``coreml:w8a8``.
        offered: targets that there are, of the same runtime or not.
        whose: what offers them; default: the target itself.
        why: another sentence.
    """
    target, _, precision = name.partition(":")
    known = "" if find_precision(precision, PRECISIONS) else f"there is no precision '{precision}'; "
    whose = whose or target
    shown = (
        offered
        if any(other.partition(":")[0] != target for other in offered)
        else [other.partition(":")[2] for other in offered]
    )
    return ExportError(f"--to {name}: {known}{whose} offers {', '.join(shown)}{why}; see docs/precision.md")


def canonical(name: str) -> str:
    """The target with today's name of its precision, as ``onnx:w8a8`` for ``onnx:int8``.

    Raises:
        ExportError: as :func:`find_target`.
    """
    return f"{name.partition(':')[0]}:{find_target(name)[1]}"


def needs_ranges(name: str) -> bool:
    """Whether a target is written with calibration photos.

    Raises:
        ExportError: as :func:`find_target`.
    """
    precision = find_target(name)[1]
    return any(known == precision and about.calibrated for known, about in PRECISIONS.items())


__all__ = ["external_weights", "onnx", "single_program"]
