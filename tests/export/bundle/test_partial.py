"""What passes is written, what fails is named with the option that would allow it, and nothing is left half-written."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from refocus.edge.bundle import load_bundle
from refocus.edge.files import locked
from refocus.export import ExportSettings
from refocus.export import export as export_settings
from refocus.export.bundle import Export, export_bundle
from refocus.export.errors import ExportError, ParityError

CODE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.layer = torch.nn.Conv2d(3, 8, 5, 4), torch.nn.Linear(8, 5)
    def forward(self, photo):
        return self.layer(self.stem(photo).relu().mean((2, 3)))
def build():
    torch.manual_seed(0)
    return Net().eval()
"""
IMPOSSIBLE = "onnx:w8a8:typical-logits=0"  # a limit that no quantised program keeps


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a network's code, and photos."""
    folder, rng = tmp_path_factory.mktemp("partial"), np.random.default_rng(0)
    (folder / "my_net.py").write_text(CODE)
    (folder / "photos").mkdir()
    for number in range(16):
        Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(folder / "photos" / f"{number:02d}.png")
    return folder


@pytest.fixture
def export(place, refocus, tmp_path):
    """``refocus export`` of the network to ``tmp_path / "bundle"``."""

    def run(*more):
        words = "my_net:build", "--side", "32", "--photos", place / "photos", "--out", tmp_path / "bundle"
        return refocus("export", *words, *more, cwd=place)

    return run


@pytest.mark.slow
def test_the_others_are_written_and_the_command_says_how_to_allow_the_one_that_fails(export, tmp_path):
    done = export("--to", "onnx:fp32,onnx:int8,tensorrt:fp16", "--max-deviation", IMPOSSIBLE, "--json")
    assert done.returncode == 3, done.stderr
    assert "next:" not in done.stderr
    targets = {row["target"]: row for row in json.loads(done.stdout)["targets"]}
    statuses = {"onnx:fp32": "written", "onnx:w8a8": "failed", "tensorrt:fp16": "not run here"}
    assert {name: row["status"] for name, row in targets.items()} == statuses
    reason = targets["onnx:w8a8"]["reason"]
    assert re.search(r"90th percentile of the difference of logits over their range 0\.\d+ \(at most 0\)", reason)
    bundle = load_bundle(tmp_path / "bundle")
    assert {a.target for a in bundle.manifest.artifacts} == {"onnxruntime:fp32", "tensorrt:fp16"}
    listed = {"manifest.json", *bundle.files()}
    found = {p.relative_to(bundle.folder).as_posix() for p in bundle.folder.rglob("*") if p.is_file()}
    assert found == listed  # nothing of the target that failed
    assert not any("w8a8" in file for file in found)
    option, value = re.search(r"(--max-deviation) (\S+) would allow it", reason).groups()
    again = export("--to", "onnx:w8a8", option, value)
    assert again.returncode == 0, again.stderr
    parity = load_bundle(tmp_path / "bundle").artifact("head", "onnxruntime", "w8a8", "plain").parity
    assert parity.passed
    assert "limits that the exporter set: typical-logits" in parity.reason


@pytest.mark.slow
def test_where_all_fail_nothing_is_written_and_an_earlier_bundle_stays(export, tmp_path, assert_one_clear_line):
    assert export().returncode == 0
    before = load_bundle(tmp_path / "bundle").manifest
    limits = f"{IMPOSSIBLE},onnx:fp32:logits=0"
    done = export("--quiet", "--to", "onnx:fp32,onnx:w8a8", "--max-deviation", limits)
    assert_one_clear_line(done, "no target could be exported", "onnx:fp32: parity", "onnx:w8a8: parity")
    assert load_bundle(tmp_path / "bundle").manifest == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.slow
def test_standard_error_holds_our_lines_alone(export):
    """Converters warn, log and print, ExecuTorch and XNNPACK from native code: none of it is for a user."""
    done = export("--to", "onnx:w8a8,onnx:fp16,executorch:fp32,executorch:w8a8,coreml:fp16,tensorrt:w8a8",
                  "--max-deviation", "w8a8:typical-logits=1,w8a8:cosine-distance=1,w8a8:disagreement=1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    target = r"(onnx|onnxruntime|executorch|coreml|tensorrt):\w+"
    ours = rf"(encoder|plain): {target}|parity: plain {target}|{target}: not run here: .*|next: refocus album .*"
    strangers = [line for line in done.stderr.splitlines() if not re.fullmatch(ours, line)]
    assert not strangers
    assert "┃ program" in done.stdout


def test_what_libraries_write_is_shown_where_an_error_has_no_words_or_it_is_asked_for():
    code = (
        "import os, sys\nfrom refocus.edge.commands import show_news\n"
        "from refocus.export.library_output import kept_apart\nshow_news()\n"
        "with kept_apart({verbose}) as say:\n"
        "    os.write(2, b'native\\n'); print('printed'); sys.stderr.write('warned\\n'); say('ours')\n"
        "    {end}\nprint('after')"
    )

    def run(end="pass", verbose=False):
        words = [sys.executable, "-c", code.format(end=end, verbose=verbose)]
        return subprocess.run(words, capture_output=True, text=True, timeout=60)

    quiet = run()
    assert (quiet.stdout, quiet.stderr) == ("after\n", "ours\n")
    said = run(verbose=True)
    assert {"native", "warned", "ours"} == set(said.stderr.split())
    crashed = run("raise KeyError('x')")
    assert {"native", "printed", "warned"} <= set(crashed.stderr.split())
    named = run("from refocus.export.errors import ExportError; raise ExportError('x')")
    assert "native" not in named.stderr


def test_an_export_is_a_function_of_its_settings(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    said = []
    settings = ExportSettings(("my_net:build",), tmp_path / "bundle", to=("onnx:int8", "onnx:fp32", "onnx:w8a8"),
                              photos=place / "photos", side=32, max_deviation=IMPOSSIBLE)  # fmt: skip
    done = export_settings(settings, said.append)
    assert [(one.target, one.status) for one in done.outcomes] == [("onnx:w8a8", "failed"), ("onnx:fp32", "written")]
    assert not done.complete
    assert "encoder: onnx:w8a8" in said
    assert done.bundle.targets() == [("onnxruntime", "fp32")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"to": ()}, "--to names no target"),
        ({"to": ("onnx:fp32", "onnx:fp33")}, "there is no precision 'fp33'"),
        ({"models": ()}, "no checkpoint and no network was given"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_before_anything_is_loaded(place, tmp_path, change, message):
    settings = {"models": ("my_net:build",), "out": tmp_path / "bundle", "photos": place / "photos"} | change
    with pytest.raises(ExportError, match=message):
        export_settings(ExportSettings(**settings))
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_heads_of_a_run_are_exported_in_part_too(head, streams, tmp_path):
    from refocus.export.bundle import export_targets
    from refocus.export.parity.limits import parse_limits

    limits = parse_limits("onnx:fp16:logits=0")
    asked = Export(["onnx:fp16", "onnx:fp32"], partial=True, limits=limits)
    done = export_targets([head], tmp_path / "bundle", asked, streams)
    assert [(one.target, one.status) for one in done.outcomes] == [("onnx:fp16", "failed"), ("onnx:fp32", "written")]
    assert set(done.bundle.manifest.heads[0].self_test.answers) == {"eager", "onnxruntime:fp32"}
    with pytest.raises(ParityError, match="parity of the iciia_t head for onnxruntime:fp16"):
        export_bundle([head], tmp_path / "none", asked, streams)
    assert not (tmp_path / "none").exists()


def test_the_folder_of_a_killed_export_is_removed_by_the_next_one_and_that_of_one_at_work_is_not(
    place, tmp_path, monkeypatch
):
    monkeypatch.chdir(place)
    left = {name: tmp_path / f".bundle-{name}" for name in ("killed", "working", "diary")}
    for name, folder in left.items():
        folder.mkdir()
        (folder / "encoder.onnx").touch()
        if name != "diary":  # somebody's own folder has no lock of ours
            (folder / "lock").touch()
    with locked(left["working"] / "lock"):
        settings = ExportSettings(("my_net:build",), tmp_path / "bundle", photos=place / "photos", side=32)
        assert export_settings(settings).complete
    assert sorted(path.name for path in tmp_path.iterdir()) == [".bundle-diary", ".bundle-working", "bundle"]


@pytest.mark.slow
def test_sigterm_leaves_no_half_written_bundle(place, tmp_path):
    words = [str(Path(sys.executable).parent / "refocus"), "export", "my_net:build", "--side", "32", "--photos",
             str(place / "photos"), "--out", str(tmp_path / "bundle"), "--to", "onnx:fp32,executorch:fp32"]  # fmt: skip
    process = subprocess.Popen(words, cwd=place, stderr=subprocess.PIPE, text=True)
    while not any(tmp_path.glob(".bundle-*/bundle/*")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert not any(tmp_path.iterdir())
