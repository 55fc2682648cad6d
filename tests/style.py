"""Check the writing rules; a list of older violations may only shrink.

    python -m tests.style               # check; `make lint` runs it
    python -m tests.style --write       # lower the list to what is left, and follow renamed files
    python -m tests.style --regenerate  # write the list again after a merge or a split; its total may not grow

The rules are in docs/style.md. `tests/style.txt` has one line for each file that breaks a rule, with the number of
violations of each rule. A file may have as many as its line allows, and a file without a line none. Fewer is an error
too, until `--write` lowers the line.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.prose import ROOT, Text, files, texts, words

LIST = "tests/style.txt"
# A class documents its arguments and magic methods; hence without D105 and D107.
RUFF = ("check", "--select=D,D401", "--ignore=D105,D107", "--ignore-noqa", "--exit-zero", "--output-format=json")
FIRST_LINE = 72
OPENERS = re.compile(
    r"(what|of|who|whose|which|whoever|as (of|in|for|from)|it|its|they|their|this|that|these|those|one|where|how|so)\b",
    re.IGNORECASE,
)

Counts = dict[str, Counter[str]]  # file -> rule -> violations


class Violation(NamedTuple):
    """A place that breaks a rule, and what to write there."""

    file: str
    line: int
    rule: str
    advice: str


class Refused(Exception):
    """The list cannot be read, or would grow."""


def violations(root: Path = ROOT) -> list[Violation]:
    """Return every violation in the covered files, sorted."""
    found = [violation for text in texts(root) for violation in _of_text(text)]
    return sorted({*found, *_of_ruff(root)})


def count(found: Iterable[Violation]) -> Counts:
    """Return the number of violations per file and rule."""
    counts: Counts = {}
    for violation in found:
        counts.setdefault(violation.file, Counter())[violation.rule] += 1
    return counts


def read(path: Path) -> Counts:
    """Read a list.

    Raises:
        Refused: it is missing, or a line has another form, as conflict markers have, or names a file twice.
    """
    if not path.exists():
        raise Refused(f"{path} is missing: restore it with git, or run: python -m tests.style --regenerate")
    counts: Counts = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        file, *rules = line.split(" ")
        if file in counts or not rules or not all(re.fullmatch(r"[\w-]+=[1-9]\d*", rule) for rule in rules):
            raise Refused(
                f"{path}:{number}: {line!r}: expected `FILE RULE=COUNT ...`, one line per file; merge it again"
            )
        counts[file] = Counter({rule.split("=")[0]: int(rule.split("=")[1]) for rule in rules})
    return counts


def write(path: Path, counts: Counts) -> None:
    """Write a list, one line per file, sorted."""
    lines = [f"{file} {_shown(rules)}\n" for file, rules in sorted(counts.items())]
    path.write_text("".join(lines), encoding="utf-8")


def total(counts: Counts) -> int:
    """Return the number of violations in all files."""
    return sum(rules.total() for rules in counts.values())


def check(found: list[Violation], listed: Counts, root: Path = ROOT) -> list[str]:
    """Return the complaints.

    They are violations beyond the list, and lines of the list that must be lowered.
    """
    complaints = []
    counts = count(found)
    for file in sorted(counts):
        for rule, n in sorted(counts[file].items()):
            allowed = listed.get(file, Counter())[rule]
            if n > allowed:
                places = [each for each in found if (each.file, each.rule) == (file, rule)]
                complaints += [f"{each.file}:{each.line}: {rule}: {each.advice}" for each in _new(places, root)]
                complaints += [f"{file}: {n} of {rule}, {allowed} listed; fix the new ones"] if allowed else []
    for file, rules in sorted(listed.items()):
        if any(counts.get(file, Counter())[rule] < n for rule, n in rules.items()):
            complaints.append(f"{file}: fewer violations than {LIST} has; run: python -m tests.style --write")
    return complaints


def lowered(counts: Counts, listed: Counts, exist: set[str]) -> Counts:
    """Return `counts` if no file has more violations than listed.

    A file without a line takes the line of a file that no longer exists: of the same file name if that line allows
    its violations, otherwise of any name with equal numbers.

    Raises:
        Refused: a file has more.
    """
    gone = {file: rules for file, rules in listed.items() if file not in exist}
    limits = dict(listed)
    for file in sorted(counts.keys() - listed.keys()):
        same_name = [old for old in gone if Path(old).name == Path(file).name and counts[file] <= gone[old]]
        same_name.sort(key=lambda old: gone[old].total())
        equal = [old for old in gone if gone[old] == counts[file]]
        limits[file] = next((gone.pop(old) for old in [*same_name, *equal]), Counter())
    if grown := _grown(counts, limits):
        raise Refused(f"{grown}the list may only shrink: fix these files (docs/style.md)")
    return counts


def regenerated(counts: Counts, listed: Counts) -> Counts:
    """Return `counts` if their total is at most that of the list.

    Raises:
        Refused: the total is larger.
    """
    if total(counts) > total(listed):
        grown = _grown(counts, listed)
        raise Refused(f"{grown}{total(counts)} violations, {total(listed)} listed: fix the difference (docs/style.md)")
    return counts


def _grown(counts: Counts, limits: Counts) -> str:
    """Return a line for each file with more violations than its limit."""
    more = {file: rules - limits.get(file, Counter()) for file, rules in sorted(counts.items())}
    return "".join(f"{file}: {_shown(rules)} more than listed\n" for file, rules in more.items() if rules)


def _shown(rules: Counter[str]) -> str:
    return " ".join(f"{rule}={n}" for rule, n in sorted(rules.items()))


def _of_text(text: Text) -> Iterator[Violation]:
    if text.kind in ("docstring", "private"):
        first = text.text.strip().split("\n")[0]
        if len(first) > FIRST_LINE:
            advice = f"the first line has {len(first)} characters; write at most {FIRST_LINE}"
            yield Violation(text.file, text.line, "first-line", advice)
        if opener := OPENERS.match(first):
            advice = f'"{opener[0]}" opens the docstring; begin with an imperative verb or the noun that it describes'
            yield Violation(text.file, text.line, "opener", advice)
    for line, word, replacement in words(text):
        yield Violation(text.file, line, "word", f'"{word}"; write: {replacement}')


def _of_ruff(root: Path) -> Iterator[Violation]:
    sources = [str(path) for path in files(root) if path.suffix == ".py"]
    command = [sys.executable, "-m", "ruff", *RUFF, "--config", str(ROOT / "pyproject.toml"), *sources]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"ruff ended with status {done.returncode}: {done.stderr}")
    for each in json.loads(done.stdout) if sources else []:
        file = Path(each["filename"]).relative_to(root.resolve()).as_posix()
        yield Violation(file, each["location"]["row"], each["code"], each["message"])


def _new(places: list[Violation], root: Path) -> list[Violation]:
    """Return the violations on lines that the last commit does not have.

    All are returned where it has every line, or where there is no commit.
    """
    command = ["git", "-C", str(root), "show", f"HEAD:./{places[0].file}"]
    done = subprocess.run(command, capture_output=True, text=True)
    before = set(done.stdout.splitlines())
    lines = (root / places[0].file).read_text(encoding="utf-8").splitlines()
    return [each for each in places if lines[each.line - 1] not in before] or places


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description="Check the writing rules of docs/style.md.")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--write", action="store_true", help="lower the list, and follow renamed files")
    chosen.add_argument("--regenerate", action="store_true", help="write the list again, unless its total grows")
    given = parser.parse_args(arguments)
    path = root / LIST
    try:
        found = violations(root)
        counts = count(found)
        if given.regenerate:
            write(path, regenerated(counts, read(path)) if path.exists() else counts)
        elif given.write:
            exist = {file.relative_to(root).as_posix() for file in files(root)}
            write(path, lowered(counts, read(path), exist))
        else:
            complaints = check(found, read(path), root)
            sys.stdout.write("".join(f"{each}\n" for each in complaints))
            return int(bool(complaints))
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    sys.stdout.write(f"{LIST}: {total(counts)} violations in {len(counts)} files\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
