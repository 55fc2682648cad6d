"""A federated client's model as two programs that all clients share: what is their own comes in as inputs.

The encoder takes prompts beside the photo, the head takes the classifier. Somebody who never trained gets those of the
bundle: the prompts the server has for strangers, and the mean of the clients' classifiers.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn

from cloud_train.backbones import create_backbone, preprocessing_of
from cloud_train.errors import UsageError
from cloud_train.methods.delegated_vit import DelegatedViT
from cloud_train.methods.prompts import PromptedViT
from edge.manifest import Tensor as TensorSpec
from export.checkpoint import Checkpoint
from export.program import TorchProgram

PROMPTS, WEIGHT, BIAS = "prompts", "classifier_weight", "classifier_bias"


class PersonalClassifier(nn.Module):
    """The last layer alone, its numbers given, with the outputs that every head gives."""

    def forward(self, feature: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        """feature (1, D), weight (C, D), bias (C,) -> three times the logits (1, C), attention (1, 1) to the photo
        itself, trust (1,): 0."""
        # Reshaped, not indexed: indexing is left to the processor by XNNPACK.
        logits = torch.bmm(weight.reshape(1, *weight.shape), feature.reshape(1, -1, 1)).reshape(1, -1) + bias
        # As in export.bank.Classifier: computed, because constants and one value as several outputs are not taken.
        attention = feature[:, :1].softmax(dim=1)
        nothing = 1.0 - attention
        return logits, logits + nothing, logits * attention, attention, nothing.reshape(-1)


class _Named(nn.Module):
    """A layout under the name that int8 may take the weights of."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, photo: Tensor, prompts: Tensor) -> Tensor:
        found: Tensor = self.network(photo, prompts)
        return found


def prompted_encoder(checkpoint: Checkpoint) -> TorchProgram:
    """``prompted_encoder``: a frozen vision transformer whose prompts are an input.

    It gives the feature alone: a photo's signature, which other encoders add, is for a gate, and there is none.
    """
    config = checkpoint.card.config
    preprocessing = preprocessing_of(config)
    backbone = create_backbone(config["name"], 0, preprocessing, **config["arguments"])
    weights = dict(checkpoint.weights)
    prompts = weights.pop(PROMPTS)
    backbone.network.load_state_dict(weights)
    side = preprocessing.crop
    prompted = PromptedViT(backbone.network, 0)
    del prompted.prompts.tokens  # they are given
    layouts: dict[str, nn.Module] = {}
    with contextlib.suppress(UsageError):  # then ExecuTorch leaves more to its portable kernels
        layouts["executorch"] = _Named(DelegatedViT(prompted)).eval()
    return TorchProgram(
        role="encoder",
        module=prompted.eval(),
        layouts=layouts,
        inputs=(
            TensorSpec(name="photo", dtype="float32", shape=("batch", 3, side, side)),
            TensorSpec(name=PROMPTS, dtype="float32", shape=tuple(prompts.shape)),
        ),
        outputs=(TensorSpec(name="feature", dtype="float32", shape=("batch", backbone.width)),),
        identity=checkpoint.identity,
        preprocessing=preprocessing,
        quantisable=("network",),
        defaults={PROMPTS: prompts},
    )


def personal_classifier(checkpoint: Checkpoint) -> TorchProgram:
    """``personal_classifier``: a head whose linear layer is an input."""
    weight, bias = checkpoint.weights[WEIGHT], checkpoint.weights[BIAS]
    classes, width = weight.shape
    answers: dict[str, tuple[int, ...]] = dict.fromkeys(("plain_logits", "calibrated_logits", "logits"), (1, classes))
    outputs = answers | {"attention": (1, 1), "trust": (1,)}
    return TorchProgram(
        role="head",
        module=PersonalClassifier().eval(),
        inputs=(
            TensorSpec(name="feature", dtype="float32", shape=(1, width)),
            TensorSpec(name=WEIGHT, dtype="float32", shape=(classes, width)),
            TensorSpec(name=BIAS, dtype="float32", shape=(classes,)),
        ),
        outputs=tuple(TensorSpec(name=name, dtype="float32", shape=shape) for name, shape in outputs.items()),
        identity=checkpoint.identity,
        personalisation={
            "method": str(checkpoint.card.training["method"]),
            "window": 0,
            "gate": "none",
            "form": "none",
            "carrier": "inputs",
        },
        defaults={WEIGHT: weight, BIAS: bias},
    )
