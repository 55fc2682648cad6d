"""How a client trains: one function for each way, on a network that holds what was received and what is its own.

Notation: B photos of a batch, C classes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from refocus.cloud_train.data.image_tensors import Features, Photos
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.federated.parameters import ClientNetwork, Tensors, put, taken, tensors_of
from refocus.cloud_train.federated.recorded_steps import RecordedSteps, Step, Told
from refocus.cloud_train.settings import DERIVED, Count, NotNegative, Positive, Share


@dataclass(frozen=True)
class ClientRecipe:
    """How a client trains in one round: SGD, without momentum unless it is asked for.

    Attributes:
        epochs: passes over the client's training photos.
        batch: photos per step.
        learning_rate: of a run, each of its rates in turn.
        weight_decay, momentum: of SGD.
        head_epochs: passes for the classifier alone, where a method trains it apart (FedRep, FedBABU).
        proximal: mu of FedProx.
        mixing: alpha that APFL begins with.
        clip: largest norm of a gradient.
        cosine: the rate falls to nothing along a cosine within a round, for training in one round.
        optimiser: "sgd", or "adam" as FedCLIP's, with its betas; new in every round, so no moments travel.
        steps: gradient steps of a round, body and classifier together, in the place of epochs; 0: epochs count.
    """

    epochs: Count = 5
    batch: Count = 64
    learning_rate: Positive = 0.05
    weight_decay: NotNegative = 0.001
    momentum: NotNegative = 0.0
    head_epochs: Count = 5
    proximal: NotNegative = 0.1
    mixing: Share = 0.5
    clip: Positive = 10.0
    cosine: bool = False
    optimiser: Literal["sgd", "adam"] = "sgd"
    steps: int = field(default=0, metadata=DERIVED)


ABSENT = -20.0  # log of the share of a class that a client has no photo of

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Progress:
    """Mini-batches that a client trained on in a round.

    Attributes:
        steps: mini-batches.
        photos: in them; one that was seen twice counts twice.
    """

    steps: int = 0
    photos: int = 0
    _lost: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    _right: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))

    @property
    def loss(self) -> float:
        """Sum over the photos. Reading it waits for a GPU; noting does not."""
        return float(self._lost)

    @property
    def right(self) -> int:
        """How many photos were recognised, each before its step."""
        return int(self._right)

    def note(self, loss: Tensor, logits: Tensor, label: Tensor) -> None:
        """Counts a mini-batch: its mean loss, logits (B, C) and labels (B,)."""
        self.steps, self.photos = self.steps + 1, self.photos + len(label)
        # The zeros of the beginning lie on the CPU: a number there may be added to a tensor anywhere.
        self._lost = loss.detach().double() * len(label) + self._lost
        self._right = (logits.detach().argmax(1) == label).sum() + self._right


@dataclass
class ClientStep:
    """One client's training.

    Attributes:
        network: holds what was received and the client's own; trained in place.
        shared, own: names of the tensors that travel, and of those that stay; neither is trained in part.
        state: what a way to train keeps besides, by names of its own.
        progress: of this round.
        recorded: steps of this network on a GPU; None: each step starts its kernels one by one.
    """

    network: ClientNetwork
    shared: Sequence[str]
    own: Sequence[str]
    photos: Photos | Features
    recipe: ClientRecipe
    rng: np.random.Generator
    loss: Loss = functional.cross_entropy
    state: Tensors = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    recorded: RecordedSteps | None = None

    @property
    def trained(self) -> list[str]:
        return [*self.shared, *self.own]

    def batches(self, epochs: int, steps: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised photos (B, 3, S, S), or their features (B, D), and labels (B,), every epoch in another order.

        Args:
            steps: mini-batches of at most ``recipe.batch`` photos, in the place of whole epochs.
        """
        each = math.ceil if steps else round
        count = max(1, each(len(self.photos) / self.recipe.batch))
        orders = (self.rng.permutation(len(self.photos)) for _ in (itertools.count() if steps else range(epochs)))
        parts = (part for order in orders for part in np.array_split(order, count))
        rows, device = list(itertools.islice(parts, steps or None)), self.network.device
        # Rows of all mini-batches are copied to a GPU at once: a copy of each would wait for the step before it.
        drawn = torch.from_numpy(np.concatenate(rows)).to(self.photos.label.device)
        for part in drawn.split([len(one) for one in rows]):
            yield self.photos.batch(part).to(device), self.photos.label[part].to(device)

    def kept(self, what: str, tensors: Tensors) -> Tensors:
        """Tensors that steps read besides the network's, at the place where recorded steps look for them."""
        return tensors if self.recorded is None else self.recorded.keep(what, tensors)


Update = Callable[[ClientStep], None]


def together(job: ClientStep) -> None:
    """All that is shared and all that is the client's own, at once."""
    _descend(job, job.trained, job.recipe.epochs)


def nothing(job: ClientStep) -> None:
    """Nothing is trained: the rows that show what was there before."""


def proximal(job: ClientStep) -> None:
    """FedProx (Li et al., MLSys 2020, eq. 2): proximal term (mu / 2) * ||w - w_global||^2."""
    received = job.kept("received", taken(job.network, job.shared))
    own = tensors_of(job.network)

    def pull() -> Tensor:
        ways = [((own[n] - received[n]) ** 2).sum() for n in job.shared if own[n].requires_grad]
        return job.recipe.proximal / 2 * torch.stack(ways).sum()

    _descend(job, job.trained, job.recipe.epochs, more=pull)


def head_first(job: ClientStep) -> None:
    """FedRep (Collins et al., ICML 2021, Alg. 1): the own part with the shared one at rest, then the reverse."""
    half = job.recipe.steps // 2  # of a fixed number of steps; the body gets the odd one
    _descend(job, job.own, job.recipe.head_epochs, half)
    _descend(job, job.shared, job.recipe.epochs, job.recipe.steps - half)


def shared_alone(job: ClientStep) -> None:
    """FedBABU (Oh, Kim and Yun, ICLR 2022): the body alone; the classifier stays as everybody's was at first."""
    _descend(job, job.shared, job.recipe.epochs)


def own_alone(job: ClientStep) -> None:
    """The client's own part on what it received; FedBABU's fine-tuning before a model is used."""
    _descend(job, job.own, job.recipe.head_epochs)


def two_heads(job: ClientStep) -> None:
    """FedRoD (Chen and Chao, ICLR 2022): a generic classifier that is taught as if all classes were as frequent
    (balanced softmax, eq. 5), and the client's own beside it on the same features, whose gradient stays out of them."""
    network, photos = job.network, job.photos
    generic, personal = network.head, network.personal
    if personal is None:
        raise UsageError("FedRoD needs a network with two classifiers")

    counts = torch.bincount(photos.label, minlength=len(tensors_of(generic)["bias"])).float()
    log = torch.where(counts > 0, counts.log(), torch.tensor(ABSENT, device=counts.device))
    prior = job.kept("prior", {"log": log.to(network.device)})["log"]

    def loss(pixels: Tensor, label: Tensor) -> tuple[Tensor, Told]:
        features = network.body(pixels)
        logits = generic(features)
        both = logits.detach() + personal(features.detach())
        of_both = functional.cross_entropy(both, label)
        return functional.cross_entropy(logits + prior, label) + of_both, Told(of_both.detach(), both.detach())

    _descend(job, job.trained, job.recipe.epochs, job.recipe.steps, loss=loss)


def interpolated(job: ClientStep) -> None:
    """APFL (Deng, Kamani and Mahdavi, 2020, Alg. 1): the shared model w, a whole model v of the client's own, and what
    it uses, a v + (1 - a) w, whose a is learned as well. Each mini-batch moves both models.

    Keeps ``v.NAME`` and ``mixing`` in the job's state.
    """
    shared, rate = tensors_of(job.network), job.recipe.learning_rate
    learned = _learned(job, job.shared)
    first = {f"v.{name}": shared[name].detach() for name in learned} | {"mixing": torch.tensor(job.recipe.mixing)}
    begun = {name: job.state.get(name, value).to(job.network.device).clone() for name, value in first.items()}
    kept = job.kept("interpolated", begun)
    own, mixing = {name: kept[f"v.{name}"] for name in learned}, kept["mixing"]

    def step(pixels: Tensor, label: Tensor) -> Told:
        received = taken(job.network, learned)
        _step(job, learned, job.loss(job.network(pixels), label), rate)
        mixed = {n: (mixing * own[n] + (1 - mixing) * received[n]).requires_grad_() for n in learned}
        logits = functional_call(job.network, mixed, (pixels,))
        loss = job.loss(logits, label)
        slopes = _clipped(torch.autograd.grad(loss, [*mixed.values()]), job.recipe.clip)
        # By the chain rule: v's slope is a times the mixture's, a's is the mixture's along v - w.
        along = torch.stack([((own[n] - received[n]) * s).sum() for n, s in zip(learned, slopes, strict=True)]).sum()
        with torch.no_grad():
            for name, slope in zip(learned, slopes, strict=True):
                own[name] -= rate * mixing * slope
            mixing.copy_((mixing - rate * along).clamp(0.0, 1.0))
        return Told(loss.detach(), logits.detach())

    with only(job.network, [shared[name] for name in learned]):
        _repeat(job, ("interpolated", job.recipe), step, (job.recipe.epochs, job.recipe.steps))
    job.state |= {name: value.clone() for name, value in kept.items()}


def interpolate(job: ClientStep) -> None:
    """Puts APFL's mixture into the network: that is the model it is judged by."""
    if "mixing" not in job.state:
        return
    own, mixing = tensors_of(job.network), job.state["mixing"]
    with torch.no_grad():
        for name, value in job.state.items():
            if name.startswith("v."):
                own[name[2:]].copy_(mixing * value + (1 - mixing) * own[name[2:]])


def meta(job: ClientStep) -> None:
    """Per-FedAvg, first order (Fallah, Mokhtari and Ozdaglar, NeurIPS 2020, eq. 7 without the Hessian): the gradient is
    taken where one step on other photos leads: every batch is halved, one half for the step, one for the gradient."""
    own = tensors_of(job.network)
    learned = _learned(job, job.trained)
    values = [own[name] for name in learned]

    def step(pixels: Tensor, label: Tensor) -> Told:
        before, half = taken(job.network, learned), len(label) // 2
        _step(job, learned, job.loss(job.network(pixels[:half]), label[:half]), job.recipe.learning_rate)
        logits = job.network(pixels[half:])
        loss = job.loss(logits, label[half:])
        slopes = torch.autograd.grad(loss, values)
        put(job.network, before)
        _move(values, slopes, job.recipe, job.recipe.learning_rate)
        return Told(loss.detach(), logits.detach())

    with only(job.network, values):
        _repeat(job, ("meta", job.recipe), step, (job.recipe.epochs, job.recipe.steps))


def one_epoch(job: ClientStep) -> None:
    """One pass over the client's photos: how Per-FedAvg's start is made a client's own."""
    _descend(job, job.trained, 1, math.ceil(len(job.photos) / job.recipe.batch) if job.recipe.steps else 0)


@contextmanager
def only(network: ClientNetwork, learned: Sequence[Tensor]) -> Iterator[None]:
    """Gradients for some parameters alone; a module none of whose own are learned is in eval mode, norms among them."""
    chosen = {id(parameter) for parameter in learned}
    for parameter in network.parameters():
        parameter.requires_grad_(id(parameter) in chosen)
    for module in network.modules():
        module.training = any(id(parameter) in chosen for parameter in module.parameters(recurse=False))
    try:
        yield
    finally:
        network.eval().requires_grad_(True)


def _learned(job: ClientStep, names: Iterable[str]) -> list[str]:
    """Those of the names that are parameters; running statistics follow by themselves."""
    own = tensors_of(job.network)
    return [name for name in names if isinstance(own[name], nn.Parameter)]


Objective = Callable[[Tensor, Tensor], tuple[Tensor, Told]]  # of a mini-batch: what is descended, and what is noted


def _descend(
    job: ClientStep,
    names: Iterable[str],
    epochs: int,
    steps: int | None = None,
    more: Callable[[], Tensor] | None = None,
    loss: Objective | None = None,
) -> None:
    """SGD over some tensors of the network, the rest at rest.

    Args:
        steps: instead of epochs, where the recipe counts steps; default: all of the recipe's.
        more: is added to the loss.
        loss: in the place of the job's.
    """
    own, recipe, names = tensors_of(job.network), job.recipe, _learned(job, names)
    learned = [own[name] for name in names]
    if not learned:
        return
    steps = recipe.steps if steps is None else steps
    if recipe.steps and not steps:
        return

    def plain(pixels: Tensor, label: Tensor) -> tuple[Tensor, Told]:
        logits = job.network(pixels)
        found = job.loss(logits, label)
        return found, Told(found.detach(), logits.detach())

    def objective(pixels: Tensor, label: Tensor) -> tuple[Tensor, Told]:
        found, told = (loss or plain)(pixels, label)
        return found if more is None else found + more(), told

    with only(job.network, learned):
        if job.recorded is not None and recipe.optimiser == "sgd" and not recipe.momentum and not recipe.cosine:
            kind = (tuple(names), more is not None, loss is not None, recipe)
            _repeat(job, kind, _plain_sgd(job, learned, objective), (epochs, steps))
            return
        optimiser = _optimiser(learned, recipe)
        whole = steps or epochs * max(1, round(len(job.photos) / recipe.batch))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, whole) if recipe.cosine else None
        for pixels, label in job.batches(epochs, steps):
            found, told = objective(pixels, label)
            job.progress.note(told.loss, told.logits, label)
            optimiser.zero_grad(set_to_none=True)
            found.backward()
            nn.utils.clip_grad_norm_(learned, recipe.clip)
            optimiser.step()
            if schedule is not None:
                schedule.step()


def _repeat(job: ClientStep, what: Hashable, step: Step, length: tuple[int, int]) -> None:
    """One step for each mini-batch; on a GPU it is recorded once and replayed.

    Args:
        what: kind of step: everything that decides what ``step`` does, but for tensors.
        length: epochs and steps.
    """
    for pixels, label in job.batches(*length):
        told = step(pixels, label) if job.recorded is None else job.recorded.step(what, step, pixels, label)
        job.progress.note(told.loss, told.logits, label[-len(told.logits) :])


def _plain_sgd(job: ClientStep, learned: Sequence[Tensor], objective: Objective) -> Step:
    """A step of SGD without momentum."""

    def step(pixels: Tensor, label: Tensor) -> Told:
        found, told = objective(pixels, label)
        slopes = torch.autograd.grad(found, learned, allow_unused=True)
        moved = [(value, slope) for value, slope in zip(learned, slopes, strict=True) if slope is not None]
        _move([v for v, _ in moved], [s for _, s in moved], job.recipe, job.recipe.learning_rate)
        return told

    return step


def _optimiser(learned: Sequence[Tensor], recipe: ClientRecipe) -> torch.optim.Optimizer:
    if recipe.optimiser == "adam":
        return torch.optim.Adam(learned, recipe.learning_rate, (0.9, 0.98), 1e-6, recipe.weight_decay)
    return torch.optim.SGD(learned, recipe.learning_rate, recipe.momentum, weight_decay=recipe.weight_decay)


def _step(job: ClientStep, names: Sequence[str], loss: Tensor, learning_rate: float) -> None:
    """One plain step, by hand: ways to train that look ahead need the tensors before and after it."""
    own = tensors_of(job.network)
    values = [own[name] for name in names]
    _move(values, torch.autograd.grad(loss, values), job.recipe, learning_rate)


@torch.no_grad()
def _move(values: list[Tensor], slopes: Sequence[Tensor], recipe: ClientRecipe, learning_rate: float) -> None:
    moves = list(torch._foreach_mul(values, recipe.weight_decay))
    torch._foreach_add_(moves, _clipped(slopes, recipe.clip))
    torch._foreach_mul_(moves, learning_rate)
    torch._foreach_sub_(values, moves)


def _clipped(slopes: Sequence[Tensor], most: float) -> list[Tensor]:
    norm = torch.stack(torch._foreach_norm(list(slopes))).norm()
    return list(torch._foreach_mul(list(slopes), (most / (norm + 1e-6)).clamp(max=1.0)))
