"""Rejection threshold: which answers are marked as guesses.

A photo that shows none of the labels gets a label too. The device compares the score of each answer with the threshold
(:attr:`Answer.known_score`). The score is the largest logit of the classifier without history
(Hendrycks et al., "Scaling out-of-distribution detection for real-world settings", ICML 2022). Unlike the largest
probability it is low where all logits are low, as on photos unlike those of training. The history of a person does not
change it. Photos below the threshold do not count for class shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

MARKED = 0.05  # part of the correct answers that are marked as guesses
_MARGIN = 1e-3  # of the score, for runtimes that round
FEWEST_LABELLED = 64  # photos with labels that take the place of the probabilities of being correct


def rejection_threshold(logits: np.ndarray, labels: Sequence[str | None], names: Sequence[str]) -> float:
    """Return the score that all but ``MARKED`` of the correct answers reach.

    Args:
        logits: logits of photos, (n, C).
        labels: label of each photo, where it is known. Of fewer than ``FEWEST_LABELLED`` labelled photos none counts;
            each photo then counts with its probability of being answered correctly.
        names: C labels in the order of the logits.
    """
    best, score = logits.argmax(axis=1), logits.max(axis=1)
    labelled = np.array([label in names for label in labels])
    weight = 1 / np.exp(logits - score[:, None]).sum(axis=1)
    if labelled.sum() >= FEWEST_LABELLED:
        weight = np.array([names[number] == label for number, label in zip(best, labels, strict=True)], dtype=float)
    weight = weight if weight.any() else np.ones(len(score))  # no answer is correct: nothing tells known photos
    order = np.argsort(score)
    reached = np.cumsum(weight[order]) / weight.sum()
    least = float(score[order][np.searchsorted(reached, MARKED)])
    return math.floor(1e4 * (least - _MARGIN)) / 1e4
