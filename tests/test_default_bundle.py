"""The default bundle: what is committed works and is small, a rebuild answers alike, and commands use it once installed."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refocus import BundleError, Recognizer, check, load_bundle
from refocus.edge.files import default_bundle

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "bundles" / "imagenet-lite0"
PHOTOS = sorted((FOLDER / "photos").glob("*.jpg"))
TABLE = ROOT / "cloud_train" / "backbones" / "packaged_networks.json"
CAT = FOLDER / "photos" / "00-chelsea.jpg"
MAX_BYTES = 6_000_000


@pytest.fixture
def installed(tmp_path):
    """A folder of packages in which the default bundle is installed; as an environment of a process."""
    packages = tmp_path / "packages"
    packages.mkdir()
    shutil.copytree(FOLDER / "bundle", packages / "refocus_bundle_imagenet")
    information = packages / "refocus_bundle_imagenet-0.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: refocus-bundle-imagenet\nVersion: 0.2\n")
    (information / "entry_points.txt").write_text("[refocus.bundles]\nimagenet-lite0 = refocus_bundle_imagenet\n")
    return packages


@pytest.fixture
def with_default(installed, tmp_path):
    """Runs the command with the default bundle installed; returns the finished process."""

    def run(*words):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), *sys.path])}
        command = [sys.executable, "-m", "refocus", *map(str, words)]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    return run


@pytest.fixture
def not_installed(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])


def answers(folder: Path) -> tuple[list[str], np.ndarray]:
    """Labels of the photos, and the logits (n, 1000)."""
    with Recognizer.open(folder, precision="w8a8", shares=False) as recognizer:
        found = [recognizer.recognize(photo) for photo in PHOTOS]
    return [answer.label for answer in found], np.stack([answer.logits for answer in found])


def test_the_committed_bundle_is_small_and_passes_its_self_test():
    bundle = load_bundle(FOLDER / "bundle")
    assert sum((bundle.folder / file).stat().st_size for file in bundle.files()) <= MAX_BYTES
    assert bundle.foreign_file() == ""
    (row,) = check(bundle)
    assert (row.photos, row.failures) == (8, ())
    (head,) = bundle.manifest.heads
    assert len(head.labels) == 1000
    known = json.loads(TABLE.read_text())["efficientnet-lite0"]["calibration"]
    assert head.personalisation.shares.temperature == known["temperature"]
    assert [*head.known_scores] == known["known_scores"]
    assert head.rejection == known["known_scores"][0]
    assert all(artifact.parity.passed and artifact.parity.photos == 200 for artifact in bundle.manifest.artifacts)


def test_its_photos_are_those_without_copyright():
    sources = (FOLDER / "photos" / "README.md").read_text()
    assert all(photo.stem[3:] in sources for photo in PHOTOS)
    free = {photo.read_bytes() for photo in PHOTOS}
    assert all(photo.read_bytes() in free for photo in (FOLDER / "bundle" / "self-test").iterdir())


def test_open_without_a_bundle_uses_the_installed_one(installed, monkeypatch):
    monkeypatch.syspath_prepend(str(installed))
    assert default_bundle() == installed / "refocus_bundle_imagenet"
    with Recognizer.open() as recognizer:
        assert recognizer.recognize(CAT).label == "Egyptian cat"


def test_without_one_a_line_says_how_to_get_it(not_installed):
    with pytest.raises(BundleError, match="no bundle is named and no default .* make bundle-wheel, then pip install"):
        Recognizer.open()


def test_an_album_needs_no_bundle(with_default, tmp_path):
    done = with_default("album", FOLDER / "photos", "--html", tmp_path / "album.html", "--out", tmp_path / "album.csv")
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "album.csv").read_text().splitlines()
    rows = {Path(row["file"]).name: row for row in csv.DictReader(table)}
    assert len(rows) == len(PHOTOS)
    assert rows[CAT.name]["label"] == "Egyptian cat"
    assert "Egyptian cat" in (tmp_path / "album.html").read_text()


def test_a_bundle_that_is_named_is_used(with_default, bundle, photo_file, tmp_path):
    for words in (["album", bundle.folder, photo_file.parent, "--out", "album.json"],
                  ["recognize", bundle.folder, photo_file, "--profiles", tmp_path / "p"]):  # fmt: skip
        done = with_default(*words)
        assert done.returncode == 0, done.stderr
    label = json.loads((tmp_path / "album.json").read_text())[0]["answer"][0]["label"]
    assert label in bundle.manifest.head().labels
    assert any(name in done.stdout for name in bundle.manifest.head().labels)
    done = with_default("recognize", tmp_path / "mistyped", photo_file)
    assert (done.returncode, "mistyped is not a bundle" in done.stderr) == (1, True)
    done = with_default("album", bundle.folder, "--out", "album.json")
    assert (done.returncode, "expected photos" in done.stderr) == (2, True)


@pytest.mark.parametrize("words", [["check"], ["inspect"], ["recognize", CAT, "--profiles", "p"]])
def test_other_commands_need_no_bundle_either(with_default, words):
    done = with_default(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_model_card_states_what_was_measured():
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("build", FOLDER / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    assert (FOLDER / "README.md").read_text() == build.card(load_bundle(FOLDER / "bundle"))


@pytest.mark.slow
def test_a_rebuild_answers_as_the_committed_one(tmp_path):
    command = [sys.executable, FOLDER / "build.py", "--out", tmp_path / "rebuilt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    committed, rebuilt = load_bundle(FOLDER / "bundle"), load_bundle(tmp_path / "rebuilt")
    assert rebuilt.manifest.preprocessing == committed.manifest.preprocessing
    old, new = committed.manifest.head(), rebuilt.manifest.head()
    assert (new.labels, new.known_scores, new.personalisation) == (old.labels, old.known_scores, old.personalisation)
    (labels, logits), (again, others) = answers(committed.folder), answers(rebuilt.folder)
    assert np.mean([one == other for one, other in zip(labels, again, strict=True)]) >= 0.9
    # Of another version of the libraries: the limits of parity of int8.
    assert np.percentile(np.abs(logits - others).max(1) / np.ptp(logits, axis=1), 90) <= 0.15


@pytest.mark.slow
def test_its_accuracy_is_the_one_that_is_stated():
    data = os.environ.get("REFOCUS_DATA")
    if not data:
        pytest.skip("REFOCUS_DATA is not set: no photos")
    head = load_bundle(FOLDER / "bundle").manifest.head()
    synsets = [line.split("_")[0] for line in (Path(data) / "photos" / "classes.txt").read_text().split()]
    photos = sorted((Path(data) / "photos").glob("*.JPEG"))
    with Recognizer.open(FOLDER / "bundle", shares=False) as recognizer:
        best = [recognizer.recognize(photo).label for photo in photos]
    correct = [
        head.labels.index(label) == synsets.index(photo.name[:9]) for label, photo in zip(best, photos, strict=True)
    ]
    assert np.mean(correct) == pytest.approx(json.loads((FOLDER / "measured.json").read_text())["top1"], abs=0.01)
