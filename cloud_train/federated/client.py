"""The client's side of a method, free of any engine: tensors and photos in, tensors out.

One participant serves any number of virtual clients, one after the other: it holds one network and puts each client's
tensors into it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from refocus.cloud_train.data.image_tensors import Features, Photos
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.federated.local_training import ClientRecipe, ClientStep
from refocus.cloud_train.federated.methods import Method, PeftSizes
from refocus.cloud_train.federated.parameters import ClientNetwork, Tensors, names_in, on, put, taken, tensors_of
from refocus.cloud_train.federated.recorded_steps import RecordedSteps
from refocus.cloud_train.federated.server import GeneratorRecipe, MeanServer, PromptServer, Reply, Server
from refocus.cloud_train.settings import Count

_BATCH = 512


def default_device() -> str:
    """Where clients train: a CUDA GPU where PyTorch finds one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Recipe:
    """How clients and server train together.

    Attributes:
        rounds: T.
        participation: share of the clients that train in a round.
        steps: gradient steps of a client in a round, body and classifier together, the same for every method; 0: each
            method trains the epochs of its own recipe. Of APFL a step moves two models, of Per-FedAvg it looks ahead.
        watch: rounds between two looks at the validation photos.
        keep: the "last" round, or of those that were looked at the "best" on validation photos.
        full: of methods that train the whole network.
        parts: of methods that train a few tensors on a frozen body.
        features: of methods that train on the features of a frozen tower; the paper: Adam, 5e-5 to 5e-3.
        sizes: of what is inserted.
        generator: how pFedPG's server learns.
    """

    rounds: Count = 20
    participation: Annotated[float, Meta(gt=0, le=1)] = 1.0
    steps: Annotated[int, Meta(ge=0)] = 0
    watch: Count = 5
    keep: Literal["last", "best"] = "last"
    full: ClientRecipe = field(default_factory=lambda: ClientRecipe(epochs=2, learning_rate=0.05))
    parts: ClientRecipe = field(default_factory=lambda: ClientRecipe(epochs=2, learning_rate=0.25))
    features: ClientRecipe = field(
        default_factory=lambda: ClientRecipe(
            epochs=1, batch=32, learning_rate=0.001, weight_decay=0.02, optimiser="adam"
        )
    )
    sizes: PeftSizes = field(default_factory=PeftSizes)
    generator: GeneratorRecipe = field(default_factory=GeneratorRecipe)

    def of(self, method: Method) -> ClientRecipe:
        """How clients train by a method.

        Raises:
            UsageError: steps are given, and methods take mini-batches of different sizes.
        """
        if self.steps and len({self.full.batch, self.parts.batch, self.features.batch}) > 1:
            raise UsageError(
                f"recipe.steps = {self.steps} makes budgets equal, and full.batch, parts.batch and features.batch are"
                f" {self.full.batch}, {self.parts.batch} and {self.features.batch}; set all three alike, such as 16"
            )
        own = self.full if method.full else self.features if method.tower else self.parts
        return replace(own, steps=self.steps)


class Participant:
    """A method on a network.

    Args:
        build: makes the network, the same for every client of a seed.
        seed: of the run; what a client draws depends on it, its name and the round alone, so an engine that was stopped
            or asks clients in another order gets the same.
        cache: features of photos by what encoded them, shared among participants with the same frozen encoder.
        device: where clients train; default: a CUDA GPU where there is one. What is sent, kept or cached is on the CPU.
    """

    def __init__(
        self,
        method: Method,
        build: Callable[[], ClientNetwork],
        recipe: Recipe,
        seed: int,
        cache: dict[int, tuple[Photos, Features]] | None = None,
        device: str = "",
    ) -> None:
        self.method, self.seed = method, seed
        self.network = build().eval().to(device or default_device())
        self.recipe = recipe.of(method)
        self.own = names_in(self.network, method.own)
        self.shared = [name for name in names_in(self.network, method.shared) if name not in set(self.own)]
        self._first = self._taken([*self.shared, *self.own])
        self._cache = {} if cache is None else cache
        self._on_gpu: dict[int, tuple[Photos, Photos]] = {}
        self._recorded = RecordedSteps(self.network) if self.network.device.type == "cuda" else None

    def _taken(self, names: list[str]) -> Tensors:
        """Copies of some tensors, on the CPU."""
        return on(taken(self.network, names), "cpu")

    def seen(self, photos: Photos) -> Photos | Features:
        """Training input of the method: photos, or their cached features if the encoder is frozen."""
        if not self.method.on_features:
            return self._near(photos)
        known = self._cache.get(id(photos))
        if known is None:  # the photos stay referenced, so their id is nobody else's
            known = self._cache[id(photos)] = (photos, Features(encoded(self.network, photos), photos.label))
        return known[1]

    def _near(self, photos: Photos) -> Photos:
        """Photos on the GPU where clients train, copied there once."""
        device = self.network.device
        if device.type == "cpu":
            return photos
        known = self._on_gpu.get(id(photos))
        if known is None:  # the photos stay referenced, so their id is nobody else's
            there = replace(photos, pixels=photos.pixels.to(device), label=photos.label.to(device))
            known = self._on_gpu[id(photos)] = (photos, there)
        return known[1]

    def right(self, network: ClientNetwork, photos: Photos) -> np.ndarray:
        """(R,) whether each photo is recognised."""
        return self.logits(network, photos).argmax(1) == photos.label.numpy()

    def logits(self, network: ClientNetwork, photos: Photos) -> np.ndarray:
        """(R, C) of photos, through their features where these are kept."""
        return answers(network, self.seen(photos)).numpy()

    def trained(self) -> Tensors:
        """What clients train, as it is at the start: parameters without running statistics."""
        own = tensors_of(self.network)
        return {name: value for name, value in self._first.items() if isinstance(own[name], torch.nn.Parameter)}

    def storage(self, state: Tensors) -> int:
        """Numbers that a client keeps on its device: its network, and what the method keeps besides."""
        own = tensors_of(self.network)
        return sum(value.numel() for value in [*own.values(), *(v for n, v in state.items() if n not in own)])

    def server(self, clients: list[str], recipe: Recipe) -> Server:
        """The server's side, as it is before the first round."""
        shared = {name: self._first[name] for name in self.shared}
        if self.method.server == "mean":
            return MeanServer(shared)
        [(name, tokens)] = shared.items()
        return PromptServer(name, tokens, clients, self.method.server, recipe.generator, self.seed)

    def local_update(
        self, client: str, number: int, payload: Tensors, state: Tensors, photos: Photos
    ) -> tuple[Reply, Tensors]:
        """One client's round.

        Args:
            number: of the round.
            payload: what the server gave.
            state: what the client kept; empty in its first round.

        Returns:
            What it sends, and what it keeps.
        """
        job = self._job(client, number, payload, state, photos)
        self.method.update(job)
        reply = Reply(self._taken(self.shared), len(photos), job.progress)
        return reply, {**on(job.state, "cpu"), **self._taken(self.own)}

    def personal(self, client: str, number: int, payload: Tensors, state: Tensors, photos: Photos) -> ClientNetwork:
        """The network that a client uses, after what its method does before that; valid until the next call."""
        self.method.before_use(self._job(client, number, payload, state, photos))
        return self.network

    def received(self, payload: Tensors, state: Tensors) -> ClientNetwork:
        """The network with what was received and what is the client's own, as it is; valid until the next call."""
        self._put(payload, state)
        return self.network

    def _put(self, payload: Tensors, state: Tensors) -> None:
        own = {name: value for name, value in state.items() if name in set(self.own)}
        put(self.network, self._first | own | payload)

    def _job(self, client: str, number: int, payload: Tensors, state: Tensors, photos: Photos) -> ClientStep:
        self._put(payload, state)
        rng = np.random.default_rng((self.seed, number, zlib.crc32(client.encode())))
        others = {name: value for name, value in state.items() if name not in set(self.own)}
        others, seen = on(others, self.network.device), self.seen(photos)
        return ClientStep(
            self.network,
            self.shared,
            self.own,
            seen,
            self.recipe,
            rng,
            self.method.loss,
            others,
            recorded=self._recorded,
        )

    def training_flops(self, photos: Photos) -> float:
        """Floating-point operations of one photo, forward and back through what is trained, of a step."""
        learned = {id(tensors_of(self.network)[name]) for name in (*self.shared, *self.own)}
        for parameter in self.network.parameters():
            parameter.requires_grad_(id(parameter) in learned)
        with FlopCounterMode(display=False) as counter:
            logits = self.network(self.seen(photos).batch(np.arange(2)).to(self.network.device))
            if logits.requires_grad:
                logits.sum().backward()
        self.network.requires_grad_(True).zero_grad(set_to_none=True)
        return counter.get_total_flops() / 2


def answers(network: ClientNetwork, photos: Photos | Features) -> Tensor:
    """(R, C) logits of all photos, on the CPU."""
    return _of_all(network, photos, network.device)


def encoded(network: ClientNetwork, photos: Photos) -> Tensor:
    """(R, D) features of all photos, on the CPU."""
    return _of_all(network.encode, photos, network.device)


@torch.no_grad()
def _of_all(function: Callable[[Any], Tensor], photos: Photos | Features, device: torch.device) -> Tensor:
    rows = torch.arange(len(photos)).split(_BATCH)
    return torch.cat([function(photos.batch(part).to(device)).cpu() for part in rows])
