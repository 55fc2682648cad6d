"""``refocus compatibility``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compatibility(
    out: Annotated[Path, typer.Option(help="output folder for the results; existing results are kept")],
    photos: Annotated[Path, typer.Option(help="folder of real photos, at least 40")],
    networks: Annotated[
        str, typer.Option(help="comma-separated timm model names; default: a list of more than 20 families")
    ] = "",
    to: Annotated[str, typer.Option(help="comma-separated targets")] = "onnx:fp32,executorch:fp32,coreml:fp16",
    limit_s: Annotated[float, typer.Option(help="time limit per network and target, in seconds")] = 900,
    document: Annotated[Path | None, typer.Option(help="output file for the results document (JSON)")] = None,
) -> None:
    """Export networks to every target and compare them on real photos.

    An interrupted run resumes with the next pair of network and target.
    """
    import json

    from refocus.cloud_train.bench.compatibility import DOCUMENT, NETWORKS, sweep

    names = networks.split(",") if networks else list(NETWORKS)
    found = sweep(names, to.split(","), photos, out, limit_s)
    for path in (out / DOCUMENT, *([document] if document is not None else [])):
        path.write_text(json.dumps(found, indent=2) + "\n")
    for target in to.split(","):
        outcomes = [row["outcome"] for row in found["rows"] if row["target"] == target]
        counts = {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)}
        typer.echo(f"{target}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
