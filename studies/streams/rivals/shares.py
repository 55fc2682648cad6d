"""Class shares as a method of the stream protocol: the device's own code (:mod:`refocus.edge.recognize`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refocus.edge.recognize import ClassShares, ShareSettings
from studies.streams.rivals.method import Knowledge, softmax


def settings_for(knowledge: Knowledge, settings: ShareSettings | None = None) -> ShareSettings:
    """Settings with the calibration and the shares that training found."""
    base = tuple(np.maximum(knowledge.base, 1e-6) / np.maximum(knowledge.base, 1e-6).sum())
    return replace(settings or ShareSettings(), temperature=knowledge.temperature, base=base)


class SharesMethod:
    """Classifier times shares."""

    def __init__(self, knowledge: Knowledge, settings: ShareSettings | None = None) -> None:
        self.state = ClassShares(settings_for(knowledge, settings), len(knowledge.base))

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        self.state.add(self.state.row(logits))

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        return softmax(self.state.answer(logits).logits)

    def state_bytes(self) -> int:
        return len(self.state) * 8 * self.state.k
