"""``refocus report`` and ``refocus demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refocus.cloud_train.commands.flags import MadeRun


def report(
    run: MadeRun,
    out: Annotated[Path | None, typer.Option(help="the page; default: RUN/run-report.html")] = None,
) -> None:
    """Write one HTML page of a training run: curves, people, worst tenth, budgets. The run may still be training."""
    from refocus.cloud_train.report.run_report import write_run_report

    path = out or run / "run-report.html"
    story = write_run_report(run, path)
    for sentence in story.missing:
        typer.echo(sentence)
    typer.echo(f"wrote {path}")


def demo(
    out: Annotated[Path, typer.Option(help="output folder: the run, results.json and report.html")] = Path("demo"),
) -> None:
    """The whole path on the embedded glyphs: train, export, replay unseen people, and draw the report."""
    from refocus.cloud_train.demos.demo import run_demo

    run_demo(out)
