"""The gate: how much of an answer the history may decide, so that no person is served worse than by the photo alone.

The delivered log-probabilities are a mixture of those of the plain classifier and of ICIIA,
(1 - t) log p + t log q, and the gate gives the trust t in [0, 1] for each photo. With no history t is 0, and the answer
is exactly the plain one. The gate knows nothing of classes. It sees three things:

- how the two answers stand to each other: their entropies, whether they agree, what each thinks of the other's choice;
- whether the history is of one person, or of anybody and everybody;
- whether this photo is of the same person as the history.

For the last two every photo leaves a row of ``traits`` behind: K numbers in which the photos of one person are alike
and those of different people differ (Fisher's discriminants over people). Two hypotheses about them have closed-form
likelihoods under the two-covariance model of speaker verification (probabilistic linear discriminant analysis, Ioffe
2006; Brummer and de Villiers 2010): same person, other person. The gate reads the logarithm of their ratio.

Traits depend on the photo alone. A device keeps one row per history photo (the state ``traits``); from stored rows they
can be computed again (:meth:`StatisticsGate.traits`), so the streaming and the full-window form give equal answers.

Notation: B photos, L history photos, D feature width, S signature width, K traits, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

TRAITS = 32  # K
STATISTICS = (
    "log_length",
    "inverse_length",
    "entropy_plain",
    "entropy_personal",
    "top_plain",
    "top_personal",
    "divergence_personal_plain",
    "divergence_plain_personal",
    "plain_of_personal_choice",
    "personal_of_plain_choice",
    "overlap",
    "agree",
    "attention_to_itself",
    "attention_entropy",
    "same_person",
    "one_person",
)
MOST_EVIDENCE = 20.0  # log-likelihood ratios beyond this say nothing more, and tails are never Gaussian


class WarmUpGate(nn.Module):
    """The paper's remedy (section 4.2): the plain classifier answers until the history has ``count`` photos."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, history_length: Tensor) -> Tensor:
        """(B,) history lengths -> (B,) trust, 0 or 1."""
        return (history_length >= self.count).to(torch.float32)


class StatisticsGate(nn.Module):
    """A small network on statistics of the two answers and of the stream.

    Args:
        row: D + S, width of a stored feature with its signature.
        traits: K, at most D + S.
        hidden: width of the network's one hidden layer.
        several: photos have several labels: what is seen of the answers is the mean over labels, each of which is an
            answer of two classes, the label and its absence.
    """

    centre: Tensor
    directions: Tensor
    between: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, row: int, traits: int = TRAITS, hidden: int = 64, several: bool = False) -> None:
        super().__init__()
        self.several = several
        traits = min(traits, row)
        self.register_buffer("centre", torch.zeros(row))
        self.register_buffer("directions", torch.zeros(row, traits))
        self.register_buffer("between", torch.ones(traits))  # variance of people's means; within a person it is 1
        self.register_buffer("mean", torch.zeros(len(STATISTICS)))
        self.register_buffer("std", torch.ones(len(STATISTICS)))
        self.expand = nn.Linear(len(STATISTICS), hidden)
        self.decide = nn.Linear(hidden, 1)

    def traits(self, rows: Tensor) -> Tensor:
        """Stored rows (..., D + S) -> traits (..., K)."""
        return (rows - self.centre) @ self.directions

    def forward(
        self, plain: Tensor, personal: Tensor, attention: Tensor, traits: Tensor, past: Tensor, valid: Tensor
    ) -> Tensor:
        """The trust of each photo.

        Args:
            plain, personal: logits (B, C).
            attention: (B, L + 1), the photo itself last.
            traits: of the photo, (B, K).
            past: traits of its history, (B, L, K).
            valid: (B, L) bool, which rows of the history are there.

        Returns:
            (B,) in [0, 1]; exactly 0 without a history.
        """
        return self.trust(self.statistics(plain, personal, attention, traits, past, valid), valid)

    def trust(self, statistics: Tensor, valid: Tensor) -> Tensor:
        """Statistics (B, 16) -> trust (B,)."""
        hidden = functional.relu(self.expand((statistics - self.mean) / self.std))
        trust: Tensor = torch.sigmoid(self.decide(hidden))[:, 0]
        return trust * valid.any(dim=1).to(trust.dtype)

    def statistics(
        self, plain: Tensor, personal: Tensor, attention: Tensor, traits: Tensor, past: Tensor, valid: Tensor
    ) -> Tensor:
        """What the gate looks at, (B, 16) in the order of ``STATISTICS``; arguments as of :meth:`forward`."""
        length = valid.sum(1).to(plain.dtype)
        same, one = self.evidence(traits, past, valid)
        return torch.stack(
            [
                torch.log1p(length),
                1 / (1 + length),
                *(self._of_labels if self.several else _of_answers)(plain, personal),
                attention[:, -1],
                -(attention * attention.clamp(min=1e-6).log()).sum(-1),
                same,
                one,
            ],
            dim=1,
        )

    @staticmethod
    def _of_labels(plain: Tensor, personal: Tensor) -> list[Tensor]:
        """The means over labels of :func:`_of_answers`, each label an answer of two classes."""
        both = (torch.stack([logits, torch.zeros_like(logits)], dim=-1).flatten(0, 1) for logits in (plain, personal))
        return [found.view(plain.shape).mean(1) for found in _of_answers(*both)]

    def evidence(self, traits: Tensor, past: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Two log-likelihood ratios, each (B,), from -20 to 20.

        The first: this photo is of the person of the history, against: of somebody else. The second, per photo: the
        history is of one person, against: of as many people as photos. Both are 0 where there is nothing to compare.
        """
        kept = valid.to(past.dtype)[..., None]
        length, total = kept.sum(1), (past * kept).sum(1)  # (B, 1), (B, K)
        b = self.between
        spread = b / (1 + length * b)  # of the person's mean, given the history
        middle = spread * total
        same = 0.5 * (
            traits**2 / (1 + b) + torch.log1p(b) - (traits - middle) ** 2 / (1 + spread) - torch.log1p(spread)
        )
        # Written with deviations from the mean: sums of squares would cancel to nothing in float32.
        mean = total / length.clamp(min=1)
        apart = (kept * ((past - mean[:, None]) ** 2 - past**2 / (1 + b) - torch.log1p(b))).sum(1)
        one = -0.5 * (apart + length * mean**2 / (1 + length * b) + torch.log1p(length * b)).sum(-1)
        one = one / length[:, 0].clamp(min=1)
        limit = MOST_EVIDENCE
        some = valid.any(dim=1).to(past.dtype)
        return some * same.sum(-1).clamp(-limit, limit), one.clamp(-limit, limit)


def _of_answers(plain: Tensor, personal: Tensor) -> list[Tensor]:
    """Ten statistics (B,) of two answers, logits (B, C), in their order in ``STATISTICS``."""
    log_p, log_q = plain.log_softmax(-1), personal.log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    top_p, best_p = p.max(-1)
    top_q, best_q = q.max(-1)
    return [
        -(p * log_p).sum(-1),
        -(q * log_q).sum(-1),
        top_p,
        top_q,
        (q * (log_q - log_p)).sum(-1).clamp(max=10.0),
        (p * (log_p - log_q)).sum(-1).clamp(max=10.0),
        p.gather(1, best_q[:, None])[:, 0],
        q.gather(1, best_p[:, None])[:, 0],
        torch.exp(0.5 * (log_p + log_q)).sum(-1),
        (best_p == best_q).to(p.dtype),
    ]


def mix(plain: Tensor, personal: Tensor, trust: Tensor, several: bool = False) -> Tensor:
    """Logits (B, C) of both answers and the trust (B,) -> delivered log-probabilities up to a constant, (B, C).

    Args:
        several: photos have several labels: the logits are mixed, which are the log-odds of each label.
    """
    t = trust[:, None]
    if several:
        return (1 - t) * plain + t * personal
    return (1 - t) * plain.log_softmax(-1) + t * personal.log_softmax(-1)
