"""The device part installs and runs on Python 3.10, as on a Jetson, without the cloud's libraries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomllib

from refocus import __version__

ROOT = Path(__file__).parents[1]
PARTS = ("edge", "export", "benchmarks", "cloud_train")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_package_says_the_version_that_is_installed():
    assert __version__ == PROJECT["version"]


def test_every_extra_that_was_promised_is_there():
    extras = set(PROJECT["optional-dependencies"])
    assert extras == {"cpu", "cuda", "tensorrt", "executorch", "coreml", "cloud", "export", "targets", "bench", "dev",
                      "text", "flare", "update", "serve", "pipeline", "argo", "heic", "docs", "hub", "track",
                      "models", "test"}  # fmt: skip


def test_no_extra_lets_an_onnxruntime_with_telemetry_in():
    for requirements in PROJECT["optional-dependencies"].values():
        for requirement in requirements:
            if requirement.startswith("onnxruntime"):
                assert "<1.29" in requirement


@pytest.mark.slow
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


INSTALLS = re.compile(r"refocus\[|pip install '?refocus(?!-edge)\b")


def test_nothing_tells_anybody_to_install_the_strangers_package():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git checkout")
    told = {name: INSTALLS.findall(read(name)) for name in listed.stdout.splitlines() if name.endswith(TEXTS)}
    allowed = {"docs/decisions/0022-one-namespace.md"}  # why
    assert {name for name, found in told.items() if found} == allowed


TEXTS = (".py", ".md", ".toml", ".java", ".txt", ".json", "Makefile", "run")


def read(name: str) -> str:
    path = ROOT / name
    return path.read_text(encoding="utf-8") if path.is_file() and not path.is_symlink() else ""


DECOYS = ("edge.py", "export.py", "benchmarks/__init__.py", "cloud_train/__init__.py")


@pytest.mark.slow
def test_the_wheel_works_among_decoys_and_holds_one_name(bundle, photo_file, distributions, tmp_path):
    (wheel,) = distributions.glob("refocus_edge-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"refocus"}
    sources = {path.relative_to(ROOT).as_posix() for folder in PARTS for path in (ROOT / folder).rglob("*.py")}
    assert {f"refocus/{path}" for path in sources} <= names
    assert {
        "refocus/py.typed",
        "refocus/benchmarks/suite.toml",
        "refocus/cloud_train/backbones/packaged_networks.json",
        "refocus/cloud_train/pipeline/default.toml",
    } <= names

    place = tmp_path / "place"
    for name in DECOYS:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("raise RuntimeError('a decoy was imported')")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{wheel}[cpu]"], check=True, timeout=600)
    for words in (
        [python.with_name("refocus"), "--help"],
        [python, "-m", "refocus", "recognize", bundle.folder, photo_file, "--profiles", tmp_path / "profiles"],
        [
            python,
            "-c",
            "import sys, refocus; assert not {'numpy', 'refocus.edge'} & set(sys.modules)\n"
            f"with refocus.Recognizer.open({str(bundle.folder)!r}, profile='ben', profiles='profiles') as opened:\n"
            f"    assert len(opened.recognize({str(photo_file)!r}).top(5)) == 5\n"
            "assert 'torch' not in sys.modules",
        ],
    ):
        environment = {**os.environ, "PYTHONPATH": "."}
        done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_wheels_alone_make_an_album_of_photos(distributions, tmp_path):
    """In an empty environment and home, without a network once installed, and without torch."""
    (wheel,) = distributions.glob("refocus_edge-*.whl")
    bundle = ROOT / "bundles" / "imagenet-lite0"
    shutil.copytree(bundle, tmp_path / "source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, tmp_path / "source"]
    subprocess.run(pip, check=True, timeout=300)
    (data,) = tmp_path.glob("refocus_bundle_imagenet-*.whl")
    assert data.stat().st_size < 6_000_000
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{wheel}[cpu]", data], check=True, timeout=600)
    (tmp_path / "home").mkdir()
    photos, expected = bundle / "photos", "Egyptian cat"
    if os.environ.get("REFOCUS_DATA"):
        photos, expected = tmp_path / "photos", "flamingo"
        photos.mkdir()
        for photo in sorted((Path(os.environ["REFOCUS_DATA"]) / "photos").glob("*.JPEG"))[:50]:
            shutil.copy(photo, photos)
    environment = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    refused = "import socket\ndef refuse(*a, **k): raise RuntimeError('a socket was opened')\nsocket.socket = refuse\n"
    album = (
        f"{refused}import sys\nfrom refocus.edge.commands.app import main\n"
        f"sys.argv = ['refocus', 'album', {str(photos)!r}, '--html', 'album.html']\nmain()\n"
    )
    for code in (album, "import importlib.util\nassert importlib.util.find_spec('torch') is None"):
        done = subprocess.run(
            [python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    assert expected in (tmp_path / "album.html").read_text()


@pytest.mark.slow
def test_python_3_10_recognises_a_photo_with_the_device_part_alone(bundle, photo_file, source, tmp_path):
    interpreter = python_3_10()
    if interpreter is None:
        pytest.skip("no Python 3.10 on this machine")
    subprocess.run([interpreter, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{source}[cpu]"], check=True, timeout=600)
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
    assert "pip install 'refocus-edge[cloud]'" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
