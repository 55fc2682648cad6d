"""Heads at other windows than in training: what export makes of them, and the study that compares them."""

from __future__ import annotations

import numpy as np
import pytest

from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate.heads import bundle_of
from refocus.edge.recognize import Recognizer
from refocus.export.program import CheckpointError, load_checkpoint
from studies.iciia.windows import study_windows
from studies.report.pages import study_table

LONG = 24


@pytest.fixture(scope="module")
def head(tiny_run):
    return tiny_run.head_path(0, "iciia_t")


@pytest.fixture(scope="module")
def longer(tiny_run, head):
    return bundle_of(tiny_run, head, LONG)


def test_a_longer_window_keeps_as_many_photos_as_it_says(longer, bundle):
    assert longer.manifest.head().personalisation.window == LONG - 1
    kept = {state.name: state.shape for state in longer.manifest.head().state}
    trained = {state.name: state.shape for state in bundle.manifest.head().state}
    assert {name: shape[0] for name, shape in kept.items()} == dict.fromkeys(trained, LONG - 1)
    assert all(kept[name][1:] == trained[name][1:] for name in trained)


def test_a_longer_window_reads_the_photos_that_the_trained_one_forgets(longer, bundle):
    rng = np.random.default_rng(0)
    with Recognizer(longer) as long, Recognizer(bundle) as short:
        history = rng.standard_normal((LONG - 1, long.width)).astype(np.float32)
        feature, recent = history[0] * 0.5, history[-15:]
        changed = np.concatenate([-history[:1], history[1:]])
        np.testing.assert_allclose(
            long.answer(feature, recent).calibrated_logits, short.answer(feature, recent).calibrated_logits, atol=1e-4
        )
        oldest = [device.answer(feature, changed).calibrated_logits for device in (long, short)]
        assert np.abs(oldest[0] - long.answer(feature, history).calibrated_logits).max() > 1e-3
        np.testing.assert_array_equal(oldest[1], short.answer(feature, history).calibrated_logits)


def test_the_study_compares_every_window_with_the_first_on_the_same_photos(tiny_run):
    found = study_windows(tiny_run, [0], "python -m studies windows RUN", (16, LONG), 3)
    trained, long = found["rows"]
    assert (trained["window"], long["window"], found["trained_window"]) == (16, LONG, 16)
    assert trained["over_first"]["mean"] == trained["ungated_over_first"]["mean"] == 0
    assert long["over_first"]["mean"] == pytest.approx(long["delivered"] - trained["delivered"])
    assert trained["original"] == long["original"]
    assert long["state_bytes"] / trained["state_bytes"] == pytest.approx((LONG - 1) / 15)
    assert long["macs"] > trained["macs"]
    header, rows = study_table(found)
    assert (header[0], [row[0] for row in rows]) == ("window", ["16", str(LONG)])


def test_windows_longer_than_the_streams_are_an_error(tiny_run):
    with pytest.raises(DataError, match="0 test clients have more than 99 photos"):
        study_windows(tiny_run, [0], "", (16, 100))
    with pytest.raises(DataError, match="--windows 1: a window has 2 photos or more"):
        study_windows(tiny_run, [0], "", (1, 16))


@pytest.mark.parametrize(
    ("window", "message"), [(1, "--window 1: expected 2 to 1024 photos"), (1025, "--window 1025: expected 2 to 1024")]
)
def test_a_window_without_history_or_beyond_reason_is_refused(head, window, message):
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(head, window=window)


def test_a_window_for_what_has_none_is_refused(tiny_run):
    with pytest.raises(CheckpointError, match="timm_encoder has no attention window; leave --window out"):
        load_checkpoint(tiny_run.encoder_path, window=32)
