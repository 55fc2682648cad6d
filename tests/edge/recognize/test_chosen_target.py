"""The chosen target: used where none is asked for, and ignored with a note wherever it may not fit."""

from __future__ import annotations

import json
import shutil

import msgspec
import numpy as np
import pytest

from refocus.edge.bundle.load import MANIFEST
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.recognize import chosen_target
from refocus.edge.recognize.chosen_target import (
    DEFAULT_TARGET,
    ChosenTarget,
    Measured,
    about_choice,
    choice_path,
    forget_choice,
    keep_choice,
    library_version,
    processor,
    read_choice,
    target_for,
)
from refocus.edge.recognize.recognizer import Recognizer

OTHER = "f" * 64  # a feature space


@pytest.fixture
def folder(bundle, tmp_path, monkeypatch):
    """A bundle whose manifest names a second target, w8a8, with a feature space of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "bundle"
    shutil.copytree(bundle.folder, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    encoder = next(artifact for artifact in manifest["artifacts"] if artifact["role"] == "encoder")
    head = next(artifact for artifact in manifest["artifacts"] if artifact["role"] == "head")
    manifest["artifacts"] += [{**encoder, "precision": "w8a8", "feature_space": OTHER},
                              {**head, "precision": "w8a8", "accepts": [OTHER]}]  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def choice(folder, **more) -> ChosenTarget:
    made = ChosenTarget(
        choice_path(folder).stem, "onnxruntime", "w8a8", library_version("onnxruntime"), processor(), "iciia_t", 1,
        (Measured("onnxruntime:fp32", 4.0), Measured("onnxruntime:w8a8", 2.0, (0.5, 0.49, 0.51))),
    )  # fmt: skip
    return msgspec.structs.replace(made, **more)


def test_a_choice_is_used_where_no_target_is_asked_for_and_nowhere_else(folder):
    assert target_for(folder, None) == DEFAULT_TARGET
    keep_choice(folder, choice(folder))
    assert target_for(folder, None) == ("onnxruntime", "w8a8")
    assert target_for(folder, None, runtime="executorch") == ("executorch", "fp32")
    assert target_for(folder, None, precision="fp32") == ("onnxruntime", "fp32")
    with Recognizer.open(folder) as device:
        assert (device.encoder.artifact.precision, device.space) == ("w8a8", OTHER)
    with Recognizer.open(folder, precision="fp32") as device:
        assert device.encoder.artifact.precision == "fp32"
    assert about_choice(folder).startswith("chosen on this machine: onnxruntime:w8a8 (p50 onnxruntime:fp32 4.00 ms")
    assert forget_choice(folder)
    assert not forget_choice(folder)
    assert target_for(folder, None) == DEFAULT_TARGET
    assert about_choice(folder) == ""


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 2}', b"\xff\xfe", b"[" * 100_000, b"0" * 70_000])
def test_a_damaged_choice_is_ignored_with_a_note(folder, content, caplog):
    path = keep_choice(folder, choice(folder))
    path.write_bytes(content)
    assert target_for(folder, None) == DEFAULT_TARGET
    assert "is damaged and ignored; refocus bench --choose measures again" in caplog.text


@pytest.mark.parametrize(
    ("changed", "note"),
    [({"version": "1.2.3"}, "measured with onnxruntime 1.2.3, this is"), ({"processor": "abacus"}, "another processor"),
     ({"manifest": "0" * 64}, "that of another bundle"), ({"runtime": "abacus"}, "that of another bundle"),
     ({"precision": "w16"}, "has no such encoder"), ({"head": "other"}, "measured with the head other, not iciia_t")],
)  # fmt: skip
def test_an_outdated_choice_is_ignored_with_a_note(folder, changed, note, caplog):
    keep_choice(folder, choice(folder, **changed))
    assert target_for(folder, None) == DEFAULT_TARGET
    assert note in caplog.text


def test_another_bundle_in_the_same_folder_has_no_choice(folder):
    keep_choice(folder, choice(folder))
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "name": "another"}))
    assert read_choice(folder) == (None, "")


def test_a_history_of_the_default_features_is_not_left_for_a_faster_target(folder, stream, tmp_path, caplog):
    keep_choice(folder, choice(folder))
    profile = tmp_path / "anna.history.sqlite3"
    with Recognizer.open(folder, "anna", profiles=tmp_path, precision="fp32") as device:
        device.recognize(stream[0])
    assert target_for(folder, profile) == DEFAULT_TARGET
    assert (
        "the history holds features of onnxruntime:fp32; --runtime onnxruntime --precision w8a8 begins" in caplog.text
    )
    with Recognizer.open(folder, "anna", profiles=tmp_path) as device:
        assert len(device.recognize(stream[1]).attention) == 2
    assert target_for(folder, tmp_path / "ben.history.sqlite3") == ("onnxruntime", "w8a8")  # who has none yet
    with Recognizer.open(folder, "anna", profiles=tmp_path, precision="w8a8") as device:
        device.recognize(stream[0])
    assert target_for(folder, profile) == ("onnxruntime", "w8a8")  # asked for by name, it has a history from now on


def test_a_profile_that_cannot_be_read_keeps_the_default(folder, tmp_path, monkeypatch):
    def broken(path, **how):
        raise chosen_target.HistoryError("unreadable")

    keep_choice(folder, choice(folder))
    (tmp_path / "p").write_bytes(b"x")
    monkeypatch.setattr(chosen_target, "FeatureHistory", broken)
    assert target_for(folder, tmp_path / "p") == DEFAULT_TARGET
    assert FeatureHistory is not broken


def test_damage_that_is_found_while_a_target_is_chosen_is_told(tmp_path, caplog):
    profile = tmp_path / "anna.history.sqlite3"
    with FeatureHistory(profile) as history:
        for number in range(3):
            history.append("default", f"photo {number}", np.full(8, number + 0.3, np.float32))
    content = bytearray(profile.read_bytes())
    content[content.find(np.full(8, 1.3, np.float32).tobytes())] ^= 1
    profile.write_bytes(content)
    assert chosen_target._has_photos(profile, "default", "chosen")
    assert "anna.history.sqlite3: the file was damaged" in caplog.text


def test_a_folder_without_a_bundle_is_for_its_reader_to_refuse(tmp_path):
    assert target_for(tmp_path / "nowhere", None) == DEFAULT_TARGET


def test_a_bundle_without_the_default_target_opens_with_the_first_that_runs_here(folder):
    """As one of int8 alone, with a program of a runtime that nobody has before it."""
    manifest = json.loads((folder / MANIFEST).read_text())
    kept = [artifact for artifact in manifest["artifacts"] if artifact["precision"] == "w8a8"]
    encoder = next(artifact for artifact in kept if artifact["role"] == "encoder")
    manifest["artifacts"] = [{**encoder, "runtime": "tensorrt", "precision": "fp16"}, *kept]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert target_for(folder, None) == ("onnxruntime", "w8a8")
    assert target_for(folder, None, runtime="onnxruntime") == ("onnxruntime", "w8a8")
    assert target_for(folder, None, runtime="tensorrt") == ("tensorrt", "fp32")  # whoever opens it says what is wrong
    assert target_for(folder, None, precision="fp32") == DEFAULT_TARGET
    with Recognizer.open(folder) as device:
        assert device.encoder.artifact.precision == "w8a8"
