"""Shared pieces: one small trained run, its bundle, and photos to feed it. Made once per test session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TINY_CLIENTS = {"train": 48, "validation": 6, "gate": 8, "test": 6}


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A real run, trained on few glyphs for a few seconds: good enough to be far from chance, no more."""
    import torch

    from cloud_train.methods.iciia import IciiaConfig
    from cloud_train.runs import DataConfig, Run, RunConfig
    from cloud_train.train_encoder import EncoderRecipe
    from cloud_train.train_gate import GateRecipe
    from cloud_train.train_iciia import Devices, IciiaRecipe

    torch.manual_seed(0)
    data = DataConfig(glyph_clients=TINY_CLIENTS, photos_per_client=32)
    run = Run(tmp_path_factory.mktemp("runs") / "tiny", RunConfig(data, encoder=EncoderRecipe(epochs=3, batch=32)))
    fabric = Devices(accelerator="cpu").launch()
    prepared = run.prepare(fabric)
    recipe = IciiaRecipe(learning_rate=0.1, momentum=0.9, windows_per_step=8, epochs=4)
    gate = GateRecipe(windows=2000)
    run.train_head("iciia_t", IciiaConfig(width=1280, layers=1), recipe, prepared, fabric, gate)
    return run


@pytest.fixture(scope="session")
def bundle(tiny_run):
    """The tiny run's delivered bundle, exported and verified."""
    from cloud_train.evaluate import bundle_of

    return bundle_of(tiny_run, tiny_run.head_path(0, "iciia_t"))


@pytest.fixture(scope="session")
def stream(tiny_run):
    """One unseen person's photos, as encoded bytes in order."""
    test = tiny_run.table.of_split("test")
    _, rows = next(test.clients())
    return [test.read(name) for name in test.photo[rows].tolist()]


@pytest.fixture
def photo_file(stream, tmp_path):
    path = tmp_path / "letter.png"
    path.write_bytes(stream[0])
    return path


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real photos and weights that REFOCUS_DATA names."""
    value = os.environ.get("REFOCUS_DATA")
    if not value or not Path(value).is_dir():
        pytest.skip("REFOCUS_DATA names no folder of real photos and weights")
    return Path(value)


@pytest.fixture(scope="session")
def refocus():
    """Runs the installed command; returns the finished process."""

    def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "refocus"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=3000, **more)

    return run


@pytest.fixture(scope="session")
def assert_one_clear_line():
    """Checks that a finished process failed with one line for people, which has some words in it."""

    def check(done: subprocess.CompletedProcess[str], *words: str) -> None:
        assert done.returncode == 1, done.stdout + done.stderr
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith("refocus: ")
        for word in words:
            assert word in line

    return check
