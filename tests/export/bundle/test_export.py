"""Export fails closed: no parity, no bundle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
import torch

from refocus.edge.bundle.load import load_bundle
from refocus.edge.bundle.manifest import Tensor
from refocus.edge.errors import BundleError
from refocus.export.bundle.write import Export, export_bundle
from refocus.export.errors import ExportError, ParityError
from refocus.export.parity.parity import Reference, compare
from refocus.export.parity.photos import read_streams
from refocus.export.program.capture import capture
from refocus.export.program.checkpoint import Card, Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from refocus.export.program.program import TorchProgram
from refocus.export.targets import Settings, find_target
from refocus.export.targets import onnx as onnx_target
from tests.tiny import ARGUMENTS, WIDTH

FP32 = Export(["onnx:fp32"])


def test_the_manifest_states_what_was_measured(bundle):
    for artifact in bundle.manifest.artifacts:
        assert artifact.parity.photos == 4 * 32
        assert artifact.parity.profiles == 4
        assert set(artifact.parity.situations) == {"empty", "growing", "full", "evicted", "switched", "restarted"}
        assert artifact.parity.cosine > 0.9999
        assert artifact.parity.longest_history == 15
        assert 0 < artifact.parity.max_abs < artifact.parity.tolerance
        assert artifact.placement.operators["CPUExecutionProvider"]
        assert not artifact.placement.fallbacks


def test_parts_of_the_head_are_stated_apart(bundle):
    parts = next(a for a in bundle.manifest.artifacts if a.role == "head").parts_bytes
    assert parts["iciia"] == 4 * (6 * WIDTH * WIDTH // 256 + 10 * WIDTH)
    assert parts["plain_classifier"] == parts["calibrated_classifier"] == 4 * (WIDTH + 1) * 189


def test_a_program_that_computes_something_else_is_not_shipped(head, streams, tmp_path, monkeypatch):
    """The exported graph gets weights that differ in the third digit: every tool would call that a success."""
    write = onnx_target.write

    def drifting(program, captured, settings, path):
        if program.role == "head":
            name = "classifier.weight"
            captured.state_dict[name] = torch.nn.Parameter(captured.state_dict[name].detach() * 1.002)
        return write(program, captured, settings, path)

    monkeypatch.setattr(onnx_target, "write", drifting)
    with pytest.raises(
        ParityError, match="parity of the iciia_t head for onnxruntime:fp32 failed on 40 photos of 2 people"
    ):
        export_bundle([head], tmp_path / "bundle", FP32, streams)
    assert not any(tmp_path.iterdir())


def test_a_failed_export_leaves_the_previous_bundle(bundle, head, streams, tmp_path, monkeypatch):
    shutil.copytree(bundle.folder, tmp_path / "bundle")
    monkeypatch.setattr("refocus.export.bundle.proof.evaluate", lambda *a: (_ for _ in ()).throw(ParityError("no")))
    with pytest.raises(ParityError):
        export_bundle([head], tmp_path / "bundle", FP32, streams)
    assert load_bundle(tmp_path / "bundle").manifest == bundle.manifest


def test_a_folder_that_is_no_bundle_is_not_replaced(head, streams, tmp_path):
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(BundleError, match="it is not a bundle"):
        export_bundle([head], tmp_path, FP32, streams)
    assert (tmp_path / "diary.txt").exists()


def test_edge_equals_torch_photo_by_photo(bundle, head, streams):
    reference = Reference(head.required("encoder").program(), head.program(), streams)
    deviation = compare(bundle, [("onnxruntime", "fp32")], reference)
    assert deviation.same_top1.all()
    assert deviation.values["head"].max() < 1e-3
    assert deviation.longest_history == 15
    assert deviation.values["encoder"].max() > 0  # two implementations were compared, not one with itself


@pytest.mark.slow
def test_exporting_twice_gives_the_same_bytes_in_every_file(bundle, head, streams, tmp_path):
    first, again = (export_bundle([head], tmp_path / name, FP32, streams) for name in "ab")
    assert [a.sha256 for a in again.manifest.artifacts] == [a.sha256 for a in bundle.manifest.artifacts]
    files = [path.relative_to(first.folder) for path in first.folder.rglob("*") if path.is_file()]
    assert sorted(files) == sorted(path.relative_to(again.folder) for path in again.folder.rglob("*") if path.is_file())
    assert [
        str(file) for file in files if (first.folder / file).read_bytes() != (again.folder / file).read_bytes()
    ] == []


@pytest.mark.parametrize("name", ["tflite", "onnx:int3", ""])
def test_an_unknown_target_is_named(name):
    with pytest.raises(ExportError, match=f"--to {name}"):
        find_target(name)


def test_parity_without_photos_or_without_histories_is_refused(tmp_path):
    with pytest.raises(ExportError, match="one folder of photos per person"):
        read_streams(tmp_path)
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "1.png").write_bytes(b"")
    with pytest.raises(ExportError, match="parity needs histories"):
        read_streams(tmp_path)


def test_the_same_photo_twice_at_the_start_of_a_stream_is_no_parity_failure(head, streams, tmp_path):
    first, second = streams.values()
    twice = {"anna": [first[0], first[0], *first[1:9]], "ben": second[:8]}
    made = export_bundle([head], tmp_path / "bundle", FP32, twice)
    assert len({photo.sha256 for photo in made.manifest.self_test_photos}) == 8


def test_the_same_weights_in_another_architecture_are_another_feature_space(head):
    encoder = head.required("encoder")
    card = msgspec.structs.replace(
        encoder.card, config={**encoder.card.config, "arguments": {**ARGUMENTS, "output_stride": 16}}
    )
    other = Checkpoint(encoder.path, card, encoder.weights)
    assert other.program().identity != encoder.program().identity


def test_an_encoder_is_not_taken_for_a_head(refocus, tiny_run, tmp_path):
    done = refocus("export", tiny_run.encoder_path, "--out", tmp_path / "b")
    assert done.returncode == 1
    assert "is not a head" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_operator_without_an_onnx_form_is_one_clear_error(tmp_path):
    class Strange(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x).real

    shape = (3, 3)
    program = TorchProgram("encoder", Strange(), (Tensor(name="photo", dtype="float32", shape=shape),),
                           (Tensor(name="feature", dtype="float32", shape=(3,)),), "0")  # fmt: skip
    with pytest.raises(ExportError, match="cannot be written as ONNX opset 18: .*linalg_eig'") as error:
        onnx_target.write(program, capture(program), Settings("fp32"), tmp_path / "x.onnx")
    assert str(error.value).isprintable()  # no colours of a terminal


def test_a_program_that_cannot_be_captured_is_one_clear_error():
    class Branches(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    program = TorchProgram("encoder", Branches(), (Tensor(name="photo", dtype="float32", shape=(2,)),), (), "0")
    with pytest.raises(ExportError, match="torch.export cannot capture the encoder"):
        capture(program)


# --- checkpoints -----------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    card = Card(builder="iciia_head", config={}, labels=("a",))
    return save_checkpoint(tmp_path / "c.safetensors", {"w": torch.arange(4.0)}, card)


def test_a_checkpoint_comes_back(checkpoint):
    loaded = load_checkpoint(checkpoint.path)
    assert loaded.card == checkpoint.card
    assert torch.equal(loaded.weights["w"], torch.arange(4.0))


def test_weights_and_card_that_do_not_belong_together_are_refused(checkpoint):
    content = bytearray(checkpoint.path.read_bytes())
    content[-1] ^= 1
    checkpoint.path.write_bytes(content)
    with pytest.raises(CheckpointError, match="do not belong together"):
        load_checkpoint(checkpoint.path)


def test_a_pickle_is_never_opened(tmp_path):
    torch.save({"w": torch.ones(1)}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=r"expected a \.safetensors"):
        load_checkpoint(tmp_path / "c.pt")


def test_a_card_with_unknown_fields_is_refused(checkpoint):
    path = checkpoint.path.with_suffix(".json")
    path.write_text(json.dumps({**msgspec.to_builtins(checkpoint.card), "evil": 1}))
    with pytest.raises(CheckpointError, match="is not a checkpoint card"):
        load_checkpoint(checkpoint.path)


def test_a_missing_card_is_named(checkpoint):
    checkpoint.path.with_suffix(".json").unlink()
    with pytest.raises(CheckpointError, match=r"c\.safetensors has no card c\.json beside it"):
        load_checkpoint(checkpoint.path)


def test_a_builder_nobody_installed_is_named(tmp_path):
    saved = save_checkpoint(tmp_path / "c.safetensors", {}, Card(builder="unheard_of", config={}, labels=("a",)))
    with pytest.raises(CheckpointError, match="builds 'unheard_of'"):
        saved.program()


def test_a_head_beside_another_encoder_is_refused(tiny_run, tmp_path):
    shutil.copytree(tiny_run.folder, tmp_path / "run", ignore=shutil.ignore_patterns("features", "bundles", "parity"))
    other = load_checkpoint(tmp_path / "run" / "encoder.safetensors")
    weights = {name: value + 1 if value.is_floating_point() else value for name, value in other.weights.items()}
    save_checkpoint(other.path, weights, other.card)
    head = load_checkpoint(tmp_path / "run" / "seed-0" / "iciia_t.safetensors")
    with pytest.raises(CheckpointError, match="is not the encoder that iciia_t.safetensors was trained on"):
        head.required("encoder")


def test_exported_programs_hold_no_folder_of_the_machine_that_exported_them(bundle):
    programs = [*bundle.folder.rglob("*.onnx")]
    assert programs
    for program in programs:
        content = program.read_bytes()
        assert b"stack_trace" not in content
        assert str(Path(torch.__file__).parents[1]).encode() not in content
