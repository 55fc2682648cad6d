"""``refocus compatibility`` and ``refocus overhead``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from refocus.cloud_train.commands.flags import AsDocument
from refocus.cloud_train.commands.parsing import integers, typed_command
from refocus.edge.commands import print_result


def compatibility(
    out: Annotated[Path, typer.Option(help="output folder for the results; existing results are kept")],
    photos: Annotated[Path, typer.Option(help="folder of real photos, at least 40")],
    networks: Annotated[
        str, typer.Option(help="comma-separated timm model names; default: a list of more than 20 families")
    ] = "",
    to: Annotated[str, typer.Option(help="comma-separated targets")] = "onnx:fp32,executorch:fp32,coreml:fp16",
    limit_s: Annotated[float, typer.Option(help="time limit per network and target, in seconds")] = 900,
    page: Annotated[Path | None, typer.Option(help="output file for the page (Markdown)")] = None,
    bundles: Annotated[
        bool, typer.Option("--bundles", help="export a fixed list of networks as plain bundles")
    ] = False,
    weights: Annotated[
        Path | None, typer.Option(help="with --bundles: folder of trained weights; default: seeded random weights")
    ] = None,
    document: Annotated[Path | None, typer.Option(help="output file for the results document (JSON)")] = None,
) -> None:
    """Export networks to every target and compare on real photos. Resumable, pair by pair."""
    import json

    from refocus.cloud_train.bench.compatibility import DOCUMENT, NETWORKS, sweep, write_page
    from refocus.cloud_train.bench.plain_bundles import run_matrix, write_bundles_page
    from refocus.cloud_train.report.report import write_results

    if bundles:
        found = run_matrix(photos, out, weights, limit_s)
        write_results(found, document or out / "compatibility.json")
        if page is not None:
            write_bundles_page(found, page)
        for row in found["rows"]:
            typer.echo(f"{row['network']}: " + ", ".join(f"{t} {one['status']}" for t, one in row["targets"].items()))
        return
    names = networks.split(",") if networks else list(NETWORKS)
    found = sweep(names, to.split(","), photos, out, limit_s)
    for path in (out / DOCUMENT, *([document] if document is not None else [])):
        path.write_text(json.dumps(found, indent=2) + "\n")
    if page is not None:
        write_page(found, page)
    for target in to.split(","):
        outcomes = [row["outcome"] for row in found["rows"] if row["target"] == target]
        counts = {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)}
        typer.echo(f"{target}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))


def overhead(
    photos: Annotated[Path, typer.Option(help="folder of real photos, at least 40")],
    out: Annotated[Path, typer.Option(help="output file for the results document, such as overhead.json")],
    backbone: Annotated[str, typer.Option(help="timm model name of a network with feature width D = 1280")] = "",
    to: Annotated[str, typer.Option(help="comma-separated targets to measure")] = "onnx:fp32,executorch:fp32",
    classes: Annotated[str, typer.Option(help="comma-separated numbers of classes C of the heads")] = "200,1000",
    rounds: Annotated[int, typer.Option(min=64, help="rounds of each interleaved run")] = 512,
    as_json: AsDocument = False,
) -> None:
    """What personalisation costs in time and memory, as ratios of the bare backbone, one thread, interleaved."""
    from refocus.cloud_train.bench.overhead import Plan, lines, measure
    from refocus.cloud_train.report.report import write_results

    named: dict[str, Any] = {"backbone": backbone} if backbone else {}
    plan = Plan(classes=(*integers(classes, "--classes"),), targets=(*to.split(","),), rounds=rounds, **named)
    document = measure(plan, photos)
    document["command"] = typed_command({str(photos): "PHOTOS", str(out): "OUT"})
    write_results(document, out)
    print_result(document, lines(document), as_json)
