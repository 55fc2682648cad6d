"""A network of one's own becomes a bundle without history in one command, or is refused in one line."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec.structs import replace as replace_fields
from PIL import Image
from safetensors.torch import save_file

from refocus import Recognizer, RefocusError, check, load_bundle
from refocus.benchmarks.choose import carry_over
from refocus.edge.bundle import Accuracy, write_manifest
from refocus.edge.recognize import (
    ChosenTarget,
    Measured,
    choice_path,
    keep_choice,
    library_version,
    processor,
    read_choice,
)
from refocus.export import ExportSettings
from refocus.export import export as export_settings

LABELS = ("red", "green", "blue")
CODE = """
import torch
class Net(torch.nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.stem, self.layer = torch.nn.Conv2d(3, 8, 5, 4), torch.nn.Linear(8, classes)
    def forward(self, photo):
        return self.layer(self.stem(photo).relu().mean((2, 3)))
def build(classes=3):
    torch.manual_seed(0)
    return Net(classes).eval()
def of_bytes(classes=3):
    class OfBytes(Net):
        def forward(self, photo):
            return super().forward(photo / 127.5 - 1)
    torch.manual_seed(0)
    return OfBytes(classes).eval()
def features():
    return torch.nn.Conv2d(3, 8, 5, 4)
def dynamic():
    class Dynamic(Net):
        def forward(self, photo):
            return super().forward(photo) if photo.sum() > 0 else super().forward(-photo)
    return Dynamic()
def numpy():
    class Numpy(Net):
        def forward(self, photo):
            return torch.from_numpy(super().forward(photo).numpy() * 2)
    return Numpy()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with code, labels, and photos in a folder per class."""
    folder, rng = tmp_path_factory.mktemp("network"), np.random.default_rng(0)
    (folder / "my_net.py").write_text(CODE)
    (folder / "labels.txt").write_text("\n".join(LABELS))
    save_file({"stem.weight": torch.zeros(8, 3, 7, 7)}, folder / "other.safetensors")
    for number in range(30):
        pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
        pixels[..., number % 3] //= 3
        path = folder / "photos" / LABELS[number % 3] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


@pytest.fixture
def export(place, refocus, monkeypatch):
    monkeypatch.chdir(place)
    return lambda *more: refocus("export", *more, "--side", "32", "--labels", "labels.txt", "--photos", "photos")


def built():
    scope: dict[str, object] = {}
    exec(CODE, scope)
    return scope["build"]()


@pytest.fixture(scope="module")
def made(place, refocus, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "bundle"
    torch.export.save(torch.export.export(built(), (torch.randn(1, 3, 32, 32),)), place / "net.pt2")
    done = refocus("export", place / "net.pt2", "--labels", place / "labels.txt", "--photos", place / "photos",
                   "--out", out, "--to", "onnx:fp32,onnx:int8", cwd=place)  # fmt: skip
    return done, load_bundle(out)


def test_a_network_becomes_a_bundle_that_answers_as_it_does(made, place, tmp_path):
    done, bundle = made
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == f"next: refocus album {bundle.folder} ~/Pictures --html album.html"
    assert bundle.manifest.name == "net"
    assert bundle.manifest.heads[0].labels == LABELS
    assert bundle.manifest.heads[0].training["network"].endswith("net.pt2")
    assert all(not row.failures for row in check(bundle))
    photo = next((place / "photos" / "red").iterdir())
    from refocus.edge.photos import preprocess

    with torch.no_grad():
        wanted = built()(torch.from_numpy(preprocess(photo.read_bytes(), bundle.manifest.preprocessing)))[0]
    with Recognizer(bundle, tmp_path / "p.sqlite3") as recognizer:
        first, again = (recognizer.recognize(photo.read_bytes()) for _ in range(2))
    np.testing.assert_allclose(first.logits, wanted, atol=1e-4)
    np.testing.assert_array_equal(again.logits, first.logits)
    assert first.trust == 0


@pytest.mark.slow
def test_a_network_of_pixels_from_0_to_255_is_as_near_to_pytorch_as_one_of_pixels_from_0_to_1(
    place, monkeypatch, tmp_path
):
    """The signature of its photos holds thousands, of which the last bit is no thousandth."""
    monkeypatch.chdir(place)
    rng, photos = np.random.default_rng(0), tmp_path / "photos"
    photos.mkdir()
    for number in range(16):  # black and white and a little colour
        pixels = 247 * (rng.random((40, 40, 1)) < 0.5) + rng.integers(0, 9, (40, 40, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(photos / f"{number}.png")
    settings = ExportSettings("my_net:of_bytes", tmp_path / "b", "onnx:fp32,onnx:fp16", photos, side=32,
                              mean=(0, 0, 0), std=(1 / 255,) * 3, labels="labels.txt")  # fmt: skip
    done = export_settings(settings)
    assert [(outcome.target, outcome.reason) for outcome in done.outcomes] == [("onnx:fp32", ""), ("onnx:fp16", "")]
    assert [artifact.parity.tolerance for artifact in done.bundle.manifest.artifacts[:2]] == [1e-3, 0.5]


@pytest.fixture
def chosen(made, tmp_path, monkeypatch):
    """A copy of the bundle for which the target w8a8 was chosen on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "chosen"
    shutil.copytree(made[1].folder, folder)
    rows = (Measured("onnxruntime:fp32", 4.0), Measured("onnxruntime:w8a8", 2.0, (0.5, 0.49, 0.51)))
    about = "onnxruntime", "w8a8", library_version("onnxruntime"), processor(), "plain", 1, rows
    keep_choice(folder, ChosenTarget(choice_path(folder).stem, *about))
    return folder


def test_recording_the_accuracy_leaves_the_target_that_was_chosen(chosen, place, refocus):
    """The manifest is another one then, and a person's history has features of the chosen target."""
    rows = [(path.relative_to(place), path.parent.name) for path in sorted((place / "photos").rglob("*.png"))]
    with (place / "metadata.csv").open("w", newline="") as file:
        people = [(path, label, "anna") for path, label in rows]
        csv.writer(file).writerows([("file_name", "label", "client"), *people])
    before = (chosen / "manifest.json").read_bytes()
    keep_choice(chosen, replace_fields(read_choice(chosen)[0], precision="fp32"))
    done = refocus("accuracy", chosen, "--data", place, "--record")
    (place / "metadata.csv").unlink()
    assert done.returncode == 0, done.stderr
    assert (chosen / "manifest.json").read_bytes() != before
    assert read_choice(chosen)[0].target == "onnxruntime:fp32"


@pytest.mark.parametrize(("low", "kept"), [(-0.005, True), (-0.03, False)])
def test_recorded_figures_against_a_chosen_target_are_said(chosen, low, kept):
    """They would have kept it from being chosen."""
    before, bundle = read_choice(chosen)[0], load_bundle(chosen)
    found = Accuracy(data="x", photos=9, people=3, delivered=0.9, plain=0.9, worst_decile=0.8,
                     reference="onnxruntime:fp32", change=(0.0, low, 0.03))  # fmt: skip
    artifacts = (
        replace_fields(a, accuracy=found) if (a.role, a.precision) == ("head", "w8a8") else a
        for a in bundle.manifest.artifacts
    )
    recorded = write_manifest(chosen, replace_fields(bundle.manifest, artifacts=tuple(artifacts)))
    said = carry_over(before, recorded)
    assert (read_choice(chosen)[0] is not None) == kept
    assert said == "" if kept else "is used no longer: its accuracy may be 3.0 points lower" in said


def test_right_answers_before_and_after_are_said_for_every_target(made):
    said = made[0].stderr
    assert "top-1 of 30 labelled photos: PyTorch" in said
    assert "onnxruntime:w8a8" in said


def test_a_table_of_labels_goes_before_the_names_of_folders(place, refocus, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    rows = []
    for path in sorted((place / "photos").rglob("*.png")):
        (photos / path.name).write_bytes(path.read_bytes())
        rows.append((path.name, path.parent.name))
    with (photos / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file_name", "label"), *rows[:20]])
    done = refocus("export", place / "net.pt2", "--labels", place / "labels.txt", "--photos", photos,
                   "--out", tmp_path / "b", "--json", cwd=place)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "top-1 of 20 labelled photos" in done.stderr
    assert {row["role"] for row in json.loads(done.stdout)["artifacts"]} == {"encoder", "head"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("my_net:features",), "expected logits (1, C)"),
        (("my_net:build", "--backbone-arguments", "classes=4"), "gives 4 logits, 3 labels were given"),
        (("my_net:build", "--backbone-arguments", "classes"), "expected NAME=VALUE"),
        (("my_net:bild",), "did you mean build?"),
        (("my_net:dynamic",), "use torch.where or torch.cond"),
        (("my_net:numpy",), "compute this step with torch"),
        (("my_net:build", "--checkpoint", "other.safetensors"), "holds weights of another network"),
        (("my_net:build", "--max-deviation", "onnx:fp32:beauty=1"), "names are feature, logits"),
        (("my_net:build", "--max-deviation", "feature=much"), "expected a number of at least 0"),
        (("my_net:build", "--to", "onnx:w8a16"), "onnx offers fp32, fp16, w8a8, w8; see docs/precision.md"),
        (("my_net:build", "my_net:build"), "export it alone"),
        (("my_net:build", "--mean", "0.5"), "expected three numbers"),
        (("my_net:build", "--to", "onnx:w3"), "--to onnx:w3"),
        (("run/head.safetensors",), "are of a network"),
    ],
)
def test_what_is_wrong_with_a_network_is_one_line_and_leaves_no_bundle(
    export, place, tmp_path, words, message, assert_one_clear_line
):
    done = export(*words, "--out", tmp_path / "bundle")
    assert_one_clear_line(done, message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("resnet18", "did you mean timm:resnet18?"),
        (
            "resnet18.a1_in1k",
            "nor a PyTorch network (timm:NAME, package.module:function or FILE.pt2); did you mean timm:",
        ),
        ("net.onnx", "and there is no such file"),
        ("other.safetensors", "has no card other.json beside it"),
    ],
)
def test_what_may_have_been_meant_is_said(place, monkeypatch, tmp_path, model, message):
    monkeypatch.chdir(place)
    with pytest.raises(RefocusError, match=re.escape(message)):
        export_settings(ExportSettings([model], tmp_path / "bundle"))
    assert not any(tmp_path.iterdir())


EARLY = """
import sys
from refocus.export import ExportSettings, export
for change in CHANGES:
    try:
        export(ExportSettings(**{"models": "package:efficientnet-lite0", "out": "new", "photos": "photos", **change}))
    except Exception as error:
        print(error)
print({"torch", "timm", "onnx", "onnxruntime", "executorch"} & {*sys.modules})
"""


def test_a_misspelt_path_or_name_is_refused_before_anything_heavy_is_imported(place):
    wrong = {
        "--photos fotos": {"photos": "fotos"},
        "--calibration fotos": {"calibration": "fotos"},
        "--labels names.txt: no such file": {"labels": "names.txt"},
        "--checkpoint w.safetensors: no such file": {"checkpoint": "w.safetensors"},
        "head.safetensors: no such file": {"models": "head.safetensors"},
        "net2.pt2: no such file": {"models": "net2.pt2"},
        "photos is not replaced": {"out": "photos"},
        "unknown target 'onx'": {"to": "onx:fp32"},
        "there is no precision 'fp33'": {"to": "onnx:fp33"},
        "--opset 9": {"opset": "9"},
    }
    code = EARLY.replace("CHANGES", repr([*wrong.values()]))
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    *errors, imported = done.stdout.splitlines()
    for error, message in zip(errors, wrong, strict=True):
        assert message in error
    assert imported == "set()", done.stderr


def test_the_folder_of_a_run_names_its_checkpoints(tmp_path):
    run = tmp_path / "run" / "seed-0"
    run.mkdir(parents=True)
    for name in ("taper.safetensors", "taper.json", "weights.safetensors"):  # these without a card
        (run / name).touch()
    for folder in (run, run.parent):
        with pytest.raises(RefocusError, match=rf"; did you mean {run / 'taper.safetensors'}\?$"):
            export_settings(ExportSettings([str(folder)], tmp_path / "bundle"))


@pytest.mark.slow
def test_random_weights_and_labels_of_another_network_are_said(place, monkeypatch, tmp_path, caplog):
    """Nothing is wrong with measuring the time of a network without weights; its answers are noise."""
    monkeypatch.chdir(place)
    small, said = {"channels": [8, 16, 32, 64], "stem_width": 8}, []
    settings = ExportSettings("timm:resnet10t", "bundle", "onnx:fp32", "photos", side=32, backbone_arguments=small)
    bundle = export_settings(replace(settings, out=tmp_path / "bundle"), said.append).bundle
    assert "its weights are random, because neither --pretrained nor --checkpoint" in caplog.text
    assert bundle.manifest.heads[0].training["weights"] == "random"
    (line,) = [line for line in said if line.startswith("no top-1")]
    assert line.startswith("no top-1: the photos' labels (blue, green, …) are none of the network's (tench")


def test_a_network_is_compared_on_real_photos_or_not_exported(place, refocus, tmp_path, assert_one_clear_line):
    assert_one_clear_line(refocus("export", place / "net.pt2", "--out", tmp_path / "b", cwd=place), "--photos")
    (tmp_path / "few").mkdir()
    for photo in sorted((place / "photos" / "red").iterdir()):  # 10, and 16 are needed
        (tmp_path / "few" / photo.name).write_bytes(photo.read_bytes())
    few = refocus("export", place / "net.pt2", "--photos", tmp_path / "few", "--out", tmp_path / "b", cwd=place)
    assert_one_clear_line(few, "expected a folder of 16 photos or more, found 10; add photos")
    assert not (tmp_path / "b").exists()
