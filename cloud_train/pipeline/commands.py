"""``refocus pipeline``: retrain, judge, export and release, again and again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cloud_train.pipeline.run import Outcome

app = typer.Typer(help="New photos in, a gated and signed release out.", no_args_is_help=True)

FolderOption = Annotated[Path, typer.Option(help="folder of the pipeline: its runs, records and current release")]
ConfigOption = Annotated[Path, typer.Option(help="the settings; refocus pipeline init writes them")]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command()
def run(config: ConfigOption = Path("pipeline.toml"), folder: FolderOption = Path("pipeline")) -> None:
    """Retrain once: photos, features, head, gates, targets, release, report."""
    from cloud_train.pipeline.run import run_pipeline

    _tell(run_pipeline(config, folder))


@app.command()
def resume(folder: FolderOption = Path("pipeline")) -> None:
    """Go on with a run that was stopped; what it did is not done again."""
    from cloud_train.pipeline.run import resume_pipeline

    _tell(resume_pipeline(folder))


def _tell(outcome: Outcome) -> None:
    from cloud_train.errors import ReleaseError

    if not outcome.passed:
        more = f" (and {len(outcome.reasons) - 1} more)" if len(outcome.reasons) > 1 else ""
        raise ReleaseError(
            f"no release: {outcome.reasons[0]}{more}; {outcome.report} shows all, {outcome.work} keeps it"
        )
    typer.echo(f"release {outcome.release}: {outcome.bundle}\nreport: {outcome.report}")
