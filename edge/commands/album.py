"""``refocus album``: many photos of one person at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refocus import edge
from refocus.edge.commands import options
from refocus.edge.commands.answers import exit_if
from refocus.edge.commands.news import logger, track
from refocus.edge.errors import RefocusError

MAX_WORKERS = 256


def album(
    bundle: options.BundleOrPhoto,
    photos: Annotated[list[Path], options.optional(list, "photos or clips, and folders with them")],
    profiles: options.Profiles,
    out: Annotated[Path | None, typer.Option(help="write the answers as a table: FILE.csv or FILE.json")] = None,
    html: Annotated[Path | None, typer.Option(help="write an HTML report: FILE.html")] = None,
    profile: Annotated[
        str, typer.Option(help="profile whose history precedes the album; default: an empty history")
    ] = "",
    remember: Annotated[bool, typer.Option("--remember", help="add the photos to the profile")] = False,
    order: Annotated[
        str, typer.Option(help="sort order of the photos: time (EXIF capture time, then name) or name")
    ] = "time",
    memory: Annotated[
        str, typer.Option(help="history selection: newest (nearest in the album); spread or similar (window heads)")
    ] = "newest",
    batch: Annotated[int, typer.Option(min=1, help="encoder batch size, in photos")] = 4,
    workers: Annotated[
        int, typer.Option(min=0, max=MAX_WORKERS, help="decoder processes; 0: one per core, 1: decode in this process")
    ] = 0,
    top: options.Top = 3,
    threads: options.Threads = 0,
    head: options.Head = "",
    runtime: options.Runtime = "",
    precision: options.Precision = "",
    provider: options.Provider = "",
    refuse_fallback: options.RefuseFallback = False,
    shares: options.Shares = True,
) -> None:
    """Recognise an album, each photo with the help of the others, into a table. An interrupted album resumes.

    Status 3: the table is written, but some photos have no answer; they are listed.
    """
    from refocus.edge.recognize.album import answer_album, find_photos
    from refocus.edge.recognize.chosen_target import target_for

    out = out or html
    if out is None:
        raise RefocusError("nowhere to write: expected --out FILE.csv, --out FILE.json or --html FILE.html")
    if html is not None and html.suffix.lower() != ".html":
        raise RefocusError(f"--html {html}: expected a file name that ends in .html")
    bundle, photos = options.bundle_and_photos(bundle, photos)
    path = None
    if profile:
        # Only what is remembered may make a new profile.
        path = edge.profile_path(profiles, profile) if remember else options.existing_path(profile, profiles)
    runtime, precision = target_for(bundle, path, head, runtime, precision)
    opened, weights = edge.load_bundle(bundle, [f"{runtime}:{precision}"]), options.personal_weights(profiles)
    files = find_photos(photos, opened.manifest.preprocessing.of_clips)
    where = runtime, precision, threads, head, provider, not refuse_fallback
    with edge.Recognizer(opened, path, *where, weights=weights, shares=shares) as recognizer:
        if recognizer.history is not None and recognizer.history.recovered is not None:
            logger.warning(f"{profile}: {recognizer.history.recovered}")
        try:
            report = answer_album(recognizer, files, out, order, batch, memory, top, remember, track, workers, html)
        except KeyboardInterrupt:
            raise RefocusError(
                f"interrupted; the same command resumes (progress is kept in {out}.unfinished)"
            ) from None
    typer.echo(f"{out}: {len(report.rows)} photos, {report.encoded} of them encoded by this run")
    exit_if((row.error for row in report.rows if row.error), len(report.rows))
