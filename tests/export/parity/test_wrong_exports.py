"""What goes wrong in exports elsewhere, done on purpose: each is refused, and nothing is written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from refocus.edge.recognize.head_state import WindowState
from refocus.edge.recognize.recognizer import Recognizer
from refocus.export.bundle.first_divergence import bisect_program
from refocus.export.bundle.write import Export, export_bundle
from refocus.export.errors import ParityError
from refocus.export.program.eager_recognizer import EagerRecognizer
from refocus.export.targets import onnx as onnx_target

FP32 = Export(["onnx:fp32"])


@pytest.fixture
def refused(head, streams, tmp_path):
    """Exports, and expects to be refused with nothing left behind."""

    def run(match: str) -> None:
        with pytest.raises(ParityError, match=match):
            export_bundle([head], tmp_path / "bundle", FP32, streams)
        assert not any(tmp_path.iterdir())

    return run


def changed(monkeypatch, role, change):
    """The ONNX file of one program is changed after it was made."""
    convert = onnx_target._converted

    def converted(program, captured, settings):
        model = convert(program, captured, settings)
        if program.role == role:
            change(model)
        return model

    monkeypatch.setattr(onnx_target, "_converted", converted)
    onnx_target._LAST.clear()


@pytest.mark.slow
def test_a_transposed_photo_is_refused(refused, monkeypatch):
    """Square photos: no shape tells, and most photos still look like something."""

    def transpose(model):
        for node in model.graph.node:
            node.input[:] = ["turned" if name == "photo" else name for name in node.input]
        model.graph.node.insert(0, onnx.helper.make_node("Transpose", ["photo"], ["turned"], perm=[0, 1, 3, 2]))

    changed(monkeypatch, "encoder", transpose)
    refused("parity of the encoder for onnxruntime:fp32 failed")


@pytest.mark.slow
def test_a_photo_that_is_normalised_twice_is_refused(refused, monkeypatch):
    def normalise(model):
        for node in model.graph.node:
            node.input[:] = ["again" if name == "photo" else name for name in node.input]
        half = onnx.numpy_helper.from_array(np.array(0.5, dtype=np.float32), "half")
        model.graph.initializer.append(half)
        for node in (onnx.helper.make_node("Div", ["centred", "half"], ["again"]),
                     onnx.helper.make_node("Sub", ["photo", "half"], ["centred"])):  # fmt: skip
            model.graph.node.insert(0, node)

    changed(monkeypatch, "encoder", normalise)
    refused("parity of the encoder for onnxruntime:fp32 failed")


def one_weight(model):
    found = [w for w in model.graph.initializer if w.name.endswith("iciia.last.norm_attention.weight")]
    if not found:
        return  # a program that was cut before this layer
    weight = found[0]
    values = onnx.numpy_helper.to_array(weight).copy()
    values[5] *= 1.2
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))


def test_one_perturbed_weight_is_refused(refused, monkeypatch):
    changed(monkeypatch, "head", one_weight)
    refused("parity of the iciia_t head for onnxruntime:fp32 failed")


@pytest.mark.slow
def test_bisecting_names_the_layer_with_the_perturbed_weight(head, streams, monkeypatch):
    changed(monkeypatch, "head", one_weight)
    encoder, program = head.required("encoder").program(), head.program()
    person, given = EagerRecognizer(encoder, program), []
    for path in next(iter(streams.values()))[:6]:
        given.append(person.recognize(path.read_bytes()).given)
    found = bisect_program(program, "onnx:fp32", given, 18)
    assert "layer_norm" in found.layer
    assert "iciia.last" in found.layer
    assert found.difference > found.tolerance
    assert found.tried == 2


@pytest.mark.slow
def test_bisecting_a_right_export_names_nothing(head, streams):
    program = head.program()
    given = [EagerRecognizer(head.required("encoder").program(), program).recognize(
        next(iter(streams.values()))[0].read_bytes()).given]  # fmt: skip
    found = bisect_program(program, "onnx:fp32", given, 18)
    assert found.layer == ""
    assert found.tried == 1


@pytest.mark.slow
def test_a_stale_cache_is_refused(refused, monkeypatch):
    """Rows of state that were kept for other photos are handed to the head."""
    row = WindowState._row
    monkeypatch.setattr(WindowState, "_row", lambda self, *known: row(self, *known) * 1.5)
    refused("parity of the iciia_t head for onnxruntime:fp32 failed")


@pytest.mark.slow
def test_a_profile_that_was_not_switched_is_refused(refused, monkeypatch):
    """One person's photos end up in the other's history."""
    switch = Recognizer.switch

    def stays(self, profile):
        if self.history is None:
            switch(self, profile)

    monkeypatch.setattr(Recognizer, "switch", stays)
    refused("its history is not this person's")


@pytest.mark.slow
def test_a_mismatch_is_written_when_asked_for_and_marked(head, streams, tmp_path, monkeypatch):
    changed(monkeypatch, "head", one_weight)
    export = Export(["onnx:fp32"], allow_mismatch=True)
    bundle = export_bundle([head], tmp_path / "bundle", export, streams)
    assert [a.parity.passed for a in bundle.manifest.artifacts] == [True, False]
