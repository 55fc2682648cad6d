"""Retraining: what must not teach or judge is kept out, gates stop releases, and a killed run loses nothing."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from refocus.cloud_train.backbones.backbone import create_backbone
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.documents import write_results
from refocus.cloud_train.errors import DataError, ReleaseError, UsageError
from refocus.cloud_train.pipeline.config import Model, PipelineConfig, decode_config, encode_config, load_config
from refocus.cloud_train.pipeline.data import by_hash, choose_photos, open_run, photos_to_test, read_list
from refocus.cloud_train.pipeline.finish import _publish, release
from refocus.cloud_train.pipeline.gates import people_gate
from refocus.cloud_train.pipeline.model import features
from refocus.cloud_train.pipeline.report import model_card, write_report
from refocus.cloud_train.pipeline.run import (
    TASK_LINE,
    _keep_number,
    _say_changes,
    _Teller,
    last_run,
    prepare_run,
    run_pipeline,
    runs_of,
)
from refocus.cloud_train.pipeline.state import has_ended, is_finished, note, read_state, write_state
from refocus.cloud_train.release.keys import KeyRing
from refocus.cloud_train.release.repository import Repository
from refocus.cloud_train.release.stages import withdraw
from refocus.cloud_train.runs.iciia import DataConfig, source_table
from refocus.edge.bundle import load_bundle, write_manifest
from refocus.export.program import load_checkpoint
from studies.encoders import ENCODERS
from studies.report.results_page import results_pages

INSTALLED = all(importlib.util.find_spec(name) for name in ("metaflow", "mlflow", "sqlalchemy", "alembic"))
needs_extra = pytest.mark.skipif(not INSTALLED, reason="needs refocus-edge[pipeline]")


# --- settings --------------------------------------------------------------------------------------------------


def settings_file(folder: Path, text: str) -> Path:
    path = folder / "pipeline.toml"
    path.write_text(text)
    return path


def test_the_settings_that_init_writes_load_and_come_back_the_same(refocus, tmp_path):
    done = refocus("pipeline", "init", tmp_path / "pipeline.toml")
    assert done.returncode == 0, done.stderr
    config = load_config(tmp_path / "pipeline.toml")
    assert config.limits == PipelineConfig().limits
    assert decode_config(encode_config(config)) == config


def test_the_settings_that_init_writes_have_a_line_for_each_of_the_model_to_be_uncommented(refocus, tmp_path):
    done = refocus("pipeline", "init", tmp_path / "pipeline.toml")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "pipeline.toml").read_text()
    settings = re.sub(r"^# (\w+ = )", r"\1", text.partition("[model]")[2].partition("\n[")[0], flags=re.MULTILINE)
    model = load_config(settings_file(tmp_path, f"[model]{settings}")).model
    left = [name for name in Model.__struct_fields__ if getattr(model, name) == getattr(Model(), name)]
    assert left == ["keep_encoder"]  # its line is of the default
    published = ENCODERS["mobilenetv2"]
    assert (model.arguments, model.mean) == (published.arguments, published.mean)
    assert "refocus train iciia --from BUNDLE" in settings


def test_relative_paths_are_of_the_folder_of_the_settings(tmp_path):
    text = '[data]\nsource = "photos"\n[release]\nrepository = "r"\nkeys = "k"\ndevice_class = "phone"\n'
    config = load_config(settings_file(tmp_path, text))
    assert (config.data.source, config.release.keys) == (str(tmp_path / "photos"), str(tmp_path / "k"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nmae = 'x'", "nmae"),
        ("[recipe]\nlerning_rate = 1.0", r"recipe.lerning_rate is unknown \(line 2\); did you mean learning_rate"),
        ("[block]\nwidth = 3", "block.width is unknown"),
        (
            "[model]\nbundle = 'shop'",
            r"model.bundle is unknown \(line 2\); known: backbone, .* train iciia --from BUNDLE",
        ),
        ("[taper]\nsource = 'elsewhere'", r"\[taper\] knows no 'source'"),
        ("[taper.recipe]\nepoch = [1, 1, 1]", r"taper.recipe.epoch is unknown \(line 2\); did you mean epochs"),
        ("method = 'taper'\n[model]\nbackbone = 'resnet18'", r"the network of \[taper\] small"),
        ("method = 'taper'\n[devices]\ncount = 2", "on one device"),
        ("method = 'prompts'\n[model]\nbackbone = 'vit'", r"the network of \[prompts\] backbone"),
        ("[prompts]\nprompts = 3", "prompts"),
        ("[judging]\nbatch = 0", r"judging.batch = 0 \(line 2\): Expected `int` >= 1"),
        ("[release]\npercent = 0", r"release.percent = 0 \(line 2\): Expected `float` > 0"),
        ("threads = 0", r"threads = 0 \(line 1\): Expected `int` >= 1"),
        ("targets = ['onnx:fp32', 'onnx:fp32']", "each once"),
        ("targets = ['onnx:fp16']", r"\[judging\] target onnx:fp32 is not among the targets"),
        ("[release]\nrepository = 'r'", "needs repository, keys and device_class"),
        ("[data]\nclients = 'dirichlet'", "people judge a release"),
        ("[data]\nlabels = 'several'", r"\[data\] labels several: a release is judged by one label of each photo"),
        ("retries = -1", "Expected `int` >= 0"),
        ("[limits]\nmade_worse = 'few'", "made_worse"),
        ("= 3", "--config"),
    ],
)
def test_a_mistake_in_the_settings_is_named(tmp_path, text, said):
    with pytest.raises(UsageError, match=said):
        load_config(settings_file(tmp_path, text))


def test_settings_that_are_not_there_are_named(tmp_path):
    with pytest.raises(UsageError, match="pipeline init writes one"):
        load_config(tmp_path / "none.toml")


def test_without_the_extra_the_command_names_it(refocus, assert_one_clear_line, tmp_path, monkeypatch):
    if INSTALLED:
        pytest.skip("refocus-edge[pipeline] is installed")
    assert_one_clear_line(refocus("pipeline", "run", "--folder", tmp_path / "p"), "refocus-edge[pipeline]")


def test_a_bank_is_made_of_the_photos_that_the_settings_name(tmp_path):
    text = 'method = "taper"\n[data]\nsource = "photos"\nlabel_column = "name"\n[taper]\nbases = 4\nkind = "nearest"\n'
    config = load_config(settings_file(tmp_path, text + "recipe = { epochs = [3, 2, 1] }\n"))
    taper = config.taper_config()
    assert (taper.source, taper.label_column) == (str(tmp_path / "photos"), "name")
    assert (taper.bases, taper.kind, taper.recipe.epochs) == (4, "nearest", (3, 2, 1))
    assert decode_config(encode_config(config)) == config


# --- photos ----------------------------------------------------------------------------------------------------


def photo(folder: Path, name: str, seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / name)
    return name


def album(folder: Path, rows: list[tuple[str, str, str, str]]) -> PipelineConfig:
    """A folder of photos with rows of (file, label, client, split)."""
    with (folder / "metadata.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("file_name", "label", "client", "split"), *rows])
    return PipelineConfig(data=DataConfig(source=str(folder)))


@pytest.fixture
def photos(tmp_path):
    """Three people, one in each split, with two photos each."""
    folder = tmp_path / "photos"
    folder.mkdir()
    splits = {"ann": "train", "bob": "validation", "eve": "test"}
    rows = [
        (photo(folder, f"{name}{i}.png", 10 * n + i), "cat" if i else "dog", name, split)
        for n, (name, split) in enumerate(splits.items())
        for i in range(2)
    ]
    return folder, rows


def test_photos_that_teach_nothing_or_twice_are_left_out_and_counted(photos, tmp_path):
    folder, rows = photos
    (folder / "broken.png").write_bytes(b"no photo")
    (folder / "again.png").write_bytes((folder / "ann0.png").read_bytes())
    extra = [
        ("broken.png", "cat", "ann", "train"),
        ("again.png", "dog", "ann", "train"),
        (photo(folder, "x.png", 90), "cat", "bob", "validation"),
        (photo(folder, "y.png", 90), "dog", "bob", "validation"),  # one photo, two labels
    ]
    found = choose_photos(album(folder, rows + extra), tmp_path / "photos.csv", None)
    assert (found["photos"], found["unreadable"], found["left_out"]) == (6, 1, 3)
    assert [row["photo"] for row in read_list(tmp_path / "photos.csv")] == [row[0] for row in rows]


def test_a_damaged_photo_in_a_zip_is_left_out_and_counted(photos, tmp_path):
    folder, rows = photos
    album(folder, [*rows, (photo(folder, "x.png", 90), "cat", "ann", "train")])
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, file.name)
        member = archive.getinfo("x.png")
    content = bytearray(path.read_bytes())
    start = member.header_offset + 30 + len(member.filename)
    content[start : start + member.compress_size] = b"\xff" * member.compress_size
    path.write_bytes(content)
    found = choose_photos(PipelineConfig(data=DataConfig(source=str(path))), tmp_path / "photos.csv", None)
    assert (found["photos"], found["unreadable"], found["left_out"]) == (6, 1, 0)
    assert [row["photo"] for row in read_list(tmp_path / "photos.csv")] == [row[0] for row in rows]


def test_a_photo_that_would_teach_and_judge_under_two_names_does_neither(photos, tmp_path):
    folder, rows = photos
    (folder / "leak.png").write_bytes((folder / "eve0.png").read_bytes())
    choose_photos(album(folder, [*rows, ("leak.png", "dog", "ann", "train")]), tmp_path / "photos.csv", None)
    kept = {row["photo"] for row in read_list(tmp_path / "photos.csv")}
    assert "leak.png" not in kept
    assert "eve0.png" not in kept


def test_a_person_in_two_splits_is_refused(photos, tmp_path):
    folder, rows = photos
    leak = (photo(folder, "leak.png", 77), "cat", "eve", "train")
    with pytest.raises(DataError, match="client 'eve' is in more than one split"):
        choose_photos(album(folder, [*rows, leak]), tmp_path / "photos.csv", None)


def test_a_person_who_taught_the_current_release_cannot_judge_the_next(photos, tmp_path):
    folder, rows = photos
    choose_photos(album(folder, rows), tmp_path / "before.csv", None)
    swapped = [(*row[:3], {"train": "test", "test": "train"}.get(row[3], row[3])) for row in rows]
    with pytest.raises(DataError, match="the person 'ann' taught the current release and would judge it now"):
        choose_photos(album(folder, swapped), tmp_path / "now.csv", tmp_path / "before.csv")


def test_new_photos_are_counted_against_the_current_release(photos, tmp_path):
    folder, rows = photos
    choose_photos(album(folder, rows), tmp_path / "before.csv", None)
    more = [(photo(folder, "new.png", 55), "cat", "ann", "train")]
    found = choose_photos(album(folder, rows[1:] + more), tmp_path / "now.csv", tmp_path / "before.csv")
    assert (found["new_photos"], found["gone_photos"]) == (1, 1)


def begun(folder: Path, config: PipelineConfig, number: int = 1) -> Path:
    """A run whose photos were chosen; a later one is compared with the first."""
    work = folder / "pipeline" / "runs" / f"{number:04d}"
    work.mkdir(parents=True)
    (work / "pipeline.json").write_bytes(encode_config(config))
    if number > 1:
        write_state(work, "current", {"run": "0001", "version": 1, "number": 1})
    write_state(work, "ingest", choose_photos(config, work / "photos.csv", None))
    return work


def columns(table: PhotoTable) -> list[tuple[str, ...]]:
    labels = [table.classes[label] for label in table.label]
    named = table.photo, labels, table.client, table.domain, table.parent, table.split
    return [tuple(map(str, row)) for row in zip(*named, strict=True)]


def test_a_label_or_a_person_that_changes_after_ingest_changes_nothing_of_the_run(photos, tmp_path):
    folder, rows = photos
    config = album(folder, rows)
    work = begun(tmp_path, config)
    before = open_run(config, work).table
    assert before.fingerprint() == read_state(work, "ingest")["table"]
    renamed = [(file, "fox" if file == "ann1.png" else label, client.replace("eve", "ann"), split.replace("test", "train"))
               for file, label, client, split in rows[1:]]  # fmt: skip
    album(folder, [*renamed, (rows[0][0], *rows[0][1:]), (photo(folder, "owl.png", 8), "owl", "may", "train")])
    now = open_run(config, work).table
    listed = [tuple(row[name] for name in ("photo", "label", "client", "domain", "parent", "split"))
              for row in read_list(work / "photos.csv")]  # fmt: skip
    assert columns(now) == columns(before) == listed
    assert now.classes == ("cat", "dog")
    assert now.read("eve0.png") == (folder / "eve0.png").read_bytes()
    assert now.fingerprint() == before.fingerprint()


def test_both_domain_and_parent_are_in_the_list(photos, tmp_path):
    folder, rows = photos
    with (folder / "metadata.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([
            ("file_name", "label", "client", "split", "domain", "kind"),
            *((*row, "sketch" if number % 2 else "photo", "pet") for number, row in enumerate(rows)),
        ])  # fmt: skip
    config = PipelineConfig(data=DataConfig(source=str(folder), parent_column="kind"))
    table = open_run(config, begun(tmp_path, config)).table
    assert table.domain.tolist() == ["photo", "sketch"] * 3
    assert set(table.parent.tolist()) == {"pet"}


def test_a_list_of_a_run_of_refocus_0_1_is_read(photos, tmp_path):
    folder, rows = photos
    config = album(folder, rows)
    work = begun(tmp_path, config)
    before, path = open_run(config, work).table, work / "photos.csv"
    with path.open(newline="") as stream:
        kept = [[row[name] for name in row if name != "parent"] for row in csv.DictReader(stream)]
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([("photo", "sha256", "label", "client", "domain", "split"), *kept])
    assert open_run(config, work).table.fingerprint() == before.fingerprint()


def test_a_list_that_puts_somebody_into_two_splits_is_refused(photos, tmp_path):
    folder, rows = photos
    config = album(folder, rows)
    work = begun(tmp_path, config)
    text = (work / "photos.csv").read_text()
    (work / "photos.csv").write_text(text.replace(",eve,", ",ann,"))
    with pytest.raises(DataError, match="client 'ann' is in more than one split"):
        open_run(config, work)


def test_a_photo_of_the_list_that_is_gone_is_named(photos, tmp_path):
    folder, rows = photos
    work = begun(tmp_path, album(folder, rows))
    with pytest.raises(DataError, match=r"1 photos of .*photos.csv are missing, such as ann0.png; restore them"):
        open_run(album(folder, rows[1:]), work)


@pytest.mark.parametrize("source", ["glyphs", "arrays.npz"])
def test_classes_that_no_photo_of_the_list_has_keep_their_numbers(tmp_path, source):
    drawn = DataConfig(glyph_clients=dict.fromkeys(("train", "validation", "gate", "test"), 1), photos_per_client=2)
    if source != "glyphs":
        source = str(tmp_path / source)
        pixels = np.random.default_rng(0).integers(0, 255, (240, 8, 8), dtype=np.uint8)
        np.savez(source, x=pixels, y=np.arange(240) % 2 * 11, client=np.arange(240) // 4)
    config = PipelineConfig(data=replace(drawn, source=source))
    table = open_run(config, begun(tmp_path, config)).table
    whole = source_table(config.data)
    assert table.classes == whole.classes
    assert len(set(table.label.tolist())) < len(table.classes)


SMALL_NETWORK = {"channels": [3, 6, 12, 24], "stem_width": 4}


def network(path: Path, seed: int) -> None:
    """Writes the weights of a small network."""
    torch.manual_seed(seed)
    save_file(create_backbone("resnet10t", 2, **SMALL_NETWORK).network.state_dict(), path)


@pytest.fixture
def with_network(photos, tmp_path):
    folder, rows = photos
    network(tmp_path / "weights.safetensors", 1)
    model = Model("resnet10t", str(tmp_path / "weights.safetensors"), keep_encoder=True, arguments=SMALL_NETWORK)
    return folder, rows, msgspec.structs.replace(album(folder, rows), model=model)


def test_a_run_goes_on_after_a_photo_of_a_new_class_has_come(with_network, tmp_path):
    folder, rows, config = with_network
    work = begun(tmp_path, config)
    first = features(work)
    album(folder, [*rows, (photo(folder, "owl.png", 8), "owl", "may", "train")])
    assert features(work) == first


def test_a_kept_encoder_stays_where_a_class_is_new(with_network, tmp_path):
    folder, rows, config = with_network
    first = features(begun(tmp_path, config))
    network(tmp_path / "weights.safetensors", 2)
    album(folder, [*rows, (photo(folder, "owl.png", 8), "owl", "ann", "train")])
    work = begun(tmp_path, config, 2)
    assert features(work)["encoder"] == first["encoder"]
    kept = [
        load_checkpoint(tmp_path / "pipeline" / "runs" / name / "model" / "encoder.safetensors")
        for name in ("0001", "0002")
    ]
    assert all(torch.equal(kept[0].weights[name], kept[1].weights[name]) for name in kept[0].weights)
    assert kept[0].identity == kept[1].identity
    assert kept[1].card.labels == ("cat", "dog", "owl")


def test_an_encoder_whose_own_classifier_has_other_classes_is_not_kept(with_network, tmp_path):
    *_, config = with_network
    features(begun(tmp_path, config))
    letters = DataConfig(glyph_clients=dict.fromkeys(("train", "validation", "gate", "test"), 1), photos_per_client=2)
    work = begun(tmp_path, PipelineConfig(data=letters, model=Model(keep_encoder=True)), 2)
    with pytest.raises(UsageError, match="keep_encoder: the classifier of .* is of 2 other classes than the"):
        features(work)


def test_photos_that_are_sorted_by_class_are_judged_on_every_class():
    names = [f"{person}/{label}/{i}" for person in range(2) for label in range(10) for i in range(20)]
    people, labels = ([name.split("/")[part] for name in names] for part in (0, 1))
    table = PhotoTable.of(names, labels, str.encode, client=people, split=["test"] * len(names))
    chosen = photos_to_test(table, 32, set(labels)).people
    for person, rows in chosen.items():
        assert len(rows) == 32
        assert {label for _, label in rows} == set(labels)
        assert [file for file, _ in rows] == [name for name in names if (name, name.split("/")[1]) in rows]  # in order
        few = photos_to_test(table, 200, {"3"}).people[person]
        assert few == [(f"{person}/3/{i}", "3") for i in range(20)]
    assert photos_to_test(table, 32, {"none"}).people == {}


def table_of(clients: list[str]) -> PhotoTable:
    empty = np.array([""] * len(clients))
    return PhotoTable(np.array([f"{c}.png" for c in clients]), np.zeros(len(clients), np.int64), np.array(clients), empty,
                      empty, ("cat",), lambda name: b"")  # fmt: skip


def test_a_persons_split_does_not_change_when_others_join():
    shares = {"train": 0.6, "validation": 0.1, "gate": 0.15, "test": 0.15}
    few, many = (by_hash(table_of([f"p{i}" for i in range(n)]), shares, 0) for n in (100, 2000))
    assert few.split.tolist() == many.split.tolist()[:100]
    assert abs((many.split == "test").mean() - 0.15) < 0.03
    with pytest.raises(DataError, match="leave the split"):
        by_hash(table_of(["p1", "p2"]), shares, 0)


# --- gates and report ------------------------------------------------------------------------------------------


def judged(folder: Path, current: np.ndarray, candidate: np.ndarray, **limits: float) -> Path:
    """A run whose people were judged."""
    work = folder / "runs" / "0002"
    work.mkdir(parents=True)
    config = json.loads(encode_config(PipelineConfig()))
    config["limits"] |= limits
    write_state(work, "pipeline", config)
    write_state(work, "current", {"run": "0001", "version": 1, "number": 1})
    write_state(work, "ingest", {"photos": 9, "people": 2, "classes": 2, "unreadable": 0, "left_out": 0,
                                 "splits": {"train": 9}, "fingerprint": "f" * 64})  # fmt: skip
    people = [f"<b>{i}</b>" for i in range(len(current))]
    write_state(work, "evaluate", {
        "people": people, "photos": [32] * len(people), "current": current.tolist(), "candidate": candidate.tolist(),
        "plain": (candidate - 0.1).tolist(), "against": "release 1", "runs": ["onnxruntime", "fp32"]})  # fmt: skip
    return work


def test_a_candidate_whose_mean_improves_but_whose_worst_tenth_falls_is_stopped_and_reported(tmp_path):
    current = np.linspace(0.5, 0.8, 40)
    candidate = current + 0.1
    candidate[:4] -= 0.2
    work = judged(tmp_path, current, candidate)
    assert not people_gate(work)
    failed = [gate["name"] for gate in read_state(work, "gate")["gates"] if not gate["passed"]]
    assert failed == ["worst decile"]
    with pytest.raises(ReleaseError, match="the gate 'gate' was refused; nothing is released"):
        release(work)
    write_report(work, work / "report.html", {"passed": False, "reasons": ["worst decile: falls"], "release": None})
    page = (work / "report.html").read_text()
    assert "worst decile: falls" in page
    assert "Not judged, because an earlier gate refused: parity, benchmark" in page
    assert page.count("<circle") == 40
    assert "<b>0</b>" not in page
    for outside in ("http:", "https:", "<script", "@import", "url("):
        assert outside not in page
    assert "| worst decile |" in model_card(work)


def test_a_release_whose_gates_were_not_judged_is_refused(tmp_path):
    same = np.linspace(0.5, 0.8, 40)
    work = judged(tmp_path, same, same)
    assert people_gate(work)
    with pytest.raises(ReleaseError, match="'parity' was not judged"):
        release(work)


def test_a_model_of_before_that_devices_have_left_is_not_taken_for_published(bundle, tmp_path):
    repository = Repository.create(tmp_path / "repository", KeyRing(tmp_path / "keys"), ["phone"])
    wanted = {
        "repository": str(repository.folder),
        "keys": str(tmp_path / "keys"),
        "device_class": "phone",
        "percent": 9.0,
    }

    def published(number: int, name: str) -> int | None:
        work = tmp_path / "runs" / f"{number:04d}"
        made = load_bundle(shutil.copytree(bundle.folder, work / "bundle"))
        write_manifest(made.folder, msgspec.structs.replace(made.manifest, name=name))
        assert _publish(work, {**wanted, "repository": ""}) is None
        return _publish(work, wanted)

    assert published(1, "a") == 1
    assert published(2, "b") == 2
    assert published(3, "b") == 2  # as of a run that was killed after it
    with pytest.raises(
        ReleaseError, match="is release 1 of phone, which has newer ones: .* withdraw 2 to go back to 1"
    ):
        published(4, "a")
    assert [release.number for release in repository.channel("phone").releases] == [1, 2]
    withdraw(repository, "phone", 2, "worse")
    assert published(5, "a") == 1
    assert published(6, "c") == 3


def test_limits_are_data(tmp_path):
    current = np.linspace(0.5, 0.8, 40)
    assert people_gate(judged(tmp_path / "a", current, current - 0.02, accuracy_lost=0.03, worst_decile_lost=0.03))
    assert not people_gate(judged(tmp_path / "b", current, current - 0.02, accuracy_lost=0.01, worst_decile_lost=0.03))


def test_a_program_that_is_not_what_was_trained_is_never_shown_to_people(tmp_path):
    work = judged(tmp_path, np.ones(40), np.ones(40))
    write_state(work, "evaluate", {"mismatch": "parity of the head failed"})
    assert not people_gate(work)
    assert read_state(work, "gate")["gates"][0]["why"] == "parity of the head failed"
    write_report(work, work / "report.html", {"passed": False, "reasons": [], "release": None})
    assert "Nobody was judged" in (work / "report.html").read_text()


def test_a_new_run_does_not_pass_over_one_that_was_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("refocus.cloud_train.pipeline.run.check_installed", lambda: None)
    work = tmp_path / "p" / "runs" / "0001"
    work.mkdir(parents=True)
    write_state(work, "pipeline", {})
    assert last_run(tmp_path / "p") == work
    assert not is_finished(work)
    with pytest.raises(UsageError, match="0001 was interrupted; resume it with refocus pipeline resume"):
        run_pipeline(settings_file(tmp_path, ""), tmp_path / "p")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noted", "refused"),
    [
        (["ingest began", "ingest failed"], False),  # by its photos
        (["ingest ended", "features began", "features failed"], False),  # by its checkpoint
        (["ingest ended", "features ended", "train began", "train failed"], False),  # by its settings
        (["ingest began", "ingest failed", "ingest began"], True),  # a kill when it was resumed
        (["train ended", "release began", "release failed"], True),
    ],
)
def test_a_start_that_failed_does_not_refuse_the_corrected_command_and_what_was_trained_is_not_passed_over(
    tmp_path, monkeypatch, noted, refused
):
    monkeypatch.setattr("refocus.cloud_train.pipeline.run.check_installed", lambda: None)
    config = settings_file(tmp_path, "")
    first = prepare_run(config, tmp_path / "p")
    for line in noted:
        note(first, line)
    write_state(first, "pipeline", {"name": "p"})
    (row,) = runs_of(tmp_path / "p")
    assert row["state"] == ("interrupted" if refused else "failed at its start")
    if refused:
        with pytest.raises(UsageError, match="0001 was interrupted; resume it with refocus pipeline resume, or remove"):
            prepare_run(config, tmp_path / "p")
    else:
        assert prepare_run(config, tmp_path / "p").name == "0002"
        assert (first / "steps.log").exists()


def test_settings_that_a_run_began_with_and_its_file_has_otherwise_are_said_when_it_is_resumed(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("refocus.cloud_train.pipeline.run.check_installed", lambda: None)
    model = '[model]\nmean = [0.5]\narguments = {a = [1, 2]}\n[data]\nsource = "photos"\n'
    config = settings_file(tmp_path, f'name = "till"\n{model}')
    work = prepare_run(config, tmp_path / "p")
    with caplog.at_level("INFO"):
        _say_changes(work)
        assert not caplog.records
        settings_file(tmp_path, f'name = "shop"\n{model}[recipe]\nepochs = 3\n')
        _say_changes(work)
        settings_file(tmp_path, "nmae = 3")
        _say_changes(work)
        config.unlink()
        _say_changes(work)
    own = "the run 0001 goes on with the settings it began with"
    changed, wrong = (record.getMessage() for record in caplog.records)
    assert changed == f"{own}, not with those of {config} now: name = 'till', not 'shop'; recipe.epochs = 100, not 3"
    assert wrong.startswith(f"{own}; --config {config}: nmae is unknown")


@needs_extra
def test_a_step_that_fails_by_what_people_can_mend_is_noted(tmp_path):
    from refocus.cloud_train.pipeline.flow import done

    with pytest.raises(ReleaseError):
        done(str(tmp_path), "release", "finish:release")
    lines = (tmp_path / "steps.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == ["release began", "release failed"]
    assert "was not judged" in read_state(tmp_path, "error")["message"]


@needs_extra
@pytest.mark.slow
def test_photos_that_are_corrected_after_a_failed_start_are_taken_by_the_same_command(
    refocus, assert_one_clear_line, photos, tmp_path
):
    folder, rows = photos
    with (folder / "metadata.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("file_name", "label", "client"), *(row[:3] for row in rows)])
    config, place = settings_file(tmp_path, f'[data]\nsource = "{folder}"\n'), ("--folder", tmp_path / "p")
    done = refocus("pipeline", "run", "--config", config, *place)
    assert done.returncode == 1
    begun, error = done.stderr.strip().splitlines()
    assert begun == "ingest ..."
    assert error.startswith("refocus: ingest: 3 people leave the split ")
    assert "Traceback" in (tmp_path / "p" / "runs" / "0001" / "flow.log").read_text()

    settings_file(tmp_path, f'name = "shop"\n[data]\nsource = "{folder}"\n')
    done = refocus("pipeline", "resume", *place)
    assert "name = 'refocus', not 'shop'" in done.stderr.splitlines()[0]

    album(folder, rows)
    done = refocus("pipeline", "prepare", "--config", config, *place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "p" / "runs" / "0002")
    assert_one_clear_line(refocus("pipeline", "prepare", "--config", config, *place), "0002 was interrupted")


def test_the_number_of_an_attempt_is_kept_though_metaflow_has_only_created_its_file(tmp_path):
    (tmp_path / ".metaflow.txt").touch()
    _keep_number(tmp_path)  # an empty file moved away here lost the attempt, and its steps were repeated
    (tmp_path / ".metaflow.txt").write_text("1795")
    _keep_number(tmp_path)
    _keep_number(tmp_path)
    assert (tmp_path / "metaflow.txt").read_text() == "1795\n"


@needs_extra
def test_a_step_that_ended_is_not_done_again_and_a_gate_keeps_its_verdict(tmp_path):
    """Metaflow's own record of the step may be missing: the kill came first."""
    from refocus.cloud_train.pipeline.flow import done

    note(tmp_path, "parity ended")
    note(tmp_path, "parity again ended")
    write_state(tmp_path, "parity", {"passed": False, "gates": []})
    assert done(str(tmp_path), "parity", "gates:parity_gate") is False
    assert (tmp_path / "steps.log").read_text().count("\n") == 2  # not begun again
    assert not has_ended(tmp_path, "gate")


def test_what_steps_say_is_told_apart_from_what_metaflow_says():
    found = TASK_LINE.match("2026-01-01 12:00:00.000 [1795/train/3 (pid 7)] iciia: 1 s")
    assert found is not None
    assert found.groups() == ("train", "iciia: 1 s")
    assert TASK_LINE.match("2026-01-01 12:00:00.000 Workflow starting (run-id 1795):") is None


# --- records ---------------------------------------------------------------------------------------------------

RECORDS = """
import socket
def refuse(*a, **k): raise RuntimeError("a socket was opened")
socket.socket.connect = refuse
socket.create_connection = refuse
socket.getaddrinfo = refuse
import sys
from pathlib import Path
from refocus.cloud_train.pipeline.registry import Registry
from refocus.cloud_train.pipeline.state import read_state, write_state

folder = Path(sys.argv[1])
registry = Registry(folder)
def begun(name):
    work = folder / "runs" / name
    work.mkdir(parents=True)
    write_state(work, "pipeline", {"name": "letters", "release": {"repository": ""}})
    write_state(work, "gate", {"passed": True, "gates": [
        {"name": "worst decile", "value": 0.01, "limit": -0.01, "passed": True, "why": "w"}]})
    registry.begin(work)
    return work
first = begun("0001")
assert read_state(first, "current") == {}
assert registry.release(first, "letters", None, "a" * 64) == 1
assert registry.release(first, "letters", None, "a" * 64) == 1  # a run that was killed after it
registry.finish(first, {"passed": True, "release": 1})
second = begun("0002")
assert read_state(second, "current") == {"run": "0001", "version": 1, "number": 1}
registry.finish(second, {"passed": False, "release": None})
third = begun("0003")
assert read_state(third, "current")["run"] == "0001"  # the refused one is not the champion
assert registry.release(third, "letters", 7, "b" * 64) == 2
assert registry.current("letters") == {"run": "0003", "version": 2, "number": 7}
assert registry.current("letters", frozenset({7})) == {"run": "0001", "version": 1, "number": 1}
assert [row["champion"] for row in registry.releases("letters")] == [True, False]
run = registry.client.get_run(read_state(first, "tracking")["run_id"])
assert run.data.metrics["gate.worst_decile.value"] == 0.01
assert run.info.status == "FINISHED"
registry.fetch(1, "letters", folder, ["pipeline.json", "none.json"])
assert (folder / "pipeline.json").exists()
from mlflow.telemetry.client import get_telemetry_client
assert get_telemetry_client() is None
"""


@needs_extra
@pytest.mark.slow
def test_records_open_no_socket_and_the_champion_is_the_newest_release_that_was_not_taken_back(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run([sys.executable, "-c", RECORDS, str(tmp_path)], capture_output=True, text=True, timeout=300,
                          env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


# --- kills -----------------------------------------------------------------------------------------------------

SMALL = """
name = "letters"
[data]
photos_per_client = 16
glyph_clients = {train = 24, validation = 6, gate = 8, test = 10}
[encoder]
epochs = 1
batch = 32
[block]
layers = 1
[recipe]
learning_rate = 0.1
momentum = 0.9
windows_per_step = 8
epochs = 1
[gate]
windows = 500
epochs = 3
[limits]
accuracy_lost = 1.0
worst_decile_lost = 1.0
below_backbone = 1.0
"""
STEPS = ("ingest", "features", "train", "evaluate", "gate", "export onnx:fp32", "merge", "parity", "benchmark", "card",
         "release", "report")  # fmt: skip


def events(folder: Path) -> list[str]:
    """What began and ended in the only run, as "train began"."""
    log = folder / "runs" / "0001" / "steps.log"
    return [line.split(" ", 2)[2] for line in log.read_text().splitlines()] if log.exists() else []


def kill_in(step: str, command: list[str], folder: Path) -> None:
    """Starts the command in a group of its own, and kills the whole group as soon as the step has begun."""
    count = events(folder).count(f"{step} began")
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 600
    while events(folder).count(f"{step} began") == count:
        assert process.poll() is None, process.stderr.read().decode()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@needs_extra
@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [("train", "export onnx:fp32", "release"), pytest.param(STEPS, marks=pytest.mark.full)],
    ids=["three", "all"],
)
def test_a_run_killed_in_its_steps_repeats_none_that_ended_and_releases_the_same_bytes(refocus, tmp_path, steps):
    folder, config = tmp_path / "p", settings_file(tmp_path, SMALL)
    binary = str(Path(sys.executable).parent / "refocus")
    command = [binary, "pipeline", "run", "--config", str(config), "--folder", str(folder)]
    for step in steps:
        kill_in(step, command, folder)
        assert f"{step} ended" not in events(folder), "the kill came too late to mean anything"
        command = [binary, "pipeline", "resume", "--folder", str(folder)]
    done = refocus("pipeline", "resume", "--folder", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("release 1: ")
    found = events(folder)
    for step in STEPS:
        assert found.count(f"{step} ended") == 1
        assert found.count(f"{step} began") == 1 + (step in steps)
    # What was never interrupted comes to the same bytes.
    done = refocus("pipeline", "rebuild", 1, "--folder", folder)
    assert done.returncode == 0, done.stderr
    assert "release 1: the same bytes" in done.stdout
    rows = json.loads(refocus("pipeline", "show", "--folder", folder, "--json").stdout)
    assert [(row["state"], row["release"], row["current"]) for row in rows] == [("released", 1, True)]
    document = json.loads(refocus("pipeline", "gates", "--folder", folder, "--json").stdout)
    (judged,), evaluation = document["rows"], read_state(folder / "runs" / "0001", "evaluate")
    assert judged["people"] == len(evaluation["people"])
    assert judged["accuracy"].keys() == {"plain", "candidate"}, "a first release has no release before"
    assert [gate["name"] for gate in judged["gates"]] == [
        "accuracy",
        "worst decile",
        "never worse than the backbone",
        "parity",
    ]
    write_results(document, tmp_path / "results" / "release.json")
    assert judged["gates"][0]["why"] in results_pages(tmp_path / "results").text


# --- the other methods -----------------------------------------------------------------------------------------

BANK = """
name = "bank"
method = "taper"
[data]
photos_per_client = 24
glyph_clients = {train = 24, validation = 8, gate = 2, test = 12}
[judging]
rounds = 8
[taper]
bases = 3
shards = "domains"
recipe = { epochs = [2, 1, 1], learning_rate = [0.1, 0.05, 0.005], any_domain = 0.2 }
[limits]
accuracy_lost = 1.0
worst_decile_lost = 1.0
below_backbone = 1.0
"""


@pytest.fixture(scope="module")
def bank_folder(refocus, tmp_path_factory):
    """A pipeline that has released a bank of TAPER: judged on people whose photos it improves itself by, exported in
    branches, joined."""
    place = tmp_path_factory.mktemp("pipeline")
    done = refocus("pipeline", "run", "--config", settings_file(place, BANK), "--folder", place / "p")
    assert done.returncode == 0, done.stderr
    return place / "p"


@needs_extra
@pytest.mark.slow
@pytest.mark.full
def test_a_bank_is_released_and_one_that_a_gate_refuses_leaves_it_the_current_release(
    refocus, assert_one_clear_line, bank_folder, tmp_path
):
    first = bank_folder / "runs" / "0001"
    assert "(TAPER on resnet10t)" in (first / "card.md").read_text()
    assert len(read_state(first, "evaluate")["people"]) == 12
    said = refocus("pipeline", "gates", "--folder", bank_folder).stdout
    assert "passed  accuracy: " in said
    assert "0001  released: 12 people, plain " in said
    task = "greek capital letter alpha, greek capital letter epsilon"
    done = refocus("condense", first / "bundle", "--out", tmp_path / "own", "--task", task)
    assert done.returncode == 0, done.stderr

    smaller = settings_file(tmp_path, BANK + "size_ratio = 0.5\nlatency_ratio = 100.0\n")
    done = refocus("pipeline", "run", "--config", smaller, "--folder", bank_folder)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("refocus: no release: size: ")
    work = bank_folder / "runs" / "0002"
    assert (work / "bundle" / "manifest.json").exists()  # kept to be looked at
    assert not (work / "card.md").exists()
    assert "at most 0.5 times are allowed" in (work / "report.html").read_text()
    rows = json.loads(refocus("pipeline", "show", "--folder", bank_folder, "--json").stdout)
    assert [(row["state"], row["current"]) for row in rows] == [("released", True), ("refused", False)]
    assert_one_clear_line(refocus("pipeline", "resume", "--folder", bank_folder), "has no interrupted run")


@needs_extra
@pytest.mark.slow
@pytest.mark.full
def test_a_bank_is_made_again(refocus, bank_folder):
    done = refocus("pipeline", "rebuild", 1, "--folder", bank_folder)
    assert "release 1: the same bytes" in done.stdout, done.stderr


PROMPTS = """
name = "groups"
method = "prompts"
[data]
photos_per_client = 24
glyph_clients = {train = 90, validation = 6, gate = 2, test = 12}
[prompts]
pretraining = [120, 3]
epochs = 6
"""


@pytest.mark.slow
@pytest.mark.full
def test_people_are_served_by_their_groups_prompts_and_worse_by_those_of_another(tmp_path):
    from refocus.cloud_train.pipeline import model
    from refocus.cloud_train.pipeline.methods import PERSONAL
    from refocus.cloud_train.release.evidence import shares_of_groups
    from refocus.edge.bundle.load import load_bundle

    work = tmp_path / "p" / "runs" / "0001"
    work.mkdir(parents=True)
    config = load_config(settings_file(tmp_path, PROMPTS))
    (work / "pipeline.json").write_bytes(encode_config(config))
    choose_photos(config, work / "photos.csv", None)
    assert model.features(work)["groups"] == 3
    model.train(work)
    found = model.evaluate(work)
    assert np.mean(found["candidate"]) > np.mean(found["plain"]) + 0.1
    table = open_run(config, work).table
    photos = photos_to_test(table, 32, set(table.classes))
    groups = ("latin", "greek", "cyrillic")
    another = {c: groups[groups.index(table.home(rows)) - 1] for c, rows in table.clients()}
    bundle = load_bundle(work / "exports" / "onnx-fp32")
    foreign = shares_of_groups(bundle, photos, ("onnxruntime", "fp32"), another, work / PERSONAL)[:, 0]
    assert foreign.mean() < np.mean(found["candidate"]) - 0.1
    of_nobody = shares_of_groups(
        bundle, photos, ("onnxruntime", "fp32"), dict.fromkeys(another, "runic"), work / PERSONAL
    )
    np.testing.assert_array_equal(of_nobody[:, 0], found["plain"])


def test_a_mistake_is_told_without_a_traceback(caplog):
    tell, before = _Teller(), "2026-01-01 12:00:00.000 [1795/start/1 (pid 7)] "
    with caplog.at_level("INFO"):
        for text in (
            "Task is starting.", "features: 3 of 7",
            "Traceback (most recent call last):", 'File "run.py", line 3, in start', "raise OSError()", "^^^^^",
            "OSError: gone", "", "During handling of the above exception, another exception occurred:", "",
            "Traceback (most recent call last):", 'File "run.py", line 3, in start', "raise OSError()",
            "some.package.TrackerError: cannot be reached", "going on",
            "<flow Retraining step start> failed:", "Internal error",
            "Traceback (most recent call last):", 'File "run.py", line 3, in start', "raise DataError()", "",
            "refocus.cloud_train.errors.DataError: 2 mistakes:", "people leave the split validation empty", "",
            "Task failed.", "Task is starting (retry).", "again",
        ):  # fmt: skip
            tell(before + text + "\n")
    assert [record.getMessage() for record in caplog.records] == [
        "ingest ...", "ingest: features: 3 of 7", "ingest: OSError: gone",
        "ingest: some.package.TrackerError: cannot be reached", "ingest: going on", "ingest: again",
    ]  # fmt: skip
