"""``refocus personal``: what was learned for one person elsewhere, kept beside their history."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refocus import edge
from refocus.edge.commands import options
from refocus.edge.commands.app import print_result

app = typer.Typer(no_args_is_help=True, help="Install, list or remove personal weights of a profile.")


@app.command()
def put(
    bundle: Annotated[Path, typer.Argument(help="folder of the bundle that the weights were trained for")],
    weights: Annotated[Path, typer.Argument(help="personal weights, .safetensors")],
    profiles: options.Profiles,
    profile: options.Profile = "default",
    person: Annotated[str, typer.Option(help="client name in the weights file; default: the profile's name")] = "",
    as_json: options.Json = False,
) -> None:
    """Put a person's weights in place, for every runtime of a bundle; earlier ones for it are replaced."""
    from refocus.edge.personal.received_files import read_personal
    from refocus.edge.personal.store import PersonalWeightStore
    from refocus.edge.update.rules import printable

    edge.profile_path(profiles, profile)  # a name that cannot leave the folder
    found = read_personal(weights, edge.load_bundle(bundle), person or profile)
    profiles.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = PersonalWeightStore(profiles / "weights")
    size = sum(entry.size_bytes for entry in store.put_each(profile, found.models, found.weights))
    method, tensors = printable(found.weights.method), [printable(name) for name in sorted(found.weights.tensors)]
    result = {"profile": profile, "method": method, "tensors": tensors, "bytes": size}
    print_result(result, f"{profile}: {', '.join(tensors)} of {method}, {size:,} bytes", as_json)


@app.command("list")
def list_entries(profiles: options.Profiles, as_json: options.Json = False) -> None:
    """What is kept, the least recently used first."""
    store = options.personal_weights(profiles)
    entries = store.entries() if store is not None else []
    rows = [
        {"profile": e.profile, "method": e.method, "carrier": e.carrier, "model": e.model, "bytes": e.size_bytes}
        for e in entries
    ]
    lines = [f"{e.profile}: {e.method} ({e.carrier}) for model {e.model[:12]}, {e.size_bytes:,} bytes" for e in entries]
    print_result(rows, lines, as_json)


@app.command()
def drop(profiles: options.Profiles, profile: options.Profile = "default", as_json: options.Json = False) -> None:
    """Remove all of a person's weights; the bundle's own serve them again."""
    store = options.personal_weights(profiles)
    removed = store.drop(profile) if store is not None else 0
    print_result({"profile": profile, "removed": removed}, f"{profile}: {removed} files removed", as_json)
