"""What the device install costs: its budgets, and that a measurement compares like with like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refocus.edge.errors import RefocusError
from studies.bench.rows.install import bytes_on_disk, distributions, drop, installed_files, measure, resident_share

# Budgets of a start and a first answer: measured with a tenth of room. Bare ONNX Runtime opens 137 files.
ROOT = Path(__file__).parents[3]
OPENED, MODULES = 270, 380


@pytest.fixture
def run(bundle, stream, tmp_path):
    """One fresh process of a program."""
    photo = tmp_path / "photo.png"
    photo.write_bytes(stream[0])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def start(program):
        command = [
            sys.executable,
            "-m",
            "studies.bench.rows.install_process",
            program,
            bundle.folder,
            photo,
            tmp_path,
        ]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return start


def test_a_first_answer_opens_few_files_and_loads_no_torch(run):
    run("refocus")  # writes bytecode
    said = run("refocus")
    assert not said["torch"]
    assert said["opened"] <= OPENED
    assert said["modules"] <= MODULES


def test_bare_onnx_runtime_gives_the_same_answer(run):
    ours, bare = run("refocus"), run("onnxruntime")
    assert bare["label"]
    # Without history a delivered head answers as the photo alone does; photos of one colour may differ by rounding.
    assert ours["label"] == bare["label"]
    assert 0 < bare["imported_bytes"] < bare["answered_bytes"]
    parts = ours["import_ms"] + ours["load_ms"] + ours["first_answer_ms"]
    assert parts == pytest.approx(ours["whole_ms"])


def test_an_install_is_what_its_extra_brings_and_no_more():
    names = distributions()
    assert {"refocus-edge", "numpy", "pillow", "msgspec", "typer", "rich", "onnxruntime"} <= names.keys()
    assert not {"torch", "timm", "matplotlib", "executorch"} & names.keys()
    assert bytes_on_disk("onnxruntime") > 10e6
    files = installed_files(["pillow", "refocus-edge"])
    assert all(path.is_file() for path in files)
    assert "edge/recognize/recognizer.py" in {"/".join(path.parts[-3:]) for path in files}


def test_dropped_files_leave_the_page_cache(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
    file.read_bytes()
    assert resident_share([file]) == 1
    drop([file])
    if resident_share([file]) == 1:
        pytest.skip("this file system lies in memory")
    assert resident_share([file]) < 0.1


@pytest.mark.parametrize(
    ("photo", "rounds", "message"), [("none.png", 2, "is not a file; give a photo"), ("p.png", 1, "--rounds 1")]
)
def test_what_cannot_be_measured_is_refused(bundle, tmp_path, photo, rounds, message):
    (tmp_path / "p.png").write_bytes(b"")
    with pytest.raises(RefocusError, match=message):
        measure(bundle.folder, tmp_path / photo, rounds, lambda: None)


@pytest.mark.slow
def test_a_measurement_becomes_a_section_of_the_results(bundle, stream, tmp_path, studies):
    photo, out = tmp_path / "photo.png", tmp_path / "results" / "device-install.json"
    photo.write_bytes(stream[0])
    out.parent.mkdir()
    command = [sys.executable, "-m", "studies.bench.rows.install", bundle.folder, photo, 2, out]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert {(row["files"], row["program"]) for row in document["rows"]} == {
        (files, program) for files in ("dropped", "cached") for program in ("refocus", "onnxruntime")
    }
    assert all(document["ratio"][files]["low"] <= document["ratio"][files]["high"] for files in ("dropped", "cached"))
    page = studies("results", tmp_path / "results", "--out", tmp_path / "results.md")
    assert page.returncode == 0, page.stderr
    text = (tmp_path / "results" / "cost.md").read_text()
    assert "2 pairs of fresh processes" in text
    assert "Bytes on disk, without bytecode: refocus-edge" in text
