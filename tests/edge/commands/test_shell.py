"""What a shell sees of ``refocus``: panels of its help, completion, and silence where it is asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refocus.edge.commands import app as cli
from refocus.edge.commands.news import show_news, shows_progress, track

REFOCUS = Path(sys.executable).parent / "refocus"
PANELS = ["Device", "Train", "Export", "Measure", "Release"]


@pytest.fixture(scope="module")
def command():
    return cli.command()


def leaves(group):
    for subcommand in group.commands.values():
        yield from leaves(subcommand) if hasattr(subcommand, "commands") else [subcommand]


def test_help_shows_every_command_in_a_panel_in_the_order_of_use(refocus, command):
    shown = refocus("--help").stdout
    assert re.findall(r"^╭─ (\w+) ─", shown, re.MULTILINE) == ["Options", *PANELS]
    assert {each.rich_help_panel for each in command.commands.values()} == set(PANELS)


def complete(words: str, shell: str = "bash") -> list[str]:
    """What a shell is told to offer for the last word."""
    number = len(words.split(" ")) - 1
    asked = {"_REFOCUS_COMPLETE": f"complete_{shell}", "COMP_WORDS": words, "COMP_CWORD": str(number),
             "_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}  # fmt: skip
    done = subprocess.run([REFOCUS], env=os.environ | asked, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_a_shell_is_offered_commands_subcommands_and_flags():
    assert complete("refocus re") == ["recognize", "release"]
    assert "iciia" in complete("refocus train ")
    assert {"--profile", "--profiles", "--precision", "--provider"} <= set(complete("refocus recognize --p"))
    assert "recognize" in complete("refocus recog", "fish")


def test_completion_is_installed_into_the_users_shell(tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("no bash on this machine")
    own = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [REFOCUS, "--install-completion", "bash"], env=os.environ | own, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "_REFOCUS_COMPLETE=complete_bash" in (tmp_path / ".bash_completions" / "refocus.sh").read_text()
    assert "refocus.sh" in (tmp_path / ".bashrc").read_text()


def test_every_command_can_be_quiet(command):
    for leaf in leaves(command):
        assert [option.opts for option in leaf.params if "--quiet" in option.opts] == [["--quiet"]], leaf.name


@pytest.fixture
def run(command, monkeypatch, capsys):
    """Runs a command in this process; returns its status and both outputs."""
    monkeypatch.setattr(cli, "command", lambda: command)

    def called(*words):
        monkeypatch.setattr("sys.argv", ["refocus", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return called


@pytest.mark.parametrize("before", [True, False])
def test_quiet_leaves_results_alone_and_holds_back_notes(run, bundle, tmp_path, before):
    words = (
        "bench",
        bundle.folder,
        "--quick",
        "--only",
        "stages",
        "--out",
        tmp_path,
    )
    status, out, err = run(*words)
    assert (status, len(err.splitlines())) == (0, 2), err  # the group that is measured, and the document
    assert str(tmp_path) in err
    quiet = ("--quiet", *words) if before else (*words, "--quiet")
    status, silent_out, err = run(*quiet)
    assert (status, err) == (0, "")
    assert silent_out.split()[:2] == out.split()[:2]
    document = sorted(tmp_path.glob("*.json"))[-1].read_text()
    assert f'"command":"refocus bench {bundle.folder.name} --quick' in re.sub(r'":\s+"', '":"', document)


def test_quiet_leaves_warnings_and_errors_alone(run, bundle, photo_file, tmp_path):
    status, _, err = run("--quiet", "recognize", bundle.folder, tmp_path / "none.png", "--profiles", tmp_path)
    assert (status, len(err.splitlines())) == (1, 1)
    (tmp_path / "anna.history.sqlite3").write_bytes(b"damaged" * 4000)
    arguments = ("recognize", bundle.folder, photo_file, "--profile", "anna", "--profiles", tmp_path)
    status, out, err = run(*arguments, "--quiet")
    assert (status, out.count(str(photo_file))) == (0, 1)
    assert err.startswith("anna: ")


def test_a_library_that_is_imported_sets_no_handler_and_shows_nothing_it_was_not_asked_for():
    code = (
        "import logging, refocus.edge.recognize, refocus.edge.commands as c, refocus.cloud_train.progress as p\n"
        "assert not logging.getLogger('refocus').handlers and not logging.getLogger().handlers\n"
        "p.say('a note')\n"
        "assert list(p.track([1, 2], 'items')) == [1, 2]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_progress_is_drawn_on_a_terminal_alone_and_never_in_quiet(run, monkeypatch, capsys):
    show_news()
    assert list(track(range(3), "photos")) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert shows_progress()
    list(track(range(3), "photos"))
    assert "3/3" in capsys.readouterr().err
    show_news(quiet=True)
    list(track(range(3), "photos"))
    assert capsys.readouterr().err == ""


def test_progress_off_a_terminal_is_a_line_now_and_then_with_the_time_left(monkeypatch, capsys):
    show_news()
    monkeypatch.setattr("refocus.edge.commands.news.LINE_S", 0.0)
    assert list(track(range(3), "photos")) == [0, 1, 2]
    first, second = capsys.readouterr().err.splitlines()
    assert (first, second) == ("photos: 1 of 3, 0:00:00 left", "photos: 2 of 3, 0:00:00 left")
    assert list(track(iter("ab"), "letters")) == ["a", "b"]
    assert capsys.readouterr().err == "letters: 1\nletters: 2\n"
    show_news(quiet=True)
    list(track(range(3), "photos"))
    assert capsys.readouterr().err == ""


def test_help_loads_neither_progress_bars_nor_arrays():
    code = (
        "import sys\nfrom refocus.edge.commands.app import command\n"
        "try:\n    command()(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'rich.progress', 'numpy', 'PIL', 'msgspec', 'torch'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
