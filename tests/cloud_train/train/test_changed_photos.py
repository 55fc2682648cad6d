"""Photos that change between two commands on one run, and two commands at once: nothing is trained on a mixture."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
from threading import Thread

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from refocus.cloud_train.backbones import feature_cache
from refocus.cloud_train.backbones.backbone import create_backbone
from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.runs import iciia
from refocus.cloud_train.runs.folder import numbered, same_photos
from refocus.cloud_train.runs.iciia import DataConfig, Run, RunConfig
from refocus.cloud_train.train import IciiaSettings, train_iciia
from refocus.edge.errors import PhotoError

SMALL = ("partitions=[4]", "block.layers=1", "block.window=3", "gate.kind=warm_up", "recipe.epochs=1",
         "recipe.windows_per_step=4", "devices.accelerator=cpu", "arguments.channels=[8,16,32,64]",
         "arguments.stem_width=8")  # fmt: skip


@pytest.fixture
def copy(people, tmp_path):
    return shutil.copytree(people, tmp_path / "people")


def relabel(folder, old, new):
    path = folder / "metadata.csv"
    path.write_text(path.read_text().replace(f",{old},", f",{new},"))


def test_a_run_whose_labels_were_corrected_is_not_gone_on_with(train, changes, copy, weights, tmp_path):
    told = ["--data", copy, "--backbone", "resnet10t", "--checkpoint", weights, *changes(*SMALL)]
    train("iciia", tmp_path / "run", *told)
    relabel(copy, "blue", "zinc")
    with pytest.raises(DataError, match="was started on other photos, labels, people or splits"):
        train("iciia", tmp_path / "run", *told, "--seeds", "1")
    relabel(copy, "zinc", "blue")
    train("iciia", tmp_path / "run", *told, "--seeds", "1")


def test_an_encoder_that_was_trained_on_other_people_is_not_gone_on_with(copy, tmp_path, monkeypatch):
    """Killed after its encoder and before anything else: test people of now may have taught it."""
    settings = RunConfig(data=DataConfig(str(copy)), backbone="resnet10t", scratch=True)
    network = create_backbone("resnet10t", 4, channels=[8, 16, 32, 64], stem_width=8)
    monkeypatch.setattr(iciia, "train_encoder", lambda *given, **more: network)
    run = Run(tmp_path / "run", settings)
    run.check_photos()
    run.backbone()
    path = tmp_path / "run" / "encoder.json"
    before = path.read_bytes()
    Run(tmp_path / "run").check_photos()
    relabel(copy, "blue", "zinc")
    with pytest.raises(DataError, match="was started on other photos, labels, people or splits"):
        Run(tmp_path / "run").check_photos()
    assert path.read_bytes() == before


def test_a_run_whose_photos_were_replaced_at_their_names_is_not_gone_on_with(train, changes, copy, weights, tmp_path):
    told = ["--data", copy, "--backbone", "resnet10t", "--checkpoint", weights, *changes(*SMALL)]
    train("iciia", tmp_path / "run", *told)
    photo = copy / load_photos(copy).photo[0]
    good = photo.read_bytes()
    os.utime(photo)
    train("iciia", tmp_path / "run", *told, "--seeds", "1")  # the same bytes, as of a copied folder
    Image.fromarray(255 - np.asarray(Image.open(photo).convert("RGB"))).save(photo)
    with pytest.raises(DataError, match="was started on other photos' contents; restore them"):
        train("iciia", tmp_path / "run", *told, "--seeds", "2")
    photo.write_bytes(good)
    train("iciia", tmp_path / "run", *told, "--seeds", "2")


def test_a_run_whose_weights_were_replaced_at_their_place_is_not_gone_on_with(
    train, changes, people, weights, tmp_path
):
    kept = shutil.copy(weights, tmp_path / "mine.safetensors")
    told = ["--data", people, "--backbone", "resnet10t", "--checkpoint", kept, *changes(*SMALL)]
    train("iciia", tmp_path / "run", *told)
    save_file({name: tensor * 1.01 for name, tensor in load_file(weights).items()}, kept)
    with pytest.raises(DataError, match=r"was started on other weights .*mine.safetensors"):
        train("iciia", tmp_path / "run", *told, "--seeds", "1")


@pytest.mark.parametrize(("name", "left"), [("features.npy", 2000), ("photos.npy", 200), ("progress.json", 5)])
def test_a_bank_that_was_cut_is_made_again_and_gains_no_zeros(copy, tmp_path, name, left, monkeypatch):
    table, backbone = load_photos(copy), create_backbone("resnet10t", 4, channels=[8, 16, 32, 64], stem_width=8)
    first = feature_cache.extract(backbone, table, tmp_path)
    whole = first.take()
    os.truncate(tmp_path / first.key / name, left)
    said = []
    monkeypatch.setattr(feature_cache, "say", said.append)
    again = feature_cache.extract(backbone, table, tmp_path)
    np.testing.assert_array_equal(again.take(), whole)
    assert said == [f"{tmp_path / first.key} is damaged; its features are extracted again"]


def test_before_anything_was_made_of_them_photos_may_change(tmp_path):
    made = tmp_path / "plain.json"
    same_photos(tmp_path, "a", made=[made])
    same_photos(tmp_path, "b", made=[made])
    made.touch()
    same_photos(tmp_path, "b", made=[made])
    with pytest.raises(DataError, match="restore them, or choose another folder"):
        same_photos(tmp_path, "a", made=[made])


def test_two_commands_in_one_folder_take_turns(people, weights, tmp_path, monkeypatch):
    asked = {
        "data": {"source": str(people)}, "backbone": "resnet10t", "checkpoint": str(weights), "partitions": [4],
        "arguments": {"channels": [8, 16, 32, 64], "stem_width": 8}, "block": {"layers": 1, "window": 3},
        "gate": {"kind": "warm_up"}, "recipe": {"epochs": 1, "windows_per_step": 4}, "devices": {"accelerator": "cpu"},
    }  # fmt: skip
    settings = IciiaSettings.named("default", asked)
    fill, running, most = feature_cache._fill, [], []

    def watched(*given):
        running.append(1)
        most.append(len(running))
        fill(*given)
        running.pop()

    monkeypatch.setattr(feature_cache, "_fill", watched)
    both = [Thread(target=train_iciia, args=(settings, tmp_path / "run")) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert max(most) == 1
    assert len([*(tmp_path / "run").glob("seed-0/*.safetensors")]) == 1


def test_a_damaged_photo_costs_none_of_the_features_before_it(copy, monkeypatch, tmp_path):
    monkeypatch.setattr(feature_cache, "BATCH", 16)
    table = load_photos(copy)
    bad = table.photo[100]
    good = (copy / bad).read_bytes()
    (copy / bad).write_bytes(good[:60])
    backbone = create_backbone("resnet10t", 4, channels=[8, 16, 32, 64], stem_width=8)
    with pytest.raises(PhotoError, match=str(bad)):
        feature_cache.extract(backbone, table, tmp_path / "features")
    (kept,) = (tmp_path / "features").glob("*/progress.json")
    assert json.loads(kept.read_text())["rows"] == 96
    (copy / bad).write_bytes(good)
    read, repaired = _reading(load_photos(copy))
    bank = feature_cache.extract(backbone, repaired, tmp_path / "features")
    assert len(read) == len(table) - 96
    whole = feature_cache.extract(backbone, table, tmp_path / "whole")
    np.testing.assert_allclose(bank.take(), whole.take(), atol=1e-5)


def _reading(table):
    """The table, and the names of the photos that are read from it."""
    names = []

    def read(name):
        names.append(name)
        return table.read(name)

    return names, dataclasses.replace(table, read=read)


def test_photos_that_did_not_change_are_not_decoded_again(copy, tmp_path):
    backbone = create_backbone("resnet10t", 4, channels=[8, 16, 32, 64], stem_width=8)
    table = load_photos(copy)
    before = feature_cache.extract(backbone, table, tmp_path / "features")
    chosen = np.arange(len(table)) % 2 == 0
    changed = str(table.photo[8])
    names, fewer = _reading(
        dataclasses.replace(table.rows(chosen), stamp=lambda n: table.stamp(n) + "!" * (n == changed))
    )
    bank = feature_cache.extract(backbone, fewer, tmp_path / "features")
    assert names == [changed]
    np.testing.assert_allclose(bank.take(), before.take()[chosen], atol=1e-5)
    other = create_backbone("resnet10t", 4, channels=[8, 16, 32, 64], stem_width=16)
    names, again = _reading(table)
    feature_cache.extract(other, again, tmp_path / "features")
    assert len(names) == len(table)


# ---- what is left out is told, and what is ambiguous is refused


@pytest.fixture
def tree(tmp_path):
    """Two classes with three photos each, in folders."""
    folder = tmp_path / "tree"
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(folder / label / f"{number}.png")
    return folder


def test_hidden_folders_are_no_classes_and_linked_ones_are(tree, tmp_path):
    shutil.copytree(tree / "cat", tree / "cat" / ".ipynb_checkpoints")
    shutil.copytree(tree / "dog", tmp_path / "elsewhere")
    (tree / "fox").symlink_to(tmp_path / "elsewhere")
    (tree / "dog" / "circle").symlink_to(tree)
    table = load_photos(tree)
    assert table.classes == ("cat", "dog", "fox")
    assert len(table) == 9


def test_photos_of_formats_that_are_not_read_are_counted(tree, caplog):
    for name in ("a.heic", "b.HEIC", "c.jfif"):
        (tree / "cat" / name).write_bytes(b"x")
    with caplog.at_level("INFO"):
        assert len(load_photos(tree)) == 6
    assert "3 photos are left out: .heic, .jfif are not read here; convert them to JPEG" in caplog.text


def test_an_unquoted_comma_moves_no_column(copy):
    path = copy / "metadata.csv"
    path.write_text(path.read_text().replace(",green,", ",player, CD,", 1))
    with pytest.raises(DataError, match=r"more cells than the header; put values with commas in quotes"):
        load_photos(copy)


def test_a_line_separator_inside_a_label_is_part_of_it(tree):
    with (tree / "metadata.csv").open("w", newline="", encoding="utf-8") as stream:
        rows = [(f"cat/{number}.png", "big\u2028cat" if number else "dog") for number in range(3)]
        csv.writer(stream).writerows([("file_name", "label"), *rows])
    assert load_photos(tree).classes == ("big\u2028cat", "dog")


def test_a_line_separator_inside_a_label_is_no_end_of_a_row(tree):
    rows = [{"file_name": f"cat/{number}.png", "label": "big\u2028cat" if number else "dog"} for number in range(3)]
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tree / "metadata.jsonl").write_text(text, encoding="utf-8-sig", newline="")
    assert load_photos(tree).classes == ("big\u2028cat", "dog")


def test_people_of_awkward_names_have_folders_of_their_own():
    names = ["", "/", "..", "a/b", "a_b", "x" * 300, "x" * 301]
    found = [stem for stem, _ in numbered((name, np.array([0])) for name in names)]
    assert len(set(found)) == len(names)
    assert not any(stem.startswith(("/", ".")) or stem.count("/") != 1 or len(stem) > 120 for stem in found)
