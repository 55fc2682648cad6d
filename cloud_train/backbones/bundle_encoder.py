"""The encoder of a bundle that ``refocus export`` made of any network, as a backbone: training goes on from what a
device runs already, and needs neither the network's code nor its weights.

The bundle's fp32 program for ONNX Runtime gives the features. It has no gradients, and needs none: the encoder stays as
it is. A head that is trained on it is exported beside copies of the bundle's own encoders.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor, nn

from refocus.cloud_train.backbones.backbone import Backbone
from refocus.cloud_train.errors import UsageError
from refocus.edge.bundle import Bundle, load_bundle
from refocus.edge.runtimes import load_program
from refocus.export.program import SIGNATURE, Checkpoint, TorchProgram

BUILDER = "bundle_encoder"  # in the entry-point group ``refocus.models``
COPY = "bundle"  # folder beside the checkpoint, which refers to it
_RUNTIME = "onnxruntime"


class BundleEncoder(nn.Module):
    """Normalised pixels (B, 3, side, side) -> rows (B, D + S) by ONNX Runtime; and the network's own classifier."""

    def __init__(self, bundle: Bundle, classifier: nn.Linear | None = None) -> None:
        super().__init__()
        self.program = load_program(bundle, "encoder", _RUNTIME)
        [feature] = self.program.artifact.outputs
        self.head_hidden_size = int(feature.shape[-1]) - SIGNATURE
        self.fixed = isinstance(self.program.artifact.inputs[0].shape[0], int)  # one photo at a time
        self.classifier = classifier

    def get_classifier(self) -> nn.Linear | None:
        return None if self.classifier is None else self.classifier.cpu()

    def forward(self, photo: Tensor) -> Tensor:
        photo = photo.cpu()
        parts = photo.split(1) if self.fixed else (photo,)
        rows = [self.program.run(photo=part.contiguous().numpy())["feature"] for part in parts]
        return torch.cat([torch.from_numpy(row) for row in rows])


@dataclass(frozen=True)
class BundleBackbone(Backbone):
    """The encoder of a bundle.

    Attributes:
        bundle: whose it is.
        labels: C class names of the network's own classifier.
    """

    bundle: Bundle
    labels: tuple[str, ...]

    @property
    def encoder(self) -> Any:
        return self.network


def bundle_backbone(bundle: Bundle) -> BundleBackbone:
    """A bundle's encoder with its network's own classifier, if the bundle has it.

    Raises:
        UsageError: the bundle is not of a network without history, or has no fp32 encoder for ONNX Runtime.
    """
    manifest = bundle.manifest
    head, where = manifest.head(), f"--from {bundle.folder}"
    if manifest.bank is not None or head.personalisation.form != "none" or head.personalisation.carrier != "none":
        raise UsageError(
            f"{where} is not of a network without history; give what refocus export timm:NAME, module:function or"
            " FILE.pt2 wrote"
        )
    encoder = next((a for a in manifest.artifacts if (a.role, a.target) == ("encoder", f"{_RUNTIME}:fp32")), None)
    if encoder is None:
        raise UsageError(f"{where} has no encoder for {_RUNTIME}:fp32; export the network for onnx:fp32 too")
    classifier = None
    if head.classifier is not None:
        weights = load(bytes(bundle.content(head.classifier)))
        classes, width = weights["weight"].shape
        classifier = nn.Linear(width, classes)
        classifier.load_state_dict(weights)
    network = BundleEncoder(bundle, classifier).eval()
    return BundleBackbone(f"bundle {encoder.sha256}", network, manifest.preprocessing, {}, bundle, head.labels)


def keep_bundle(source: Path, checkpoint: Path) -> Bundle:
    """Copies a bundle beside the encoder's checkpoint, whole or not at all: a run needs nothing outside its folder.

    Raises:
        BundleError: it is damaged, or none.
    """
    place = checkpoint.parent / COPY
    if not place.exists():
        bundle, unfinished = load_bundle(source), place.with_name(f".{COPY}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for file in bundle.files():
            (unfinished / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file, unfinished / file)
        unfinished.rename(place)
    return load_bundle(place)


def backbone_beside(checkpoint: Checkpoint) -> BundleBackbone:
    """The backbone of an encoder checkpoint that refers to the bundle beside it.

    Raises:
        UsageError: the bundle is not the one that the checkpoint refers to.
    """
    backbone = bundle_backbone(load_bundle(checkpoint.path.parent / COPY))
    if backbone.name != checkpoint.card.config["name"]:
        raise UsageError(f"{backbone.bundle.folder} is not the bundle that {checkpoint.path} refers to; train again")
    return backbone


def bundle_encoder_program(checkpoint: Checkpoint) -> TorchProgram:
    """``bundle_encoder``: photo (B, 3, side, side) -> feature with signature (B, D + S), of programs that exist."""
    backbone = backbone_beside(checkpoint)
    artifact = backbone.network.program.artifact
    return TorchProgram(
        role="encoder",
        module=backbone.network,
        inputs=artifact.inputs,
        outputs=artifact.outputs,
        identity=artifact.feature_space,
        preprocessing=backbone.preprocessing,
        source=backbone.bundle,
        signed=True,
    )
