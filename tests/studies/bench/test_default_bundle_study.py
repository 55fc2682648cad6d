"""The study of the default bundle evaluates PyTorch and exported programs on the same photos."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from studies.bench import default_bundle
from studies.experiment import read_experiment, run_experiment

FILE = Path(default_bundle.__file__).with_name("default-bundle.toml")


@pytest.mark.slow
def test_programs_that_answer_as_pytorch_have_its_accuracy(real_data, tmp_path):
    (tmp_path / "data" / "photos").mkdir(parents=True)
    for photo in [real_data / "photos" / "classes.txt", *sorted((real_data / "photos").glob("*.JPEG"))[:20]]:
        shutil.copy(photo, tmp_path / "data" / "photos")
    changes = [f'settings.source="{tmp_path / "data"}"', 'grid.target=["pytorch", "onnx:fp32"]']
    found = run_experiment(read_experiment(FILE, changes), tmp_path / "run")
    torch, onnx = found["rows"]
    assert torch["targets"] == onnx["targets"] == 20
    assert torch["accuracy"] == onnx["accuracy"] > 0.7
    assert torch["difference"] == 0 < onnx["difference"] < 1e-3
    assert onnx["same"] == 1
