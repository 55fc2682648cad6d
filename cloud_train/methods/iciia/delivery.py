"""Choose how a head is delivered.

The plain classifier, class shares, a trained head, or head and shares together.

A head that was trained on few people, or on people who have little in common, can be behind class shares, which need
no training; and one that trusts any history is far behind the plain classifier where the history is somebody else's.
Validation people decide: the same photos, each after the same history, answered in every way, once with their own
history and once with that of another of them. What is expected to be right most often is delivered, where
``FOREIGN_PART`` of the photos come after a history that is not their person's.

A camera roll also has photos that show none of the classes, on which a head was not trained. Half of the classes are
therefore deleted from the classifier and from the head in a second, open pass: their photos stay in the histories, and
photos of the other classes are answered. ``OPEN_PART`` of the expected accuracy is that of the open pass. There is none
for photos with several labels, nor for fewer than ``FEWEST_CLASSES`` classes.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import nn

from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.data.label_loss import right
from refocus.cloud_train.data.table import foreigners_of
from refocus.cloud_train.methods.iciia.block import IntraClientAttention
from refocus.cloud_train.methods.iciia.programs import WindowHead
from refocus.cloud_train.methods.iciia.train import spread
from refocus.edge.recognize import (
    ClassShares,
    LabelShares,
    ShareAnswer,
    ShareSettings,
    beside_head,
    known_scores,
    sigmoid,
)

FOREIGN_PART = 0.2  # of the photos to answer, as foreign histories are one of the five contents of the protocol
OPEN_PART = 0.5  # of the expected accuracy
FEWEST_CLASSES = 4  # of the open pass, which keeps half of them
CLOSE = 0.001  # of accuracy: what people cannot tell
Value = TypeVar("Value", float, np.ndarray)
EXPONENTS = (0.25, 0.5, 0.75, 1.0)  # of the shares beside a head, see ``ShareSettings.with_head``
THRESHOLDS = np.linspace(0.1, 0.9, 33)  # that are tried; one half is among them
FEWEST_OF_A_LABEL = 24  # photos with a label, and photos without it, that a threshold is fitted on
STATED = ("choice", "with_head", "gated", "temperature", "calibrated_on", "history", "people", "targets")
Shares = ClassShares | LabelShares
Choice = Literal["plain", "shares", "head", "both"]


@dataclass(frozen=True)
class Delivery:
    """What validation people were served best by.

    Attributes:
        choice: "head" and "both" only where a head is better than shares alone.
        with_head: exponent of the shares beside the head.
        gated: whether the shares also decide how far the head is followed, as it has no gate of its own.
        temperature: of the plain classifier, for shares.
        calibrated_on: photos that it was fitted on.
        history: photos before each target.
        people, targets: that were answered.
        accuracy: of "plain", "shares", "head", both by exponent, and of the control "uniform", the head with the same
            attention to every photo; mean over people, with their own history.
        foreign: the same with another person's history; empty where nobody else has photos enough.
        open: accuracies of the open pass, expected with own and foreign histories; empty without one.
        thresholds: (C,) where photos have several labels, the least probability of each label at which what is
            delivered gives it; else empty. Accuracies are then mean shares of right labels at one half.
    """

    choice: Choice
    with_head: float
    gated: bool
    temperature: float
    calibrated_on: int
    history: int
    people: int
    targets: int
    accuracy: dict[str, float]
    foreign: dict[str, float]
    open: dict[str, float]
    thresholds: tuple[float, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in STATED},
            "foreign_part": FOREIGN_PART if self.foreign else 0.0,
            "open_part": OPEN_PART if self.open else 0.0,
            **{
                part: {name: round(value, 4) for name, value in getattr(self, part).items()}
                for part in ("accuracy", "foreign", "open")
            },
        }


def choose_delivery(
    head: WindowHead,
    validation: FeatureCache,
    history: int,
    targets_per_client: int = 16,
    gated: bool = False,
    base: tuple[float, ...] = (),
) -> Delivery:
    """Answer targets of validation people in every way.

    Each with the person's own history and with another person's.

    Args:
        history: photos before each target; people with fewer are left out.
        gated: whether shares are the head's gate; such a head is not delivered without them.
        base: where photos have several labels, (C,) rate of each label among training photos.
    """
    several = validation.table.several
    plain = plain_logits(head.plain, validation)
    temperature = (calibrate_labels if several else calibrate)(plain, validation.table.label)
    asked = (head, validation, plain, history, temperature, targets_per_client, gated)
    answers = logits_in_every_way(*asked, base=base)
    flags = right_answers(answers)
    own, foreign = _mean(flags), _mean(right_answers(logits_in_every_way(*asked, foreign=True, base=base)))
    seen, opened = [], {}
    if not several and head.plain.out_features >= FEWEST_CLASSES:
        kept = kept_classes(head.plain.out_features)
        seen, strange = (right_answers(logits_in_every_way(*asked, foreign=one, kept=kept)) for one in (False, True))
        opened = expected_of(_mean(seen), _mean(strange))
    doubt = {way: expected(_doubt(flags, way), _doubt(seen or flags, way), OPEN_PART) for way in own}
    found = expected_of(own, foreign, opened)
    choice, with_head = _best({way: value - doubt[way] for way, value in found.items()}, gated)
    thresholds: tuple[float, ...] = ()
    if several:
        way = str(with_head) if choice == "both" else choice
        scale = temperature if way == "plain" else 1.0  # the plain classifier is delivered as it is
        parts = [(scale * logits[way], label) for logits, label in answers] or [(plain, validation.table.label)]
        logits, label = (np.concatenate(column) for column in zip(*parts, strict=True))
        thresholds = fit_thresholds(sigmoid(logits), label)
    targets = sum(len(person["plain"]) for person in flags)
    counts = len(plain), history, len(flags), targets
    return Delivery(choice, with_head, gated, temperature, *counts, own, foreign, opened, thresholds)


def kept_classes(classes: int) -> np.ndarray:
    """Return the numbers of the classes that the open pass keeps: half of them, by a hash of the number."""
    order = sorted(range(classes), key=lambda number: hashlib.sha256(str(number).encode()).digest())
    return np.sort(order[: (classes + 1) // 2])


def calibrate_labels(logits: np.ndarray, label: np.ndarray) -> float:
    """Return the temperature for photos with several labels.

    As :func:`calibrate` does for one label; logits and labels are (n, C).

    Each label is an answer of two classes, the label and its absence.
    """
    return calibrate(np.stack([logits.ravel(), np.zeros(logits.size)], axis=1), 1 - label.astype(np.int64).ravel())


def fit_thresholds(probability: np.ndarray, label: np.ndarray) -> tuple[float, ...]:
    """Of each label the threshold that is right most often.

    Labels that too few photos have, or lack, keep one half, and so does a label whose best threshold is hardly better:
    a threshold of few photos would be their noise.

    Args:
        probability, label: (n, C).

    Returns:
        (C,) in [0.1, 0.9].
    """
    found = []
    for p, y in zip(probability.T, label.T.astype(bool), strict=True):
        right = np.array([np.mean((p >= threshold) == y) for threshold in THRESHOLDS])
        middle = right[len(THRESHOLDS) // 2]
        enough = min(y.sum(), (~y).sum()) >= FEWEST_OF_A_LABEL and right.max() > middle + 1 / np.sqrt(len(y)) / 4
        best = np.flatnonzero(right == right.max())
        found.append(float(THRESHOLDS[best[np.abs(THRESHOLDS[best] - 0.5).argmin()]]) if enough else 0.5)
    return tuple(found)


def expected_of(
    own: dict[str, float], foreign: dict[str, float], opened: dict[str, float] | None = None
) -> dict[str, float]:
    """Return the expected accuracy of each way.

    ``FOREIGN_PART`` of the photos come after another person's history; none where there are no others.

    Args:
        own: accuracies of the closed pass with a person's own history.
        foreign: accuracies of the closed pass with another person's history.
        opened: expected accuracies of the open pass; default: there was none.
    """
    closed = {name: expected(own[name], foreign.get(name, own[name])) for name in own}
    return {name: expected(value, (opened or closed)[name], OPEN_PART) for name, value in closed.items()}


def accuracy_of(delivery: Mapping[str, Any]) -> float:
    """Return the expected accuracy of the delivery in a head's card.

    0 where no person was answered.
    """
    choice = str(delivery["with_head"]) if delivery["choice"] == "both" else delivery["choice"]
    return expected_of(delivery["accuracy"], delivery.get("foreign") or {}, delivery.get("open")).get(choice, 0.0)


def uniform_attention(head: WindowHead) -> WindowHead:
    """Return a copy of a head that attends to all photos alike.

    Without queries, all scores are 0.
    """
    same = copy.deepcopy(head)
    for module in same.modules():
        if isinstance(module, IntraClientAttention):
            module.qkv.weight.data[:, : module.qkv.size] = 0
            module.qkv.bias.data[: module.qkv.size * module.qkv.partitions] = 0
    return same


def _mean(flags: list[dict[str, np.ndarray]]) -> dict[str, float]:
    return {name: float(np.mean([person[name].mean() for person in flags])) for name in (flags[0] if flags else {})}


def _doubt(flags: list[dict[str, np.ndarray]], way: str) -> float:
    """Return the standard error of a gain over the plain classifier.

    Deviations are measured from zero, so one person alone never shows a gain.
    """
    gains = [float(person[way].mean() - person["plain"].mean()) for person in flags]
    return float(np.linalg.norm(gains)) / max(1, len(gains))


Answers = tuple[dict[str, np.ndarray], np.ndarray]  # of one person: logits (targets, C) by way, and the targets' labels


def right_answers(answers: list[Answers]) -> list[dict[str, np.ndarray]]:
    """Return how far each target of each person is correct, by way.

    See :func:`refocus.cloud_train.data.label_loss.right`.
    """
    return [
        {way: right(torch.from_numpy(rows), torch.from_numpy(label)).numpy() for way, rows in logits.items()}
        for logits, label in answers
    ]


@torch.no_grad()
def plain_logits(plain: nn.Linear, bank: FeatureCache) -> np.ndarray:
    """(R, C) of the plain classifier, for every photo of a cache."""
    found: np.ndarray = plain(torch.from_numpy(bank.take())).numpy()
    return found


def logits_in_every_way(
    head: WindowHead,
    bank: FeatureCache,
    plain: np.ndarray,
    history: int,
    temperature: float,
    targets_per_client: int = 16,
    gated: bool = False,
    foreign: bool = False,
    base: tuple[float, ...] = (),
    kept: np.ndarray | slice = slice(None),
) -> list[Answers]:
    """Return the answers to targets of each person with enough photos.

    They are "plain", "shares", "head", those by exponent, and "uniform".

    Args:
        plain: of :func:`plain_logits`.
        foreign: with the first photos of somebody else as history, another person for each target; see
            :func:`foreigners_of`. Nobody is answered so where only one has photos enough.
        base: of :class:`ShareSettings`.
        kept: numbers of the classes that are not deleted; photos of the others are in histories alone. Labels of the
            answers count among these.
    """
    several, label = bank.table.several, bank.table.label
    settings = ShareSettings(temperature=temperature, gated=gated, base=base)
    lengths = np.linalg.norm(bank.take().astype(np.float64), axis=1)
    classes, plain, known = np.arange(plain.shape[1])[kept], plain[:, kept], np.ones(len(plain), bool)
    least: dict[str, Any] = {}
    if not several:
        known, label = np.isin(label, classes), np.searchsorted(classes, label)
        count = int(known.sum())
        least = {"known": known_scores(plain[known], lengths[known], [None] * count, ())} if count else {}
    shares = (LabelShares if several else ClassShares)(settings, len(classes), **least)
    both = head, uniform_attention(head)
    found, people = [], [rows for _, rows in bank.table.clients() if len(rows) > history]
    homes = [bank.table.home(rows) for rows in people]
    for number, rows in enumerate(people):
        targets = history + np.flatnonzero(known[rows[history:]])
        positions = targets[np.array(spread(history, history + len(targets), targets_per_client), int) - history]
        before = [rows[position - history : position] for position in positions]
        if foreign:
            strangers = foreigners_of(homes, number)
            before = [people[other][:history] for _, other in zip(positions, itertools.cycle(strangers), strict=False)]
        if before:
            cut = np.stack([np.append(part, rows[at]) for part, at in zip(before, positions, strict=True)])
            found.append((_answered(both, bank, cut, (plain, lengths), shares, kept), label[cut[:, -1]]))
    return found


def _answered(
    both: Sequence[WindowHead],
    bank: FeatureCache,
    cut: np.ndarray,
    classified: tuple[np.ndarray, np.ndarray],
    shares: Shares,
    classes: np.ndarray | slice,
) -> dict[str, np.ndarray]:
    """Return logits (targets, C) by way, of a head and its control.

    ``cut`` is (targets, history + 1), the target last; ``classified`` has the plain logits (R, C) and the lengths of
    the features (R,); ``classes`` are those of the head's that they have.
    """
    plain, lengths = classified
    window = both[0].personal.iciia.config.receptive_field - 1
    kept = cut[:, -(window + 1) :]
    features = torch.from_numpy(bank.take_rows(kept.ravel())).reshape(*kept.shape, -1)
    history = torch.full((len(kept),), kept.shape[1] - 1)
    padded = torch.zeros(len(kept), window, features.shape[-1])
    padded[:, window - (kept.shape[1] - 1) :] = features[:, :-1]
    with torch.no_grad():
        answers = [model(features[:, -1], padded, history)[2][:, classes] for model in both]
        delivered, uniform = ((rows if bank.table.several else rows.log_softmax(1)).numpy() for rows in answers)
    logits: dict[str, list[np.ndarray]] = {name: [] for name in ("plain", "shares", *map(str, EXPONENTS))}
    for rows, own in zip(cut, delivered, strict=True):
        shares.clear()
        shares.extend(shares.row(plain[row], lengths[row]) for row in rows[:-1])
        answer = shares.answer(plain[rows[-1]], lengths[rows[-1]])
        logits["plain"].append(answer.plain_logits)
        logits["shares"].append(answer.logits)
        for exponent in EXPONENTS:
            logits[str(exponent)].append(_beside(own, answer, exponent, shares))
    return {**{name: np.stack(rows) for name, rows in logits.items()}, "head": delivered, "uniform": uniform}


def _beside(own: np.ndarray, answer: ShareAnswer, exponent: float, shares: Shares) -> np.ndarray:
    """A head's answer (C,) with shares that have this exponent."""
    if isinstance(shares, LabelShares):
        return shares.beside(own, answer, exponent)
    return beside_head(own, answer, exponent, shares.settings.gated)


def _best(accuracy: dict[str, float], gated: bool = False) -> tuple[Choice, float]:
    """Return the way with the largest accuracy.

    Within ``CLOSE`` of each other, the simpler one.
    """
    if not accuracy:
        return ("both" if gated else "head"), ShareSettings().with_head
    without = max(accuracy["plain"], accuracy["shares"])
    exponent = max(EXPONENTS, key=lambda value: accuracy[str(value)])
    together = accuracy[str(exponent)]
    with_history: Choice = "both" if gated or together > accuracy["head"] + CLOSE else "head"
    best = together if gated else max(accuracy["head"], together)
    if best <= without + CLOSE:
        return ("shares" if accuracy["shares"] > accuracy["plain"] + CLOSE else "plain"), exponent
    return with_history, exponent


def expected(own: Value, foreign: Value, foreign_part: float = FOREIGN_PART) -> Value:
    """Return a gain or accuracy where some histories are another person's.

    Numbers, or (points,).
    """
    return (1 - foreign_part) * own + foreign_part * foreign


def calibrate(logits: np.ndarray, label: np.ndarray) -> float:
    """The temperature of least cross-entropy on validation photos, logits (n, C) and labels (n,) (Guo et al., "On
    calibration of modern neural networks", ICML 2017), between 0.1 and 10."""
    candidates = np.exp(np.linspace(np.log(0.1), np.log(10.0), 185))
    rows = np.arange(len(label))

    def loss(temperature: float) -> float:
        scaled = logits / temperature
        top = scaled.max(1)
        normaliser = top + np.log(np.exp(scaled - top[:, None]).sum(1))
        return float((normaliser - scaled[rows, label]).mean())

    return float(min(candidates, key=loss))
