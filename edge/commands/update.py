"""``refocus update``: a device looks for releases, takes them, serves with them, goes back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refocus import edge
from refocus.edge.commands import options
from refocus.edge.commands.app import print_json
from refocus.edge.errors import UpdateError
from refocus.edge.files import default_profiles, read_file

if TYPE_CHECKING:
    from refocus.edge.update.agent import UpdateAgent
    from refocus.edge.update.device_state import Slots, UpdateState

app = typer.Typer(help="Install signed releases from a TUF repository, with canary and rollback.", no_args_is_help=True)

MAX_ROOT_BYTES = 512 * 1024  # as much as TUF reads
_TRIAL = (
    "the trial ends when the release first serves: refocus update recognize, or a program that opens Serving; no later"
    " release is taken before"
)

FolderArgument = Annotated[Path, typer.Argument(help="folder of the device's releases")]


@app.command()
def init(
    folder: FolderArgument,
    url: Annotated[str, typer.Option(help="URL of the release repository")],
    root: Annotated[Path, typer.Option(help="trusted root metadata (1.root.json) of the repository")],
    device_class: Annotated[str, typer.Option(help="device class of this device")],
    bundle: Annotated[
        Path | None, typer.Option(help="initial bundle, used until the first release is installed")
    ] = None,
    runtime: options.Runtime = "onnxruntime",
    precision: options.Precision = "fp32",
) -> None:
    """Set a device up for updates."""
    from refocus.edge.update.agent import adopt
    from refocus.edge.update.device_state import RECORD, Slots
    from refocus.edge.update.loaded_releases import Settings

    _check_url(url)
    first = _read_root(root)
    if bundle is not None:  # before anything is made
        edge.load_bundle(bundle).artifact("encoder", runtime, precision)
    begun = bundle is not None and (folder / RECORD).exists() and Slots(folder).lacks_first(device_class, url, first)
    # An earlier call may have ended before it had the bundle.
    slots = Slots(folder) if begun else Slots.create(folder, device_class, url, first)
    if bundle is not None:
        adopt(slots, bundle, Settings(default_profiles(), runtime, precision))
    typer.echo(f"{folder}: set up as a {device_class}" + (f", served by {bundle}" if bundle else ""))


@app.command()
def run(
    folder: FolderArgument,
    profiles: options.Profiles,
    runtime: options.Runtime = "onnxruntime",
    precision: options.Precision = "fp32",
    threads: options.Threads = 0,
    switch: Annotated[
        bool,
        typer.Option(
            "--switch", help="activate the release for all profiles, even those whose history is not migrated"
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Look for a release and do all there is to do; killed or cut off, the same command goes on."""
    updates = _updates(folder, profiles, runtime, precision, threads)
    try:
        found = updates.look()
    except UpdateError:
        updates.run()  # what is here goes on without a network
        raise
    if not as_json:
        typer.echo(found)
    record = updates.run()
    if switch and record.stage == "moving":
        updates.switch()
        record = updates.run()
    _say(record, updates.slots, updates, as_json)


@app.command()
def recognize(
    folder: FolderArgument,
    photos: Annotated[list[Path], typer.Argument(help="photo files, recognised in this order")],
    profiles: options.Profiles,
    profile: Annotated[str, typer.Option(help="profile whose history is read and extended")] = "default",
    top: options.Top = 3,
    runtime: options.Runtime = "onnxruntime",
    precision: options.Precision = "fp32",
    threads: options.Threads = 0,
    as_json: options.Json = False,
) -> None:
    """Recognise photos with the release that serves, which ends the trial of a new one; needs no network.

    Status 3: done, but some photos have no answer; they are listed.
    """
    from refocus.edge.commands.answers import exit_if, print_answers
    from refocus.edge.recognize.explain import explain as explain_answer
    from refocus.edge.recognize.explain import text
    from refocus.edge.update.device_state import Slots
    from refocus.edge.update.loaded_releases import Settings
    from refocus.edge.update.serving import Serving

    settings = Settings(profiles, runtime, precision, threads)
    with Serving(Slots(folder), settings, edge.profile_path(profiles, profile)) as serving:

        def tell(photo: Path, answer: edge.Answer) -> tuple[dict[str, Any], str]:
            found = explain_answer(answer, serving.recognizer.card.labels, str(photo), top).delivered
            row = {"photo": str(photo), "answer": [one._asdict() for one in found], "release": serving.answering.number}
            return row, f"{photo}: {text(found)}"

        failed = print_answers(photos, serving.recognize, tell, ("release",), as_json)
    exit_if(failed, len(photos))


@app.command()
def back(
    folder: FolderArgument,
    profiles: options.Profiles,
    runtime: options.Runtime = "onnxruntime",
    precision: options.Precision = "fp32",
    threads: options.Threads = 0,
    why: Annotated[str, typer.Option(help="reason, shown by refocus update status")] = "the owner asked for it",
    as_json: options.Json = False,
) -> None:
    """Return to the release before; the one that is left is not taken again."""
    updates = _updates(folder, profiles, runtime, precision, threads)
    updates.back(why)
    _say(updates.run(), updates.slots, updates, as_json)


@app.command()
def status(folder: FolderArgument, as_json: options.Json = False) -> None:
    """Say which release serves, where its bundle is, which one is kept, and how updates ended; needs no network."""
    from refocus.edge.update.device_state import Slots

    slots = Slots(folder)
    _say(slots.read(), slots, None, as_json)


@app.command()
def counts(folder: FolderArgument) -> None:
    """Print all that may be sent home, if the owner wants that: how releases went, in counts. Nothing sends it."""
    import msgspec

    from refocus.edge.update.device_state import Slots, counted

    print_json(msgspec.to_builtins(counted(Slots(folder).read())))


def _check_url(url: str) -> None:
    """Raises UpdateError where no repository can be at a URL."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port or an address that is none
        whole = False
    if not whole or parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise UpdateError(f"--url '{url}': expected https://HOST/PATH (or http://), without spaces, '?' and '#'")


def _read_root(path: Path) -> bytes:
    """The content of a root.json; that its signatures hold is checked when the repository is first asked.

    Raises:
        UpdateError: it cannot be read, or is not TUF's metadata of type root with a key and a signature.
    """
    import json

    content = read_file(path, MAX_ROOT_BYTES, "the repository's 1.root.json", UpdateError)
    try:
        document = json.loads(content)
        whole = document["signed"]["_type"] == "root" and document["signed"]["keys"] and document["signatures"]
    except (ValueError, TypeError, LookupError, RecursionError):
        whole = False
    if not whole:
        raise UpdateError(f"--root {path}: expected the repository's 1.root.json; take it from refocus release init")
    return content


def _updates(folder: Path, profiles: Path, runtime: str, precision: str, threads: int) -> UpdateAgent:
    from refocus.edge.update.agent import UpdateAgent
    from refocus.edge.update.device_state import Slots
    from refocus.edge.update.loaded_releases import Settings
    from refocus.edge.update.repository import RepositoryClient

    slots = Slots(folder)
    record = slots.read()
    source = RepositoryClient(folder / "metadata", record.url, slots.root, record.device_class)
    return UpdateAgent(slots, Settings(profiles, runtime, precision, threads), source)


def _say(record: UpdateState, slots: Slots, updates: UpdateAgent | None, as_json: bool) -> None:
    from dataclasses import asdict

    import msgspec

    from refocus.edge.update.rules import printable

    active, previous, candidate = record.active, record.previous, record.candidate
    bundle = str(slots.path(active)) if active else None
    if as_json:
        people: dict[str, Any] = {}
        if updates:
            people = {"shadow": asdict(updates.shadow), "left_out": updates.left_out, "recovered": updates.recovered}
        print_json({**msgspec.to_builtins(record), "bundle": bundle, **people})
        return
    serves = f"release {active.number} ({active.name}) serves" if active else "no release is installed"
    kept = f"; release {previous.number} is kept" if previous else ""
    coming = f"; release {candidate.number} is on its way" if candidate and record.stage != "returning" else ""
    typer.echo(f"{record.stage}: {serves}{kept}{coming}")
    if bundle is not None:
        typer.echo(f"its bundle: {bundle}")
    if record.stage == "trial":
        typer.echo(_TRIAL)
    if updates and updates.shadow.photos:
        found = updates.shadow
        typer.echo(
            f"on {found.photos} recent photos it agreed with the release before on {found.agreement:.0%};"
            f" {found.latency_ms:.1f} ms a photo, before {found.serving_latency_ms:.1f} ms"
        )
    for name, what in updates.recovered.items() if updates else ():
        typer.echo(printable(f"{name}: {what}"))
    for name, why in updates.left_out.items() if updates else ():
        typer.echo(printable(f"{name} was left out: {why}"))
    for one in record.postponed.values():
        typer.echo(f"a release waits until {one.until:%Y-%m-%d %H:%M} UTC: {one.why}")
    for outcome in record.outcomes[-3:]:
        typer.echo(f"release {outcome.number}: {outcome.outcome}" + (f", {outcome.why}" if outcome.why else ""))
