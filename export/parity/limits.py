"""Limits of parity that the exporter sets in the place of those of the table: ``--max-deviation``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from refocus.edge.bundle import PRECISIONS
from refocus.export.errors import ExportError
from refocus.export.parity.parity import TOLERANCES, Tolerance
from refocus.export.targets import canonical

Limits = Mapping[tuple[str, str], float]  # by target, precision or "" for all, and name of the limit
_LARGEST = ("feature", "logits", "attention", "trust")
NAMES = (*_LARGEST, "typical-logits", "cosine-distance", "disagreement", "accuracy-loss")
FLAG = "--max-deviation"


def parse_limits(text: str) -> Limits:
    """``onnx:w8a8:disagreement=0.3,fp16:feature=0.7`` -> the limits.

    Raises:
        ExportError: not of that form, an unknown target or name, or no number of at least 0.
    """
    return dict(_parse(part) for part in text.split(",") if part)


def _parse(part: str) -> tuple[tuple[str, str], float]:
    place, sign, number = part.partition("=")
    of, _, name = place.rpartition(":")
    if not sign or name not in NAMES:
        raise ExportError(
            f"{FLAG} {part}: expected [TARGET:]NAME=NUMBER, such as onnx:w8a8:disagreement=0.3; names are"
            f" {', '.join(NAMES)}"
        )
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ExportError(f"{FLAG} {part}: expected a number of at least 0 behind '=', found '{number}'")
    return (canonical(of) if of and of not in PRECISIONS else of, name), value


def limit_for(target: str, precision: str, limits: Limits) -> Tolerance:
    """Parity tolerance of a target: the default of its precision, overridden by the exporter's limits.

    Args:
        target: runtime and precision, such as ``onnx:w8a8``.
    """
    given: dict[str, float] = {}
    for whose in ("", precision, target):  # the nearest one last
        given |= {name: value for (of, name), value in limits.items() if of == whose}
    usual = TOLERANCES[precision]
    if not given:
        return usual
    said = ", ".join(f"{name} {value:g}" for name, value in sorted(given.items()))
    return replace(
        usual,
        largest={**usual.largest, **{name: value for name, value in given.items() if name in _LARGEST}},
        typical_logits=given.get("typical-logits", usual.typical_logits),
        cosine=1 - given["cosine-distance"] if "cosine-distance" in given else usual.cosine,
        agreement=1 - given["disagreement"] if "disagreement" in given else usual.agreement,
        accuracy_loss=given.get("accuracy-loss", usual.accuracy_loss),
        reason=f"{usual.reason}; limits that the exporter set: {said}",
    )
