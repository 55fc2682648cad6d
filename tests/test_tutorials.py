"""The tutorials are listed, and their commands and flags exist. That all of them run: test_page_commands.py."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from refocus.benchmarks.commands.bench import DEFAULT_COMMAND

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "tutorials"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")


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
