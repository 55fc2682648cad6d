"""Self-improvement finds what an owner meets, waits until new photos bear it out, and never makes up a task."""

from __future__ import annotations

import shutil

import msgspec
import numpy as np
import pytest
from PIL import Image

from refocus.edge.bundle import write_manifest
from refocus.edge.errors import PhotoError, RefocusError
from refocus.edge.taper.bank import Bank
from refocus.edge.taper.self_improvement import (
    CALM,
    SelfImprovement,
    class_shares,
    common_classes,
    evidence_for,
    shift_of,
    still_fits,
)
from refocus.edge.taper.weight_mixing import MASKED


@pytest.fixture(scope="module")
def bank(bank_bundle):
    return Bank.open(bank_bundle.folder)


def answers(labels, classes: int, right: float, rng) -> np.ndarray:
    """(n, C) probabilities of a calibrated model that is right on a share of the photos of each class."""
    noisy = np.where(rng.random(len(labels)) < right, labels, rng.integers(0, classes, len(labels)))
    likelihood = np.full((len(labels), classes), (1 - right) / classes)
    likelihood[np.arange(len(labels)), noisy] += right
    return likelihood


def owner(bank, meets, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return answers(rng.choice(meets, count), len(bank.labels), 0.6, rng)


# What is found


def test_the_shares_of_classes_are_found_through_a_model_that_errs():
    rng = np.random.default_rng(0)
    labels = rng.choice(50, 2000, p=np.r_[0.5, 0.3, 0.2, np.zeros(47)])
    shares = class_shares(answers(labels, 50, 0.5, rng))
    np.testing.assert_allclose(shares[:3], [0.5, 0.3, 0.2], atol=0.06)
    assert shares.sum() == pytest.approx(1)
    assert np.argmax(np.bincount(answers(labels, 50, 0.5, rng).argmax(1), minlength=50)) == 0
    assert set(common_classes(shares)[:3]) == {0, 1, 2}


def test_a_class_more_or_less_is_no_reason_for_a_new_model():
    shares = np.r_[0.5, 0.3, 0.17, 0.02, np.full(16, 0.01 / 16)]
    assert still_fits([0, 1, 2], shares)
    assert still_fits([0, 1, 2, 3, 7], shares)
    assert not still_fits([0, 1], shares)
    assert not still_fits(range(20), shares)


def test_few_photos_say_little():
    one = np.zeros((1, 20))
    one[0, 3] = 1
    assert class_shares(one)[3] < 0.2
    assert class_shares(np.full((5, 20), 0.05)) == pytest.approx(np.full(20, 0.05))


def test_photos_of_everything_are_no_evidence_and_those_of_a_task_are():
    rng = np.random.default_rng(0)
    every = [answers(rng.integers(0, 20, 100), 20, 0.6, rng) for _ in range(2)]
    task = [answers(rng.choice([3, 4, 5], 100), 20, 0.6, rng) for _ in range(2)]
    assert evidence_for(class_shares(every[0]), every[1]) < 0.05
    assert evidence_for(class_shares(task[0]), task[1]) > 0.5
    assert evidence_for(class_shares(task[0]), every[1]) < 0


# What is served


def test_the_first_photos_replace_nothing(bank, tmp_path):
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        step = improvement.learn(owner(bank, [0, 1, 2], 40))
        assert not step.personal
        assert np.isnan(step.evidence)
        assert not (tmp_path / "personal").exists()


def test_an_owner_s_classes_get_a_model_and_the_search_ends(bank, tmp_path, bank_bundle):
    photo = (bank_bundle.folder / bank_bundle.manifest.self_test_photos[0].file).read_bytes()
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        plain = improvement.recognize(photo)
        steps = [improvement.learn(owner(bank, [0, 1, 2], 40, seed)) for seed in range(CALM + 4)]
        assert steps[1].personal
        assert steps[1].changed
        assert set(steps[-1].labels[:3]) == {bank.labels[number] for number in (0, 1, 2)}
        assert steps[-1].settled
        told = improvement.recognizer.manifest.task
        assert set(told.classes) == set(steps[-1].labels)
        assert not np.array_equal(improvement.recognize(photo).logits, plain.logits)


def test_a_class_that_was_never_met_can_still_win(bank, tmp_path):
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        for seed in range(3):
            improvement.learn(owner(bank, [0, 1, 2], 40, seed))
        shift = improvement._task(class_shares(improvement._learned.seen)).shift
        assert shift.min() > MASKED / 100


def test_photos_of_everything_leave_the_generic_model(bank, tmp_path):
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        steps = [improvement.learn(owner(bank, np.arange(12), 60, seed)) for seed in range(CALM + 1)]
        assert not any(step.personal for step in steps)
        assert steps[-1].settled
        assert improvement.recognizer.manifest.task is None


def test_many_small_batches_of_everything_hardly_ever_convince(bank, tmp_path):
    personal = 0
    for seed in range(12):
        with SelfImprovement(bank, tmp_path / str(seed), threads=1) as improvement:
            steps = [improvement.learn(owner(bank, np.arange(12), 16, 100 * seed + n)) for n in range(8)]
            personal += any(step.personal for step in steps)
    assert personal == 0


def test_a_batch_that_fits_less_well_does_not_take_the_model_away(bank, tmp_path):
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        for seed in range(3):
            improvement.learn(owner(bank, [0, 1, 2], 40, seed))
        step = improvement.learn(owner(bank, [7], 2))  # a visitor
        assert step.evidence < 0
        assert step.personal


def test_an_owner_who_changes_gets_the_generic_model_back(bank, tmp_path):
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        for seed in range(3):
            assert improvement.learn(owner(bank, [0, 1, 2], 40, seed)).personal == (seed > 0)
        step = improvement.learn(owner(bank, [7, 8, 9], 40))
        assert step.evidence < 0
        assert not step.personal
        assert improvement.recognizer.manifest.task is None
        assert not (tmp_path / "personal").exists(), "others would go on answering with it"


def test_photos_that_could_not_be_kept_are_not_learned_and_confirm_nothing_when_given_again(
    bank, tmp_path, monkeypatch
):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    def steps(folder, failures):
        with SelfImprovement(bank, tmp_path / folder, threads=1) as improvement:
            improvement.learn(owner(bank, np.arange(12), 16))
            with monkeypatch.context() as disk:
                disk.setattr("refocus.edge.taper.self_improvement.write_file", full)
                for _ in range(failures):
                    with pytest.raises(OSError, match="No space"):
                        improvement.learn(owner(bank, np.arange(12), 16, 1))
            return improvement.learn(owner(bank, np.arange(12), 16, 1))

    assert steps("failed", 6) == steps("not", 0)


def test_a_model_that_cannot_be_loaded_leaves_the_one_that_served(bank, tmp_path, monkeypatch, bank_bundle):
    photo = (bank_bundle.folder / bank_bundle.manifest.self_test_photos[0].file).read_bytes()
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        improvement.learn(owner(bank, [0, 1, 2], 40))
        assert improvement.learn(owner(bank, [0, 1, 2], 40, 1)).personal
        served = improvement.recognizer

        def no_files(_):
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(improvement, "_load", no_files)
        with pytest.raises(OSError, match="Too many"):
            for seed in range(2, 40):
                improvement.learn(owner(bank, [0, 1, 2, 6, 7, 8, 9, 10], 40, seed))
        assert improvement.recognizer is served
        improvement.recognize(photo)
    with SelfImprovement(bank, tmp_path, threads=1) as again:
        assert again.recognizer.manifest.task == served.manifest.task


@pytest.mark.parametrize("personal", [True, False])
def test_a_model_of_photos_that_could_not_be_kept_does_not_serve_after_a_restart(personal, bank, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    def manifest():
        file = tmp_path / "personal" / "manifest.json"
        return file.read_bytes() if file.exists() else None

    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        for seed in range(2 if personal else 1):
            improvement.learn(owner(bank, [0, 1, 2], 40, seed))
        wanted, before = improvement.recognizer.manifest.task, manifest()
        assert (wanted is not None) == personal
        loaded = []
        load = improvement._load
        monkeypatch.setattr(improvement, "_load", lambda folder: loaded.append(folder) or load(folder))
        with monkeypatch.context() as disk:
            disk.setattr("refocus.edge.taper.self_improvement.write_file", full)
            with pytest.raises(OSError, match="No space"):
                improvement.learn(owner(bank, [0, 1, 2, 0, 1, 2, 6, 7, 8] if personal else [0, 1, 2], 400, 5))
        assert loaded == [tmp_path / "personal"], "another model was made"
        assert improvement.recognizer.manifest.task == wanted
        assert manifest() == before
    assert not [*tmp_path.glob(".refocus-*")]
    with SelfImprovement(bank, tmp_path, threads=1) as again:
        assert again.recognizer.manifest.task == wanted


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -0.5, 2.0])
def test_numbers_that_are_no_probabilities_are_refused(wrong, bank, tmp_path):
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        given = owner(bank, [0, 1, 2], 40)
        given[3, 5] = wrong
        for values in (given, given[:0], given[:, :-1], given[0]):
            with pytest.raises(RefocusError, match="expected \\(n, 12\\) numbers from 0 to 1"):
                improvement.learn(values)
        assert improvement.learn(owner(bank, [0, 1, 2], 40)).photos == 40


def test_what_is_learned_is_its_owners_alone_in_a_folder_that_all_may_read(bank, tmp_path):
    tmp_path.chmod(0o755)
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        for seed in range(2):
            improvement.learn(owner(bank, [0, 1, 2], 40, seed))
    assert (tmp_path / "personal").stat().st_mode & 0o077 == 0


def test_a_bank_whose_networks_do_not_help_serves_its_generic_network_with_class_shares(bank, tmp_path, bank_bundle):
    photo = (bank_bundle.folder / bank_bundle.manifest.self_test_photos[0].file).read_bytes()
    with SelfImprovement(bank, tmp_path, threads=1, by="shares") as improvement:
        plain = improvement.recognize(photo)
        for seed in range(2):
            improvement.learn(owner(bank, [0, 1, 2], 40, seed))
        served = improvement.recognizer
        assert served.manifest.task.mixers == ()
        assert served.space == improvement._generic.space, "its features are the generic network's"
        shift = shift_of(class_shares(improvement._learned.seen))
        np.testing.assert_allclose(improvement.recognize(photo).logits, plain.logits + shift, atol=1e-4)


def test_a_bank_whose_training_found_nothing_better_keeps_its_generic_model(bank, tmp_path):
    with SelfImprovement(bank, tmp_path, threads=1, by="generic") as improvement:
        steps = [improvement.learn(owner(bank, [0, 1, 2], 40, seed)) for seed in range(CALM + 1)]
        assert not any(step.personal or step.changed for step in steps)
        assert steps[-1].settled
        assert improvement.recognizer.manifest.task is None


def test_a_bank_s_card_says_what_serves(bank_bundle, tmp_path):
    card = msgspec.structs.replace(bank_bundle.manifest.bank, self_improvement="shares")
    shutil.copytree(bank_bundle.folder, tmp_path / "bank")
    write_manifest(tmp_path / "bank", msgspec.structs.replace(bank_bundle.manifest, bank=card))
    with SelfImprovement(Bank.open(tmp_path / "bank"), tmp_path / "mine", threads=1) as improvement:
        for seed in range(2):
            improvement.learn(owner(improvement.bank, [0, 1, 2], 40, seed))
        assert improvement.recognizer.manifest.task.mixers == ()


@pytest.mark.parametrize("by", ["networks", "shares"])
def test_class_shares_that_move_are_served_though_the_classes_stay(by, bank, tmp_path):
    """Two classes in turns: met alike at first, then one far more often."""
    with SelfImprovement(bank, tmp_path, threads=1, by=by) as improvement:
        for seed in range(2):
            improvement.learn(owner(bank, [0, 1], 40, seed))
        before = improvement._learned.shares
        for seed in range(3):
            step = improvement.learn(owner(bank, [0, 0, 0, 0, 0, 0, 0, 1], 80, 5 + seed))
        after = improvement._learned.shares
        assert step.personal
        assert abs(before[0] - before[1]) < 0.3
        assert after[0] > before[0] + 0.1
        found = class_shares(improvement._learned.seen)
        assert np.abs(after - found).sum() <= 0.2


# Over restarts


def test_what_was_learned_is_there_after_a_restart(bank, tmp_path):
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        for seed in range(3):
            improvement.learn(owner(bank, [0, 1, 2], 40, seed))
        wanted = improvement.recognizer.manifest.task
    with SelfImprovement(bank, tmp_path, threads=1) as again:
        assert again.recognizer.manifest.task == wanted
        assert again.learn(owner(bank, [0, 1, 2], 40, 9)).photos == 160


def test_a_personal_model_that_a_kill_left_when_it_was_taken_back_is_removed(bank, tmp_path):
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        improvement.learn(owner(bank, [0, 1, 2], 40))
    (tmp_path / "personal").mkdir()
    with SelfImprovement(bank, tmp_path, threads=1) as again:
        assert not again.recognizer.manifest.task
    assert not (tmp_path / "personal").exists(), "others would go on answering with it"


def test_a_network_from_before_the_bank_was_found_not_to_help_is_not_served_again(bank, tmp_path):
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        for seed in range(2):
            improvement.learn(owner(bank, [0, 1, 2], 40, seed))
        assert improvement.recognizer.manifest.task.mixers
    with SelfImprovement(bank, tmp_path, threads=1, by="shares") as again:
        assert again.recognizer.manifest.task is None
        assert again.learn(owner(bank, [0, 1, 2], 40, 9)).personal
        assert again.recognizer.manifest.task.mixers == ()


def test_a_damaged_state_is_learned_anew(bank, tmp_path):
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        improvement.learn(owner(bank, [0, 1, 2], 40))
        improvement._state.write_bytes(b"nothing of the kind")
    with SelfImprovement(bank, tmp_path, threads=1) as again:
        assert again.learn(owner(bank, [0, 1, 2], 40)).photos == 40


def test_half_a_photo_teaches_nothing(bank, tmp_path, bank_bundle):
    photo = (bank_bundle.folder / bank_bundle.manifest.self_test_photos[0].file).read_bytes()
    with SelfImprovement(bank, tmp_path, threads=1) as improvement:
        with pytest.raises(PhotoError, match="damaged or truncated"):
            improvement.step([photo, photo[: len(photo) // 2]])
        with pytest.raises(PhotoError, match="there are none"):
            improvement.step([])
        assert improvement.step([photo, photo]).photos == 1
        assert improvement.step([photo]).photos == 1, "it was learned from before"
    with SelfImprovement(bank, tmp_path, threads=1) as again:
        assert again.knows(photo)


def test_the_command_goes_through_an_owner_s_photos(refocus, bank_bundle, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, told in enumerate(bank_bundle.manifest.self_test_photos):
        for level in (1, 5, 9):  # other files, so other photos
            with Image.open(bank_bundle.folder / told.file) as image:
                image.save(photos / f"{level}{number}.png", compress_level=level)
    shutil.copy(photos / "10.png", photos / "98.png")
    (photos / "99.png").write_bytes(b"half")
    done = refocus("improve", bank_bundle.folder, photos, "--out", tmp_path / "mine", "--batch", 8)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith(f"not used: {photos / '99.png'} is not a photo")
    assert done.stderr.endswith("1 of 26 photos could not be used\n")
    lines = done.stdout.strip().splitlines()
    assert lines[0] == "8 photos: generic model"
    assert "nats" in lines[1]
    assert lines[3] == "1 photos were learned from before: left out"
    assert (tmp_path / "mine" / "personal").exists() == lines[-1].startswith("bundle:")
    again = refocus("improve", bank_bundle.folder, photos, "--out", tmp_path / "mine", "--batch", 8)
    assert again.stdout.splitlines() == [
        "25 photos were learned from before: left out",
        "no new photos: nothing was learned",
    ]
    few = refocus("improve", bank_bundle.folder, photos / "10.png", "--out", tmp_path / "few")
    assert few.stdout.splitlines()[-1].startswith("1 photos in one batch are too few to tell")


def test_what_is_learned_of_one_owner_is_not_put_into_a_bundle(refocus, assert_one_clear_line, bank_bundle, tmp_path):
    photo = bank_bundle.folder / bank_bundle.manifest.self_test_photos[0].file
    shutil.copytree(bank_bundle.folder, tmp_path / "bank")
    done = refocus("improve", bank_bundle.folder, photo, "--out", tmp_path / "bank")
    assert_one_clear_line(done, "is a bundle; choose another folder")
    assert not (tmp_path / "bank" / "personal").exists()
