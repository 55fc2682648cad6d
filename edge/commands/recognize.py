"""``refocus recognize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from refocus import edge
from refocus.edge.commands import options
from refocus.edge.commands.app import print_json
from refocus.edge.errors import RefocusError
from refocus.edge.files import check_output, printable


def recognize(
    bundle: options.Bundle,
    photos: Annotated[list[Path], typer.Argument(help="photos, recognised in this order")],
    profiles: options.Profiles,
    profile: Annotated[str, typer.Option(help="whose history to read and to grow")] = "default",
    top: options.Top = 3,
    remember: Annotated[bool, typer.Option(help="add the photos to the history")] = True,
    explain: Annotated[bool, typer.Option("--explain", help="say which history photos each answer rests on")] = False,
    out: Annotated[Path | None, typer.Option(help="with --explain: a picture of it, as FILE.png")] = None,
    threads: options.Threads = 0,
    head: options.Head = "",
    runtime: options.Runtime = "onnxruntime",
    precision: options.Precision = "fp32",
    provider: options.Provider = "",
    refuse_fallback: options.RefuseFallback = False,
    memory: Annotated[
        str, typer.Option(help="which stored photos help: newest; spread or similar (window heads)")
    ] = "newest",
    time_limit: Annotated[
        float, typer.Option(min=0, help="seconds that one run of a program may take (onnxruntime); 0 sets no limit")
    ] = 0,
    as_json: options.Json = False,
) -> None:
    """Recognise photos, each with the help of the photos this profile has seen before."""
    from refocus.edge.photos.preprocess import read_photo
    from refocus.edge.recognize.explain import explain as explain_answer
    from refocus.edge.recognize.explain import save_picture, text

    if out is not None and (not explain or out.suffix.lower() != ".png"):
        raise RefocusError(f"--out {out}: expected --explain and a file name that ends in .png")
    if out is not None:
        check_output(out)  # before anything is remembered
    rows: list[dict[str, Any]] = []
    explanations = []
    with edge.Recognizer(
        edge.load_bundle(bundle, [f"{runtime}:{precision}"]),
        edge.profile_path(profiles, profile),
        runtime,
        precision,
        threads,
        head,
        provider,
        not refuse_fallback,
        memory,
        weights=options.personal_weights(profiles),
        time_limit=time_limit,
    ) as recognizer:
        told = str(recognizer.history.recovered) if recognizer.history and recognizer.history.recovered else ""
        if told:
            typer.echo(f"{profile}: {told}", err=True)
        for photo in photos:
            answer = recognizer.recognize(read_photo(photo), printable(photo.resolve()), remember)
            for notice in answer.notices:
                typer.echo(f"{photo}: {notice}\n" if notice != told else "", nl=False, err=True)
            explanation = explain_answer(answer, recognizer.card.labels, str(photo.resolve()), top)
            row = {
                "photo": str(photo),
                "answer": explanation.delivered,
                "trust": answer.trust,
                "history": len(answer.attention) - 1,
            }
            rows.append({**row, "explanation": explanation.as_dict()} if explain else row)
            explanations.append(explanation)
            if not as_json:
                reads = recognizer.card.personalisation.form != "none"
                typer.echo(f"{photo}: {text(explanation.delivered)}" + (f"  ({_mode(row)})" if reads else ""))
                typer.echo("\n".join(explanation.lines()) + "\n" if explain else "", nl=False)
    if out is not None:
        save_picture(explanations, out)
    if as_json:
        print_json(rows)


def _mode(row: dict[str, Any]) -> str:
    if not row["history"]:
        return "no history yet"
    return f"{row['history']} history photos, trust {row['trust']:.2f}"
