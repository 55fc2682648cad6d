"""``refocus demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="output folder: the run, results.json and report.html")] = Path("demo"),
) -> None:
    """The whole path on the embedded glyphs: train, export, replay unseen people, and draw the report."""
    from refocus.cloud_train.demos.demo import run_demo

    run_demo(out)
