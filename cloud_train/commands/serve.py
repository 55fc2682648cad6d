"""``refocus serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    bank: Annotated[Path, typer.Argument(help="folder of the bank")],
    key: Annotated[Path, typer.Option(help="private key that signs bundles (PEM, Ed25519); generated if missing")],
    tokens: Annotated[Path, typer.Option(help="file of bearer tokens, one per line, mode 600")],
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0: a free port")] = 8420,
    workers: Annotated[int, typer.Option(min=1, help="bundles condensed at once, each in a thread")] = 2,
    per_minute: Annotated[int, typer.Option(min=1, help="rate limit: requests per minute and token")] = 600,
    waiting: Annotated[int, typer.Option(min=1, help="maximum number of requests in progress or queued")] = 256,
    per_token: Annotated[int, typer.Option(min=0, help="maximum number of these per token; 0: half")] = 0,
    connections: Annotated[
        int, typer.Option(min=8, help="maximum number of open connections, reduced to the file descriptors available")
    ] = 1024,
    per_address: Annotated[
        int, typer.Option(min=0, help="maximum number of connections per client address; 0: half")
    ] = 0,
    valid_for: Annotated[int, typer.Option(min=60, help="validity of a signed bundle, in seconds")] = 3600,
    describe: Annotated[
        bool,
        typer.Option("--describe", help="accept task descriptions in free text (needs the extras cpu, cloud and text)"),
    ] = False,
    scratch: Annotated[
        Path | None, typer.Option(help="temporary folder for bundles in transfer; default: beside the bank")
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
