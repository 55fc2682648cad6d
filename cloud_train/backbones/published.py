"""Encoders with published ImageNet weights, as studies of real photos use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Encoder:
    """An encoder with published weights.

    Attributes:
        backbone: timm name.
        weights: file name without suffix.
        arguments: of ``timm.create_model``.
        mean: per RGB channel in [0, 1], and deviation alike; empty: what timm states.
    """

    backbone: str
    weights: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = ()


ENCODERS = {
    "mobilenetv2": Encoder("mobilenetv2_100", "mobilenetv2_100_in1k", {"pad_type": "same"}, (0.5, 0.5, 0.5)),
    "deit_tiny": Encoder("deit_tiny_patch16_224", "deit_tiny_patch16_224_in1k"),
}
