"""Names of precisions: one table for every target, manifest, command and result document (docs/precision.md).

A name means the same on every target. A target that has no such form refuses it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

PrecisionName = Literal["fp32", "fp16", "w8a8", "w8a16", "w16", "w8", "palette6"]
# What manifests of Refocus 0.1 say; never the name of an artifact once it was read.
OldPrecisionName = Literal["int8"]


@dataclass(frozen=True)
class Precision:
    """A number format.

    Attributes:
        weights, activations: how each is stored and computed.
        calibrated: whether ranges of activations come from calibration photos.
    """

    weights: str
    activations: str
    calibrated: bool = False


PRECISIONS: Mapping[PrecisionName, Precision] = {
    "fp32": Precision("32-bit floating point", "32-bit floating point"),
    "fp16": Precision("16-bit floating point", "16-bit floating point; norms, softmax and sums may stay in 32-bit"),
    "w8a8": Precision("8-bit integers, a scale per output", "8-bit integers, calibrated range per tensor", True),
    "w8a16": Precision("8-bit integers, a scale per output", "16-bit integers, calibrated range per tensor", True),
    "w16": Precision("16-bit integers, a scale per output", "floating point"),
    "w8": Precision("8-bit integers, a scale per output", "floating point"),
    "palette6": Precision("one of 64 values per tensor (6-bit index)", "floating point"),
}
# Old name -> the names that it stood for; where it is asked for, the first one that is offered is meant.
ALIASES: Mapping[str, tuple[PrecisionName, ...]] = {"int8": ("w8a8", "w8")}
RUNTIME_ALIASES: Mapping[str, str] = {"onnx": "onnxruntime"}  # as ``refocus export --to`` names the target


def find_precision(asked: str, offered: Collection[str]) -> str:
    """Which of the offered names is meant by the one that is asked for; "" where none is.

    Either side may use an old name: a command line, or a channel or a document that an earlier release wrote.
    """
    if asked in offered:
        return asked
    renamed = (name for name in ALIASES.get(asked, ()) if name in offered)
    earlier = (name for name in offered if asked in ALIASES.get(name, ()))
    return next(renamed, "") or next(earlier, "")


def find_runtime(asked: str) -> str:
    """The runtime that is meant by the name that is asked for, which may be that of an export's target."""
    return RUNTIME_ALIASES.get(asked, asked)


def find_named_target(asked: str, offered: Collection[str]) -> str:
    """The same for targets, as ``onnxruntime:w8a8`` or ``onnx:w8a8``; "" where none is meant."""
    named, _, precision = asked.partition(":")
    runtimes = [name.partition(":")[0] for name in offered]
    runtime = named if named in runtimes else find_runtime(named)  # an export's own targets keep their names
    found = find_precision(precision, [name.partition(":")[2] for name in offered if name.partition(":")[0] == runtime])
    return f"{runtime}:{found}" if found else ""
