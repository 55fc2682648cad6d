"""LAME: Laplacian adjusted maximum-likelihood estimation.

Boudiaf et al., "Parameter-free online test-time adaptation", CVPR 2022. Similar photos get similar answers.
Assignments z maximise sum_i z_i . log p_i + 1/2 sum_ij w_ij z_i . z_j with entropy, by the fixed point
z_i = softmax(log p_i + sum_j w_ij z_j), where w is 1 for the 5 nearest neighbours by cosine. The batch is the history
and the target. Notation: n photos.
"""

from __future__ import annotations

import numpy as np

from studies.streams.rivals.method import Knowledge, NewestPhotos, softmax

NEIGHBOURS, ROUNDS, MOST = 5, 100, 255


class Lame(NewestPhotos):
    """LAME on a photo with the newest ``MOST`` photos of its history."""

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge, MOST)

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities (C,) of a photo."""
        features, log_p = self._batch(feature, logits)
        similar = features @ features.T
        np.fill_diagonal(similar, -np.inf)
        count = min(NEIGHBOURS, len(features) - 1)
        if not count:
            return softmax(log_p[-1])
        nearest = np.argpartition(-similar, count - 1, axis=1)[:, :count]
        z = softmax(log_p)
        for _ in range(ROUNDS):
            before, z = z, softmax(log_p + z[nearest].sum(1))
            if np.abs(z - before).max() < 1e-6:
                break
        answer: np.ndarray = z[-1]
        return answer
