"""The plain classifier: multinomial logistic regression on frozen features, the baseline of every personal head.

Trained to convergence, with the strength of its L2 penalty chosen on validation people: a weak opponent would flatter
what is compared with it. Where photos have several labels it is one logistic regression for each. Its logits are
calibrated by one temperature on the same people (Guo et al., "On calibration of modern neural networks", 2017), folded
into weights and bias. The labels stay the same; the gate, which mixes log-probabilities, would otherwise follow a
history for the confidence that the penalty took from the plain answer.
Notation: R photos, D feature width, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.data.label_loss import label_loss, right
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.progress import say

TEMPERATURES = 0.1, 10.0  # lowest and highest that a calibration may find
_BLOCK = 8192  # photos whose features are in memory at once


@dataclass(frozen=True)
class PlainRecipe:
    """How the plain classifier is trained.

    Attributes:
        l2: candidate weights of the penalty 1/2 |W|^2 beside the mean cross-entropy, strongest first. Features are
            divided by their root mean square, so that they mean the same for every backbone.
        steps: L-BFGS iterations for each candidate, at most.
        tolerance: largest entry of the gradient at which training has converged.
        patience: candidates in a row that are worse on validation people before weaker ones are not tried.
    """

    l2: tuple[float, ...] = (0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
    steps: int = 300
    tolerance: float = 1e-5
    patience: int = 2


@dataclass(frozen=True)
class PlainClassifier:
    """A trained plain classifier.

    Attributes:
        layer: of unscaled features.
        l2: the penalty that was chosen.
        accuracy: share of the validation photos that it recognises; of several labels a photo, the mean share of labels
            that are right.
        cross_entropy: mean over the validation photos, in nats.
        temperature: by which the trained logits were divided.
    """

    layer: nn.Linear
    l2: float
    accuracy: float
    cross_entropy: float
    temperature: float = 1.0


def fit_plain_classifier(
    train: FeatureCache,
    validation: FeatureCache,
    recipe: PlainRecipe = PlainRecipe(),  # frozen
) -> PlainClassifier:
    """Trains the "original backbone" for classes that its own classifier does not know.

    Each penalty starts from the solution of the stronger one before it. The one with the least cross-entropy on
    validation people is chosen.

    Args:
        train, validation: features of clients that do not overlap.

    Raises:
        DataError: no photos, or features that are not finite.
        UsageError: training diverges.
    """
    for name, cache in (("training", train), ("validation", validation)):
        if not len(cache.table):
            raise DataError(f"there are no {name} photos to fit the plain classifier with")
    scale = root_mean_square(train)
    layer = nn.Linear(train.width, len(train.table.classes))
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    best, worse = None, 0
    for l2 in recipe.l2:
        _minimise(layer, train, scale, l2, recipe)
        loss, accuracy = _judge(layer, validation, scale)
        if best is None or loss < best.cross_entropy:
            best, worse = PlainClassifier(copy.deepcopy(layer), l2, accuracy, loss), 0
        else:
            worse += 1
        if worse >= recipe.patience:
            break
    assert best is not None  # noqa: S101  # a recipe has candidates
    with torch.no_grad():
        best.layer.weight /= scale
    best = _calibrated(best, validation)
    say(
        f"plain classifier: {best.accuracy:.1%} of {len(validation.table)} validation photos, L2 {best.l2:g},"
        f" temperature {best.temperature:.3g}"
    )
    return best


def _calibrated(found: PlainClassifier, validation: FeatureCache) -> PlainClassifier:
    """The same classifier with logits divided by the temperature that makes the validation photos' labels likeliest."""
    with torch.no_grad():
        parts = [(found.layer(features), labels) for features, labels in _blocks(validation, 1.0)]
    logits, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    inverse = torch.ones((), requires_grad=True)  # 1 / T: the loss is convex in it
    optimiser = torch.optim.LBFGS([inverse], max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        value = label_loss(logits * inverse, labels)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)
    lowest, highest = TEMPERATURES
    temperature = 1.0 / float(inverse.detach().clamp(1 / highest, 1 / lowest))
    with torch.no_grad():
        found.layer.weight /= temperature
        found.layer.bias.div_(temperature)
        cross_entropy = float(label_loss(logits / temperature, labels))
    return replace(found, temperature=temperature, cross_entropy=cross_entropy)


def _minimise(layer: nn.Linear, train: FeatureCache, scale: float, l2: float, recipe: PlainRecipe) -> None:
    optimiser = torch.optim.LBFGS(
        layer.parameters(),
        max_iter=recipe.steps,
        tolerance_grad=recipe.tolerance,
        tolerance_change=1e-9,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        total = 0.5 * l2 * layer.weight.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        value = total.detach()
        for features, labels in _blocks(train, scale):
            part = label_loss(layer(features), labels, reduction="sum") / len(train.table)
            part.backward()  # type: ignore[no-untyped-call]
            value = value + part.detach()
        return value

    optimiser.step(loss)
    if not all(bool(torch.isfinite(parameter).all()) for parameter in layer.parameters()):
        raise UsageError(
            f"the plain classifier diverges at an L2 penalty of {l2:g}; check the features for extreme values"
            " (--mean and --std of the backbone), or leave weak penalties out"
        )


def plain_accuracy(layer: nn.Linear, cache: FeatureCache) -> float:
    """Share of the photos that a classifier recognises; nan without photos."""
    return _judge(layer, cache, 1.0)[1] if len(cache.table) else float("nan")


@torch.no_grad()
def _judge(layer: nn.Linear, cache: FeatureCache, scale: float) -> tuple[float, float]:
    """Mean cross-entropy and share of right answers."""
    loss, found = 0.0, 0.0
    for features, labels in _blocks(cache, scale):
        logits = layer(features)
        loss += float(label_loss(logits, labels, reduction="sum"))
        found += float(right(logits, labels).sum())
    return loss / len(cache.table), found / len(cache.table)


def root_mean_square(cache: FeatureCache) -> float:
    """Return the root mean square of all features.

    Raises:
        DataError: they are all zero, or not finite.
    """
    total = 0.0
    for features, _ in _blocks(cache, 1.0):
        total += float(features.double().square().sum())
    mean = (total / (len(cache.table) * cache.width)) ** 0.5
    if not 0 < mean < float("inf"):
        raise DataError(
            "the features of the training photos are all zero or not finite: the backbone's weights, or --mean and"
            " --std, do not fit these photos"
        )
    return mean


def _blocks(cache: FeatureCache, scale: float) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(cache.table), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(cache.table)))
        yield torch.from_numpy(cache.take(rows) / np.float32(scale)), torch.from_numpy(cache.table.label[rows])
