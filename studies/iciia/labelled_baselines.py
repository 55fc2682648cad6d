"""Labelled baselines of ICIIA 4.1: per-client fine-tuning, prompt tuning.

Both need labels from every person they serve, which phones do not have; they show the cost of the alternative.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.methods.iciia.train import gather
from refocus.cloud_train.progress import track

Split = tuple[np.ndarray, np.ndarray]  # rows for which a client gives labels, rows for the evaluation


@dataclass(frozen=True)
class LabelledRecipe:
    """Training of a labelled baseline by SGD; the learning rate of the paper."""

    learning_rate: float = 0.01
    epochs: int = 20
    seed: int = 0


_DEFAULT = LabelledRecipe()


def split_labelled(bank: FeatureCache, share: float = 0.5) -> dict[str, Split]:
    """Split each client's photos into labelled ones and later, evaluated ones.

    A client with too few photos for both gets two empty parts and is left out.
    """
    parts = {}
    for name, rows in bank.table.clients():
        cut = round(share * len(rows))
        parts[name] = (rows[:cut], rows[cut:]) if 0 < cut < len(rows) else (rows[:0], rows[:0])
    return parts


def _taking_part(parts: dict[str, Split]) -> dict[str, Split]:
    return {name: (labelled, judged) for name, (labelled, judged) in parts.items() if len(labelled) and len(judged)}


def right_share(classifier: Callable[[torch.Tensor], torch.Tensor], bank: FeatureCache, rows: np.ndarray) -> float:
    """Compute the accuracy of a classifier of features on photos."""
    features, labels = gather(bank, rows)
    with torch.no_grad():
        return float((classifier(features).argmax(-1) == labels).double().mean())


def overall(right: dict[str, float], parts: dict[str, Split]) -> float:
    """Compute the accuracy over all evaluated photos from each client's."""
    sizes = [len(parts[name][1]) for name in right]
    return float(np.average(list(right.values()), weights=sizes))


def _step(optimiser: torch.optim.Optimizer, logits: torch.Tensor, labels: torch.Tensor) -> None:
    optimiser.zero_grad(set_to_none=True)
    functional.cross_entropy(logits, labels).backward()
    optimiser.step()


def fine_tuning(
    bank: FeatureCache,
    plain: nn.Linear,
    parts: dict[str, Split],
    recipe: LabelledRecipe = _DEFAULT,
) -> dict[str, float]:
    """Fine-tune a copy of the last layer on each client's labelled photos.

    The optimiser is SGD with batches of 16 photos.

    Returns:
        Accuracy on the evaluated photos, by client with enough photos.
    """
    torch.manual_seed(recipe.seed)
    parts, right = _taking_part(parts), {}
    for name, (labelled, judged) in track(parts.items(), "fine-tuning", len(parts)):
        layer = copy.deepcopy(plain)
        optimiser = torch.optim.SGD(layer.parameters(), lr=recipe.learning_rate)
        for _ in range(recipe.epochs):
            for rows in np.array_split(labelled[torch.randperm(len(labelled)).numpy()], max(1, len(labelled) // 16)):
                features, labels = gather(bank, rows)
                _step(optimiser, layer(features), labels)
        right[name] = right_share(layer, bank, judged)
    return right


class PromptClassifier(nn.Module):
    """Classifier with one trained prompt per client (section 4.1).

    logits = classifier(feature) + projection(prompt of the client); prompts have D / 2 numbers.
    """

    def __init__(self, plain: nn.Linear, clients: int) -> None:
        super().__init__()
        self.classifier = copy.deepcopy(plain)
        self.prompts = nn.Embedding(clients, plain.in_features // 2)
        self.projection = nn.Linear(plain.in_features // 2, plain.out_features)

    def forward(self, features: torch.Tensor, client: torch.Tensor) -> torch.Tensor:
        """Compute logits (B, C) from features (B, D) and client numbers (B,)."""
        logits: torch.Tensor = self.classifier(features) + self.projection(self.prompts(client))
        return logits


def prompt_tuning(
    bank: FeatureCache,
    plain: nn.Linear,
    parts: dict[str, Split],
    recipe: LabelledRecipe = _DEFAULT,
) -> dict[str, float]:
    """Train all clients' prompts and the shared projection together.

    They are trained on the labelled photos.

    Returns:
        Accuracy on the evaluated photos, by client with enough photos.
    """
    torch.manual_seed(recipe.seed)
    parts = _taking_part(parts)
    number = {name: index for index, name in enumerate(parts)}
    model = PromptClassifier(plain, len(parts))
    optimiser = torch.optim.SGD(model.parameters(), lr=recipe.learning_rate)
    rng = np.random.default_rng(recipe.seed)
    for _ in track(range(recipe.epochs), "prompt tuning", recipe.epochs):
        batches = [
            (name, rows)
            for name, (labelled, _) in parts.items()
            for rows in np.array_split(rng.permutation(labelled), max(1, len(labelled) // 16))
        ]
        for index in rng.permutation(len(batches)):
            name, rows = batches[index]
            features, labels = gather(bank, rows)
            _step(optimiser, model(features, torch.full((len(rows),), number[name])), labels)
    return {
        name: right_share(lambda x, n=number[name]: model(x, torch.full((len(x),), n)), bank, judged)  # type: ignore[misc]
        for name, (_, judged) in parts.items()
    }
