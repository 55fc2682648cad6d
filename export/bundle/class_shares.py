"""Class shares for any bundle: the settings with which a device estimates them.

Nothing is trained. The classifier's probabilities are calibrated by one temperature (Guo et al., "On calibration of
modern neural networks", ICML 2017): the one that training fitted on validation photos, or else the one under which the
labels of the given photos are likeliest, or else the one that a table of networks states. Where there is none of them,
the temperature is 1: the estimate loses gain, and not accuracy, where that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from refocus.edge.bundle import SET_SHARES_VERSION, SHARES_VERSION, Head, ShareCard
from refocus.edge.recognize import ShareSettings, label_set
from refocus.export.errors import ExportError
from refocus.export.parity.parity import Reference

T = TypeVar("T")
FEWEST_LABELLED = 64  # photos that a temperature is calibrated on
LOWEST, HIGHEST = 0.25, 10.0  # temperatures that are tried
MOST_ROWS = 65_536  # photos that count, times labels, where photos have several: what a restart adds up again
_STEPS = 400
_PRIOR = 4.0  # photos' worth of "as it is": few photos, or those it was trained on, must not sharpen it without end


def with_shares(head: Head, reference: Reference, say: Callable[[str], object]) -> Head:
    """Return a head's entry in the manifest with class shares.

    Shares of photos with several labels are left out if nothing calibrates them: they have no rejection threshold.

    Args:
        reference: eager PyTorch's answers to the parity photos, of which those with a label calibrate the temperature.
        say: function that is called with what calibrates the shares.

    Raises:
        ExportError: fewer than two labels, outputs that are neither logits nor probabilities of classes of which each
            photo has one, or labels without their rates.
    """
    if len(head.labels) < 2 and not head.several:
        raise ExportError(f"--personalise shares: {head.name} has {len(head.labels)} label; shares need two or more")
    settings = _label_settings(head) if head.several else {}
    plain = np.stack([answer.outputs["plain_logits"] for answer in reference.answers]).astype(np.float64)
    outputs = "logits" if head.several else kind_of(plain, head.name)
    logits = np.log(np.maximum(plain, np.finfo(np.float32).tiny)) if outputs == "probabilities" else plain
    photos = labelled_photos(head, reference)
    temperature = trained_temperature(head.training, head.several)
    if temperature is not None:
        how = "calibrated on validation photos in training"
    elif len(photos) >= FEWEST_LABELLED:
        temperature = _temperature(head, logits[list(photos)], list(photos.values()))
        how = f"calibrated on {len(photos)} labelled photos, which should be none that it was trained on"
    else:
        few = f"{len(photos)} of the photos have labels of {head.name}, and {FEWEST_LABELLED} or more calibrate them"
        few += " (give --photos with CLASS/photo folders, or metadata.csv with file_name and label)"
        if head.several and head.training.get("delivery", {}).get("gated"):
            raise ExportError(f"--personalise shares: class shares are the gate of {head.name}, and {few}")
        if head.several:
            say(f"shares: left out of {head.name}: {few}")
            return head
        known = head.training.get("calibration", {})
        how = f"measured on {known['measured_on']}" if known else "not calibrated, which costs a part of the gain"
        temperature, how = known.get("temperature", 1.0), f"{how}: {few}"
    say(f"shares: {head.name} at temperature {temperature:.3g}, {how}")
    version = SET_SHARES_VERSION if head.several else SHARES_VERSION
    return _declared(head, version, outputs=outputs, temperature=temperature, **settings)


def labelled_photos(head: Head, reference: Reference) -> dict[int, str]:
    """Return the row and the label of each photo that has a label of the head."""
    given = dict(first_of_each((step.path, step.label) for step in reference.steps))
    return {row: label for row, label in given.items() if label is not None and (head.several or label in head.labels)}


def trained_temperature(training: Mapping[str, Any], several: bool) -> float | None:
    """Return the temperature that training fitted on enough labelled validation photos, at which it chose what is
    delivered; None if it fitted none.

    Checkpoints from before ``calibrated_on`` fitted it for photos with one label, on all targets and more.
    """
    chosen = training.get("delivery") or {}
    photos = chosen.get("calibrated_on", 0 if several else chosen.get("targets", 0))
    return float(chosen["temperature"]) if photos >= FEWEST_LABELLED else None


def first_of_each(rows: Iterable[tuple[Path, T]]) -> Iterator[tuple[int, T]]:
    """Number and value of each row that is the first of its photo: mirrored copies have their original's path."""
    seen = set[Path]()
    for number, (path, value) in enumerate(rows):
        if path not in seen:
            seen.add(path)
            yield number, value


def _label_settings(head: Head) -> dict[str, Any]:
    """The settings of shares of each label, from its rate among training photos.

    Raises:
        ExportError: the head does not say how often each label was met in training.
    """
    rates = head.training.get("label_rates")
    if not rates:
        raise ExportError(
            f"--personalise shares: {head.name} does not say how often training photos have each label; train it again"
        )
    capacity = max(1, min(ShareSettings.capacity, MOST_ROWS // len(rates)))
    return {"base": tuple(rates), "capacity": capacity, "top": min(ShareSettings.top, len(rates))}


def _temperature(head: Head, logits: np.ndarray, labels: Sequence[str]) -> float:
    """The temperature of logits (n, C) of photos with these labels."""
    if not head.several:
        return calibrated(logits, np.array([head.labels.index(label) for label in labels]))
    present = np.array([[label in label_set(text) for label in head.labels] for text in labels])
    # Each label is an answer of two classes, the label and its absence.
    pairs = np.stack([logits.ravel(), np.zeros(logits.size)], axis=1)
    return calibrated(pairs, 1 - present.astype(np.int64).ravel())


def _declared(head: Head, version: int, **settings: Any) -> Head:
    """The head with shares in its entry, beside its head as validation people chose."""
    chosen = head.training.get("delivery", {})
    beside = {name: chosen.get(name, getattr(ShareSettings, name)) for name in ("with_head", "gated")}
    try:
        card = msgspec.convert({"version": version, **asdict(ShareSettings(**settings, **beside))}, ShareCard)
    except msgspec.ValidationError as error:
        raise ExportError(f"--personalise shares: {head.name}: {error}") from None
    return msgspec.structs.replace(head, personalisation=msgspec.structs.replace(head.personalisation, shares=card))


def kind_of(outputs: np.ndarray, name: str) -> str:
    """Whether outputs (n, C) of a classifier are "logits" or "probabilities".

    Raises:
        ExportError: they are neither: probabilities that do not sum to one say nothing of classes that exclude others.
    """
    if outputs.min() < 0 or outputs.max() > 1:
        return "logits"
    sums = outputs.sum(axis=1)
    if np.abs(sums - 1).max() > 1e-2:
        raise ExportError(
            f"--personalise shares: the outputs of {name} lie between 0 and 1 and sum to {sums.min():.3g} to"
            f" {sums.max():.3g}; expected logits, or probabilities that sum to 1 (a softmax, not a sigmoid per class)"
        )
    return "probabilities"


def calibrated(logits: np.ndarray, right: np.ndarray) -> float:
    """The temperature under which the right classes (n,) are likeliest, logits (n, C) divided by it."""
    grid, rows = np.geomspace(LOWEST, HIGHEST, _STEPS), np.arange(len(right))
    centred = logits - logits.max(axis=1, keepdims=True)
    losses = [
        (np.log(np.exp(centred / temperature).sum(axis=1)) - centred[rows, right] / temperature).sum()
        + _PRIOR * np.log(temperature) ** 2 / 2
        for temperature in grid
    ]
    return round(float(grid[int(np.argmin(losses))]), 4)
