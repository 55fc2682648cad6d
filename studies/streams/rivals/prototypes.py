"""Online EM over class priors and prototypes, after UL-TTA.

"Ultra-light test-time adaptation", 2025. Only confident photos update the state. Each adds its responsibilities to
Dirichlet counts of the classes and its feature to the prototypes, which are held near the training means:
pi = (N + a b) / (n + a), m_c = unit(k anchor_c + sum_i r_ic f_i).
The answer is softmax(logits / T + tau f . (m - anchor) + log(pi / b)). UL-TTA starts from text prototypes; with a
trained classifier, its logits are the start and the prototypes move them. Notation: C classes, D feature width.
"""

from __future__ import annotations

import numpy as np

from studies.streams.rivals.method import Knowledge, softmax, unit


class OnlinePrototypes:
    """Class priors and prototypes of one stream.

    Args:
        knowledge: classifier, class shares and feature means of the training photos.
        tau: weight of the movement of the prototypes.
        strength: weight of the training shares a, in photos.
        anchor: weight of a training mean k, in photos.
        confident: minimum largest responsibility of a photo that updates the state.
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
        """Update priors and prototypes with a confident photo."""
        responsibility = self.answer(feature, logits)
        if responsibility.max() < self._confident:
            return
        self._counts += responsibility
        taught = np.flatnonzero(responsibility > 1e-3)
        self._sums[taught] += responsibility[taught, None] * unit(feature)
        self._moved[taught] = unit(self._sums[taught]) - self._start[taught]

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities (C,) of a photo."""
        base = self._knowledge.base
        shares = (self._counts + self._strength * base) / (self._counts.sum() + self._strength)
        moved = self._tau * (self._moved @ unit(feature))
        return softmax(logits / self._knowledge.temperature + moved + np.log(shares / np.maximum(base, 1e-9) + 1e-30))

    def state_bytes(self) -> int:
        """Return the size of the state in bytes."""
        return 4 * (self._sums.size + self._counts.size)
