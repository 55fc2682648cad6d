"""Training TAPER in its three stages (section 3.4), and the baselines it is compared with (Tables 2, 5 and 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.data.label_loss import descend
from refocus.cloud_train.methods.taper.bank import Bases, Layout, MixerPredictor, Taper
from refocus.cloud_train.methods.taper.descriptions import Descriptions
from refocus.cloud_train.methods.taper.tasks import Around, Task, TaskPhotos
from refocus.cloud_train.methods.taper.teacher import Teacher
from refocus.cloud_train.progress import track
from refocus.cloud_train.resume import Unfinished
from refocus.cloud_train.settings import Count, NotNegative, Positive, Share
from refocus.cloud_train.tracking import log_metrics

ROUTING_STEPS, ROUTING_RATE = 400, 1e-3
# Tasks that are described at once, though fewer networks are made: the predictor normalises over descriptions, and over
# eight of them its mixers in training are not those that it gives later. The paper has a task per photo, 128.
DESCRIBED = 64
LARGEST_GRADIENT = 1.0  # norm: mixed statistics normalise nothing, and one step can go far
STEPS_OF_STATISTICS = 0.05  # how fast running statistics follow a task's own photos


@dataclass(frozen=True)
class TaperRecipe:
    """SGD with momentum and weight decay as in the paper; the rate falls along a cosine instead of in steps.

    Attributes:
        momentum, weight_decay: of SGD in all stages; the paper's.
        seed: initial weights, order and tasks; of a run that of its bank.
        epochs: of the three stages; an epoch of stage 2 is one pass over the data, each basis over its shard.
        learning_rate: of the three stages. The paper states that of the first.
        batch: photos per step.
        tasks: tasks per step of stage 3, of ``batch / tasks`` photos each. The paper draws a task per photo; a network
            per task costs the same for all of its photos.
        predictor_rate: of SGD too, for the mixer predictor in stage 3.
        evenness: share of the mixers that is even over all bases before stage 3; 1: the paper's start.
        select: whether the loss of stage 3 is over a task's own classes (ablation 11: over all).
        select_shards: the same of stage 2 and a shard's classes. Over all, a specialist unlearns those that it does not
            see, which is no loss where one specialist sees a whole task, and a great one where several share it.
        clip: whose gradient is clipped to a norm of 1 in stage 3: that of all bases together ("all"), or of each basis
            ("basis"), so that many bases move as far as few.
        any_domain: share of the tasks of stage 3 that are of photos of all domains: descriptions may name none.
        flip: mirror half of the photos while training, in all stages; letters do not allow it.
        shift: move photos by up to so many pixels while training.
        precision: of forward and backward passes of the networks: "fp32", or "bf16", faster on processors and GPUs that
            have its arithmetic. Weights, losses and steps of the optimiser stay fp32.
    """

    epochs: tuple[Count, Count, Count] = (100, 5, 20)
    learning_rate: tuple[Positive, Positive, Positive] = (0.1, 0.05, 0.005)
    batch: Count = 128
    tasks: Count = 8
    momentum: NotNegative = 0.9
    weight_decay: NotNegative = 1e-4
    predictor_rate: Positive = 0.01
    evenness: Share = 0.02
    select: bool = True
    select_shards: bool = False
    clip: Literal["all", "basis"] = "all"
    any_domain: Share = 0.2
    flip: bool = False
    shift: Annotated[int, Meta(ge=0)] = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0

    def autocast(self, device: torch.device) -> AbstractContextManager[Any] | None:
        """The context of a forward pass, where it needs one."""
        return torch.autocast(device.type, torch.bfloat16) if self.precision == "bf16" else None


def cosine(optimiser: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """From nearly nothing up to the full rate over a tenth of the steps, then down along a cosine."""
    warm = max(1, steps // 10)

    def share(step: int) -> float:
        return (step + 1) / warm if step < warm else 0.5 * (1 + np.cos(np.pi * (step - warm) / max(1, steps - warm)))

    return torch.optim.lr_scheduler.LambdaLR(optimiser, share)


def train_generic(
    network: Any,
    photos: Photos,
    recipe: TaperRecipe,
    epochs: float,
    learning_rate: float,
    rows: np.ndarray | None = None,
    what: str = "stage 1",
    select: bool = False,
    unfinished: Path | None = None,
    teacher: Teacher | None = None,
) -> None:
    """Cross-entropy over all classes, and a teacher's say where there is one.

    So are trained stage 1, each basis of stage 2, and the networks TAPER is compared with.

    Args:
        rows: train on these photos only.
        select: over their classes only.
        unfinished: where the state is kept between steps, see :mod:`refocus.cloud_train.resume`.
        teacher: of the photos; the loss is then of both (:func:`loss_of`).
    """
    torch.manual_seed(recipe.seed)
    rows = np.arange(len(photos)) if rows is None else rows
    network.train().to(memory_format=torch.channels_last)
    steps = max(1, round(epochs * len(rows) / recipe.batch))
    optimiser = torch.optim.SGD(network.parameters(), learning_rate, recipe.momentum, weight_decay=recipe.weight_decay)
    schedule = cosine(optimiser, steps)
    rng = np.random.default_rng(recipe.seed)
    state = Unfinished(unfinished, [network], [optimiser], [schedule], [rng])
    batches = islice(_batches(rows, recipe.batch, recipe.seed), state.done, None)
    own = Task(tuple(photos.label[rows].unique().tolist()))
    for step in state.steps(steps, what):
        chosen = next(batches)
        seen = photos.varied(chosen, recipe.flip, recipe.shift, rng)
        with recipe.autocast(seen.device) or nullcontext():
            logits = network(seen)
        loss = loss_of(logits.float(), photos, chosen, own, select, teacher)
        descend(loss, optimiser, schedule)
        log_metrics(what, step + 1, loss=loss.item())
    network.eval().to(memory_format=torch.contiguous_format)


def _batches(rows: np.ndarray, size: int, seed: int) -> Iterator[np.ndarray]:
    rng, size = np.random.default_rng(seed), min(size, len(rows))
    while True:
        order = rng.permutation(rows)
        yield from (order[start : start + size] for start in range(0, len(order) - size + 1, size))


SHARDS = ("classes", "groups", "domains", "both", "nearest")


def shards_of(photos: Photos, bases: int, groups: Sequence[int] | None = None, by: str = "classes") -> list[np.ndarray]:
    """Splits the photos into Q shards, one for each specialist of stage 2.

    Args:
        groups: (C,) super-category of each class, if there are any.
        by: "classes": ranges of classes, neighbours within their super-category; "groups": whole super-categories, as
            many photos in each shard as that allows; "domains": ranges of domains; "both": ranges of the
            super-categories of each domain.
    """
    label, domain = photos.label.numpy(), photos.domain
    if by == "groups":
        return _whole_groups(np.zeros_like(label) if groups is None else np.asarray(groups)[label], bases)
    group = np.zeros(int(label.max()) + 1, dtype=int) if groups is None else np.asarray(groups)
    key = {
        "classes": np.argsort(np.argsort(group, kind="stable"), kind="stable")[label],
        "domains": domain,
        "both": domain * (int(group.max()) + 1) + group[label],
    }[by]
    count = int(key.max()) + 1
    return [np.flatnonzero(key * bases // count == shard) for shard in range(bases)]


def _whole_groups(group: np.ndarray, bases: int) -> list[np.ndarray]:
    """Rows of photos by the super-category (R,) of each: the largest first, always to the shard with fewest photos."""
    names, sizes = np.unique(group, return_counts=True)
    shards: list[list[int]] = [[] for _ in range(bases)]
    photos = np.zeros(bases, dtype=int)
    for number in np.argsort(-sizes, kind="stable"):
        least = int(photos.argmin())
        shards[least].append(int(names[number]))
        photos[least] += sizes[number]
    return [np.flatnonzero(np.isin(group, some)) for some in shards]


def shards_around(photos: Photos, bases: int, distances: np.ndarray, size: int) -> list[np.ndarray]:
    """The photos of Q neighbourhoods of classes, which may overlap: what tasks of the nearest classes ask for.

    Centres are as far from each other as can be, one after the other; a class that is in no neighbourhood joins that of
    its nearest centre, so that every class has a specialist.

    Args:
        distances: (C, C) between classes.
        size: classes of a neighbourhood.
    """
    centres = [int(distances.mean(1).argmin())]
    while len(centres) < min(bases, len(distances)):
        centres.append(int(distances[centres].min(0).argmax()))
    around = [set(np.argsort(distances[centre], kind="stable")[:size].tolist()) for centre in centres]
    for left in set(range(len(distances))) - set().union(*around):
        around[int(distances[centres, left].argmin())].add(left)
    label = photos.label.numpy()
    return [np.flatnonzero(np.isin(label, sorted(classes))) for classes in around]


def train_specialists(
    network: Any,
    generic: Tensor,
    layout: Layout,
    photos: Photos,
    shards: Sequence[np.ndarray],
    recipe: TaperRecipe,
    unfinished: Callable[[int], Path] | None = None,
    teacher: Teacher | None = None,
) -> Tensor:
    """Stage 2: from the generic network (n,), one specialist per shard; (Q, n).

    Args:
        unfinished: where the state of each specialist's training is kept, by its number.
    """
    found = []
    for number, rows in enumerate(shards):
        network.load_state_dict(layout.split(generic), strict=False)
        if len(rows):  # else nobody has such photos, and the basis stays generic
            train_generic(
                network,
                photos,
                replace(recipe, seed=recipe.seed + number),
                recipe.epochs[1],
                recipe.learning_rate[1],
                rows,
                f"seed {recipe.seed}: stage 2, basis {number + 1} of {len(shards)}",
                recipe.select_shards,
                unfinished and unfinished(number),
                teacher,
            )
        found.append(layout.join(network.state_dict()))
    return torch.stack(found)


def train_mixing(
    taper: Taper,
    photos: Photos,
    around: Around,
    by_domain: bool,
    descriptions: Descriptions,
    recipe: TaperRecipe,
    epochs: float,
    what: str = "stage 3",
    watch: Callable[[int, float], None] | None = None,
    unfinished: Path | None = None,
    frozen: bool = False,
    teacher: Teacher | None = None,
) -> None:
    """Stage 3: bases and mixer predictor together, on tasks drawn at random (eq. 2).

    Args:
        watch: is told each step's number and loss.
        unfinished: where the state is kept between steps.
        frozen: the bases stay as they are, running statistics too; the predictor alone is trained.
    """
    torch.manual_seed(recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    index, share = TaskPhotos.of(photos), max(1, recipe.batch // recipe.tasks)
    steps = max(1, round(epochs * len(photos)) // (share * recipe.tasks))
    of_bases = torch.optim.SGD(
        taper.bases.parameters(), recipe.learning_rate[2], recipe.momentum, weight_decay=recipe.weight_decay
    )
    of_predictor = torch.optim.SGD(taper.predictor.parameters(), recipe.predictor_rate, recipe.momentum)
    optimisers = [of_predictor] if frozen else [of_bases, of_predictor]
    taper.bases.requires_grad_(not frozen)
    schedules = [cosine(optimiser, steps) for optimiser in optimisers]
    taper.predictor.train()
    state = Unfinished(unfinished, [taper], optimisers, schedules, [rng])
    for step in state.steps(steps, what):
        described = _draw(index, around, by_domain, recipe, max(DESCRIBED, recipe.tasks), rng)
        tasks = described[: recipe.tasks]
        told = torch.stack([descriptions.of(task) for task in described]).to(taper.bases.weights.device)
        mixers = taper.predictor(told)[: recipe.tasks]
        rows = np.stack([rng.choice(index.rows(task), share) for task in tasks])
        seen = photos.varied(rows.ravel(), recipe.flip, recipe.shift, rng).unflatten(0, rows.shape)
        momentum = 0.0 if frozen else STEPS_OF_STATISTICS
        logits = taper.learn(mixers, seen, momentum, recipe.autocast(seen.device)).float()
        losses = [
            loss_of(found, photos, chosen, task, recipe.select, teacher)
            for found, chosen, task in zip(logits, rows, tasks, strict=True)
        ]
        loss = torch.stack(losses).mean()
        for optimiser in optimisers:
            optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if not frozen:
            _clip(taper.bases.weights, recipe.clip)
        for optimiser, schedule in zip(optimisers, schedules, strict=True):
            optimiser.step()
            schedule.step()
        log_metrics(what, step + 1, loss=loss.item())
        if watch is not None:
            watch(step, loss.item())
    taper.bases.requires_grad_(True)
    taper.eval()


def _clip(weights: nn.Parameter, whose: str) -> None:
    """Limits the gradient of the bases (Q, n), all together or each."""
    if whose == "basis":
        assert weights.grad is not None  # noqa: S101  # after a backward pass
        norm = weights.grad.norm(dim=1, keepdim=True)
        weights.grad *= (LARGEST_GRADIENT / norm.clamp_min(1e-12)).clamp_max(1.0)
    else:
        nn.utils.clip_grad_norm_([weights], LARGEST_GRADIENT)


def route(
    taper: Taper,
    photos: Photos,
    around: Around,
    by_domain: bool,
    descriptions: Descriptions,
    shards: Sequence[np.ndarray],
    recipe: TaperRecipe,
) -> None:
    """Before stage 3: the mixer predictor learns which specialists saw a task's photos in stage 2.

    The paper starts from even mixers. Bases that were specialised for more than a moment average badly, and the loss of
    a badly averaged network does not tell the predictor whom to ask; descriptions and shards do.
    """
    saw_photo = np.zeros((len(photos), len(shards)), dtype=np.float32)  # shards may overlap
    for number, rows in enumerate(shards):
        saw_photo[rows, number] = 1

    def wanted(of_tasks: Sequence[np.ndarray], _: Tensor) -> Tensor:
        saw = np.stack([saw_photo[rows].sum(0) for rows in of_tasks])
        share = torch.from_numpy(saw / saw.sum(1, keepdims=True))
        return ((1 - recipe.evenness) * share + recipe.evenness / len(shards))[:, None]

    teach_mixers(taper, photos, around, by_domain, descriptions, recipe, wanted)


def teach_mixers(
    taper: Taper,
    photos: Photos,
    around: Around,
    by_domain: bool,
    descriptions: Descriptions,
    recipe: TaperRecipe,
    wanted: Callable[[Sequence[np.ndarray], Tensor], Tensor],
) -> None:
    """Trains the mixer predictor alone, from descriptions of random tasks to mixers that are known.

    Args:
        wanted: from the photos of T tasks, as rows of each, and their descriptions (T, E) to mixers (T, M, Q), or
            (T, 1, Q) for all M alike.
    """
    torch.manual_seed(recipe.seed)
    rng, index = np.random.default_rng(recipe.seed), TaskPhotos.of(photos)
    optimiser = torch.optim.Adam(taper.predictor.parameters(), ROUTING_RATE)
    taper.predictor.train()
    for _ in track(range(ROUTING_STEPS), "routing", ROUTING_STEPS):
        tasks = _draw(index, around, by_domain, recipe, DESCRIBED, rng)
        told = torch.stack([descriptions.of(task) for task in tasks])
        mixers = taper.predictor(told)
        target = wanted([index.rows(task) for task in tasks], told)
        loss = -(target * mixers.clamp_min(1e-9).log()).sum(2).mean()
        descend(loss, optimiser)
    taper.predictor.eval()


def _draw(
    index: TaskPhotos, around: Around, by_domain: bool, recipe: TaperRecipe, count: int, rng: np.random.Generator
) -> list[Task]:
    return [index.draw(around, by_domain and rng.random() >= recipe.any_domain, rng) for _ in range(count)]


def task_loss(logits: Tensor, label: Tensor, task: Task, select: bool = True) -> Tensor:
    """Cross-entropy over a task's classes (the selected rows of the classifier), or over all."""
    if not select:
        return functional.cross_entropy(logits, label)
    classes = torch.tensor(task.classes, device=logits.device)
    return functional.cross_entropy(logits[:, classes], torch.searchsorted(classes, label))


def loss_of(
    logits: Tensor, photos: Photos, rows: np.ndarray, task: Task, select: bool = True, teacher: Teacher | None = None
) -> Tensor:
    """The loss by labels, or the weighted sum of it and of the divergence from a teacher.

    Args:
        logits: (B, C).
        rows: (B,) photos that they are of.
    """
    by_labels = task_loss(logits, photos.label[rows], task, select)
    if teacher is None:
        return by_labels
    return (1 - teacher.weight) * by_labels + teacher.weight * teacher.divergence(logits, rows, task, select)


def best_of(logits: Tensor, task: Task) -> Tensor:
    """(B,) the class with the largest logit (B, C) among a task's own."""
    classes = torch.tensor(task.classes)
    return classes[logits[:, classes].argmax(1)]


def personal_networks(taper: Taper, tasks: Sequence[Task], descriptions: Descriptions) -> Iterator[Tensor]:
    """Flat weights (n,) of the condensed network of each task."""
    taper.eval()
    for task in tasks:
        with torch.no_grad():  # not around the yield: it would hold for whoever asks for the next
            [mixers] = taper.predictor(descriptions.of(task)[None])
            flat = taper.personal(mixers)
        yield flat


def start(network: Any, layout: Layout, rows: Tensor, descriptions: Descriptions, norm: str, seed: int = 0) -> Taper:
    """A TAPER whose bases are the rows (Q, n) and whose mixers are still nearly even."""
    torch.manual_seed(seed)
    predictor = MixerPredictor(descriptions.width, layout.mixers, len(rows))
    return Taper(network, Bases(layout, rows), predictor, norm)
