"""Training ICIIA on frozen features (ICIIA section 4.1 and appendix A).

Notation: B windows a step, L photos a window, D feature width, C classes.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.data.label_loss import guessing_loss, label_loss, right
from refocus.cloud_train.data.partitions import DEALT, mixed, random_classes
from refocus.cloud_train.data.windows import common_length, windows
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig
from refocus.cloud_train.methods.iciia.plain_classifier import root_mean_square
from refocus.cloud_train.progress import say, track
from refocus.cloud_train.settings import Count, NotNegative, Positive, Share
from refocus.cloud_train.tracking import log_metrics

if TYPE_CHECKING:
    import lightning_fabric

HISTORY_LENGTHS = (0, 1, 2, 3, 5, 8, 15)
RATES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # of the range test
RANGE_STEPS = 20  # of each rate
ALIKE = 0.02  # of the lowest loss: rates whose losses are no further apart are equally good


class DivergedError(UsageError):
    """Report that the loss grew beyond that of guessing.

    Another learning rate may help.
    """


@dataclass(frozen=True)
class IciiaRecipe:
    """Train with SGD on windows of one client.

    Training stops early on validation clients. The defaults are the paper's.

    Attributes:
        learning_rate: of SGD; 0: the largest of ``RATES`` that is good for the first steps on training people.
        momentum: of SGD; the paper: none.
        windows_per_step: windows whose gradients make one step, over all devices.
        epochs: at most.
        patience: epochs without a better validation accuracy before the end.
        clip_norm: gradients above this norm are scaled down (authors' code; not in the text).
        stream: photos in a training stream when attention is causal; the window otherwise.
        mixed: share of the clients whose photos are mixed with each other's, others every epoch; the paper: 0.
        vary_history: some photos of each window are hidden, a random number, so that short histories are learnt too.
        deal_again: pseudo-clients with random classes are others in every epoch.
        draw_again: cut each client's photos into other windows every epoch. The authors' code keeps them fixed.
        steps_per_epoch: at least; photos of few people are cut into windows as often as that takes.
        seed: initial weights, order and dropout.
    """

    learning_rate: NotNegative = 0.01
    momentum: NotNegative = 0.0
    windows_per_step: Count = 1
    epochs: Count = 100
    patience: Count = 10
    clip_norm: Positive = 5.0
    stream: Count = 64
    mixed: Share = 0.0
    vary_history: bool = False
    draw_again: bool = True
    deal_again: bool = True
    steps_per_epoch: Count | None = None
    seed: int = 0


@dataclass(frozen=True)
class Devices:
    """Where training runs; handed to Lightning Fabric.

    Attributes:
        count: processes or GPUs; it starts them, or joins those that torchrun started.
        accelerator: "auto", "cpu", "cuda" or "mps".
        precision: as Lightning Fabric names them, as "32-true" or "bf16-mixed".
    """

    count: Count = 1
    accelerator: str = "auto"
    precision: Any = "32-true"

    def launch(self) -> lightning_fabric.Fabric:
        """Starts (or joins, under torchrun) the processes.

        Raises:
            UsageError: fewer processes came up than were asked for.
        """
        strategy = "ddp" if self.count > 1 else "auto"
        import lightning_fabric  # takes seconds, which a mistake in a setting should not wait for

        fabric = lightning_fabric.Fabric(
            accelerator=self.accelerator, devices=self.count, strategy=strategy, precision=self.precision
        )
        fabric.launch()
        if fabric.world_size != self.count:
            raise UsageError(f"devices.count = {self.count}: {fabric.world_size} processes came up; check the launcher")
        return fabric


@dataclass(frozen=True)
class Trained:
    """The best model of a run and how it was found.

    Attributes:
        validation: accuracy per epoch, before the first one included.
        steps: gradient steps of all epochs.
        learning_rate: that it was trained with.
        losses: of the range test that chose it, by rate; empty where it was given.
    """

    model: IciiaClassifier
    validation: list[float]
    best_epoch: int
    seconds: float
    steps: int
    learning_rate: float
    losses: Mapping[float, float] = field(default_factory=dict)


def train_iciia(
    train: FeatureCache,
    validation: FeatureCache,
    config: IciiaConfig,
    recipe: IciiaRecipe,
    fabric: Any = None,
    plain: nn.Linear | None = None,
) -> Trained:
    """Trains one ICIIA block with its classifier.

    Args:
        train, validation: features of clients that do not overlap.
        fabric: a launched Fabric; default: one device.
        plain: the backbone's classifier; needed if the block's classifier is shared or a residual.

    Raises:
        DataError: no client has enough photos for a window.
        DivergedError: training diverges.
    """
    fabric = fabric or Devices(accelerator="cpu").launch()
    if recipe.windows_per_step % fabric.world_size:
        raise UsageError(
            f"windows_per_step {recipe.windows_per_step} is no multiple of the {fabric.world_size} devices"
        )
    if not recipe.learning_rate:
        return _train_at_chosen_rate(train, validation, recipe, config, fabric, plain)
    model, wrapped, optimiser = _start(train, config, recipe, fabric, plain, _unit_of(train, config))
    rng = np.random.default_rng(recipe.seed)
    length = _stream_length(train, config, recipe)
    # Validation clients may have fewer photos than a training stream; what counts there is only the comparison.
    held_out = windows(validation.table, min(length, common_length(validation.table)))
    best, started = copy.deepcopy(model.state_dict()), time.monotonic()
    history = [accuracy(model, validation, held_out)]
    best_epoch, steps, fixed = 0, 0, None if recipe.draw_again else windows(train.table, length)
    form = "" if config.attention == "full" else f" {config.attention}"
    what = f"iciia P={config.partitions}{form} seed {recipe.seed}"
    log_metrics(what, 0, validation_accuracy=history[0])
    for epoch in track(range(1, recipe.epochs + 1), f"iciia P={config.partitions}", recipe.epochs):
        cut = _cut_again(train, length, recipe, rng) if fixed is None else rng.permutation(fixed)
        losses = _epoch(wrapped, optimiser, fabric, train, cut, recipe)
        loss, steps = sum(losses) / max(1, len(losses)), steps + len(losses)
        if loss > 2 * guessing_loss(train.table):
            raise DivergedError(
                f"training with {config.partitions} partitions diverges: its loss in epoch {epoch} is {loss:.2f}, and"
                f" {guessing_loss(train.table):.2f} by guessing. Nothing is saved. Leave out recipe.learning_rate"
                f" ({recipe.learning_rate:g}), or give a third of it"
            )
        history.append(accuracy(model, validation, held_out))
        log_metrics(what, epoch, loss=loss, validation_accuracy=history[-1])
        if history[-1] > history[best_epoch]:
            best_epoch, best = epoch, copy.deepcopy(model.state_dict())
        if epoch - best_epoch >= recipe.patience:
            break
    model.load_state_dict(best)
    if model.iciia.unit != 1:
        model.iciia.fold_unit()
    seconds = time.monotonic() - started
    say(
        f"iciia P={config.partitions} seed {recipe.seed}: validation {history[0]:.1%} -> {history[best_epoch]:.1%}"
        f" in epoch {best_epoch} of {len(history) - 1}, {seconds:.0f} s"
        + ("" if best_epoch else "; no epoch is better than the start, which is kept")
    )
    return Trained(model.to("cpu").eval(), history, best_epoch, seconds, steps, recipe.learning_rate)


def _start(
    train: FeatureCache, config: IciiaConfig, recipe: IciiaRecipe, fabric: Any, plain: nn.Linear | None, unit: float
) -> tuple[IciiaClassifier, nn.Module, Any]:
    """Return the untrained model and its optimiser.

    A seed always gives the same model on this fabric. Features are divided by ``unit``.
    """
    torch.manual_seed(recipe.seed)
    model = IciiaClassifier(config, len(train.table.classes), plain and copy.deepcopy(plain).to(fabric.device))
    model.iciia.unit = unit
    optimiser = torch.optim.SGD(model.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum)
    wrapped, optimiser = fabric.setup(model, optimiser)
    torch.manual_seed(recipe.seed * 1000 + fabric.global_rank)  # dropout differs between devices
    return model, wrapped, optimiser


def _unit_of(train: FeatureCache, config: IciiaConfig) -> float:
    """Return the number that features are divided by in training."""
    return 1.0 if config.attention == "alone" else root_mean_square(train)


def _train_at_chosen_rate(train: FeatureCache, validation: FeatureCache, recipe: IciiaRecipe, *rest: Any) -> Trained:
    """Train at the rate of a range test.

    Where that diverges later, train at a third of it, and so on.
    """
    config, fabric, plain = rest
    length, rng = _stream_length(train, config, recipe), np.random.default_rng(recipe.seed)
    most = len(_cut_once(train, length, recipe, rng)) // fabric.world_size * fabric.world_size
    recipe = replace(recipe, windows_per_step=min(recipe.windows_per_step, max(fabric.world_size, most)))
    cut = _cut_again(train, length, replace(recipe, steps_per_epoch=RANGE_STEPS), rng)
    cut, losses = cut[: RANGE_STEPS * recipe.windows_per_step], {}
    unit = _unit_of(train, config)  # reads all features, so once for all rates
    for rate in track(RATES, "learning rates", len(RATES)):
        _, wrapped, optimiser = _start(train, config, replace(recipe, learning_rate=rate), fabric, plain, unit)
        found = _epoch(wrapped, optimiser, fabric, train, cut, recipe)
        last = torch.tensor(np.mean(found[-RANGE_STEPS // 3 :]))
        losses[rate] = float(fabric.all_reduce(last, reduce_op="mean"))
        good = min(losses.values()) * (1 + ALIKE)
        if min([*losses.values()][-2:]) > good:
            break  # lower rates only learn more slowly
    rate = next((rate for rate, loss in losses.items() if loss <= good < math.inf), RATES[-1])
    say(f"learning rate {rate:.3g}: " + ", ".join(f"loss {loss:.3g} at {one:.3g}" for one, loss in losses.items()))
    while True:
        try:
            given = replace(recipe, learning_rate=rate)
            return replace(train_iciia(train, validation, config, given, fabric, plain), losses=losses)
        except DivergedError:
            if rate < RATES[-1]:
                raise
            rate /= 3
            say(f"training diverges later; it starts again with a learning rate of {rate:.3g}")


def _cut_again(train: FeatureCache, length: int, recipe: IciiaRecipe, rng: np.random.Generator) -> np.ndarray:
    """Return windows (n, L) of ``steps_per_epoch`` steps or more."""
    found = [_cut_once(train, length, recipe, rng)]
    while sum(map(len, found)) < (recipe.steps_per_epoch or 0) * recipe.windows_per_step:
        found.append(_cut_once(train, length, recipe, rng))
    return np.concatenate(found)


def _cut_once(train: FeatureCache, length: int, recipe: IciiaRecipe, rng: np.random.Generator) -> np.ndarray:
    """Return rows (n, L) of windows.

    Pseudo-clients with random classes are dealt again for every epoch.
    """
    if recipe.deal_again and all(name.startswith(f"{DEALT}/") for name in set(train.table.client.tolist())):
        size = common_length(train.table)
        client = random_classes(train.table.label, size, seed=int(rng.integers(2**31)))
        rows = np.flatnonzero(client != "")
        return rows[windows(replace(train.table.rows(rows), client=client[rows]), length, rng)]
    if not recipe.mixed:
        return windows(train.table, length, rng)
    order, client = mixed(train.table.client, 1 - recipe.mixed, int(rng.integers(2**31)))
    return order[windows(replace(train.table.rows(order), client=client), length, rng)]


def _epoch(
    model: nn.Module, optimiser: Any, fabric: Any, bank: FeatureCache, cut: np.ndarray, recipe: IciiaRecipe
) -> list[float]:
    """Take one pass over the windows and return each step's loss in nats.

    An infinite loss ends the pass.
    """
    model.train()
    losses = []
    per_device = recipe.windows_per_step // fabric.world_size
    usable = len(cut) // fabric.world_size * fabric.world_size  # every device takes the same number of steps
    mine = cut[:usable][fabric.global_rank :: fabric.world_size]
    for start in range(0, len(mine), per_device):
        rows = mine[start : start + per_device]
        features, labels = gather(bank, rows, fabric.device)
        shape = labels.shape[:2]
        valid = _some_hidden(labels) if recipe.vary_history else labels.new_ones(shape, dtype=torch.bool)
        loss = label_loss(model(features, valid)[valid], labels[valid])
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            return [math.inf] * len(losses)
        optimiser.zero_grad(set_to_none=True)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimiser, max_norm=recipe.clip_norm, error_if_nonfinite=False)
        optimiser.step()
    return losses


def _some_hidden(labels: Tensor) -> Tensor:
    """Return which photos of each window exist, (B, L).

    The newest ones, from 1 to L of them.
    """
    length = labels.shape[1]
    kept = torch.randint(1, length + 1, (len(labels), 1), device=labels.device)
    return torch.arange(length, device=labels.device) >= length - kept


def _stream_length(bank: FeatureCache, config: IciiaConfig, recipe: IciiaRecipe) -> int:
    if config.attention != "causal":
        return config.window
    return max(config.window, min(recipe.stream, common_length(bank.table)))


def gather(bank: FeatureCache, rows: np.ndarray, device: Any = "cpu") -> tuple[Tensor, Tensor]:
    """Return features (B, L, D) and labels of row indices (B, L).

    Labels are (B, L), or (B, L, C) of photos with several.
    """
    features = torch.from_numpy(bank.take(rows.ravel())).view(*rows.shape, -1)
    return features.to(device), torch.from_numpy(bank.table.label[rows]).to(device)


@torch.no_grad()
def accuracy(model: IciiaClassifier, bank: FeatureCache, cut: np.ndarray, batch: int = 64) -> float:
    """Return the share of photos recognised together by window.

    As in the paper's Table 3.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    found = 0.0
    for start in range(0, len(cut), batch):
        features, labels = gather(bank, cut[start : start + batch], device)
        found += float(right(model(features), labels).sum())
    model.train(was_training)
    return found / cut.size


@torch.no_grad()
def right_by_history(
    model: IciiaClassifier, plain: nn.Linear, bank: FeatureCache, lengths: tuple[int, ...], targets_per_client: int = 8
) -> dict[int, tuple[float, float]]:
    """Return the accuracy of (plain, personal) by history length.

    All targets have the same photos before them.
    """
    window = model.iciia.config.receptive_field
    longest = max(lengths)
    rows = [
        client_rows[position - longest : position + 1]
        for _, client_rows in bank.table.clients()
        for position in spread(longest, len(client_rows), targets_per_client)
    ]
    if not rows:
        raise UsageError(f"no client has {longest + 1} photos; a history of {longest} cannot be evaluated")
    cut = np.stack(rows)
    result = {}
    for length in lengths:
        features, labels = gather(bank, cut[:, longest - min(length, window - 1) :])
        answers = [model.last(part, torch.ones(part.shape[:2], dtype=torch.bool))[0] for part in features.split(128)]
        personal = right(torch.cat(answers), labels[:, -1]).double().mean()
        result[length] = float(right(plain(features[:, -1]), labels[:, -1]).double().mean()), float(personal)
    return result


def spread(first: int, end: int, count: int) -> list[int]:
    """At most ``count`` positions in [first, end), evenly spread."""
    return sorted({int(p) for p in np.linspace(first, end - 1, count)}) if end > first else []


def choose_warm_up(by_history: dict[int, tuple[float, float]], window: int) -> int:
    """Return the shortest history from which ICIIA is never behind.

    The comparison is with the plain classifier on validation clients.

    The paper's remedy for a cold start (section 4.2): until then the plain classifier answers. If no length will do,
    the result is longer than the window, so that the plain classifier always answers.
    """
    warm_up = window + 1
    for length in sorted(by_history, reverse=True):
        plain, personal = by_history[length]
        if personal < plain:
            break
        warm_up = length
    return warm_up
