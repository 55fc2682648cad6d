"""``refocus demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="folder of the run, results.json and report.html")] = Path("demo-train"),
) -> None:
    """Train, export and evaluate on the embedded glyphs; write a report.

    The exported heads are evaluated on people who are not in the training photos.
    """
    from refocus.cloud_train.demos.demo import run_demo

    run_demo(out)
