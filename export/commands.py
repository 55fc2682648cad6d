"""``refocus export``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from refocus.edge.commands import print_json

CALIBRATION_STREAMS = 4  # that the photos of a network are dealt to


def register(app: typer.Typer) -> None:
    app.command()(export)


def export(
    models: Annotated[
        list[str],
        typer.Argument(
            help="head checkpoints (.safetensors) of one encoder; or a network: timm:NAME, module:function, FILE.pt2"
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder of the bundle")],
    to: Annotated[str, typer.Option(help="targets, as onnx:int8; separate several by commas")] = "onnx:fp32",
    photos: Annotated[
        Path | None,
        typer.Option(
            help="real photos for parity and self-test: one folder per person, or of a network any folder, or one"
            " folder per class; default: the run's own"
        ),
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
    pretrained: Annotated[bool, typer.Option("--pretrained", help="of a timm network: download its weights")] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="of a network: its weights, .safetensors")] = None,
    backbone_arguments: Annotated[
        str, typer.Option(help="of a network: arguments of timm.create_model or the function, NAME=VALUE or JSON")
    ] = "",
    labels: Annotated[Path | None, typer.Option(help="of a network: class names, one per line")] = None,
    side: Annotated[int, typer.Option(min=0, help="of a network: pixels of its square input; 0: as it states")] = 0,
    mean: Annotated[str, typer.Option(help="of a network: pixel mean of R,G,B in 0..1; default: as it states")] = "",
    std: Annotated[str, typer.Option(help="of a network: pixel standard deviation of R,G,B")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Export heads and their encoder, a bank, or any network as a bundle, proved equal to PyTorch on real photos."""
    from refocus.edge.bundle import artifact_table
    from refocus.export.bank.write import builder_of, export_bank
    from refocus.export.bundle import Export, export_bundle
    from refocus.export.parity.photos import pooled_streams, read_streams
    from refocus.export.program import NetworkSettings, checkpoint_of, load_checkpoint, parse_arguments

    own = NetworkSettings(
        pretrained, checkpoint, parse_arguments(backbone_arguments), labels, preprocessing_changes(side, mean, std)
    )
    network = only_network(models, own, photos)
    if network is not None and photos is not None:
        loaded, is_bank, run = [checkpoint_of(network)], False, photos
        streams = pooled_streams(photos)
    else:
        loaded = [load_checkpoint(Path(path), form) for path in models]
        is_bank = builder_of(loaded[0]) is not None
        run = (loaded[0] if is_bank else loaded[0].required("encoder")).path.resolve().parent
        streams = read_streams(photos or run / "parity")
    ranges = None
    if "int8" in to and not is_bank:  # a bank's int8 is of weights alone
        ranges = calibration_streams(calibration, run, network is not None)
    asked = Export(to.split(","), parse_opset(opset), ranges, head_only, allow_mismatch, full_delegation, _say)
    if bisect and not is_bank:
        print_bisection(loaded, asked, streams, as_json)
        return
    if is_bank:
        bundle = export_bank(only(loaded, bisect), out, asked, streams, name)
    else:
        bundle = export_bundle(loaded, out, asked, streams, name or (network.name if network is not None else ""))
    if as_json:
        print_json({"bundle": str(out), "artifacts": [_row(artifact) for artifact in bundle.manifest.artifacts]})
    else:
        artifact_table(bundle.manifest)
        typer.echo(f"bundle: {out}")


def calibration_streams(calibration: Path | None, run: Path, pooled: bool) -> Any:
    """Photos for int8 ranges: those asked for, else the run's own; of a network, any photos dealt to some streams."""
    from refocus.export.parity.photos import pooled_streams, read_streams

    if pooled:
        return pooled_streams(calibration or run, "--calibration", CALIBRATION_STREAMS)
    return read_streams(calibration or run / "calibration", "--calibration")


def only_network(models: list[str], settings: Any, photos: Path | None) -> Any:
    """The network that the arguments name; None where they name checkpoints.

    Raises:
        ExportError: a network beside something else, without photos, or settings of a network for checkpoints.
    """
    from refocus.export.errors import ExportError
    from refocus.export.program import NetworkSettings, open_network
    from refocus.export.program.sources import is_network

    named = [model for model in models if is_network(model)]
    if not named:
        if settings != NetworkSettings():
            raise ExportError(
                f"{models[0]}: --pretrained, --checkpoint, --backbone-arguments, --labels, --side, --mean and --std are"
                " of a network, as timm:NAME, module:function or FILE.pt2"
            )
        return None
    if len(models) > 1:
        raise ExportError(f"{named[0]} is a network; export it alone")
    if photos is None:
        raise ExportError(f"{named[0]}: give real photos with --photos, on which it is compared with PyTorch")
    return open_network(named[0], settings)


def preprocessing_changes(side: int, mean: str, std: str) -> dict[str, Any]:
    """What is said about a network's input, as fields of the manifest's preprocessing.

    Raises:
        ExportError: a mean or deviation that is not three numbers.
    """
    from refocus.export.errors import ExportError

    changes: dict[str, Any] = {"crop": side, "resize_shorter": round(side / 0.875)} if side else {}
    for flag, text in (("mean", mean), ("std", std)):
        if text:
            try:
                values = [float(part) for part in text.split(",")]
            except ValueError:
                values = []
            if len(values) != 3:
                raise ExportError(f"--{flag} {text}: expected three numbers separated by commas, as 0.5,0.5,0.5")
            changes[flag] = values
    return changes


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
