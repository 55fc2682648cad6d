"""Commands that write the published pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PAGES = "Pages"


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(rich_help_panel=PAGES)(results)


def results(
    folder: Annotated[Path, typer.Argument(help="folder of result documents (results.json of runs)")],
    out: Annotated[Path, typer.Option(help="output file for the page (Markdown)")] = Path("docs/results.md"),
) -> None:
    """Generate the results page and its pictures from result documents."""
    from studies.report.results_page import write_results_page

    write_results_page(folder, out)
    typer.echo(f"wrote {out}")
