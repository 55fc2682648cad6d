"""Draw docstrings, error messages and help texts at random, for a review of their terms and style.

    python -m tests.prose --seed 28 --count 10

The order of a draw is a hash of the seed and of each text's place, so a text that is rewritten stays in the draw. Nothing
is imported: sources are parsed.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = ("edge", "export", "benchmarks", "cloud_train")
KINDS = ("docstring", "error", "help")


class Text(NamedTuple):
    """A text that users read, and where it is.

    Attributes:
        place: ``file:name``, or ``file:`` and the raised type or the command line's flag.
        text: the text on one line; a value that is filled in at run time is ``{expression}``.
    """

    kind: str
    place: str
    text: str


def texts(root: Path = ROOT) -> list[Text]:
    """Every public docstring, error message and help text of the four packages, in the order of the files."""
    found = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            found += _of_file(file, ast.parse(path.read_text(encoding="utf-8")))
    return found


def draw(seed: int, count: int, root: Path = ROOT) -> list[Text]:
    """``count`` texts of each kind, without repetition; all of a kind that has fewer."""
    seen: Counter[tuple[str, str]] = Counter()
    keyed = []
    for text in texts(root):
        number = seen[text.kind, text.place]  # several errors of a file have one type
        seen[text.kind, text.place] += 1
        key = hashlib.sha256(f"{seed} {text.kind} {text.place} {number}".encode()).digest()
        keyed.append((key, text))
    keyed.sort()
    return [text for kind in KINDS for text in [text for _, text in keyed if text.kind == kind][:count]]


def _of_file(file: str, tree: ast.Module) -> Iterator[Text]:
    yield from _docstrings(file, tree, "")
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            message = _string(node.exc.args[0])
            if " " in message:
                yield Text("error", f"{file}:{ast.unparse(node.exc.func)}", message)
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                message = _string(keyword.value) if keyword.arg == "help" else ""
                if message:
                    flags = [each for each in map(_string, node.args) if each.startswith("-")]
                    yield Text("help", f"{file}:{' '.join(flags) or ast.unparse(node.func)}", message)


def _docstrings(file: str, node: ast.Module | ast.ClassDef | ast.FunctionDef, prefix: str) -> Iterator[Text]:
    text = ast.get_docstring(node)
    if text:
        # A command's docstring is what --help shows.
        command = isinstance(node, ast.FunctionDef) and "/commands/" in file and not prefix
        yield Text("help" if command else "docstring", f"{file}:{prefix.rstrip('.')}", " ".join(text.split()))
    if isinstance(node, ast.FunctionDef):
        return
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and not child.name.startswith("_"):
            yield from _docstrings(file, child, f"{prefix}{child.name}.")


def _string(node: ast.expr) -> str:
    """A string constant, an f-string or a sum of both as text; "" for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else _string(part)
                 for part in node.values]  # fmt: skip
        return "".join(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _string(node.left) + _string(node.right)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw docstrings, error messages and help texts at random.")
    parser.add_argument("--seed", type=int, default=28, help="random seed; default: 28")
    parser.add_argument("--count", type=int, default=10, help="texts of each kind; default: 10")
    parser.add_argument("--matching", default="", help="instead of a draw, every text that this expression matches")
    given = parser.parse_args()
    if given.matching:
        drawn = [text for text in texts() if re.search(given.matching, text.text)]
    else:
        drawn = draw(given.seed, given.count)
    for text in drawn:
        sys.stdout.write(f"{text.kind} {text.place}\n  {text.text}\n\n")


if __name__ == "__main__":
    main()
