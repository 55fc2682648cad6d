"""The README tells the truth: its commands run as they stand, its links lead somewhere, its figures are generated."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from refocus.benchmarks.commands.bench import DEFAULT_COMMAND
from refocus.benchmarks.report.suite_tables import table_1
from refocus.benchmarks.suite import paper_flops, read_pairs, read_suite
from refocus.cloud_train.evaluate.bank_replay import CONDENSED, FOREIGN, GENERIC
from refocus.cloud_train.federated.methods import METHODS
from studies.commands.app import app as studies_app
from studies.report.readme_table import readme_costs, readme_table
from tests import renamed_commands

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "docs" / "results"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_file_and_folder_of_ours_that_a_page_names_exists():
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        for path in re.findall(
            r"`((?:edge|export|benchmarks|cloud_train|studies|tests)/[\w/.-]*)`", page.read_text(encoding="utf-8")
        ):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_everything_that_python_on_the_pages_imports_can_be_imported():
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            imports = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(body=imports, type_ignores=[]), page.name, "exec"), {})


@pytest.fixture(scope="module")
def commands():
    """The command line as it is built, for looking at without a process per command."""
    from refocus.edge.commands.app import app, register_all

    register_all()
    return app, typer.main.get_command(app)


def command_of(commands, words):
    """The command that a line runs, however many of its words name it."""
    found = commands[1]
    while hasattr(found, "commands"):
        word = words[0] if words else ""
        found = found.commands.get(word) or found.commands[DEFAULT_COMMAND]
        words = words[1:]
    return found


def test_every_command_has_a_page_and_every_page_a_command(commands):
    named = set(re.findall(r"`refocus ([a-z ]+)`", (ROOT / "docs/commands/README.md").read_text()))
    for words in named:
        done = CliRunner().invoke(commands[0], [*words.split(), "--help"])
        assert done.exit_code == 0, words
    assert named == {command.callback.__name__ for command in commands[0].registered_commands} | {
        "train iciia",
        "train taper",
        "train federated",
        "train prompt",
        "history",
        "personal",
        "federate",
        "bench",
        "update",
        "release",
        "pipeline",
    }


def test_pages_count_the_federated_methods_as_they_are():
    named = "pFedPG, FedPerfix, FedCLIP and "
    assert f"[{named}{len(METHODS) - 3} more methods and variants]" in README
    for page in ("docs/tutorials/federate.md", "docs/commands/README.md"):
        assert f" {len(METHODS)} methods" in (ROOT / page).read_text(encoding="utf-8"), page


def test_make_knows_the_targets_the_readme_names():
    targets = re.findall(r"^make (\S+)", "\n".join(blocks("sh")), re.MULTILINE)
    assert set(targets) == {"demo"}
    for target in (*targets, "demo-train", "device-test", "test", "test-slow", "lint"):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_flags_of_the_other_commands_exist(commands):
    """Blocks that need a user's own photos are not run; their flags are still checked."""
    for line in "".join(blocks("console")).splitlines():
        words = line.split()
        if words[0] != "refocus":
            continue
        known = {flag for parameter in command_of(commands, words[1:]).params for flag in parameter.opts}
        for flag in (word for word in words if word.startswith("--")):
            assert flag in known, line


def named_commands(text: str) -> list[list[str]]:
    """The words of every call of refocus in a page's code: of blocks, of synopses without their brackets, of sentences."""
    text = re.sub(r"\\\n\s*", " ", text)
    calls = re.findall(r"`((?:refocus|python -m studies) [^`]+)`", text)
    calls += re.findall(r"^ *(?:\$ )?(?:\S*/)?((?:refocus|python -m studies) .+)$", text, re.MULTILINE)
    return [re.sub(r"[\[\]()|…]", " ", call).split() for call in calls if "\\n" not in call]


def unknown_word(commands, words: list[str]) -> str:
    """The first word of a call that is no command or flag; "" where all are. Capitals stand for something else."""
    if words[:3] == ["python", "-m", "studies"]:
        commands, words = (None, typer.main.get_command(studies_app)), words[2:]
    command, left = commands[1], words[1:]
    while hasattr(command, "commands") and left and not left[0].isupper():
        if left[0] in command.commands:
            command, left = command.commands[left[0]], left[1:]
        elif words[1:] != left and words[1] == "bench":
            command = command.commands[DEFAULT_COMMAND]
        else:  # flags of the command line itself, as --help
            return "" if left[0].startswith("--") else left[0]
    if hasattr(command, "commands"):
        return ""
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    flags = (word.rstrip(",.;:") for word in left if word.startswith("--"))
    return next((flag for flag in flags if flag not in known), "")


def test_every_command_and_flag_that_a_page_names_exists(commands):
    found = 0
    for page in PAGES:
        # Old commands, and what documents say, which the next test checks.
        if page.name in ("CHANGELOG.md", "renamed.md") or page == ROOT / "docs/results.md" or page.parent == RESULTS:
            continue
        for words in named_commands(page.read_text(encoding="utf-8")):
            found += 1
            assert unknown_word(commands, words) == "", f"{page.relative_to(ROOT)}: {' '.join(words)}"
    assert found > 400


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("`refocus bench --compare` matches", "--compare"),
        ("    $ refocus bench compares a b\n", ""),  # a bundle of that name
        ("    refocus update go FOLDER\n", "go"),
        ("```sh\n.venv/bin/refocus recognize bundle \\\n  --colour\n```", "--colour"),
        ("`refocus history list [--profile NAME | --colour]`", "--colour"),
    ],
)
def test_the_check_of_commands_can_fail(text, word, commands):
    (words,) = named_commands(text)
    assert unknown_word(commands, words) == word


def test_every_command_that_made_a_document_can_be_typed_today(commands):
    documents = sorted((ROOT / "docs/results").rglob("*.json"))
    typed = {str(json.loads(path.read_text(encoding="utf-8")).get("command")) for path in documents}
    modules = {" ".join(line.split()[:3]) for line in typed if line.startswith("python -m ")}
    assert len(modules) > 3
    typed = {line for line in typed if line.startswith("refocus ")}
    assert len(typed) > 30
    table, old, present = (
        renamed_commands.read_table(),
        renamed_commands.old_commands(),
        renamed_commands.present_commands(),
    )
    for module in modules:
        place = ROOT / module.split()[2].replace(".", "/")
        assert module in table or place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module
    for line in typed:
        words = shlex.split(line)
        name = max((known for known in old if f"{line} ".startswith(f"{known} ")), key=len)
        flags = [word for word in words if word.startswith("--")]
        if name not in present or any(renamed_commands.successor(name, flag, table)[0] for flag in flags):
            assert all(
                renamed_commands.successor(name, word, table)[0] for word in ("", *flags) if name not in present
            ), line
            continue
        known = {flag for parameter in command_of(commands, words[1:]).params for flag in parameter.opts}
        unknown = {word for word in words if word.startswith("--")} - known
        assert not unknown or words[1:3] == ["train", "federated"], line  # settings since 0.1 (docs/settings.md)


def test_results_in_the_readme_are_generated():
    assert readme_table(RESULTS) in README
    assert readme_costs(RESULTS) in README
    assert len(README.splitlines()) <= 120


def test_table_1_is_generated_from_its_documents():
    documents = read_pairs(RESULTS / "suite")
    table = "\n".join(table_1(documents.values(), paper_flops()))
    assert (RESULTS / "suite" / "table1.md").read_text(encoding="utf-8").startswith(table + "\n")
    measured = {document.rows[0].bundle for document in documents.values() if document.rows}
    assert len(measured) >= 8
    assert measured <= {backbone.name for backbone in read_suite().backbone}


@pytest.mark.slow
def test_the_readme_commands_run_as_they_stand(tmp_path):
    """In a fresh clone, as a reader has it; without torch."""
    clone, home = tmp_path / "refocus", {"HOME": str(tmp_path)}
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)

    def run(*command, **changed):
        own = {**os.environ, **changed}
        done = subprocess.run(command, cwd=clone, env=own, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    printed = run("make", "demo", f"PYTHON={sys.executable}")
    (shown,) = blocks("text")
    for line in shown.splitlines():  # processors differ in the last bits of int8
        found = [other for other in printed.splitlines() if re.sub(r"\d+", "", other) == re.sub(r"\d+", "", line)]
        assert found, line
        numbers = (np.array(re.findall(r"\d+", text), int) for text in (line, found[0]))
        assert np.abs(np.subtract(*numbers)).max(initial=0) <= 3, (line, found)
    assert (clone / "demo" / "album.html").stat().st_size > 50_000
    shutil.copy(clone / "demo" / "photos" / "000-coffee.jpg", clone / "photo.jpg")
    python = clone / ".venv-device" / "bin" / "python"
    (line,) = (line for line in "".join(blocks("console")).splitlines() if line.startswith("refocus recognize photo"))
    assert "espresso" in run(python.with_name("refocus"), *line.split()[1:], **home)
    (block,) = blocks("python")
    assert "espresso" in run(python, "-c", block, **home)
    run(python, "-c", "import importlib.util\nassert importlib.util.find_spec('torch') is None")


@pytest.mark.full
@pytest.mark.slow
def test_the_demo_of_training_runs_as_a_whole(tmp_path):
    command = [Path(sys.executable).with_name("refocus"), "demo", "--out", "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=2400)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    results = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert results["gain"]["delivered"]["15"]["mean"] > 0.05
    report = (tmp_path / "demo" / "report.html").read_text()
    assert len(report) > 50_000
    assert "TAPER: a network of its own for each task" in report
    bank = json.loads((tmp_path / "demo" / "taper" / "studies" / "bank.json").read_text())
    accuracy = {row["name"]: row["accuracy"] for row in bank["rows"]}
    assert accuracy[CONDENSED] > max(accuracy[GENERIC], accuracy[FOREIGN])
