"""Each method that adapts at test time, on toy streams where its claim is true by construction."""

from __future__ import annotations

import numpy as np
import pytest

from refocus.cloud_train.methods.iciia.delivery import calibrate
from refocus.edge.recognize import ShareSettings, beside_head
from studies.streams.rivals.lame import Lame
from studies.streams.rivals.method import Knowledge, KnownClasses, Original, StreamMethod, softmax, unit
from studies.streams.rivals.prototypes import OnlinePrototypes
from studies.streams.rivals.shares import SharesMethod
from studies.streams.rivals.stata import StatA
from studies.streams.rivals.t3a import T3A

CLASSES, WIDTH = 12, 24
METHODS = {"shares": SharesMethod, "lame": Lame, "t3a": T3A, "stata": StatA, "prototypes": OnlinePrototypes}
CENTRES = unit(np.random.default_rng(0).normal(size=(CLASSES, WIDTH)))


class HeadWithShares:
    """A trained head's answer with shares, gated by these or not: the device's own code (``beside_head``)."""

    def __init__(self, head: StreamMethod, knowledge: Knowledge, gated: bool, settings: ShareSettings | None = None):
        self._head, self._gated = head, gated
        self._shares = SharesMethod(knowledge, settings)

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        self._head.observe(feature, logits)
        self._shares.observe(feature, logits)

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        log_q = np.log(np.maximum(self._head.answer(feature, logits), 1e-30))
        found = self._shares.state.answer(logits)
        return softmax(beside_head(log_q, found, self._shares.state.settings.with_head, self._gated))

    def state_bytes(self) -> int:
        return self._head.state_bytes() + self._shares.state_bytes()


def knowledge() -> Knowledge:
    """Of a classifier that is the Bayes rule of features N(centre, 0.35^2 I), all classes alike."""
    weight = CENTRES / 0.35**2
    return Knowledge(1.0, np.full(CLASSES, 1 / CLASSES), weight, np.zeros(CLASSES), CENTRES, np.full(WIDTH, 0.1))


def photos(classes: list[int], count: int, seed: int, moved: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and features, which a shift of the person's own moves away from those of training."""
    rng = np.random.default_rng(seed)
    label = rng.choice(classes, count)
    shift = moved * unit(rng.normal(size=(CLASSES, WIDTH)))
    return label, CENTRES[label] + shift[label] + 0.35 * rng.normal(size=(count, WIDTH))


def accuracy(make, classes: list[int], history: int, seed: int, moved: float = 0.0) -> float:
    known = knowledge()
    label, features = photos(classes, history + 200, seed, moved)
    logits = features @ known.weight.T + known.bias
    method = make(known)
    for feature, one in zip(features[:history], logits[:history], strict=True):
        method.observe(feature, one)
    answers = [method.answer(f, z) for f, z in zip(features[history:], logits[history:], strict=True)]
    assert np.allclose(np.sum(answers, axis=1), 1)
    assert method.state_bytes() <= 4096 * 4 * WIDTH
    return float(np.mean(np.argmax(answers, axis=1) == label[history:]))


def gain(make, classes: list[int], history: int, moved: float = 0.0) -> float:
    return float(
        np.mean(
            [
                accuracy(make, classes, history, seed, moved) - accuracy(Original, classes, history, seed, moved)
                for seed in range(6)
            ]
        )
    )


@pytest.mark.parametrize("name", ["shares", "lame", "prototypes"])
def test_few_classes_are_recognised_better_after_a_history(name):
    assert gain(METHODS[name], [1, 4, 7], 40) > 0.02


def test_shares_come_near_the_classes_known():
    known = gain(lambda k: KnownClasses(k, np.array([1, 4, 7])), [1, 4, 7], 60)
    assert gain(SharesMethod, [1, 4, 7], 60) > 0.6 * known > 0


@pytest.mark.parametrize("name", ["t3a", "stata", "prototypes"])
def test_features_that_moved_are_followed(name):
    assert gain(METHODS[name], list(range(CLASSES)), 200, moved=0.9) > 0.01


@pytest.mark.parametrize("name", sorted(METHODS))
def test_without_history_the_plain_classifier_answers(name):
    assert gain(METHODS[name], [1, 4, 7], 0) == pytest.approx(0, abs=0.06)


@pytest.mark.parametrize("name", ["shares", "prototypes"])
def test_a_history_of_all_classes_changes_little(name):
    assert gain(METHODS[name], list(range(CLASSES)), 60) > -0.02


@pytest.mark.parametrize("gated", [True, False])
def test_a_head_gets_shares_on_top(gated):
    assert gain(lambda k: HeadWithShares(Original(k), k, gated), [1, 4, 7], 40) > 0.01


def test_the_temperature_of_least_cross_entropy_is_found():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(4000, 6)) * 2
    label = np.array([rng.choice(6, p=p) for p in softmax(logits)])
    assert calibrate(3 * logits, label) == pytest.approx(3, rel=0.1)
