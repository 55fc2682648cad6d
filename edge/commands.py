"""The commands of a device: ``refocus recognize`` and ``refocus inspect``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from edge.cli import print_json


def register(app: typer.Typer) -> None:
    app.command()(recognize)
    app.command()(inspect)


def default_profiles() -> Path:
    """Where profiles live unless ``--profiles`` says otherwise: the user's data folder."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "refocus" / "profiles"


def recognize(
    bundle: Annotated[Path, typer.Argument(help="folder of the bundle")],
    photos: Annotated[list[Path], typer.Argument(help="photos, recognised in this order")],
    profile: Annotated[str, typer.Option(help="whose history to read and to grow")] = "default",
    profiles: Annotated[Path | None, typer.Option(help="folder of the profiles")] = None,
    top: Annotated[int, typer.Option(min=1, help="labels to print per photo")] = 3,
    remember: Annotated[bool, typer.Option(help="add the photos to the history")] = True,
    explain: Annotated[bool, typer.Option("--explain", help="say which history photos each answer rests on")] = False,
    out: Annotated[Path | None, typer.Option(help="with --explain: a picture of it, as FILE.png")] = None,
    threads: Annotated[int, typer.Option(min=0, help="threads; 0 leaves it to the runtime")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Recognise photos, each with the help of the photos this profile has seen before."""
    from edge.bundle import load_bundle
    from edge.errors import RefocusError
    from edge.explain import explain as explain_answer
    from edge.explain import save_picture, text
    from edge.preprocess import read_photo
    from edge.recognizer import Recognizer, profile_path

    if out is not None and (not explain or out.suffix.lower() != ".png"):
        raise RefocusError(f"--out {out}: expected --explain and a file name that ends in .png")
    path = profile_path(profiles or default_profiles(), profile)
    rows: list[dict[str, Any]] = []
    explanations = []
    with Recognizer(load_bundle(bundle), path, threads=threads) as recognizer:
        for photo in photos:
            answer = recognizer.recognize(read_photo(photo), str(photo.resolve()), remember)
            explanation = explain_answer(answer, recognizer.manifest.labels, str(photo.resolve()), top)
            row = {"photo": str(photo), "answer": explanation.delivered, "trust": answer.trust,
                   "history": len(answer.attention) - 1}  # fmt: skip
            rows.append({**row, "explanation": explanation.as_dict()} if explain else row)
            explanations.append(explanation)
            if not as_json:
                typer.echo(f"{photo}: {text(explanation.delivered)}  ({_mode(row)})")
                typer.echo("\n".join(explanation.lines()) + "\n" if explain else "", nl=False)
    if out is not None:
        save_picture(explanations, out)
    if as_json:
        print_json(rows)


def _mode(row: dict[str, Any]) -> str:
    if not row["history"]:
        return "no history yet"
    return f"{row['history']} history photos, trust {row['trust']:.2f}"


def inspect(
    bundle: Annotated[Path, typer.Argument(help="folder of the bundle")],
    self_test: Annotated[bool, typer.Option("--self-test", help="also recognise the bundle's own photos")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Verify a bundle and say what is in it."""
    import msgspec

    from edge.bundle import load_bundle
    from edge.errors import BundleError
    from edge.recognizer import self_test as run_self_test

    loaded = load_bundle(bundle)
    failures = run_self_test(loaded) if self_test else []
    if as_json:
        extra = {"self_test_failures": failures} if self_test else {}
        print_json({**msgspec.to_builtins(loaded.manifest), **extra})
    else:
        _print_bundle(loaded, bundle)
    if failures:
        raise BundleError(f"{bundle}: the self-test failed: " + "; ".join(failures))
    if self_test and not as_json:
        typer.echo("self-test: passed")


def _print_bundle(loaded: Any, bundle: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    manifest = loaded.manifest
    personal = manifest.personalisation
    typer.echo(f"{manifest.name} in {bundle}: every file verified")
    typer.echo(
        f"{len(manifest.labels)} labels; {personal.method}, looks back on {personal.window} photos; gate:"
        f" {personal.gate}; kept between photos: {', '.join(state.name for state in manifest.state)}"
    )
    table = Table("role", "runtime", "precision", "size", "parity (largest difference)", "same top-1", "ran on")
    for artifact in manifest.artifacts:
        parity, placement = artifact.parity, artifact.placement
        table.add_row(
            artifact.role,
            f"{artifact.runtime} >= {artifact.min_runtime_version}",
            artifact.precision,
            f"{artifact.size_bytes / 1e6:.2f} MB",
            f"{parity.max_abs:.1e} on {parity.photos} photos" if parity else "not measured",
            f"{parity.top1_agreement:.2%}" if parity else "",
            ", ".join(placement.operators) if placement else "",
        )
    Console().print(table)
