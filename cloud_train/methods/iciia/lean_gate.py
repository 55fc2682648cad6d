"""The gate for one photo on a device: the statistics of :class:`StatisticsGate` with fewer and smaller operators."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from refocus.cloud_train.methods.iciia.gate import MOST_EVIDENCE, STATISTICS, StatisticsGate


class LeanGate(nn.Module):
    """:class:`StatisticsGate` for one photo: same statistics, fewer and smaller operators.

    Normalisation of the statistics and signs are folded into the first linear layer, constants of the traits are
    computed here once, and both answers are rows of one tensor.
    """

    inside: Tensor
    log_inside: Tensor
    between: Tensor
    sign: Tensor

    def __init__(self, trained: StatisticsGate) -> None:
        super().__init__()
        self.several = trained.several
        between = trained.between.detach()
        self.register_buffer("between", between)
        self.register_buffer("inside", 1 / (1 + between))
        self.register_buffer("log_inside", torch.log1p(between))
        directions, centre = trained.directions.detach(), trained.centre.detach()
        self.trait = nn.Linear(directions.shape[0], directions.shape[1], dtype=directions.dtype)
        self.trait.weight.data.copy_(directions.T)
        self.trait.bias.data.copy_(-(centre.double() @ directions.double()))
        weight = trained.expand.weight.detach().double() / trained.std.double()
        bias = trained.expand.bias.detach().double() - weight @ trained.mean.double()
        column = dict(zip(STATISTICS, weight.T, strict=True))
        agree = column["agree"] / 2  # it comes twice
        # In the order in which `statistics` gives them.
        folded = [
            column["log_length"],
            column["inverse_length"],
            -column["entropy_plain"],
            -column["entropy_personal"],
            column["top_plain"],
            column["top_personal"],
            column["divergence_plain_personal"],
            column["divergence_personal_plain"],
            column["plain_of_personal_choice"],
            column["personal_of_plain_choice"],
            agree,
            agree,
            column["overlap"],
            column["attention_to_itself"],
            -column["attention_entropy"],
            column["same_person"],
            column["one_person"],
        ]
        self.expand = nn.Linear(len(folded), len(bias), dtype=directions.dtype)
        self.expand.weight.data.copy_(torch.stack(folded, dim=1))
        self.expand.bias.data.copy_(bias)
        self.decide = trained.decide
        self.register_buffer("sign", torch.tensor([[1.0], [-1.0]], dtype=directions.dtype))

    def forward(
        self, log: Tensor, attention: Tensor, trait: Tensor, past: Tensor, kept: Tensor, length: Tensor
    ) -> Tensor:
        """The trust of one photo.

        Args:
            log: (2, C) log-probabilities, of the plain answer and of the personal one; logits where photos have several
                labels.
            attention: (1, S + 1), the photo itself last.
            trait: of the photo, (1, K).
            past: traits of its history in any order, (L, K).
            kept: (L, 1), 1 for rows of the history and 0 for others, whose traits are not read.
            length: (1,), photos seen before it.

        Returns:
            (1,) in [0, 1]; exactly 0 without a history.
        """
        hidden = functional.relu(self.expand(self.statistics(log, attention, trait, past, kept, length)[None]))
        return torch.sigmoid(self.decide(hidden))[:, 0] * length.clamp(max=1).to(log.dtype)

    def statistics(
        self, log: Tensor, attention: Tensor, trait: Tensor, past: Tensor, kept: Tensor, length: Tensor
    ) -> Tensor:
        """What the gate looks at, (17,): those of :class:`StatisticsGate` in another order, one of them twice."""
        count = length.clamp(max=past.shape[0]).to(log.dtype)
        pairs, overlap = self._of_labels(log) if self.several else self._of_answers(log)
        spread = (attention * attention.clamp(min=1e-6).log()).sum(1)
        more = count + 1
        return torch.cat(
            [more.log(), 1 / more, pairs, overlap, attention[0, -1:], spread, *self.evidence(trait, past, kept, count)]
        )

    def _of_answers(self, log: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (2, C) -> five statistics of both answers in turn, (10,), and one of the two, (1,)."""
        probability = log.exp()
        top, best = probability.max(dim=1, keepdim=True)
        crossed = probability.gather(1, best.flip(0))
        apart = ((log[:1] - log[1:]) * probability).sum(1, keepdim=True) * self.sign
        overlap = (0.5 * (log[:1] + log[1:])).exp().sum(1)
        pairs = torch.cat(
            [
                (probability * log).sum(1, keepdim=True),
                top,
                apart.clamp(max=10.0),
                crossed,
                (crossed >= top).to(log.dtype),
            ]
        ).flatten()
        return pairs, overlap

    def _of_labels(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The same of logits (2, C), each label an answer of two classes, the mean over labels."""
        # Not logsigmoid, which is exported as log(sigmoid): ONNX Runtime's sigmoid is exactly 0 at -17.
        rest = torch.log1p(torch.exp(-logits.abs()))
        log = torch.stack([logits.clamp(max=0) - rest, (-logits).clamp(max=0) - rest])  # (2 classes, 2, C)
        probability = log.exp()
        top = probability.amax(0)  # (2, C)
        chosen = (logits >= 0).to(log.dtype).flip(0)
        crossed = probability[0] * chosen + probability[1] * (1 - chosen)
        apart = ((log[:, :1] - log[:, 1:]) * probability).sum(0) * self.sign
        overlap = (0.5 * (log[:, :1] + log[:, 1:])).exp().sum(0).mean(1)
        agree = (crossed >= top).to(log.dtype)
        parts = torch.cat([(probability * log).sum(0), top, apart.clamp(max=10.0), crossed, agree])
        return parts.mean(1), overlap

    def evidence(self, trait: Tensor, past: Tensor, kept: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Same person, and one person, each (1,); see :meth:`StatisticsGate.evidence`."""
        past = past * kept
        total, some = past.sum(0, keepdim=True), count.clamp(min=1)  # (1, K), (1,)
        mean = total / some
        known = 1 + count * self.between
        spread = self.between / known  # of the person's mean, given the history
        beyond, off = 1 + spread, trait - spread * total
        same = trait * trait * self.inside + self.log_inside - off * off / beyond - beyond.log()
        deviation = (past - mean) * kept
        inner = (deviation * deviation - past * past * self.inside).sum(0, keepdim=True)
        one = inner - count * self.log_inside + total * mean / known + known.log()
        limit = MOST_EVIDENCE
        return (0.5 * same.sum(1)).clamp(-limit, limit), (one.sum(1) / (-2 * some)).clamp(-limit, limit)
