"""Curves of trainings: every run keeps its own; trackers get every step, beside the settings."""

from __future__ import annotations

import json

import pytest

from refocus.cloud_train.tracking import log_metrics, tracked

SETTINGS = {"recipe.epochs": 3, "data.source": "glyphs"}


def train():
    for step in (1, 2, 3):
        log_metrics("iciia P=1 seed 0", step, loss=3.0 - step, validation_accuracy=step / 4)


def points(folder, name):
    """Steps and values of one metric, in the order of the file."""
    lines = [json.loads(line) for line in (folder / "curves.jsonl").read_text().splitlines()]
    return [(line["step"], line["value"]) for line in lines if line["name"] == name]


def test_nothing_is_written_outside_of_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train()
    assert not list(tmp_path.iterdir())


def test_every_run_keeps_its_curves(tmp_path):
    with tracked("", tmp_path / "run", SETTINGS):
        train()
        log_metrics("encoder", 1, loss=float("nan"))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["curves.jsonl"]
    assert points(tmp_path / "run", "iciia P=1 seed 0/loss") == [(1, 2.0), (2, 1.0), (3, 0.0)]
    assert points(tmp_path / "run", "encoder/loss") == []  # JSON has no NaN


def test_a_training_that_is_repeated_adds_its_points(tmp_path):
    for _ in range(2):
        with tracked("", tmp_path, SETTINGS):
            train()
    assert points(tmp_path, "iciia P=1 seed 0/loss") == 2 * [(1, 2.0), (2, 1.0), (3, 0.0)]


def test_long_curves_are_means_and_stay_small(tmp_path):
    with tracked("", tmp_path, SETTINGS):
        for step in range(1, 20_001):
            log_metrics("encoder", step, loss=step)
    steps, values = zip(*points(tmp_path, "encoder/loss"), strict=True)
    assert steps[:100] == (*range(1, 101),)
    assert len(steps) < 800
    assert steps[-1] > 19_800
    assert values[-1] == (steps[-2] + 1 + steps[-1]) / 2


def test_tensorboard_reads_every_step(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tracked("tensorboard", tmp_path, SETTINGS):
        train()
    log_metrics("afterwards", 1, loss=1.0)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"iciia P=1 seed 0/loss", "iciia P=1 seed 0/validation_accuracy"}
    assert [(e.step, e.value) for e in events.Scalars("iciia P=1 seed 0/loss")] == [(1, 2.0), (2, 1.0), (3, 0.0)]
    assert "recipe.epochs" in str(events.Tensors("settings/text_summary"))


@pytest.mark.slow
def test_mlflow_reads_every_step_and_the_settings(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(KeyError), tracked("mlflow", tmp_path / "run", SETTINGS):
        train()
        raise KeyError
    client = tracking.MlflowClient(f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("refocus").experiment_id])
    assert run.data.params == {"recipe.epochs": "3", "data.source": "glyphs"}
    assert run.info.status == "FAILED"
    history = client.get_metric_history(run.info.run_id, "iciia P 1 seed 0/loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 2.0), (2, 1.0), (3, 0.0)]


def test_another_tracker_is_refused(refocus, tmp_path, assert_one_clear_line):
    done = refocus("train", "iciia", tmp_path / "run", "--track", "wandb")
    assert_one_clear_line(done, "--track wandb", "tensorboard or mlflow")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [("train", "--track", "tensorboard", "iciia"), ("train", "iciia", "--track", "mlflow")]
)
def test_the_option_stands_before_or_behind_the_method(refocus, words):
    done = refocus(*words, "--show-settings")
    assert done.returncode == 0, done.stderr
