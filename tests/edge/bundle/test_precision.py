"""A precision's name means the same everywhere; what 0.1 called int8 is still found."""

from __future__ import annotations

import json
import re
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import get_args

import pytest

from refocus.edge.bundle import ALIASES, PRECISIONS, PrecisionName, find_named_target, find_precision, load_bundle
from refocus.edge.bundle.manifest import decode_manifest, encode_manifest
from refocus.edge.errors import BundleError
from refocus.edge.update.rules import File, Release
from refocus.edge.update.rules import Program as Offered

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("asked", "offered", "found"),
    [
        ("fp32", ("fp16", "fp32"), "fp32"),
        ("int8", ("fp32", "w8a8", "w8"), "w8a8"),
        ("int8", ("fp16", "w8"), "w8"),
        ("int8", ("fp16",), ""),
        ("w8", ("fp32", "int8"), "int8"),  # a channel that 0.1 published
        ("w8a8", ("w8",), ""),
        ("w8", ("w8a8",), ""),
        ("int9", ("fp32",), ""),
    ],
)
def test_an_old_name_finds_what_it_stood_for_and_no_other(asked, offered, found):
    assert find_precision(asked, offered) == found
    targets = [f"onnxruntime:{name}" for name in offered]
    assert find_named_target(f"onnxruntime:{asked}", targets) == (f"onnxruntime:{found}" if found else "")
    assert find_named_target(f"executorch:{asked}", targets) == ""
    assert find_named_target(f"onnx:{asked}", targets) == find_named_target(f"onnxruntime:{asked}", targets)
    of_export = [f"onnx:{name}" for name in offered]
    assert find_named_target(f"onnx:{asked}", of_export) == (f"onnx:{found}" if found else "")


def as_written_by_0_1(bundle, calibration):
    """The bundle's manifest with a second target named int8, as 0.1 wrote it."""
    document = json.loads((bundle.folder / "manifest.json").read_text())
    document["schema_version"] = 5
    more = [{**a, "precision": "int8", "calibration": calibration} for a in document["artifacts"]]
    document["artifacts"] += more
    for head in document["heads"]:
        test = head["self_test"]
        test["answers"]["onnxruntime:int8"] = test["answers"]["onnxruntime:fp32"]
        test["tolerance"] = {"fp32": 0.002, "fp16": 0.5, "int8": 2.0, "palette6": 2.0}
    return json.dumps(document).encode()


@pytest.mark.parametrize(("calibration", "name"), [("c" * 64, "w8a8"), (None, "w8")])
def test_int8_of_a_manifest_of_0_1_is_w8a8_or_without_ranges_w8(bundle, calibration, name):
    manifest = decode_manifest(as_written_by_0_1(bundle, calibration), "manifest.json")
    assert {a.precision for a in manifest.artifacts} == {"fp32", name}
    test = manifest.heads[0].self_test
    assert f"onnxruntime:{name}" in test.answers
    assert "onnxruntime:int8" not in test.answers
    assert (test.tolerance["w8a8"], test.tolerance["w8"], test.tolerance["fp32"]) == (2.0, 2.0, 0.002)
    assert b"int8" not in encode_manifest(manifest).replace(b".int8", b"")


@pytest.mark.parametrize("calibration", ["c" * 64, None])
def test_both_names_open_a_bundle_of_0_1(bundle, tmp_path, calibration):
    folder = shutil.copytree(bundle.folder, tmp_path / "bundle")
    (folder / "manifest.json").write_bytes(as_written_by_0_1(bundle, calibration))
    new = "w8a8" if calibration else "w8"
    for name in ("int8", new):
        opened = load_bundle(folder, [f"onnxruntime:{name}"])
        assert opened.artifact("encoder", "onnxruntime", name).precision == new
    with pytest.raises(
        BundleError, match=f"no encoder for onnxruntime:fp16; it has onnxruntime:fp32, onnxruntime:{new}"
    ):
        opened.artifact("encoder", "onnxruntime", "fp16")


@pytest.mark.parametrize(("published", "runs"), [("int8", "w8a8"), ("w8a8", "int8"), ("w8a8", "w8a8")])
def test_devices_and_channels_understand_each_other(published, runs):
    programs = tuple(
        Offered(target=f"onnxruntime:{name}", min_version="1.20", feature_space=name) for name in ("fp32", published)
    )
    manifest = File(path="manifest.json", sha256="a" * 64, size_bytes=1)
    release = Release(number=1, name="x", files=(manifest,), programs=programs, manifest_schema=5, min_refocus="0.1.0",
                      percent=100, published=datetime(2026, 1, 1, tzinfo=timezone.utc))  # fmt: skip
    assert release.program(f"onnxruntime:{runs}").feature_space == published
    assert release.program("onnxruntime:fp16") is None


def test_every_reader_knows_every_name():
    java = ROOT / "android_demo/recognizer/src/main/java/refocus/recognizer/Artifact.java"
    choice = re.search(r'choice\("precision", null,(.*?)\);', java.read_text(), re.DOTALL)[1]
    assert set(re.findall(r'"(\w+)"', choice)) == {*PRECISIONS, *ALIASES}
    assert set(get_args(PrecisionName)) == set(PRECISIONS)


def test_the_page_states_the_table():
    page = (ROOT / "docs/precision.md").read_text()
    for name, about in PRECISIONS.items():
        assert f"| `{name}` | {about.weights} | {about.activations} |" in page
    assert set(re.findall(r"^\| `(\w+)` \| (?:16|32|8|one)", page, re.MULTILINE)) == set(PRECISIONS)
