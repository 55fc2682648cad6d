"""Builders of exportable programs from checkpoints: the group ``refocus.models``."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from cloud_train.backbones import Backbone, create_backbone
from cloud_train.methods.iciia import IciiaClassifier, IciiaConfig
from edge.manifest import Preprocessing, State
from edge.manifest import Tensor as TensorSpec
from export.checkpoint import Checkpoint
from export.program import TorchProgram


def backbone_of(checkpoint: Checkpoint) -> Backbone:
    """The backbone of an encoder checkpoint, with its weights."""
    config = checkpoint.card.config
    preprocessing = Preprocessing(**{**config["preprocessing"], "mean": tuple(config["preprocessing"]["mean"]),
                                     "std": tuple(config["preprocessing"]["std"])})  # fmt: skip
    backbone = create_backbone(config["name"], config["classes"], preprocessing, **config["arguments"])
    backbone.network.load_state_dict(checkpoint.weights)
    return backbone


def encoder_program(checkpoint: Checkpoint) -> TorchProgram:
    """``timm_encoder``: photo (B, 3, S, S) -> feature (B, D)."""
    backbone = backbone_of(checkpoint)
    side = backbone.preprocessing.crop
    return TorchProgram(
        role="encoder",
        module=backbone.encoder.eval(),
        inputs=(TensorSpec(name="photo", dtype="float32", shape=("batch", 3, side, side)),),
        outputs=(TensorSpec(name="feature", dtype="float32", shape=("batch", backbone.width)),),
        identity=_identity(checkpoint),
        preprocessing=backbone.preprocessing,
    )


def _identity(checkpoint: Checkpoint) -> str:
    """The same weights in another architecture (other padding, other heads) are another program."""
    config = msgspec.json.encode(checkpoint.card.config, order="deterministic").decode()
    return hashlib.sha256(f"{checkpoint.card.builder}\n{config}\n{checkpoint.card.sha256}".encode()).hexdigest()


class WindowHead(nn.Module):
    """Everything after the feature: the plain classifier, and ICIIA over the history with its own classifier.

    Recomputes the whole window for each photo, as the paper does. With causal attention the window is the receptive
    field, N(W - 1) + 1 photos, so the answer is exactly that of the stream.
    """

    def __init__(self, plain: nn.Linear, personal: IciiaClassifier) -> None:
        super().__init__()
        self.plain, self.personal = plain, personal

    def forward(self, feature: Tensor, history: Tensor, history_length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """feature (1, D), history (1, L, D) with its newest row last, history_length (1,) valid rows.

        Returns plain logits (1, C), calibrated logits (1, C) and attention (1, L + 1), the photo itself last.
        """
        slots = history.shape[1]
        valid = torch.arange(slots + 1) >= slots - history_length[:, None]
        rows = torch.cat([history, feature[:, None]], dim=1)
        logits, attention = self.personal.last(rows, valid)
        return self.plain(feature), logits, attention


def iciia_head(checkpoint: Checkpoint) -> WindowHead:
    """The head of an ICIIA checkpoint, in eval mode."""
    card = checkpoint.card
    config = IciiaConfig(**card.config["iciia"])
    head = WindowHead(nn.Linear(config.width, len(card.labels)), IciiaClassifier(config, len(card.labels)))
    head.load_state_dict(checkpoint.weights)
    return head.eval()


def iciia_program(checkpoint: Checkpoint) -> TorchProgram:
    """``iciia_head``: a feature and a history -> plain logits, calibrated logits, attention."""
    head, classes = iciia_head(checkpoint), len(checkpoint.card.labels)
    config = head.personal.iciia.config
    width, slots = config.width, config.receptive_field - 1
    personalisation: dict[str, Any] = {
        "method": "iciia",
        "window": slots,
        "warm_up": int(checkpoint.card.config["warm_up"]),
    }
    return TorchProgram(
        role="head",
        module=head,
        inputs=(
            TensorSpec(name="feature", dtype="float32", shape=(1, width)),
            TensorSpec(name="history", dtype="float32", shape=(1, slots, width)),
            TensorSpec(name="history_length", dtype="int64", shape=(1,)),
        ),
        outputs=(
            TensorSpec(name="plain_logits", dtype="float32", shape=(1, classes)),
            TensorSpec(name="logits", dtype="float32", shape=(1, classes)),
            TensorSpec(name="attention", dtype="float32", shape=(1, slots + 1)),
        ),
        identity=_identity(checkpoint),
        state=(State(name="history", source="feature", dtype="float32", shape=(slots, width), update="append"),),
        personalisation=personalisation,
        parts={
            "iciia": head.personal.iciia,
            "calibrated_classifier": head.personal.classifier,
            "plain_classifier": head.plain,
        },
    )
