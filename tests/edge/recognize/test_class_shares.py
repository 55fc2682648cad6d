"""Class shares against batch expectation maximisation and toy problems whose shares are known."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from refocus.edge.bundle import ShareCard
from refocus.edge.errors import BundleError, HistoryError, PhotoError, RuntimeUnavailable
from refocus.edge.history.likely_classes import LikelyClasses
from refocus.edge.recognize.class_shares import ClassShares, ShareSettings
from refocus.edge.recognize.label_sets import settings_of
from tests.edge.runtimes.native_fuzz import SHARES_TOLERANCE, shares_difference

CLASSES = 20
ONE = ShareSettings(
    strengths=(4.0,), no_shift=0.0, elsewhere=0.0, evidence_half_life=0.0, half_lives=(0.0,), top=CLASSES, revisit=8
)


def settle(state: ClassShares, sweeps: int) -> None:
    """Repeat the E-step of every photo until the shares no longer change."""
    for _ in range(sweeps):
        state._count(np.flatnonzero(state._live[: state._used]))


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


def after(settings: ShareSettings, logits: np.ndarray) -> ClassShares:
    state = ClassShares(settings, logits.shape[1])
    state.extend(state.row(one) for one in logits)
    return state


def softmax(logits: np.ndarray) -> np.ndarray:
    exponential = np.exp(logits - logits.max(-1, keepdims=True))
    return exponential / exponential.sum(-1, keepdims=True)


def batch(logits: np.ndarray, strength: float, base: np.ndarray, sweeps: int = 1000) -> np.ndarray:
    """Saerens et al., equation 9, with a Dirichlet prior: all photos in every step, to convergence."""
    ratio, shares = softmax(logits) / base, base
    for _ in range(sweeps):
        owned = ratio * shares
        owned /= owned.sum(1, keepdims=True)
        shares = (owned.sum(0) + strength * base) / (len(logits) + strength)
    return shares


@pytest.mark.parametrize("base", [np.full(CLASSES, 1 / CLASSES), np.arange(1, CLASSES + 1) / 210])
def test_photo_by_photo_finds_what_batch_expectation_maximisation_finds(base):
    _, logits = photos(of([2, 3, 5, 7]), 400, np.random.default_rng(0), sharpness=1.5)
    logits += np.log(base)
    state = after(dataclasses.replace(ONE, base=tuple(base)), logits)
    exact = batch(logits, 4.0, base)
    assert np.abs(state.estimate().shares - exact).max() < 0.01
    settle(state, 1000)
    assert np.abs(state.estimate().shares - exact).max() < 1e-5


@pytest.mark.parametrize(("revisit", "least", "most"), [(8, 0, 0.02), (0, 0.1, 1)])
def test_a_long_history_stays_right_without_sweeps_and_only_by_revisits(revisit, least, most):
    """Of a poor classifier, for which expectation maximisation is slow; never revised, the estimate is far off."""
    _, logits = photos(of([1, 4, 9]), 4096, np.random.default_rng(1), sharpness=1.0)
    state = after(dataclasses.replace(ONE, revisit=revisit), logits)
    exact = batch(logits, 4.0, np.full(CLASSES, 1 / CLASSES), 500)
    assert least <= np.abs(state.estimate().shares - exact).max() <= most


def test_known_shares_are_found_and_raise_accuracy():
    rng = np.random.default_rng(2)
    truth = of([0, 6, 11])
    _, history = photos(truth, 300, rng)
    labels, logits = photos(truth, 500, rng)
    state = after(ShareSettings(top=8), history)
    certain = after(ShareSettings(elsewhere=0.0, half_lives=(0.0,)), history).estimate()
    assert np.abs(certain.shares - truth).max() < 0.08  # 300 photos
    right = np.mean([state.answer(one).logits.argmax() == label for one, label in zip(logits, labels, strict=True)])
    plain = np.mean(logits.argmax(1) == labels)
    known = np.mean(np.where(truth > 0, logits, -np.inf).argmax(1) == labels)
    assert right - plain > 0.7 * (known - plain)
    own, foreign = (state.answer(10 * np.eye(CLASSES)[label]) for label in (6, 7))
    assert own.trust > 0.9 > 0.1 > own.moved
    assert foreign.trust < 0.5


def test_no_shift_changes_next_to_nothing():
    rng = np.random.default_rng(3)
    even = np.full(CLASSES, 1 / CLASSES)
    for count in (3, 15, 63, 255):
        _, history = photos(even, count, rng)
        labels, logits = photos(even, 500, rng)
        state = after(ShareSettings(), history)
        right = np.mean([state.answer(one).logits.argmax() == label for one, label in zip(logits, labels, strict=True)])
        assert right - np.mean(logits.argmax(1) == labels) > -0.01
    assert state.estimate().evidence < 0
    assert state.estimate().weights[0] > 0.5


def test_without_history_the_classifier_answers():
    logits = np.random.default_rng(4).normal(size=CLASSES)
    answer = ClassShares(ShareSettings(), CLASSES).answer(logits)
    assert answer.logits == pytest.approx(logits, abs=1e-9)
    assert answer.trust == 0
    assert answer.moved == pytest.approx(0, abs=1e-9)


def test_most_likely_classes_alone_find_nearly_the_same():
    _, logits = photos(of([2, 3, 5, 7]), 200, np.random.default_rng(5), sharpness=3.0)
    whole = after(ONE, logits).estimate().shares
    few = after(dataclasses.replace(ONE, top=6), logits).estimate().shares
    assert np.abs(whole - few).max() < 0.02


def test_a_forgotten_photo_counts_no_more():
    rng = np.random.default_rng(6)
    _, logits = photos(of([2, 3]), 60, rng)
    _, others = photos(of([15]), 20, rng)
    rows = [ClassShares(ONE, CLASSES).row(one) for one in (*logits, *others)]
    state, fresh = ClassShares(ONE, CLASSES), ClassShares(ONE, CLASSES)
    state.extend(rows, range(80))
    fresh.extend(rows[:60])
    assert state.estimate().shares[15] > 0.2
    assert all(state.forget(key) for key in range(60, 80))
    assert not state.forget(79)
    assert len(state) == 60
    settle(state, 500), settle(fresh, 500)
    assert state.estimate().shares == pytest.approx(fresh.estimate().shares, abs=1e-5)


def test_everything_forgotten_is_as_if_nothing_had_been():
    _, logits = photos(of([2, 3]), 30, np.random.default_rng(7))
    state = after(ShareSettings(half_lives=(0.0, 8.0)), logits)
    for key in range(30):
        state.forget(key)
    assert state.estimate().shares == pytest.approx(np.full(CLASSES, 1 / CLASSES), abs=1e-6)
    assert state.estimate().evidence == pytest.approx(0, abs=1e-5)


def test_the_same_photo_again_counts_once():
    state = ClassShares(ONE, CLASSES)
    row = state.row(5 * np.eye(CLASSES)[3])
    for _ in range(5):
        state.add(row, "photo")
    assert len(state) == 1
    assert state.estimate().shares[3] < 0.25


def test_beyond_the_capacity_the_oldest_photos_go():
    rng = np.random.default_rng(8)
    _, old = photos(of([1]), 40, rng)
    _, new = photos(of([2]), 32, rng)
    state = after(dataclasses.replace(ONE, capacity=32), np.concatenate([old, new]))
    assert len(state) == 32
    settle(state, 300)
    assert state.estimate().shares[1] < 0.05


def test_counts_that_fade_stay_finite_and_follow_the_person():
    rng = np.random.default_rng(9)
    _, old = photos(of([1, 2]), 600, rng, sharpness=4.0)
    _, new = photos(of([3, 4]), 40, rng, sharpness=4.0)
    settings = dataclasses.replace(ONE, half_lives=(8.0,))
    shares = after(settings, np.concatenate([old, new])).estimate().shares
    assert np.isfinite(shares).all()
    assert shares[[3, 4]].sum() > 0.6 > 0.1 > shares[[1, 2]].sum()


def test_evidence_lets_a_hypothesis_that_forgets_take_over():
    rng = np.random.default_rng(10)
    _, old = photos(of([1, 2]), 300, rng, sharpness=4.0)
    _, new = photos(of([3, 4]), 40, rng, sharpness=4.0)
    settings = ShareSettings(strengths=(4.0,), half_lives=(0.0, 16.0))
    before, after_change = after(settings, old).estimate(), after(settings, np.concatenate([old, new])).estimate()
    assert before.weights[1] > 0.5 > after_change.weights[1]
    assert after_change.shares[[3, 4]].sum() > 0.5


def test_stored_rows_rebuild_the_state():
    _, logits = photos(of([2, 3, 5]), 100, np.random.default_rng(11))
    state = after(ShareSettings(), logits)
    stored = [state.row(one).value for one in logits]
    assert {len(content) for content in stored} == {8 * 8}
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
        {"strengths": ()},
        {"strengths": (-1.0,)},
        {"strengths": (1.0, 2.0, 3.0) * 10, "half_lives": (0.0,)},
        {"half_lives": (-1.0,)},
        {"no_shift": 1.0},
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
    with pytest.raises(BundleError, match="at least 2 classes"):
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
    assert ShareSettings().identity(["a", "b"]) != ShareSettings().identity(["a", "c"])


def test_photos_of_nothing_that_is_known_do_not_carry_other_photos_into_the_class_that_attracts_them():
    """Forty photos of no class, each answered with class 5; then a photo of class 2, with a little of class 5."""
    rng = np.random.default_rng(13)
    unknown = rng.normal(size=(40, CLASSES)) + 5 * np.eye(CLASSES)[5]
    photo = 3.0 * np.eye(CLASSES)[2] - 0.8 * np.eye(CLASSES)[5]
    unbounded, bounded = (after(ShareSettings(support=support), unknown) for support in (0.0, 0.1))
    assert unbounded.answer(photo).logits.argmax() == 5
    answer = bounded.answer(photo)
    assert answer.logits.argmax() == 2
    assert answer.trust < 0.5
    odds = [logits[5] - logits[2] for logits in (answer.logits, answer.plain_logits)]
    assert odds[0] == pytest.approx(odds[1])
    supported = photo + 2.0 * np.eye(CLASSES)[5]  # the photo itself may well be of class 5
    assert bounded.answer(supported).logits.argmax() == 5


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("gated", [True, False])
def test_the_answer_with_shares_is_a_class_that_the_one_without_them_supports(native, gated):
    rng, support, moved = np.random.default_rng(14), 0.3, 0
    settings = ShareSettings(support=support, gated=gated, with_head=1.0, elsewhere=0.05)
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


def test_a_manifest_without_support_moves_answers_as_far_as_before():
    card = msgspec.to_builtins(msgspec.convert({"version": 1, **dataclasses.asdict(ShareSettings())}, ShareCard))
    assert card.pop("support") == ShareSettings().support > 0
    settings = settings_of(msgspec.convert(card, ShareCard))
    assert settings == dataclasses.replace(ShareSettings(), support=0.0)
    _, logits = photos(of([2, 3]), 40, np.random.default_rng(15))
    state = after(settings, logits)
    for one in logits:
        answer = state.answer(one)
        np.testing.assert_allclose(answer.logits - answer.plain_logits, answer.shift, atol=1e-9)
        np.testing.assert_allclose(answer.shift, np.log(CLASSES * answer.estimate.shares), atol=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_shares_in_c_are_those_in_numpy(seed):
    pytest.importorskip("refocus.edge.runtimes.native_shares", exc_type=RuntimeUnavailable)
    assert shares_difference(np.random.default_rng(seed)) <= SHARES_TOLERANCE


def test_shares_forgotten_to_the_last_photo_are_empty_in_c_too():
    rng = np.random.default_rng(0)
    _, logits = photos(of([1, 2]), 12, rng)
    state = ClassShares(dataclasses.replace(ONE, capacity=10), CLASSES)
    for number, one in enumerate(logits):
        state.add(state.row(one), number)
    for number in range(len(logits)):
        state.forget(number)
    assert len(state) == 0
    np.testing.assert_allclose(state.estimate().shares, np.full(CLASSES, 1 / CLASSES), atol=1e-6)
    state.clear()
    state.extend(state.row(one) for one in logits)
    again = after(dataclasses.replace(ONE, capacity=10), logits)
    np.testing.assert_array_equal(state.estimate().shares, again.estimate().shares)
