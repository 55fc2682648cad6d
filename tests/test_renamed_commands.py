"""Every command and option of a 0.2 development version exists, or the table of renamed commands names its successor."""

from __future__ import annotations

import pytest

from tests.renamed_commands import PAGE, findings, old_commands, page, present_commands, read_table

OLD = {"refocus": ["--quiet"], "refocus go": ["--far", "PLACE"], "refocus study": [], "refocus study a": ["--seeds"],
       "refocus study b": []}  # fmt: skip
NEW = {"refocus": ["--quiet"], "refocus go": ["--far", "PLACE"], "python -m studies": [],
       "python -m studies a": ["--seeds"], "python -m studies b": []}  # fmt: skip
MOVED = {"refocus study *": "python -m studies *"}


@pytest.fixture(scope="module")
def present():
    return present_commands()


def test_every_old_command_and_option_exists_or_has_a_successor(present):
    assert findings(old_commands(), present, read_table()) == []


def test_the_old_commands_are_those_of_the_whole_command_line(present):
    assert set(present) & set(old_commands()) > {"refocus", "refocus recognize", "refocus export"}
    assert len(old_commands()) > 90
    assert sum(map(len, old_commands().values())) > 600


def test_the_page_of_renamed_commands_is_generated_from_the_table():
    assert PAGE.read_text(encoding="utf-8") == page(read_table())


def test_a_moved_group_takes_its_commands_and_options_along():
    assert findings(OLD, NEW, MOVED) == []
    assert "| `refocus study *` | `python -m studies *` |" in page(MOVED)


@pytest.mark.parametrize(
    ("new", "table", "expected"),
    [
        (NEW, {}, "refocus study a --seeds: it no longer exists and has no entry"),
        ({**NEW, "refocus go": ["PLACE"]}, MOVED, "refocus go --far: it no longer exists and has no entry"),
        ({**NEW, "python -m studies a": []}, MOVED,
         "refocus study a --seeds: its new name 'python -m studies a --seeds' does not exist"),
        (NEW, {**MOVED, "refocus study b": "python -m studies c"},
         "refocus study b: its new name 'python -m studies c' does not exist"),
        (NEW, {**MOVED, "refocus go --far": "removed"}, "refocus go --far: it still exists, remove its entry"),
        (NEW, {**MOVED, "refocus stop": "removed"}, "refocus stop: no old command or option needs this entry"),
        (NEW, {**MOVED, "refocus go *": "removed"}, "refocus go *: no old command or option needs this entry"),
    ],
)  # fmt: skip
def test_the_comparison_can_fail(new, table, expected):
    assert expected in findings(OLD, new, table)


@pytest.mark.parametrize(
    ("entry", "successor"),
    [
        ("refocus go --far", "removed"),
        ("refocus go --far", "refocus go --distance"),
        ("refocus go --far", "refocus go --set distance=NUMBER"),
    ],
)
def test_an_option_is_renamed_or_removed_by_an_entry_of_its_own(entry, successor):
    new = {**NEW, "refocus go": ["--distance", "--set", "PLACE"]}
    assert findings(OLD, new, {**MOVED, entry: successor}) == []


def test_the_most_specific_entry_counts():
    new = {**NEW, "refocus compare": ["--random-seeds"]}
    del new["python -m studies a"]
    table = {**MOVED, "refocus study a": "refocus compare", "refocus study a --seeds": "refocus compare --random-seeds"}
    assert findings(OLD, new, table) == []
