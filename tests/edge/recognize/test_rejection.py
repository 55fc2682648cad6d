"""Rejection thresholds, and scores of correct answers."""

import numpy as np
import pytest

from refocus.edge.recognize.rejection import FEWEST_LABELLED, KnownScores, known_scores

NAMES = ("a", "b", "c")


def logits(best, count=200, sharpness=3.0, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 3)) + sharpness * rng.random((count, 1)) * np.eye(3)[best]


def score(given):
    return given.max(1)


def rejection_threshold(given, labels, names):
    return known_scores(given, np.ones(len(given)), labels, names).rejection


def test_one_correct_answer_in_twenty_is_below_the_threshold():
    labels = np.random.default_rng(1).integers(0, 3, 400)
    given = logits(labels, 400)
    found = rejection_threshold(given, [NAMES[label] for label in labels], NAMES)
    correct = given.argmax(1) == labels
    assert np.mean(score(given)[correct] < found) == pytest.approx(0.05, abs=0.01)


def test_without_labels_a_photo_counts_with_its_probability_of_being_correct():
    labels = np.random.default_rng(2).integers(0, 3, 2000)
    given = np.log(np.random.default_rng(3).dirichlet([1, 1, 1], 2000))  # labels drawn from them: calibrated
    labels = np.array([np.random.default_rng(i).choice(3, p=np.exp(row)) for i, row in enumerate(given)])
    with_labels = rejection_threshold(given, [NAMES[label] for label in labels], NAMES)
    assert rejection_threshold(given, [None] * 2000, NAMES) == pytest.approx(with_labels, abs=0.05)


def test_few_labels_do_not_decide():
    given = logits(np.zeros(200, dtype=int))
    few = ["a"] * (FEWEST_LABELLED - 1) + [None] * (201 - FEWEST_LABELLED)
    assert rejection_threshold(given, few, NAMES) == rejection_threshold(given, [None] * 200, NAMES)


def test_labels_of_none_of_the_classes_do_not_count():
    given = logits(np.zeros(200, dtype=int))
    assert rejection_threshold(given, ["dog"] * 200, NAMES) == rejection_threshold(given, [None] * 200, NAMES)


def test_a_classifier_that_is_never_correct_gets_a_threshold_nevertheless():
    given = logits(np.zeros(200, dtype=int), sharpness=9.0)
    wrong = [NAMES[(number + 1) % 3] for number in given.argmax(1)]
    assert np.isfinite(rejection_threshold(given, wrong, NAMES))


def test_the_temperature_does_not_change_which_photos_are_marked():
    given = logits(np.zeros(200, dtype=int))
    for temperature in (0.5, 3.0):
        marked = score(given / temperature) < rejection_threshold(given / temperature, [None] * 200, NAMES)
        assert 0 < marked.mean() < 0.15


def test_a_saturated_classifier_does_not_mark_all_of_its_correct_answers():
    given = 40.0 * np.eye(3)[np.zeros(200, dtype=int)]
    assert not (score(given) < rejection_threshold(given, ["a"] * 200, NAMES)).any()


def test_quantiles_of_scores_are_those_of_correct_answers_by_the_length_of_the_feature():
    labels = np.random.default_rng(1).integers(0, 3, 2000)
    given, lengths = logits(labels, 2000), np.random.default_rng(2).uniform(1, 9, 2000)
    found = known_scores(given, lengths, [NAMES[label] for label in labels], NAMES)
    scores = (score(given) / lengths)[given.argmax(1) == labels]
    np.testing.assert_allclose(found.quantiles, np.quantile(scores, [0.05, *np.arange(1, 10) / 10]), rtol=0.02)
    assert found.quantiles[0] == found.rejection
    assert found.score(given[0], lengths[0]) == pytest.approx(given[0].max() / lengths[0])


def test_credit_rises_with_the_score_and_has_limits():
    scores = KnownScores(1.0, tuple(np.linspace(1, 10, 10).tolist()))
    found = [scores.credit(value) for value in np.linspace(0, 20, 40)]
    assert found == sorted(found)
    assert found[0] == pytest.approx(-1.404, abs=1e-3)
    assert found[-1] == 2.5
    assert KnownScores(1.0).credit(5.0) == 0
