"""Online EM over priors and prototypes, after "Ultra-light test-time adaptation" (UL-TTA, 2025).

Confident photos alone teach. Each adds its responsibilities to Dirichlet counts of the classes and its feature to the
prototypes, which are held near the training means: pi = (N + a b) / (n + a), m_c = unit(k anchor_c + sum_i r_ic f_i).
The answer is softmax(logits / T + tau f . (m - anchor) + log(pi / b)). UL-TTA starts from text prototypes; with a
trained classifier, its logits are the start and the prototypes move them. Notation: C classes, D feature width.
"""

from __future__ import annotations

import numpy as np

from studies.streams.rivals.method import Knowledge, softmax, unit


class OnlinePrototypes:
    """Priors and prototypes of one stream.

    Args:
        tau: weight of the prototypes' movement.
        strength: a, photos' worth of the training shares.
        anchor: k, photos' worth of a training mean.
        confident: a photo teaches where its largest responsibility is at least this.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        tau: float = 10.0,
        strength: float = 10.0,
        anchor: float = 10.0,
        confident: float = 0.5,
    ) -> None:
        self._knowledge, self._tau, self._strength, self._confident = knowledge, tau, strength, confident
        self._start = unit(knowledge.means)
        self._sums = anchor * self._start
        self._moved = np.zeros_like(self._start)
        self._counts = np.zeros(len(knowledge.base))

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        responsibility = self.answer(feature, logits)
        if responsibility.max() < self._confident:
            return
        self._counts += responsibility
        taught = np.flatnonzero(responsibility > 1e-3)
        self._sums[taught] += responsibility[taught, None] * unit(feature)
        self._moved[taught] = unit(self._sums[taught]) - self._start[taught]

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        base = self._knowledge.base
        shares = (self._counts + self._strength * base) / (self._counts.sum() + self._strength)
        moved = self._tau * (self._moved @ unit(feature))
        return softmax(logits / self._knowledge.temperature + moved + np.log(shares / np.maximum(base, 1e-9) + 1e-30))

    def state_bytes(self) -> int:
        return 4 * (self._sums.size + self._counts.size)
