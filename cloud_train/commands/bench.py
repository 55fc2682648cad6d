"""``refocus bench suite``, which needs networks and PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refocus.cloud_train.commands.parsing import typed_command
from refocus.edge.commands import words

LIMIT_S = 3600.0


def register(bench: typer.Typer) -> None:
    """Add the command to the group of ``refocus bench``."""
    bench.command()(suite)


def suite(
    photos: Annotated[Path, typer.Option(help="folder of at least 40 real photos, for statistics and inputs")],
    out: Annotated[Path, typer.Option(help="output folder for the documents; existing measurements are kept")],
    backbones: Annotated[str, typer.Option(help="comma-separated backbones of the suite; default: all")] = "",
    to: Annotated[str, typer.Option(help="comma-separated targets, such as onnx:fp32; default: all")] = "",
    file: Annotated[Path | None, typer.Option(help="suite definition, TOML; default: the built-in suite.toml")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="use fewer samples per row")] = False,
    limit: Annotated[
        float, typer.Option(min=1, help="time limit per pair of backbone and target, in seconds")
    ] = LIMIT_S,
    weights: Annotated[
        Path | None,
        typer.Option(help="folder of trained weights, NAME_in1k.safetensors; default: none, which takes as long"),
    ] = None,
    export_only: Annotated[
        bool,
        typer.Option("--export-only", help="export the programs and stop; the same command without it measures them"),
    ] = False,
) -> None:
    """Measure every backbone with every method for every target.

    Writes the paper's Table 1 with wall-clock times.
    """
    from refocus.benchmarks.suite import BUILT_IN, TABLE, conditions_of, pairs, read_suite, run_suite
    from refocus.cloud_train.bench.suite import PROGRAMS, Processes, export_suite
    from refocus.cloud_train.progress import say

    chosen = pairs(read_suite(file or BUILT_IN), words(backbones), words(to))
    processes = Processes(photos, out, conditions_of(quick), typed_command({}), limit, weights)
    if export_only:
        export_suite(chosen, out, processes.export, say)
        typer.echo(f"{out / PROGRAMS}: exported; the same command without --export-only measures")
        return
    found = run_suite(chosen, out, processes.measure, say)
    failed = [name for name, document in found.items() if not document.rows]
    typer.echo(f"{out / TABLE}: {len(found)} pairs, {len(failed)} of them without a figure")
    for name in failed:
        typer.echo(f"{name}: {found[name].missing[0].why}; remove the file to try again")
