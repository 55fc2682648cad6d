"""``refocus evaluate``: evaluate a run on people not seen in training."""

from __future__ import annotations

from typing import Annotated

import typer

from refocus.cloud_train.commands.flags import AsDocument, MadeRun
from refocus.cloud_train.commands.parsing import typed_command
from refocus.edge.commands import print_json


def evaluate(
    run: MadeRun,
    targets: Annotated[int, typer.Option(min=1, help="maximum number of target photos per test client")] = 33,
    as_json: AsDocument = False,
) -> None:
    """Evaluate every head of a run on people never seen in training.

    Uses exported bundles and includes controls.
    """
    from rich.console import Console

    from refocus.benchmarks.commands.accuracy import label_sets_table
    from refocus.cloud_train.documents import write_results
    from refocus.cloud_train.evaluate.heads import evaluate_run
    from refocus.cloud_train.evaluate.label_sets import evaluate_sets
    from refocus.cloud_train.evaluate.report import print_summary
    from refocus.cloud_train.runs.iciia import Run

    opened, command = Run(run), typed_command({str(run): "RUN"})
    several = opened.table.several
    results = evaluate_sets(opened, command=command) if several else evaluate_run(opened, targets, command)
    path = run / ("label-sets.json" if several else "results.json")
    write_results(results, path)
    if as_json:
        print_json(results)
        return
    if several:
        named = [{**row, "target": f"{row['variant']} seed {row['seed']}, {row['answers']}"} for row in results["rows"]]
        Console(width=130).print(label_sets_table(named))
        for row in named:
            typer.echo(f"{row['target']}: right labels {row['delivered']:.2%}, photo alone {row['plain']:.2%}")
    else:
        print_summary(results)
    typer.echo(f"results: {path}")
