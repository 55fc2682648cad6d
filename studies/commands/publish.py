"""Commands that write the published pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PAGES = "Pages"


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (results, compatibility_page):
        app.command(rich_help_panel=PAGES)(command)


def results(
    folder: Annotated[Path, typer.Argument(help="folder of result documents (results.json of runs)")],
    out: Annotated[
        Path, typer.Option(help="output file for the front page (Markdown); the others go to the folder of its name")
    ] = Path("docs/results.md"),
    pictures: Annotated[bool, typer.Option(help="draw the pictures too")] = True,
) -> None:
    """Generate the results pages and their pictures from result documents."""
    from studies.report.results_page import write_results_pages

    write_results_pages(folder, out, draw=pictures)
    typer.echo(f"wrote {out}")


def compatibility_page(
    document: Annotated[Path, typer.Argument(help="document of refocus compatibility")],
    out: Annotated[Path, typer.Option(help="output file for the page (Markdown)")],
) -> None:
    """Write the page of which networks export to which runtime."""
    import json

    from studies.bench.compatibility_page import write_page

    write_page(json.loads(document.read_text(encoding="utf-8")), out)
    typer.echo(f"wrote {out}")
