"""Answers of methods to the photos of pseudo-people, and how good they are.

Notation: C classes, G photos that are answered, D feature width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from refocus.cloud_train.methods.iciia.block import IciiaClassifier
from refocus.edge.recognize import ShareSettings, beside_head
from studies.experiment import Group, Row, Value
from studies.streams.pseudo_people import Case, PseudoPerson
from studies.streams.rivals.method import Knowledge, Original, StreamMethod, softmax
from studies.streams.rivals.shares import SharesMethod

Make = Callable[[Knowledge], StreamMethod]


@dataclass(frozen=True)
class Split:
    """Photos of one split: features (R, D), the plain classifier's logits (R, C), labels (R,)."""

    features: np.ndarray
    logits: np.ndarray
    label: np.ndarray


@dataclass
class Evaluated:
    """Answers of one method to the photos of people.

    Attributes:
        right: of each person, the share of right answers at each step, (people, steps).
        flags: of each person, whether each answer of the last step was right, (people, targets).
        confidence: of these, the probability of the answer.
        state_bytes: largest state of a stream.
    """

    right: list[list[float]] = field(default_factory=list)
    flags: list[list[bool]] = field(default_factory=list)
    confidence: list[list[float]] = field(default_factory=list)
    state_bytes: int = 0

    def add(self, steps: Sequence[Sequence[bool]], confidence: Sequence[float]) -> None:
        """Takes in one person: whether answers were right at each step, and how sure the last ones were."""
        self.right.append([float(np.mean(step)) for step in steps])
        self.flags.append(list(steps[-1]))
        self.confidence.append(list(confidence))


def evaluate(make: Callable[[PseudoPerson], StreamMethod], people: Sequence[PseudoPerson], split: Split) -> Evaluated:
    """Shows each person's streams to a fresh method and asks it."""
    result = Evaluated()
    for person in people:
        steps: list[list[bool]] = [[] for _ in person.cases[0].steps]
        sure: list[float] = []
        for case in person.cases:
            method = make(person)
            for number, (observed, answered) in enumerate(case.steps):
                for row in observed.tolist():
                    method.observe(split.features[row], split.logits[row])
                answers = [method.answer(split.features[row], split.logits[row]) for row in answered.tolist()]
                labels = split.label[answered]
                steps[number] += [int(p.argmax()) == label for p, label in zip(answers, labels, strict=True)]
                if number == len(case.steps) - 1:
                    sure += [float(p.max()) for p in answers]
            result.state_bytes = max(result.state_bytes, method.state_bytes())
        result.add(steps, sure)
    return result


def evaluate_head(
    model: IciiaClassifier,
    people: Sequence[PseudoPerson],
    split: Split,
    knowledge: Knowledge,
    settings: ShareSettings,
    exponents: Sequence[float],
) -> dict[str, Evaluated]:
    """The answers of a trained head by itself ("head"), and with class shares at each exponent g, without ("both g")
    and with the gate that needs no training ("gated g"), see :func:`beside_head`; and those without a head, of the
    classifier ("plain") and of class shares ("shares")."""
    names = ["head", *(f"{kind} {g:g}" for kind in ("both", "gated") for g in exponents)]
    result = {
        "plain": evaluate(lambda _: Original(knowledge), people, split),
        "shares": evaluate(lambda _: SharesMethod(knowledge, settings), people, split),
        **{name: Evaluated() for name in names},
    }
    for person in people:
        steps: dict[str, list[list[bool]]] = {name: [[] for _ in person.cases[0].steps] for name in names}
        sure: dict[str, list[float]] = {name: [] for name in names}
        for case in person.cases:
            found = _head_answers(model, case, split, SharesMethod(knowledge, settings), exponents)
            for number, (answers, (_, answered)) in enumerate(zip(found, case.steps, strict=True)):
                for name, probability in answers.items():
                    steps[name][number] += (probability.argmax(1) == split.label[answered]).tolist()
                    if number == len(case.steps) - 1:
                        sure[name] += probability.max(1).tolist()
        for name in names:
            result[name].add(steps[name], sure[name])
    return result


def _head_answers(
    model: IciiaClassifier, case: Case, split: Split, shares: SharesMethod, exponents: Sequence[float]
) -> Iterator[Mapping[str, np.ndarray]]:
    """Of each step, probabilities (G, C) by way of answering."""
    kept, past = model.iciia.config.receptive_field - 1, np.zeros(0, dtype=np.int64)
    for observed, answered in case.steps:
        for row in observed.tolist():
            shares.observe(split.features[row], split.logits[row])
        past = np.concatenate([past, observed])
        newest = past[len(past) - min(len(past), kept) :]
        windows = np.concatenate([np.tile(newest, (len(answered), 1)), answered[:, None]], axis=1).astype(np.int64)
        features = torch.from_numpy(np.ascontiguousarray(split.features[windows]))
        with torch.no_grad():
            own = model.last(features, torch.ones(windows.shape, dtype=torch.bool))[0].double().numpy()
        found = [shares.state.answer(logits) for logits in split.logits[answered]]
        answers = {"head": softmax(own)}
        for g in exponents:
            for kind, gated in (("both", False), ("gated", True)):
                mixed = [softmax(beside_head(logits, one, g, gated)) for logits, one in zip(own, found, strict=True)]
                answers[f"{kind} {g:g}"] = np.stack(mixed)
        yield answers


def calibration_error(flags: np.ndarray, confidence: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error over equally wide bins (Guo et al., ICML 2017, equation 3), of answers (n,)."""
    number = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(flags[number == b].mean() - confidence[number == b].mean()) * (number == b).mean() for b in set(number)]
    return float(sum(gaps))


def share_harmed(group: Group, correct: np.ndarray, plain: np.ndarray) -> float:
    """Return the share of the people whom a method harms, of all answers of a group, (n,)."""
    people = [group.person == number for number in range(group.record["people"])]
    return float(np.mean([harmed(correct[own], plain[own]) for own in people]))


def harmed(flags: np.ndarray, plain: np.ndarray) -> bool:
    """Whether a person's paired loss, with its own 95 % normal interval over their photos, lies below zero."""
    difference = flags.astype(float) - plain.astype(float)
    return bool(difference.mean() + 1.96 * difference.std(ddof=1) / np.sqrt(len(difference)) < 0)


def row(
    labels: dict[str, Value], answers: tuple[np.ndarray, np.ndarray], found: Evaluated, facts: dict[str, Any]
) -> Row:
    """Return a method's answers as a row of an experiment.

    Args:
        answers: person and photo of each, (n,).
        facts: beside the accuracy at each step, the calibration error and the bytes of state.
    """
    correct = np.concatenate(found.flags)
    of_all = {
        "steps": np.mean(found.right, axis=0).tolist(),
        "ece": calibration_error(correct, np.concatenate(found.confidence)),
        "state_bytes": found.state_bytes,
    }
    return Row(labels, *answers, {"accuracy": correct.astype(int)}, of_all | facts)
