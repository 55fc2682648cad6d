"""StatA: Gaussian class models held near statistical anchors, in NumPy.

Zanella et al., "Realistic test-time adaptation of vision-language models", CVPR 2025. The batch is the history and the
target. Two updates alternate: assignments z_i = softmax(log p_i + log N(f_i; m_c, v) + sum_j w_ij z_j), with w >= 0 the
cosine of the 3 nearest neighbours; then m_c = r_c mean_c + (1 - r_c) anchor_c and v likewise, with
r_c = n_c / (n_c + ``strength``), n_c = sum_i z_ic. The authors anchor at text embeddings; here, without a text encoder,
anchors are the class means and the variance of the training features. Log-densities are divided by D, because pooled
features of a classifier are far from Gaussian. Notation: D feature width.
"""

from __future__ import annotations

import numpy as np

from studies.streams.rivals.method import Knowledge, NewestPhotos, softmax

NEIGHBOURS, ROUNDS, MOST = 3, 5, 255


class StatA(NewestPhotos):
    """StatA on a photo with the newest ``MOST`` photos of its history.

    Args:
        knowledge: calibration and statistics of the training photos.
        strength: weight of the anchor, in photos.
    """

    def __init__(self, knowledge: Knowledge, strength: float = 1.0) -> None:
        super().__init__(knowledge, MOST)
        self._knowledge, self._strength = knowledge, strength

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities (C,) of a photo."""
        known = self._knowledge
        features, log_p = self._batch(feature, logits)
        similar = np.maximum(features @ features.T, 0)
        np.fill_diagonal(similar, 0)
        count = min(NEIGHBOURS, len(features) - 1)
        if count:
            least = -np.partition(-similar, count - 1, axis=1)[:, count - 1 : count]
            similar = np.where(similar >= least, similar, 0)
        z, means, variance = softmax(log_p), known.means, known.variance
        for _ in range(ROUNDS):
            number = z.sum(0)
            share = (number / (number + self._strength))[:, None]
            means = share * (z.T @ features) / np.maximum(number, 1e-9)[:, None] + (1 - share) * known.means
            spread = (z.T @ features**2 - 2 * means * (z.T @ features) + number[:, None] * means**2).sum(0)
            weight = len(features) / (len(features) + self._strength * len(number))
            variance = weight * spread / len(features) + (1 - weight) * known.variance
            scaled = features / variance
            density = scaled @ means.T - 0.5 * (means**2 / variance).sum(1)
            z = softmax(log_p + density / features.shape[1] + similar @ z)
        answer: np.ndarray = z[-1]
        return answer
