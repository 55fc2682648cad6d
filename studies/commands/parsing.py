"""Parse the flags of studies into settings and seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from refocus.cloud_train.commands.parsing import seeds_of
from refocus.edge.commands import numbers

Settings = TypeVar("Settings")


def with_flags(kind: type[Settings], flags: Mapping[str, Any], **more: Any) -> Settings:
    """Return settings with values from flags of the same names.

    Values in ``more`` take precedence; fields without a value keep their default.
    """
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in flags.items() if name in names} | more)


def seeds_of_run(text: str, run: Path) -> list[int]:
    """Return the typed seeds, else the seeds of a run, else 0."""
    trained = sorted(int(path.name[5:]) for path in run.glob("seed-*") if path.name[5:].isdecimal())
    return seeds_of(text) if text else trained or [0]


def integers(text: str, flag: str) -> list[int]:
    """Parse ``0,1,2`` to [0, 1, 2]; numbers may be negative."""
    return [*numbers(text, flag, int, bool, "whole numbers separated by commas", "0,1,2")]


def shares(text: str, flag: str) -> list[float]:
    """Parse numbers from 0 to 1 such as ``0,0.5,1``."""
    expected = "numbers between 0 and 1 separated by commas"
    return [*numbers(text, flag, float, lambda n: n != [] and all(0 <= v <= 1 for v in n), expected, "0,0.5,1")]
