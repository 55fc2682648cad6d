"""Class shares for any bundle: what its manifest says so that a device estimates which classes a person meets.

Nothing is trained. The classifier's probabilities are calibrated by one temperature (Guo et al., "On calibration of
modern neural networks", ICML 2017), the one under which the labels of the given photos are likeliest; where too few
photos have labels, the temperature is 1, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from refocus.edge.bundle import SET_SHARES_VERSION, SHARES_VERSION, Head, ShareCard
from refocus.edge.recognize import ShareSettings, label_set
from refocus.export.errors import ExportError
from refocus.export.parity.parity import Reference

FEWEST_LABELLED = 64  # photos that a temperature is calibrated on
LOWEST, HIGHEST = 0.25, 10.0  # temperatures that are tried
MOST_ROWS = 65_536  # photos that count, times labels, where photos have several: what a restart adds up again
_STEPS = 400
_PRIOR = 4.0  # photos' worth of "as it is": few photos, or those it was trained on, must not sharpen it without end


def with_shares(head: Head, reference: Reference, say: Callable[[str], object]) -> Head:
    """The head's entry in the manifest, with class shares.

    Args:
        reference: eager PyTorch's answers to the parity photos, of which those with a label calibrate the temperature.

    Raises:
        ExportError: fewer than two labels, or outputs that are neither logits nor probabilities of classes of which
            each photo has one.
    """
    if head.several:
        return _with_label_shares(head, reference, say)
    if len(head.labels) < 2:
        raise ExportError(f"--personalise shares: {head.name} has {len(head.labels)} label; shares need two or more")
    plain = np.stack([answer.outputs["plain_logits"] for answer in reference.answers]).astype(np.float64)
    outputs = kind_of(plain, head.name)
    logits = np.log(np.maximum(plain, np.finfo(np.float32).tiny)) if outputs == "probabilities" else plain
    rows, right = _labelled(head, reference)
    temperature, how = 1.0, f"not calibrated: {len(rows)} of the photos have one of its labels, {FEWEST_LABELLED} or"
    how += " more calibrate it (give --photos with CLASS/photo folders, or metadata.csv with file_name and label)"
    if len(rows) >= FEWEST_LABELLED:
        temperature = calibrated(logits[rows], np.array(right))
        how = f"calibrated on {len(rows)} labelled photos, which should be none that it was trained on"
    say(f"shares: {head.name} at temperature {temperature:.3g}, {how}")
    return _declared(head, SHARES_VERSION, outputs=outputs, temperature=temperature)


def _with_label_shares(head: Head, reference: Reference, say: Callable[[str], object]) -> Head:
    """The same of a head whose answers are sets: the share of each label, from its rate among training photos.

    Raises:
        ExportError: the head does not say how often each label was met in training.
    """
    rates = head.training.get("label_rates")
    if not rates:
        raise ExportError(
            f"--personalise shares: {head.name} does not say how often training photos have each label; train it again"
        )
    rows, right = [], []
    for row, step in enumerate(reference.steps):
        if step.label is not None:
            rows.append(row)
            right.append([label in label_set(step.label) for label in head.labels])
    temperature, how = 1.0, f"not calibrated: {len(rows)} labelled photos, {FEWEST_LABELLED} or more calibrate it"
    if len(rows) >= FEWEST_LABELLED:
        plain = np.stack([reference.answers[row].outputs["plain_logits"] for row in rows]).astype(np.float64)
        # Each label is an answer of two classes, the label and its absence.
        pairs = np.stack([plain.ravel(), np.zeros(plain.size)], axis=1)
        temperature = calibrated(pairs, 1 - np.array(right, dtype=np.int64).ravel())
        how = f"calibrated on {len(rows)} labelled photos, which should be none that it was trained on"
    say(f"shares: {head.name}, of each of {len(rates)} labels, at temperature {temperature:.3g}, {how}")
    capacity = max(1, min(ShareSettings.capacity, MOST_ROWS // len(rates)))
    top = min(ShareSettings.top, len(rates))
    settings = {"temperature": temperature, "base": tuple(rates), "capacity": capacity, "top": top}
    return _declared(head, SET_SHARES_VERSION, **settings, revisit=min(ShareSettings.revisit, capacity))


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


def _labelled(head: Head, reference: Reference) -> tuple[list[int], list[int]]:
    """Numbers of the steps whose photo has one of the labels, each photo once, and the labels' numbers."""
    numbers = {label: number for number, label in enumerate(head.labels)}
    rows, right, seen = [], [], set[Path]()
    for row, step in enumerate(reference.steps):
        if step.label in numbers and step.path not in seen:  # mirrored copies have their original's path
            seen.add(step.path)
            rows.append(row)
            right.append(numbers[step.label])
    return rows, right
