"""A bundle is used only if everything in it is what its manifest says."""

from __future__ import annotations

import hashlib
import json
import shutil

import msgspec
import numpy as np
import pytest

from refocus.edge.bundle.load import MANIFEST, load_bundle
from refocus.edge.bundle.manifest import SCHEMA_VERSION, decode_manifest, encode_manifest
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.recognize.check import check
from refocus.edge.runtimes import load_program
from refocus.edge.runtimes.onnxruntime import refuse_telemetry


@pytest.fixture
def copy(bundle, tmp_path):
    shutil.copytree(bundle.folder, tmp_path / "bundle")
    return tmp_path / "bundle"


def edit(folder, change) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_bundle_survives_writing_and_reading(bundle):
    assert decode_manifest(encode_manifest(bundle.manifest), "here") == bundle.manifest


@pytest.mark.parametrize("file", ["encoder-fp32.onnx", "iciia_t-fp32.onnx", "self-test/00.png"])
def test_one_changed_byte_is_refused(copy, file):
    content = bytearray((copy / file).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / file).write_bytes(content)
    with pytest.raises(BundleError, match=f"{file} was changed"):
        load_bundle(copy)


def test_a_truncated_program_is_refused(copy):
    path = copy / "iciia_t-fp32.onnx"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleError, match="iciia_t-fp32.onnx was changed"):
        load_bundle(copy)


def test_a_size_that_is_not_the_files_is_refused(copy):
    edit(copy, lambda m: m["artifacts"][0].update(size_bytes=7))
    with pytest.raises(BundleError, match="bytes, the manifest says 7"):
        load_bundle(copy)


def test_a_program_changed_after_it_was_verified_is_not_run(copy):
    loaded = load_bundle(copy)
    (copy / "iciia_t-fp32.onnx").write_bytes(b"something else")
    load_program(loaded, "head", "onnxruntime").close()  # what was verified
    with pytest.raises(BundleError, match="iciia_t-fp32.onnx was changed"):
        load_program(loaded, "head", "onnxruntime")  # which is not kept, so it is read again


def test_a_missing_program_is_refused(copy):
    (copy / "iciia_t-fp32.onnx").unlink()
    with pytest.raises(BundleError, match="cannot be read"):
        load_bundle(copy)


def test_a_manifest_of_a_newer_schema_asks_for_an_update(copy):
    edit(copy, lambda m: m.update(schema_version=SCHEMA_VERSION + 1, shape_of_things_to_come=True))
    with pytest.raises(BundleError, match=rf"schema version {SCHEMA_VERSION + 1}.*update refocus"):
        load_bundle(copy)


def test_a_manifest_of_an_older_schema_asks_for_an_export(copy):
    edit(copy, lambda m: m.update(schema_version=1))
    with pytest.raises(BundleError, match=r"schema version 1.*export it again"):
        load_bundle(copy)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema_version": "one"}', b"null"])
def test_a_manifest_that_is_none_is_refused(copy, content):
    (copy / MANIFEST).write_bytes(content)
    with pytest.raises(BundleError, match="is not a Refocus manifest"):
        load_bundle(copy)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda m: m["heads"][0].pop("labels"), "labels"),
        (lambda m: m["heads"][0].update(labels=[]), "labels are empty"),
        (lambda m: m.update(heads=[]), "heads are empty"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m["preprocessing"].update(crop=0), "crop"),
        (lambda m: m["preprocessing"].update(crop=4096), "larger than resize_shorter"),
        (lambda m: m["preprocessing"].update(std=[0, 1, 1]), "std"),
        (lambda m: m["artifacts"].pop(), "artifacts hold those of"),
        (lambda m: m["artifacts"].append(m["artifacts"][0]), "two programs of one role"),
        (lambda m: m["artifacts"][0].update(size_bytes=2**40), "at most"),
        (lambda m: m["heads"][0]["self_test"]["answers"]["eager"].pop(), "there are 8 photos"),
        (lambda m: m["heads"][0]["self_test"]["answers"].pop("eager"), "lacks the answers of eager"),
        (lambda m: m["artifacts"][0].update(sha256="0"), "sha256"),
        (lambda m: m["artifacts"][0].pop("feature_space"), "feature_space"),
        (lambda m: m["artifacts"][1].update(accepts=[]), "accepts"),
    ],
)
def test_a_manifest_with_a_wrong_field_names_it(copy, change, what):
    edit(copy, change)
    with pytest.raises(BundleError, match=f"is not valid.*{what}"):
        load_bundle(copy)


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "a/../../secret", "C:secret", "..\\secret", "", "a\0b", "a" * 300]
)
def test_a_path_that_leaves_the_folder_is_refused(copy, path):
    edit(copy, lambda m: m["artifacts"][0].update(file=path))
    with pytest.raises(BundleError, match="must stay inside"):
        load_bundle(copy)


def test_a_link_that_leaves_the_folder_is_refused(copy, tmp_path):
    path = copy / "iciia_t-fp32.onnx"
    shutil.move(path, tmp_path / "elsewhere.onnx")
    path.symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(BundleError, match="is a link"):
        load_bundle(copy)


def test_a_head_for_another_encoder_is_refused(copy):
    edit(copy, lambda m: m["artifacts"][1].update(accepts=["0" * 64]))
    with pytest.raises(BundleError, match="accepts no feature space"):
        load_bundle(copy)


@pytest.mark.parametrize(
    "change",
    [lambda m: m["heads"][0]["labels"].pop(), lambda m: m["heads"][0]["personalisation"].update(window=3),
     lambda m: m["artifacts"][1]["outputs"].pop(), lambda m: m["heads"][0]["state"].pop(), lambda m: m["preprocessing"].update(crop=31),
     lambda m: m["artifacts"][1]["inputs"][0].update(shape=[]), lambda m: m["artifacts"][0]["inputs"][0].update(shape=[]), lambda m: m["artifacts"][0]["outputs"][0].update(name="embedding")],
)  # fmt: skip
def test_labels_window_and_programs_that_do_not_fit_are_refused(copy, change):
    edit(copy, change)
    with pytest.raises(BundleError, match="does not fit"):
        load_bundle(copy)


def test_a_folder_that_is_no_bundle_is_refused(tmp_path):
    with pytest.raises(BundleError, match=r"is not a bundle.*again$"):
        load_bundle(tmp_path)
    (tmp_path / "seed-0" / "bank").mkdir(parents=True)
    (tmp_path / "seed-0" / "bank" / "manifest.json").touch()
    with pytest.raises(BundleError, match=r"or did you mean .*/seed-0/bank\?$"):
        load_bundle(tmp_path)


def test_an_artifact_that_is_not_there_lists_what_is(bundle):
    with pytest.raises(BundleError, match="it has onnxruntime:fp32"):
        bundle.artifact("head", "onnxruntime", "int8")


def test_a_runtime_nobody_knows_is_refused(copy):
    edit(copy, lambda m: m["artifacts"][0].update(runtime="abacus"))
    with pytest.raises(BundleError, match="abacus"):
        load_program(load_bundle(copy), "encoder", "abacus")


def test_a_program_for_a_newer_runtime_asks_for_an_update(copy):
    edit(copy, lambda m: m["artifacts"][0].update(min_runtime_version="99.0"))
    with pytest.raises(RuntimeUnavailable, match=r"needs onnxruntime 99.0 or newer"):
        load_program(load_bundle(copy), "encoder", "onnxruntime")


def test_a_verified_file_that_is_no_program_is_refused(copy):
    content = b"not a program"
    (copy / "iciia_t-fp32.onnx").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    edit(copy, lambda m: m["artifacts"][1].update(sha256=digest, size_bytes=len(content)))
    with pytest.raises(BundleError, match="is not a program for onnxruntime"):
        load_program(load_bundle(copy), "head", "onnxruntime")


def test_a_program_with_other_inputs_than_declared_is_refused(copy):
    def swap(manifest):
        encoder, head = (copy / a["file"] for a in manifest["artifacts"])
        content = encoder.read_bytes()
        head.write_bytes(content)
        manifest["artifacts"][1].update(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))

    edit(copy, swap)
    with pytest.raises(BundleError, match="its manifest says"):
        load_program(load_bundle(copy), "head", "onnxruntime")


def test_wrong_shapes_never_reach_a_program(bundle):
    encoder = load_program(bundle, "encoder", "onnxruntime")
    with pytest.raises(ValueError, match="photo is float32"):
        encoder.run(photo=np.zeros((1, 3, 31, 32), dtype=np.float32))
    with pytest.raises(ValueError, match="photo is float32"):
        encoder.run(photo=np.zeros((1, 3, 32, 32)))
    with pytest.raises(ValueError, match="takes"):
        encoder.run(image=np.zeros((1, 3, 32, 32), dtype=np.float32))


@pytest.mark.parametrize("version", ["1.29.0", "1.30.1", "2.0.0"])
def test_an_onnxruntime_with_telemetry_is_refused(version):
    with pytest.raises(RuntimeUnavailable, match="carries telemetry"):
        refuse_telemetry(version)


def test_the_self_test_passes_on_the_machine_that_made_it(bundle):
    (row,) = check(bundle)
    assert (row.failures, row.photos, row.same, row.expected) == ((), 8, 8, "onnxruntime:fp32")
    assert row.largest == 0
    assert row.ran_on == "CPUExecutionProvider"


def test_the_self_test_notices_another_answer(copy):
    def spoil(manifest):
        answers = manifest["heads"][0]["self_test"]["answers"]["onnxruntime:fp32"]
        answers[3]["label"] = next(label for label in manifest["heads"][0]["labels"] if label != answers[3]["label"])
        answers[3]["margin"] = 1.0
        answers[5]["logit"] += 0.5

    edit(copy, spoil)
    (row,) = check(load_bundle(copy))
    assert [line[:15] for line in row.failures] == ["self-test/03.pn", "self-test/05.pn"]


def test_a_near_tie_that_turned_is_no_failure(copy):
    def tie(manifest):
        answer = manifest["heads"][0]["self_test"]["answers"]["onnxruntime:fp32"][3]
        answer["label"] = next(label for label in manifest["heads"][0]["labels"] if label != answer["label"])
        answer["margin"] = 1e-4

    edit(copy, tie)
    (row,) = check(load_bundle(copy))
    assert (row.failures, row.same) == ((), 7)


def test_a_target_that_cannot_run_here_says_why(copy):
    """The very same file for TensorRT: it is checked, listed, and not run."""

    def add(manifest):
        for artifact in list(manifest["artifacts"]):
            manifest["artifacts"].append({**artifact, "runtime": "tensorrt", "min_runtime_version": "10.0"})

    edit(copy, add)
    ran, skipped = check(load_bundle(copy))
    assert ran.ran_on
    assert not ran.failures
    assert "pip install 'refocus-edge[tensorrt]'" in skipped.skipped


def test_manifest_bytes_are_stable(bundle):
    assert encode_manifest(bundle.manifest) == (bundle.folder / MANIFEST).read_bytes()
    assert msgspec.json.decode((bundle.folder / MANIFEST).read_bytes())["schema_version"] == SCHEMA_VERSION
