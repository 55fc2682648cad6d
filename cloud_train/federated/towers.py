"""An image tower in the space of sentences, as CLIP's: a frozen published encoder and one linear map behind it.

Zhai et al., "LiT: Zero-Shot Transfer with Locked-image Text Tuning", CVPR 2022, locks the image tower and learns the
text's; here the sentence encoder is locked too, and the map between them is learned, on photos of classes that the
federation does not tell apart.

Notation: N photos, D width of the encoder's feature, E width of a sentence, C classes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from refocus.cloud_train.backbones.backbone import Backbone
from refocus.cloud_train.backbones.feature_cache import extract
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.progress import say
from refocus.cloud_train.settings import Count, NotNegative, Positive

FEWEST_CLASSES = 10


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


def foreign_classes(table: PhotoTable, classes: Sequence[str], most: int) -> PhotoTable:
    """Training photos of classes whose names neither contain one of ``classes`` nor are contained in one.

    Names are compared in small letters without spaces, so "back_pack" is "backpack", and "keyboard" is not foreign
    where "computer keyboard" is told apart.

    Args:
        most: photos of a class, the first ones.

    Raises:
        DataError: fewer than ten classes are left.
    """
    taken = [_letters(name) for name in classes]
    foreign = [
        number
        for number, name in enumerate(table.classes)
        if not any(one in _letters(name) or _letters(name) in one for one in taken)
    ]
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
        table: photos of classes that nobody is judged by.
        texts: (C, E) of their sentences.
        scale: of the cosines.
        folder: of cached features.
    """
    features = torch.from_numpy(np.ascontiguousarray(extract(encoder, table, folder).take()))
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
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
    say(f"map to sentences: {len(features)} photos of {len(texts)} other classes, {steps} steps, loss {loss:.3f}")
    return made.requires_grad_(False)
