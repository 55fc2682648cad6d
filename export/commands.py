"""``refocus export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from edge.cli import print_json


def register(app: typer.Typer) -> None:
    app.command()(export)


def export(
    checkpoint: Annotated[Path, typer.Argument(help="head checkpoint (.safetensors) written by refocus train")],
    out: Annotated[Path, typer.Option(help="folder of the bundle")],
    to: Annotated[str, typer.Option(help="targets, as onnx:fp32; separate several by commas")] = "onnx:fp32",
    photos: Annotated[
        Path | None,
        typer.Option(help="real photos for parity and self-test, one folder per person; default: the run's own"),
    ] = None,
    name: Annotated[str, typer.Option(help="name of the bundle")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Export a head and its encoder as a bundle, proved equal to PyTorch on photo sequences."""
    from export.bundle import export_bundle
    from export.checkpoint import load_checkpoint
    from export.parity import read_streams

    loaded = load_checkpoint(checkpoint)
    streams = read_streams(photos or loaded.required("encoder").path.resolve().parent / "parity")
    bundle = export_bundle(loaded, out, to.split(","), streams, name)
    rows: list[dict[str, Any]] = [
        {"role": a.role, "file": a.file, "size_bytes": a.size_bytes, "parity_max_abs": a.parity.max_abs,
         "top1_agreement": a.parity.top1_agreement, "photos": a.parity.photos}
        for a in bundle.manifest.artifacts if a.parity
    ]  # fmt: skip
    if as_json:
        print_json({"bundle": str(out), "artifacts": rows})
        return
    for row in rows:
        typer.echo(
            f"{row['role']:<8} {row['file']:<20} {row['size_bytes'] / 1e6:8.2f} MB   largest difference"
            f" {row['parity_max_abs']:.1e}, same top-1 on {row['top1_agreement']:.2%} of {row['photos']} photos"
        )
    typer.echo(f"bundle: {out}")
