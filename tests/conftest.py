"""Shared pieces: one small trained run, its bundle, and photos to feed it. Made once per test session."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import tiny
from tests.forked_commands import ForkedCommands

ROOT = Path(__file__).parents[1]
LETTERS = ROOT / "tests" / "fixtures" / "letters.tar.xz"
PARTS = ("edge", "export", "benchmarks", "cloud_train")
sys.path.append(str(ROOT / "android_demo" / "tools"))  # golden vectors are written there; tools are no package

# pytest listens to loggers that hand nothing on; while somebody does, PyTorch writes out every graph of every export.
logging.getLogger("torch.__trace").addHandler = lambda handler: None  # type: ignore[method-assign]

LONGEST = ("test_readme.py", "test_page_commands.py")  # in the slow suite: last, they would keep one worker alone


WITHOUT_TORCH = find_spec("torch") is None  # `make device-test`: the tests that need none
MODULES = (
    *("torch", "timm", "onnx"),
    *(r"refocus\.export", r"refocus\.cloud_train", "studies"),
    *(r"tests\.edge\.runtimes\.native_\w+", r"tests\.edge\.update\.update_kills"),
)
MODULES = "|".join(name for name in MODULES if name != "onnx" or find_spec(name) is None)  # Python 3.10 has none
NEEDS_TORCH = re.compile(rf"^(?:import|from) (?:{MODULES})\b", re.MULTILINE)


def pytest_ignore_collect(collection_path):
    """Leave out files that import torch, or what needs it, where it is not installed."""
    if WITHOUT_TORCH and collection_path.suffix == ".py" and collection_path.name.startswith("test_"):
        return True if NEEDS_TORCH.search(collection_path.read_text(encoding="utf-8")) else None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup():
    """Skip tests whose fixtures train or export, where that cannot be done."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if WITHOUT_TORCH and NEEDS_TORCH.match(f"import {error.name}"):
            pytest.skip(f"needs {error.name}")
        raise


@pytest.hookimpl(trylast=True)  # once the marked ones are chosen
def pytest_collection_modifyitems(items):
    """Starts with one file that needs the tiny run and goes on with those that do not: one worker trains it while the
    other has work. Before all of them come the longest."""
    files = list(dict.fromkeys(item.path for item in items))
    needy = {item.path for item in items if {"tiny_run", "bundle", "stream"} & {*item.fixturenames}}
    first = next((path for path in files if path in needy), None)
    items.sort(
        key=lambda item: (
            item.path.name not in LONGEST,
            item.path != first,
            item.path in needy,
            files.index(item.path),
        )
    )


@pytest.fixture(autouse=True)
def _news_as_a_library_has_them():
    """What a command that ran in this process did to the ``refocus`` logger ends with its test."""
    yield
    logger = logging.getLogger("refocus")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory, pytestconfig):
    """A real run, trained on few glyphs for a few seconds: good enough to be far from chance, no more.

    It is trained and exported once for this code, into pytest's cache; each worker of each suite has a copy of its own.
    """
    if WITHOUT_TORCH:
        pytest.skip("the tiny run is trained, which needs torch")
    kept = pytestconfig.cache.mkdir("tiny-runs")
    made = kept / _code_of_runs()
    with FileLock(kept / "lock"):
        if not made.exists():
            for old in kept.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            tiny.train_tiny_run(kept / "unfinished").folder.rename(made)
    return tiny.tiny_run(shutil.copytree(made, tmp_path_factory.mktemp("runs") / "tiny"))


def _code_of_runs() -> str:
    """A digest of all that a run and its bundle are made by."""
    found = hashlib.sha256(Path(__file__).read_bytes() + Path(tiny.__file__).read_bytes())
    for part in ("edge", "export", "cloud_train"):
        for path in sorted((ROOT / part).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    for name in ("torch", "timm", "onnx", "onnxruntime", "onnxscript", "executorch", "numpy"):
        found.update(f"{name} {metadata.version(name)}".encode())
    return found.hexdigest()[:16]


@pytest.fixture(scope="session")
def letters(tmp_path_factory):
    """The committed copy of the tiny run's bundle and of one person's photos, which `python -m tests.tiny` writes."""
    folder = tmp_path_factory.mktemp("letters")
    with tarfile.open(LETTERS) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def bundle(request):
    """The tiny run's delivered bundle, exported and verified."""
    if WITHOUT_TORCH:
        from refocus.edge.bundle import load_bundle

        return load_bundle(request.getfixturevalue("letters") / "bundle")
    tiny_run = request.getfixturevalue("tiny_run")
    from refocus.cloud_train.evaluate.heads import bundle_of

    return bundle_of(tiny_run, tiny_run.head_path(0, "iciia_t"))


@pytest.fixture(scope="session")
def stream(request):
    """One unseen person's photos, as encoded bytes in order."""
    if WITHOUT_TORCH:
        return [path.read_bytes() for path in sorted((request.getfixturevalue("letters") / "photos").iterdir())]
    return tiny.stream_of(request.getfixturevalue("tiny_run"))


@pytest.fixture
def threads_asked(monkeypatch):
    """The number of threads of each program that is loaded, in their order."""
    from refocus.edge.runtimes import base

    asked, load = [], base.load_artifact

    def recorded(folder, artifact, threads=0, *more):
        asked.append(threads)
        return load(folder, artifact, threads, *more)

    monkeypatch.setattr(base, "load_artifact", recorded)
    return asked


@pytest.fixture
def photo_file(stream, tmp_path):
    path = tmp_path / "letter.png"
    path.write_bytes(stream[0])
    return path


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real photos and weights that REFOCUS_DATA names."""
    value = os.environ.get("REFOCUS_DATA")
    if not value or not Path(value).is_dir():
        pytest.skip("REFOCUS_DATA names no folder of real photos and weights")
    return Path(value)


@pytest.fixture(scope="session")
def free_port():
    """A function that gives a port of the loopback on which nobody listens."""

    def port() -> int:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return int(free.getsockname()[1])

    return port


@pytest.fixture(scope="session")
def refocus():
    """Runs the command in a process of its own, forked from one that has imported PyTorch; returns the finished one."""
    commands = ForkedCommands()

    def run(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
        return commands.run([str(argument) for argument in arguments], **more)

    return run


@pytest.fixture(scope="session")
def studies():
    """Runs ``python -m studies`` likewise."""
    commands = ForkedCommands("studies.commands.app")

    def run(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
        return commands.run([str(argument) for argument in arguments], **more)

    return run


@pytest.fixture(scope="session")
def bundle_reader(tmp_path_factory):
    """Runs the reader of bundles in C++ (``examples/``); returns the finished process."""
    compiler = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        assert not os.environ.get("REFOCUS_CI"), "no compiler of C++17 is installed"
        pytest.skip("needs a compiler of C++17")
    program = tmp_path_factory.mktemp("reader") / "bundle_reader"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *flags, "-o", program, ROOT / "examples" / "bundle_reader.cpp"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr

    def run(*words: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([program, *map(str, words)], capture_output=True, timeout=60)

    return run


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    """A copy of this checkout to build from. A build in place rewrites the metadata that installed code is found by:
    tests that run meanwhile find no entry points."""
    copy = tmp_path_factory.mktemp("source") / "refocus"
    copy.mkdir()
    for name in ("refocus", *PARTS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy)
    return copy


@pytest.fixture(scope="session")
def distributions(source, tmp_path_factory) -> Path:
    """A folder with the sdist of this checkout, and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", folder, source]
    made = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


@pytest.fixture(scope="session")
def fresh_environment(distributions):
    """Makes a virtual environment and installs the wheel with extras into it.

    Libraries that the extras need are hard links to those of this environment, so that gigabytes need not be fetched;
    pip checks that they are what the extras ask for, and fetches what is missing. Those named ``anew`` it always
    fetches and installs itself.
    """
    (wheel,) = distributions.glob("refocus_edge-*.whl")
    about = next(path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info"))
    own = metadata.PathDistribution(about).requires

    def make(folder: Path, extras: str, anew=(), *options: object) -> Path:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = folder / "bin" / "python"
        command = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        libraries = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        _link_distributions(_needed(f"refocus-edge[{extras}]", own) - set(anew), libraries)
        command = [python, "-m", "pip", "install", "--quiet", *options, "--constraint", ROOT / "constraints.txt"]
        done = subprocess.run([*command, f"{wheel}[{extras}]"], capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        return python

    return make


def _needed(requirement: str, own: list[str]) -> set[str]:
    """Names of the installed distributions that a requirement of ours, whose requirements are ``own``, asks for."""
    found, left, seen = set(), [(requirement, "")], set()
    while left:
        text, extra = left.pop()
        asked = Requirement(text)
        if asked.marker is not None and not asked.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(asked.name)
        for wanted in ("", *asked.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                with contextlib.suppress(metadata.PackageNotFoundError):
                    asks = own if name == "refocus-edge" else metadata.requires(name)
                    left += [(each, wanted) for each in asks or []]
                    found.add(name)
    return found - {"refocus-edge", "setuptools"}  # which a new environment may have already


def _link_distributions(names: set[str], libraries: Path) -> None:
    for file in (file for name in names for file in metadata.files(name) or []):
        source, place = Path(file.locate()), libraries / file
        if ".." not in file.parts and source.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, place)
            except OSError:  # another disk
                place.symlink_to(source)


@pytest.fixture(scope="session")
def assert_one_clear_line():
    """Checks that a finished process failed with one line for people, which has some words in it."""

    def check(done: subprocess.CompletedProcess[str], *words: str) -> None:
        assert done.returncode == 1, done.stdout + done.stderr
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith("refocus: ")
        for word in words:
            assert word in line

    return check


BANK_CLASSES = ("red wolf", "coyote", "grey fox", "red fox", "kit fox", "tabby, tabby cat", "lion", "tiger", "lynx",
                "puma", "otter", "badger")  # fmt: skip


@pytest.fixture(scope="session")
def make_bank():
    """Makes TAPER checkpoints of bases that are distinct and still answer photos differently, without training."""
    from refocus.cloud_train.bench.random_bank import write_random_bank

    return write_random_bank


@pytest.fixture(scope="session")
def bank_checkpoint(make_bank, tmp_path_factory):
    """A TAPER checkpoint of a very small network, beside drawn photos."""
    import numpy as np

    folder = tmp_path_factory.mktemp("bank")
    draw_photos(folder / "parity", np.random.default_rng(0))
    photos = [path.read_bytes() for path in sorted((folder / "parity").rglob("*.png"))]
    arguments = {"channels": [8, 16, 32, 64], "stem_width": 8}
    return make_bank(folder / "taper.safetensors", "resnet10t", arguments, BANK_CLASSES, 32, 3, photos)


def draw_photos(folder: Path, rng) -> None:
    """Two people with a few photos each: coarse patterns, no two alike."""
    import numpy as np
    from PIL import Image

    for person in ("anna", "bob"):
        (folder / person).mkdir(parents=True)
        for number in range(8):
            coarse = Image.fromarray(rng.integers(0, 255, (5, 5, 3), dtype=np.uint8))
            coarse.resize((48, 48)).save(folder / person / f"{number}.png")


@pytest.fixture(scope="session")
def bank_bundle(bank_checkpoint):
    """The bank of that checkpoint as a bundle, for ONNX Runtime in fp32, fp16 and int8."""
    from refocus.export.bank.write import export_bank
    from refocus.export.bundle.write import Export
    from refocus.export.parity.photos import read_streams

    streams = read_streams(bank_checkpoint.path.parent / "parity")
    out = bank_checkpoint.path.parent / "bundle"
    return export_bank(bank_checkpoint, out, Export(["onnx:fp32", "onnx:fp16", "onnx:int8"]), streams)


@pytest.fixture(scope="session")
def updating():
    """What the tests of releases and updates share, as a module: the folders of the tests are no packages."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("updating", Path(__file__).parent / "edge" / "update" / "updating.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
