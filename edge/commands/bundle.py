"""``refocus inspect``, ``refocus check`` and ``refocus upgrade``: one bundle, without anybody's history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refocus import edge
from refocus.edge.commands import options
from refocus.edge.commands.app import print_json, print_result
from refocus.edge.errors import BundleError, RuntimeUnavailable

if TYPE_CHECKING:
    from refocus.edge.bundle.manifest import Head, Manifest
    from refocus.edge.recognize.self_test import Check


def inspect(bundle: options.Bundle, as_json: options.Json = False) -> None:
    """Verify a bundle and say what is in it."""
    import msgspec

    from refocus.edge.bundle.table import artifact_table
    from refocus.edge.recognize.chosen_target import about_choice
    from refocus.edge.recognize.serving_head import serving_lines

    opened = edge.load_bundle(bundle)
    manifest = opened.manifest
    if as_json:
        print_json(msgspec.to_builtins(manifest))
        return
    typer.echo(f"{manifest.name} in {bundle}: every file verified")
    if not manifest.has_encoder:
        typer.echo("heads alone, without an encoder: install them with refocus upgrade")
    for head in manifest.heads:
        typer.echo(f"{head.name}: {len(head.labels)} labels; {_head_text(head)}")
    for line in _bank_lines(manifest):
        typer.echo(line)
    artifact_table(manifest)
    if chosen := about_choice(bundle):
        typer.echo(chosen)
    for line in serving_lines(opened):
        typer.echo(line)


def _head_text(head: Head) -> str:
    personal = head.personalisation
    if personal.form == "none":
        return f"{personal.method}, reads no history"
    kept = ", ".join(state.name for state in head.state)
    return (
        f"{personal.method}, looks back on {personal.window} photos; gate: {personal.gate}; kept between photos: {kept}"
    )


_IMPROVED_BY = {
    "networks": "networks for the classes they meet",
    "shares": "it with the shares of their classes",
    "generic": "it as it is",
}


def _bank_lines(manifest: Manifest) -> Iterator[str]:
    bank, task = manifest.bank, manifest.task
    if bank is not None:
        domains = ", ".join(word for word in bank.domains if word) or "none"
        yield (
            f"a bank of {bank.bases} networks of {bank.size} numbers, {bank.mixers} mixers; domains:"
            f" {domains}; the programs are its generic model; owners without a task description get"
            f" {_IMPROVED_BY[bank.self_improvement]}"
        )
    if task is not None:
        network = "" if task.mixers else ", the generic network with the shares of these classes"
        domain = f" in the domain {task.domain}" if task.domain else ""
        asked = f"{len(task.classes)} classes{domain}: {task.description}"
        yield f"condensed from bank {task.bank[:12]} for {asked}{network}"


def check(
    bundle: options.Bundle,
    provider: options.Provider = "",
    refuse_fallback: options.RefuseFallback = False,
    head_target: Annotated[
        str, typer.Option(help="check only heads of this target, such as native:w16; default: all")
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Recognise the bundle's own photos on this machine, with every program it can run; fail on another answer."""
    opened = edge.load_bundle(bundle)
    found = edge.check(opened, provider, not refuse_fallback, head_target)
    print_result([asdict(row) for row in found], map(_told, found), as_json)
    failures = [f"{row.head} {row.target}: {row.failures[0]}" for row in found if row.failures]
    if failures:
        raise BundleError(f"{bundle}: the self-test failed: " + "; ".join(failures))
    if all(row.skipped for row in found):
        raise RuntimeUnavailable(f"{bundle}: nothing in it can run on this machine")


def _told(row: Check) -> str:
    name = f"{row.head} {row.target}"
    if row.skipped:
        return f"{name}: not run here: {row.skipped}"
    return (
        f"{name}: {row.same} of {row.photos} photos as {row.expected} answered, logits within"
        f" {row.largest:.1e} (tolerance {row.tolerance}), on {row.ran_on}"
    )


def upgrade(
    installed: Annotated[Path, typer.Argument(help="folder of the installed bundle")],
    heads: Annotated[Path, typer.Argument(help="bundle with the new heads (refocus export --head-only)")],
) -> None:
    """Put new heads beside the encoder that is already here, after their feature space was checked."""
    done = edge.upgrade(edge.load_bundle(installed), edge.load_bundle(heads))
    typer.echo(f"{installed}: now serves {', '.join(head.name for head in done.manifest.heads)}")
