"""The self-test of a release judges what may serve on this device: no program less, and none of another device."""

from __future__ import annotations

import json
import platform
import shutil

import pytest

from refocus.edge.bundle.load import MANIFEST, load_bundle
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.files import file_sha256
from refocus.edge.recognize import self_test as tests_of_itself
from refocus.edge.recognize.check import check
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.runtimes import base
from refocus.edge.update import trial
from refocus.edge.update.canary import self_test
from refocus.edge.update.loaded_releases import Settings

DEVICE = "onnxruntime:fp32"
BROKEN = b"no program"


@pytest.fixture(scope="module")
def native(tiny_run, tmp_path_factory):
    """A bundle for two encoders whose features differ, with a native head behind either."""
    from refocus.export.bundle.write import Export, export_bundle
    from refocus.export.parity.photos import read_streams
    from refocus.export.program.checkpoint import load_checkpoint

    pytest.importorskip("refocus.edge.runtimes.native", exc_type=RuntimeUnavailable)
    people = list(read_streams(tiny_run.parity_photos()).items())[:2]
    targets = Export(["onnx:fp32", "onnx:fp16", "native:w16"])
    heads = [load_checkpoint(tiny_run.head_path(0, "iciia_t"))]
    streams = {name: photos[:12] for name, photos in people}
    return export_bundle(heads, tmp_path_factory.mktemp("native") / "bundle", targets, streams)


def perturbed(bundle, folder, *targets):
    """The bundle with other expected answers of some targets."""
    shutil.copytree(bundle.folder, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    for target in targets:
        manifest["heads"][0]["self_test"]["answers"][target][2]["logit"] += 9
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return load_bundle(folder)


@pytest.mark.slow
def test_a_release_whose_native_head_answers_otherwise_is_refused(native, tmp_path):
    assert self_test(native, DEVICE) == ""
    wrong = perturbed(native, tmp_path / "wrong", "native:w16")
    assert self_test(wrong, DEVICE).startswith("iciia_t native:w16: self-test/02")


def test_a_release_is_judged_on_the_threads_that_the_device_gives_it(bundle, tmp_path, threads_asked):
    """ExecuTorch would keep the first number for all of the process, which may be the one that serves."""
    found = trial.run(trial.Trial(bundle.folder, None, Settings(tmp_path, threads=2, isolated=False)))
    assert (found.why, found.shortage) == ("", "")
    assert {*threads_asked} == {2}


@pytest.mark.slow
def test_a_native_head_that_cannot_run_here_refuses_no_release(native, tmp_path, monkeypatch):
    wrong = perturbed(native, tmp_path / "wrong", "native:w16")
    monkeypatch.setitem(base.RUNTIMES, "native", ("refocus.edge.runtimes.none", "cpu"))
    assert self_test(wrong, DEVICE) == ""


@pytest.mark.slow
def test_a_native_head_is_judged_behind_the_encoder_of_this_device(native, tmp_path):
    """Its own answers were expected behind the first encoder, whose features another one does not give."""
    stock, head = check(native, encoder="onnxruntime:fp16")
    assert (stock.target, head.target) == ("onnxruntime:fp16", "native:w16")
    assert stock.expected == head.expected == "onnxruntime:fp16"
    assert head.failures == ()
    assert self_test(perturbed(native, tmp_path / "first", DEVICE, "native:w16"), "onnxruntime:fp16") == ""
    wrong = perturbed(native, tmp_path / "own", "onnxruntime:fp16")
    assert "native:w16: self-test/02" in self_test(wrong, "onnxruntime:fp16")


@pytest.mark.slow
def test_a_machine_that_tests_before_its_first_answer_expects_what_its_own_encoder_gives(native, tmp_path, monkeypatch):
    """As arm64 does: with answers of the first encoder a sound native head behind another one would be refused."""
    monkeypatch.setattr(tests_of_itself, "ARM64", {platform.machine().lower()})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Recognizer(perturbed(native, tmp_path / "first", DEVICE, "native:w16"), precision="fp16") as device:
        assert device.head.artifact.runtime == "native"
    with pytest.raises(BundleError, match="fails its self-test on this processor with native"):
        Recognizer(perturbed(native, tmp_path / "native", "native:w16"))


def with_broken_target(bundle, folder):
    """The bundle, and programs for one more target that its runtime cannot load."""
    shutil.copytree(bundle.folder, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / "broken.onnx").write_bytes(BROKEN)
    about = {"precision": "fp16", "file": "broken.onnx", "sha256": file_sha256(folder / "broken.onnx"),
             "size_bytes": len(BROKEN)}  # fmt: skip
    manifest["artifacts"] += [{**artifact, **about} for artifact in manifest["artifacts"]]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return load_bundle(folder)


def test_a_target_of_other_devices_that_does_not_load_refuses_no_release(fleet, other_head, tmp_path):
    broken = with_broken_target(other_head, tmp_path / "broken")
    with pytest.raises(BundleError, match="broken.onnx"):
        check(broken)
    with pytest.raises(BundleError, match="broken.onnx"):
        self_test(broken, "onnxruntime:fp16")
    fleet.publish(broken)
    device = fleet.device()
    device.look()
    record = device.run()
    assert (record.active.number, record.refused) == (2, {})


def test_a_target_that_a_bundle_has_not_is_named(other_head):
    assert self_test(other_head, "coreml:fp16") == "it has no programs for coreml:fp16"
