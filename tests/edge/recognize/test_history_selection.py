"""Which photos stand before the one at hand, and that what is kept in memory is never older than the file."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from refocus.edge.errors import RefocusError
from refocus.edge.history.feature_history import FeatureHistory, RetentionPolicy
from refocus.edge.recognize.history_selection import RetrievalIndex
from refocus.edge.recognize.recognizer import Recognizer

WIDTH = 96


@pytest.fixture
def stored(tmp_path):
    """A thousand features in clusters of ten, and the history that holds them."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((100, WIDTH), dtype=np.float32)
    rows = np.repeat(centres, 10, axis=0) + 0.2 * rng.standard_normal((1000, WIDTH), dtype=np.float32)
    with FeatureHistory(tmp_path / "profile", capacity=2000) as history:
        for number, row in enumerate(rows):
            history.append("space", f"photo {number}", row)
        yield history, rows


@pytest.fixture
def index(stored):
    index = RetrievalIndex(stored[0], "space", WIDTH)
    index.refresh()
    return index


def exact(rows, feature, count):
    cosines = rows @ feature / np.linalg.norm(rows, axis=1) / np.linalg.norm(feature)
    return [f"photo {i}" for i in np.argsort(cosines, kind="stable")[-count:]]


def test_the_most_similar_photos_are_found_though_the_index_is_rough(stored, index):
    _, rows = stored
    for number in range(0, 1000, 50):
        found = index.most_similar(rows[number], 10)
        assert set(found.photos) == {f"photo {n}" for n in range(number // 10 * 10, number // 10 * 10 + 10)}
        assert found.photos == tuple(exact(rows, rows[number], 10))


def test_a_sample_is_spread_over_all_ranks_of_similarity(stored, index):
    _, rows = stored
    found = index.spread(rows[7], 10, but="photo 7").photos
    *order, itself = exact(rows, rows[7], 1000)
    assert itself == "photo 7"
    assert len(set(found)) == 10
    ranks = [order.index(photo) for photo in found]
    assert np.corrcoef(ranks, range(10))[0, 1] > 0.9  # the index is rough
    assert ranks[0] < 200
    assert ranks[-1] > 980


def test_a_photo_is_never_similar_to_itself(stored, index):
    found = index.most_similar(stored[1][7], 5, but="photo 7")
    assert len(found.photos) == 5
    assert "photo 7" not in found.photos


def test_photos_added_one_by_one_are_found_and_evicted_ones_are_not(stored, index):
    history, rows = stored
    new = rows[3] + 0.01
    history.append("space", "new", new)
    index.add("new", new)
    assert index.most_similar(rows[3], 2).photos == ("new", "photo 3")
    history.erase(photo="photo 3")
    assert "photo 3" not in index.most_similar(rows[3], 3).photos


def test_an_empty_history_has_nothing_similar(tmp_path):
    with FeatureHistory(tmp_path / "profile") as history:
        index = RetrievalIndex(history, "space", WIDTH)
        index.refresh()
        for choose in (index.most_similar, index.spread):
            assert choose(np.ones(WIDTH, dtype=np.float32), 5).features.shape == (0, WIDTH)


def test_features_of_another_encoder_are_never_similar(stored, index):
    history, rows = stored
    history.append("other space", "stranger", rows[3])
    index.refresh()
    assert "stranger" not in index.most_similar(rows[3], 15).photos


def test_an_old_photo_helps_again_when_it_is_the_most_similar(bundle, stream, tmp_path):
    keeping = RetentionPolicy(capacity=64)
    with Recognizer(bundle, tmp_path / "p", threads=1, memory="similar", keeping=keeping) as recognizer:
        for photo in stream[:20]:
            recognizer.recognize(photo)
        answer = recognizer.recognize(stream[0] + b"again", remember=False)
    assert len(answer.history_photos) == recognizer.window
    assert answer.history_photos[-1] == hashlib.sha256(stream[0]).hexdigest()
    assert abs(float(answer.attention.sum()) - 1) < 1e-4


def test_an_unknown_memory_is_named(bundle):
    with pytest.raises(RefocusError, match="--memory oldest: expected newest or similar or spread"):
        Recognizer(bundle, memory="oldest")


@pytest.mark.parametrize("memory", ["newest", "similar", "spread"])
def test_what_another_process_stored_is_met_by_the_next_photo(bundle, stream, tmp_path, memory):
    with (
        Recognizer(bundle, tmp_path / "p", threads=1, memory=memory) as one,
        Recognizer(bundle, tmp_path / "p", threads=1, memory=memory) as other,
    ):
        for number, photo in enumerate(stream[:6]):
            assert len((one, other)[number % 2].recognize(photo).history_photos) == number
        other.history.erase()
        assert not one.recognize(stream[6]).history_photos
        one.history.erase()
        assert not one.recognize(stream[7]).history_photos


def test_nothing_is_read_from_the_file_while_nobody_else_writes(bundle, stream, tmp_path, monkeypatch):
    with Recognizer(bundle, tmp_path / "p", threads=1) as recognizer:
        recognizer.recognize(stream[0])
        monkeypatch.setattr(FeatureHistory, "recall", lambda *a: pytest.fail("read again"))
        for photo in stream[1:4]:
            assert recognizer.recognize(photo).history_photos


@pytest.mark.parametrize("memory", ["spread", "similar"])
def test_a_full_history_offers_as_many_photos_after_hundreds_of_evictions(memory, bundle, tmp_path):
    rng, keeping = np.random.default_rng(0), RetentionPolicy(capacity=32)
    with Recognizer(bundle, tmp_path / "p", threads=1, memory=memory, keeping=keeping) as recognizer:
        for number in range(200):
            feature = rng.standard_normal(recognizer.width, dtype=np.float32)
            before, _ = recognizer._memory.recall(
                feature, f"photo {number}", recognizer.history.look(recognizer.space, f"photo {number}")
            )
            assert len(before) == min(number, recognizer.window)
            recognizer._memory.remember(feature, f"photo {number}", "")
        assert recognizer.history.count(recognizer.space) == len(recognizer._memory._index) == 32
