"""Encoders with published ImageNet weights, for studies of real photos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refocus.cloud_train.backbones.backbone import Backbone
from refocus.cloud_train.backbones.packaged_networks import packaged_backbone, packaged_file
from refocus.cloud_train.runs.iciia import DataConfig, RunConfig, load_backbone


@dataclass(frozen=True)
class Encoder:
    """An encoder with published weights.

    Attributes:
        backbone: timm name; of a package, its name in ``refocus export package:NAME``.
        weights: file name without suffix; empty: those of the package.
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
    "efficientnet_lite0": Encoder("efficientnet-lite0", ""),
}


def weights_file(made: Encoder, source: str) -> Path:
    """Return the path of the weights.

    They are in ``SOURCE/weights`` or in an installed package.
    """
    if not made.weights:
        return packaged_file(made.backbone)
    return Path(source) / "weights" / f"{made.weights}.safetensors"


def published_backbone(made: Encoder, source: str) -> Backbone:
    """Load an encoder with its published weights, see :func:`weights_file`."""
    if not made.weights:
        return packaged_backbone(made.backbone)[0]
    weights, arguments = str(weights_file(made, source)), dict(made.arguments)
    return load_backbone(RunConfig(DataConfig(), made.backbone, weights, arguments, made.mean, made.mean))
