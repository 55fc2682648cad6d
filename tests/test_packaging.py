"""The device part installs and runs on Python 3.10, as on a Jetson, without the cloud's libraries."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

import edge

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_package_says_the_version_that_is_installed():
    assert edge.__version__ == PROJECT["version"]


def test_every_extra_that_was_promised_is_there():
    extras = set(PROJECT["optional-dependencies"])
    assert extras == {"cpu", "cuda", "tensorrt", "executorch", "coreml", "cloud", "export", "targets", "bench", "dev",
                      "text", "flare", "update", "serve", "pipeline", "argo"}  # fmt: skip


def test_no_extra_lets_an_onnxruntime_with_telemetry_in():
    for requirements in PROJECT["optional-dependencies"].values():
        for requirement in requirements:
            if requirement.startswith("onnxruntime"):
                assert "<1.29" in requirement


def test_the_device_extra_resolves_for_python_3_10(tmp_path):
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["cpu"], *extras["update"]]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--python-version", "3.10",
               "--only-binary=:all:", "--target", str(tmp_path), *wanted]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if "(from versions: none)" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr


def python_3_10() -> str | None:
    for candidate in ("python3.10", *map(str, Path.home().glob(".pyenv/versions/3.10*/bin/python"))):
        path = shutil.which(candidate)
        if path and subprocess.run([path, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            return path
    return None


@pytest.mark.slow
def test_python_3_10_recognises_a_photo_with_the_device_part_alone(bundle, photo_file, tmp_path):
    interpreter = python_3_10()
    if interpreter is None:
        pytest.skip("no Python 3.10 on this machine")
    subprocess.run([interpreter, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{ROOT}[cpu]"], check=True, timeout=600)
    refocus = tmp_path / "venv" / "bin" / "refocus"
    done = subprocess.run(
        [refocus, "recognize", bundle.folder, photo_file, "--profiles", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "no history yet" in done.stdout
    helped = subprocess.run([refocus, "--help"], capture_output=True, text=True)
    assert helped.returncode == 0, helped.stderr
    refused = subprocess.run([refocus, "demo", "--out", tmp_path / "demo"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "pip install 'refocus[cloud]'" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
