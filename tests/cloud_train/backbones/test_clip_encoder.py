"""A clip encoder that cannot tell directions, drawn clips that change, and settings that ask for frames wrongly."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from refocus.cloud_train.backbones.backbone import create_backbone
from refocus.cloud_train.backbones.clip import MeanPooling, TemporalPooling, over_frames
from refocus.cloud_train.backbones.feature_cache import extract
from refocus.cloud_train.backbones.pretrain import CLIP_ARGUMENTS, CLIP_BACKBONE, GLYPH_PREPROCESSING
from refocus.cloud_train.data import moving_glyphs
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.methods.iciia.programs import encoder_program
from refocus.cloud_train.runs.iciia import DataConfig, RunConfig, check_network, load_backbone
from refocus.cloud_train.train.iciia import IciiaSettings
from refocus.edge.photos import cropped
from refocus.export.program import SIGNATURE, Card, capture_freest, save_checkpoint, signature

CLIPS = msgspec.structs.replace(GLYPH_PREPROCESSING, frames=moving_glyphs.FRAMES)


def small(pooling):
    torch.manual_seed(0)
    return over_frames(create_backbone(CLIP_BACKBONE, 6, GLYPH_PREPROCESSING, **CLIP_ARGUMENTS), 8, pooling)


def test_a_mean_is_the_same_backwards_and_a_convolution_is_not():
    clip = torch.randn(2, 8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found = {pooling: small(pooling).encoder for pooling in ("mean", "conv")}
        torch.testing.assert_close(found["mean"](clip), found["mean"](clip.flip(1)), atol=1e-5, rtol=1e-5)
        assert (found["conv"](clip) - found["conv"](clip.flip(1))).abs().max() > 1e-3


def learnt(pooling: nn.Module) -> float:
    """Share of right answers about the direction of a dot on a line, whose frames' features are where it is."""
    generator = torch.Generator().manual_seed(0)
    start, right = torch.rand(512, 1, generator=generator) * 8, torch.randint(2, (512,), generator=generator)
    place = start + (2 * right[:, None] - 1) * (torch.arange(8) - 3.5) / 2
    frames = torch.exp(-((place[..., None] - torch.linspace(-2, 10, 16)) ** 2))
    torch.manual_seed(0)
    model = nn.ModuleList([pooling, nn.Linear(16, 2)])
    optimiser = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(150):
        loss = nn.functional.cross_entropy(model[1](model[0](frames[:256])), right[:256])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return float((model[1](model[0](frames[256:])).argmax(1) == right[256:]).float().mean())


def test_a_direction_is_learnt_by_the_convolution_alone():
    assert learnt(TemporalPooling(16)) > 0.95
    assert learnt(MeanPooling()) < 0.65


def test_the_signature_of_a_clip_is_the_mean_of_its_frames():
    clip = torch.randn(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([signature(clip[:, frame]) for frame in range(4)]).mean(0)
    torch.testing.assert_close(signature(clip), expected)


@pytest.mark.parametrize("pooling", ["mean", "conv"])
def test_a_checkpoint_gives_the_same_encoder_and_any_number_of_clips(pooling, tmp_path):
    backbone = small(pooling)
    card = Card(builder="clip_encoder", config=backbone.card_config(classes=6), labels=moving_glyphs.MOTIONS)
    program = encoder_program(save_checkpoint(tmp_path / "encoder.safetensors", backbone.network.state_dict(), card))
    assert program.inputs[0].shape == ("batch", 8, 3, 32, 32)
    assert program.outputs[0].shape == ("batch", 256 + SIGNATURE)
    clips = torch.randn(3, 8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(program.module(clips), backbone.encoder(clips))
        free, captured = capture_freest(program)
        assert free.inputs == program.inputs
        torch.testing.assert_close(captured.module()(clips), backbone.encoder(clips), atol=1e-4, rtol=1e-4)


def test_features_of_clips_are_cached_under_a_key_of_their_own(tmp_path):
    table = moving_glyphs.moving_glyphs(0, {"train": 1, "validation": 1}, 2)
    found = {pooling: extract(small(pooling), table, tmp_path) for pooling in ("mean", "conv")}
    assert found["mean"].key != found["conv"].key
    pixels = torch.from_numpy(np.stack([cropped(table.read(name), CLIPS) for name in table.photo.tolist()]))
    normalised = pixels.permute(0, 1, 4, 2, 3).float() / 127.5 - 1
    with torch.inference_mode():
        expected = small("conv").encoder(normalised).numpy()
    np.testing.assert_allclose(found["conv"].take_rows(), expected, atol=1e-4)


def test_drawn_clips_are_the_same_bytes_each_time_and_lose_nothing():
    table = moving_glyphs.moving_glyphs(3, {"train": 2, "validation": 1}, 3)
    first = [table.read(name) for name in table.photo.tolist()]
    moving_glyphs.habit_of.cache_clear()
    assert [table.read(name) for name in table.photo.tolist()] == first
    assert len({hashlib.sha256(content).digest() for content in first}) == len(first)
    assert np.array_equal(cropped(first[4], CLIPS), moving_glyphs.draw_clip(3, 1, 1))


def test_people_film_few_motions_and_all_are_filmed():
    table = moving_glyphs.moving_glyphs(0, {"train": 60}, 24)
    counts = np.zeros((60, 6), dtype=int)
    for person, (_, rows) in enumerate(table.clients()):
        counts[person] = np.bincount(table.label[rows], minlength=6)
    two_most = np.sort(counts, axis=1)[:, -2:].sum(1) / 24
    assert 0.85 < two_most.mean() < 0.97
    assert counts.sum(0).min() > 100


@pytest.mark.parametrize("name", ["glyphs/0/0/0.png", "moving-glyphs/0/0.webp", "moving-glyphs/0/x/0.webp"])
def test_a_name_of_no_drawn_clip_is_refused(name):
    with pytest.raises(DataError, match="is no drawn clip; expected moving-glyphs/SEED/PERSON/INDEX.webp"):
        moving_glyphs.read(name)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (RunConfig(DataConfig("moving-glyphs")), "frames = 0: an encoder of clips takes 2 or more"),
        (RunConfig(DataConfig("moving-glyphs"), frames=1), "frames = 1: an encoder of clips takes 2 or more"),
        (RunConfig(frames=8), "glyphs are photos; leave frames out"),
        (RunConfig(DataConfig("clips"), bundle="bundle", frames=8), "--from brings an encoder as it is"),
        (RunConfig(DataConfig("clips"), checkpoint="a.safetensors", frames=8), "give --set pooling=mean"),
    ],
)
def test_settings_that_ask_for_frames_wrongly_are_refused(config, said):
    with pytest.raises(UsageError, match=said):
        check_network(config)


def test_the_recipe_of_drawn_clips_states_frames_and_a_small_network():
    settings = IciiaSettings.named("default", {"data": {"source": "moving-glyphs"}})
    assert (settings.frames, settings.pooling, settings.backbone) == (8, "conv", CLIP_BACKBONE)
    check_network(settings)
    assert IciiaSettings.named("default", {}).frames == 0


def test_an_image_network_with_weights_of_its_own_is_taken_over_frames_by_their_mean(tmp_path):
    network = create_backbone(CLIP_BACKBONE, 6, **CLIP_ARGUMENTS).network
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    weights = str(tmp_path / "weights.safetensors")
    config = RunConfig(DataConfig("clips"), CLIP_BACKBONE, weights, CLIP_ARGUMENTS, frames=5, pooling="mean")
    check_network(config)
    backbone = load_backbone(config)
    assert backbone.preprocessing.input_shape[:2] == (5, 3)
    clip = torch.randn(1, 5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        alone = network.forward_head(network.forward_features(clip[0]), pre_logits=True).mean(0, keepdim=True)
        torch.testing.assert_close(backbone.network.forward_features(clip), alone)
