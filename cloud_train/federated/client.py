"""The client's side of a method, free of any engine: tensors and photos in, tensors out.

One participant serves any number of virtual clients, one after the other: it holds one network and puts each client's
tensors into it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.federated.local_training import ClientRecipe, ClientStep
from refocus.cloud_train.federated.methods import Method, PeftSizes
from refocus.cloud_train.federated.parameters import ClientNetwork, Tensors, names_in, put, taken, tensors_of
from refocus.cloud_train.federated.server import GeneratorRecipe, MeanServer, PromptServer, Reply, Server
from refocus.cloud_train.settings import Count

_BATCH = 512


@dataclass(frozen=True)
class Recipe:
    """How clients and server train together.

    Attributes:
        rounds: T.
        participation: share of the clients that train in a round.
        full: of methods that train the whole network.
        parts: of methods that train a few tensors on a frozen body.
        features: of methods that train on the features of a frozen tower; the paper: Adam, 5e-5 to 5e-3.
        sizes: of what is inserted.
        generator: how pFedPG's server learns.
    """

    rounds: Count = 20
    participation: Annotated[float, Meta(gt=0, le=1)] = 1.0
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
        """How clients train by a method."""
        return self.full if method.full else self.features if method.tower else self.parts


class Participant:
    """A method on a network.

    Args:
        build: makes the network, the same for every client of a seed.
        seed: of the run; what a client draws depends on it, its name and the round alone, so an engine that was stopped
            or asks clients in another order gets the same.
    """

    def __init__(self, method: Method, build: Callable[[], ClientNetwork], recipe: Recipe, seed: int) -> None:
        self.method, self.seed = method, seed
        self.network = build().eval()
        self.recipe = recipe.of(method)
        self.own = names_in(self.network, method.own)
        self.shared = [name for name in names_in(self.network, method.shared) if name not in set(self.own)]
        self._first = taken(self.network, [*self.shared, *self.own])

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
        return Reply(taken(self.network, self.shared), len(photos)), {**job.state, **taken(self.network, self.own)}

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
        return ClientStep(self.network, self.shared, self.own, photos, self.recipe, rng, self.method.loss, others)

    def training_flops(self, photos: Photos) -> float:
        """Floating-point operations of one photo, forward and back through what is trained."""
        learned = {id(tensors_of(self.network)[name]) for name in (*self.shared, *self.own)}
        for parameter in self.network.parameters():
            parameter.requires_grad_(id(parameter) in learned)
        with FlopCounterMode(display=False) as counter:
            logits = self.network(photos.batch(np.arange(2)))
            if logits.requires_grad:
                logits.sum().backward()
        self.network.requires_grad_(True).zero_grad(set_to_none=True)
        return counter.get_total_flops() / 2


@torch.no_grad()
def answers(network: ClientNetwork, photos: Photos) -> Tensor:
    """(R, C) logits of all photos."""
    return torch.cat([network(photos.batch(rows)) for rows in torch.arange(len(photos)).split(_BATCH)])


def right(network: ClientNetwork, photos: Photos) -> int:
    """How many photos are recognised."""
    return int((answers(network, photos).argmax(1) == photos.label).sum())
