"""Collect docstrings, comments, messages and pages; find words to replace.

    python -m tests.prose --seed 28 --count 10     # draw texts at random for a review
    python -m tests.prose --matching 'expression'  # print every text that matches

The order of a draw is a hash of the seed and of each text's place: a rewritten text keeps its position in the draw.
Sources are parsed, not imported. `tests/style.py` checks the words.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = ("edge", "export", "benchmarks", "cloud_train", "studies", "examples", "android_demo/tools", "docs/_site")
MODULES = ("tests/prose.py", "tests/style.py")
PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", "notebooks/**/*.md")
GENERATED = re.compile(r"docs/(results/.*|results|compatibility.*|robustness)\.md")
KINDS = ("docstring", "error", "help")  # of a draw

# Word -> replacement. Text in backticks or double quotes, code blocks, URLs and placeholders are skipped: names in code,
# stored keys, format names and titles of papers keep their spelling.
REPLACED = {
    "mend|mends|mended|mending": "fix",
    "anew": "again",
    "whoever": "the user, the caller",
    "nobody": "no user, no caller",
    "somebody": "a user",
    "beside": "next to, with",
    "told": "passed, given, informed",
    "judge|judges|judged|judging": "evaluate",
    "so many": "the number of, N",
    "of its own": "own, separate",
    "say so|says so|said so": "report it",
    "in turns": "alternately, interleaved",
    "right answer|right answers": "correct prediction",
    "merely": "only",
    "goes on where it was|go on where they were": "resume",
    "what lies there": "existing files",
    "to be had": "available",
    "this executorch has not": "this ExecuTorch build lacks",
    "squared way": "squared distance",
}
_WORDS = re.compile(rf"\b(?:{'|'.join(f'({words})' for words in REPLACED)})\b".replace(" ", r"\s+"), re.IGNORECASE)
_SKIPPED = re.compile(
    r"^ *(?P<fence>```+|~~~+).*?^ *(?P=fence) *$|(?P<ticks>`+).+?(?P=ticks)|\"[^\"\n]*\"|\{[^{}\n]*\}|\w+://\S+",
    re.MULTILINE | re.DOTALL,
)


class Text(NamedTuple):
    """A text and its position.

    Attributes:
        kind: ``docstring`` (public), ``private`` (docstring), ``error``, ``help``, ``comment`` or ``page``.
        name: the qualified name, the raised type or the flag of the command line.
        line: the text's first line in the file.
        text: the text as written; a value inserted at run time is ``{expression}``.
    """

    kind: str
    file: str
    name: str
    line: int
    text: str

    @property
    def place(self) -> str:
        """``file:name``."""
        return f"{self.file}:{self.name}"


def files(root: Path = ROOT) -> list[Path]:
    """Return the sources and pages that the rules cover, sorted.

    Generated pages are left out.
    """
    sources = chain.from_iterable((root / folder).rglob("*.py") for folder in SOURCES)
    modules = (root / module for module in MODULES)
    pages = chain.from_iterable(root.glob(pattern) for pattern in PAGES)
    return sorted(
        path
        for path in {*sources, *modules, *pages}
        if path.is_file() and not path.is_symlink() and not GENERATED.fullmatch(path.relative_to(root).as_posix())
    )


def texts(root: Path = ROOT) -> list[Text]:
    """Return every text of the covered files, in their order."""
    return [text for path in files(root) for text in _of_file(path.relative_to(root).as_posix(), path)]


def words(text: Text) -> Iterator[tuple[int, str, str]]:
    """Yield line, word and replacement of every word with a replacement."""
    if not _WORDS.search(text.text):
        return
    shown = _SKIPPED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text.text)
    for match in _WORDS.finditer(shown):
        line = text.line + shown.count("\n", 0, match.start())
        yield line, " ".join(match[0].split()), list(REPLACED.values())[match.lastindex - 1]


def draw(seed: int, count: int, among: list[Text]) -> list[Text]:
    """Draw `count` texts of each kind, or all of a kind that has fewer."""
    seen: Counter[tuple[str, str]] = Counter()
    keyed = []
    for text in among:
        number = seen[text.kind, text.place]  # several errors of a file have one type
        seen[text.kind, text.place] += 1
        key = hashlib.sha256(f"{seed} {text.kind} {text.place} {number}".encode()).digest()
        keyed.append((key, text))
    keyed.sort()
    return [text for kind in KINDS for text in [text for _, text in keyed if text.kind == kind][:count]]


def _of_file(file: str, path: Path) -> Iterator[Text]:
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _parsed(file, ast.parse(source, file), ())
        yield from _comments(file, source)
    elif file == "CHANGELOG.md":  # released sections are history
        yield Text("page", file, "", 1, "\n## ".join(source.split("\n## ")[:2]))
    else:
        yield Text("page", file, "", 1, source)


def _parsed(file: str, node: ast.AST, names: tuple[str, ...]) -> Iterator[Text]:
    """Yield docstrings, error messages and help texts below `node`.

    Args:
        file: the path below the root.
        node: a module or a part of one.
        names: the definitions that enclose it.
    """
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
        constant = node.body[0].value  # type: ignore[attr-defined]
        public = not any(name.startswith("_") for name in names)
        yield Text("docstring" if public else "private", file, ".".join(names), constant.lineno, constant.value)
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
        message = _string(node.exc.args[0])
        if " " in message:
            yield Text("error", file, ast.unparse(node.exc.func), node.lineno, message)
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            message = _string(keyword.value) if keyword.arg == "help" else ""
            if message:
                flags = [each for each in map(_string, node.args) if each.startswith("-")]
                yield Text("help", file, " ".join(flags) or ast.unparse(node.func), keyword.value.lineno, message)
    for child in ast.iter_child_nodes(node):
        defines = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _parsed(file, child, (*names, child.name) if defines else names)


def _comments(file: str, source: str) -> Iterator[Text]:
    """Yield the comments, those on consecutive lines as one text."""
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and block[-1][0] != token.start[0] - 1:
                yield Text("comment", file, "", block[0][0], "\n".join(text for _, text in block))
                block = []
            block.append((token.start[0], token.string.lstrip("#")))
    if block:
        yield Text("comment", file, "", block[0][0], "\n".join(text for _, text in block))


def _string(node: ast.expr) -> str:
    """Return the text of a string, an f-string or a sum of both, or ""."""
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
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Draw docstrings, error messages and help texts at random.")
    parser.add_argument("--seed", type=int, default=28, help="random seed; default: 28")
    parser.add_argument("--count", type=int, default=10, help="texts of each kind; default: 10")
    parser.add_argument("--matching", default="", help="instead of a draw, every text that this expression matches")
    given = parser.parse_args()
    if given.matching:
        drawn = [text for text in texts() if re.search(given.matching, text.text)]
    else:
        drawn = draw(given.seed, given.count, texts())
    for text in drawn:
        sys.stdout.write(f"{text.kind} {text.place}\n  {' '.join(text.text.split())}\n\n")


if __name__ == "__main__":
    main()
