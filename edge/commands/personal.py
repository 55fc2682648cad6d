"""``refocus personal``: what was learned for one person elsewhere, kept beside their history."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refocus.edge.commands.app import print_json
from refocus.edge.commands.recognize import default_profiles

app = typer.Typer(
    no_args_is_help=True, help="What was learned for a person elsewhere: put it in place, list it, drop it."
)

ProfileFlag = Annotated[str, typer.Option(help="whose")]
ProfilesFlag = Annotated[Path | None, typer.Option(help="folder of the profiles; default: the user's data folder")]
JsonFlag = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command()
def put(
    bundle: Annotated[Path, typer.Argument(help="folder of the bundle that the weights belong to")],
    weights: Annotated[Path, typer.Argument(help="the person's file, .safetensors")],
    profile: ProfileFlag = "default",
    profiles: ProfilesFlag = None,
    person: Annotated[str, typer.Option(help="who the file was made for; default: the profile's name")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Put a person's weights in place, for every runtime of a bundle; earlier ones for it are replaced."""
    from refocus.edge.bundle.load import load_bundle
    from refocus.edge.personal.received_files import read_personal
    from refocus.edge.personal.store import PersonalWeightStore
    from refocus.edge.recognize.recognizer import profile_path

    folder = profiles or default_profiles()
    profile_path(folder, profile)  # a name that cannot leave the folder
    opened = load_bundle(bundle)
    found = read_personal(weights, opened, person or profile)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    cache = PersonalWeightStore(folder / "weights")
    sizes = [cache.put(profile, model, found.weights).size_bytes for model in found.models]
    method, tensors = found.weights.method, sorted(found.weights.tensors)
    if as_json:
        print_json({"profile": profile, "method": method, "tensors": tensors, "bytes": sum(sizes)})
    else:
        typer.echo(f"{profile}: {', '.join(tensors)} of {method}, {sum(sizes):,} bytes")


@app.command("list")
def list_entries(profiles: ProfilesFlag = None, as_json: JsonFlag = False) -> None:
    """What is kept, the least recently used first."""
    from refocus.edge.personal.store import PersonalWeightStore

    folder = (profiles or default_profiles()) / "weights"
    entries = PersonalWeightStore(folder).entries() if folder.is_dir() else []
    rows = [
        {"profile": e.profile, "method": e.method, "carrier": e.carrier, "model": e.model, "bytes": e.size_bytes}
        for e in entries
    ]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            typer.echo(
                f"{row['profile']}: {row['method']} ({row['carrier']}) for model {str(row['model'])[:12]},"
                f" {row['bytes']:,} bytes"
            )


@app.command()
def drop(profile: ProfileFlag = "default", profiles: ProfilesFlag = None, as_json: JsonFlag = False) -> None:
    """Remove all of a person's weights; the bundle's own serve them again."""
    from refocus.edge.personal.store import PersonalWeightStore

    folder = (profiles or default_profiles()) / "weights"
    removed = PersonalWeightStore(folder).drop(profile) if folder.is_dir() else 0
    if as_json:
        print_json({"profile": profile, "removed": removed})
    else:
        typer.echo(f"{profile}: {removed} files removed")
