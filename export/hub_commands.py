"""``refocus push`` and ``refocus pull``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from refocus.edge.commands import Json, print_result, words

Hub = Annotated[str, typer.Argument(help="hf://ORGANISATION/NAME, or with @REVISION (branch, tag or commit)")]
Endpoint = Annotated[str, typer.Option(help="URL of the hub; default: HF_ENDPOINT, else that of huggingface_hub")]


def push(
    bundle: Annotated[Path, typer.Argument(help="folder of the bundle")],
    place: Hub,
    licence: Annotated[str, typer.Option(help="licence identifier of the model on the hub: apache-2.0, mit, ...")] = "",
    tags: Annotated[str, typer.Option(help="comma-separated tags for the hub's search")] = "",
    private: Annotated[bool, typer.Option("--private", help="create the repository as private")] = False,
    endpoint: Endpoint = "",
    as_json: Json = False,
) -> None:
    """Upload a bundle to a model hub as one commit, with a model card."""
    from refocus.export.hub.transfer import parse_place, push_bundle

    _quiet_library()
    done = push_bundle(bundle, parse_place(place), licence, (*words(tags),), private, endpoint)
    shown = {"commit": done.commit, "sha256": done.sha256, "url": done.url}
    print_result(shown, f"{done.url}\nSHA-256 of the bundle's manifest, for pull --sha256: {done.sha256}", as_json)


def pull(
    place: Hub,
    out: Annotated[Path, typer.Option(help="output folder; an existing bundle is replaced")],
    sha256: Annotated[str, typer.Option(help="expected SHA-256 of the bundle's manifest, as push printed it")] = "",
    endpoint: Endpoint = "",
) -> None:
    """Download a bundle from a model hub and verify every file of it."""
    from refocus.export.hub.transfer import parse_place, pull_bundle

    _quiet_library()
    bundle = pull_bundle(parse_place(place), out, sha256, endpoint)
    typer.echo(f"{bundle.manifest.name} in {out}: every file verified")


def _quiet_library() -> None:
    """Progress bars of huggingface_hub are for terminals; its usage reports are switched off."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
