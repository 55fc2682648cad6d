"""One encoder, several heads; heads alone, for a device that has the encoder."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from refocus.edge.bundle.load import load_bundle, upgrade
from refocus.edge.errors import BundleError
from refocus.edge.recognize.check import check
from refocus.edge.recognize.recognizer import Recognizer
from refocus.export.bundle.write import Export, export_bundle
from refocus.export.errors import ExportError
from refocus.export.program.checkpoint import Checkpoint, load_checkpoint


@pytest.fixture(scope="module")
def second_head(head, tmp_path_factory):
    """The same head under another name, with other weights in its classifier."""
    weights = {k: v * 0.5 if k.startswith("personal.classifier") else v for k, v in head.weights.items()}
    return Checkpoint(head.path.with_name("other.safetensors"), head.card, weights)


@pytest.fixture
def installed(bundle, tmp_path):
    """What the device has: the delivered bundle, in a folder of its own."""
    return load_bundle(shutil.copytree(bundle.folder, tmp_path / "installed"))


@pytest.fixture(scope="module")
def small(second_head, streams, tmp_path_factory):
    """The second head, without its encoder."""
    export = Export(["onnx:fp32"], head_only=True)
    return export_bundle([second_head], tmp_path_factory.mktemp("small") / "bundle", export, streams)


def test_two_heads_share_one_encoder(head, second_head, streams, stream, tmp_path):
    bundle = export_bundle([head, second_head], tmp_path / "b", Export(["onnx:fp32"]), streams)
    assert [a.role for a in bundle.manifest.artifacts] == ["encoder", "head", "head"]
    logits = [Recognizer(bundle, head=name).recognize(stream[0]).calibrated_logits for name in ("iciia_t", "other")]
    assert np.abs(logits[0] - logits[1]).max() > 0.01
    with pytest.raises(BundleError, match="no head 'third'; the bundle has iciia_t, other"):
        Recognizer(bundle, head="third")


@pytest.mark.parametrize("name", ["notes.txt", ".git/HEAD", "golden/golden.json"])
def test_an_upgrade_does_not_remove_files_that_are_not_the_bundles(installed, small, name):
    (installed.folder / name).parent.mkdir(exist_ok=True)
    (installed.folder / name).write_text("mine")
    before = {path: path.read_bytes() for path in installed.folder.rglob("*") if path.is_file()}
    with pytest.raises(BundleError, match=f"holds {name}, which is no file of its bundle"):
        upgrade(installed, small)
    assert {path: path.read_bytes() for path in installed.folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in installed.folder.parent.iterdir()] == [installed.folder.name]


def test_an_upgraded_bundle_is_on_the_disk_before_the_installed_one_is_gone(installed, small, durably_replaced):
    assert durably_replaced(upgrade(installed, small).folder)


def test_a_head_alone_upgrades_an_installed_bundle(installed, small, stream):
    assert not small.manifest.has_encoder
    assert sum(p.stat().st_size for p in small.folder.glob("*.onnx")) < 3e6
    with pytest.raises(BundleError, match="installed with refocus upgrade"):
        Recognizer(small)
    done = upgrade(installed, small)
    assert [h.name for h in done.manifest.heads] == ["other", "iciia_t"]
    assert check(done)[0].failures == ()
    with_history = Recognizer(done).recognize(stream[0])
    assert with_history.calibrated_logits.shape == (189,)


def test_a_head_for_another_encoder_is_not_installed(installed, small, tmp_path):
    before = (installed.folder / "manifest.json").read_bytes()
    other = shutil.copytree(small.folder, tmp_path / "other")
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["artifacts"][0]["accepts"] = ["0" * 64]
    (other / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="accepts features of 000000000000, the encoders of"):
        upgrade(installed, load_bundle(other))
    assert (installed.folder / "manifest.json").read_bytes() == before


def test_heads_of_two_encoders_are_not_bundled(head, streams, tmp_path, monkeypatch):
    stranger = Checkpoint(head.path.with_name("x.safetensors"), head.card, head.weights)
    card = type("Card", (), {"sha256": "another"})
    monkeypatch.setattr(Checkpoint, "required", lambda self, role: head.__class__(self.path, card, {})
                        if self is stranger else load_checkpoint(head.path.parent.parent / "encoder.safetensors"))  # fmt: skip
    with pytest.raises(ExportError, match="heads of one bundle share one encoder"):
        export_bundle([head, stranger], tmp_path / "b", Export(["onnx:fp32"]), streams)
