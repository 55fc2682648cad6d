"""What the server knows, and how it makes one of what the clients send.

A server gives each client a payload and takes replies; it never sees a photo, a label or a client's own tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.federated.local_training import Progress
from refocus.cloud_train.federated.parameters import Tensors
from refocus.cloud_train.methods.peft.prompt_generator import PromptBank
from refocus.cloud_train.settings import Count, NotNegative, Positive


@dataclass(frozen=True)
class Reply:
    """What a client sends back: its shared tensors as it trained them, and how many photos it trained on.

    Attributes:
        progress: loss and accuracy of the round, where the engine says them.
    """

    tensors: Tensors
    photos: int
    progress: Progress | None = None


class Server(Protocol):
    """The server's side of a method."""

    def payload(self, client: str) -> Tensors:
        """What a client gets; of one that was never met, what suits a stranger."""

    def aggregate(self, replies: Mapping[str, Reply]) -> None:
        """Learns from the clients of one round."""

    def state(self) -> Tensors:
        """All that must be kept over a restart."""

    def restore(self, state: Tensors) -> None:
        """Resumes from a saved state."""


class MeanServer:
    """One set of tensors for all: the mean of what clients send, weighted by their photos (McMahan et al., 2017).

    Without any it is the server of clients who train alone.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def payload(self, client: str) -> Tensors:
        return {name: value.clone() for name, value in self._tensors.items()}

    def aggregate(self, replies: Mapping[str, Reply]) -> None:
        photos = sum(reply.photos for reply in replies.values())
        if photos:
            self._tensors = {
                name: torch.stack([reply.tensors[name] * (reply.photos / photos) for reply in replies.values()]).sum(0)
                for name in self._tensors
            }

    def state(self) -> Tensors:
        return dict(self._tensors)

    def restore(self, state: Tensors) -> None:
        self._tensors = dict(state)


@dataclass(frozen=True)
class GeneratorRecipe:
    """How pFedPG's server learns: Adam; the paper names no optimiser.

    Attributes:
        learning_rate: alpha of eq. 5.
        inner: l_k and l_v.
        clip: largest norm of its gradient (pFedHN: 50).
        spread: standard deviation of clients' descriptors at the start. With that of prompts, about 0.1, attention is
            even, and forty rounds make a tenth of the differences between clients' prompts that these need.
    """

    learning_rate: NotNegative = 0.01
    inner: Count = 64
    clip: Positive = 50.0
    spread: Positive = 1.0


class PromptServer:
    """pFedPG's: prompts for each client, and a generator that learns from how clients change them (Alg. 1).

    Args:
        name: of the one tensor (1, K, l) that travels.
        tokens: its first value: the base prompts.
        clients: who trains.
        kind: of the generator.
    """

    def __init__(
        self, name: str, tokens: torch.Tensor, clients: Sequence[str], kind: str, recipe: GeneratorRecipe, seed: int
    ) -> None:
        if len(tokens) != 1:
            raise UsageError("generated prompts are shallow: one set in front of the first block")
        torch.manual_seed(seed)
        self._name, self._recipe, self.kind = name, recipe, kind
        self._number = {client: number for number, client in enumerate(clients)}
        self.bank = PromptBank(tokens[0], len(clients), kind, recipe.inner, recipe.spread)
        self._optimiser = torch.optim.Adam(self.bank.parameters(), recipe.learning_rate)

    @torch.no_grad()
    def payload(self, client: str) -> Tensors:
        return {self._name: self.bank.prompts(self._number.get(client, -1))[None].clone()}

    def aggregate(self, replies: Mapping[str, Reply]) -> None:
        self._optimiser.zero_grad(set_to_none=True)
        for client, reply in replies.items():
            self.bank.backward(self._number[client], reply.tensors[self._name][0])
        nn.utils.clip_grad_norm_(self.bank.parameters(), self._recipe.clip)
        before = self.bank.descriptors.detach().clone()
        self._optimiser.step()
        absent = [number for client, number in self._number.items() if client not in replies]
        with torch.no_grad():  # Adam's moments would move them on
            self.bank.descriptors[absent] = before[absent]

    @torch.no_grad()
    def difference(self) -> float:
        """How far clients' prompts are from their mean, over how large the mean is, both as root mean squares."""
        prompts = torch.stack([self.bank.prompts(number) for number in self._number.values()])
        mean = prompts.mean(0)
        return float((prompts - mean).square().mean().sqrt() / mean.square().mean().sqrt().clamp(min=1e-12))

    def base(self) -> Tensors:
        """The base prompts alone (the row P_base of Table 4)."""
        return {self._name: self.bank.base.detach()[None].clone()}

    def state(self) -> Tensors:
        tensors = {f"bank.{name}": value.detach().clone() for name, value in self.bank.state_dict().items()}
        for number, moments in self._optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": torch.as_tensor(value).clone() for name, value in moments.items()}
        return tensors

    def restore(self, state: Tensors) -> None:
        self.bank.load_state_dict({n.removeprefix("bank."): v for n, v in state.items() if n.startswith("bank.")})
        whole = self._optimiser.state_dict()
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in state.items():
            if key.startswith("adam."):
                _, number, name = key.split(".")
                moments.setdefault(int(number), {})[name] = value
        self._optimiser.load_state_dict({**whole, "state": moments})
