"""``refocus export``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from refocus.edge.commands import print_json


def register(app: typer.Typer) -> None:
    app.command()(export)


def export(
    checkpoints: Annotated[list[Path], typer.Argument(help="head checkpoints (.safetensors) of one encoder")],
    out: Annotated[Path, typer.Option(help="folder of the bundle")],
    to: Annotated[str, typer.Option(help="targets, as onnx:int8; separate several by commas")] = "onnx:fp32",
    photos: Annotated[
        Path | None,
        typer.Option(help="real photos for parity and self-test, one folder per person; default: the run's own"),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="real photos for int8 ranges, one folder per person; default: the run's own")
    ] = None,
    opset: Annotated[str, typer.Option(help="of ONNX files: a number, or jetpack5, jetpack6, jetpack7")] = "18",
    name: Annotated[str, typer.Option(help="name of the bundle")] = "",
    form: Annotated[
        str, typer.Option(help="how heads get the history: streaming or window; default: streaming where causal")
    ] = "",
    head_only: Annotated[bool, typer.Option("--head-only", help="leave the encoder out (refocus upgrade)")] = False,
    bisect: Annotated[bool, typer.Option("--bisect", help="name the first layer that differs; writes nothing")] = False,
    allow_mismatch: Annotated[
        bool, typer.Option("--allow-mismatch", help="write a bundle that failed parity, marked as such")
    ] = False,
    full_delegation: Annotated[
        bool, typer.Option("--require-full-delegation", help="fail where an operator falls back")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Export heads and their encoder, or a bank, as a bundle, proved equal to PyTorch on photo sequences."""
    from refocus.edge.bundle import artifact_table
    from refocus.export.bank.write import builder_of, export_bank
    from refocus.export.bundle import Export, export_bundle
    from refocus.export.parity.photos import read_streams
    from refocus.export.program.checkpoint import load_checkpoint

    loaded = [load_checkpoint(path, form) for path in checkpoints]
    is_bank = builder_of(loaded[0]) is not None
    run = (loaded[0] if is_bank else loaded[0].required("encoder")).path.resolve().parent
    streams = read_streams(photos or run / "parity")
    needs_ranges = "int8" in to and not is_bank  # a bank's int8 is of weights alone
    ranges = read_streams(calibration or run / "calibration", "--calibration") if needs_ranges else None
    asked = Export(to.split(","), parse_opset(opset), ranges, head_only, allow_mismatch, full_delegation, _say)
    if bisect and not is_bank:
        print_bisection(loaded, asked, streams, as_json)
        return
    if is_bank:
        bundle = export_bank(only(loaded, bisect), out, asked, streams, name)
    else:
        bundle = export_bundle(loaded, out, asked, streams, name)
    if as_json:
        print_json({"bundle": str(out), "artifacts": [_row(artifact) for artifact in bundle.manifest.artifacts]})
    else:
        artifact_table(bundle.manifest)
        typer.echo(f"bundle: {out}")


def only(loaded: list[Any], bisect: bool = False) -> Any:
    """The one checkpoint of a bank.

    Raises:
        ExportError: there are several, or their first difference is asked for.
    """
    from refocus.export.errors import ExportError

    if bisect:
        raise ExportError(f"--bisect: {loaded[0].path} holds a bank, whose parity names program and target alone")

    if len(loaded) > 1:
        raise ExportError(f"{loaded[0].path} holds a bank; export it alone")
    return loaded[0]


def parse_opset(text: str) -> int:
    """``18`` or ``jetpack6`` -> the opset.

    Raises:
        ExportError: neither.
    """
    from refocus.export.errors import ExportError
    from refocus.export.targets.onnx import OPSETS, PRESETS

    if text in PRESETS:
        return PRESETS[text]
    if text.isdigit() and int(text) in OPSETS:
        return int(text)
    raise ExportError(f"--opset {text}: expected one of {', '.join(map(str, [*OPSETS, *PRESETS]))}")


def print_bisection(loaded: list[Any], asked: Any, streams: Any, as_json: bool) -> None:
    """For every program and target, the first layer whose values differ."""
    from refocus.export.bundle.first_divergence import bisect

    rows = [row for checkpoint in loaded for row in bisect(checkpoint, asked, streams)]
    if as_json:
        print_json([row.as_dict() for row in rows])
        return
    for row in rows:
        typer.echo(str(row))


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _row(artifact: Any) -> dict[str, Any]:
    parity = artifact.parity
    return {
        "role": artifact.role,
        "head": artifact.head,
        "runtime": artifact.runtime,
        "precision": artifact.precision,
        "file": artifact.file,
        "size_bytes": artifact.size_bytes,
        "parts_bytes": artifact.parts_bytes,
        "parity_max_abs": parity and parity.max_abs,
        "parity_cosine": parity and parity.cosine,
        "top1_agreement": parity and parity.top1_agreement,
        "photos": parity.photos if parity else 0,
        "passed": parity and parity.passed,
        "parity_note": artifact.parity_note,
        "fallbacks": artifact.placement.fallbacks if artifact.placement else {},
    }
