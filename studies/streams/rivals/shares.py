"""Class shares as a method of the stream protocol.

The code is that of devices (:mod:`refocus.edge.recognize`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refocus.edge.recognize import ClassShares, ShareSettings, length_of
from studies.streams.rivals.method import Knowledge, softmax, unit

RECENT = 4  # photos
ALIKE = 0.9  # 95 % of the near-copies in rolls are above it, other pairs of photos of a class are not


def settings_for(knowledge: Knowledge, settings: ShareSettings | None = None) -> ShareSettings:
    """Return settings with the calibration and class shares of training."""
    base = tuple(np.maximum(knowledge.base, 1e-6) / np.maximum(knowledge.base, 1e-6).sum())
    return replace(settings or ShareSettings(), temperature=knowledge.temperature, base=base)


class SharesMethod:
    """Calibrated classifier multiplied by estimated class shares."""

    def __init__(self, knowledge: Knowledge, settings: ShareSettings | None = None) -> None:
        fitted = settings_for(knowledge, settings)
        self.state = ClassShares(fitted, len(knowledge.base), known=knowledge.known)

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        """Add a photo to the estimate of the shares."""
        self.state.add(self.state.row(logits, length_of(feature)))

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities (C,) of a photo."""
        return softmax(self.state.answer(logits, length_of(feature)).logits)

    def state_bytes(self) -> int:
        """Return the size of the state in bytes."""
        return len(self.state) * 8 * self.state.k


class BurstsOnceMethod(SharesMethod):
    """Class shares for which a burst of near-copies counts once.

    A photo does not count if the last photo that counted is one of the ``RECENT`` photos before it and the cosine
    similarity of their features is at least ``ALIKE``.
    """

    def __init__(self, knowledge: Knowledge, settings: ShareSettings | None = None) -> None:
        super().__init__(knowledge, settings)
        self._counted, self._since = np.zeros(0), 0

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        """Add a photo to the estimate of the shares, unless it is a near-copy."""
        direction, self._since = unit(feature), self._since + 1
        if len(self._counted) and self._since <= RECENT and float(self._counted @ direction) >= ALIKE:
            return
        self._counted, self._since = direction, 0
        super().observe(feature, logits)
