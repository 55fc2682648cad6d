"""The check of the writing rules: what it refuses, and a list of older violations that never grows."""

from __future__ import annotations

import re
import subprocess
from collections import Counter

import pytest

from tests.style import LIST, ROOT, main, read

GOOD = '"""Parts."""\n\n\ndef build() -> None:\n    """Build it."""\n'
BAD = '"""Parts."""\n\n\ndef build() -> None:\n    """Builds it."""\n'
WORSE = BAD + '\n\ndef name() -> None:\n    """Makes it."""\n'


@pytest.fixture
def root(tmp_path):
    """A repository with one older file, listed with one violation."""
    (tmp_path / "edge").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "edge" / "old.py").write_text(BAD)
    (tmp_path / LIST).write_text("edge/old.py D401=1\n")
    return tmp_path


def listed(root):
    return read(root / LIST)


def test_the_rules_and_their_page_are_no_exception():
    assert not {"tests/style.py", "tests/prose.py", "docs/style.md", "CONTRIBUTING.md"} & read(ROOT / LIST).keys()


def test_listed_violations_are_no_error(root):
    assert main([], root) == 0


@pytest.mark.parametrize(
    ("text", "line", "rule", "advice"),
    [
        ('def f():\n    """Builds it."""\n', 2, "D401", 'imperative mood: "Builds it."'),
        ('def _f():\n    """Builds it."""\n', 2, "D401", 'imperative mood: "Builds it."'),
        ("def f():\n    return 1\n", 1, "D103", "Missing docstring in public function"),
        (f'class A:\n    """A {"long " * 14}line."""\n', 2, "first-line", "has 77 characters; write at most 72"),
        ('class A:\n    """What is known."""\n', 2, "opener", '"What" opens the docstring'),
        ("VALUE = 1  # of whoever asks\n", 1, "word", '"whoever"; write: the user, the caller'),
        ('def _f():\n    raise ValueError("a part beside it")\n', 2, "word", '"beside"; write: next to, with'),
    ],
)
def test_a_violation_in_a_new_file_is_named_with_its_line_and_advice(root, capsys, text, line, rule, advice):
    (root / "edge" / "new.py").write_text(f'"""Parts."""\n\n\n{text}')
    assert main([], root) == 1
    assert re.fullmatch(f"edge/new.py:{line + 3}: {rule}: .*{re.escape(advice)}.*\n", capsys.readouterr().out)


def test_a_new_page_is_checked(root, capsys):
    (root / "docs").mkdir()
    (root / "docs" / "new.md").write_text("# New\n\nIt is told.\n")
    assert main([], root) == 1
    assert capsys.readouterr().out.startswith('docs/new.md:3: word: "told"')


def test_private_names_and_init_need_no_docstring(root):
    (root / "edge" / "new.py").write_text(
        '"""Parts."""\n\n\ndef _f():\n    return 1\n\n\nclass A:\n    """Parts."""\n\n    def __init__(self):\n        self.a = 1\n'
    )
    assert main([], root) == 0


def test_noqa_does_not_silence_a_rule(root):
    (root / "edge" / "new.py").write_text(BAD.replace('it."""', 'it."""  # noqa: D401'))
    assert main([], root) == 1


@pytest.mark.parametrize("flags", [[], ["--write"], ["--regenerate"]])
def test_more_violations_in_a_listed_file_are_refused(root, flags):
    (root / "edge" / "old.py").write_text(WORSE)
    assert main(flags, root) == 1
    assert listed(root) == {"edge/old.py": Counter(D401=1)}


def test_only_violations_that_the_last_commit_lacks_are_named(root, capsys):
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    (root / "edge" / "old.py").write_text(WORSE)
    assert main([], root) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("edge/old.py:9: D401: ")
    assert last == "edge/old.py: 2 of D401, 1 listed; fix the new ones"


def test_one_rule_does_not_pay_for_another(root):
    (root / "edge" / "old.py").write_text(GOOD + "# told\n")
    assert main([], root) == 1
    assert main(["--write"], root) == 1


@pytest.mark.parametrize("remove", [False, True])
def test_fewer_violations_demand_a_lower_list(root, capsys, remove):
    (root / "edge" / "old.py").write_text(GOOD)
    if remove:
        (root / "edge" / "old.py").unlink()
    assert main([], root) == 1
    assert (
        capsys.readouterr().out
        == f"edge/old.py: fewer violations than {LIST} has; run: python -m tests.style --write\n"
    )
    assert main(["--write"], root) == 0
    assert listed(root) == {}
    assert main([], root) == 0


@pytest.mark.parametrize("place", ["export/old.py", "edge/renamed.py"])
def test_a_renamed_file_keeps_its_line_once(root, place):
    (root / "export").mkdir()
    (root / "edge" / "old.py").rename(root / place)
    assert main([], root) == 1
    assert main(["--write"], root) == 0
    assert listed(root) == {place: Counter(D401=1)}
    (root / "edge" / "copy.py").write_text(BAD)
    assert main(["--write"], root) == 1


def test_a_line_passes_to_the_file_of_the_same_name(root):
    (root / "edge" / "other.py").write_text(WORSE)
    main(["--write"], root)
    (root / LIST).write_text("edge/old.py D401=1\nedge/other.py D401=2\n")
    (root / "export").mkdir()
    for name in ("other", "old"):
        (root / "edge" / f"{name}.py").rename(root / "export" / f"{name}.py")
    assert main(["--write"], root) == 0
    assert listed(root) == {"export/old.py": Counter(D401=1), "export/other.py": Counter(D401=2)}


def test_a_new_file_gets_no_line_while_the_old_one_exists(root, capsys):
    (root / "export").mkdir()
    (root / "export" / "old.py").write_text(BAD)
    assert main(["--write"], root) == 1
    assert "export/old.py: D401=1 more than listed" in capsys.readouterr().err


def test_regenerating_spreads_a_split_file_but_never_adds(root, capsys):
    (root / LIST).write_text("edge/old.py D401=2\n")
    (root / "edge" / "part.py").write_text(BAD)
    assert main(["--write"], root) == 1
    assert main(["--regenerate"], root) == 0
    assert listed(root) == {"edge/old.py": Counter(D401=1), "edge/part.py": Counter(D401=1)}
    (root / "edge" / "third.py").write_text(BAD)
    assert main(["--regenerate"], root) == 1
    assert "edge/third.py: D401=1 more than listed\n3 violations, 2 listed" in capsys.readouterr().err


def test_a_missing_list_is_named_and_regenerated(root, capsys):
    (root / LIST).unlink()
    assert main([], root) == 1
    assert "is missing" in capsys.readouterr().err
    assert main(["--regenerate"], root) == 0
    assert listed(root) == {"edge/old.py": Counter(D401=1)}


@pytest.mark.parametrize("line", ["<<<<<<< HEAD", "edge/old.py", "edge/old.py D401=0", "edge/old.py D401=1"])
def test_a_list_with_conflicts_or_two_lines_for_a_file_is_refused(root, capsys, line):
    (root / LIST).write_text(f"edge/old.py D401=1\n{line}\n")
    for flags in ([], ["--write"], ["--regenerate"]):
        assert main(flags, root) == 1
        assert f"{LIST}:2: {line!r}: expected" in capsys.readouterr().err


def test_generated_pages_are_left_out(root):
    (root / "docs" / "results").mkdir(parents=True)
    for page in ("results.md", "results/iciia.md", "robustness.md"):
        (root / "docs" / page).write_text("It is told.\n")
    assert main([], root) == 0
