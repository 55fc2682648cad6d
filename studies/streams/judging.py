"""Evaluation of methods on the photos of pseudo-people.

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
    """Photos of one split.

    Attributes:
        features: features, (R, D).
        logits: logits of the plain classifier, (R, C).
        label: classes, (R,).
    """

    features: np.ndarray
    logits: np.ndarray
    label: np.ndarray


@dataclass
class Evaluated:
    """Answers of one method to the photos of people.

    Attributes:
        right: accuracy of each person at each step, (people, steps).
        flags: whether each answer of the last step is correct, (people, targets).
        confidence: probability of each of these answers, (people, targets).
        state_bytes: size of the largest state of a stream, in bytes.
    """

    right: list[list[float]] = field(default_factory=list)
    flags: list[list[bool]] = field(default_factory=list)
    confidence: list[list[float]] = field(default_factory=list)
    state_bytes: int = 0

    def add(self, steps: Sequence[Sequence[bool]], confidence: Sequence[float]) -> None:
        """Add the answers of one person.

        Args:
            steps: whether each answer is correct, per step.
            confidence: probabilities of the answers of the last step.
        """
        self.right.append([float(np.mean(step)) for step in steps])
        self.flags.append(list(steps[-1]))
        self.confidence.append(list(confidence))


def evaluate(make: Callable[[PseudoPerson], StreamMethod], people: Sequence[PseudoPerson], split: Split) -> Evaluated:
    """Evaluate a new method on each stream of each person."""
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
    """Evaluate a trained head alone and with class shares.

    Returns:
        Answers by name. "head" is the head alone. "both g" and "gated g" combine it with class shares at each exponent
        g, without and with the gate that needs no training, see :func:`beside_head`. "plain" is the classifier and
        "shares" is class shares, both without the head.
    """
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
    """Yield the probabilities (G, C) by way of answering, for each step."""
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
    """Return the expected calibration error of answers (n,).

    Bins have equal widths (Guo et al., ICML 2017, equation 3).
    """
    number = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(flags[number == b].mean() - confidence[number == b].mean()) * (number == b).mean() for b in set(number)]
    return float(sum(gaps))


def share_harmed(group: Group, correct: np.ndarray, plain: np.ndarray) -> float:
    """Return the share of people whom a method harms.

    Args:
        group: group with the people of the answers.
        correct: whether each answer of the method is correct, (n,).
        plain: whether each answer of the plain classifier is correct, (n,).
    """
    people = [group.person == number for number in range(group.record["people"])]
    return float(np.mean([harmed(correct[own], plain[own]) for own in people]))


def harmed(flags: np.ndarray, plain: np.ndarray) -> bool:
    """Return whether a method is significantly worse for a person.

    It is if the 95 % normal interval of the paired difference over their photos lies below zero.
    """
    difference = flags.astype(float) - plain.astype(float)
    return bool(difference.mean() + 1.96 * difference.std(ddof=1) / np.sqrt(len(difference)) < 0)


def row(
    labels: dict[str, Value], answers: tuple[np.ndarray, np.ndarray], found: Evaluated, facts: dict[str, Any]
) -> Row:
    """Return a method's answers as a row of an experiment.

    Args:
        labels: labels of the row.
        answers: person and photo of each answer, (n,) each.
        found: answers of the method.
        facts: further facts; accuracies by step, calibration error and state size are added.
    """
    correct = np.concatenate(found.flags)
    of_all = {
        "steps": np.mean(found.right, axis=0).tolist(),
        "ece": calibration_error(correct, np.concatenate(found.confidence)),
        "state_bytes": found.state_bytes,
    }
    return Row(labels, *answers, {"accuracy": correct.astype(int)}, of_all | facts)
