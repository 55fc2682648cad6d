"""Training the gate on people whose photos taught neither the encoder, nor the classifiers, nor ICIIA.

On their own training photos both answers look better than they are, and a gate learns to believe the wrong one. So
gate clients are a split of their own, and half of what the gate meets is of mixed content: histories drawn from
everybody, and histories of somebody else (a phone that changed hands).

Notation: B windows, L history photos, D feature width, S signature width, K traits, C classes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.data.label_loss import descend, label_loss
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.data.windows import common_length
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.methods.iciia.block import IciiaClassifier
from refocus.cloud_train.methods.iciia.gate import TRAITS, StatisticsGate, mix
from refocus.cloud_train.progress import say, track
from refocus.cloud_train.settings import Count, NotNegative, Positive

Traits = tuple[Tensor, Tensor, Tensor]
CONTENTS = ("own", "mixed", "foreign")


@dataclass(frozen=True)
class GateRecipe:
    """How the gate is trained.

    Attributes:
        kind: "statistics" (:class:`StatisticsGate`), "warm_up" (a fixed count, as the paper says), or "shares": class
            shares decide photo by photo behind a fixed count (:func:`refocus.edge.recognize.beside_head`); untrained.
        fewest: gate clients with fewer than whom "shares" takes the place of "statistics": such a gate would have met
            too few strangers to be relied on.
        windows: examples, shared among the gate clients.
        share: of own, mixed and foreign histories in the loss.
        learning_rate, weight_decay, epochs, batch: of AdamW.
        seed: examples and initial weights; of a run that of its head.
    """

    kind: Literal["statistics", "warm_up", "shares"] = "statistics"
    fewest: NotNegative = 30
    windows: Count = 16_000
    share: tuple[float, float, float] = (0.5, 0.35, 0.15)
    learning_rate: Positive = 3e-3
    weight_decay: NotNegative = 1e-3
    epochs: Count = 30
    batch: Count = 512
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share": list(self.share)}


def draw_windows(
    table: PhotoTable, content: str, longest: int, per_client: int, rng: np.random.Generator
) -> np.ndarray:
    """Targets with what stands before them, as row indices (n, longest + 1), the target last.

    Args:
        content: "own": the client's photos before the target; "mixed": any photos of the table but the target itself;
            "foreign": photos of a client of another domain, or of any other client where domains are not known.

    Raises:
        DataError: fewer than two clients have more than ``longest`` photos.
    """
    people = [rows for _, rows in table.clients() if len(rows) > longest]
    if len(people) < 2:
        raise DataError(
            f"{len(people)} clients have more than {longest} photos; a gate needs at least two: add people, or"
            " choose the gate shares or warm_up (gate.kind)"
        )
    homes = [table.home(rows) for rows in people]
    windows = []
    for person, rows in enumerate(people):
        others = [n for n, home in enumerate(homes) if home != homes[person]] or [
            n for n in range(len(people)) if n != person
        ]
        for position in rng.integers(longest, len(rows), per_client):
            if content == "own":
                past = rows[position - longest : position]
            elif content == "mixed":
                past = rng.integers(len(table) - 1, size=longest)
                past += past >= rows[position]
            else:
                stranger = people[others[rng.integers(len(others))]]
                start = rng.integers(len(stranger) - longest + 1)
                past = stranger[start : start + longest]
            windows.append(np.append(past, rows[position]))
    return np.stack(windows)


@dataclass(frozen=True)
class BothAnswers:
    """Answers of both heads to n targets: logits (n, C), statistics (n, 16), validity of rows (n, L), labels (n,), or
    (n, C) of photos with several."""

    plain: Tensor
    personal: Tensor
    statistics: Tensor
    valid: Tensor
    labels: Tensor


@torch.no_grad()
def answer_windows(
    plain: nn.Linear,
    personal: IciiaClassifier,
    gate: StatisticsGate,
    bank: FeatureCache,
    windows: np.ndarray,
    lengths: np.ndarray,
    batch: int = 128,
) -> BothAnswers:
    """Answers each target with the newest ``lengths`` photos of its window, in PyTorch."""
    slots, parts = windows.shape[1] - 1, []
    for start in range(0, len(windows), batch):
        rows = windows[start : start + batch]
        stored = torch.from_numpy(bank.take_rows(rows.ravel())).view(*rows.shape, -1)
        features, traits = stored[..., : bank.width], gate.traits(stored)
        valid = torch.arange(slots + 1) >= slots - torch.from_numpy(lengths[start : start + batch])[:, None]
        calibrated, attention = personal.last(features, valid)
        alone = plain(features[:, -1])
        statistics = gate.statistics(alone, calibrated, attention, traits[:, -1], traits[:, :-1], valid[:, :-1])
        labels = torch.from_numpy(bank.table.label[rows[:, -1]])
        parts.append((alone, calibrated, statistics, valid[:, :-1], labels))
    return BothAnswers(*(torch.cat(column) for column in zip(*parts, strict=True)))


@torch.no_grad()
def fit_traits(bank: FeatureCache, traits: int = TRAITS) -> Traits:
    """Fisher's discriminants over people: the directions in which people differ most for the spread within each.

    Args:
        bank: photos of people who know nothing of the gate's.
        traits: K.

    Returns:
        centre (D + S,), directions (D + S, K) that make the spread within a person the identity, and the variance of
        people's means along each (K,), never negative.
    """
    rows = torch.from_numpy(bank.take_rows()).double()
    _, client = np.unique(bank.table.client, return_inverse=True)
    person = torch.from_numpy(client)
    counts = torch.bincount(person).double()
    centre, scale = rows.mean(0), rows.std(0).clamp(min=1e-6)
    rows = (rows - centre) / scale
    means = torch.zeros(len(counts), rows.shape[1], dtype=rows.dtype).index_add_(0, person, rows) / counts[:, None]
    within = rows - means[person]
    spread = within.T @ within / max(1, len(rows) - len(counts))
    between = means.T @ means / max(1, len(counts) - 1) - spread / counts.mean()
    # Few photos leave directions without spread, in which everybody would seem unique.
    ridge = 0.005 + 0.05 * rows.shape[1] / len(rows)
    spread += ridge * spread.diagonal().mean() * torch.eye(len(spread), dtype=rows.dtype)
    root = torch.linalg.cholesky(spread)
    half = torch.linalg.solve_triangular(root, between, upper=False)
    values, vectors = torch.linalg.eigh(torch.linalg.solve_triangular(root, half.T, upper=False))
    directions = torch.linalg.solve_triangular(root.T, vectors.flip(1)[:, :traits], upper=True)
    return centre.float(), (directions / scale[:, None]).float(), values.flip(0)[:traits].clamp(min=0).float()


def gate_for(recipe: GateRecipe, bank: FeatureCache, window: int) -> GateRecipe:
    """The recipe of the gate that these gate clients allow; says before the long training if it is another.

    Raises:
        DataError: enough gate clients, but too few photos of each.
    """
    clients = len(np.unique(bank.table.client))
    if recipe.kind != "statistics":
        return recipe
    if clients < recipe.fewest:
        say(
            f"gate: {clients} gate clients are too few to train one (gate.fewest = {recipe.fewest:g}); class shares"
            " decide how far the head is followed, which needs no training"
        )
        return replace(recipe, kind="shares")
    longest = min(window - 1, common_length(bank.table) - 1) if len(bank.table) else 0
    draw_windows(bank.table, "own", longest, 1, np.random.default_rng(0))
    return recipe


def train_gate(
    train: FeatureCache,
    gate_clients: FeatureCache,
    plain: nn.Linear,
    personal: IciiaClassifier,
    recipe: GateRecipe | None = None,
    traits: Traits | None = None,
) -> StatisticsGate:
    """Trains the gate between two finished heads.

    Args:
        train: the training clients; they teach what tells people apart (:func:`fit_traits`), nothing else.
        gate_clients: clients that nothing else was trained on; they teach whom to trust.
        plain, personal: the two heads, left as they are.
        traits: what :func:`fit_traits` found, if it is known already; several gates of a run share it.

    Raises:
        DataError: too few gate clients, or too few photos of each.
    """
    recipe = recipe or GateRecipe()
    torch.manual_seed(recipe.seed)
    several = gate_clients.table.several
    gate = StatisticsGate(train.features.shape[1], several=several)
    for name, value in zip(("centre", "directions", "between"), traits or fit_traits(train), strict=True):
        getattr(gate, name).copy_(value)
    both, weight = _examples(gate_clients, plain, personal.eval(), gate, recipe)
    gate.mean.copy_(both.statistics.mean(0))
    gate.std.copy_(both.statistics.std(0).clamp(min=1e-3))
    optimiser = torch.optim.AdamW(gate.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    for _ in track(range(recipe.epochs), "gate", recipe.epochs):
        for rows in torch.randperm(len(weight)).split(recipe.batch):
            trust = gate.trust(both.statistics[rows], both.valid[rows])
            delivered = mix(both.plain[rows], both.personal[rows], trust, several)
            loss = label_loss(delivered, both.labels[rows], reduction="none")
            descend((weight[rows] * loss).mean(), optimiser)
    say(f"gate: trained on {len(weight)} windows of {len(np.unique(gate_clients.table.client))} gate clients")
    return gate.eval()


def _examples(
    bank: FeatureCache, plain: nn.Linear, personal: IciiaClassifier, gate: StatisticsGate, recipe: GateRecipe
) -> tuple[BothAnswers, Tensor]:
    """Windows of all three contents, and the weight of each in the loss."""
    rng = np.random.default_rng(recipe.seed)
    longest = min(personal.iciia.config.receptive_field - 1, common_length(bank.table) - 1)
    clients = len(np.unique(bank.table.client))
    parts, weights = [], []
    for content, share in track(list(zip(CONTENTS, recipe.share, strict=True)), "gate windows", len(CONTENTS)):
        windows = draw_windows(bank.table, content, longest, max(1, round(share * recipe.windows / clients)), rng)
        lengths = short_more_often(longest, len(windows), rng)
        parts.append(answer_windows(plain, personal, gate, bank, windows, lengths))
        weights.append(torch.full((len(windows),), share / len(windows)))
    weight = torch.cat(weights)
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return BothAnswers(*map(torch.cat, columns)), weight / weight.mean()


def short_more_often(longest: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """History lengths from 1 to ``longest``, uniform in their logarithm: one photo more matters most at the start."""
    return np.floor((longest + 1) ** rng.uniform(size=count)).astype(np.int64).clip(0, longest)
