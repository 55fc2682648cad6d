"""``--personalise shares``: any network gets class shares, on every runtime that runs here; what cannot is one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from PIL import Image

from refocus import Recognizer, check, load_bundle
from refocus.edge.bundle import SHARES_VERSION, Head, Personalisation, write_manifest
from refocus.edge.recognize import ShareSettings
from refocus.export.bundle.class_shares import HIGHEST, LOWEST, calibrated, kind_of, with_shares
from refocus.export.errors import ExportError

LABELS = ("red", "green", "blue")
CODE = """
import torch
def build(end=""):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                              torch.nn.Flatten(), torch.nn.Linear(8, 3))
    return torch.nn.Sequential(net, {"": torch.nn.Identity, "softmax": lambda: torch.nn.Softmax(1),
                                     "sigmoid": torch.nn.Sigmoid}[end]()).eval()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with code, labels, and photos in a folder per class: enough to calibrate on."""
    folder, rng = tmp_path_factory.mktemp("network"), np.random.default_rng(0)
    (folder / "my_net.py").write_text(CODE)
    (folder / "labels.txt").write_text("\n".join(LABELS))
    for number in range(66):
        pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
        pixels[..., number % 3] //= 3
        path = folder / "photos" / LABELS[number % 3] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


@pytest.fixture(scope="module")
def export(place, refocus):
    def run(out, *more, photos="photos"):
        return refocus("export", "my_net:build", "--side", "32", "--labels", "labels.txt", "--photos", photos,
                       "--personalise", "shares", "--out", out, *more, cwd=place)  # fmt: skip

    return run


@pytest.fixture(scope="module")
def made(export, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "bundle"
    done = export(out, "--to", "onnx:fp32,executorch:fp32")
    assert done.returncode == 0, done.stderr
    return done, load_bundle(out)


@pytest.mark.slow
def test_a_plain_network_counts_shares_on_every_runtime(made, place, tmp_path):
    done, bundle = made
    photos = sorted((place / "photos" / "red").iterdir())
    assert "shares: plain at temperature" in done.stderr
    assert "calibrated on 66 labelled photos" in done.stderr
    card = bundle.manifest.heads[0].personalisation.shares
    assert (card.version, card.outputs, LOWEST <= card.temperature <= HIGHEST) == (SHARES_VERSION, "logits", True)
    assert all(not row.failures for row in check(bundle))
    answers = {}
    for runtime in ("onnxruntime", "executorch"):
        with Recognizer(bundle, tmp_path / runtime, runtime, threads=1) as recognizer:
            answers[runtime] = [recognizer.recognize(photo.read_bytes()) for photo in photos]
    for one, other in zip(*answers.values(), strict=True):
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-3)
    assert answers["executorch"][-1].shared.estimate.photos == len(photos) - 1
    # fp32 runtimes share a feature space, so either goes on with what the other counted.
    with Recognizer(bundle, tmp_path / "onnxruntime", "executorch", threads=1) as recognizer:
        assert recognizer.recognize((place / "photos/blue/02.png").read_bytes()).shared.estimate.photos == len(photos)
        assert not recognizer.history.likely(recognizer.space, recognizer._shares.by, 3).missing


@pytest.mark.slow
def test_answers_below_the_rejection_threshold_are_marked_as_guesses(made, place, refocus, tmp_path):
    _, bundle = made
    head = bundle.manifest.heads[0]
    photos = sorted((place / "photos" / "red").iterdir())[:6]
    with Recognizer(bundle, threads=1) as recognizer:
        scores = [recognizer.recognize(photo.read_bytes()).known_score for photo in photos]
    least = sorted(scores)[2] - 1e-6
    folder = tmp_path / "bundle"
    shutil.copytree(bundle.folder, folder)
    write_manifest(
        folder, msgspec.structs.replace(bundle.manifest, heads=(msgspec.structs.replace(head, rejection=least),))
    )
    rows = json.loads(refocus("recognize", folder, *photos, "--no-remember", "--json").stdout)
    assert [row["known"] for row in rows] == [score >= least for score in scores]
    assert [row["known_score"] for row in rows] == pytest.approx(scores, rel=1e-5)
    assert {row["rejection"] for row in rows} == {least}
    said = refocus("recognize", folder, *photos, "--no-remember").stdout
    assert said.count("unknown, best guess: ") == 2
    without = json.loads(refocus("recognize", folder, *photos, "--no-remember", "--no-shares", "--json").stdout)
    assert [row["known"] for row in without] == [score >= least for score in scores]


@pytest.mark.slow
def test_the_device_says_what_it_counted_and_can_be_told_not_to(made, place, refocus, tmp_path):
    _, bundle = made
    photos = sorted((place / "photos" / "red").iterdir())[:6]
    where = ("--profiles", tmp_path / "profiles", "--profile", "anna")
    said = refocus("recognize", bundle.folder, *photos, "--explain", *where)
    assert said.returncode == 0, said.stderr
    assert "shares of 5 photos, trust" in said.stdout
    assert "what you photograph, by 5 photos" in said.stdout
    without = refocus("recognize", bundle.folder, *photos, "--no-shares", "--json", *where)
    assert all("shares" not in row for row in json.loads(without.stdout))
    row = json.loads(refocus("recognize", bundle.folder, photos[-1], "--json", "--explain", *where).stdout)[0]
    assert row["shares"].keys() == {"photos", "trust", "moved"}
    assert row["explanation"]["shares"]["photographs"]
    erased = refocus("history", "erase", "--classes", "--yes", *where)
    assert (erased.returncode, "features stay" in erased.stdout) == (0, True)
    stats = json.loads(refocus("history", "stats", "--json", *where).stdout)
    assert stats["spaces"][0]["photos"] == 6
    wrong = refocus("history", "erase", "--classes", "--photo", photos[0], "--yes", *where)
    assert wrong.returncode == 1
    assert "expected no --photo" in wrong.stderr


@pytest.mark.slow
def test_accuracy_judges_with_and_without_shares(made, place, refocus):
    _, bundle = made
    rows = "".join(f"photos/{label}/{n:02d}.png,{label},p\n" for n in range(60) for label in [LABELS[n % 3]])
    (place / "metadata.csv").write_text("file_name,label,client\n" + rows)
    found = {}
    for flag in ("--shares", "--no-shares"):
        done = refocus("accuracy", bundle.folder, "--data", place, "--json", flag)
        assert done.returncode == 0, done.stderr
        found[flag] = json.loads(done.stdout)
    (place / "metadata.csv").unlink()
    for with_them, without in zip(found["--shares"]["rows"], found["--no-shares"]["rows"], strict=True):
        assert without["delivered"] == without["plain"] == with_them["plain"]
    assert "--no-shares" in found["--no-shares"]["command"]


@pytest.mark.slow
def test_a_network_that_gives_probabilities_answers_with_these(made, export, place, tmp_path):
    done = export(tmp_path / "bundle", "--backbone-arguments", "end=softmax")
    assert done.returncode == 0, done.stderr
    assert "gives probabilities; the bundle holds their logarithms" in done.stderr
    assert load_bundle(tmp_path / "bundle").manifest.heads[0].personalisation.shares.outputs == "logits"
    photo = next(place.rglob("*.png"))
    answers = []
    for folder in (tmp_path / "bundle", made[1].folder):
        with Recognizer.open(folder) as recognizer:
            answers.append([p for _, p in recognizer.recognize(photo).top(2)])
    assert answers[0] == pytest.approx(answers[1], abs=1e-3)


@pytest.mark.slow
def test_outputs_that_are_no_probabilities_leave_no_bundle(export, tmp_path, assert_one_clear_line):
    done = export(tmp_path / "bundle", "--backbone-arguments", "end=sigmoid")
    line = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert "lie between 0 and 1 and sum to" in line
    assert "expected logits, or probabilities that sum to 1" in line
    assert not (tmp_path / "bundle").exists()


def test_another_word_is_refused_before_anything_is_read(refocus, tmp_path, assert_one_clear_line):
    done = refocus("export", "nowhere.safetensors", "--out", tmp_path / "bundle", "--personalise", "share")
    assert_one_clear_line(done, "--personalise share", "expected head or shares")


@pytest.mark.slow
def test_without_labelled_photos_shares_are_written_and_not_calibrated(export, place, refocus, tmp_path):
    few = tmp_path / "few"
    shutil.copytree(place / "photos", few)
    for number in range(63, 66):
        (few / LABELS[number % 3] / f"{number}.png").unlink()
    done = export(tmp_path / "bundle", photos=few)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("shares: plain")]
    assert (
        "at temperature 1, not calibrated, which costs a part of the gain: 63 of the photos have labels of plain"
        in line
    )
    shares = load_bundle(tmp_path / "bundle").manifest.heads[0].personalisation.shares
    assert (shares.temperature, shares.support) == (1.0, ShareSettings.support)
    inspected = " ".join(refocus("inspect", tmp_path / "bundle").stdout.split())
    assert "temperature 1 (not calibrated, or without effect)" in inspected
    assert "plain: photos with a score below" in inspected


@pytest.mark.parametrize(("labelled", "own"), [(63, False), (64, True)])
def test_the_calibration_of_a_table_serves_where_few_photos_have_labels(labelled, own):
    known = {"temperature": 0.7, "rejection": 1.5, "measured_on": "200 photos"}
    head = Head("plain", LABELS, Personalisation("plain", 0, "none", "none"), training={"calibration": known})
    logits = 9 * np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    steps = [
        SimpleNamespace(path=Path(f"{row}.png"), label=LABELS[row % 3] if row < labelled else None) for row in range(80)
    ]
    said = []
    answers = [SimpleNamespace(outputs={"plain_logits": row}) for row in logits]
    found = with_shares(head, SimpleNamespace(steps=steps, answers=answers), said.append)
    assert (found.personalisation.shares.temperature != 0.7) == own
    assert ("calibrated on 64 labelled photos" if own else "0.7, measured on 200 photos: 63 of the photos") in said[0]


def test_a_temperature_undoes_what_a_classifier_exaggerates():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 5))
    odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    right = np.array([rng.choice(5, p=row) for row in odds])
    assert calibrated(3 * logits, right) == pytest.approx(3, rel=0.1)
    assert calibrated(logits, right) == pytest.approx(1, rel=0.1)
    assert calibrated(10 * np.eye(5)[[0, 1, 2]], np.array([0, 1, 2])) >= LOWEST


@pytest.mark.parametrize(
    ("rows", "kind"),
    [([[0.2, 0.8], [1.0, 0.0]], "probabilities"), ([[0.2, 1.8]], "logits"), ([[-0.1, 0.4]], "logits")],
)
def test_what_a_classifier_gives_is_told_from_its_numbers(rows, kind):
    assert kind_of(np.array(rows), "net") == kind


def test_scores_of_classes_that_do_not_exclude_each_other_are_refused():
    with pytest.raises(ExportError, match="a softmax, not a sigmoid per class"):
        kind_of(np.array([[0.9, 0.8]]), "net")
