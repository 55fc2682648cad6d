"""Parse the flags of studies into settings and seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from refocus.cloud_train.commands.parsing import seeds_of

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
