"""The tutorials: commands and flags exist, and every block to paste runs, page by page, each in a folder of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from refocus.benchmarks.commands.bench import DEFAULT_COMMAND

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "tutorials"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
LETTERS = tuple(f"greek small letter {name}" for name in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"))
# Pages that need what the first block of an earlier page makes.
AFTER = {"personal-without-training": "export-my-network"}


def blocks(page: str) -> list[tuple[str, str]]:
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```(sh|console|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """The calls of refocus in a page's blocks for the shell, as words."""
    found = []
    for kind, block in blocks(page):
        if kind != "python":
            lines = block.replace("\\\n", " ").splitlines()
            found += [shlex.split(line.split(" > ")[0]) for line in lines if line.startswith("refocus ")]
    return found


@pytest.fixture(scope="module")
def top():
    from refocus.edge.commands.app import app, register_all

    register_all()
    return typer.main.get_command(app)


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_flags_of_the_tutorials_exist(page, top):
    assert commands(page)
    for words in commands(page):
        command, left = top, words[1:]
        while hasattr(command, "commands"):
            command, left = command.commands.get(left[0]) or command.commands[DEFAULT_COMMAND], left[1:]
        known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in left if word.startswith("--")} <= known, words


def test_every_tutorial_is_listed():
    listed = re.findall(r"\]\(([\w-]+)\.md\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == PAGES


@pytest.fixture(scope="module")
def demo_folder(tiny_run, bundle, make_bank, tmp_path_factory):
    """A folder with ``demo/`` as `refocus demo` lays it out, of smaller training: the letters' head, and a bank."""
    from refocus.export.bank.write import export_bank
    from refocus.export.bundle.write import Export
    from refocus.export.parity.photos import read_streams

    folder = tmp_path_factory.mktemp("tutorials")
    shutil.copytree(bundle.folder, folder / "demo" / "seed-0" / "bundles" / "iciia_t")
    shutil.copytree(tiny_run.folder / "parity", folder / "demo" / "parity")
    taper = folder / "demo" / "taper" / "seed-0"
    shutil.copytree(tiny_run.folder / "parity", taper / "parity")
    streams = read_streams(taper / "parity")
    photos = [path.read_bytes() for path in sorted((taper / "parity").rglob("*.png"))[:8]]
    arguments = {"channels": [8, 16, 32, 64], "stem_width": 8}
    checkpoint = make_bank(taper / "taper.safetensors", "resnet10t", arguments, LETTERS, 32, 3, photos)
    export_bank(checkpoint, taper / "bank", Export(["onnx:fp32"]), streams)
    return folder


def paste(page: str, folder: Path, blocks_at_most: int | None = None) -> None:
    binaries = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "XDG_DATA_HOME": str(folder / "data"),
                   "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "160"}  # fmt: skip
    for kind, block in [found for found in blocks(page) if found[0] != "console"][:blocks_at_most]:
        command = ["bash", "-euo", "pipefail", "-c", block] if kind == "sh" else [sys.executable, "-c", block]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{page}:\n{block}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_to_paste_of_a_tutorial_runs(page, demo_folder, tmp_path):
    folder = tmp_path / "place"
    shutil.copytree(demo_folder, folder)
    if page in AFTER:
        paste(AFTER[page], folder, 1)
    paste(page, folder)
