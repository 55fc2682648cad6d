"""Mixed folders on toy photos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from refocus.cloud_train.errors import UsageError
from studies.experiment import read_experiment, run_experiment
from studies.report.negatives import negatives
from studies.report.pages import STUDIES
from studies.streams import mixed_folder
from studies.streams.mixed_folder import IMAGENET, UNKNOWN, Photos

FILE = Path(mixed_folder.__file__).with_name("mixed-folder.toml")
CLASSES = 30


def toy_photos() -> Photos:
    """Return photos whose group "office-31" shows two classes, and unknown ones with low logits."""
    rng = np.random.default_rng(0)
    group = np.repeat([IMAGENET, "office-31", "grocery-store", UNKNOWN], [120, 60, 30, 90])
    label = np.concatenate([np.arange(120) % CLASSES, np.arange(60) % 2, np.full(30, 5), np.full(90, 9)])
    logits = rng.normal(size=(300, CLASSES)) + 3.0 * np.eye(CLASSES)[label] * (group != UNKNOWN)[:, None]
    correct = np.eye(CLASSES, dtype=bool)[label] & (group != UNKNOWN)[:, None]
    return Photos(logits, np.ones(300), group, correct, (group == IMAGENET) & (np.arange(300) % 2 == 0))


@pytest.fixture
def toy(monkeypatch, tmp_path):
    monkeypatch.setattr(mixed_folder, "prepare", lambda *_: toy_photos())
    monkeypatch.setattr(mixed_folder, "weights_file", lambda *_: tmp_path / "weights")
    for name in ("weights", "office-31.zip", "grocery-store.zip"):
        (tmp_path / name).write_bytes(b"")
    changes = ("settings.folders=6", "settings.photos={ImageNet = 20, office-31 = 20, grocery-store = 10}", "seeds=[0]")
    return read_experiment(FILE, [*changes, 'grid.encoder=["mobilenetv2"]', f'settings.source="{tmp_path}"'])


def test_each_group_is_compared_with_the_network_alone(toy, tmp_path):
    found = run_experiment(toy, tmp_path / "run", "command")
    rows = {(row["group"], row["method"], row["temperature"]): row for row in found["rows"]}
    assert len(rows) == 4 * 2 * 4
    for (group, method, _), row in rows.items():
        assert row["people"] == 6
        assert (row["accuracy"] == 0) == (group == UNKNOWN)
        assert method != "plain" or row["changed"] == 0
    assert rows["office-31", "shares", "fitted"]["gain"]["mean"] > 0
    assert rows[UNKNOWN, "plain", "1"]["marked"] > 0.5 > rows[IMAGENET, "plain", "1"]["marked"]
    header, lines = STUDIES["mixed-folder"].table(found)
    assert (len(lines), header[0]) == (8, "encoder")
    assert all("mixed folder" in negative.text for negative in negatives(found))


def test_truth_that_names_no_class_is_refused():
    with pytest.raises(UsageError, match="truth.office-31: coffe_mug is no ImageNet class"):
        mixed_folder.truth_of("office-31", ("coffe_mug",), ["coffee_mug", "mouse"])
    assert mixed_folder.truth_of("office-31", ("mouse",), ["coffee_mug", "mouse"]) == {1}
