"""The native head behind ONNX Runtime's encoder: exported, compared with PyTorch, chosen, passed over."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from refocus.benchmarks.measure.accuracy import evaluate, read_labelled, runnable, summarise
from refocus.edge.bundle.load import MANIFEST, load_bundle
from refocus.edge.bundle.tensor_file import decode_tensors
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.files import file_sha256
from refocus.edge.recognize.check import check
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.recognize.serving_head import serving_lines
from refocus.edge.runtimes import base
from refocus.export.bundle.write import Export, export_bundle
from refocus.export.errors import ExportError
from refocus.export.parity.parity import Reference, compare
from refocus.export.program.checkpoint import load_checkpoint

pytest.importorskip("refocus.edge.runtimes.native", exc_type=RuntimeUnavailable)
pytestmark = pytest.mark.slow
ENCODER = ("onnxruntime", "fp32")


@pytest.fixture(scope="module", params=["window", "streaming"])
def checkpoint(request, head):
    return load_checkpoint(head.path, request.param)


@pytest.fixture(scope="module")
def native(checkpoint, streams, tmp_path_factory):
    targets = ["onnx:fp32", "native:w16", "native:fp32", "native:w8"]
    return export_bundle([checkpoint], tmp_path_factory.mktemp("native") / "bundle", Export(targets), streams)


def test_the_native_head_agrees_with_pytorch_on_growing_full_evicted_and_switched_histories(
    native, checkpoint, streams
):
    reference = Reference(checkpoint.required("encoder").program(), checkpoint.program(), streams)
    deviation = compare(native, [(*ENCODER, "native:fp32")], reference)
    assert deviation.situations.keys() == {"empty", "growing", "full", "evicted", "switched", "restarted"}
    assert 0 < deviation.values["head"].max() < 1e-4
    parity = {a.target: a.parity for a in native.manifest.artifacts if a.role == "head"}
    assert parity.keys() == {"onnxruntime:fp32", "native:fp32", "native:w16", "native:w8"}
    assert parity["native:fp32"].max_abs < 1e-4
    assert parity["native:fp32"].max_abs < parity["native:w16"].max_abs < 0.05
    assert all(found.passed and found.top1_agreement > 0.9 for found in parity.values())
    rows = check(native)
    assert {row.target for row in rows} == parity.keys()
    assert not any(row.failures or row.skipped for row in rows)


def test_native_heads_are_judged_beside_the_head_of_the_encoder_s_own_target(native, stream, tmp_path, monkeypatch):
    labels = native.manifest.head().labels
    for number, photo in enumerate(stream[:4]):
        (tmp_path / f"{number}.png").write_bytes(photo)
    lines = [f"{number}.png,{labels[number]},{number % 2}" for number in range(4)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label,client", *lines]))
    photos = read_labelled(tmp_path, "client", "label", "", 64)
    can, cannot = runnable(native)
    assert [own for _, own in can] == ["onnxruntime:fp32", "native:w16", "native:fp32", "native:w8"]
    assert not cannot
    encoded = []
    feature_of = Recognizer.feature_of
    monkeypatch.setattr(Recognizer, "feature_of", lambda *given: encoded.append(1) or feature_of(*given))
    targets, heads = zip(*can, strict=True)
    document = summarise(evaluate(native, photos, targets, heads=heads), photos)
    assert len(encoded) == 4, "a photo was encoded again for another head"
    assert [row["target"] for row in document["rows"]] == [*heads]
    assert all("change" in row for row in document["rows"][1:])


def test_the_first_native_head_serves_unless_another_is_asked_for(native, stream):
    answers = {}
    for asked, target in (("", "native:w16"), ("native:w8", "native:w8"), ("onnxruntime:fp32", "onnxruntime:fp32")):
        with Recognizer.open(native.folder, threads=1, head_target=asked) as recognizer:
            assert recognizer.head.artifact.target == target
            assert recognizer.head_passed_over == ""
            answers[target] = recognizer.recognize(stream[0]).logits
    np.testing.assert_allclose(answers["native:w16"], answers["onnxruntime:fp32"], atol=0.05)
    assert not np.array_equal(answers["native:w16"], answers["onnxruntime:fp32"])
    (line,) = serving_lines(native)
    assert "native:w16 serves, on " in line
    with pytest.raises(BundleError, match="has no head coreml:fp16 behind the encoder onnxruntime:fp32; it has native"):
        Recognizer.open(native.folder, threads=1, head_target="coreml:fp16")


def test_where_the_library_is_missing_the_stock_head_serves_and_inspect_says_why(native, stream, monkeypatch):
    monkeypatch.setitem(base.RUNTIMES, "native", ("refocus.edge.runtimes.none", "cpu"))
    with Recognizer.open(native.folder, threads=1) as recognizer:
        assert recognizer.head.artifact.target == "onnxruntime:fp32"
        assert "native:w16 does not serve: the runtime 'native' is not installed" in recognizer.head_passed_over
        recognizer.recognize(stream[0])
    (line,) = serving_lines(native)
    assert "onnxruntime:fp32 serves" in line
    assert "native:w16 does not serve" in line
    with pytest.raises(RuntimeUnavailable, match="not installed"):
        Recognizer.open(native.folder, threads=1, head_target="native:w16")


def test_a_native_file_that_does_not_fit_is_passed_over_and_one_that_changed_is_refused(native, tmp_path):
    folder = shutil.copytree(native.folder, tmp_path / "bundle")
    manifest = json.loads((folder / MANIFEST).read_text())
    heads = {a["precision"]: a for a in manifest["artifacts"] if a["runtime"] == "native"}
    other = folder / heads["fp32"]["file"]
    heads["w16"] |= {"file": other.name, "sha256": file_sha256(other), "size_bytes": other.stat().st_size - 1}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BundleError):
        Recognizer.open(folder, threads=1)
    heads["w16"]["size_bytes"] += 1
    for artifact in heads.values():
        artifact["min_runtime_version"] = "2"
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with Recognizer(load_bundle(folder), threads=1) as recognizer:
        assert recognizer.head.artifact.runtime == "onnxruntime"
        assert "native:w8 does not serve" in recognizer.head_passed_over
        assert "needs native 2 or newer, found 1" in recognizer.head_passed_over


def test_native_alone_is_refused_because_nothing_would_encode(head, streams, tmp_path):
    with pytest.raises(ExportError, match="--to native:fp32: writes heads alone; name a target for the encoder too"):
        export_bundle([head], tmp_path / "b", Export(["native:fp32"]), streams)


def test_the_reader_in_cpp_reads_the_numbers_of_a_native_head_and_refuses_a_changed_one(
    native, bundle_reader, tmp_path
):
    artifact = next(artifact for artifact in native.manifest.artifacts if artifact.target == "native:w16")
    tensors = decode_tensors(memoryview((native.folder / artifact.file).read_bytes()), artifact.file)
    done = bundle_reader(native.folder)
    assert done.returncode == 0, done.stderr
    listed = done.stdout.decode().splitlines()
    config = tensors["config"].tolist()
    assert any(line.startswith(f"  config version=1 form={config[1]} width={config[2]} ") for line in listed)
    for name, array in tensors.items():
        done = bundle_reader(native.folder, "--numbers", artifact.file, name)
        np.testing.assert_array_equal(np.array(done.stdout.split(), array.dtype), array.ravel())
    shutil.copytree(native.folder, tmp_path / "changed")
    content = bytearray((native.folder / artifact.file).read_bytes())
    content[-100] ^= 1
    (tmp_path / "changed" / artifact.file).write_bytes(content)
    done = bundle_reader(tmp_path / "changed")
    assert done.returncode == 1
    assert f"{artifact.file}: was changed" in done.stderr.decode()
