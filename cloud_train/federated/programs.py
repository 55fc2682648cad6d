"""A federated client's model as two programs that all clients share.

What is a client's own comes in as inputs (prompts beside the photo, classifiers and attention over features beside the
feature), or stands in the place of the encoder's own tensors (adapters, prefixes, attention, norms, whole networks).
Somebody who never trained gets what the bundle has.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from refocus.cloud_train.backbones.backbone import create_backbone, preprocessing_of
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.federated.methods import PeftSizes, find_method
from refocus.cloud_train.federated.parameters import Tensors
from refocus.cloud_train.federated.towers import ConvexMap, put_classifier
from refocus.cloud_train.methods.peft.delegated_vit import DelegatedViT
from refocus.cloud_train.methods.peft.prompts import PromptedViT
from refocus.export.bank import find_folds, fold, folded_structure
from refocus.export.program import (
    Checkpoint,
    TorchProgram,
    answers_without_history,
    head_without_history,
    photo_encoder,
)
from refocus.export.targets.external_weights import fill_with_probes

PROMPTS, WEIGHT, BIAS = "prompts", "classifier_weight", "classifier_bias"
TEXTS = "texts"
ATTAI = ("attai_0_weight", "attai_0_bias", "attai_2_weight", "attai_2_bias")  # AttAI's two layers


def delivered_form(body: nn.Module) -> nn.Module:
    """A copy of an encoder as devices get it: batch norms folded into the convolutions before them.

    Exporters fold them anyhow, and then nobody could say where a person's tensors are.
    """
    folds = find_folds(body)
    made: nn.Module = folded_structure(body, folds)
    made.load_state_dict(fold(body.state_dict(), folds))
    return made.eval()


class PersonalClassifier(nn.Module):
    """The last layer alone, its numbers given, with the outputs that every head gives."""

    def forward(self, feature: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        """feature (1, D), weight (C, D), bias (C,) -> three times the logits (1, C), attention (1, 1) to the photo
        itself, trust (1,): 0."""
        # Reshaped, not indexed: indexing is left to the processor by XNNPACK.
        return answers_without_history(
            torch.bmm(weight.reshape(1, *weight.shape), feature.reshape(1, -1, 1)).reshape(1, -1) + bias, feature
        )


class SentenceClassifier(nn.Module):
    """Cosines of an image feature to the classes' sentences, scaled; before them AttAI, its numbers given, if any.

    Args:
        texts: (C, D), of unit length.
        scale: of the cosines.
    """

    texts: Tensor

    def __init__(self, texts: Tensor, scale: float) -> None:
        super().__init__()
        self.register_buffer("texts", texts)
        self.scale = scale

    def forward(self, feature: Tensor, *attai: Tensor) -> tuple[Tensor, ...]:
        """feature (1, D), attai: none, or weight (D, D), bias (D,), weight (D, D), bias (D,) -> as
        :class:`PersonalClassifier`."""
        x = feature.reshape(1, 1, -1)
        if attai:
            inner = (_given(x, attai[0]) + attai[1]).tanh()
            x = x * (_given(inner, attai[2]) + attai[3]).softmax(dim=-1)
        length = torch.bmm(x, x.permute(0, 2, 1)).sqrt().clamp(min=1e-12)  # as functional.normalize
        return answers_without_history(functional.linear((x / length).reshape(1, -1), self.texts) * self.scale, feature)


def _given(x: Tensor, weight: Tensor) -> Tensor:
    """x (1, 1, D), weight (E, D) -> (1, 1, E): a product that XNNPACK takes where the weight is an input."""
    return torch.bmm(x, weight.permute(1, 0).reshape(1, weight.shape[1], weight.shape[0]))


class _Named(nn.Module):
    """A layout under the name that w8a8 may take the weights of."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, photo: Tensor, prompts: Tensor) -> Tensor:
        return self.network(photo, prompts)


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
    prompted = PromptedViT(backbone.network, 0)
    del prompted.prompts.tokens  # they are given
    layouts: dict[str, nn.Module] = {}
    with contextlib.suppress(UsageError):  # then ExecuTorch leaves more to its portable kernels
        layouts["executorch"] = _Named(DelegatedViT(prompted)).eval()
    given = {PROMPTS: prompts}
    return _encoder(prompted, checkpoint, backbone.width, given, layouts=layouts, quantisable=("network",))


def client_encoder(checkpoint: Checkpoint) -> TorchProgram:
    """``client_encoder``: a body, some or all of whose tensors are each client's own."""
    config = checkpoint.card.config
    body = delivered_form(body_of(config))
    body.load_state_dict(checkpoint.weights)
    names = tuple(config["personal"])
    real = _client_encoder(body, config, checkpoint, names)
    if not names:
        return real
    probed = copy.deepcopy(body)
    fill_with_probes(probed, names)
    return replace(real, probed=_client_encoder(probed, config, checkpoint, names))


def body_of(config: Mapping[str, Any]) -> nn.Module:
    """The network in front of the classifier, as a card says, with fresh weights."""
    method, preprocessing = find_method(config["method"]), preprocessing_of(config)
    backbone = create_backbone(config["name"], config["outputs"], preprocessing, **config["arguments"])
    if config.get("map"):
        put_classifier(backbone.network, ConvexMap(backbone.width, config["map"], config["outputs"]))
    if method.tower or method.insert is None:
        return backbone.network
    return method.insert(backbone.network, PeftSizes(**config["sizes"]))


def _client_encoder(
    body: nn.Module, config: Mapping[str, Any], checkpoint: Checkpoint, names: tuple[str, ...]
) -> TorchProgram:
    layouts: dict[str, nn.Module] = {}
    with contextlib.suppress(UsageError):  # then ExecuTorch leaves more to its portable kernels
        layouts["executorch"] = DelegatedViT(body).eval()
    state = body.state_dict()
    parts = {name for part in (body, *layouts.values()) for name, _ in part.named_children()}
    own = {name: state[name] for name in names}
    return _encoder(body, checkpoint, config["width"], layouts=layouts, quantisable=tuple(sorted(parts)), personal=own)


def _encoder(
    module: nn.Module, checkpoint: Checkpoint, width: int, given: Tensors | None = None, **more: Any
) -> TorchProgram:
    """An encoder of features (B, ``width``) with inputs that are given beside the photo."""
    stated = preprocessing_of(checkpoint.card.config)
    return photo_encoder(module, stated, width, checkpoint.identity, given, **more)


def personal_classifier(checkpoint: Checkpoint) -> TorchProgram:
    """``personal_classifier``: a head whose linear layer is an input."""
    weight, bias = checkpoint.weights[WEIGHT], checkpoint.weights[BIAS]
    return _head(checkpoint, PersonalClassifier(), weight.shape, {WEIGHT: weight, BIAS: bias})


def sentence_classifier(checkpoint: Checkpoint) -> TorchProgram:
    """Head program that classifies by cosine similarity to sentence embeddings, after AttAI if trained."""
    weights = dict(checkpoint.weights)
    texts = weights.pop(TEXTS)
    module = SentenceClassifier(texts, checkpoint.card.config["scale"])
    return _head(checkpoint, module, texts.shape, {name: weights[name] for name in ATTAI if name in weights})


def _head(checkpoint: Checkpoint, module: nn.Module, shape: torch.Size, own: Tensors) -> TorchProgram:
    """A head of ``shape`` (C, D) with inputs of each client's own behind the feature."""
    classes, width = shape
    personalisation = {
        "method": str(checkpoint.card.training["method"]),
        "carrier": checkpoint.card.config["carrier"],
    }
    return head_without_history(module, classes, width, checkpoint.identity, personalisation, own)
