"""The Python readers accept and refuse what docs/formats says; the Java reader runs the same vectors (VectorsTest)."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

import refocus.edge.bundle.manifest
from refocus.edge.bundle.load import load_bundle
from refocus.edge.bundle.manifest import ShareCard
from refocus.edge.bundle.tensor_file import decode_tensors, metadata_of
from refocus.edge.errors import BundleError, PersonalWeightsError, RuntimeUnavailable, UpdateError
from refocus.edge.history import witness
from refocus.edge.history.schema import APPLICATION, PAGE, SCHEMA, TABLES, feature_seal, pair_seal
from refocus.edge.recognize.class_shares import ClassShares
from refocus.edge.recognize.label_sets import LabelShares, settings_of
from refocus.edge.recognize.rejection import KnownScores
from refocus.edge.update.device_state import Slots, UpdateState
from refocus.edge.update.rules import Device, decode_channel, misfit, wanted

HERE = Path(__file__).parent / "vectors"
PAGES = Path(__file__).parents[2] / "docs" / "formats"


def vectors(name):
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def manifest_of(about):
    if "base64" in about:
        return base64.b64decode(about["base64"])
    base, at = BUNDLES["bases"][about["base"]], about["at"]
    return (base[:at] + about["text"] + base[at + about["cut"] :]).encode()


def put(folder, files):
    for name, content in files.items():
        if content is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(base64.b64decode(content))


BUNDLES = vectors("bundles")


def test_the_vectors_are_those_of_their_generator(tmp_path):
    for name in ("formats/vectors", "fixtures/0.1.0"):
        shutil.copytree(HERE.parents[1] / name, tmp_path / name)
    subprocess.run([sys.executable, tmp_path / "formats" / "vectors" / "make.py"], check=True)
    for path in sorted(HERE.glob("*.json")):
        assert (tmp_path / "formats" / "vectors" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("vector", BUNDLES["vectors"], ids=lambda vector: vector["name"])
def test_a_bundle_is_read_as_its_page_says(vector, tmp_path):
    put(tmp_path, {**BUNDLES["files"], **vector["files"]})
    (tmp_path / "manifest.json").write_bytes(manifest_of(vector["manifest"]))
    if vector["valid"]:
        load_bundle(tmp_path)
        return
    with pytest.raises(BundleError):
        load_bundle(tmp_path)


@pytest.mark.parametrize("vector", vectors("tensors")["vectors"], ids=lambda vector: vector["name"])
def test_a_tensor_file_is_read_as_its_page_says(vector):
    content = memoryview(base64.b64decode(vector["base64"]))
    if vector["valid"]:
        assert decode_tensors(content, "file")
        metadata_of(content, "file")
        return
    with pytest.raises(PersonalWeightsError):
        (decode_tensors(content, "file"), metadata_of(content, "file"))


@pytest.mark.parametrize("vector", vectors("class-shares")["vectors"], ids=lambda vector: vector["name"])
@pytest.mark.parametrize("native", [False, True], ids=["numpy", "c"])
def test_class_shares_are_computed_as_their_page_says(vector, native, monkeypatch):
    """Photos are forgotten in sequences, and the state is built again from its rows half-way."""
    if native:
        pytest.importorskip("refocus.edge.runtimes.native_shares", exc_type=RuntimeUnavailable)
    else:
        monkeypatch.setattr(ClassShares, "_find_native", lambda state: None)
    card = msgspec.convert(vector["settings"], ShareCard)

    def fresh():
        if card.is_of_sets:
            return LabelShares(settings_of(card), vector["classes"])
        known = KnownScores(vector["rejection"], tuple(vector["known_scores"]))
        return ClassShares(settings_of(card), vector["classes"], known=known)

    state, rows = fresh(), {}
    for number, photo in enumerate(vector["photos"]):
        for gone in photo.get("forgotten", ()):
            state.forget(gone)
            del rows[gone]
        if number == len(vector["photos"]) // 2:
            state = fresh()
            for key, row in rows.items():
                state.add(row, key)
        outputs, length = np.array(photo["logits"]), photo["length"]
        np.testing.assert_allclose(state.estimate().shares, photo["shares"], atol=1e-9)
        np.testing.assert_allclose(state.answer(outputs, length).logits, photo["answer"], atol=1e-9)
        beside = state.answer_beside(outputs, outputs[::-1], length)[1]
        np.testing.assert_allclose(beside, photo["beside_head"], atol=1e-9)
        rows[number] = row = state.row(outputs, length)
        assert row.classes.tolist() == photo["classes"]
        np.testing.assert_allclose(row.probabilities, photo["probabilities"], atol=1e-9)
        assert row.credit == pytest.approx(photo["credit"], abs=1e-9)
        state.add(row, number)
    np.testing.assert_allclose(state.estimate().shares, vector["shares"], atol=1e-9)


@pytest.mark.parametrize("vector", vectors("channels")["vectors"], ids=lambda vector: vector["name"])
def test_a_channel_is_read_as_its_page_says(vector):
    if not vector["valid"]:
        with pytest.raises(UpdateError):
            decode_channel(base64.b64decode(vector["base64"]), "channel")
        return
    channel, device = (
        decode_channel(base64.b64decode(vector["base64"]), "channel"),
        Device("d", "phone", "onnxruntime", "fp32", "1.28", "0.2.0"),
    )
    release = wanted(channel, device.identity, 0, False, ())
    taken = [release.number] if release is not None and not misfit(release, channel, device) else []
    assert taken == vector["taken"]


@pytest.mark.parametrize("name", ["phone\n", "\nphone", "phone\r"])
def test_a_device_class_that_ends_with_a_newline_is_refused(name, tmp_path):
    with pytest.raises(UpdateError, match="small letters"):
        Slots.create(tmp_path / "device", name, "http://127.0.0.1:1", b"{}")
    assert not (tmp_path / "device").exists()
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"device": "d", "device_class": name, "url": ""}, UpdateState)


def test_the_page_of_profiles_says_what_is_written():
    """Its tables, numbers and examples."""
    page = (PAGES / "profile.md").read_text()
    plain = " ".join(page.split())
    for statement in TABLES:
        assert statement in plain
    assert f"| page size | {PAGE} |" in page
    assert f"0x{APPLICATION:X}" in page
    assert f"Its first {witness._SIZE} bytes" in page
    assert f"| {SCHEMA} (Refocus 0.2) or {SCHEMA - 1} (Refocus 0.1) |" in page
    assert f"`{pair_seal('setting', 'theme', 'dark').hex()}`" in page
    assert f"`{feature_seal('s', 1, 'p', 0, '', struct.pack('<f', 1.0)).hex()}`" in page


def test_the_table_of_numbers_is_that_of_the_code():
    import golden

    from refocus.edge.history import takeout as export
    from refocus.edge.personal import received_files as personal_files
    from refocus.edge.update import device_state as slots
    from refocus.edge.update import rules as releases

    page = (PAGES / "README.md").read_text()
    written = {
        "a recogniser that a device can run": (
            refocus.edge.bundle.manifest.OLDEST_SCHEMA,
            refocus.edge.bundle.manifest.SCHEMA_VERSION,
        ),
        "one person's history on a device (SQLite)": (SCHEMA - 1, SCHEMA),
        "takeout": (export.FORMAT - 1, export.FORMAT),
        "what was learned for one person": ("1 (not stated)", personal_files.FORMAT_VERSION),
        "the releases of a device class": (releases.CHANNEL_VERSION - 1, releases.CHANNEL_VERSION),
        "update state of a device": (slots.RECORD_VERSION - 1, slots.RECORD_VERSION),
        "test vectors of a bundle": golden.READS,
    }
    for what, (before, now) in written.items():
        (line,) = [line for line in page.splitlines() if f"| {what}" in line or f"{what}:" in line]
        assert f"| {before} | {now} |" in line
