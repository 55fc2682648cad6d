"""Rejection threshold of a bundle: which answers are marked as guesses.

A photo that shows none of the labels gets a label too. The device compares the score of each answer with the threshold
(:attr:`refocus.edge.recognize.Answer.known_score`). Without history the score is the logarithm of the largest
probability (Hendrycks and Gimpel, "A baseline for detecting misclassified and out-of-distribution examples in neural
networks", ICLR 2017). Class shares raise the scores of photos of the person's classes and lower those of others.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from refocus.edge.bundle import Head
from refocus.export.bundle.class_shares import first_of_each
from refocus.export.parity.parity import Reference

MARKED = 0.05  # part of the correct answers that are marked as guesses
_MARGIN = 1e-3  # of the score, for runtimes that round
FEWEST_LABELLED = 64  # photos with labels that take the place of the probabilities of being correct


def with_rejection(head: Head, reference: Reference) -> Head:
    """Return a head's entry in the manifest with a rejection threshold.

    A head for photos with several labels gets none: a photo may have no label.

    Args:
        head: the entry, with the calibration of its class shares.
        reference: eager PyTorch's answers to the parity photos.
    """
    if head.several:
        return head
    shares = head.personalisation.shares
    photos = dict(first_of_each((step.path, step.label) for step in reference.steps))
    logits = np.stack([reference.answers[row].outputs["logits"] for row in photos]).astype(np.float64)
    if shares is not None and head.personalisation.form == "none":  # the answer with shares is calibrated
        given = np.log(np.maximum(logits, 1e-30)) if shares.outputs == "probabilities" else logits
        logits = given / shares.temperature
    return msgspec.structs.replace(head, rejection=threshold(logits, [*photos.values()], head.labels))


def threshold(logits: np.ndarray, labels: list[str | None], names: tuple[str, ...]) -> float:
    """Return the score that all but ``MARKED`` of the correct answers reach.

    Args:
        logits: calibrated logits of photos, (n, C).
        labels: label of each photo, where it is known. Of fewer than ``FEWEST_LABELLED`` labelled photos none counts;
            each photo then counts with its probability of being answered correctly.
        names: C labels in the order of the logits.
    """
    best = logits.argmax(axis=1)
    score = -np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1))
    labelled = np.array([label in names for label in labels])
    weight = np.exp(score)
    if labelled.sum() >= FEWEST_LABELLED:
        weight = np.array([names[number] == label for number, label in zip(best, labels, strict=True)], dtype=float)
    weight = weight if weight.any() else np.ones(len(score))  # no answer is correct: nothing tells known photos
    order = np.argsort(score)
    reached = np.cumsum(weight[order]) / weight.sum()
    least = float(score[order][np.searchsorted(reached, MARKED)])
    return math.floor(1e4 * (least - _MARGIN)) / 1e4
