"""An encoder trained on a run's own photos: of the training people alone, from every form of source, on request only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from refocus.cloud_train.backbones.pretrain import CLIP_ARGUMENTS, CLIP_BACKBONE, EncoderRecipe
from refocus.cloud_train.data.image_tensors import Photos, decoded
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.runs.iciia import DataConfig, Run, RunConfig, check_network

PEOPLE, PHOTOS = 20, 12


@pytest.fixture
def config(tmp_path):
    """Twenty clients whose photos are bright on the left or on the right."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, PEOPLE * PHOTOS)
    photos = rng.integers(0, 60, (len(label), 28, 28)).astype(np.uint8)
    for photo, side in zip(photos, label, strict=True):
        photo[:, 14 * side : 14 * side + 14] += 150
    client = np.repeat(np.arange(PEOPLE), PHOTOS)
    np.savez(tmp_path / "halves.npz", x=photos, y=label, client=client)
    return RunConfig(
        DataConfig(str(tmp_path / "halves.npz")),
        CLIP_BACKBONE,
        arguments=CLIP_ARGUMENTS,
        scratch=True,
        encoder=EncoderRecipe(epochs=4, batch=16),
    )


def test_it_learns_from_the_photos_of_training_people_and_tells_those_of_others(config, tmp_path):
    run = Run(tmp_path / "run", config)
    assert len(run.table.of_split("train")) == 12 * PHOTOS
    backbone, test = run.backbone(), run.table.of_split("test")
    assert backbone.preprocessing.crop == 32
    contract = backbone.preprocessing
    pixels = torch.from_numpy(decoded(test, contract, "reading"))
    photos = Photos(pixels, torch.from_numpy(test.label), test.domain, contract.mean, contract.std)
    with torch.no_grad():
        found = backbone.network(photos.batch(np.arange(len(test)))).argmax(1)
    assert (found.numpy() == test.label).mean() > 0.9
    assert torch.equal(Run(tmp_path / "run").backbone().classifier().weight, backbone.classifier().weight)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"scratch": False}, "--set scratch=true trains one"),
        ({"checkpoint": "weights.safetensors"}, "leave out --checkpoint and --from, or scratch"),
        ({"bundle": "bundle", "backbone": RunConfig().backbone, "arguments": {}}, "leave out --checkpoint and --from"),
        ({"mean": (0.5, 0.5, 0.5)}, "describe given weights"),
    ],
)
def test_what_contradicts_it_is_refused_before_photos_are_read(change, why, config):
    with pytest.raises(UsageError, match=why):
        check_network(replace(config, **change))


def test_photos_with_several_labels_are_not_expected_of_arrays(config, tmp_path):
    several = replace(config, data=replace(config.data, labels="several"))
    with pytest.raises(DataError, match="leave data.labels = several out"):
        Run(tmp_path / "run", several)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("dealt", "called"),
    [({}, {}), ({"clients": "dirichlet", "number_of_clients": 8}, {"people": "pseudo-people"})],
)
def test_results_call_dealt_clients_pseudo_people(dealt, called, config, tmp_path):
    run = Run(tmp_path / "run", replace(config, data=replace(config.data, **dealt)))
    assert run.kind_of_people() == called
