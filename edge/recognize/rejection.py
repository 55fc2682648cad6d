"""Scores of photos: which answers are guesses, and which votes count.

A photo that shows none of the labels gets a label too. The score of an answer (:attr:`Answer.known_score`) is the
largest logit of the classifier without history (Hendrycks et al., "Scaling out-of-distribution detection for real-world
settings", ICML 2022), divided by the length of the photo's feature. Unlike the largest probability it is low where all
logits are low, as on photos unlike those of training; the length takes out contrast and style. The history of a person
does not change it.

A bundle has quantiles of the scores of correct answers. Photos below the first one are marked as guesses and do not
count for class shares. The others get a credit for their class: the log likelihood ratio of "the photo shows the class"
to "it shows none of the labels". Scores of known photos are uniform between the quantiles; those of other photos that
pass the threshold are assumed to have the density 5 (1 - u)^4 at quantile u.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refocus.edge.bundle.manifest import KNOWN_LEVELS, Head
from refocus.edge.history.likely_classes import MOST_CREDIT

FEWEST_LABELLED = 64  # photos with labels that take the place of the probabilities of being correct
_MARGIN = 1e-4  # part of a score, for runtimes that round
_STEEPNESS = 5.0


@dataclass(frozen=True)
class KnownScores:
    """Scores of the correct answers of a head.

    Attributes:
        rejection: minimum score of photos that count; minus infinity: every photo counts.
        quantiles: scores at the levels ``KNOWN_LEVELS``. Empty: the score is the largest logit itself, as in bundles
            without quantiles, and photos get no credit.
    """

    rejection: float = -math.inf
    quantiles: tuple[float, ...] = ()

    def score(self, logits: np.ndarray, length: float) -> float:
        """Return the score of a photo.

        Args:
            logits: logits of the classifier without history, (C,).
            length: Euclidean length of the photo's feature.
        """
        return float(logits.max()) / (max(length, 1e-12) if self.quantiles else 1.0)

    def credit(self, score: float) -> float:
        """Return the credit of a photo that counts, in nats."""
        if not self.quantiles:
            return 0.0
        at = bisect_right(self.quantiles, score)
        level = KNOWN_LEVELS[max(at - 1, 0)]
        if 0 < at < len(KNOWN_LEVELS):  # between two quantiles; numpy takes longer for it
            low, high = self.quantiles[at - 1 : at + 1]
            level += (score - low) * (KNOWN_LEVELS[at] - level) / (high - low)
        return min(-math.log(_STEEPNESS) - (_STEEPNESS - 1) * math.log1p(-level), MOST_CREDIT)


def length_of(feature: np.ndarray) -> float:
    """Return the Euclidean length of a feature, (D,)."""
    return float(np.linalg.norm(feature.astype(np.float64)))


def known_scores_of(head: Head) -> KnownScores:
    """Return the scores that a head's entry in the manifest states."""
    if not isinstance(head.rejection, float):
        return KnownScores()
    return KnownScores(head.rejection, head.known_scores if isinstance(head.known_scores, tuple) else ())


def known_scores(
    logits: np.ndarray, lengths: np.ndarray, labels: Sequence[str | None], names: Sequence[str]
) -> KnownScores:
    """Return the scores of the correct answers to photos.

    Args:
        logits: logits of photos, (n, C).
        lengths: lengths of their features, (n,).
        labels: label of each photo, where it is known. Of fewer than ``FEWEST_LABELLED`` labelled photos none counts;
            each photo then counts with its probability of being answered correctly.
        names: C labels in the order of the logits.
    """
    best, largest = logits.argmax(axis=1), logits.max(axis=1)
    labelled = np.array([label in names for label in labels])
    weight = 1 / np.exp(logits - largest[:, None]).sum(axis=1)
    if labelled.sum() >= FEWEST_LABELLED:
        weight = np.array([names[number] == label for number, label in zip(best, labels, strict=True)], dtype=float)
    weight = weight if weight.any() else np.ones(len(best))  # no answer is correct: nothing tells known photos
    score = largest / np.maximum(lengths, 1e-12)
    order = np.argsort(score)
    reached = np.cumsum(weight[order]) / weight.sum()
    found = score[order][np.searchsorted(reached, KNOWN_LEVELS).clip(max=len(order) - 1)]
    quantiles = tuple(float(f"{one - _MARGIN * abs(one):.6g}") for one in found.tolist())
    return KnownScores(quantiles[0], quantiles)
