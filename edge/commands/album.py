"""``refocus album``: many photos of one person at once."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from refocus.edge.commands.app import PARTLY, ThreadsOption
from refocus.edge.commands.recognize import FALLBACK_HELP, PROVIDER_HELP, default_profiles, personal_weights

MOST_LISTED = 50

T = TypeVar("T")


def album(
    bundle: Annotated[Path, typer.Argument(help="folder of the bundle")],
    photos: Annotated[list[Path], typer.Argument(help="photos, and folders with photos")],
    out: Annotated[Path, typer.Option(help="the results: FILE.csv or FILE.json")],
    profile: Annotated[str, typer.Option(help="whose newest photos stand before the album; default: nobody's")] = "",
    profiles: Annotated[Path | None, typer.Option(help="folder of the profiles")] = None,
    remember: Annotated[bool, typer.Option("--remember", help="add the photos to the profile")] = False,
    order: Annotated[str, typer.Option(help="of the album: time (EXIF, then by name) or name")] = "time",
    memory: Annotated[
        str, typer.Option(help="which photos help: newest (the nearest in the album); spread or similar (window heads)")
    ] = "newest",
    batch: Annotated[int, typer.Option(min=1, help="photos encoded at once")] = 16,
    top: Annotated[int, typer.Option(min=1, help="labels per photo")] = 3,
    threads: ThreadsOption = 0,
    head: Annotated[str, typer.Option(help="which of the bundle's heads; default: its first")] = "",
    runtime: Annotated[str, typer.Option(help="onnxruntime, executorch, tensorrt or coreml")] = "onnxruntime",
    precision: Annotated[str, typer.Option(help="fp32, fp16 or int8, whichever the bundle has")] = "fp32",
    provider: Annotated[str, typer.Option(help=PROVIDER_HELP)] = "",
    refuse_fallback: Annotated[bool, typer.Option("--refuse-fallback", help=FALLBACK_HELP)] = False,
) -> None:
    """Recognise an album, each photo with the help of the others, into a table. Stopped, it goes on where it was.

    Status 3: the table is written, but some photos have no answer; they are listed.
    """
    from refocus.edge.bundle.load import load_bundle
    from refocus.edge.commands.history import existing_path
    from refocus.edge.errors import RefocusError
    from refocus.edge.recognize.album import answer_album, find_photos
    from refocus.edge.recognize.recognizer import Recognizer, profile_path

    files = find_photos(photos)
    path = None
    if profile:
        # Only what is remembered may make a new profile.
        path = profile_path(profiles or default_profiles(), profile) if remember else existing_path(profile, profiles)
    weights = personal_weights(profiles or default_profiles())
    opened = load_bundle(bundle, [f"{runtime}:{precision}"])
    with Recognizer(
        opened, path, runtime, precision, threads, head, provider, not refuse_fallback, weights=weights
    ) as recognizer:
        if recognizer.history is not None and recognizer.history.recovered is not None:
            typer.echo(f"{profile}: {recognizer.history.recovered}", err=True)
        try:
            report = answer_album(recognizer, files, out, order, batch, memory, top, remember, _track)
        except KeyboardInterrupt:
            raise RefocusError(f"stopped; the same command goes on where it was (kept in {out}.unfinished)") from None
    typer.echo(f"{out}: {len(report.rows)} photos, {report.encoded} of them encoded by this run")
    if report.failed:
        name_failed([row.error for row in report.rows if row.error], len(report.rows))
        raise typer.Exit(PARTLY)


def name_failed(errors: Sequence[str], photos: int) -> None:
    """Lists on standard error which of so many photos could not be used, and why."""
    for error in errors[:MOST_LISTED]:
        typer.echo(f"not used: {error}", err=True)
    more = f", {len(errors) - MOST_LISTED} more than are listed" if len(errors) > MOST_LISTED else ""
    typer.echo(f"{len(errors)} of {photos} photos could not be used{more}", err=True)


def _track(items: Iterable[T], what: str, total: int) -> Iterable[T]:
    """A progress bar on standard error, on a terminal only."""
    from rich.console import Console
    from rich.progress import track

    console = Console(file=sys.stderr)
    return track(items, what, total, console=console, disable=not console.is_terminal)
