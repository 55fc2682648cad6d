"""A runtime, a target and a method of another package, as docs/extending.md says to make them."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.federated.methods import METHODS, find_method, title_of
from refocus.edge.registry import Registry
from refocus.edge.runtimes import RUNTIMES
from refocus.export.errors import ExportError
from refocus.export.targets import TARGETS, find_target

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
NAMES = ("torch-program", "own-positions")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The page's files in a folder, installed as pip would do it: modules, and a ``.dist-info`` with entry points."""
    folder = tmp_path_factory.mktemp("outside")
    files = re.findall(r"^```\w+\n# ([\w.]+)\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for name, text in files:
        (folder / name).write_text(text, encoding="utf-8")
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    about = folder / "refocus_torch_program-0.1.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: refocus-torch-program\nVersion: 0.1\n")
    lines = []
    for group, entries in project["project"]["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    about.joinpath("entry_points.txt").write_text("\n".join(lines) + "\n")
    modules = {f"{name}.py" for name in project["tool"]["setuptools"]["py-modules"]}
    assert modules == {name for name, _ in files if name.endswith(".py")}
    return folder


@pytest.fixture
def in_this_process(installed, monkeypatch):
    monkeypatch.syspath_prepend(str(installed))
    yield
    for table in (RUNTIMES, TARGETS, METHODS):
        for name in NAMES:
            dict.pop(table, name, None)


def test_parts_of_another_package_are_found_by_name(in_this_process):
    assert "torch-program" in RUNTIMES
    assert RUNTIMES["torch-program"] == ("torch_program_runtime", "")
    assert importlib.import_module("torch_program_runtime").Loaded.__abstractmethods__ == frozenset()
    module, precision = find_target("torch-program")
    assert (module.RUNTIME, precision) == ("torch-program", "fp32")
    assert find_method("own-positions").carrier == "weights"
    assert title_of("own-positions") == "own-positions"


def test_without_the_package_the_names_are_unknown():
    assert "torch-program" not in RUNTIMES
    with pytest.raises(KeyError):
        RUNTIMES["torch-program"]
    with pytest.raises(ExportError, match="unknown target 'torch-program'"):
        find_target("torch-program")
    with pytest.raises(UsageError, match="own-positions"):
        find_method("own-positions")


def test_known_names_never_search_the_installed_packages(monkeypatch):
    def refuse(**_):
        raise AssertionError("installed packages were searched")

    monkeypatch.setattr(importlib.metadata, "entry_points", refuse)
    for table in (RUNTIMES, TARGETS, METHODS):
        for name in table:
            assert name in table
            assert table[name]
    with pytest.raises(AssertionError, match="were searched"):
        assert "another" in RUNTIMES


def test_another_package_cannot_replace_a_part_of_refocus(in_this_process, installed):
    entries = installed / "refocus_torch_program-0.1.dist-info" / "entry_points.txt"
    table = Registry({"onnxruntime": "ours"}, "refocus.runtimes", lambda entry: entry.value)
    before = entries.read_text()
    entries.write_text("[refocus.runtimes]\nonnxruntime = theirs\n")
    try:
        assert table["onnxruntime"] == "ours"
    finally:
        entries.write_text(before)


@pytest.mark.slow
def test_a_network_is_exported_to_a_target_and_run_by_a_runtime_of_another_package(installed, tiny_run, tmp_path):
    tmp_path.joinpath("net.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef network():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))\n"
    )
    photos = tiny_run.folder / "parity"
    photo = next(photos.rglob("*.png"))
    environment = {**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "160"}

    def refocus(*words):
        command = [Path(sys.executable).parent / "refocus", *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    targets = "torch-program:fp32,onnx:fp32"
    refocus("export", "net:network", "--photos", photos, "--side", "32", "--to", targets, "--out", "bundle")
    checked = refocus("check", "bundle")
    assert "plain torch-program:fp32: 8 of 8 photos" in checked
    ours, theirs = (refocus("recognize", "bundle", photo, "--runtime", name) for name in ("onnxruntime", NAMES[0]))
    assert ours.split(",")[0] == theirs.split(",")[0]
    environment["PYTHONPATH"] = ""
    command = [Path(sys.executable).parent / "refocus", "recognize", "bundle", photo, "--runtime", NAMES[0]]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "needs the runtime 'torch-program'" in done.stderr
