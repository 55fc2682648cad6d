"""Rejection threshold of a head, from the photos of an export."""

from __future__ import annotations

import msgspec
import numpy as np

from refocus.edge.bundle import Head
from refocus.edge.recognize import rejection_threshold
from refocus.export.bundle.class_shares import first_of_each
from refocus.export.parity.parity import Reference


def with_rejection(head: Head, reference: Reference) -> Head:
    """Return a head's entry in the manifest with a rejection threshold.

    A head for photos with several labels gets none: a photo may have no label. One whose threshold is out of the range
    of the manifest gets none either.

    Args:
        head: the entry.
        reference: eager PyTorch's answers to the parity photos.
    """
    if head.several:
        return head
    photos = dict(first_of_each((step.path, step.label) for step in reference.steps))
    logits = np.stack([reference.answers[row].outputs["plain_logits"] for row in photos]).astype(np.float64)
    found = rejection_threshold(logits, [*photos.values()], head.labels)
    return msgspec.structs.replace(head, rejection=found) if abs(found) <= 1000 else head
