"""pFedPG's generator: prompts for each client, from prompts for all and a descriptor of the client.

Yang, Wang and Wang, "Efficient Model Personalization in Federated Learning via Client-Specific Prompt Generation", ICCV
2023, section 3.2.2. Everything here lives on the server and never sees a photo: it learns from how each client changed
the prompts it was given.

Notation: K prompts, l width of a token, N clients, k inner width of the attention (l_k = l_v).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class AttentionGenerator(nn.Module):
    """P_n = P_base + softmax(Q K^T / sqrt(l_k)) V W_O, Q = d_n W_Q, K = P_base W_K, V = P_base W_V (eq. 3).

    One descriptor is one query, so all K prompts are moved by the same vector, a mixture of the base prompts.
    """

    def __init__(self, count: int, width: int, inner: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Linear(a, b, bias=False) for a, b in ((width, inner), (width, inner), (width, inner), (inner, width))
        )

    def forward(self, base: Tensor, descriptor: Tensor) -> Tensor:
        """base (K, l), descriptor (l,) -> (K, l)."""
        scores = self.query(descriptor) @ self.key(base).T / math.sqrt(self.key.out_features)
        return base + self.out(scores.softmax(dim=-1) @ self.value(base))


class MlpGenerator(nn.Module):
    """The descriptor alone, through a perceptron (the row MLP of Table 4, after pFedHN); no base prompts."""

    def __init__(self, count: int, width: int, inner: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, count * width))
        self.count = count

    def forward(self, base: Tensor, descriptor: Tensor) -> Tensor:
        return self.layers(descriptor).unflatten(-1, (self.count, -1))  # type: ignore[no-any-return]


class AdaInGenerator(nn.Module):
    """The base prompts with the mean and the deviation of the descriptor (the row AdaIN of Table 4)."""

    def __init__(self, count: int, width: int, inner: int) -> None:
        super().__init__()

    def forward(self, base: Tensor, descriptor: Tensor) -> Tensor:
        mean, deviation = base.mean(-1, keepdim=True), base.std(-1, keepdim=True)
        return (base - mean) / (deviation + 1e-6) * descriptor.std() + descriptor.mean()


GENERATORS = {"attention": AttentionGenerator, "mlp": MlpGenerator, "adain": AdaInGenerator}


class PromptBank(nn.Module):
    """What pFedPG's server learns: the generator, the base prompts and one descriptor per client.

    Args:
        spread: standard deviation of descriptors at the start. Of "adain" it is in units of the base prompts': there a
            descriptor's mean and deviation become those of the prompts.

    Attributes:
        base: (K, l).
        descriptors: (N, l).
    """

    def __init__(
        self, base: Tensor, clients: int, kind: str = "attention", inner: int = 64, spread: float = 1.0
    ) -> None:
        super().__init__()
        count, width = base.shape
        self.base = nn.Parameter(base.clone())
        deviation = spread * (float(base.std()) if kind == "adain" else 1.0)
        self.descriptors = nn.Parameter(torch.empty(clients, width).normal_(std=deviation))
        self.generator = GENERATORS[kind](count, width, inner)

    def prompts(self, client: int) -> Tensor:
        """(K, l) of a client; of one that was never met (-1), those of the mean descriptor."""
        descriptor = self.descriptors[client] if client >= 0 else self.descriptors.mean(0)
        return self.generator(self.base, descriptor)  # type: ignore[no-any-return]

    def backward(self, client: int, trained: Tensor) -> None:
        """Adds to the gradients what a client's training says (eq. 4): its prompts became ``trained`` (K, l).

        The printed eq. 5 descends along (trained - given), which drives the generator away from what the client found.
        The gradient of the loss points the other way, along (given - trained), as in pFedHN: this is what is used.
        """
        given = self.prompts(client)
        given.backward(given.detach() - trained)
