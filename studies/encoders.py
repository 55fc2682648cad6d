"""Encoders with published ImageNet weights, for studies of real photos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refocus.cloud_train.backbones.backbone import Backbone
from refocus.cloud_train.runs.iciia import DataConfig, RunConfig, load_backbone


@dataclass(frozen=True)
class Encoder:
    """An encoder with published weights.

    Attributes:
        backbone: timm name.
        weights: file name without suffix.
        arguments: arguments of ``timm.create_model``.
        mean: mean and standard deviation per RGB channel in [0, 1]; empty: the values of timm.
    """

    backbone: str
    weights: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = ()


ENCODERS = {
    "mobilenetv2": Encoder("mobilenetv2_100", "mobilenetv2_100_in1k", {"pad_type": "same"}, (0.5, 0.5, 0.5)),
    "deit_tiny": Encoder("deit_tiny_patch16_224", "deit_tiny_patch16_224_in1k"),
}


def published_backbone(made: Encoder, source: str) -> Backbone:
    """Load an encoder with its published weights from ``SOURCE/weights``."""
    weights = str(Path(source) / "weights" / f"{made.weights}.safetensors")
    return load_backbone(RunConfig(DataConfig(), made.backbone, weights, dict(made.arguments), made.mean, made.mean))
