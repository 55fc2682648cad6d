"""The choice of what is delivered: the plain classifier, class shares, a trained head, or head and shares together.

A head that was trained on few people, or on people who have little in common, can be behind class shares, which need
no training. Validation people decide: the same photos, each after the same history, answered in every way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.methods.iciia.programs import WindowHead
from refocus.cloud_train.methods.iciia.train import spread
from refocus.cloud_train.methods.test_time.method import calibrate
from refocus.edge.recognize import ClassShares, ShareSettings, beside_head

EXPONENTS = (0.25, 0.5, 0.75, 1.0)  # of the shares beside a head, see ``ShareSettings.with_head``
STATED = ("choice", "with_head", "gated", "temperature", "history", "people", "targets")
Choice = Literal["plain", "shares", "head", "both"]


@dataclass(frozen=True)
class Delivery:
    """What validation people were served best by.

    Attributes:
        choice: "head" and "both" only where a head is better than shares alone.
        with_head: exponent of the shares beside the head.
        gated: whether the shares also decide how far the head is followed, as it has no gate of its own.
        temperature: of the plain classifier, for shares.
        history: photos before each target.
        people, targets: that were answered.
        accuracy: of "plain", "shares", "head" and of both by exponent, mean over people.
    """

    choice: Choice
    with_head: float
    gated: bool
    temperature: float
    history: int
    people: int
    targets: int
    accuracy: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in STATED},
            "accuracy": {name: round(value, 4) for name, value in self.accuracy.items()},
        }


def choose_delivery(
    head: WindowHead, validation: FeatureCache, history: int, targets_per_client: int = 8, gated: bool = False
) -> Delivery:
    """Answers targets of validation people in every way.

    Args:
        history: photos before each target; people with fewer are left out.
        gated: whether shares are the head's gate; such a head is not delivered without them.
    """
    with torch.no_grad():
        plain = head.plain(torch.from_numpy(validation.take())).numpy()
    temperature = calibrate(plain, validation.table.label)
    flags = answer_in_every_way(head, validation, history, temperature, targets_per_client, gated)
    accuracy = {name: float(np.mean([person[name].mean() for person in flags])) for name in (flags[0] if flags else {})}
    choice, with_head = _best(accuracy, gated)
    targets = sum(len(person["plain"]) for person in flags)
    return Delivery(choice, with_head, gated, temperature, history, len(flags), targets, accuracy)


def answer_in_every_way(
    head: WindowHead,
    bank: FeatureCache,
    history: int,
    temperature: float,
    targets_per_client: int = 8,
    gated: bool = False,
) -> list[dict[str, np.ndarray]]:
    """Of each person with enough photos, whether each target was right: "plain", "shares", "head", and by exponent."""
    with torch.no_grad():
        plain = head.plain(torch.from_numpy(bank.take())).numpy()
    shares = ClassShares(ShareSettings(temperature=temperature, gated=gated), head.plain.out_features)
    flags = []
    for _, rows in bank.table.clients():
        positions = spread(history, len(rows), targets_per_client)
        if positions:
            cut = np.stack([rows[position - history : position + 1] for position in positions])
            flags.append(_answered(head, bank, cut, plain, shares))
    return flags


def _answered(
    head: WindowHead, bank: FeatureCache, cut: np.ndarray, plain: np.ndarray, shares: ClassShares
) -> dict[str, np.ndarray]:
    """Whether each target was right, by way. Rows (targets, history + 1), the last of which is the target."""
    window = head.personal.iciia.config.receptive_field - 1
    kept = cut[:, -(window + 1) :]
    features = torch.from_numpy(bank.take_rows(kept.ravel())).reshape(*kept.shape, -1)
    history = torch.full((len(kept),), kept.shape[1] - 1)
    padded = torch.zeros(len(kept), window, features.shape[-1])
    padded[:, window - (kept.shape[1] - 1) :] = features[:, :-1]
    with torch.no_grad():
        delivered = torch.log_softmax(head(features[:, -1], padded, history)[2], dim=1).numpy()
    label = bank.table.label[cut[:, -1]]
    logits: dict[str, list[np.ndarray]] = {name: [] for name in ("plain", "shares", *map(str, EXPONENTS))}
    for rows, own in zip(cut, delivered, strict=True):
        shares.clear()
        shares.extend(shares.row(plain[row]) for row in rows[:-1])
        answer = shares.answer(plain[rows[-1]])
        logits["plain"].append(answer.plain_logits)
        logits["shares"].append(answer.logits)
        for exponent in EXPONENTS:
            logits[str(exponent)].append(beside_head(own, answer, exponent, shares.settings.gated))
    right = {name: np.argmax(rows, axis=1) == label for name, rows in logits.items()}
    return {**right, "head": delivered.argmax(1) == label}


def _best(accuracy: dict[str, float], gated: bool = False) -> tuple[Choice, float]:
    """Ties go to what is simpler."""
    if not accuracy:
        return ("both" if gated else "head"), ShareSettings().with_head
    without = max(accuracy["plain"], accuracy["shares"])
    exponent = max(EXPONENTS, key=lambda value: accuracy[str(value)])
    together = accuracy[str(exponent)]
    with_history: Choice = "both" if gated or together > accuracy["head"] else "head"
    best = together if gated else max(accuracy["head"], together)
    if best <= without:
        return ("shares" if accuracy["shares"] > accuracy["plain"] else "plain"), exponent
    return with_history, exponent
