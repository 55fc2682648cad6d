"""``refocus migrate``: a bundle with another encoder takes over, and what the person's device knows comes along."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refocus import edge
from refocus.edge.commands import options
from refocus.edge.commands.app import print_result
from refocus.edge.commands.news import track
from refocus.edge.errors import BundleError, RefocusError

if TYPE_CHECKING:
    from refocus.edge.migration.migration import Migration, Model
    from refocus.edge.migration.stages import Status


def migrate(
    old: Annotated[Path, typer.Argument(help="folder of the installed (old) bundle")],
    new: Annotated[Path, typer.Argument(help="folder of the new bundle")],
    profiles: options.Profiles,
    profile: options.Profile = "default",
    status: Annotated[bool, typer.Option("--status", help="print the progress of the migration and exit")] = False,
    switch: Annotated[
        bool, typer.Option("--switch", help="switch to the new bundle now, even if its history is incomplete")
    ] = False,
    back: Annotated[bool, typer.Option("--back", help="roll back to the old bundle")] = False,
    finish: Annotated[
        bool, typer.Option("--finish", help="erase the old history; rollback is then impossible")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=0, help="time limit in seconds; the same command resumes the migration")
    ] = 0,
    yes: options.Yes = False,
    threads: options.Threads = 0,
    runtime: options.Runtime = "onnxruntime",
    precision: Annotated[str, typer.Option(help="precision of both bundles: fp32, fp16, w8a8, ...")] = "fp32",
    as_json: options.Json = False,
) -> None:
    """Move a profile to a bundle with another encoder: the history is computed again from the original photos."""
    from refocus.edge.migration.migration import AbsentModel, Migration
    from refocus.edge.migration.stages import read_record

    if status + switch + back + finish > 1:
        raise RefocusError("--status, --switch, --back and --finish exclude each other; give one")
    with options.open_existing(profile, profiles) as history:
        weights = options.personal_weights(profiles)

        def model(folder: Path) -> edge.Recognizer:
            made = edge.Recognizer(edge.load_bundle(folder), None, runtime, precision, threads, weights=weights)
            made.encode_as(history.path)
            return made

        coming = model(new)
        going: Model
        try:
            going = _as_stored(model(old), history)
        except BundleError:
            _, record = read_record(history)
            if record is None or not (status or finish):
                raise
            going = AbsentModel(record.old)  # a move that was switched can still be finished
        if going.space == coming.space:
            typer.echo(f"{old} and {new} have one feature space: nothing to migrate, the history stays as it is")
            return
        migration = Migration(history, going, coming)
        if not status:
            _do(migration, profile, switch, back, finish, seconds or float("inf"), yes)
        found = migration.status()
    lines = _lines(found, migration.left_out, {going.space: old, coming.space: new})
    result = {"profile": profile, **asdict(found), "left_out": migration.left_out}
    print_result(result, [f"{profile}: {line}" for line in lines], as_json)


def _as_stored(going: edge.Recognizer, history: edge.FeatureHistory) -> edge.Recognizer:
    """The old bundle with the person's weights; without them where the history was made before they had any."""
    from refocus.edge.migration.stages import read_record

    own, (_, record) = going.space, read_record(history)
    going.encode_as(None)
    begun = record.old if record is not None and record.stage != "finished" else ""
    if begun != going.space and (begun == own or history.count(own) or not history.count(going.space)):
        going.encode_as(history.path)
    return going


def _do(migration: Migration, profile: str, switch: bool, back: bool, finish: bool, seconds: float, yes: bool) -> None:
    """Carries out what the flags ask for."""
    if finish:
        _finish(migration, profile, seconds, yes)
        return
    if back:
        migration.back()
    else:
        migration.start()
    if switch:
        migration.switch()
    if _work(migration, seconds, leave=False) and migration.state.stage == "returning":
        if migration.left_out and not yes:
            typer.confirm(
                f"{profile}: {len(migration.left_out)} photos that the new bundle alone has seen are gone or were"
                f" changed, so the old one cannot have them; one of them: {_first(migration.left_out)}; let their"
                " features be erased?",
                abort=True,
                err=True,
            )
        migration.step()


def _finish(migration: Migration, profile: str, seconds: float, yes: bool) -> None:
    """Takes over what still can be, then erases the old history."""
    found = migration.status()
    if found.stage == "switched":
        _work(migration, seconds)
        found = migration.status()
        if not yes:
            typer.confirm(
                f"{profile}: erase the old history of {found.old} photos, {found.old_alone} of which the new one does"
                " not hold?",
                abort=True,
                err=True,
            )
    migration.finish()


def _work(migration: Migration, seconds: float, leave: bool = True) -> bool:
    """Does what there is to do, under a progress bar where somebody watches; whether it was done in time.

    Args:
        leave: as of :meth:`refocus.edge.migration.migration.Migration.step`.
    """
    end, found = time.monotonic() + seconds, migration.status()
    # One at least, so that the shortest time still gets there.
    pieces = iter(lambda: migration.step(photos=1, leave=leave), 0)
    return all(time.monotonic() <= end for _ in track(pieces, "photos", found.lacking + found.without_original))


def _first(left_out: dict[str, str]) -> str:
    return next(iter(left_out.values()))


def _lines(found: Status, left_out: dict[str, str], bundles: dict[str, Path]) -> list[str]:
    serves = bundles[found.serves]
    lines = [f"{found.stage}; {serves} serves. Photos in the old history: {found.old}, in the new one: {found.new}"]
    if found.stage == "warming":
        lines.append(f"the new bundle serves as soon as its history holds {found.enough} photos, or with --switch")
    if found.lacking:
        lines.append(f"{found.lacking} photos are still to be computed; go on by the same command")
    if found.without_original:
        lines.append(f"{found.without_original} photos are not where they were, so they cannot be computed again")
    if left_out:
        lines.append(f"{len(left_out)} photos were left out; one of them: {_first(left_out)}")
    if found.stage == "switched":
        lines.append("the old history is kept: --back lets it serve again, --finish erases it")
    return lines
