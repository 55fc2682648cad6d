"""An image tower in the space of sentences, as CLIP's: a published encoder and a map from its features to sentences.

The map is one of two, and knows nothing of the classes that the federation tells apart:

- linear, learned on photos of other classes. Zhai et al., "LiT: Zero-Shot Transfer with Locked-image Text Tuning", CVPR
  2022, locks the image tower and learns the text's; here both are locked and the map between them is learned.
- the mean of other classes' sentences, weighted by their probabilities under the checkpoint's own classifier (Norouzi
  et al., "Zero-Shot Learning by Convex Combination of Semantic Embeddings", ICLR 2014). Nothing is learned.

Notation: N photos, D width of the encoder's feature, E width of a sentence, C classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from refocus.cloud_train.backbones.backbone import Backbone, classifier_name
from refocus.cloud_train.backbones.feature_cache import extract
from refocus.cloud_train.data.label_loss import descend
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.progress import say
from refocus.cloud_train.settings import Count, NotNegative, Positive

FEWEST_CLASSES = 10
Encode = Callable[[Sequence[str]], Tensor]


@dataclass(frozen=True)
class MapRecipe:
    """AdamW with a cosine on the cross-entropy of cosines to sentences.

    Attributes:
        photos: of a class, at most.
        epochs: passes over all features.
        batch: features per step.
        learning_rate, weight_decay: of AdamW.
    """

    photos: Count = 60
    epochs: Count = 30
    batch: Count = 256
    learning_rate: Positive = 0.002
    weight_decay: NotNegative = 0.05


class ConvexMap(nn.Sequential):
    """Features (B, D) -> (B, E): sentences of C classes, weighted by their probabilities.

    Args:
        width: D.
        classes: C.
        sentence: E.
    """

    def __init__(self, width: int, classes: int, sentence: int) -> None:
        super().__init__(nn.Linear(width, classes), nn.Softmax(dim=1), nn.Linear(classes, sentence, bias=False))


def convex_map(classifier: nn.Linear, names: Sequence[str], classes: Sequence[str], texts: Encode) -> ConvexMap:
    """The map of a checkpoint's classifier without the classes that the federation tells apart.

    Args:
        classifier: of the checkpoint, D -> all its classes.
        names: of these.
        classes: of the federation; whatever has a like name is left out (:func:`are_foreign`).
        texts: sentences (C, E) of names.

    Raises:
        UsageError: the names are not as many as the classifier has classes.
    """
    if len(names) != classifier.out_features:
        raise UsageError(
            f"tower_classes names {len(names)} classes, and the checkpoint's classifier has {classifier.out_features}"
        )
    kept = [number for number, foreign in enumerate(are_foreign(names, classes)) if foreign]
    found = texts([names[number] for number in kept])
    made = ConvexMap(classifier.in_features, len(kept), found.shape[1])
    with torch.no_grad():
        weight, bias, mixed = made.parameters()
        weight.copy_(classifier.weight[kept])
        bias.copy_(classifier.bias[kept])
        mixed.copy_((found - found.mean(0)).T)  # all sentences share a direction that says nothing
    return made


def put_classifier(network: Any, classifier: nn.Module) -> None:
    """Replaces the classifier of a timm network."""
    network.set_submodule(classifier_name(network), classifier)


def classes_of_map(network: Any, weights: Mapping[str, Tensor]) -> int:
    """C of the convex map in weights of a timm network; 0: they have another classifier."""
    mixed = weights.get(f"{classifier_name(network)}.2.weight")
    return 0 if mixed is None else mixed.shape[1]


def class_names(path: Path) -> list[str]:
    """Names of classes, one a line; ``n01440764_tench`` is a tench.

    Raises:
        UsageError: no such file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"tower_classes = {path} cannot be read ({error.strerror}); give names, one a line") from None
    return [re.sub(r"^n\d{8}_", "", line.strip()).replace("_", " ") for line in lines if line.strip()]


def are_foreign(names: Sequence[str], classes: Sequence[str]) -> list[bool]:
    """Of each name, whether it neither contains one of ``classes`` nor is contained in one.

    Names are compared in small letters without spaces, so "back_pack" is "backpack", and "keyboard" is not foreign
    where "computer keyboard" is told apart.
    """
    taken = [_letters(name) for name in classes]
    return [not any(one in _letters(name) or _letters(name) in one for one in taken) for name in names]


def foreign_classes(table: PhotoTable, classes: Sequence[str], most: int) -> PhotoTable:
    """Training photos of classes that the federation does not tell apart (:func:`are_foreign`).

    Args:
        most: photos of a class, the first ones.

    Raises:
        DataError: fewer than ten classes are left.
    """
    foreign = [number for number, one in enumerate(are_foreign(table.classes, classes)) if one]
    if len(foreign) < FEWEST_CLASSES:
        raise DataError(
            f"tower_data: {len(foreign)} of {len(table.classes)} classes are none of the federation's; a map to"
            f" sentences needs {FEWEST_CLASSES} or more"
        )
    usable = table.split != "test" if (table.split != "test").any() else np.ones(len(table), bool)
    rows = [np.flatnonzero((table.label == number) & usable)[:most] for number in foreign]
    place = {number: index for index, number in enumerate(foreign)}
    chosen = table.rows(np.sort(np.concatenate(rows)))
    label = np.array([place[number] for number in chosen.label.tolist()], dtype=np.int64)
    return replace(chosen, label=label, classes=tuple(table.classes[number] for number in foreign))


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def train_map(
    encoder: Backbone, table: PhotoTable, texts: Tensor, scale: float, recipe: MapRecipe, folder: Path
) -> nn.Linear:
    """A linear map (D -> E) under which photos lie next to the sentences of their classes.

    Args:
        table: photos of classes that are not in the test data.
        texts: (C, E) of their sentences.
        scale: of the cosines.
        folder: of cached features.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    features = torch.from_numpy(np.ascontiguousarray(extract(encoder, table, folder, device).take()))
    label, texts = torch.from_numpy(table.label), functional.normalize(texts, dim=1)
    torch.manual_seed(0)
    made = nn.Linear(features.shape[1], texts.shape[1])
    optimiser = torch.optim.AdamW(made.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    steps = recipe.epochs * max(1, len(features) // recipe.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        rows = torch.randint(len(features), (recipe.batch,))
        cosines = functional.normalize(made(features[rows]), dim=1) @ texts.T
        loss = functional.cross_entropy(scale * cosines, label[rows])
        descend(loss, optimiser, schedule)
    say(f"map to sentences: {len(features)} photos of {len(texts)} other classes, {steps} steps, loss {loss:.3f}")
    return made.requires_grad_(False)
