"""``refocus serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    bank: Annotated[Path, typer.Argument(help="folder of the bank")],
    key: Annotated[Path, typer.Option(help="private key that signs bundles (PEM, ed25519); made if it is missing")],
    tokens: Annotated[Path, typer.Option(help="file with one token per line; who has one is answered")],
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one")] = 8420,
    workers: Annotated[int, typer.Option(min=1, help="bundles that are made at once")] = 2,
    per_minute: Annotated[int, typer.Option(min=1, help="requests per token")] = 600,
    waiting: Annotated[int, typer.Option(min=1, help="requests that may be in work or wait at once")] = 256,
    describe: Annotated[
        bool, typer.Option("--describe", help="take free words too (needs refocus[cloud,text])")
    ] = False,
    scratch: Annotated[
        Path | None, typer.Option(help="folder for bundles while they are sent; default: in the bank's")
    ] = None,
) -> None:
    """Answer tasks with condensed and signed bundles, over HTTP."""
    import tempfile

    import uvicorn

    from cloud_train.service.app import Service, create_app
    from cloud_train.service.guard import Bounds, read_tokens
    from cloud_train.service.keys import signing_key
    from edge.condense import Bank

    known, opened, signer = read_tokens(tokens), Bank.open(bank, scratch or bank.parent), signing_key(key)
    with tempfile.TemporaryDirectory(dir=scratch or bank.parent, prefix=".refocus-serve-") as folder:
        service = Service(opened, signer, Path(folder), workers, describe, Bounds(per_minute, waiting=waiting))
        config = uvicorn.Config(create_app(service, known), host=host, port=port, log_level="warning",
                                timeout_graceful_shutdown=30, server_header=False)  # fmt: skip
        server = uvicorn.Server(config)
        typer.echo(f"serving {len(opened.labels)} classes on http://{host}:{port}; public key: {key}.pub")
        server.run()
