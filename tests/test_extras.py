"""Every extra can be installed, and no combination that the pages name brings two ONNX Runtimes or an unwanted one."""

from __future__ import annotations

import json
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
        if not requirement.startswith("refocus-edge[") and extra != "dev":
            assert ">=" in requirement, f"{extra}: {requirement}"
            assert "<" in requirement, f"{extra}: {requirement}"
            assert "==" not in requirement.split(";")[0], f"{extra}: {requirement}: exact pins are in constraints.txt"


def resolved(extras: str, out: Path) -> set[str]:
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
    command += ["--constraint", str(ROOT / "constraints.txt"), f"{ROOT}[{extras}]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return {item["metadata"]["name"].lower() for item in json.loads(out.read_text())["install"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extras", "runtimes"),
    [
        ("cuda,bench", {"onnxruntime-gpu"}),
        ("cpu,cloud,targets,text,serve,update,bench,flare,pipeline,argo", {"onnxruntime", "executorch", "coremltools"}),
    ],
)
def test_extras_resolve_together(extras, runtimes, tmp_path):
    assert resolved(extras, tmp_path / "report.json") & RUNTIMES == runtimes


@pytest.mark.slow
def test_tensorrt_resolves_where_nvidias_index_can_be_reached(tmp_path):
    try:
        found = resolved("tensorrt", tmp_path / "report.json")
    except AssertionError as error:
        if "nvidia" not in str(error).lower():
            raise
        pytest.skip("PyPI's tensorrt asks NVIDIA's index, which cannot be reached here")
    assert "tensorrt" in found
