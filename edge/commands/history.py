"""``refocus history``: what is stored about a person, and that person's rights over it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from refocus import edge
from refocus.edge.commands import options
from refocus.edge.commands.app import print_result
from refocus.edge.errors import HistoryError

SHORTEST_PREFIX = 8  # characters of an identity: a typing error hits no other photo

_EVERYTHING = "everything of the person"

app = typer.Typer(help="List, export or erase the stored history of a profile.", no_args_is_help=True)


@app.command("list")
def list_entries(
    profiles: options.Profiles, profile: options.Profile = "default", as_json: options.Json = False
) -> None:
    """List the photos of which a feature is stored; the features themselves are not shown."""
    with options.open_existing(profile, profiles, or_read_only=True) as history:
        entries, labels = history.entries(), history.labels()
    rows: list[dict[str, Any]] = [
        {
            "photo": entry.photo,
            "name": entry.name,
            "label": labels.get(entry.photo),
            "space": entry.space,
            "stored": entry.stored.isoformat(timespec="seconds") if entry.stored else None,
            "bytes": entry.size,
        }
        for entry in entries
    ]
    lines = [
        f"{row['photo'][:12]}  {row['space'][:12]}  {row['stored'] or 'unknown':25}  {row['name']}"
        + (f"  {row['label']}" if row["label"] else "")
        for row in rows
    ]
    print_result(rows, [*lines, f"{len(rows)} features of {profile}"], as_json)


@app.command()
def stats(profiles: options.Profiles, profile: options.Profile = "default", as_json: options.Json = False) -> None:
    """Say how much is stored: features per feature space, labels, settings, files that were set aside."""
    from refocus.edge.history.recovery import set_aside_files

    with options.open_existing(profile, profiles, or_read_only=True) as history:
        path, spaces, labels, settings = history.path, history.spaces(), len(history.labels()), history.settings()
        computed = {space: history.numeric_paths(space) for space in spaces}
        set_aside, size = [str(file) for file in set_aside_files(path)], path.stat().st_size
    found = {
        "profile": profile,
        "file": str(path),
        "file_bytes": size,
        "spaces": [
            {
                "space": space,
                "photos": about.count,
                "bytes": about.size,
                "width": about.width,
                "computed_by": computed[space],
            }
            for space, about in spaces.items()
        ],
        "labels": labels,
        "settings": settings,
        "set_aside": set_aside,
    }
    lines = [
        f"{profile}: {path}, {size / 1e6:.2f} MB",
        *(
            f"space {space[:12]}: {about.count} features of {about.width} numbers, {about.size / 1e6:.2f} MB"
            for space, about in spaces.items()
        ),
        *(
            f"space {space[:12]}: {count} features computed by {path or 'what nobody recorded'}"
            for space, paths in computed.items()
            for path, count in paths.items()
        ),
        f"{labels} labels, {len(settings)} settings",
        *(f"set aside, damaged: {file}" for file in set_aside),
    ]
    print_result(found, lines, as_json)


@app.command()
def export(
    out: Annotated[Path, typer.Argument(help="output file, .zip")],
    profiles: options.Profiles,
    profile: options.Profile = "default",
    as_json: options.Json = False,
) -> None:
    """Write everything that is stored about a person into a zip of open formats (NumPy arrays and JSON)."""
    if out.suffix.lower() != ".zip":  # a photo, or the profile itself, which would be replaced
        raise HistoryError(f"{out}: expected the name of a file, ending in .zip")
    with options.open_existing(profile, profiles, or_read_only=True) as history:
        history.export(out)
        features = sum(about.count for about in history.spaces().values())
    size = out.stat().st_size
    found = {"out": str(out), "features": features, "bytes": size}
    print_result(found, f"{out}: {features} features of {profile}, {size / 1e6:.2f} MB", as_json)


@app.command()
def erase(
    profiles: options.Profiles,
    profile: options.Profile = "default",
    photo: Annotated[
        str | None, typer.Option(help="erase only this photo: its file, its SHA-256 or at least 8 digits of it")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="erase only this feature space: its name or at least the first 8 characters")
    ] = None,
    classes: Annotated[
        bool,
        typer.Option(
            "--classes", help="erase only the likely classes that class shares count; a bundle estimates them again"
        ),
    ] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Forget a person, or one photo, or one feature space, in the file too. It cannot be undone."""
    if classes and photo is not None:
        raise HistoryError("--classes: expected no --photo; a photo's classes go with it")
    weights, everything = options.personal_weights(profiles), photo is space is None
    without_file = everything and not classes and not options.has_history(profile, profiles)
    if without_file and weights is not None and weights.holds(profile):
        _confirm(profile, _EVERYTHING, yes)
        _say_erased(profile, _EVERYTHING, None, None, 0, weights.drop(profile), as_json)
        return
    with options.open_existing(profile, profiles) as history:
        one_photo = _photo(photo, history) if photo is not None else None
        one_space = _one_of("--space", space, history.spaces()) if space is not None else None
        if classes:
            _forget_classes(history, profile, one_space, as_json)
            return
        photo_part = f" of photo {one_photo[:12]}" if one_photo else ""
        space_part = f" in space {one_space[:12]}" if one_space else ""
        what = (f"everything{photo_part}" if photo_part else _EVERYTHING) + space_part
        _confirm(profile, what, yes)
        erased = history.erase(one_photo, one_space)
    # What was learned from a person is theirs too; what was learned of one photo cannot be taken out of it.
    dropped = weights.drop(profile) if weights is not None and everything else 0
    _say_erased(profile, what, one_photo, one_space, erased, dropped, as_json)


def _confirm(profile: str, what: str, yes: bool) -> None:
    if not yes:
        typer.confirm(f"{profile}: erase {what}, for ever?", abort=True, err=True)


def _say_erased(
    profile: str, what: str, photo: str | None, space: str | None, erased: int, weights: int, as_json: bool
) -> None:
    found = {"profile": profile, "photo": photo, "space": space, "erased": erased, "weights": weights}
    files = f", {weights} personal files" if weights else ""
    print_result(found, f"{profile}: erased {what}: {erased} features{files}", as_json)


def _forget_classes(history: edge.FeatureHistory, profile: str, space: str | None, as_json: bool) -> None:
    spaces = [name for name in history.spaces() if space in (None, name) and history.likely_by(name) is not None]
    history.forget_likely(space)
    history.scrub()
    found = {"profile": profile, "classes_of": spaces}
    what = ", ".join(name[:12] for name in spaces) or "none, nothing was stored"
    print_result(found, f"{profile}: erased the likely classes of photos in space {what}; features stay", as_json)


def _photo(given: str, history: edge.FeatureHistory) -> str:
    """The identity of a photo that was given as a file, an identity or the start of one."""
    import hashlib

    from refocus.edge.photos.preprocess import read_photo

    if given and Path(given).is_file():
        given = hashlib.sha256(read_photo(Path(given))).hexdigest()
    return _one_of("--photo", given, {*(entry.photo for entry in history.entries()), *history.labels()})


def _one_of(flag: str, given: str, known: Iterable[str]) -> str:
    """The only known name that starts so.

    Raises:
        HistoryError: it is shorter than ``SHORTEST_PREFIX``, no name starts so, or several do.
    """
    found = sorted(name for name in known if name.startswith(given))
    if given in found:
        return given
    if len(given) < SHORTEST_PREFIX:
        raise HistoryError(
            f"{flag} '{given}': expected at least {SHORTEST_PREFIX} characters of what refocus history list shows"
        )
    if len(found) != 1:
        what = "is not stored" if not found else f"could be {found[0][:16]} or {found[1][:16]}"
        raise HistoryError(f"{flag} {given} {what}; see refocus history list")
    return found[0]
