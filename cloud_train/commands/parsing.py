"""Parse the text of flags: lists of numbers, names, NAME=VALUE pairs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from refocus.cloud_train.errors import UsageError
from refocus.edge.commands import numbers


def typed_command(names: dict[str, str], program: str = "refocus") -> str:
    """Return the typed command line without folders, for publication.

    Words in ``names`` are replaced, and paths are shortened to file names. If a word occurs several times, the last one
    is replaced, because a run may have the name of its command.
    """
    words = sys.argv[1:]
    last = {word: place for place, word in enumerate(words)}
    shown = (
        names[word] if word in names and last[word] == at else _without_folders(word) for at, word in enumerate(words)
    )
    return f"{program} {shlex.join(shown)}".rstrip()


def _without_folders(word: str) -> str:
    key, sign, value = word.rpartition("=")
    return f"{key}{sign}{Path(value).name}" if "/" in value else word


def seeds_of(text: str) -> list[int]:
    """Parse seeds such as ``0,1,2`` to [0, 1, 2].

    A repeated seed is an error, because it would make intervals too narrow.
    """
    from refocus.cloud_train.settings import MOST_SEED  # here: `refocus --help` loads no msgspec

    expected = f"different whole numbers from 0 to {MOST_SEED} separated by commas"
    fits = lambda n: n != [] and all(0 <= v <= MOST_SEED for v in n) and len(set(n)) == len(n)  # noqa: E731
    return [*numbers(text, "--seeds", int, fits, expected, "0,1,2")]


def arguments(text: str, flag: str = "--backbone-arguments") -> dict[str, Any]:
    """Parse keyword arguments from ``pad_type=same,drop_rate=0.1`` or JSON.

    Numbers and booleans are converted.

    Raises:
        UsageError: a part is not NAME=VALUE.
    """
    from refocus.export.errors import ExportError
    from refocus.export.settings import parse_arguments

    try:
        return parse_arguments(text, flag)
    except ExportError as error:
        raise UsageError(str(error)) from None
