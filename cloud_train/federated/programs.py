"""A federated client's model as two programs that all clients share: what is their own comes in as inputs.

The encoder takes prompts beside the photo, the head takes the classifier. Somebody who never trained gets those of the
bundle: the prompts the server has for strangers, and the mean of the clients' classifiers.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from cloud_train.backbones import SIGNATURE, create_backbone, signature
from cloud_train.methods.prompts import PromptedViT
from edge.manifest import Preprocessing
from edge.manifest import Tensor as TensorSpec
from export.checkpoint import Checkpoint
from export.program import TorchProgram

PROMPTS, WEIGHT, BIAS = "prompts", "classifier_weight", "classifier_bias"


class PromptedEncoder(nn.Module):
    """photo (B, 3, S, S), prompts (1 or N, K, l) -> rows (B, D + S): the feature and the photo's signature."""

    def __init__(self, prompted: PromptedViT) -> None:
        super().__init__()
        self.prompted = prompted

    def forward(self, photo: Tensor, prompts: Tensor) -> Tensor:
        return torch.cat([self.prompted(photo, prompts), signature(photo)], dim=1)


class PersonalClassifier(nn.Module):
    """The last layer alone, its numbers given, with the outputs that every head gives."""

    def forward(self, feature: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        """feature (1, D + S), weight (C, D), bias (C,) -> three times the logits (1, C), attention (1, 1) to the photo
        itself, trust (1,): 0."""
        logits = feature[:, : weight.shape[1]] @ weight.T + bias
        # As in export.bank.Classifier: computed, because constants and one value as several outputs are not taken.
        attention = feature[:, :1].softmax(dim=1)
        nothing = 1 - attention
        return logits, logits + nothing, logits * attention, attention, nothing[:, 0]


def prompted_encoder(checkpoint: Checkpoint) -> TorchProgram:
    """``prompted_encoder``: a frozen vision transformer whose prompts are an input."""
    config = checkpoint.card.config
    stated = config["preprocessing"]
    preprocessing = Preprocessing(**{**stated, "mean": tuple(stated["mean"]), "std": tuple(stated["std"])})
    backbone = create_backbone(config["name"], 0, preprocessing, **config["arguments"])
    weights = dict(checkpoint.weights)
    prompts = weights.pop(PROMPTS)
    backbone.network.load_state_dict(weights)
    for block in backbone.network.blocks:
        # Written out: what torch makes of its fused attention has a mask in it, which XNNPACK does not take.
        block.attn.fused_attn = False
    side = preprocessing.crop
    prompted = PromptedViT(backbone.network, 0)
    del prompted.prompts.tokens  # they are given
    return TorchProgram(
        role="encoder",
        module=PromptedEncoder(prompted).eval(),
        inputs=(
            TensorSpec(name="photo", dtype="float32", shape=("batch", 3, side, side)),
            TensorSpec(name=PROMPTS, dtype="float32", shape=tuple(prompts.shape)),
        ),
        outputs=(TensorSpec(name="feature", dtype="float32", shape=("batch", backbone.width + SIGNATURE)),),
        identity=_identity(checkpoint),
        preprocessing=preprocessing,
        quantisable=("prompted",),
        defaults={PROMPTS: prompts},
    )


def personal_classifier(checkpoint: Checkpoint) -> TorchProgram:
    """``personal_classifier``: a head whose linear layer is an input."""
    weight, bias = checkpoint.weights[WEIGHT], checkpoint.weights[BIAS]
    classes, width = weight.shape
    row = width + SIGNATURE
    answers: dict[str, tuple[int, ...]] = dict.fromkeys(("plain_logits", "calibrated_logits", "logits"), (1, classes))
    outputs = answers | {"attention": (1, 1), "trust": (1,)}
    return TorchProgram(
        role="head",
        module=PersonalClassifier().eval(),
        inputs=(
            TensorSpec(name="feature", dtype="float32", shape=(1, row)),
            TensorSpec(name=WEIGHT, dtype="float32", shape=(classes, width)),
            TensorSpec(name=BIAS, dtype="float32", shape=(classes,)),
        ),
        outputs=tuple(TensorSpec(name=name, dtype="float32", shape=shape) for name, shape in outputs.items()),
        identity=_identity(checkpoint),
        personalisation={
            "method": str(checkpoint.card.training["method"]),
            "window": 0,
            "gate": "none",
            "form": "none",
            "carrier": "inputs",
        },
        defaults={WEIGHT: weight, BIAS: bias},
    )


def _identity(checkpoint: Checkpoint) -> str:
    config: Any = msgspec.json.encode(checkpoint.card.config, order="deterministic").decode()
    return hashlib.sha256(f"{checkpoint.card.builder}\n{config}\n{checkpoint.card.sha256}".encode()).hexdigest()
