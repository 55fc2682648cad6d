"""``refocus evaluate``: evaluate a run on people not seen in training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refocus.cloud_train.commands.flags import AsDocument, MadeRun
from refocus.cloud_train.commands.parsing import typed_command
from refocus.edge.commands import print_json

if TYPE_CHECKING:
    from refocus.cloud_train.runs.iciia import Run


def evaluate(
    run: MadeRun,
    targets: Annotated[int, typer.Option(min=1, help="maximum number of target photos per test client")] = 33,
    as_json: AsDocument = False,
) -> None:
    """Evaluate every head of a run on people never seen in training.

    Uses exported bundles and includes controls.
    """
    from refocus.cloud_train.documents import write_results
    from refocus.cloud_train.evaluate.heads import evaluate_run
    from refocus.cloud_train.evaluate.report import print_summary
    from refocus.cloud_train.runs.iciia import Run

    opened = Run(run)
    if opened.table.several:
        _evaluate_sets(opened, run, as_json)
        return
    results = evaluate_run(opened, targets, typed_command({str(run): "RUN"}))
    write_results(results, run / "results.json")
    if as_json:
        print_json(results)
    else:
        print_summary(results)
        typer.echo(f"results: {run / 'results.json'}")


def _evaluate_sets(opened: Run, run: Path, as_json: bool) -> None:
    """Evaluate a run on photos with several labels."""
    from rich.console import Console

    from refocus.benchmarks.commands.accuracy import label_sets_table
    from refocus.cloud_train.documents import write_results
    from refocus.cloud_train.evaluate.label_sets import evaluate_sets

    results = evaluate_sets(opened, command=typed_command({str(run): "RUN"}))
    write_results(results, run / "label-sets.json")
    if as_json:
        print_json(results)
        return
    named = [{**row, "target": f"{row['variant']} seed {row['seed']}, {row['answers']}"} for row in results["rows"]]
    console = Console(width=130)
    console.print(label_sets_table(named))
    for row in named:
        typer.echo(f"{row['target']}: right labels {row['delivered']:.2%}, photo alone {row['plain']:.2%}")
    typer.echo(f"results: {run / 'label-sets.json'}")
