"""``refocus export``."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refocus.edge.commands import EXPORT, PARTLY, Json, numbers, print_json, print_result
from refocus.export.hub_commands import pull, push
from refocus.export.settings import ExportSettings, parse_arguments

if TYPE_CHECKING:
    from refocus.export.bundle import Exported


logger = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    for command in (export, push, pull):
        app.command(rich_help_panel=EXPORT)(command)


def export(
    models: Annotated[
        list[str],
        typer.Argument(
            help="head checkpoints (.safetensors) of one encoder; or a network: timm:NAME, package:NAME,"
            " module:function, FILE.pt2"
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder of the bundle")],
    to: Annotated[str, typer.Option(help="comma-separated targets, such as onnx:w8a8")] = "onnx:fp32",
    photos: Annotated[
        Path | None,
        typer.Option(
            help="real photos for parity and self-test: one folder per person, or of a network any folder, or one"
            " folder per class; default: the run's own"
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="real photos for calibrated ranges, one folder per person; default: the run's own"),
    ] = None,
    opset: Annotated[str, typer.Option(help="ONNX opset version: a number, or jetpack5, jetpack6, jetpack7")] = "18",
    name: Annotated[str, typer.Option(help="name of the bundle")] = "",
    form: Annotated[
        str,
        typer.Option(help="form of the head: streaming (KV cache) or window; default: streaming for causal attention"),
    ] = "",
    window: Annotated[
        int, typer.Option(min=0, help="attention window of the head in photos; 0: the window it was trained with")
    ] = 0,
    head_only: Annotated[bool, typer.Option("--head-only", help="export only the head, for refocus upgrade")] = False,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="find the first layer whose output differs from PyTorch; writes no bundle")
    ] = False,
    allow_mismatch: Annotated[
        bool, typer.Option("--allow-mismatch", help="also write targets that failed parity, and mark them")
    ] = False,
    max_deviation: Annotated[
        str,
        typer.Option(
            help="parity tolerances: [TARGET:]NAME=NUMBER, comma-separated, with the names that a failure prints"
        ),
    ] = "",
    require_full_delegation: Annotated[
        bool, typer.Option("--require-full-delegation", help="fail if an operator is not delegated")
    ] = False,
    personalise: Annotated[
        str,
        typer.Option(
            help="shares: class prior estimated on the device; labelled --photos calibrate it; head: the trained head"
        ),
    ] = "",
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="download the published weights of a timm network")
    ] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="weights of the network, .safetensors")] = None,
    backbone_arguments: Annotated[
        str, typer.Option(help="keyword arguments of timm.create_model or the function, NAME=VALUE or JSON")
    ] = "",
    labels: Annotated[Path | None, typer.Option(help="file of class names for a network, one per line")] = None,
    side: Annotated[
        int, typer.Option(min=0, help="input size of a network in pixels (square); 0: from its metadata")
    ] = 0,
    mean: Annotated[
        str, typer.Option(help="normalisation mean of R,G,B in 0..1; default: from the network's metadata")
    ] = "",
    std: Annotated[str, typer.Option(help="normalisation standard deviation of R,G,B")] = "",
    as_json: Json = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="show the output of the export libraries")] = False,
) -> None:
    """Export heads and their encoder, a bank, or any network as a bundle, proved equal to PyTorch on real photos.

    Exit status: 0 all targets were written, 3 some, 1 none; 2 wrong usage.
    """
    flags = locals()  # each setting has the name of its flag
    from refocus.export import run
    from refocus.export.library_output import ended_by_sigterm, kept_apart

    with ended_by_sigterm(), kept_apart(verbose) as say:
        settings = ExportSettings(
            **{field.name: flags[field.name] for field in fields(ExportSettings)}
            | {
                "models": tuple(models),
                "backbone_arguments": parse_arguments(backbone_arguments),
                "mean": _three_numbers("--mean", mean, lambda n: 0 <= n <= 1),
                "std": _three_numbers("--std", std, lambda n: 0 < n <= 1),
            }
        )
        result = run.bisect(settings) if bisect else run.export(settings, say)
    if isinstance(result, list):
        print_result([asdict(row) for row in result], map(str, result), as_json)
    else:
        _print_outcomes(result, out, as_json)


def _three_numbers(flag: str, text: str, fits: Callable[[float], bool]) -> tuple[float, float, float] | None:
    """``0.5,0.5,0.5`` -> the numbers; "" -> None.

    Raises:
        RefocusError: not three numbers, or of pixels up to 255.
    """
    if not text:
        return None
    expected = "three numbers separated by commas, of pixels from 0 to 1; divide those of pixels up to 255 by 255"
    red, green, blue = numbers(text, flag, float, lambda n: len(n) == 3 and all(map(fits, n)), expected, "0.5,0.5,0.5")
    return red, green, blue


def _print_outcomes(exported: Exported, out: Path, as_json: bool) -> None:
    """Prints what was written, and on standard error what was not; ends with status 3 where something was not."""
    from refocus.edge.bundle import artifact_table

    manifest = exported.bundle.manifest
    if as_json:
        targets, artifacts = map(asdict, exported.outcomes), map(_row, manifest.artifacts)
        print_json({"bundle": str(out), "targets": [*targets], "artifacts": [*artifacts]})
    else:
        artifact_table(manifest)
        typer.echo(f"bundle: {out}")
    for outcome in exported.outcomes:
        if outcome.status != "written":
            logger.warning(f"{outcome.target}: {outcome.status}: {outcome.reason}")
    if not as_json and any(a.role == "encoder" and not a.parity_note for a in manifest.artifacts):
        logger.info(f"next: refocus album {shlex.quote(str(out))} ~/Pictures --html album.html")
    if not exported.complete:
        raise typer.Exit(PARTLY)


def _row(artifact: Any) -> dict[str, Any]:
    parity = artifact.parity
    about = ("role", "head", "runtime", "precision", "file", "size_bytes", "parts_bytes")
    return {
        **{name: getattr(artifact, name) for name in about},
        **{f"parity_{name}": parity and getattr(parity, name) for name in ("max_abs", "cosine", "typical_logits")},
        **{name: parity and getattr(parity, name) for name in ("accuracy_loss", "top1_agreement")},
        "photos": parity.photos if parity else 0,
        "passed": parity and parity.passed,
        "parity_note": artifact.parity_note,
        "fallbacks": artifact.placement.fallbacks if artifact.placement else {},
    }
