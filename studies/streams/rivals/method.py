"""Interface of test-time methods, and what they know in advance.

Notation: C classes, D feature width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from refocus.edge.recognize import KnownScores, known_scores


@dataclass(frozen=True)
class Knowledge:
    """Everything that a test-time method may know before the first photo.

    Attributes:
        temperature: temperature of the classifier, calibrated on validation photos.
        base: class shares of the training photos, (C,).
        weight: weight of the plain classifier, (C, D).
        bias: bias of the plain classifier, (C,).
        means: class means of the training features, each feature divided by its length, (C, D).
        variance: variance of these within a class, pooled over classes, (D,).
        validation: logits of the validation photos, (n, C); without them every photo counts.
        lengths: lengths of their features, (n,).
    """

    temperature: float
    base: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    means: np.ndarray
    variance: np.ndarray
    validation: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @cached_property
    def known(self) -> KnownScores:
        """Return the scores of an export without labelled photos."""
        photos = len(self.validation)
        return known_scores(self.validation, self.lengths, [None] * photos, ()) if photos else KnownScores()


class StreamMethod(Protocol):
    """Method that adapts to one stream; every stream has its own instance."""

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        """Add a photo of the stream to the state.

        Args:
            feature: feature of the photo, (D,).
            logits: logits of the plain classifier, (C,).
        """

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities (C,) of a photo; the state stays the same."""

    def state_bytes(self) -> int:
        """Return the size of the present state in bytes."""


class Original:
    """Calibrated classifier without adaptation."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._temperature = knowledge.temperature

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        """Ignore a photo; there is no state."""

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities (C,) of a photo."""
        return softmax(logits / self._temperature)

    def state_bytes(self) -> int:
        """Return 0; there is no state."""
        return 0


class KnownClasses(Original):
    """Classifier restricted to the classes that the person meets.

    An estimate of shares cannot exceed its accuracy by much.
    """

    def __init__(self, knowledge: Knowledge, classes: np.ndarray) -> None:
        super().__init__(knowledge)
        self._among = np.full(len(knowledge.base), -np.inf)
        self._among[classes] = 0

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities (C,) of a photo."""
        return softmax(logits / self._temperature + self._among)


class NewestPhotos:
    """Newest photos of a stream, for methods that answer a photo with them.

    Args:
        knowledge: calibration of the classifier.
        most: number of photos that are kept.
    """

    def __init__(self, knowledge: Knowledge, most: int) -> None:
        self._temperature, self._most = knowledge.temperature, most
        self._features: list[np.ndarray] = []
        self._logs: list[np.ndarray] = []

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        """Keep a photo; drop the oldest one if there are too many."""
        self._features.append(unit(feature))
        self._logs.append(self._log(logits))
        del self._features[: -self._most], self._logs[: -self._most]

    def state_bytes(self) -> int:
        """Return the size of the state in bytes."""
        return sum(4 * (len(f) + len(p)) for f, p in zip(self._features, self._logs, strict=True))

    def _batch(self, feature: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return features (n, D) and log-probabilities (n, C) of a batch.

        The batch is the photos that are kept, then this one. Features have length 1.
        """
        return np.stack([*self._features, unit(feature)]), np.stack([*self._logs, self._log(logits)])

    def _log(self, logits: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(softmax(logits / self._temperature), 1e-30))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis."""
    exponential = np.exp(logits - logits.max(-1, keepdims=True))
    probability: np.ndarray = exponential / exponential.sum(-1, keepdims=True)
    return probability


def unit(features: np.ndarray) -> np.ndarray:
    """Return features (..., D) divided by their length."""
    length = np.linalg.norm(features, axis=-1, keepdims=True)
    divided: np.ndarray = features / np.maximum(length, 1e-12)
    return divided
