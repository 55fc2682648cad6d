"""Compute and cache points: one training or one rival with one seed.

All points are evaluated on the same photos.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.data.windows import common_length
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate.pairs import Difference, paired
from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig
from refocus.cloud_train.methods.iciia.gate import StatisticsGate, mix
from refocus.cloud_train.methods.iciia.train import (
    HISTORY_LENGTHS,
    Devices,
    DivergedError,
    IciiaRecipe,
    choose_warm_up,
    right_by_history,
    train_iciia,
)
from refocus.cloud_train.methods.iciia.train_gate import (
    GateRecipe,
    answer_windows,
    draw_windows,
    fit_traits,
    train_gate,
)
from refocus.cloud_train.progress import say
from refocus.cloud_train.runs.folder import once
from refocus.cloud_train.runs.iciia import Prepared, Run, usable_lengths
from studies.comparisons import differences

POINT_SCHEMA = 2  # 2: validation accuracy and learning rate are kept
TEST_CLIENTS = 120  # at most; a study has many points
HISTORY = 15


@dataclass(frozen=True)
class Point:
    """Training of a study.

    Attributes:
        name: name in the results.
        iciia: settings of the block.
        recipe: settings of the training; the seed is replaced.
        heterogeneity: share of the clients, in training and evaluation, whose photos have something in common.
        gated: whether to train a gate and evaluate the delivered answers too.
        contents: kinds of histories of a target: "own", "mixed" or "foreign" photos.
    """

    name: str
    iciia: IciiaConfig
    recipe: IciiaRecipe
    heterogeneity: float = 1.0
    gated: bool = False
    contents: tuple[str, ...] = ("own",)


@dataclass
class Bench:
    """A prepared run with what all its points share.

    Attributes:
        targets_per_client: at most.
        windows: examples that each gate is trained on.
    """

    run: Run
    prepared: Prepared
    targets_per_client: int
    windows: int
    _traits: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    @classmethod
    def open(cls, run: Run, targets_per_client: int, windows: int = GateRecipe.windows) -> Bench:
        """Prepare a run's features and classifier on the CPU."""
        return cls(run, run.prepare(Devices(accelerator="cpu").launch()), targets_per_client, windows)

    @cached_property
    def history(self) -> int:
        """Number of photos before each target, in all points.

        It is 15, or the number that most test clients have.

        Raises:
            DataError: most test clients have one photo.
        """
        most = min(HISTORY, common_length(self.split("test").table) - 1)
        if most < 1:
            raise DataError("most test clients have one photo, with none in front of it; a study needs two and more")
        return max(length for length in HISTORY_LENGTHS if length <= most)

    def split(self, name: str, heterogeneity: float = 1.0) -> FeatureCache:
        """Return the features of a split, with clients mixed to a heterogeneity."""
        bank = self.prepared.bank.of_split(name)
        return bank if heterogeneity == 1 else bank.mixed(heterogeneity, seed=self.run.config.data.seed)

    def traits(self) -> tuple[Tensor, Tensor, Tensor]:
        """Fit the traits once; they depend only on the training clients."""
        if not self._traits:
            self._traits.append(fit_traits(self.split("train")))
        return self._traits[0]

    def once(self, what: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Compute a point's result once, and cache it with its key under "about"."""
        about = {
            **what,
            "data": self.prepared.bank.key,
            "clients": self.prepared.bank.table.fingerprint(),
            "targets_per_client": self.targets_per_client,
            "schema": POINT_SCHEMA,
        }
        key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]
        path = self.run.folder / "studies" / "points" / f"{key}.json"
        return once(path, lambda: {**compute(), "about": about})


def targets_of(bank: FeatureCache, per_client: int, history: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose targets in the second half of each client's stream.

    Returns:
        Rows (n, history + 1), the photos before a target and then the target, and the number of each target's client
        (n,).

    Raises:
        DataError: no client has more than ``history`` photos.
    """
    rows, clients = [], []
    for number, (_, stream) in enumerate(bank.table.clients()):
        first = max(history, (len(stream) + 1) // 2)
        for position in (
            sorted({int(p) for p in np.linspace(first, len(stream) - 1, per_client)}) if first < len(stream) else ()
        ):
            rows.append(stream[position - history : position + 1])
            clients.append(number)
    if not rows:
        raise DataError(f"no test client has more than {history} photos in front of a target")
    return np.stack(rows), np.array(clients)


def train_point(bench: Bench, point: Point, seed: int) -> dict[str, Any]:
    """Train and evaluate one point with one seed, unless it is cached.

    Returns:
        ``right``: by content, history length and answer ("plain", "personal", "delivered"), the accuracy of each
            client; ``targets``: number of targets of each client; ``seconds``.
    """
    recipe = replace(point.recipe, seed=seed)
    gate = GateRecipe(seed=seed, windows=bench.windows) if point.gated else None
    about = {
        "iciia": asdict(point.iciia),
        "recipe": asdict(recipe),
        "heterogeneity": point.heterogeneity,
        "gate": gate and gate.as_dict(),
        "contents": list(point.contents),
    }
    return bench.once(about, lambda: _train_and_evaluate(bench, point, recipe, gate))


def _train_and_evaluate(bench: Bench, point: Point, recipe: IciiaRecipe, gate: GateRecipe | None) -> dict[str, Any]:
    started = time.monotonic()
    plain, level = bench.prepared.plain, point.heterogeneity
    train, validation = bench.split("train", level), bench.split("validation", level)
    trained = train_iciia(train, validation, point.iciia, recipe, Devices().launch(), plain)
    trained_gate = None
    if gate is not None:
        trained_gate = train_gate(bench.split("train"), bench.split("gate"), plain, trained.model, gate, bench.traits())
    test = first_clients(bench.split("test", level), TEST_CLIENTS)
    lengths = [length for length in usable_lengths(test.table, point.iciia) if length <= bench.history]
    chosen = targets_of(test, bench.targets_per_client, bench.history)
    right, targets = evaluate_contents(plain, trained.model, trained_gate, test, point.contents, lengths, chosen)
    by_history = right_by_history(trained.model, plain, validation, usable_lengths(validation.table, point.iciia))
    warm_up = choose_warm_up(by_history, point.iciia.receptive_field)
    return {
        "right": right,
        "targets": targets,
        "epoch": trained.best_epoch,
        "warm_up": warm_up,
        "validation": trained.validation[trained.best_epoch],
        "learning_rate": recipe.learning_rate,
        "seconds": round(time.monotonic() - started, 1),
    }


def train_best(bench: Bench, point: Point, seeds: Sequence[int], rates: Sequence[float] = ()) -> list[dict[str, Any]]:
    """Train a point with all seeds at its best learning rate.

    The rate is chosen on the validation clients with the first seed.

    Args:
        bench: features and cache.
        point: the point to train.
        seeds: seeds of the trainings.
        rates: learning rates to choose from; if empty, that of the point's recipe is used.
    """
    best = at_best_rate(bench, point, seeds[0], rates)
    return [train_point(bench, best, seed) for seed in seeds]


def at_best_rate(bench: Bench, point: Point, seed: int, rates: Sequence[float]) -> Point:
    """Return the point with its best learning rate on validation clients.

    Rates at which training diverges are skipped.

    Args:
        bench: features and cache.
        point: the point to tune.
        seed: seed of the trainings.
        rates: learning rates to choose from; if empty, the point is returned unchanged.

    Raises:
        DivergedError: training diverges at all rates.
    """
    if not rates:
        return point
    tried = [replace(point, recipe=replace(point.recipe, learning_rate=rate)) for rate in rates]
    found: list[tuple[float, Point]] = []
    diverged: DivergedError | None = None
    for one in tried:
        try:
            found.append((train_point(bench, one, seed)["validation"], one))
        except DivergedError as error:
            say(f"{point.name}: diverges at {one.recipe.learning_rate:g}")
            diverged = error
    if not found and diverged is not None:
        raise diverged
    return max(found, key=lambda pair: pair[0])[1]


def first_clients(bank: FeatureCache, most: int) -> FeatureCache:
    """Choose at most N clients of a bank, spread over their names."""
    names = np.unique(bank.table.client)
    if len(names) <= most:
        return bank
    chosen = names[np.linspace(0, len(names) - 1, most).astype(int)]
    return bank.rows(np.isin(bank.table.client, chosen))


@torch.no_grad()
def evaluate_contents(
    plain: nn.Linear,
    personal: IciiaClassifier,
    gate: StatisticsGate | None,
    bank: FeatureCache,
    contents: Sequence[str],
    lengths: Sequence[int],
    targets: tuple[np.ndarray, np.ndarray],
) -> tuple[dict[str, Any], list[int]]:
    """Compute the accuracy per client by content, history length and answer.

    Args:
        plain: plain classifier.
        personal: trained block and classifier.
        gate: trained gate, or None.
        bank: features of the clients.
        contents: kinds of histories.
        lengths: history lengths.
        targets: see :func:`targets_of`.

    Returns:
        The accuracies, and the number of targets of each client.
    """
    rows, clients = targets
    used = gate or StatisticsGate(bank.features.shape[1])
    right: dict[str, Any] = {}
    for content in contents:
        windows = rows if content == "own" else with_other_past(bank, rows, content)
        right[content] = {}
        for length in lengths:
            both = answer_windows(plain, personal, used, bank, windows, np.full(len(windows), length))
            answers = {"plain": both.plain, "personal": both.personal}
            if gate is not None:
                answers["delivered"] = mix(both.plain, both.personal, gate.trust(both.statistics, both.valid))
            right[content][str(length)] = {
                name: right_by_client((logits.argmax(-1) == both.labels).numpy(), clients)
                for name, logits in answers.items()
            }
    return right, targets_by_client(clients)


def targets_by_client(clients: np.ndarray) -> list[int]:
    """Count the targets of each client from their client numbers (n,).

    Clients without targets are left out.
    """
    found: list[int] = np.unique(clients, return_counts=True)[1].tolist()
    return found


def right_by_client(right: np.ndarray, clients: np.ndarray) -> list[float]:
    """Average correct predictions (n,) for each client that has targets.

    The order of the clients is that of :func:`targets_by_client`.
    """
    group = np.unique(clients, return_inverse=True)[1]
    return [round(value, 6) for value in (np.bincount(group, weights=right) / np.bincount(group)).tolist()]


def with_other_past(bank: FeatureCache, rows: np.ndarray, content: str) -> np.ndarray:
    """Replace the history of each target by photos that are not its person's.

    All targets of a person get the same history, without the target itself.

    Args:
        bank: features of the clients.
        rows: (n, longest + 1), each target after its own history.
        content: "mixed" or "foreign", see :func:`draw_windows`.
    """
    drawn = draw_windows(bank.table, content, rows.shape[1] - 1, 1, np.random.default_rng(0))
    home = {str(bank.table.client[window[-1]]): window[:-1] for window in drawn}
    past, target = np.stack([home[str(bank.table.client[row[-1]])] for row in rows]), rows[:, -1:]
    past = np.where(past == target, (past + 1) % len(bank.table), past)  # drawn without another of their targets
    return np.concatenate([past, target], axis=1)


def shares(
    points: Sequence[dict[str, Any]], answer: str, content: str = "own", length: int | None = None
) -> list[np.ndarray]:
    """Return the accuracy of each client (clients,), an array per seed.

    The default history length is the longest. "warm_up" is ICIIA's answer after the number of photos that would have
    been chosen for it, and the plain answer before.
    """
    length = length if length is not None else max(int(k) for k in points[0]["right"][content])

    def of(point: dict[str, Any]) -> np.ndarray:
        name = answer if answer != "warm_up" else "personal" if length >= point["warm_up"] else "plain"
        return np.array(point["right"][content][str(length)][name])

    return [of(point) for point in points]


def compare(points: Sequence[dict[str, Any]], answer: str, length: int | None = None) -> Difference:
    """Compute the paired difference of an answer to the plain one over seeds.

    The 95 % interval is over clients.
    """
    rows = differences(shares(points, answer, length=length), shares(points, "plain", length=length))
    return paired(rows, np.array(points[0]["targets"]))


def accuracy_of(points: Sequence[dict[str, Any]], answer: str) -> float:
    """Compute the mean accuracy over seeds after the longest history.

    Every target photo has the same weight.
    """
    return float(np.mean([np.average(row, weights=points[0]["targets"]) for row in shares(points, answer)]))


def seconds_of(points: Sequence[dict[str, Any]]) -> float:
    """Return the seconds of training and evaluation over all seeds."""
    return round(sum(point["seconds"] for point in points), 1)
