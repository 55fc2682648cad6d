"""``refocus history``: what is stored about a person, and that person's rights over it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refocus.edge.commands.app import print_json

if TYPE_CHECKING:
    from refocus.edge.history.feature_history import FeatureHistory

SHORTEST_PREFIX = 8  # characters of an identity: a typing error hits no other photo

app = typer.Typer(help="See, take along or erase what is stored about a person.", no_args_is_help=True)

ProfileOption = Annotated[str, typer.Option(help="whose history")]
ProfilesOption = Annotated[Path | None, typer.Option(help="folder of the profiles")]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command("list")
def list_entries(
    profile: ProfileOption = "default", profiles: ProfilesOption = None, as_json: JsonOption = False
) -> None:
    """List the photos of which a feature is stored; the features themselves are not shown."""
    with open_existing(profile, profiles) as history:
        entries, labels = history.entries(), history.labels()
    rows = [
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
    if as_json:
        print_json(rows)
        return
    for row in rows:
        label = f"  {row['label']}" if row["label"] else ""
        stored = row["stored"] or "unknown"
        typer.echo(f"{str(row['photo'])[:12]}  {str(row['space'])[:12]}  {stored:25}  {row['name']}{label}")
    typer.echo(f"{len(rows)} features of {profile}")


@app.command()
def stats(profile: ProfileOption = "default", profiles: ProfilesOption = None, as_json: JsonOption = False) -> None:
    """Say how much is stored: features per feature space, labels, settings, files that were set aside."""
    from refocus.edge.history.recovery import set_aside_files

    with open_existing(profile, profiles) as history:
        path = history.path
        set_aside = [str(file) for file in set_aside_files(path)]
        found: dict[str, Any] = {
            "profile": profile,
            "file": str(path),
            "file_bytes": path.stat().st_size,
            "spaces": [
                {"space": space, "photos": about.count, "bytes": about.size, "width": about.width}
                for space, about in history.spaces().items()
            ],
            "labels": len(history.labels()),
            "settings": history.settings(),
            "set_aside": set_aside,
        }
    if as_json:
        print_json(found)
        return
    typer.echo(f"{profile}: {path}, {found['file_bytes'] / 1e6:.2f} MB")
    for row in found["spaces"]:
        size = f"{row['bytes'] / 1e6:.2f} MB"
        typer.echo(f"space {row['space'][:12]}: {row['photos']} features of {row['width']} numbers, {size}")
    typer.echo(f"{found['labels']} labels, {len(found['settings'])} settings")
    for file in set_aside:
        typer.echo(f"set aside, damaged: {file}")


@app.command()
def export(
    out: Annotated[Path, typer.Argument(help="the zip to write")],
    profile: ProfileOption = "default",
    profiles: ProfilesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write everything that is stored about a person into a zip of open formats (NumPy arrays and JSON)."""
    with open_existing(profile, profiles) as history:
        history.export(out)
        features = sum(about.count for about in history.spaces().values())
    if as_json:
        print_json({"out": str(out), "features": features, "bytes": out.stat().st_size})
    else:
        typer.echo(f"{out}: {features} features of {profile}, {out.stat().st_size / 1e6:.2f} MB")


@app.command()
def erase(
    profile: ProfileOption = "default",
    profiles: ProfilesOption = None,
    photo: Annotated[
        str | None, typer.Option(help="only this photo: its file, its identity or at least 8 digits of it")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="only this feature space, or at least the first 8 characters of its name")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    as_json: JsonOption = False,
) -> None:
    """Forget a person, or one photo, or one feature space, in the file too. It cannot be undone."""
    from refocus.edge.commands.recognize import default_profiles, personal_weights

    with open_existing(profile, profiles) as history:
        one_photo = _photo(photo, history) if photo is not None else None
        one_space = _one_of("--space", space, history.spaces()) if space is not None else None
        photo_part = f" of photo {one_photo[:12]}" if one_photo else ""
        space_part = f" in space {one_space[:12]}" if one_space else ""
        what = f"everything{photo_part or ' of the person'}{space_part}"
        if not yes:
            typer.confirm(f"{profile}: erase {what}, for ever?", abort=True, err=True)
        erased = history.erase(one_photo, one_space)
    weights = personal_weights(profiles or default_profiles())
    # What was learned from a person is theirs too; what was learned of one photo cannot be taken out of it.
    dropped = weights.drop(profile) if weights is not None and photo is space is None else 0
    if as_json:
        print_json({"profile": profile, "photo": one_photo, "space": one_space, "erased": erased, "weights": dropped})
    else:
        typer.echo(f"{profile}: erased {what}: {erased} features" + (f", {dropped} personal files" if dropped else ""))


def existing_path(profile: str, profiles: Path | None) -> Path:
    """The file of a profile that is there; a mistyped name must not make a new one."""
    from refocus.edge.commands.recognize import default_profiles
    from refocus.edge.errors import HistoryError
    from refocus.edge.recognize.recognizer import profile_path

    folder = profiles or default_profiles()
    path = profile_path(folder, profile)
    ending = profile_path(folder, "x").name[1:]
    if not path.exists() and not path.with_name(path.name + ".salvaged").exists():
        names = sorted(file.name.removesuffix(ending) for file in folder.glob(f"*{ending}"))
        there = f"there are: {', '.join(names[:8])}" if names else "there is none"
        raise HistoryError(f"--profile {profile}: no such profile in {folder}; {there}")
    return path


def open_existing(profile: str, profiles: Path | None) -> FeatureHistory:
    from refocus.edge.history.feature_history import FeatureHistory

    history = FeatureHistory(existing_path(profile, profiles))
    history.verify()
    if (recovered := history.recovered) is not None:
        sys.stderr.write(f"{profile}: {recovered}\n")
    return history


def _photo(given: str, history: FeatureHistory) -> str:
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
    from refocus.edge.errors import HistoryError

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
