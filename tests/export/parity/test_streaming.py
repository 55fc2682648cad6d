"""A causal head in its streaming form, through every runtime that runs here and the device's own code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.iciia.block import IciiaConfig
from refocus.cloud_train.methods.iciia.train import Devices, IciiaRecipe
from refocus.cloud_train.methods.iciia.train_gate import GateRecipe
from refocus.edge.bundle.load import load_bundle
from refocus.edge.errors import BundleError, RefocusError
from refocus.edge.recognize.album import answer_album, find_photos
from refocus.edge.recognize.check import check
from refocus.edge.recognize.head_state import StreamState
from refocus.edge.recognize.recognizer import Recognizer
from refocus.export.bundle.write import Export, export_bundle
from refocus.export.errors import ParityError
from refocus.export.parity.parity import Reference, compare
from refocus.export.parity.photos import read_streams
from refocus.export.program.checkpoint import load_checkpoint
from refocus.export.program.eager_recognizer import EagerRecognizer
from tests.tiny import WIDTH

WINDOW = 5


@pytest.fixture(scope="module")
def causal(tiny_run):
    fabric = Devices(accelerator="cpu").launch()
    recipe = IciiaRecipe(learning_rate=0.1, momentum=0.9, windows_per_step=8, epochs=2)
    config = IciiaConfig(width=WIDTH, layers=2, window=WINDOW, attention="causal", classifier="shared")
    head = tiny_run.train_head(
        "streaming", config, recipe, tiny_run.prepare(fabric), fabric, GateRecipe(windows=1000, fewest=0)
    )
    yield head
    for file in head.path.parent.glob("streaming.*"):  # the run is everybody's
        file.unlink()


@pytest.fixture(scope="module")
def streaming(causal, streams, tmp_path_factory):
    return export_bundle([causal], tmp_path_factory.mktemp("streaming") / "bundle", Export(["onnx:fp32"]), streams)


@pytest.fixture(scope="module")
def features(streaming, stream):
    with Recognizer(streaming, threads=1) as recognizer:
        return np.stack([recognizer.encode(photo) for photo in stream[:24]])


def test_a_stream_through_the_device_equals_the_pass_over_the_whole_stream(streaming, causal, streams):
    assert_equal_on_streams(streaming, "onnxruntime", causal, streams)


@pytest.mark.slow
def test_a_stream_through_executorch_equals_the_pass_over_the_whole_stream(causal, streams, tmp_path):
    bundle = export_bundle([causal], tmp_path / "b", Export(["onnx:fp32", "executorch:fp32"]), streams)
    assert_equal_on_streams(bundle, "executorch", causal, streams)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_stream_on_a_gpu_is_not_answered_from_the_rings_of_its_first_photo(streaming, features):
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this build of ONNX Runtime has no CUDA")
    with Recognizer(streaming, threads=1) as cpu, Recognizer(streaming, threads=1, provider="cuda") as gpu:
        assert "CUDAExecutionProvider" in gpu.head.ran_on()
        for found, wanted in zip(gpu.replay(features), cpu.replay(features), strict=True):
            np.testing.assert_allclose(found.logits, wanted.logits, atol=2e-2 * np.abs(wanted.logits).max())
            np.testing.assert_allclose(found.attention, wanted.attention, atol=2e-2)


def assert_equal_on_streams(bundle, runtime, causal, streams):
    reference = Reference(causal.required("encoder").program(), causal.program(), streams)
    deviation = compare(bundle, [(runtime, "fp32")], reference)
    assert deviation.same_top1.all()
    assert 0 < deviation.values["head"].max() < 1e-3
    assert deviation.situations.keys() == {"empty", "growing", "full", "evicted", "switched", "restarted"}
    assert not any(row.failures for row in check(bundle))


def test_one_layer_of_full_attention_streams_as_it_was_trained(bundle, head, streams, stream, tmp_path):
    streaming = export_bundle([load_checkpoint(head.path, "streaming")], tmp_path / "s", Export(["onnx:fp32"]), streams)
    assert [b.manifest.head().personalisation.form for b in (bundle, streaming)] == ["window", "streaming"]
    with Recognizer(bundle, tmp_path / "p", threads=1) as one, Recognizer(streaming, tmp_path / "q", threads=1) as two:
        for photo in stream:
            wanted, found = one.recognize(photo), two.recognize(photo)
            np.testing.assert_allclose(found.logits, wanted.logits, atol=1e-4)
            np.testing.assert_allclose(found.attention, wanted.attention, atol=1e-5)


def test_a_form_that_a_head_has_not_is_refused(causal, head, streams, tmp_path):
    with pytest.raises(UsageError, match="--form ring: expected window or streaming"):
        load_checkpoint(head.path, "ring").program()
    window = load_checkpoint(causal.path, "window").program()
    assert window.personalisation["form"] == "window"


@pytest.mark.slow
def test_an_int8_streaming_head_keeps_its_rings_in_floating_point(causal, streams, tiny_run, tmp_path):
    ranges = read_streams(tiny_run.calibration_photos())
    # So small a network may lose decisions to int8, and it is not what is asked here.
    export = Export(["onnx:int8"], calibration=ranges, allow_mismatch=True)
    bundle = export_bundle([causal], tmp_path / "b", export, streams)
    (head,) = (a for a in bundle.manifest.artifacts if a.role == "head")
    rings = {state.name for state in bundle.manifest.head().state}
    assert {tensor.dtype for tensor in head.inputs if tensor.name in rings} == {"float32"}
    assert head.parity.cosine > 0.9


def test_the_manifest_says_what_is_kept(streaming):
    head = streaming.manifest.head()
    assert (head.personalisation.form, head.personalisation.window) == ("streaming", 2 * (WINDOW - 1))
    assert {s.name: (s.slots, s.update) for s in head.state} == {
        **{f"{kind}_{layer}": (WINDOW - 1, "ring") for kind in ("keys", "values") for layer in range(2)},
        "traits": (8, "ring"),
    }  # fmt: skip


@pytest.mark.parametrize("length", [0, 1, 3, 4, 8, 9, 23])
def test_a_replay_of_the_newest_photos_gives_the_answer_of_the_whole_stream(streaming, features, length):
    """After a restart, an erase or a new head the rings are lost; the newest window of features is enough."""
    with Recognizer(streaming, threads=1) as recognizer:
        *_, streamed = recognizer.replay(features[: length + 1])
        again = recognizer.answer(features[length], features[:length])
    np.testing.assert_allclose(again.logits, streamed.logits, atol=1e-5)
    np.testing.assert_allclose(again.attention, streamed.attention, atol=1e-5)


def test_another_process_writing_the_profile_is_noticed(streaming, stream, tmp_path):
    with (
        Recognizer(streaming, tmp_path / "p", threads=1) as one,
        Recognizer(streaming, tmp_path / "p", threads=1) as two,
    ):
        for number, photo in enumerate(stream[:12]):
            answer = (one, two)[number % 2].recognize(photo)
            assert len(answer.attention) == 1 + min(number, one.window)
        with Recognizer(streaming, tmp_path / "alone", threads=1) as alone:
            *_, wanted = [alone.recognize(photo) for photo in stream[:12]]
    np.testing.assert_allclose(answer.logits, wanted.logits, atol=1e-5)


def test_a_stored_photo_meets_the_photos_before_it_and_the_stream_goes_on(streaming, stream, tmp_path):
    with Recognizer(streaming, tmp_path / "p", threads=1) as recognizer:
        first = [recognizer.recognize(photo) for photo in stream[:10]]
        again = recognizer.recognize(stream[6])
        np.testing.assert_allclose(again.logits, first[6].logits, atol=1e-5)
        assert again.history_photos == first[6].history_photos
        after = recognizer.recognize(stream[10])
    with Recognizer(streaming, tmp_path / "q", threads=1) as recognizer:
        *_, wanted = [recognizer.recognize(photo) for photo in stream[:11]]
    np.testing.assert_allclose(after.logits, wanted.logits, atol=1e-5)


def test_a_streaming_head_cannot_look_for_similar_photos(streaming, tmp_path):
    with pytest.raises(BundleError, match="sees the newest photos alone; for --memory similar"):
        Recognizer(streaming, tmp_path / "p", memory="similar")


def test_an_album_is_answered_as_photo_by_photo_with_its_copies_and_after_a_profile(streaming, stream, tmp_path):
    folder, out = tmp_path / "photos", tmp_path / "results.csv"
    folder.mkdir()
    for number, content in enumerate([*stream[10:25], stream[13]]):  # the last is a copy
        (folder / f"{number:02d}.png").write_bytes(content)
    files = find_photos([folder])
    with Recognizer(streaming, tmp_path / "p", threads=1) as recognizer:
        for content in stream[:10]:
            recognizer.recognize(content)
        stored = recognizer.history.entries()
        rows = answer_album(recognizer, files, out, "name", batch=4).rows
        assert recognizer.history.entries() == stored
        for file, row in zip(files, rows, strict=True):
            answer = recognizer.recognize(file.read_bytes(), str(file))
            assert [shown.label for shown in row.answer] == list(answer.labels[:3])
            np.testing.assert_allclose([shown.probability for shown in row.answer], answer.probabilities[:3], atol=1e-4)
            heaviest = np.sort(answer.attention[:-1])[:-6:-1]
            np.testing.assert_allclose([weight for _, weight in row.rests_on], heaviest, atol=1e-4)
        assert rows[-1].answer == rows[3].answer
        with pytest.raises(RefocusError, match="--memory similar: the head streaming is a streaming one"):
            answer_album(recognizer, files, out, memory="similar")


def test_an_erased_history_leaves_no_trace_in_the_rings(streaming, stream, tmp_path):
    with Recognizer(streaming, tmp_path / "p", threads=1) as recognizer:
        first = recognizer.recognize(stream[0], remember=False)
        for photo in stream[1:10]:
            recognizer.recognize(photo)
        recognizer.history.erase()
        after = recognizer.recognize(stream[0])
    np.testing.assert_array_equal(after.calibrated_logits, first.calibrated_logits)
    assert len(after.attention) == 1


def test_attention_names_the_photo_it_was_paid_to(streaming, stream, tmp_path, causal):
    eager = EagerRecognizer(causal.required("encoder").program(), causal.program().definition)
    with Recognizer(streaming, tmp_path / "p", threads=1) as recognizer:
        for photo in stream[:12]:
            np.testing.assert_allclose(
                recognizer.recognize(photo).attention, eager.recognize(photo).outputs["attention"], atol=1e-4
            )


def test_a_ring_written_one_slot_off_is_refused(causal, streams, tmp_path, monkeypatch):
    take_in = StreamState.take_in

    def misses(self, feature, photo):
        take_in(self, feature, photo)
        self._rings[-2][0][:] = np.roll(self._rings[-2][0], 1, axis=-1)

    monkeypatch.setattr(StreamState, "take_in", misses)
    with pytest.raises(ParityError, match="for onnxruntime:fp32 failed"):
        export_bundle([causal], tmp_path / "bundle", Export(["onnx:fp32"]), streams)


def test_a_state_that_does_not_fit_its_program_is_refused(streaming, tmp_path):
    import json
    import shutil

    folder = tmp_path / "bundle"
    shutil.copytree(streaming.folder, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["heads"][0]["state"][0]["axis"] = 2
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="does not fit"):
        load_bundle(folder)


def test_the_program_has_few_operators(streaming):
    """Each costs about a microsecond: what falls back to more of them costs the promise of the streaming form."""
    import onnx

    nodes = onnx.load(streaming.folder / streaming.artifact("head", "onnxruntime").file).graph.node
    assert len(nodes) < 190
