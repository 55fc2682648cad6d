"""Several labels a photo, written as one text with ``;`` between them; an empty text is a photo without any.

Whether photos have one label or several is said by the caller (``data.labels``): a photo with one of several possible
labels looks like a photo of a class, so a table alone cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from refocus.cloud_train.errors import DataError
from refocus.edge.bundle import MAX_SET_LABELS
from refocus.edge.recognize import LABEL_SEPARATOR, label_set


def labels_of(
    photos: Sequence[str], texts: Sequence[str], column: str, where: str, several: bool
) -> tuple[tuple[str, ...], Sequence[str] | np.ndarray]:
    """Return the classes and the labels of R photos.

    Args:
        photos: names of the photos.
        texts: label or labels of each.
        column: name of their column.
        where: name of the table.
        several: whether photos have several labels.

    Raises:
        DataError: as :func:`label_sets`, or photos with one label each have several.
    """
    if several:
        return label_sets(photos, texts, column, where)
    refuse_unmeant_sets(photos, texts, column, where)
    return (), texts


def label_sets(
    photos: Sequence[str], texts: Sequence[str], column: str, where: str
) -> tuple[tuple[str, ...], np.ndarray]:
    """The labels of R photos.

    Args:
        photos, texts: (R,) names, and labels as ``a;b``.
        column, where: named in errors.

    Returns:
        the C label names, sorted, and (R, C) uint8: 1 for every label that a photo has.

    Raises:
        DataError: a label is empty or comes twice, no photo has more than one label, or there are more than 256 labels.
    """
    sets = []
    for photo, text in zip(photos, texts, strict=True):
        names = label_set(text)
        if "" in names or len(set(names)) < len(names):
            raise DataError(
                f"--data {where}: the {column} of {photo} is '{text}': expected different labels with"
                f" '{LABEL_SEPARATOR}' between them"
            )
        sets.append(names)
    if max(map(len, sets), default=0) < 2:
        raise DataError(
            f"--data {where}: no photo has two labels in column {column}, as a{LABEL_SEPARATOR}b; leave"
            " data.labels = several out, or name the column of all labels as data.label_column"
        )
    classes = tuple(sorted({name for names in sets for name in names}))
    if len(classes) > MAX_SET_LABELS:
        raise DataError(f"--data {where}: {len(classes)} labels, photos with several may have up to {MAX_SET_LABELS}")
    number = {name: index for index, name in enumerate(classes)}
    found = np.zeros((len(sets), len(classes)), dtype=np.uint8)
    for row, names in enumerate(sets):
        found[row, [number[name] for name in names]] = 1
    return classes, found


def refuse_unmeant_sets(photos: Sequence[str], texts: Sequence[str], column: str, where: str) -> None:
    """Refuses a table of photos with one label each in which some have several.

    A name with ``;`` is a class as any other, as long as no part of it is part of another class.

    Raises:
        DataError: a label is made of labels of other photos.
    """
    found = {text: photo for photo, text in zip(photos, texts, strict=True)}
    parts: dict[str, str] = {}
    for text in sorted(found):
        for part in label_set(text):
            other = parts.setdefault(part, text)
            if other != text:
                joint, alone = sorted((text, other), key=lambda name: LABEL_SEPARATOR not in name)
                raise DataError(
                    f"--data {where}: {found[joint]} has the {column} '{joint}', {found[alone]} has '{alone}': one"
                    " label and several in one table; expected one each, or several with --set data.labels=several"
                )


def as_text(value: Any) -> str:
    """A value of a table as text; a list of labels with ``;`` between them, nothing as ""."""
    return LABEL_SEPARATOR.join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
