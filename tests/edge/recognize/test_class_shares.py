"""Class shares on toy problems whose shares are known."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import numpy as np
import pytest

from refocus.edge.bundle import ShareCard
from refocus.edge.errors import BundleError, HistoryError, PhotoError, RuntimeUnavailable
from refocus.edge.history.likely_classes import LikelyClasses
from refocus.edge.recognize.class_shares import ClassShares, ShareSettings
from refocus.edge.recognize.label_sets import settings_of
from refocus.edge.recognize.rejection import KnownScores
from tests.edge.runtimes.native_fuzz import SHARES_TOLERANCE, shares_difference

CLASSES = 20
FLAT = np.full(CLASSES, 1 / CLASSES)
OPEN = ShareSettings()
CERTAIN = ShareSettings(no_shift=1e-6, elsewhere=0.0, penalty=0.0, half_life=0.0, top=CLASSES)


def photos(shares: np.ndarray, count: int, rng: np.random.Generator, sharpness: float = 2.0) -> tuple[np.ndarray, ...]:
    """Labels drawn from shares (C,), and logits (n, C) of a Bayes classifier trained on even shares.

    Features are N(mu_c, I) with mu_c = sharpness * e_c, so the log-likelihood of class c is sharpness * x_c + constant.
    """
    labels = rng.choice(len(shares), count, p=shares)
    features = rng.normal(size=(count, len(shares))) + sharpness * np.eye(len(shares))[labels]
    return labels, sharpness * features


def of(indices: list[int]) -> np.ndarray:
    shares = np.zeros(CLASSES)
    shares[indices] = 1 / len(indices)
    return shares


def after(settings: ShareSettings, logits: np.ndarray, rejection: float = -math.inf) -> ClassShares:
    state = ClassShares(settings, logits.shape[1], known=KnownScores(rejection))
    state.extend(state.row(one) for one in logits)
    return state


def softmax(logits: np.ndarray) -> np.ndarray:
    exponential = np.exp(logits - logits.max(-1, keepdims=True))
    return exponential / exponential.sum(-1, keepdims=True)


def accuracy(state: ClassShares, labels: np.ndarray, logits: np.ndarray) -> float:
    return float(np.mean([state.answer(one).logits.argmax() == y for one, y in zip(logits, labels, strict=True)]))


@pytest.mark.parametrize("base", [FLAT, np.arange(1, CLASSES + 1) / 210])
def test_votes_of_a_sharp_classifier_are_the_labels_of_the_history(base):
    """The prior then has its strength, whatever the shares of training were."""
    labels, logits = photos(of([2, 3, 5, 7]), 400, np.random.default_rng(0), sharpness=8.0)
    state = after(dataclasses.replace(CERTAIN, base=tuple(base)), logits + np.log(base))
    counted = (np.bincount(labels, minlength=CLASSES) + CERTAIN.strength * base) / (400 + CERTAIN.strength)
    np.testing.assert_allclose(state.estimate().shares, counted, atol=1e-4)


def test_known_shares_are_found_and_raise_accuracy():
    rng = np.random.default_rng(2)
    truth = of([0, 6, 11])
    _, history = photos(truth, 300, rng)
    labels, logits = photos(truth, 500, rng)
    state = after(OPEN, history)
    assert state.estimate().shares[truth > 0].sum() > 0.5
    plain = np.mean(logits.argmax(1) == labels)
    known = np.mean(np.where(truth > 0, logits, -np.inf).argmax(1) == labels)
    assert accuracy(state, labels, logits) - plain > 0.6 * (known - plain)
    own, foreign = (state.answer(10 * np.eye(CLASSES)[label]) for label in (6, 7))
    assert own.trust > 0.7 > 0.1 > own.moved
    assert foreign.trust < 0.6


@pytest.mark.parametrize("temperature", [1 / 3, 0.5, 1, 2, 3])
def test_no_shift_changes_next_to_nothing_whatever_the_temperature(temperature):
    rng = np.random.default_rng(3)
    settings = dataclasses.replace(OPEN, temperature=temperature)
    for count in (3, 15, 63, 255):
        _, history = photos(FLAT, count, rng, sharpness=1.5)
        labels, logits = photos(FLAT, 500, rng, sharpness=1.5)
        state = after(settings, history)
        assert accuracy(state, labels, logits) - np.mean(logits.argmax(1) == labels) > -0.01
    assert state.estimate().evidence < 0
    assert state.estimate().weights[0] > 0.7


def test_unknown_photos_do_not_take_the_gain_and_do_not_harm():
    """Two thirds of the photos show none of the classes; the classifier sends most of them to two classes, with lower
    logits than those of photos of classes."""
    rng = np.random.default_rng(16)
    labels, logits = photos(of([2, 3]), 200, rng, sharpness=2.5)
    unknown = 0.6 * rng.normal(size=(400, CLASSES)) + 1.2 * np.eye(CLASSES)[rng.choice([5, 6], 400)]
    history = rng.permutation(np.concatenate([logits[:100], unknown[200:]]))
    plain = np.mean(logits[100:].argmax(1) == labels[100:])
    rejection = float(np.quantile(logits[:100].max(1), 0.05))
    open_world, closed = (after(ShareSettings(), history, least) for least in (rejection, -math.inf))
    assert accuracy(open_world, labels[100:], logits[100:]) > plain + 0.05
    assert open_world.estimate().shares[[5, 6]].sum() < 0.6 * closed.estimate().shares[[5, 6]].sum()
    others, of_others = photos(of([8, 9, 10, 11, 12, 13, 14, 15]), 200, rng, sharpness=2.5)
    alone = np.mean(of_others.argmax(1) == others)
    assert accuracy(after(open_world.settings, unknown[200:], rejection), others, of_others) > alone - 0.01


@pytest.mark.parametrize("native", [False, True])
def test_photos_below_the_rejection_threshold_are_kept_and_do_not_count(native):
    logits = 5 * np.eye(CLASSES)
    state, same = (ClassShares(ShareSettings(), CLASSES, native, known=KnownScores(4.0)) for _ in range(2))
    for number in range(6):
        row = state.row(logits[number % 2])
        state.add(row)
        same.add(row)
        state.add(state.row(0.5 * logits[7]))
    rejected = state.answer(0.5 * logits[7]).row
    assert not rejected.probabilities.any()
    assert rejected.classes[0] == 7
    assert len(state) == 12
    np.testing.assert_array_equal(state.estimate().shares, same.estimate().shares)
    np.testing.assert_array_equal(state.decode(rejected.value).probabilities, rejected.probabilities)


SCORES = KnownScores(5.0, (5.0, *np.linspace(6.0, 14.0, 9).tolist()))


def vouched(native, scores, below=0):
    """Shares after photos of class 3 with these largest logits, and photos below the threshold."""
    state = ClassShares(ShareSettings(), CLASSES, native, known=SCORES)
    for score in scores:
        state.add(state.row(score * np.eye(CLASSES)[3]))
    for _ in range(below):
        state.add(state.row(4 * np.eye(CLASSES)[7]))
    return state.estimate().shares


@pytest.mark.parametrize("native", [False, True])
def test_photos_with_low_scores_move_the_shares_only_where_most_photos_are_known(native):
    low = [6.0, 7.0, 8.0, 9.0] * 2
    alone, among_unknown = (vouched(native, low, below)[3] for below in (0, 24))
    assert alone > 0.3
    assert among_unknown < 0.5 * alone
    assert vouched(native, [*low, 14.0], 24)[3] > 1.5 * among_unknown  # one photo that is surely known


def test_a_longer_feature_lowers_the_score_where_the_bundle_has_quantiles():
    logits = 10 * np.eye(CLASSES)[3]
    assert ClassShares(ShareSettings(), CLASSES, known=SCORES).row(logits).probabilities.any()
    assert not ClassShares(ShareSettings(), CLASSES, known=SCORES).row(logits, 2.1).probabilities.any()
    raw = ClassShares(ShareSettings(), CLASSES, known=KnownScores(5.0)).row(logits, 2.1)
    assert raw.probabilities.any()
    assert raw.credit == 0


def test_numpy_and_c_agree_on_credits():
    rng = np.random.default_rng(4)
    for given in (rng.normal(0, 4, (60, CLASSES)), 6 * rng.random((60, CLASSES))):
        states = [ClassShares(ShareSettings(), CLASSES, native, known=SCORES) for native in (False, True)]
        for logits in given:
            answers = [state.answer(logits, 0.8) for state in states]
            np.testing.assert_allclose(answers[0].logits, answers[1].logits, atol=1e-9)
            for state, answer in zip(states, answers, strict=True):
                state.add(answer.row)


def test_a_photo_cannot_confirm_the_prior_that_it_made():
    """The weight of a photo rests on the classifier alone: equal photos have equal weights."""
    state, row = ClassShares(OPEN, CLASSES), ClassShares(OPEN, CLASSES).row(2 * np.eye(CLASSES)[3])
    weights = []
    for _ in range(6):
        before = state._sums[0] * state._fade
        state.add(row)
        weights.append(state._sums[0] - before)
    assert max(weights) == pytest.approx(min(weights))
    assert max(weights) < float(row.probabilities[0])


def test_without_history_the_classifier_answers():
    logits = np.random.default_rng(4).normal(size=CLASSES)
    answer = ClassShares(ShareSettings(), CLASSES).answer(logits)
    assert answer.logits == pytest.approx(logits, abs=1e-9)
    assert answer.trust == 0
    assert answer.moved == pytest.approx(0, abs=1e-9)


def test_most_likely_classes_alone_find_nearly_the_same():
    _, logits = photos(of([2, 3, 5, 7]), 200, np.random.default_rng(5), sharpness=3.0)
    whole = after(dataclasses.replace(OPEN, top=CLASSES), logits).estimate().shares
    few = after(dataclasses.replace(OPEN, top=6), logits).estimate().shares
    assert np.abs(whole - few).max() < 0.01


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("gone", [(0,), (40,), (79,), (0, 1, 2, 30, 50, 79)])
def test_a_forgotten_photo_leaves_no_trace(gone, native):
    rng = np.random.default_rng(6)
    logits = np.concatenate([photos(of([2, 3]), 60, rng)[1], photos(of([15]), 20, rng)[1]])
    rows = [ClassShares(OPEN, CLASSES).row(one) for one in logits]
    state, fresh = ClassShares(OPEN, CLASSES, native), ClassShares(OPEN, CLASSES, native)
    state.extend(rows, range(80))
    fresh.extend([row for number, row in enumerate(rows) if number not in gone])
    assert all(state.forget(key) for key in gone)
    assert not any(state.forget(key) for key in gone)
    assert len(state) == 80 - len(gone)
    np.testing.assert_array_equal(state.estimate().shares, fresh.estimate().shares)
    assert state.estimate().evidence == fresh.estimate().evidence


def test_everything_forgotten_is_as_if_nothing_had_been():
    _, logits = photos(of([2, 3]), 30, np.random.default_rng(7))
    state = ClassShares(OPEN, CLASSES)
    state.extend([state.row(one) for one in logits], range(30))
    for key in range(30):
        assert state.forget(key)
    assert state.estimate().shares == pytest.approx(FLAT)
    assert (len(state), state.estimate().evidence) == (0, 0)


def test_the_same_photo_again_counts_once():
    state = ClassShares(OPEN, CLASSES)
    row = state.row(5 * np.eye(CLASSES)[3])
    state.add(row, "photo")
    once = state.estimate().shares
    for _ in range(4):
        state.add(row, "photo")
    assert len(state) == 1
    np.testing.assert_array_equal(state.estimate().shares, once)


def test_beyond_the_capacity_the_oldest_photos_go():
    rng = np.random.default_rng(8)
    logits = np.concatenate([photos(of([1]), 40, rng)[1], photos(of([2]), 32, rng)[1]])
    state = after(dataclasses.replace(OPEN, capacity=32), logits)
    assert len(state) == 32
    np.testing.assert_allclose(state.estimate().shares, after(OPEN, logits[40:]).estimate().shares)


def test_the_oldest_of_very_many_photos_goes_without_a_trace_and_without_a_replay():
    _, logits = photos(of([1, 4]), 400, np.random.default_rng(17))
    settings = dataclasses.replace(OPEN, half_life=4.0, capacity=300)
    kept, whole = after(settings, logits), after(dataclasses.replace(settings, capacity=4096), logits)
    assert (len(kept), len(whole)) == (300, 400)
    np.testing.assert_array_equal(kept.estimate().shares, whole.estimate().shares)


def test_other_habits_take_over_and_are_not_outvoted_by_a_long_past():
    rng = np.random.default_rng(9)
    _, old = photos(of([1, 2]), 600, rng, sharpness=4.0)
    labels, new = photos(of([3, 4]), 240, rng, sharpness=2.5)
    plain = np.mean(new[80:].argmax(1) == labels[80:])
    early, late = (after(OPEN, np.concatenate([old, new[:count]])) for count in (20, 80))
    assert accuracy(early, labels[80:], new[80:]) > plain - 0.05
    assert late.estimate().shares[[3, 4]].sum() > late.estimate().shares[[1, 2]].sum()
    assert accuracy(late, labels[80:], new[80:]) > plain + 0.05


def test_stored_rows_rebuild_the_state():
    _, logits = photos(of([2, 3, 5]), 100, np.random.default_rng(11))
    state = after(ShareSettings(), logits)
    stored = [state.row(one).value for one in logits]
    assert {len(content) for content in stored} == {8 * 8 + 4}
    again = ClassShares(ShareSettings(), CLASSES)
    again.extend(again.decode(content) for content in stored)
    assert (again.estimate().shares == state.estimate().shares).all()


def test_calibration_comes_before_everything_else():
    state = ClassShares(ShareSettings(temperature=2.0, scale=(1.0, 2.0, 1.0), bias=(0.0, 0.0, 4.0)), 3)
    assert state.calibrated(np.array([2.0, 3.0, 0.0])) == pytest.approx([1, 3, 2])


def test_probabilities_may_be_given_where_the_bundle_says_so():
    logits = np.random.default_rng(12).normal(size=CLASSES)
    probabilities = ClassShares(ShareSettings(outputs="probabilities"), CLASSES)
    assert probabilities.row(softmax(logits)).probabilities == pytest.approx(
        ClassShares(ShareSettings(), CLASSES).row(logits).probabilities
    )


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (np.full(CLASSES, np.nan), "NaN"),
        (np.full(CLASSES, np.inf), "infinity"),
        (np.zeros(CLASSES + 1), "shape"),
        (np.full(CLASSES, 1.0), "not probabilities"),
        (np.array([-1.0, 2.0] + [0.0] * (CLASSES - 2)), "not probabilities"),
    ],
)
def test_outputs_that_are_no_probabilities_are_refused(outputs, message):
    state = ClassShares(ShareSettings(outputs="probabilities"), CLASSES)
    for use in (state.row, state.answer):
        with pytest.raises(PhotoError, match=message):
            use(outputs)
    assert len(state) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"scale": (1.0,)},
        {"bias": (float("inf"),) * CLASSES},
        {"base": (0.0,) + (1 / (CLASSES - 1),) * (CLASSES - 1)},
        {"strength": 0.0},
        {"half_life": -1.0},
        {"evidence_half_life": float("nan")},
        {"no_shift": 0.0},
        {"no_shift": 1.0},
        {"penalty": -0.1},
        {"elsewhere": 1.5},
        {"with_head": 2.0},
        {"support": 1.0},
        {"top": 0},
        {"top": 10**9},
        {"capacity": 10**12},
        {"outputs": "words"},
    ],
)
def test_settings_out_of_bounds_are_refused(change):
    with pytest.raises(BundleError, match=next(iter(change))):
        ClassShares(dataclasses.replace(ShareSettings(), **change), CLASSES)


def test_a_single_class_is_refused():
    with pytest.raises(BundleError, match="two labels or more"):
        ClassShares(ShareSettings(), 1)


def test_rows_of_another_label_set_are_refused_and_nothing_is_counted():
    state = ClassShares(ShareSettings(top=4), CLASSES)
    larger = ClassShares(ShareSettings(top=4), 50)
    foreign = larger.row(np.arange(50.0))
    with pytest.raises(HistoryError, match="label set"):
        state.add(foreign)
    with pytest.raises(HistoryError, match="label set"):
        state.decode(foreign.value)
    with pytest.raises(HistoryError, match="bytes"):
        state.decode(foreign.value[:-1])
    twice = LikelyClasses(np.array([1, 1, 2, 3], np.int32), np.full(4, 0.2, np.float32))
    with pytest.raises(HistoryError, match="different"):
        state.add(twice)
    for bad in (np.nan, -0.1, 2.0):
        with pytest.raises(HistoryError, match="probabilities"):
            state.add(LikelyClasses(np.arange(4, dtype=np.int32), np.full(4, bad, np.float32)))
    assert len(state) == 0
    known = KnownScores()
    assert ShareSettings().identity(["a", "b"], known) != ShareSettings().identity(["a", "c"], known)
    assert ShareSettings().identity(["a", "b"], SCORES) != ShareSettings().identity(["a", "b"], known)


def test_photos_of_nothing_that_is_known_do_not_carry_other_photos_into_the_class_that_attracts_them():
    """Forty photos of no class, each answered with class 5; then a photo of class 2, with a little of class 5."""
    rng = np.random.default_rng(13)
    unknown = rng.normal(size=(40, CLASSES)) + 6 * np.eye(CLASSES)[5]
    photo = 3.0 * np.eye(CLASSES)[2]
    unbounded, bounded = (after(ShareSettings(support=support, elsewhere=0.1), unknown) for support in (0.0, 0.1))
    assert unbounded.answer(photo).logits.argmax() == 5
    answer = bounded.answer(photo)
    assert answer.logits.argmax() == 2
    assert answer.trust < 0.6
    odds = [logits[5] - logits[2] for logits in (answer.logits, answer.plain_logits)]
    assert odds[0] == pytest.approx(odds[1])
    supported = photo + 2.0 * np.eye(CLASSES)[5]  # the photo itself may well be of class 5
    assert bounded.answer(supported).logits.argmax() == 5


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("gated", [True, False])
def test_the_answer_with_shares_is_a_class_that_the_one_without_them_supports(native, gated):
    rng, support, moved = np.random.default_rng(14), 0.3, 0
    settings = ShareSettings(support=support, gated=gated, with_head=1.0, elsewhere=0.05, penalty=0.0)
    state = ClassShares(settings, CLASSES, native=native)
    for _ in range(200):
        logits, head = rng.normal(size=(2, CLASSES)) * 2 + 3 * np.eye(CLASSES)[int(rng.integers(0, 3))]
        alone, (beside, mixed) = state.answer(logits), state.answer_beside(logits, head)
        without = state.without(head, beside, mixed)[0] if gated else head
        for answer, plain in ((alone.logits, alone.plain_logits), (mixed, without)):
            probability = softmax(plain)
            assert probability[answer.argmax()] >= support * probability.max()
            moved += answer.argmax() != plain.argmax()
        assert 0 <= alone.trust <= 1
        assert 0 <= alone.moved <= 1
        state.add(alone.row)
    assert moved > 10


@pytest.mark.parametrize("version", [1, 2])
def test_shares_of_an_earlier_version_keep_their_calibration_and_get_todays_estimate(version):
    old = {"strengths": [4.0], "half_lives": [0.0, 32.0], "no_shift": 0.5, "elsewhere": 0.2, "evidence_half_life": 16.0}
    card = {
        **old,
        "version": version,
        "outputs": "logits",
        "temperature": 1.7,
        "with_head": 0.25,
        "top": 6,
        "revisit": 4,
    }
    settings = settings_of(msgspec.convert({**card, "capacity": 512}, ShareCard))
    assert settings == ShareSettings(temperature=1.7, with_head=0.25, top=6, capacity=512)


@pytest.mark.parametrize("seed", range(20))
def test_shares_in_c_are_those_in_numpy(seed):
    pytest.importorskip("refocus.edge.runtimes.native_shares", exc_type=RuntimeUnavailable)
    assert shares_difference(np.random.default_rng(seed)) <= SHARES_TOLERANCE
