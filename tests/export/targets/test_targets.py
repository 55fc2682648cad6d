"""Every target from one capture: what is written, what it costs, and what could not be measured here."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from refocus.edge.bundle.load import load_bundle
from refocus.edge.bundle.manifest import Tensor
from refocus.edge.errors import BundleError
from refocus.edge.recognize.check import check
from refocus.edge.recognize.recognizer import Recognizer
from refocus.export.bundle.write import Export, export_bundle
from refocus.export.errors import ExportError
from refocus.export.parity.calibration import Calibration
from refocus.export.parity.limits import parse_limits
from refocus.export.parity.photos import read_streams
from refocus.export.program.capture import capture, capture_freest
from refocus.export.program.program import TorchProgram
from refocus.export.targets import Settings, find_target, parse_opset
from refocus.export.targets import onnx as onnx_target
from tests.tiny import WIDTH

# A head trained this briefly loses in 8 bits what a processor's rounding makes of it: not what these tests are about.
LOOSE = parse_limits("w8a8:cosine-distance=0.7,w8a8:typical-logits=0.3,w8a8:disagreement=0.5")
ALL = ("onnx:fp32", "onnx:fp16", "onnx:w8a8", "executorch:fp32", "executorch:w8a8", "coreml:fp16", "tensorrt:fp16",
       "tensorrt:w8a8")  # fmt: skip


@pytest.fixture(scope="module")
def ranges(tiny_run):
    return read_streams(tiny_run.calibration_photos())


@pytest.fixture(scope="module")
def everything(head, streams, ranges, tmp_path_factory):
    """One bundle with every target."""
    out = tmp_path_factory.mktemp("all") / "bundle"
    return export_bundle([head], out, Export(ALL, calibration=ranges, limits=LOOSE), streams)


def artifact(bundle, role, runtime, precision):
    return bundle.artifact(role, runtime, precision)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnxruntime", "executorch"])
def test_fp32_decides_as_pytorch_on_every_photo(everything, runtime):
    for role in ("encoder", "head"):
        parity = artifact(everything, role, runtime, "fp32").parity
        assert parity.top1_agreement == 1
        assert parity.max_abs < 1e-3
        assert parity.situations["evicted"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnxruntime", "executorch"])
def test_w8a8_is_smaller_and_states_its_photos(everything, ranges, runtime):
    for role in ("encoder", "head"):
        small, big = (artifact(everything, role, runtime, precision) for precision in ("w8a8", "fp32"))
        assert small.size_bytes < 0.5 * big.size_bytes
        assert small.parity.top1_agreement > 0.8
        assert small.parity.max_abs > big.parity.max_abs  # it is another program, not the same file
        assert small.calibration == artifact(everything, "encoder", "onnxruntime", "w8a8").calibration
        assert f"ranges of {sum(len(photos) for photos in ranges.values())} photos" in small.recipe["quantisation"]


@pytest.mark.slow
def test_fp16_keeps_norms_and_softmax_in_fp32(everything):
    parity = artifact(everything, "encoder", "onnxruntime", "fp16").parity
    assert 0 < parity.max_abs < 0.5
    model = onnx.load(everything.folder / "iciia_t-fp16.onnx")
    types = {w.name: w.data_type for w in model.graph.initializer}
    assert types["plain.weight"] == onnx.TensorProto.FLOAT16
    norms = [n for n in model.graph.node if n.op_type == "LayerNormalization"]
    assert norms
    assert all(name.endswith("_to_fp32") or "cast" in name for n in norms for name in n.input[:1])
    softmax = next(n for n in model.graph.node if n.op_type == "Softmax")
    made_by = {name: n for n in model.graph.node for name in n.output}
    assert made_by[softmax.input[0]].op_type == "Cast"


@pytest.mark.slow
def test_parts_of_an_int8_head_are_stated_in_int8(everything):
    parts = artifact(everything, "head", "onnxruntime", "w8a8").parts_bytes
    whole = artifact(everything, "head", "onnxruntime", "fp32").parts_bytes
    assert parts["iciia"] == whole["iciia"] < 0.7e6
    assert parts["plain_classifier"] == 189 * WIDTH + 4 * 189


@pytest.mark.slow
def test_features_of_int8_never_meet_the_head_of_fp32(everything):
    spaces = {a.target: a.feature_space for a in everything.manifest.artifacts if a.role == "encoder"}
    assert spaces["onnxruntime:fp32"] == spaces["executorch:fp32"]  # measured on mixed histories
    others = [space for target, space in spaces.items() if target not in ("onnxruntime:fp32", "executorch:fp32")]
    assert len(set(others)) == len(others)
    assert spaces["onnxruntime:fp32"] not in others


@pytest.mark.slow
def test_what_executorch_does_not_delegate_is_listed_with_a_reason(everything):
    placed = artifact(everything, "head", "executorch", "fp32").placement
    assert placed.how == "compiled"
    assert placed.operators["xnnpack"]["bmm"] == 2  # attention; the projections are convolutions
    assert placed.operators["xnnpack"]["convolution"] >= 5
    assert placed.fallbacks.keys() == placed.operators["portable"].keys()
    assert all(placed.fallbacks.values())


@pytest.mark.slow
def test_full_delegation_can_be_required(head, streams, tmp_path):
    with pytest.raises(ExportError, match="--require-full-delegation: encoder for executorch:fp32 leaves"):
        export_bundle([head], tmp_path / "b", Export(["executorch:fp32"], full_delegation=True), streams)
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="on a Mac it is run")
def test_core_ml_is_never_said_to_agree_where_it_was_not_run(everything):
    for role in ("encoder", "head"):
        found = artifact(everything, role, "coreml", "fp16")
        assert found.parity is None
        assert "not run here" in found.parity_note
        assert found.placement.how == "device"
    assert "coreml:fp16" not in everything.manifest.heads[0].self_test.answers
    skipped = {row.target: row.skipped for row in check(everything) if row.skipped}
    assert "macOS" in skipped["coreml:fp16"]


@pytest.mark.slow
def test_a_changed_file_inside_a_core_ml_package_is_refused(everything, tmp_path):
    folder = shutil.copytree(everything.folder, tmp_path / "b")
    weights = next((folder / "iciia_t-fp16.mlpackage").rglob("weight.bin"))
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    with pytest.raises(BundleError, match="iciia_t-fp16.mlpackage was changed"):
        load_bundle(folder)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["w8", "palette6"])
def test_core_ml_weights_are_compressed(tiny_run, head, tmp_path, precision):
    target, _ = find_target(f"coreml:{precision}")
    program, captured = capture_freest(head.program())
    sizes = {}
    for name in ("fp16", precision):
        target.write(program, captured, Settings(name), tmp_path / f"{name}.mlpackage")
        sizes[name] = sum(p.stat().st_size for p in (tmp_path / f"{name}.mlpackage").rglob("weight.bin"))
    assert sizes[precision] < 0.65 * sizes["fp16"]


@pytest.mark.slow
def test_tensorrt_gets_symmetric_explicit_ranges_and_a_command(everything):
    found = artifact(everything, "encoder", "tensorrt", "w8a8")
    assert found.recipe["trtexec"].startswith("trtexec --onnx=encoder-w8a8-symmetric.onnx")
    assert "--stronglyTyped" in found.recipe["trtexec"]
    assert "--maxShapes=photo:8x3x32x32" in found.recipe["trtexec"]
    assert "not run here" in found.parity_note
    model = onnx.load(everything.folder / found.file)
    zeros = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer if "zero_point" in w.name}
    assert zeros
    assert not any(values.any() for values in zeros.values())


@pytest.mark.slow
def test_tensorrt_fp16_is_the_file_that_was_measured_with_onnx_runtime(everything):
    shared = artifact(everything, "encoder", "tensorrt", "fp16"), artifact(everything, "encoder", "onnxruntime", "fp16")
    assert shared[0].sha256 == shared[1].sha256


@pytest.mark.slow
def test_every_runtime_recognises_the_same_photo(everything, stream):
    answers = {}
    for target in (("onnxruntime", "fp32"), ("executorch", "fp32")):
        with Recognizer(everything, None, *target) as recognizer:
            answers[target] = recognizer.recognize(stream[0]).logits
    first, second = answers.values()
    np.testing.assert_allclose(first, second, atol=1e-3)


@pytest.mark.slow
def test_exporting_again_gives_the_same_bytes_where_the_format_allows(everything, head, streams, ranges, tmp_path):
    targets = ["onnx:w8a8", "executorch:fp32"]
    again = export_bundle([head], tmp_path / "b", Export(targets, calibration=ranges, limits=LOOSE), streams)
    before = {(a.role, a.target): a.sha256 for a in everything.manifest.artifacts}
    assert all(before[a.role, a.target] == a.sha256 for a in again.manifest.artifacts)


# --- flags ----------------------------------------------------------------------------------------------------------


def test_w8a8_without_photos_or_with_photos_of_few_people_is_refused(head, streams, tmp_path):
    with pytest.raises(ExportError, match="w8a8 needs calibration photos: give --calibration"):
        export_bundle([head], tmp_path / "b", Export(["onnx:int8"]), streams)
    with pytest.raises(ExportError, match="photos of 2 people, expected at least 3"):
        export_bundle([head], tmp_path / "b", Export(["onnx:w8a8"], calibration=streams), streams)


def test_calibration_photos_are_fingerprinted_in_order(head, ranges):
    encoder = head.required("encoder").program()
    first = Calibration.collect(encoder, [head.program()], ranges)
    assert first.people == len(ranges)
    turned = dict(reversed(ranges.items()))
    assert Calibration.collect(encoder, [head.program()], turned).fingerprint != first.fingerprint


@pytest.mark.parametrize(("text", "opset"), [("18", 18), ("jetpack5", 17), ("jetpack6", 18), ("jetpack7", 20)])
def test_an_opset_is_a_number_or_a_jetsons_name(text, opset):
    assert parse_opset(text) == opset


def test_an_unknown_opset_lists_what_there_is():
    with pytest.raises(ExportError, match="--opset jetpack9: expected one of 17, 18"):
        parse_opset("jetpack9")


@pytest.mark.parametrize("opset", [pytest.param(17, marks=pytest.mark.slow), 20])
def test_the_opset_that_was_asked_for_is_the_one_written(head, tmp_path, opset):
    program = head.program()
    onnx_target.write(program, capture(program), Settings("fp32", opset), tmp_path / "head.onnx")
    assert [e.version for e in onnx.load(tmp_path / "head.onnx").opset_import if e.domain == ""] == [opset]


@pytest.mark.parametrize("mode", ["reflect", "replicate", "constant"])
def test_padding_of_its_own_is_written_in_an_older_opset(tmp_path, mode):
    class Padded(torch.nn.Module):
        def forward(self, photo):
            return torch.nn.functional.pad(photo, (1, 2, 0, 1), mode)

    program = TorchProgram("encoder", Padded(), (Tensor(name="photo", dtype="float32", shape=(1, 3, 4, 4)),),
                           (Tensor(name="feature", dtype="float32", shape=(1, 3, 5, 7)),), "0")  # fmt: skip
    path, photo = tmp_path / "p.onnx", torch.randn(1, 3, 4, 4)
    onnx_target.write(program, capture(program), Settings("fp32", 17), path)
    model = onnx.load(path)
    assert [(node.op_type, node.domain) for node in model.graph.node] == [("Pad", "")]
    assert [entry.version for entry in model.opset_import] == [17]
    (found,) = onnxruntime.InferenceSession(path).run(None, {"photo": photo.numpy()})
    np.testing.assert_array_equal(found, program.module(photo).numpy())


def test_a_network_that_wants_one_photo_at_a_time_is_captured_so():
    class OneAtATime(torch.nn.Module):
        def forward(self, photo):
            return photo * 2 if photo.shape[0] == 2 else photo * 1

    shape = ("batch", 2)
    program = TorchProgram("encoder", OneAtATime(), (Tensor(name="photo", dtype="float32", shape=shape),),
                           (Tensor(name="feature", dtype="float32", shape=shape),), "0")  # fmt: skip
    fixed, _ = capture_freest(program)
    assert fixed.inputs[0].shape == (1, 2)


def test_a_number_too_small_for_fp16_becomes_what_it_becomes_everywhere_else():
    """A person's weights are looked for byte by byte."""
    values = np.array([[0.0, 1e-9, -2e-8, 3e-8, -5e-8, 6e-8, 1.0, -65504.0]], dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        [numpy_helper.from_array(values, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    (weights,) = onnx_target.to_fp16(model).graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(weights), values.astype(np.float16))
