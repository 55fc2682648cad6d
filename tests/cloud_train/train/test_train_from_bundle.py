"""Training goes on from the bundle of any network: its encoder, its classifier, its preprocessing, its labels."""

from __future__ import annotations

import csv
import io
import json
import shutil
import zipfile
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from refocus.benchmarks.measure.accuracy import read_labelled, without_training_photos
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.runs.iciia import DataConfig, Run, RunConfig
from refocus.cloud_train.train import IciiaSettings, train_iciia
from refocus.edge.bundle import load_bundle, photo_hash, upgrade, write_manifest
from refocus.edge.recognize import Recognizer, check
from refocus.export.bundle import Export, export_bundle
from refocus.export.errors import ExportError
from refocus.export.parity import read_streams
from refocus.export.program import load_checkpoint

SMALL = ("block.layers=1", "block.window=3", "block.partitions=4", "gate.kind=warm_up", "recipe.epochs=2")


@pytest.fixture(scope="module")
def run(people, network_bundle, tmp_path_factory):
    """A head on a bundle's encoder."""
    from refocus.cloud_train.settings import read_settings

    out = tmp_path_factory.mktemp("from") / "run"
    asked = (f"data.source={people}", f"bundle={network_bundle.folder}", *SMALL)
    train_iciia(read_settings(IciiaSettings.named("default"), None, asked), out)
    return Run(out)


def test_the_classifier_travels_in_the_bundle_as_a_tensor_file(network_bundle, weights):
    head, trained = network_bundle.manifest.head(), load_file(weights)
    found = load_file(network_bundle.folder / head.classifier.file)
    assert torch.equal(found["weight"], trained["fc.weight"])
    assert torch.equal(found["bias"], trained["fc.bias"])
    assert head.classifier in [*network_bundle.manifest.listed]


def test_a_changed_classifier_is_refused(network_bundle, tmp_path):
    shutil.copytree(network_bundle.folder, tmp_path / "b")
    path = tmp_path / "b" / network_bundle.manifest.head().classifier.file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(Exception, match="was changed"):
        load_bundle(tmp_path / "b")


def test_plain_answers_are_those_of_the_network(run, network_bundle, people):
    """Labels are told by name: the bundle has them in another order than the photos' table would."""
    assert run.table.classes == network_bundle.manifest.head().labels
    with (people / "metadata.csv").open() as stream:
        said = {row["file_name"]: row["label"] for row in csv.DictReader(stream)}
    for name, label in zip(run.table.photo.tolist(), run.table.label.tolist(), strict=True):
        assert run.table.classes[label] == said[name]
    backbone = run.backbone()
    plain, bank = run.plain_classifier(backbone, run.bank(backbone)), run.bank(backbone)
    with Recognizer(network_bundle, None, "onnxruntime", "fp32", 1) as recognizer:
        for row in range(0, len(run.table), 40):
            device = recognizer.recognize((people / str(run.table.photo[row])).read_bytes()).plain_logits
            here = plain(torch.from_numpy(bank.take(np.array([row])))).detach().numpy()[0]
            assert np.allclose(device, here, atol=1e-5)


@pytest.fixture(scope="module")
def personal(run, tmp_path_factory):
    """The head's bundle, for all targets of the network's."""
    head, streams = load_checkpoint(run.heads()[0]), read_streams(run.parity_photos())
    out = tmp_path_factory.mktemp("personal") / "bundle"
    return export_bundle([head], out, Export(["onnx:fp32", "onnx:fp16"]), streams)


def test_the_result_is_a_personal_bundle_on_the_same_encoders(run, network_bundle, personal, tmp_path):
    made, streams = personal, read_streams(run.parity_photos())
    assert made.manifest.head().personalisation.method == "iciia"
    encoders = {a.target: a for a in made.manifest.artifacts if a.role == "encoder"}
    for before in (a for a in network_bundle.manifest.artifacts if a.role == "encoder"):
        after = encoders[before.target]
        assert (after.sha256, after.feature_space) == (before.sha256, before.feature_space)
    assert not [row.failures for row in check(made) if row.failures]
    with Recognizer(made, tmp_path / "profile") as recognizer:
        photos = [path for paths in streams.values() for path in paths][:4]
        looked_at = [len(recognizer.recognize(path.read_bytes()).attention) - 1 for path in photos]
    assert looked_at == [0, 1, 2, 2]


def test_nobody_who_taught_the_bundle_is_judged_by_default(run, people, personal):
    taught, table = personal.taught_by(), run.table
    for name, split in zip(table.photo.tolist(), table.split.tolist(), strict=True):
        assert (photo_hash(table.read(name)) in taught) == (split != "test"), (name, split)
    photos, line = without_training_photos(read_labelled(people, "client", "label", "", 64), personal)
    judged = {person.rpartition(" ")[0] for person in photos.people}
    assert judged == set(table.client[table.split == "test"].tolist())
    assert "taught the bundle and are left out" in line


def test_the_head_alone_upgrades_a_device_that_has_the_networks_bundle(run, network_bundle, tmp_path):
    shutil.copytree(network_bundle.folder, tmp_path / "installed")
    streams = read_streams(run.parity_photos())
    heads = export_bundle(
        [load_checkpoint(run.heads()[0])], tmp_path / "heads", Export(["onnx:fp32"], head_only=True), streams
    )
    after = upgrade(load_bundle(tmp_path / "installed"), heads)
    assert [head.name for head in after.manifest.heads] == [run.heads()[0].stem, "plain"]
    assert (tmp_path / "installed" / after.manifest.head("plain").classifier.file).exists()


def test_a_target_that_the_bundle_lacks_is_named(run, tmp_path):
    with pytest.raises(ExportError, match="--to onnx:w8a8: the encoder is that of the bundle .* onnxruntime:fp32"):
        export_bundle(
            [load_checkpoint(run.heads()[0])],
            tmp_path / "bundle",
            Export(["onnx:int8"], calibration=read_streams(run.calibration_photos())),
            read_streams(run.parity_photos()),
        )
    assert not (tmp_path / "bundle").exists()


def test_the_run_needs_the_bundle_no_longer(run, network_bundle, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(run.folder, moved)
    again = Run(moved)
    assert again.backbone().bundle.folder == moved / "bundle"
    assert again.backbone_name == "timm:resnet10t"


def test_its_run_toml_gives_the_same_head_to_the_bit(run, train, tmp_path):
    train("iciia", tmp_path / "again", "--config", run.folder / "run.toml")
    (one,), (two,) = run.heads(), Run(tmp_path / "again").heads()
    assert one.read_bytes() == two.read_bytes()


def unlike(people, folder, label):
    """The same photos with one label that no bundle knows."""
    shutil.copytree(people, folder)
    path = folder / "metadata.csv"
    path.write_text(path.read_text().replace(",grey,", f",{label},"))
    return folder


def test_labels_that_the_network_does_not_know_get_a_classifier_of_their_own(people, network_bundle, tmp_path, caplog):
    data = DataConfig(source=str(unlike(people, tmp_path / "photos", "violet")))
    caplog.set_level("INFO", "refocus")
    run = Run(tmp_path / "run", RunConfig(data, bundle=str(network_bundle.folder)))
    assert "1 of 4 labels of the photos, as violet, are none of the bundle's" in caplog.text
    assert run.table.classes == ("blue", "green", "red", "violet")
    assert not run.own_classifier


def test_a_classifier_is_fitted_where_that_is_asked_for(people, network_bundle, tmp_path):
    config = RunConfig(DataConfig(source=str(people)), bundle=str(network_bundle.folder), classifier="fit")
    run = Run(tmp_path / "run", config)
    backbone = run.backbone()
    fitted, own = run.plain_classifier(backbone, run.bank(backbone)), backbone.classifier()
    assert not torch.equal(fitted.weight, own.weight)


def test_wrong_bundles_are_named(people, network_bundle, personal, tmp_path):
    data = DataConfig(source=str(people))
    with pytest.raises(UsageError, match="is not of a network without history"):
        Run(tmp_path / "run", RunConfig(data, bundle=str(personal.folder)))
    shutil.copytree(network_bundle.folder, tmp_path / "older")
    manifest = network_bundle.manifest
    heads = (msgspec.structs.replace(manifest.heads[0], classifier=None),)
    write_manifest(tmp_path / "older", msgspec.structs.replace(manifest, heads=heads))
    older = RunConfig(data, bundle=str(tmp_path / "older"))
    with pytest.raises(UsageError, match="without its network's classifier; export it again, or .* classifier=fit"):
        Run(tmp_path / "run", older)
    assert not Run(tmp_path / "run", replace(older, classifier="fit")).own_classifier
    few = tuple(a for a in manifest.artifacts if a.target != "onnxruntime:fp32")
    write_manifest(tmp_path / "older", msgspec.structs.replace(manifest, artifacts=few))
    with pytest.raises(UsageError, match="has no encoder for onnxruntime:fp32"):
        Run(tmp_path / "else", older)


@pytest.mark.slow
def test_a_real_network_becomes_personal_on_real_photos(refocus, real_data, tmp_path):
    """Done-when 2 of the issue, on few photos: any network's bundle and Grocery Store give a personal bundle."""
    with zipfile.ZipFile(real_data / "grocery-store.zip") as source:
        rows = list(csv.DictReader(io.StringIO(source.read("metadata.csv").decode())))
        parents, counts = np.unique([row["parent"] for row in rows], return_counts=True)
        chosen = [
            row
            for parent in parents[np.argsort(-counts)][:6]
            for row in [r for r in rows if r["parent"] == parent][:32]
        ]
        (tmp_path / "photos").mkdir()
        for row in chosen:
            path = tmp_path / "photos" / row["file_name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read(row["file_name"]))
    with (tmp_path / "photos" / "metadata.csv").open("w", newline="") as stream:
        names = ("file_name", "label", "parent")
        csv.writer(stream).writerows([names, *([row[name] for name in names] for row in chosen)])
    weights = real_data / "weights" / "mobilenetv2_100_in1k.safetensors"
    network = ("timm:mobilenetv2_100", "--checkpoint", weights, "--backbone-arguments", "pad_type=same", "--side", 128)
    pixels = ("--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5", "--photos", real_data / "photos")
    done = refocus("export", *network, *pixels, "--out", tmp_path / "network")
    assert done.returncode == 0, done.stderr
    dealt = ("clients=parent", "parent_column=parent", "photos_per_client=8")
    told = [word for text in dealt for word in ("--set", f"data.{text}")]
    told += [word for text in SMALL[:2] for word in ("--set", text)] + ["--set", "gate.kind=warm_up"]
    done = refocus(
        "train", "iciia", tmp_path / "run", "--from", tmp_path / "network", "--data", tmp_path / "photos", *told
    )
    assert done.returncode == 0, done.stderr
    assert "a classifier is trained on the photos in place of the network's own" in done.stderr
    done = refocus("export", tmp_path / "run/seed-0/iciia_t.safetensors", "--out", tmp_path / "bundle", "--json")
    assert done.returncode == 0, done.stderr
    assert all(row["passed"] for row in json.loads(done.stdout)["artifacts"])
    photo = next((tmp_path / "run" / "parity").glob("*/*.*"))
    done = refocus("recognize", tmp_path / "bundle", photo, "--profiles", tmp_path / "profiles", "--json")
    assert json.loads(done.stdout)[0]["answer"][0]["confidence"] > 0


def test_ten_photos_a_person_train_with_defaults_and_the_run_says_what_it_chose(
    network_bundle, people, tmp_path, train
):
    """The default window of 16 photos would fit none of these people."""
    out = tmp_path / "run"
    train("iciia", out, "--from", network_bundle.folder, "--data", people, "--set", "recipe.epochs=3")
    heads, text = Run(out).heads(), (out / "run.toml").read_text()
    assert [head.stem for head in heads] == ["iciia_b", "iciia_t"]
    for head in heads:
        card = load_checkpoint(head).card
        assert card.config["iciia"]["window"] == 10
        assert card.training["learning_rate"] > 0
        assert f"seed-0/{head.stem}: block.window = 10 (0: " in text
    assert "validation people are served best by iciia_" in text
    before = [head.read_bytes() for head in heads]
    train("iciia", out, "--config", out / "run.toml")
    assert [head.read_bytes() for head in heads] == before
    assert (out / "run.toml").read_text() == text


def test_a_window_that_was_given_and_does_not_fit_is_an_error_before_features_are_extracted(
    network_bundle, people, tmp_path, train
):
    asked = "--from", network_bundle.folder, "--data", people, "--set", "block.window=16"
    with pytest.raises(DataError, match=r"no client has 16 photos; make block\.window shorter"):
        train("iciia", tmp_path / "run", *asked)
    assert not (tmp_path / "run").exists()
