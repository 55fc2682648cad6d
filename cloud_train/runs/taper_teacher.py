"""The teacher of a TAPER run: a pretrained network, and a classifier for the run's classes on its frozen features.

Its logits of a training photo come from a classifier that did not see this photo: one that did knows its label and says
little else. Notation: R training photos, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch

from refocus.cloud_train.backbones.backbone import Backbone, create_backbone, load_weights
from refocus.cloud_train.backbones.feature_cache import extract
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.methods.iciia.plain_classifier import PlainRecipe, fit_plain_classifier
from refocus.cloud_train.progress import say
from refocus.cloud_train.settings import FilePath, Positive, Share
from refocus.edge.bundle import Preprocessing

FOLDS = 4  # parts of the training photos; the logits of each are by a classifier that was fitted to the others


@dataclass(frozen=True)
class TeacherNetwork:
    """A pretrained timm network from whose logits a bank's networks learn, besides labels.

    Attributes:
        name: timm name; "": no teacher.
        arguments: of ``timm.create_model``.
        checkpoint: its weights, .safetensors; its classifier is left out.
        side: pixels of the square that it sees; it has the photos, not their small copies.
        mean, std: per RGB channel in [0, 1], as its weights expect them.
        weight: of its term in the loss; that of the labels has 1 - weight.
        temperature: by which logits are divided in that term.
    """

    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    checkpoint: FilePath = ""
    side: Annotated[int, msgspec.Meta(ge=8)] = 224
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    weight: Share = 0.5
    temperature: Positive = 2.0


def teacher_of(about: TeacherNetwork) -> Backbone:
    """The teacher's encoder with its weights, tried on one photo of nothing.

    Raises:
        UsageError: it has no weights, or they are not its, or it does not take photos of its side.
    """
    if not about.checkpoint:
        raise UsageError(f"teacher {about.name}: random weights teach nothing; name its weights as teacher.checkpoint")
    contract = Preprocessing(
        resize_shorter=about.side, crop=about.side, mean=about.mean, std=about.std, decoder="pillow-scaled"
    )
    # no classifier: a random one would be in the key of the cached features
    backbone = create_backbone(about.name, 0, contract, **about.arguments)
    load_weights(backbone, Path(about.checkpoint), classifier=False)
    try:
        with torch.no_grad():
            backbone.encoder(torch.zeros(1, 3, about.side, about.side))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise UsageError(f"teacher.side {about.side}: {about.name} does not take such photos ({error})") from None
    return backbone


def teacher_logits(about: TeacherNetwork, table: PhotoTable, features: Path) -> np.ndarray:
    """Logits (R, C) float32 of the training photos, calibrated on the validation photos.

    Args:
        table: the run's photos with their splits.
        features: folder in which the teacher's features are kept.

    Raises:
        DataError: no photos to validate with.
    """
    seen = table.rows(np.flatnonzero(np.isin(table.split, ("train", "validation"))))
    if not (table.split == "validation").any():
        raise DataError(f"teacher {about.name}: there are no validation photos to choose its classifier by")
    bank = extract(teacher_of(about), seen, features)
    train, validation = bank.of_split("train"), bank.of_split("validation")
    recipe = PlainRecipe(l2=(fit_plain_classifier(train, validation).l2,))
    part, logits = _parts(train.table.label), np.empty((len(train.table), len(table.classes)), dtype=np.float32)
    for number in range(FOLDS):
        layer = fit_plain_classifier(train.rows(np.flatnonzero(part != number)), validation, recipe).layer
        rows = np.flatnonzero(part == number)
        with torch.no_grad():
            logits[rows] = layer(torch.from_numpy(train.take(rows))).numpy()
    right = float((logits.argmax(1) == train.table.label).mean())
    say(f"teacher {about.name}: {right:.1%} of {len(logits)} training photos that its classifier had not seen")
    return logits


def _parts(label: np.ndarray) -> np.ndarray:
    """(R,) the part of each photo; the photos of a class are dealt out in turn."""
    part = np.empty(len(label), dtype=int)
    for number in np.unique(label):
        rows = np.random.default_rng(int(number)).permutation(np.flatnonzero(label == number))
        part[rows] = np.arange(len(rows)) % FOLDS
    return part
