"""Knowledge distillation: a network learns what its teacher knows, and the teacher does not recite labels it has seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.taper.tasks import Task
from refocus.cloud_train.methods.taper.teacher import Teacher
from refocus.cloud_train.methods.taper.train import TaperRecipe, loss_of, task_loss, train_generic
from refocus.cloud_train.runs.taper import TaperConfig, TaperRun
from refocus.cloud_train.runs.taper_teacher import TeacherNetwork, teacher_logits
from refocus.cloud_train.studies.banks.evaluation import Evaluation
from refocus.cloud_train.studies.banks.tables import rows_of

CLASSES, SMALL = 4, {"channels": [8, 16, 32, 64], "stem_width": 8}


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


def photo_tree(folder, kinds: int = 2, photos: int = 24, noise: int = 0):
    """Photos of plain colours: the class is the colour, or nothing (``noise``), in three splits."""
    rng, rows = np.random.default_rng(0), ["file_name,label,split,parent"]
    colours = rng.integers(0, 256, (kinds, 3))
    for number in range(photos):
        name, split = f"{number}.png", ("train", "train", "validation", "test")[number % 4]
        colour = rng.integers(0, 256, 3) if noise else colours[number // 4 % kinds] + rng.integers(-9, 10, 3)
        Image.new("RGB", (16, 16), tuple(int(v) for v in np.clip(colour, 0, 255))).save(folder / name)
        rows.append(f"{name},kind {number // 4 % kinds},{split},fruit")
    (folder / "metadata.csv").write_text("\n".join(rows))
    small = {"name": "resnet10t", "arguments": SMALL}
    return TaperConfig(source=str(folder), parent_column="parent", bases=2, shards="classes", side=8,
                       small=type(TaperConfig().small)(**small), kind="fixed", ways=2,
                       recipe=TaperRecipe((1, 1, 1), (0.05, 0.02, 0.01), batch=8, tasks=2))  # fmt: skip


@pytest.fixture
def teacher(tmp_path) -> TeacherNetwork:
    save_file(network(3, 10).state_dict(), tmp_path / "teacher.safetensors")
    return TeacherNetwork("resnet10t", SMALL, str(tmp_path / "teacher.safetensors"), side=16)


def test_a_teacher_does_not_recite_the_labels_of_its_own_training(tmp_path, teacher):
    """Photos that say nothing about their labels: whoever saw these labels recites them, whoever did not is at chance."""
    data = tmp_path / "data"
    data.mkdir()
    run = TaperRun(tmp_path / "run", photo_tree(data, photos=400, noise=1))
    logits = teacher_logits(teacher, run.table, tmp_path / "features")
    label = run.table.of_split("train").label
    assert logits.shape == (200, 2)
    assert abs((logits.argmax(1) == label).mean() - 0.5) < 0.12
    assert np.isfinite(logits).all()


def test_a_bank_and_what_it_is_compared_with_learn_from_the_same_teacher(tmp_path, teacher, monkeypatch):
    data = tmp_path / "data"
    data.mkdir()
    run = TaperRun(tmp_path / "run", replace(photo_tree(data), teacher=teacher))
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


def test_a_teacher_without_weights_is_refused_before_training(tmp_path, teacher):
    data = tmp_path / "data"
    data.mkdir()
    run = TaperRun(tmp_path / "run", replace(photo_tree(data), teacher=replace(teacher, checkpoint="")))
    with pytest.raises(UsageError, match="random weights teach nothing; name its weights as teacher.checkpoint"):
        run.check()


def test_other_weights_of_a_teacher_are_noticed(tmp_path, teacher):
    data = tmp_path / "data"
    data.mkdir()
    config = replace(photo_tree(data), teacher=teacher)
    run = TaperRun(tmp_path / "run", config)
    before = run.teacher.logits
    save_file(network(4, 10).state_dict(), teacher.checkpoint)
    assert not torch.equal(TaperRun(tmp_path / "run", config).teacher.logits, before)
