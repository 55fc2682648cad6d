"""``refocus serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    bank: Annotated[Path, typer.Argument(help="folder of the bank")],
    key: Annotated[Path, typer.Option(help="private key that signs bundles (PEM, ed25519); made if it is missing")],
    tokens: Annotated[Path, typer.Option(help="file of mode 600 with one token per line")],
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one")] = 8420,
    workers: Annotated[int, typer.Option(min=1, help="bundles that are made at once")] = 2,
    per_minute: Annotated[int, typer.Option(min=1, help="requests per token")] = 600,
    waiting: Annotated[int, typer.Option(min=1, help="requests that may be in work or wait at once")] = 256,
    per_token: Annotated[int, typer.Option(min=0, help="of these, of one token; 0: half of them")] = 0,
    connections: Annotated[int, typer.Option(min=8, help="open at once; fewer where file descriptors are few")] = 1024,
    per_address: Annotated[int, typer.Option(min=0, help="of these, from one address; 0: half of them")] = 0,
    valid_for: Annotated[int, typer.Option(min=60, help="seconds in which a device may install a bundle")] = 3600,
    describe: Annotated[
        bool, typer.Option("--describe", help="take free words too (needs refocus-edge[cpu,cloud,text])")
    ] = False,
    scratch: Annotated[
        Path | None, typer.Option(help="folder for bundles while they are sent; default: in the bank's")
    ] = None,
) -> None:
    """Answer tasks with condensed and signed bundles, over HTTP."""
    import tempfile

    from refocus.cloud_train.service.app import Service, create_app
    from refocus.cloud_train.service.connections import Limits, make_server
    from refocus.cloud_train.service.guard import Bounds
    from refocus.cloud_train.service.keys import read_tokens, signing_key
    from refocus.edge.taper import Bank

    known, opened, signer = read_tokens(tokens), Bank.open(bank, scratch or bank.parent), signing_key(key)
    with tempfile.TemporaryDirectory(dir=scratch or bank.parent, prefix=".refocus-serve-") as folder:
        bounds = Bounds(per_minute, waiting=waiting, per_token=per_token)
        service = Service(opened, signer, Path(folder), workers, describe, bounds, valid_for)
        limits = Limits(connections, per_address)
        server, listener = make_server(create_app(service, known), host, port, limits)
        address = f"http://{host}:{listener.getsockname()[1]}"
        typer.echo(f"serving {len(opened.labels)} classes on {address}; public key: {key}.pub")
        server.run(sockets=[listener])
