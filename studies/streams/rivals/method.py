"""The one interface of methods that adapt at test time, and what they may know before the first photo.

Notation: C classes, D feature width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Knowledge:
    """Calibration, class shares, classifier and feature means of the training photos, for test-time methods.

    Attributes:
        temperature: of the classifier, calibrated on validation people.
        base: (C,) class shares of the training photos.
        weight, bias: (C, D) and (C,) of the plain classifier.
        means: (C, D) means of the training features, each feature divided by its length.
        variance: (D,) of these within a class, pooled.
    """

    temperature: float
    base: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    means: np.ndarray
    variance: np.ndarray


class StreamMethod(Protocol):
    """Personal answers for one stream; a new one is made for every stream."""

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        """Takes a photo of the stream into account: its feature (D,) and the plain classifier's logits (C,)."""

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Probabilities (C,) of a photo, which is not taken into account for later ones."""

    def state_bytes(self) -> int:
        """What is kept of the stream at present."""


class Original:
    """The calibrated classifier alone."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._temperature = knowledge.temperature

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        """Nothing is kept."""

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        return softmax(logits / self._temperature)

    def state_bytes(self) -> int:
        return 0


class KnownClasses(Original):
    """The classifier among the classes that the person meets: what an estimate of shares cannot exceed by much."""

    def __init__(self, knowledge: Knowledge, classes: np.ndarray) -> None:
        super().__init__(knowledge)
        self._among = np.full(len(knowledge.base), -np.inf)
        self._among[classes] = 0

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        return softmax(logits / self._temperature + self._among)


class NewestPhotos:
    """The newest photos of a stream, of methods that answer a photo together with them.

    Args:
        most: photos that are kept.
    """

    def __init__(self, knowledge: Knowledge, most: int) -> None:
        self._temperature, self._most = knowledge.temperature, most
        self._features: list[np.ndarray] = []
        self._logs: list[np.ndarray] = []

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        self._features.append(unit(feature))
        self._logs.append(self._log(logits))
        del self._features[: -self._most], self._logs[: -self._most]

    def state_bytes(self) -> int:
        return sum(4 * (len(f) + len(p)) for f, p in zip(self._features, self._logs, strict=True))

    def _batch(self, feature: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Features (n, D) of length 1 and log-probabilities (n, C): of the photos that are kept, then of this one."""
        return np.stack([*self._features, unit(feature)]), np.stack([*self._logs, self._log(logits)])

    def _log(self, logits: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(softmax(logits / self._temperature), 1e-30))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    exponential = np.exp(logits - logits.max(-1, keepdims=True))
    probability: np.ndarray = exponential / exponential.sum(-1, keepdims=True)
    return probability


def unit(features: np.ndarray) -> np.ndarray:
    """Features (..., D) divided by their length."""
    length = np.linalg.norm(features, axis=-1, keepdims=True)
    divided: np.ndarray = features / np.maximum(length, 1e-12)
    return divided
