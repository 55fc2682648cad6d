"""``refocus migrate``: a bundle with another encoder takes over, and what the person's device knows comes along."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refocus.edge.commands.app import ThreadsOption, print_json
from refocus.edge.commands.history import ProfileOption, ProfilesOption, open_existing

if TYPE_CHECKING:
    import numpy as np

    from refocus.edge.errors import BundleError
    from refocus.edge.history.feature_history import FeatureHistory
    from refocus.edge.migration.migration import Migration
    from refocus.edge.migration.stages import Status


def migrate(
    old: Annotated[Path, typer.Argument(help="folder of the bundle that serves until now")],
    new: Annotated[Path, typer.Argument(help="folder of the bundle that shall serve")],
    profile: ProfileOption = "default",
    profiles: ProfilesOption = None,
    status: Annotated[bool, typer.Option("--status", help="only say how far it is")] = False,
    switch: Annotated[bool, typer.Option("--switch", help="let the new bundle serve now, warm or not")] = False,
    back: Annotated[bool, typer.Option("--back", help="let the old bundle serve again")] = False,
    finish: Annotated[bool, typer.Option("--finish", help="erase the old history; then there is no way back")] = False,
    seconds: Annotated[float, typer.Option(min=0, help="stop working after so long; go on by the same command")] = 0,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    threads: ThreadsOption = 0,
    runtime: Annotated[str, typer.Option(help="onnxruntime, executorch, tensorrt or coreml")] = "onnxruntime",
    precision: Annotated[str, typer.Option(help="fp32, fp16 or int8, whichever both bundles have")] = "fp32",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Move a profile to a bundle with another encoder: the history is computed again from the original photos."""
    from refocus.edge.bundle.load import load_bundle
    from refocus.edge.errors import BundleError, RefocusError
    from refocus.edge.migration.migration import Migration
    from refocus.edge.recognize.recognizer import Recognizer

    if status + switch + back + finish > 1:
        raise RefocusError("--status, --switch, --back and --finish exclude each other; give one")
    with open_existing(profile, profiles) as history:
        coming = Recognizer(load_bundle(new), None, runtime, precision, threads)
        going: Recognizer | _Gone
        try:
            going = Recognizer(load_bundle(old), None, runtime, precision, threads)
        except BundleError as error:
            if not (status or finish):
                raise
            going = _Gone.instead_of(history, error)
        if going.space == coming.space:
            typer.echo(f"{old} and {new} have one feature space: nothing to migrate, the history stays as it is")
            return
        migration = Migration(history, going, coming)
        if not status:
            _do(migration, profile, switch, back, finish, seconds or float("inf"), yes)
        found = migration.status()
    if as_json:
        print_json({"profile": profile, **asdict(found), "left_out": migration.left_out})
    else:
        for line in _lines(found, migration.left_out, {going.space: old, coming.space: new}):
            typer.echo(f"{profile}: {line}")


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
    found = migration.status()
    if found.stage == "returning" and found.without_original and not yes:
        typer.confirm(
            f"{profile}: {found.without_original} photos that the new bundle alone has seen are gone from their"
            " places; let their features be erased?",
            abort=True,
            err=True,
        )
    _work(migration, found, seconds)


def _finish(migration: Migration, profile: str, seconds: float, yes: bool) -> None:
    """Takes over what still can be, then erases the old history."""
    found = migration.status()
    if found.stage == "switched":
        _work(migration, found, seconds)
        found = migration.status()
        left = found.lacking + found.without_original
        if not yes:
            typer.confirm(
                f"{profile}: erase the old history of {found.old} photos, {left} of which the new one does not hold?",
                abort=True,
                err=True,
            )
    migration.finish()


def _work(migration: Migration, found: Status, seconds: float) -> None:
    """Does what there is to do, under a progress bar where somebody watches."""
    import time

    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    end = time.monotonic() + seconds
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("photos", total=found.lacking + found.without_original)
        while migration.step(photos=1):  # one piece at least, so that the shortest time still gets there
            progress.advance(task)
            if time.monotonic() > end:
                break


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
        lines.append(f"{len(left_out)} photos were left out; one of them: {next(iter(left_out.values()))}")
    if found.stage == "switched":
        lines.append("the old history is kept: --back lets it serve again, --finish erases it")
    return lines


@dataclass
class _Gone:
    """In the place of an old model whose bundle is gone: a move that was switched can still be finished."""

    space: str
    error: BundleError
    width: int = 0
    window: int = 0

    @classmethod
    def instead_of(cls, history: FeatureHistory, error: BundleError) -> _Gone:
        from refocus.edge.migration.stages import read_record

        _, record = read_record(history)
        if record is None:
            raise error
        return cls(record.old, error)

    def encode(self, content: bytes, where: str = "photo") -> np.ndarray:
        raise self.error
