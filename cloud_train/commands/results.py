"""``refocus results`` and ``refocus demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def results(
    folder: Annotated[Path, typer.Argument(help="folder of result documents (results.json of runs)")],
    out: Annotated[Path, typer.Option(help="output file for the page (Markdown)")] = Path("docs/results.md"),
) -> None:
    """Generate the results page and its pictures from result documents."""
    from refocus.cloud_train.report.results_page import write_results_page

    write_results_page(folder, out)
    typer.echo(f"wrote {out}")


def demo(
    out: Annotated[Path, typer.Option(help="output folder: the run, results.json and report.html")] = Path("demo"),
) -> None:
    """The whole path on the embedded glyphs: train, export, replay unseen people, and draw the report."""
    from refocus.cloud_train.demos.demo import run_demo

    run_demo(out)
