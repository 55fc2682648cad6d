"""Clips: any image encoder over T frames, whose features are pooled by their mean or by a small temporal convolution.

The mean is the same for a clip that is played backwards: it tells what is seen, not how it moves, and needs no
training. The convolution has weights of its own, which are trained with the encoder; it tells directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn

from refocus.cloud_train.backbones.backbone import Backbone, create_backbone, preprocessing_of
from refocus.export.program import Checkpoint

BUILDER = "clip_encoder"  # in the entry-point group ``refocus.models``
Pooling = Literal["mean", "conv"]
_CHANNELS, _FRAMES = 64, 3  # of the convolution: its outputs, and neighbouring frames that it looks at


class TemporalPooling(nn.Module):
    """Features of frames (B, T, D) -> feature of the clip (B, D): their mean, and what changes between neighbours.

    A convolution over three frames to 64 channels, rectified, is averaged over the clip and mapped back to D. Without
    the rectifier, it would be a function of the mean and of the clip's ends. It begins as the difference of the frame
    behind and the frame before, of mixed numbers.

    Args:
        width: D.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.between = nn.Conv1d(width, _CHANNELS, _FRAMES, padding=_FRAMES // 2)
        self.back = nn.Linear(_CHANNELS, width)
        with torch.no_grad():
            kernel = self.between.weight
            kernel[:, :, 0], kernel[:, :, 1] = -kernel[:, :, 2], 0

    def forward(self, frames: Tensor) -> Tensor:
        changes = self.between(frames.transpose(1, 2)).relu().mean(2)
        pooled: Tensor = frames.mean(1) + self.back(changes)
        return pooled


class MeanPooling(nn.Module):
    """Features of frames (B, T, D) -> their mean (B, D)."""

    def forward(self, frames: Tensor) -> Tensor:
        return frames.mean(1)


class ClipNetwork(nn.Module):
    """A timm network over every frame, and a pooling: clips (B, T, 3, side, side) -> logits (B, C) of its classifier.

    It offers what :class:`refocus.cloud_train.backbones.backbone.Encoder` asks of a timm network.

    Args:
        network: a timm network.
        pooling: "mean" or "conv".
    """

    def __init__(self, network: Any, pooling: Pooling) -> None:
        super().__init__()
        self.network = network
        self.head_hidden_size = int(network.head_hidden_size)
        self.pooling = TemporalPooling(self.head_hidden_size) if pooling == "conv" else MeanPooling()

    def get_classifier(self) -> nn.Module:
        """That of the network, which reads the pooled feature."""
        classifier: nn.Module = self.network.get_classifier()
        return classifier

    def forward_features(self, clip: Tensor) -> Tensor:
        """The clip's feature (B, D)."""
        frames = self.network.forward_features(clip.flatten(0, 1))
        features = self.network.forward_head(frames, pre_logits=True)
        pooled: Tensor = self.pooling(features.unflatten(0, (-1, clip.shape[1])))
        return pooled

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """The feature itself, or the classifier's logits (B, C)."""
        return features if pre_logits else self.get_classifier()(features)

    def forward(self, clip: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(clip))


@dataclass(frozen=True)
class ClipBackbone(Backbone):
    """An image encoder over the frames of a clip; its preprocessing states how many there are.

    Attributes:
        pooling: how the frames' features become one.
    """

    pooling: Pooling

    def card_config(self, **more: Any) -> dict[str, Any]:
        return {**super().card_config(**more), "pooling": self.pooling}


def over_frames(backbone: Backbone, frames: int, pooling: Pooling) -> ClipBackbone:
    """An image encoder as an encoder of clips; the convolution of ``pooling`` "conv" is untrained.

    Args:
        frames: T, 2 or more.
    """
    stated = msgspec.structs.replace(backbone.preprocessing, frames=frames)
    network = ClipNetwork(backbone.network, pooling).eval()
    return ClipBackbone(backbone.name, network, stated, backbone.arguments, pooling)


def clip_backbone_of(checkpoint: Checkpoint) -> ClipBackbone:
    """The backbone of a clip encoder's checkpoint, with its weights."""
    config, stated = checkpoint.card.config, preprocessing_of(checkpoint.card.config)
    image = create_backbone(config["name"], config["classes"], stated, **config["arguments"])
    backbone = over_frames(image, stated.input_shape[0], config["pooling"])
    backbone.network.load_state_dict(checkpoint.weights)
    return backbone
