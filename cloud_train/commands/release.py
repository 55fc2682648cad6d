"""``refocus release``: sign releases, offer them to a part of the devices and then to more, take them back."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refocus.benchmarks.commands.flags import Label, Person, PhotosPerStream, Split
from refocus.edge.commands import Json, print_result

if TYPE_CHECKING:
    from refocus.cloud_train.release.repository import Repository

logger = logging.getLogger(__name__)

app = typer.Typer(help="Sign and publish releases, with staged rollout and withdrawal.", no_args_is_help=True)

RepositoryArgument = Annotated[Path, typer.Argument(help="folder of the repository")]
KeysOption = Annotated[Path, typer.Option(help="folder of the available private keys")]
ClassOption = Annotated[str, typer.Option(help="device class of the release")]
NumberOption = Annotated[int, typer.Option(min=1, help="number of the release")]


@app.command()
def init(
    repository: RepositoryArgument,
    keys: KeysOption,
    device_class: Annotated[list[str], typer.Option(help="device class; repeatable")],
    root_keys: Annotated[int, typer.Option(min=2, help="number of root keys; two signatures are required")] = 3,
) -> None:
    """Make an empty repository and all its keys."""
    from refocus.cloud_train.release.keys import KeyRing
    from refocus.cloud_train.release.repository import Repository

    made = Repository.create(repository, KeyRing(keys), device_class, root_keys)
    typer.echo(f"{repository}: for {', '.join(made.classes())}; serve the folder, give devices metadata/1.root.json")
    typer.echo(
        f"{keys}: move the root keys to {root_keys} separate places that are not connected, and the key of targets"
        " too; publishing needs only those of the class, snapshot and timestamp"
    )


@app.command()
def publish(
    repository: RepositoryArgument,
    bundle: Annotated[Path, typer.Argument(help="folder of the bundle")],
    keys: KeysOption,
    device_class: ClassOption,
    percent: Annotated[float, typer.Option(min=0, max=100, help="initial rollout percentage of devices")] = 1.0,
    min_refocus: Annotated[str, typer.Option(help="minimum version of refocus-edge on the device")] = "",
    as_json: Json = False,
) -> None:
    """Sign a bundle as the next release of a class."""
    from refocus.cloud_train.release.stages import OLDEST_REFOCUS
    from refocus.cloud_train.release.stages import publish as sign

    done = sign(_open(repository, keys), bundle, device_class, percent, min_refocus or OLDEST_REFOCUS)
    release, size, new = done.release, done.release.size_bytes, done.new_bytes
    told = {"number": release.number, "identity": release.identity, "percent": percent, "bytes": size, "new_bytes": new}
    text = f"release {release.number} of {device_class}: {release.name}, for {percent:g} % of the devices;"
    print_result(told, f"{text} {new} of {size} bytes are new", as_json)


@app.command()
def promote(
    repository: RepositoryArgument,
    keys: KeysOption,
    device_class: ClassOption,
    number: NumberOption,
    percent: Annotated[float, typer.Option(min=0, max=100, help="new rollout percentage of devices")],
    reports: Annotated[Path | None, typer.Option(help="JSON file of device reports (counts)")] = None,
    without_reports: Annotated[bool, typer.Option("--without-reports", help="promote without device reports")] = False,
    returned: Annotated[float, typer.Option(min=0, max=1, help="maximum fraction of devices that rolled back")] = 0.02,
    devices: Annotated[int, typer.Option(min=1, help="minimum number of device reports")] = 50,
) -> None:
    """Offer a release to more devices, if the stop rule lets it; one that must stop is withdrawn."""
    from refocus.cloud_train.errors import ReleaseError
    from refocus.cloud_train.release.stages import StopRule, read_reports
    from refocus.cloud_train.release.stages import promote as offer

    if (reports is None) != without_reports:
        raise ReleaseError("give --reports FILE, or --without-reports where devices send none: one of the two")
    rule = None if reports is None else StopRule(returned, devices)
    verdict = offer(_open(repository, keys), device_class, number, percent, read_reports(reports), rule)
    if verdict.verdict != "go":
        done = "withdrawn" if verdict.verdict == "stop" else "left as it is"
        raise ReleaseError(f"release {number} of {device_class} is {done}: {verdict.why}")
    typer.echo(f"release {number} of {device_class}: for {percent:g} % of the devices; {verdict.why}")


@app.command()
def withdraw(
    repository: RepositoryArgument,
    keys: KeysOption,
    device_class: ClassOption,
    number: NumberOption,
    why: Annotated[str, typer.Option(help="reason, sent to every device")],
) -> None:
    """Take a release from all devices; they return to what they had before."""
    from refocus.cloud_train.release.stages import withdraw as take_back

    take_back(_open(repository, keys), device_class, number, why)
    typer.echo(f"release {number} of {device_class}: withdrawn; devices return when they next look")


@app.command()
def gate(
    current: Annotated[Path, typer.Argument(help="bundle of the current release")],
    candidate: Annotated[Path, typer.Argument(help="bundle of the candidate release")],
    photos: Annotated[Path, typer.Argument(help="labelled photos: a folder or zip with metadata.csv")],
    person: Person = "client",
    label: Label = "label",
    split: Split = "",
    photos_per_person: PhotosPerStream = 32,
    limits: Annotated[Path | None, typer.Option(help="gate limits, TOML; default: the built-in limits")] = None,
    to: Annotated[str, typer.Option(help="target to evaluate, such as onnxruntime:fp32")] = "onnxruntime:fp32",
    as_json: Json = False,
) -> None:
    """Judge a candidate beside the current release, person by person; fail if a gate stops it."""
    from dataclasses import asdict

    from refocus.benchmarks.measure import read_labelled
    from refocus.cloud_train.errors import ReleaseError
    from refocus.cloud_train.release.evidence import judging_photos, measure
    from refocus.cloud_train.release.gates import evaluate_gates, read_limits
    from refocus.edge.bundle import load_bundle

    most, people = read_limits(limits), read_labelled(photos, person, label, split, photos_per_person)
    before, after = load_bundle(current), load_bundle(candidate)
    people, who = judging_photos(before, after, people)
    for line in who:
        logger.warning(line)
    runtime, _, precision = to.partition(":")
    evidence = measure(before, after, people, (runtime, precision))
    rows = evaluate_gates(evidence, most)
    print_result([asdict(row) for row in rows], map(str, rows), as_json)
    failed = [row for row in rows if not row.passed]
    if failed:
        names = ", ".join(row.name for row in failed)
        raise ReleaseError(f"{candidate} must not be released: {names}: {failed[0].why}")


@app.command()
def rotate(
    repository: RepositoryArgument,
    keys: KeysOption,
    role: Annotated[
        str, typer.Option(help="TUF role whose key is rotated: root, targets, snapshot, timestamp or a device class")
    ],
) -> None:
    """Give a role a new key, for one that was lost or stolen."""
    opened = _open(repository, keys)
    with opened.locked():
        name = opened.rotate(role)
    typer.echo(f"{role}: signed by {keys / name}.pem from now on; devices follow when they next look")


@app.command()
def renew(repository: RepositoryArgument, keys: KeysOption) -> None:
    """Sign again what expires soon; run it every day."""
    opened = _open(repository, keys)
    with opened.locked():
        lacking = opened.renew()
    for role, when in opened.expiries().items():
        note = "  its key is not here; sign it elsewhere" if role in lacking else ""
        typer.echo(f"{role}: until {when:%Y-%m-%d}{note}")


@app.command("list")
def list_releases(repository: RepositoryArgument, as_json: Json = False) -> None:
    """Say what is offered to whom, and until when it is signed."""
    import msgspec

    opened = _open(repository, repository)
    channels = {name: opened.channel(name) for name in opened.classes()}
    expires, lines = opened.expiries(), []
    for name, channel in channels.items():
        for release in channel.releases:
            state = f"withdrawn: {release.withdrawn}" if release.withdrawn else f"for {release.percent:g} %"
            line = f"{name} {release.number}  {release.identity[:12]}  {release.published:%Y-%m-%d}  {release.name}"
            lines.append(f"{line}: {state}")
    lines += [f"{role}: signed until {when:%Y-%m-%d}" for role, when in expires.items()]
    told = {"classes": channels, "expires": {role: when.isoformat() for role, when in expires.items()}}
    print_result(msgspec.to_builtins(told), lines, as_json)


def _open(repository: Path, keys: Path) -> Repository:
    from refocus.cloud_train.release.repository import open_repository

    return open_repository(repository, keys)
