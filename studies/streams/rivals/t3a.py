"""T3A: class templates from confident photos.

Iwasawa and Matsuo, "Test-time classifier adjustment module for model-agnostic domain generalization", NeurIPS 2021.
Each class has a support set: its row of the classifier and the features of photos that were answered with it. The
``keep`` ones of least entropy (``filter`` in the authors' code) are averaged into a template, and a photo is compared
with templates by inner product. The photo that is answered is in the support set, as in the authors' code. Notation: C
classes, D feature width.
"""

from __future__ import annotations

import numpy as np

from studies.streams.rivals.method import Knowledge, softmax, unit


class T3A:
    """Class templates of one stream.

    Args:
        knowledge: calibration and weights of the classifier.
        keep: maximum number of supports per class, M.
    """

    def __init__(self, knowledge: Knowledge, keep: int = 20) -> None:
        self._keep, self._temperature = keep, knowledge.temperature
        start = knowledge.weight @ knowledge.weight.T + knowledge.bias
        entropy = _entropy(start / knowledge.temperature)
        self._supports = [[(float(e), row)] for e, row in zip(entropy, unit(knowledge.weight), strict=True)]
        self._templates = np.stack([supports[0][1] for supports in self._supports])
        self._scale = float(np.linalg.norm(knowledge.weight, axis=1).mean())

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        """Add a photo to the support set of its most probable class."""
        number, template = self._with(feature, logits)
        kept = [*self._supports[number], (self._entropy_of(logits), unit(feature))]
        self._supports[number] = sorted(kept, key=lambda pair: pair[0])[: self._keep]
        self._templates[number] = template

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities (C,) of a photo."""
        number, template = self._with(feature, logits)
        scores = self._templates @ feature
        scores[number] = template @ feature
        return softmax(self._scale * scores / self._temperature)

    def state_bytes(self) -> int:
        """Return the size of the state in bytes."""
        return sum(4 * (len(row) + 1) for supports in self._supports for _, row in supports[1:])

    def _with(self, feature: np.ndarray, logits: np.ndarray) -> tuple[int, np.ndarray]:
        """Return the class of a photo, and its template with the photo."""
        number = int(logits.argmax())
        kept = sorted([*self._supports[number], (self._entropy_of(logits), unit(feature))], key=lambda pair: pair[0])
        return number, unit(np.mean([row for _, row in kept[: self._keep]], axis=0))

    def _entropy_of(self, logits: np.ndarray) -> float:
        return float(_entropy(logits / self._temperature))


def _entropy(logits: np.ndarray) -> np.ndarray:
    p = softmax(logits)
    entropy: np.ndarray = -(p * np.log(np.maximum(p, 1e-30))).sum(-1)
    return entropy
