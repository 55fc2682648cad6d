"""The recogniser: answers, history and their order."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from refocus.edge.errors import PhotoError, RefocusError, RuntimeUnavailable
from refocus.edge.recognize.recognizer import Recognizer, profile_path


@pytest.fixture
def recognizer(bundle, tmp_path):
    with Recognizer(bundle, tmp_path / "p.sqlite3") as opened:
        yield opened


def test_every_photo_finds_one_more_photo_in_the_history(recognizer, stream):
    lengths = [len(recognizer.recognize(photo).attention) - 1 for photo in stream[:20]]
    assert lengths == [min(n, recognizer.window) for n in range(20)]


def test_attention_is_a_distribution_over_history_and_photo(recognizer, stream):
    for photo in stream[:5]:
        assert recognizer.recognize(photo).attention.sum() == pytest.approx(1, abs=1e-5)


def test_the_history_survives_a_restart(bundle, stream, tmp_path):
    with Recognizer(bundle, tmp_path / "p.sqlite3") as first:
        for photo in stream[:6]:
            first.recognize(photo)
        wanted = first.recognize(stream[6], remember=False)
    with Recognizer(bundle, tmp_path / "p.sqlite3") as second:
        np.testing.assert_array_equal(second.recognize(stream[6]).logits, wanted.logits)


def test_a_photo_recognised_again_meets_the_photos_before_it_and_never_itself(recognizer, stream):
    first = [recognizer.recognize(photo).logits for photo in stream[:10]]
    again = [recognizer.recognize(photo).logits for photo in stream[:10]]
    np.testing.assert_array_equal(first, again)


def test_a_bad_photo_leaves_the_history_as_it_was(recognizer, stream):
    recognizer.recognize(stream[0])
    with pytest.raises(PhotoError):
        recognizer.recognize(stream[1][: len(stream[1]) // 2], "half.png")
    assert recognizer.history.count(recognizer.space) == 1


def test_a_photo_that_shall_not_be_remembered_is_not(recognizer, stream):
    recognizer.recognize(stream[0], remember=False)
    assert recognizer.history.count(recognizer.space) == 0


def test_without_a_history_the_answer_is_exactly_the_plain_one(bundle, stream):
    answer = Recognizer(bundle).recognize(stream[0])
    assert answer.trust == 0
    assert not answer.personalised
    np.testing.assert_allclose(answer.logits, answer.plain_logits - logsumexp(answer.plain_logits), atol=1e-5)


def test_the_delivered_answer_is_the_mixture_that_trust_says(recognizer, stream):
    for photo in stream[:8]:
        answer = recognizer.recognize(photo)
        alone = answer.plain_logits - logsumexp(answer.plain_logits)
        helped = answer.calibrated_logits - logsumexp(answer.calibrated_logits)
        assert 0 <= answer.trust <= 1
        np.testing.assert_allclose(answer.logits, (1 - answer.trust) * alone + answer.trust * helped, atol=1e-4)


def logsumexp(values):
    return values.max() + np.log(np.exp(values - values.max()).sum())


def test_state_that_was_lost_with_the_process_is_computed_again(bundle, stream, monkeypatch):
    """Rows of derived state are a cache: one that holds nothing gives the same answers."""
    kept, forgetful = Recognizer(bundle), Recognizer(bundle)
    features = np.stack([kept.encode(photo) for photo in stream[:12]])
    wanted = [kept.answer(features[n], features[:n]).logits for n in range(12)]
    monkeypatch.setattr("refocus.edge.recognize.head_state.ROWS_KEPT", 0)
    again = [forgetful.answer(features[n], features[:n]).logits for n in range(12)]
    np.testing.assert_allclose(again, wanted, atol=1e-6)
    assert not forgetful._past._rows


def test_an_answer_names_the_photos_it_rests_on(recognizer, stream):
    for number, photo in enumerate(stream[:4]):
        answer = recognizer.recognize(photo, f"photo {number}")
    assert answer.history_names == ("photo 0", "photo 1", "photo 2")
    assert answer.history_photos == tuple(hashlib.sha256(photo).hexdigest() for photo in stream[:3])


def test_another_persons_history_changes_the_answer(recognizer, stream):
    feature = recognizer.encode(stream[0])
    own = np.stack([recognizer.encode(photo) for photo in stream[1:16]])
    alone, helped = recognizer.answer(feature, own[:0]), recognizer.answer(feature, own)
    assert np.abs(alone.calibrated_logits - helped.calibrated_logits).max() > 1e-3
    np.testing.assert_array_equal(alone.plain_logits, helped.plain_logits)


def test_only_the_newest_window_of_a_long_history_counts(recognizer, stream):
    feature = recognizer.encode(stream[0])
    long = np.stack([recognizer.encode(photo) for photo in stream[1:26]])
    short = recognizer.answer(feature, long[-recognizer.window :])
    np.testing.assert_array_equal(recognizer.answer(feature, long).logits, short.logits)


def test_labels_are_ranked_and_probabilities_add_up(recognizer, stream):
    answer = recognizer.recognize(stream[0])
    assert (np.diff(answer.probabilities) <= 0).all()
    assert answer.probabilities.sum() == pytest.approx(1, abs=1e-5)
    assert set(answer.labels) == set(recognizer.card.labels)


@pytest.mark.parametrize("name", ["../other", "", ".hidden", "a/b", "x" * 65, "anna\n"])
def test_a_profile_name_that_could_leave_its_folder_is_refused(name, tmp_path):
    with pytest.raises(RefocusError, match="ASCII letters, digits"):
        profile_path(tmp_path, name)


def test_a_switch_of_profile_leaves_the_first_persons_history_behind(bundle, stream, tmp_path):
    with Recognizer(bundle, tmp_path / "anna.sqlite3") as recognizer:
        for photo in stream[:6]:
            recognizer.recognize(photo)
        recognizer.switch(tmp_path / "bert.sqlite3")
        assert len(recognizer.recognize(stream[7]).attention) == 1
        recognizer.switch(tmp_path / "anna.sqlite3")
        assert len(recognizer.recognize(stream[6]).attention) == 7


def test_a_provider_that_is_not_there_falls_back_and_says_so_or_is_refused(bundle, stream):
    recognizer = Recognizer(bundle, provider="cuda")
    assert recognizer.encoder.ran_on().startswith("CPUExecutionProvider (cuda is not in this build")
    with pytest.raises(RuntimeUnavailable, match="cuda is not in this build"):
        Recognizer(bundle, provider="cuda", allow_fallback=False)
    with pytest.raises(RuntimeUnavailable, match="--provider abacus: onnxruntime has cpu, cuda"):
        Recognizer(bundle, provider="abacus")


@pytest.mark.parametrize("provider", ["", "cpu"])
def test_the_cpu_is_not_refused_as_its_own_fallback(provider, bundle, stream):
    with Recognizer(bundle, provider=provider, allow_fallback=False) as recognizer:
        assert recognizer.recognize(stream[0]).labels
