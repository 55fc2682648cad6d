"""Scores of the correct answers of a head, from the photos of an export."""

from __future__ import annotations

import msgspec
import numpy as np

from refocus.edge.bundle import Head
from refocus.edge.recognize import known_scores
from refocus.export.bundle.class_shares import first_of_each
from refocus.export.parity.parity import Reference


def with_rejection(head: Head, reference: Reference) -> Head:
    """Return a head's manifest entry with the scores of correct answers.

    A head for photos with several labels gets none: a photo may have no label. One whose scores are out of the range of
    the manifest gets none either. One that gives probabilities gets a rejection threshold alone: they are no longer for
    longer features.

    Args:
        head: the entry.
        reference: eager PyTorch's answers to the parity photos.
    """
    if head.several:
        return head
    photos = dict(first_of_each((step.path, step.label) for step in reference.steps))
    answers, labels = [reference.answers[row] for row in photos], [*photos.values()]
    logits = np.stack([answer.outputs["plain_logits"] for answer in answers]).astype(np.float64)
    lengths = np.linalg.norm(np.stack([answer.feature for answer in answers]).astype(np.float64), axis=1)
    are_probabilities = logits.min() >= 0 and np.allclose(logits.sum(axis=1), 1, atol=1e-2)
    found = known_scores(logits, np.ones(len(logits)) if are_probabilities else lengths, labels, head.labels)
    quantiles = () if are_probabilities else found.quantiles
    if max(map(abs, (found.rejection, *quantiles))) > 1000:
        return head
    return msgspec.structs.replace(head, rejection=found.rejection, known_scores=quantiles or msgspec.UNSET)
