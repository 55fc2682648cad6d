"""The commands as a user meets them: real processes, one clear line per error, a status that is not zero."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from refocus.edge.bundle.manifest import SCHEMA_VERSION


def test_recognize_grows_the_history_of_the_profile(refocus, bundle, photo_file, stream, tmp_path):
    second = tmp_path / "second.png"
    second.write_bytes(stream[1])
    arguments = ("recognize", bundle.folder, photo_file, second, "--profile", "anna", "--profiles", tmp_path / "p")
    rows = json.loads(refocus(*arguments, "--json").stdout)
    assert [row["history"] for row in rows] == [0, 1]
    assert (tmp_path / "p" / "anna.history.sqlite3").exists()
    assert rows[0]["answer"][0]["label"] in bundle.manifest.head().labels
    text = refocus("recognize", bundle.folder, second, "--profiles", tmp_path / "p", "--profile", "ben")
    assert str(second) in text.stdout


def test_inspect_verifies_and_prints_the_manifest(refocus, bundle):
    done = refocus("inspect", bundle.folder)
    assert done.returncode == 0, done.stderr
    assert "every file verified" in done.stdout
    parity = bundle.manifest.artifacts[0].parity
    assert f"{round(parity.top1_agreement * parity.photos)} of {parity.photos} photos" in done.stdout
    assert json.loads(refocus("inspect", bundle.folder, "--json").stdout)["schema_version"] == SCHEMA_VERSION


def test_check_runs_the_self_test_on_this_machine(refocus, bundle):
    done = refocus("check", bundle.folder)
    assert done.returncode == 0, done.stderr
    assert "iciia_t onnxruntime:fp32: 8 of 8 photos" in done.stdout
    (row,) = json.loads(refocus("check", bundle.folder, "--json").stdout)
    assert row["ran_on"] == "CPUExecutionProvider"


def test_check_fails_where_the_machine_answers_otherwise(assert_one_clear_line, refocus, bundle, tmp_path):
    shutil.copytree(bundle.folder, tmp_path / "b")
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    manifest["heads"][0]["self_test"]["answers"]["onnxruntime:fp32"][0]["logit"] += 1
    (tmp_path / "b" / "manifest.json").write_text(json.dumps(manifest))
    assert_one_clear_line(refocus("check", tmp_path / "b"), "the self-test failed", "self-test/00.png")


def test_a_truncated_photo_is_refused(assert_one_clear_line, refocus, bundle, photo_file, tmp_path):
    photo_file.write_bytes(photo_file.read_bytes()[:700])
    done = refocus("recognize", bundle.folder, photo_file, "--profiles", tmp_path)
    assert_one_clear_line(done, str(photo_file), "truncated")


def test_a_file_that_is_no_photo_is_refused(assert_one_clear_line, refocus, bundle, photo_file, tmp_path):
    photo_file.write_text("dear diary")
    done = refocus("recognize", bundle.folder, photo_file, "--profiles", tmp_path)
    assert_one_clear_line(done, str(photo_file), "not a photo")


def test_an_empty_file_is_refused(assert_one_clear_line, refocus, bundle, photo_file, tmp_path):
    photo_file.write_bytes(b"")
    done = refocus("recognize", bundle.folder, photo_file, "--profiles", tmp_path)
    assert_one_clear_line(done, str(photo_file), "is empty")


def test_a_bundle_with_a_changed_byte_is_refused(assert_one_clear_line, refocus, bundle, photo_file, tmp_path):
    shutil.copytree(bundle.folder, tmp_path / "b")
    program = tmp_path / "b" / "encoder-fp32.onnx"
    content = bytearray(program.read_bytes())
    content[1000] ^= 4
    program.write_bytes(content)
    assert_one_clear_line(refocus("inspect", tmp_path / "b"), str(program), "was changed")
    assert_one_clear_line(refocus("recognize", tmp_path / "b", photo_file, "--profiles", tmp_path), "was changed")


def test_a_manifest_of_a_newer_schema_is_refused(assert_one_clear_line, refocus, bundle, tmp_path):
    shutil.copytree(bundle.folder, tmp_path / "b")
    manifest = tmp_path / "b" / "manifest.json"
    newer = manifest.read_text().replace(
        f'"schema_version": {SCHEMA_VERSION}', f'"schema_version": {SCHEMA_VERSION + 1}'
    )
    manifest.write_text(newer)
    assert_one_clear_line(refocus("inspect", tmp_path / "b"), f"schema version {SCHEMA_VERSION + 1}", "update refocus")


def test_an_unknown_backbone_is_refused_with_near_names(assert_one_clear_line, refocus, tmp_path):
    done = refocus("train", "iciia", tmp_path / "run", "--backbone", "mobilenetv2_fast")
    assert_one_clear_line(done, "network mobilenetv2_fast", "mobilenetv2_0")


NETWORK = ("--backbone", "lcnet_035", "--checkpoint", "weights.safetensors")


def test_a_folder_with_no_labels_is_refused(assert_one_clear_line, refocus, photo_file, tmp_path):
    done = refocus("train", "iciia", tmp_path / "run", "--data", photo_file.parent, *NETWORK)
    assert_one_clear_line(done, "has no labels", "metadata.csv")


def test_photos_of_nobody_are_refused(assert_one_clear_line, refocus, photo_file, tmp_path):
    folder = tmp_path / "photos" / "a letter"
    folder.mkdir(parents=True)
    shutil.copy(photo_file, folder)
    done = refocus("train", "iciia", tmp_path / "run", "--data", tmp_path / "photos", *NETWORK)
    assert_one_clear_line(done, "names no clients", "data.client_column")


def test_a_backbone_for_real_photos_needs_weights(assert_one_clear_line, refocus, photo_file, tmp_path):
    for person in "abcde":
        for label in ("x", "y"):
            place = tmp_path / "photos" / f"{person}{label}.png"
            place.parent.mkdir(exist_ok=True)
            shutil.copy(photo_file, place)
    rows = [f"{p}{c}.png,{c},{p}" for p in "abcde" for c in "xy"]
    (tmp_path / "photos" / "metadata.csv").write_text("\n".join(["file_name,label,client", *rows]))
    common = ("train", "iciia", "--data", tmp_path / "photos", "--backbone", "lcnet_035")
    assert_one_clear_line(refocus(*common, tmp_path / "run"), "--checkpoint")
    pickle = tmp_path / "weights.pth"
    pickle.write_bytes(b"cos\nsystem\n")
    done = refocus(*common, tmp_path / "other", "--checkpoint", pickle)
    assert_one_clear_line(done, "only .safetensors is read")


def test_a_file_where_a_folder_should_be_is_one_clear_line(assert_one_clear_line, refocus, tiny_run, photo_file):
    asked = "export", tiny_run.head_path(0, "iciia_t"), "--personalise", "head", "--out", photo_file
    assert_one_clear_line(refocus(*asked), "is not a bundle")
    assert_one_clear_line(refocus("train", "iciia", photo_file / "run"), "check the path")


def test_a_run_with_other_settings_is_not_overwritten(assert_one_clear_line, refocus, tiny_run):
    done = refocus("train", "iciia", tiny_run.folder, "--set", "data.seed=7")
    assert_one_clear_line(done, "holds a run with other settings")


def test_evaluating_a_folder_that_is_no_run_is_refused(assert_one_clear_line, refocus, tmp_path):
    assert_one_clear_line(refocus("evaluate", tmp_path), "is not a run")


def test_exporting_something_else_is_refused(assert_one_clear_line, refocus, photo_file, tmp_path):
    assert_one_clear_line(
        refocus("export", photo_file, "--out", tmp_path / "b"), "neither a checkpoint of refocus train (.safetensors)"
    )


def test_the_version_is_that_of_the_package(refocus):
    done = refocus("--version")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, version("refocus-edge"), "")


def test_wrong_usage_has_a_status_of_its_own(refocus):
    for words in (["recognize"], ["album", "--out", "a.csv"]):
        done = refocus(*words)
        assert (done.returncode, "expected photos" in done.stderr) == (2, True)


def test_a_photo_whose_name_is_no_text_is_recognised(refocus, bundle, stream, tmp_path):
    """In words, in JSON and in a picture; the second time as a photo of the history."""
    names = [os.fsdecode(b"caf\xe9 %d.png" % number) for number in range(2)]
    for name, content in zip(names, stream, strict=False):
        (tmp_path / name).write_bytes(content)
    photos = [os.fsencode(tmp_path / name) for name in names]
    command = [
        Path(sys.executable).parent / "refocus",
        "recognize",
        bundle.folder,
        *photos,
        "--profiles",
        tmp_path / "p",
    ]
    done = subprocess.run([*command, "--explain", "--out", tmp_path / "why.png"], capture_output=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"caf\udce9 1.png" in done.stdout
    assert (tmp_path / "why.png").stat().st_mode & 0o777 == 0o600
    done = subprocess.run([*command, "--json"], capture_output=True, timeout=300)
    assert [os.fsencode(row["photo"]) for row in json.loads(done.stdout.decode())] == photos, done.stderr
    listed = refocus("history", "list", "--profiles", tmp_path / "p").stdout
    assert r"caf\udce9 0.png" in listed


def test_an_album_goes_on_past_a_bad_photo_and_names_it(refocus, bundle, stream, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, content in enumerate(stream[:5]):
        (photos / f"{number}.png").write_bytes(content)
    (photos / "2 bad.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    done = refocus("album", bundle.folder, photos, "--out", tmp_path / "r.csv", "--order", "name")
    assert done.returncode == 3
    assert f"not used: {photos / '2 bad.jpg'} is not a photo" in done.stderr
    rows = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    assert [bool(row["label"]) for row in rows] == [True, True, False, True, True, True]
    assert rows[2]["error"].startswith(str(photos / "2 bad.jpg"))


def test_no_picture_follows_a_link_and_nothing_is_remembered_for_it(assert_one_clear_line, refocus, bundle, photo_file,
                                                                    tmp_path):  # fmt: skip
    (tmp_path / "why.png").symlink_to(tmp_path / "elsewhere")
    done = refocus("recognize", bundle.folder, photo_file, "--profiles", tmp_path / "p", "--explain", "--out",
                   tmp_path / "why.png")  # fmt: skip
    assert_one_clear_line(done, "is a link, which is not replaced")
    assert not (tmp_path / "p").exists()
