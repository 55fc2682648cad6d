"""Accuracy of answers that are sets of labels: mean average precision, right labels, and the control of the history.

Notation: n photos, C labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refocus.benchmarks.measure.statistics import Interval, bootstrap_mean, widened
from refocus.edge.recognize import Answer, Recognizer, label_set, sigmoid

RESAMPLES = 300  # of people, for an interval of a mean average precision
CONTROLS = 8  # photos of each person that are answered after another person's photos too


def average_precision(score: np.ndarray, truth: np.ndarray) -> float:
    """Area under the precision-recall curve of one label, as a sum over recalls: sum_k (R_k - R_(k-1)) P_k.

    Photos of equal scores count together. The definition is scikit-learn's ``average_precision_score``.

    Args:
        score: (n,) larger where the label is more likely.
        truth: (n,) bool, whether the photo has it.

    Returns:
        in (0, 1]; nan where no photo has the label.
    """
    if not truth.any():
        return float("nan")
    order = np.argsort(-score, kind="stable")
    ranked, hits = score[order], np.cumsum(truth[order])
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # the last photo of each score
    recall, precision = hits[ends] / hits[-1], hits[ends] / (ends + 1)
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def mean_average_precision(score: np.ndarray, truth: np.ndarray) -> float:
    """Mean over labels of :func:`average_precision`; labels that no photo has are left out.

    Args:
        score: (n, C).
        truth: (n, C) bool.

    Returns:
        nan where no photo has any label.
    """
    found = [average_precision(score[:, label], truth[:, label]) for label in np.flatnonzero(truth.any(axis=0))]
    return float(np.mean(found)) if found else float("nan")


def truths(texts: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """(n, C) bool: the labels of photos that a table gives as ``a;b``."""
    number = {label: index for index, label in enumerate(labels)}
    found = np.zeros((len(texts), len(labels)), dtype=bool)
    for row, text in enumerate(texts):
        found[row, [number[label] for label in label_set(text)]] = True
    return found


@dataclass(frozen=True)
class SetAnswers:
    """The answers to one person's photos.

    Attributes:
        truth: (n, C) bool.
        delivered, plain: (n, C) probabilities with and without history.
        controlled: (m,) numbers of the photos that were answered after another person's photos too.
        foreign: (m, C) probabilities of these answers; empty where nobody else has as many photos.
    """

    truth: np.ndarray
    delivered: np.ndarray
    plain: np.ndarray
    controlled: np.ndarray
    foreign: np.ndarray


def collected(truth: np.ndarray, answers: Sequence[Answer]) -> SetAnswers:
    """A person's answers, before the control."""
    delivered, plain = (np.array([sigmoid(getattr(a, name)) for a in answers]) for name in ("logits", "plain_logits"))
    return SetAnswers(truth, delivered, plain, np.array([], dtype=np.int64), np.zeros((0, truth.shape[1])))


def joined(streams: Sequence[SetAnswers]) -> SetAnswers:
    """The answers to all streams of one person as one."""
    truth, delivered, plain, foreign = (
        np.concatenate([getattr(one, name) for one in streams]) for name in ("truth", "delivered", "plain", "foreign")
    )
    starts = np.cumsum([0, *(len(one.truth) for one in streams[:-1])])
    controlled = np.concatenate([one.controlled + start for one, start in zip(streams, starts, strict=True)])
    return SetAnswers(truth, delivered, plain, controlled, foreign)


def with_controls(
    device: Recognizer,
    people: dict[str, SetAnswers],
    features: dict[str, np.ndarray],
    owners: Mapping[str, str],
) -> dict[str, SetAnswers]:
    """The same streams, some photos of each answered after as many photos of another person's stream.

    That is the next stream of somebody else that is long enough; a photo for which there is none is left out.

    Args:
        features: (n, D) of each stream.
        owners: by stream, whose it is; a stream that is not named here is a person of its own.
    """
    names, found = list(people), {}
    owner = {name: owners.get(name, name) for name in names}
    for number, name in enumerate(names):
        person = people[name]
        chosen = np.unique(np.linspace(len(person.truth) // 2, len(person.truth) - 1, CONTROLS).astype(np.int64))
        strangers = [features[n] for n in (*names[number + 1 :], *names[:number]) if owner[n] != owner[name]]
        longest = max(map(len, strangers), default=-1)
        chosen = chosen[chosen <= longest]
        pasts = [next(rows[:photo] for rows in strangers if len(rows) >= photo) for photo in chosen]
        foreign = [
            sigmoid(device.answer(features[name][photo], past).logits)
            for photo, past in zip(chosen, pasts, strict=True)
        ]
        rows = np.array(foreign).reshape(-1, person.truth.shape[1])
        found[name] = SetAnswers(person.truth, person.delivered, person.plain, chosen, rows)
    return found


def right_labels(people: dict[str, SetAnswers], thresholds: np.ndarray) -> dict[str, np.ndarray]:
    """(n, 2) of each person: the share of labels, there or not, that are right with history and without."""
    return {
        name: np.stack([((p >= thresholds) == one.truth).mean(axis=1) for p in (one.delivered, one.plain)], axis=1)
        for name, one in people.items()
    }


def figures(people: dict[str, SetAnswers], thresholds: np.ndarray) -> dict[str, Any]:
    """Figures of a results document about sets of labels, each difference with its 95 % interval over people.

    ``foreign`` are differences to the photo alone, of the photos that were answered after their own person's photos and
    after another's. Of one person there are no differences, because they would have no interval.

    Args:
        people: the answers to all photos of each person (:func:`joined`).
    """
    everyone = list(people.values())
    scores = {name: [getattr(one, name) for one in everyone] for name in ("delivered", "plain")}
    truth = [one.truth for one in everyone]
    found: dict[str, Any] = {
        "mean_average_precision": {
            name: mean_average_precision(np.concatenate(rows), np.concatenate(truth)) for name, rows in scores.items()
        },
    }
    if len(everyone) < 2:
        return found
    found["gain"] = _gain(truth, scores["delivered"], scores["plain"], thresholds)
    there = [one for one in everyone if len(one.controlled)]
    if there:
        truth, plain = ([getattr(one, name)[one.controlled] for one in there] for name in ("truth", "plain"))
        own = [one.delivered[one.controlled] for one in there]
        found["control"] = {
            "photos": int(sum(len(one.controlled) for one in there)),
            "own": _gain(truth, own, plain, thresholds),
            "foreign": _gain(truth, [one.foreign for one in there], plain, thresholds),
        }
    return found


def _gain(
    truth: list[np.ndarray], after: list[np.ndarray], before: list[np.ndarray], thresholds: np.ndarray
) -> dict[str, Any]:
    """Differences of answers to the same photos, of right labels and of the mean average precision."""
    rows = list(zip(truth, after, before, strict=True))
    right = np.array([((a >= thresholds) == t).mean() - ((b >= thresholds) == t).mean() for t, a, b in rows])
    sizes = np.array([len(t) for t in truth], dtype=float)
    return {
        "right_labels": bootstrap_mean(right, sizes).as_dict(),
        "mean_average_precision": _over_people(rows).as_dict(),
    }


def _over_people(rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]], seed: int = 0) -> Interval:
    """Difference of two mean average precisions with its 95 % bootstrap interval, resampling people."""

    def difference(chosen: np.ndarray) -> float:
        truth, after, before = (np.concatenate([rows[person][part] for person in chosen]) for part in range(3))
        return mean_average_precision(after, truth) - mean_average_precision(before, truth)

    drawn = np.random.default_rng(seed).integers(len(rows), size=(RESAMPLES, len(rows)))
    low, high = np.nanpercentile([difference(chosen) for chosen in drawn], [2.5, 97.5])
    return widened(Interval(difference(np.arange(len(rows))), float(low), float(high)), len(rows))
