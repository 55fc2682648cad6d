"""Features, training and baselines: extracted once, resumable, on one device or several."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from refocus.cloud_train.backbones.backbone import create_backbone, load_weights
from refocus.cloud_train.backbones.feature_cache import BATCH, FeatureCache, bank_key, extract
from refocus.cloud_train.backbones.pretrain import GLYPH_PREPROCESSING
from refocus.cloud_train.commands.parsing import typed_command
from refocus.cloud_train.data.glyphs import glyphs
from refocus.cloud_train.data.windows import common_length
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.methods.iciia.block import IciiaConfig
from refocus.cloud_train.methods.iciia.plain_classifier import fit_plain_classifier
from refocus.cloud_train.methods.iciia.train import (
    Devices,
    IciiaRecipe,
    choose_warm_up,
    right_by_history,
    train_iciia,
)
from refocus.cloud_train.methods.iciia.train_gate import GateRecipe
from refocus.cloud_train.runs.iciia import Run
from refocus.edge.errors import PhotoError
from refocus.edge.photos.preprocess import preprocess
from refocus.export.program import SIGNATURE, weights_hash
from studies.iciia.labelled_baselines import (
    LabelledRecipe,
    fine_tuning,
    overall,
    prompt_tuning,
    split_labelled,
)
from tests.tiny import WIDTH


@pytest.fixture(scope="module")
def table():
    return glyphs(0, {"train": 4, "test": 2}, 40)


@pytest.fixture(scope="module")
def backbone():
    torch.manual_seed(0)
    return create_backbone("lcnet_035", 189, GLYPH_PREPROCESSING)


# --- backbones -------------------------------------------------------------------------------------------------


def test_the_feature_is_what_the_classifier_reads(backbone):
    photo = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        rows = backbone.encoder(photo)
        torch.testing.assert_close(backbone.classifier()(rows[:, : backbone.width]), backbone.network(photo))


def test_the_signature_tells_paper_ink_and_grain(backbone):
    flat, striped = torch.full((1, 3, 32, 32), 0.5), torch.zeros(1, 3, 32, 32)
    flat[:, 0], striped[:, :, :, ::2] = -1.0, 1.0
    with torch.no_grad():
        paper, stripes = (backbone.encoder(photo)[0, backbone.width :] for photo in (flat, striped))
    torch.testing.assert_close(paper, torch.tensor([-1.0, 0.5, 0.5, *[0.0] * 9]))
    torch.testing.assert_close(stripes, torch.tensor([0.5] * 3 + [0.5] * 3 + [0.25] * 3 + [1.0] * 3))
    assert backbone.row == backbone.width + len(paper)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "convnext_atto", "swin_tiny_patch4_window7_224"])
def test_any_family_of_networks_is_an_encoder(name):
    made = create_backbone(name, 7)
    side = made.preprocessing.crop
    with torch.no_grad():
        feature = made.encoder(torch.randn(1, 3, side, side))
    assert feature.shape == (1, made.row)
    assert made.classifier().in_features == made.width


def test_weights_for_another_network_name_the_first_misfit(backbone, tmp_path):
    from safetensors.torch import save_file

    save_file({"conv": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match="does not fit network lcnet_035: .* is missing and [0-9]+ more"):
        load_weights(backbone, tmp_path / "w.safetensors")


def test_weights_that_are_no_safetensors_are_refused(backbone, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"junk")
    with pytest.raises(UsageError, match="is not a safetensors file"):
        load_weights(backbone, tmp_path / "w.safetensors")


# --- the feature bank ------------------------------------------------------------------------------------------


def test_banked_features_are_those_of_the_encoder(backbone, table, tmp_path):
    bank = extract(backbone, table, tmp_path)
    row = 77
    pixels = torch.from_numpy(preprocess(table.read(table.photo[row]), backbone.preprocessing))
    with torch.inference_mode():
        wanted = backbone.encoder(pixels)[0].numpy()
    np.testing.assert_allclose(bank.features[row], wanted, atol=1e-5)
    assert isinstance(bank.features, np.memmap)


def test_a_stopped_extraction_goes_on_where_it_was(backbone, table, tmp_path, monkeypatch):
    monkeypatch.setattr("refocus.cloud_train.backbones.feature_cache.FLUSH_EVERY", 1)
    whole = extract(backbone, table, tmp_path / "whole")
    bad = BATCH * 2 + 5
    seen = []

    def failing(name):
        if name == table.photo[bad]:
            raise PhotoError("damaged")
        return table.read(name)

    def counting(name):
        seen.append(name)
        return table.read(name)

    with pytest.raises(PhotoError):
        extract(backbone, replace(table, read=failing), tmp_path / "part")
    bank = extract(backbone, replace(table, read=counting), tmp_path / "part")
    np.testing.assert_array_equal(bank.features, whole.features)
    assert len(seen) == len(table) - 2 * BATCH
    seen.clear()
    extract(backbone, replace(table, read=counting), tmp_path / "part")
    assert not seen


def test_a_bank_never_serves_other_weights_other_preprocessing_or_other_photos(backbone, table):
    key = bank_key(backbone, table)
    assert bank_key(backbone, table.rows(np.arange(10))) != key
    contract = msgspec.structs.replace(backbone.preprocessing, resize_filter="bicubic")
    assert bank_key(replace(backbone, preprocessing=contract), table) != key
    assert bank_key(replace(backbone, arguments={"pad_type": "same"}), table) != key
    assert bank_key(backbone, replace(table, stamp=lambda name: "another file")) != key
    torch.manual_seed(1)
    assert bank_key(create_backbone("lcnet_035", 189, GLYPH_PREPROCESSING), table) != key


def test_one_changed_weight_changes_the_hash(backbone):
    before = weights_hash(backbone.network)
    with torch.no_grad():
        parameter = next(backbone.network.parameters())
        parameter.view(-1)[0] += 1e-7
        changed = weights_hash(backbone.network)
        parameter.view(-1)[0] -= 1e-7
    assert changed != before


# --- ICIIA -----------------------------------------------------------------------------------------------------

CONFIG = IciiaConfig(width=16, layers=1, partitions=4, heads=2, window=8)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot take room for a file")
def test_a_disk_without_room_for_features_is_an_error_and_not_the_end_of_the_process(
    backbone, table, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(DataError, match="MB of features find no room"):
            extract(backbone, table.rows(np.arange(3)), tmp_path)
    assert len(extract(backbone, table.rows(np.arange(3)), tmp_path).features) == 3


def toy_bank(seed: int, split: str, clients: int = 24, each: int = 16, noise: float = 0.3) -> FeatureCache:
    """People of two kinds; the same feature means another class for each kind, and marks of the kind are rare."""
    rng = np.random.default_rng(seed)
    table = glyphs(seed, {"train": clients}, each)
    kind = np.repeat(rng.integers(0, 2, clients), each)
    what = rng.integers(0, 3, clients * each)
    features = noise * rng.normal(size=(clients * each, 16)).astype(np.float32)
    features[np.arange(len(what)), what] += 3
    features[:, 8] += np.where(rng.random(len(what)) < 0.5, (2 * kind - 1) * 3, 0)
    people = np.char.add(split, table.client)
    table = replace(table, label=what * 2 + kind, split=np.full(len(table), split), client=people)
    signature = np.zeros((len(table), SIGNATURE), dtype=np.float32)
    return FeatureCache(table, np.hstack([features, signature]), "toy", np.arange(len(table)))


@pytest.fixture(scope="module")
def trained():
    recipe = IciiaRecipe(learning_rate=0.1, momentum=0.9, windows_per_step=4, epochs=40)
    return train_iciia(toy_bank(0, "train", 64), toy_bank(1, "validation"), CONFIG, recipe)


def test_iciia_learns_what_only_the_history_tells(trained):
    judged = toy_bank(2, "test", 48)
    torch.manual_seed(0)
    plain = fit_plain_classifier(toy_bank(0, "train", 64), toy_bank(1, "validation")).layer
    by_history = right_by_history(trained.model, plain, judged, (0, 1, 3, 7))
    plain_accuracy, personal = by_history[7]
    assert personal > plain_accuracy + 0.08
    assert personal > by_history[0][1] + 0.08


def test_labels_shuffled_in_training_teach_nothing():
    """The control of the test above: the same features, the same code, labels dealt out at random."""
    train = toy_bank(0, "train", 64)
    wrong = np.random.default_rng(0).permutation(train.table.label)
    train = replace(train, table=replace(train.table, label=wrong))
    recipe = IciiaRecipe(learning_rate=0.1, momentum=0.9, windows_per_step=4, epochs=10)
    result = train_iciia(train, toy_bank(1, "validation"), CONFIG, recipe)
    plain = fit_plain_classifier(train, toy_bank(1, "validation")).layer
    chance = 1 / 6
    assert right_by_history(result.model, plain, toy_bank(2, "test", 48), (7,))[7][1] < chance + 0.1


def test_one_person_with_few_photos_does_not_shorten_everybodys_windows():
    train, validation = toy_bank(0, "train", 12), toy_bank(1, "validation", 8)
    others = np.flatnonzero(validation.table.client != validation.table.client[0])
    short = validation.rows(np.append(others, [0, 1]))
    assert common_length(short.table) == 16
    recipe = IciiaRecipe(learning_rate=1e-9, epochs=1)
    judged = []
    from refocus.cloud_train.methods.iciia import train as module

    original = module.accuracy

    def watching(model, bank, cut, batch=64):
        judged.append(cut.shape[1])
        return original(model, bank, cut, batch)

    module.accuracy = watching
    try:
        train_iciia(train, short, CONFIG, recipe)
    finally:
        module.accuracy = original
    assert set(judged) == {8}


def test_windows_that_devices_cannot_share_are_refused():
    class Three:
        world_size = 3

    with pytest.raises(UsageError, match="windows_per_step 4 is no multiple of the 3 devices"):
        train_iciia(toy_bank(0, "train", 4), toy_bank(1, "validation", 2), CONFIG,
                    IciiaRecipe(windows_per_step=4), Three())  # fmt: skip


def test_the_best_epoch_is_kept_not_the_last(trained):
    assert trained.validation[trained.best_epoch] == max(trained.validation)


def test_training_stops_when_validation_no_longer_improves():
    recipe = IciiaRecipe(learning_rate=1e-9, epochs=50, patience=3)
    result = train_iciia(toy_bank(0, "train", 4), toy_bank(1, "validation", 2), CONFIG, recipe)
    assert len(result.validation) == 4
    assert result.best_epoch == 0


def test_the_same_seed_gives_the_same_weights():
    recipe = IciiaRecipe(learning_rate=0.1, epochs=2, seed=5)
    first, second = (
        train_iciia(toy_bank(0, "train", 6), toy_bank(1, "validation", 2), CONFIG, recipe).model for _ in range(2)
    )
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("attention", ["causal", "none"])
def test_the_other_forms_train_too(attention):
    config = IciiaConfig(width=16, layers=2, partitions=4, heads=2, window=4, attention=attention)
    recipe = IciiaRecipe(learning_rate=0.1, momentum=0.9, epochs=3)
    result = train_iciia(toy_bank(0, "train", 12), toy_bank(1, "validation", 4), config, recipe)
    assert max(result.validation[1:]) > result.validation[0]


def test_clients_with_too_few_photos_are_an_error():
    with pytest.raises(DataError, match="no client has 32 photos"):
        train_iciia(toy_bank(0, "train", 2), toy_bank(1, "validation", 2),
                    IciiaConfig(width=16, partitions=4, window=32), IciiaRecipe(epochs=1))  # fmt: skip


@pytest.mark.parametrize(
    ("personal", "warm_up"),
    [({0: 0.4, 1: 0.6, 3: 0.7}, 1), ({0: 0.6, 1: 0.4, 3: 0.7}, 3), ({0: 0.6, 1: 0.6, 3: 0.6}, 0),
     ({0: 0.6, 1: 0.6, 3: 0.4}, 9)],
)  # fmt: skip
def test_the_warm_up_is_the_shortest_history_that_never_loses_afterwards(personal, warm_up):
    assert choose_warm_up({k: (0.5, value) for k, value in personal.items()}, window=8) == warm_up


TWO_PROCESSES = """
import sys, torch
sys.path[:0] = [{repository!r}]
from tests.cloud_train.methods.test_training import CONFIG, toy_bank
from refocus.cloud_train.methods.iciia.train import Devices, IciiaRecipe, train_iciia
fabric = Devices(count=2, accelerator="cpu").launch()
recipe = IciiaRecipe(learning_rate=0.1, momentum=0.9, windows_per_step=4, epochs=12)
result = train_iciia(toy_bank(0, "train", 64, noise={noise}), toy_bank(1, "validation", noise={noise}), CONFIG, recipe,
                     fabric)
total = sum(p.double().sum().item() for p in result.model.parameters())
with open({out!r} + str(fabric.global_rank), "w") as file:
    file.write(f"{{total!r}} {{max(result.validation)}} {{result.validation[0]}} {{fabric.world_size}}")
"""


def _train_as_two(tmp_path: Path, noise: float = 0.3) -> tuple[list[str], list[str]]:
    """What each of two processes under torchrun came to: weights, best and first accuracy, processes."""
    script = tmp_path / "train.py"
    script.write_text(
        TWO_PROCESSES.format(repository=str(Path(__file__).parents[3]), out=str(tmp_path / "rank"), noise=noise)
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = ((tmp_path / f"rank{rank}").read_text().split() for rank in (0, 1))
    return first, second


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path):
    first, second = _train_as_two(tmp_path)
    assert first == second
    assert first[3] == "2"
    assert float(first[1]) > float(first[2]) + 0.2


@pytest.mark.slow
def test_two_processes_come_to_the_accuracy_of_one_within_noise(tmp_path):
    """The noise is that of five seeds of one process, and of counting right answers."""
    recipe = IciiaRecipe(learning_rate=0.1, momentum=0.9, windows_per_step=4, epochs=12)
    banks = toy_bank(0, "train", 64, noise=1.2), toy_bank(1, "validation", noise=1.2)  # hard enough not to be all right
    alone = [max(train_iciia(*banks, CONFIG, replace(recipe, seed=seed)).validation) for seed in range(5)]
    middle, answers = float(np.mean(alone)), len(banks[1].table)
    noise = max(float(np.std(alone, ddof=1)), (middle * (1 - middle) / answers) ** 0.5)
    assert noise > 0
    first, _ = _train_as_two(tmp_path, noise=1.2)
    assert abs(float(first[1]) - middle) < 2 * noise, (first[1], alone)


def test_fewer_processes_than_asked_for_is_an_error(monkeypatch):
    class Alone:
        world_size = 1

        def __init__(self, **settings):
            pass

        def launch(self):
            pass

    monkeypatch.setattr("lightning_fabric.Fabric", Alone)
    with pytest.raises(UsageError, match="devices.count = 2: 1 processes came up"):
        Devices(count=2, accelerator="cpu").launch()


# --- baselines -------------------------------------------------------------------------------------------------


def test_labels_from_each_person_help_and_other_peoples_labels_do_not():
    bank = toy_bank(3, "test", 12, 32)
    plain = fit_plain_classifier(toy_bank(0, "train", 64), toy_bank(1, "validation")).layer
    parts = split_labelled(bank)
    judged = np.concatenate([rows for _, rows in parts.values()])
    with torch.no_grad():
        answers = plain(torch.from_numpy(bank.take(judged))).argmax(-1).numpy()
    original = float((answers == bank.table.label[judged]).mean())
    names = list(parts)
    swapped = {name: (parts[names[i - 1]][0], parts[name][1]) for i, name in enumerate(names)}
    for method in (fine_tuning, prompt_tuning):
        own, foreign = (overall(method(bank, plain, p, LabelledRecipe(epochs=60)), p) for p in (parts, swapped))
        assert own > original + 0.02
        assert own > foreign + 0.02


def test_labelled_and_judged_photos_never_overlap():
    parts = split_labelled(toy_bank(3, "test", 4))
    assert all(not set(labelled) & set(judged) for labelled, judged in parts.values())


def test_a_person_with_one_photo_takes_no_part_in_labelled_baselines():
    bank = toy_bank(3, "test", 4)
    one = bank.rows(np.append(np.flatnonzero(bank.table.client != bank.table.client[0]), 0))
    plain = fit_plain_classifier(toy_bank(0, "train", 16), toy_bank(1, "validation")).layer
    parts = split_labelled(one)
    alone = str(bank.table.client[0])
    assert list(parts) == sorted({*one.table.client.tolist()})  # whose numbers stay theirs
    assert [len(rows) for rows in parts[alone]] == [0, 0]
    without = {name: rows for name, rows in parts.items() if name != alone}
    for method in (fine_tuning, prompt_tuning):
        found = method(one, plain, parts, LabelledRecipe(epochs=1))
        assert found == method(one, plain, without, LabelledRecipe(epochs=1))
        assert 0 < overall(found, parts) < 1


# --- runs ------------------------------------------------------------------------------------------------------


def test_a_trained_head_is_not_trained_again(tiny_run, monkeypatch):
    monkeypatch.setattr("refocus.cloud_train.runs.iciia.train_iciia", lambda *a: pytest.fail("trained again"))
    head = json.loads(tiny_run.head_path(0, "iciia_t").with_suffix(".json").read_text())
    config = head["config"]
    run = Run(tiny_run.folder)
    alone = Devices(accelerator="cpu").launch()
    prepared = run.prepare(alone)
    iciia, recipe = IciiaConfig(**config["iciia"]), IciiaRecipe(**config["recipe"])
    again = run.train_head("iciia_t", iciia, recipe, prepared, alone, GateRecipe(windows=2000, fewest=0))
    assert again.card.sha256 == head["sha256"]


def test_a_head_with_other_settings_is_not_replaced(tiny_run):
    run = Run(tiny_run.folder)
    alone = Devices(accelerator="cpu").launch()
    prepared = run.prepare(alone)
    with pytest.raises(UsageError, match="was trained with other settings"):
        run.train_head("iciia_t", IciiaConfig(width=WIDTH, layers=3), IciiaRecipe(), prepared, alone)


def test_what_is_published_of_a_command_holds_no_paths(monkeypatch, tmp_path):
    words = ["refocus", "evaluate", "runs/mine", "--data", "/home/anna/photos.zip", "--set", "data.source=/a/b.zip"]
    monkeypatch.setattr("sys.argv", words)
    assert typed_command({"runs/mine": "RUN"}) == "refocus evaluate RUN --data photos.zip --set data.source=b.zip"
    monkeypatch.setattr("sys.argv", ["studies", "federate-trial", "trial", "--rounds", "3"])
    assert typed_command({"trial": "OUT"}, "python -m studies") == "python -m studies federate-trial OUT --rounds 3"


def test_a_runs_commands_are_kept_once_each(tiny_run):
    run = Run(tiny_run.folder)
    before = run.commands()
    for command in ("refocus train iciia RUN", "refocus train iciia RUN --seeds 1") * 2:
        run.note_command(command)
    assert run.commands() == [*before, "refocus train iciia RUN", "refocus train iciia RUN --seeds 1"]
    (run.folder / "commands.txt").unlink()


def test_gate_clients_teach_nothing_but_the_gate(tiny_run):
    table = tiny_run.table
    assert {str(s): int((table.split == s).sum()) for s in np.unique(table.split)} == {
        "train": 96 * 32, "validation": 6 * 32, "gate": 8 * 32, "test": 6 * 32,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("window", "photos", "found"), [(0, 10, 10), (0, 200, 16), (0, 1, 2), (16, 10, 16), (3, 10, 3)]
)
def test_a_window_that_was_not_given_fits_the_photos_of_half_of_the_people(window, photos, found):
    block = IciiaConfig(layers=0, window=window, partitions=4).on(16, glyphs=False, photos=photos)
    assert (block.window, block.layers) == (found, 3)
    with pytest.raises(UsageError, match="window must be at least 1"):
        replace(block, window=0)


@pytest.fixture(scope="module")
def at_chosen_rates():
    """Heads without a given learning rate, for features that differ in scale alone."""
    recipe = IciiaRecipe(learning_rate=0.0, momentum=0.9, windows_per_step=4, epochs=12)
    banks = toy_bank(0, "train", 32), toy_bank(1, "validation")
    scaled = ([replace(bank, features=bank.features * scale) for bank in banks] for scale in (0.125, 1.0, 128.0))
    return [train_iciia(*both, CONFIG, recipe) for both in scaled]


def test_a_learning_rate_is_chosen_by_losses_on_training_people_and_teaches(at_chosen_rates):
    found = at_chosen_rates[1]
    assert found.losses[found.learning_rate] <= 1.02 * min(found.losses.values())
    assert found.validation[found.best_epoch] > found.validation[0] + 0.2


def test_features_of_any_scale_train_alike(at_chosen_rates):
    small, middle, large = at_chosen_rates
    assert small.learning_rate == middle.learning_rate == large.learning_rate
    assert small.validation == middle.validation == large.validation
    window, valid = torch.from_numpy(toy_bank(2, "test").take(np.arange(8)))[None], torch.ones(1, 8, dtype=torch.bool)
    expected = middle.model.last(window, valid)[0]
    for scale, found in ((0.125, small), (128.0, large)):
        assert torch.allclose(found.model.last(window * scale, valid)[0], expected, atol=0.05)


def test_a_chosen_rate_that_diverges_later_is_lowered(monkeypatch):
    from refocus.cloud_train.methods.iciia import train as module

    rates, original = [], module.train_iciia

    def diverging(train, validation, config, recipe, *rest):
        rates.append(recipe.learning_rate)
        if recipe.learning_rate > 0.05:
            raise module.DivergedError("diverges")
        return original(train, validation, config, recipe, *rest)

    monkeypatch.setattr(module, "train_iciia", diverging)
    recipe = IciiaRecipe(learning_rate=0.0, momentum=0.9, windows_per_step=4, epochs=1)
    found = original(toy_bank(0, "train", 8), toy_bank(1, "validation", 4), CONFIG, recipe)
    assert rates == [found.learning_rate * 3**n for n in reversed(range(len(rates)))]
    assert found.learning_rate < 0.05


def test_people_with_few_photos_are_cut_again_until_an_epoch_has_steps_enough():
    recipe = IciiaRecipe(learning_rate=1e-9, windows_per_step=4, steps_per_epoch=5, epochs=2)
    found = train_iciia(toy_bank(0, "train", 2), toy_bank(1, "validation", 2), CONFIG, recipe)
    assert found.steps == 10
