"""Every extra can be installed, and no combination that the pages name brings two ONNX Runtimes or an unwanted one."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
RUNTIMES = {"onnxruntime", "onnxruntime-gpu", "tensorrt", "executorch", "coremltools"}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
NAMED = {extras for page in PAGES for extras in re.findall(r"refocus-edge\[([\w,-]+)\]", page.read_text("utf-8"))}


def requirements(extras: str) -> list[str]:
    """What a combination of extras asks for, our own extras resolved."""
    found = list(PROJECT["dependencies"])
    for extra in extras.split(","):
        for requirement in EXTRAS[extra]:
            own = re.fullmatch(r"refocus-edge\[([\w,-]+)\]", requirement)
            found += requirements(own[1]) if own else [requirement]
    return found


def name_of(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower()


@pytest.mark.parametrize("extras", sorted({*EXTRAS, *NAMED} - {"dev"}))
def test_only_extras_of_runtimes_bring_one_and_never_two_onnx_runtimes(extras):
    asked = set(extras.split(","))
    assert asked <= EXTRAS.keys(), f"a page names refocus-edge[{extras}]"
    names = {name_of(requirement) for requirement in requirements(extras)}
    assert not {"onnxruntime", "onnxruntime-gpu"} <= names
    if not asked & {"cpu", "cuda"}:
        assert not names & {"onnxruntime", "onnxruntime-gpu"}


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_every_dependency_has_a_lower_and_an_upper_bound(extra):
    for requirement in EXTRAS[extra] if extra else PROJECT["dependencies"]:
        if not requirement.startswith("refocus-edge[") and extra not in ("dev", "test"):
            assert ">=" in requirement, f"{extra}: {requirement}"
            assert "<" in requirement, f"{extra}: {requirement}"
            assert "==" not in requirement.split(";")[0], f"{extra}: {requirement}: exact pins are in constraints.txt"


def resolved(source: Path, extras: str, out: Path) -> set[str]:
    """Distributions that pip would install into an empty environment."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--quiet",
        "--ignore-installed",
        "--report",
        str(out),
    ]
    command += ["--constraint", str(ROOT / "constraints.txt"), f"{source}[{extras}]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return {item["metadata"]["name"].lower() for item in json.loads(out.read_text())["install"]}


WITH_CPU = "cpu,cloud,targets,text,heic,hub,serve,track,update,bench,flare,pipeline,argo"
EVERYWHERE = {"cuda,bench", WITH_CPU, "tensorrt"}


def test_every_documented_pair_is_part_of_one_that_is_resolved():
    for extras in NAMED:
        assert any(set(extras.split(",")) <= {*whole.split(","), "executorch", "coreml"} for whole in EVERYWHERE), (
            extras
        )


@pytest.mark.slow
def test_cuda_resolves_without_a_second_onnxruntime(source, tmp_path):
    assert resolved(source, "cuda,bench", tmp_path / "report.json") & RUNTIMES == {"onnxruntime-gpu"}


@pytest.mark.slow
def test_all_extras_of_a_cpu_resolve_together(fresh_environment, tmp_path):
    """Against the libraries that are installed here; only what is not is looked for."""
    runtimes, report = {"onnxruntime", "executorch", "coremltools"}, tmp_path / "report.json"
    fresh_environment(tmp_path / "venv", WITH_CPU, runtimes, "--dry-run", "--report", report)
    found = {item["metadata"]["name"].lower() for item in json.loads(report.read_text())["install"]}
    assert found & RUNTIMES == runtimes


# ExecuTorch's package brings Core ML's where there is one.
MAC_OR_PC = sys.platform == "darwin" or platform.machine() == "x86_64"
IMPORTABLE = {
    "cpu": {"onnxruntime"},
    "executorch": {"executorch", "coreml"} if MAC_OR_PC else {"executorch"},
    "coreml": {"coreml"},
}
WHICH = """
import importlib, json
from refocus.edge.runtimes import RUNTIMES
found = []
for name in set(RUNTIMES) - {"native"}:  # which no extra brings
    try:
        importlib.import_module(f"refocus.edge.runtimes.{name}")
        found.append(name)
    except ImportError:
        pass
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("extra", IMPORTABLE)
def test_after_installing_an_extra_its_runtime_is_importable(fresh_environment, extra, tmp_path):
    """Nothing but what the extra asks for is there: a library that it forgets would be missing."""
    python = fresh_environment(tmp_path / "venv", extra, {"onnxruntime", "executorch", "coremltools"})
    done = subprocess.run([python, "-c", WHICH], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout.splitlines()[-1])) == IMPORTABLE[extra]
    checked = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0, checked.stdout


def test_the_line_for_a_jetson_does_not_ask_pypi_for_tensorrt():
    """JetPack brings TensorRT; PyPI's packages are for other machines."""
    page = (ROOT / "docs" / "devices" / "jetson.md").read_text(encoding="utf-8")
    lines = re.findall(r"pip install[^`\n]*", page)
    assert lines
    for line in lines:
        asked = re.search(r"refocus-edge\[([\w,-]+)\]", line)
        names = {name_of(requirement) for requirement in requirements(asked[1])} if asked else set()
        assert not {name for name in names | set(line.split()) if "tensorrt" in name}, line
        assert "--system-site-packages" in page


@pytest.mark.slow
@pytest.mark.full
def test_tensorrt_resolves_where_nvidias_index_can_be_reached(source, tmp_path):
    try:
        found = resolved(source, "tensorrt", tmp_path / "report.json")
    except AssertionError as error:
        if "nvidia" not in str(error).lower():
            raise
        pytest.skip("PyPI's tensorrt asks NVIDIA's index, which cannot be reached here")
    assert "tensorrt" in found
