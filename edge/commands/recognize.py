"""The commands of a device: ``refocus recognize``, ``inspect``, ``check`` and ``upgrade``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refocus.edge.commands.app import ThreadsOption, print_json

if TYPE_CHECKING:
    from refocus.edge.personal.store import PersonalWeightStore  # refocus --help loads nothing of the device


def register(app: typer.Typer) -> None:
    from refocus.edge.commands.album import album
    from refocus.edge.commands.history import app as history
    from refocus.edge.commands.migration import migrate
    from refocus.edge.commands.personal import app as personal
    from refocus.edge.commands.taper import condense, improve
    from refocus.edge.commands.update import app as update

    app.add_typer(history, name="history")
    app.add_typer(personal, name="personal")
    app.add_typer(update, name="update")
    app.command()(recognize)
    app.command()(album)
    app.command()(inspect)
    app.command()(check)
    app.command()(upgrade)
    app.command()(migrate)
    app.command()(condense)
    app.command()(improve)


PROVIDER_HELP = "part of the device: for onnxruntime cpu, cuda, tensorrt, xnnpack, nnapi or coreml"
FALLBACK_HELP = "fail where the provider does not take everything"


def default_profiles() -> Path:
    """Where profiles live unless ``--profiles`` says otherwise: the user's data folder."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "refocus" / "profiles"


def personal_weights(profiles: Path) -> PersonalWeightStore | None:
    """What was learned for the people of a folder of profiles; None if nothing ever was."""
    from refocus.edge.personal.store import PersonalWeightStore

    folder = profiles / "weights"
    return PersonalWeightStore(folder) if folder.is_dir() else None


def recognize(
    bundle: Annotated[Path, typer.Argument(help="folder of the bundle")],
    photos: Annotated[list[Path], typer.Argument(help="photos, recognised in this order")],
    profile: Annotated[str, typer.Option(help="whose history to read and to grow")] = "default",
    profiles: Annotated[Path | None, typer.Option(help="folder of the profiles")] = None,
    top: Annotated[int, typer.Option(min=1, help="labels to print per photo")] = 3,
    remember: Annotated[bool, typer.Option(help="add the photos to the history")] = True,
    explain: Annotated[bool, typer.Option("--explain", help="say which history photos each answer rests on")] = False,
    out: Annotated[Path | None, typer.Option(help="with --explain: a picture of it, as FILE.png")] = None,
    threads: ThreadsOption = 0,
    head: Annotated[str, typer.Option(help="which of the bundle's heads; default: its first")] = "",
    runtime: Annotated[str, typer.Option(help="onnxruntime, executorch, tensorrt or coreml")] = "onnxruntime",
    precision: Annotated[str, typer.Option(help="fp32, fp16 or int8, whichever the bundle has")] = "fp32",
    provider: Annotated[str, typer.Option(help=PROVIDER_HELP)] = "",
    refuse_fallback: Annotated[bool, typer.Option("--refuse-fallback", help=FALLBACK_HELP)] = False,
    memory: Annotated[
        str, typer.Option(help="which stored photos help: newest; spread or similar (window heads)")
    ] = "newest",
    time_limit: Annotated[
        float, typer.Option(min=0, help="seconds that one run of a program may take (onnxruntime); 0 sets no limit")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Recognise photos, each with the help of the photos this profile has seen before."""
    from refocus.edge.bundle.load import load_bundle
    from refocus.edge.errors import RefocusError
    from refocus.edge.files import check_output, printable
    from refocus.edge.photos.preprocess import read_photo
    from refocus.edge.recognize.explain import explain as explain_answer
    from refocus.edge.recognize.explain import save_picture, text
    from refocus.edge.recognize.recognizer import Recognizer, profile_path

    if out is not None and (not explain or out.suffix.lower() != ".png"):
        raise RefocusError(f"--out {out}: expected --explain and a file name that ends in .png")
    if out is not None:
        check_output(out)  # before anything is remembered
    folder = profiles or default_profiles()
    path = profile_path(folder, profile)
    rows: list[dict[str, Any]] = []
    explanations = []
    where = {
        "weights": personal_weights(folder),
        "head": head,
        "provider": provider,
        "allow_fallback": not refuse_fallback,
        "memory": memory,
        "time_limit": time_limit,
    }
    opened = load_bundle(bundle, [f"{runtime}:{precision}"])
    with Recognizer(opened, path, runtime, precision, threads, **where) as recognizer:  # type: ignore[arg-type]
        told = str(recognizer.history.recovered) if recognizer.history and recognizer.history.recovered else ""
        typer.echo(f"{profile}: {told}\n" if told else "", nl=False, err=True)
        for photo in photos:
            answer = recognizer.recognize(read_photo(photo), printable(photo.resolve()), remember)
            for notice in answer.notices:
                typer.echo(f"{photo}: {notice}\n" if notice != told else "", nl=False, err=True)
            explanation = explain_answer(answer, recognizer.card.labels, str(photo.resolve()), top)
            row = {
                "photo": str(photo),
                "answer": explanation.delivered,
                "trust": answer.trust,
                "history": len(answer.attention) - 1,
            }
            rows.append({**row, "explanation": explanation.as_dict()} if explain else row)
            explanations.append(explanation)
            if not as_json:
                reads = recognizer.card.personalisation.form != "none"
                typer.echo(f"{photo}: {text(explanation.delivered)}" + (f"  ({_mode(row)})" if reads else ""))
                typer.echo("\n".join(explanation.lines()) + "\n" if explain else "", nl=False)
    if out is not None:
        save_picture(explanations, out)
    if as_json:
        print_json(rows)


def _mode(row: dict[str, Any]) -> str:
    if not row["history"]:
        return "no history yet"
    return f"{row['history']} history photos, trust {row['trust']:.2f}"


def inspect(
    bundle: Annotated[Path, typer.Argument(help="folder of the bundle")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Verify a bundle and say what is in it."""
    import msgspec

    from refocus.edge.bundle.load import load_bundle

    loaded = load_bundle(bundle)
    if as_json:
        print_json(msgspec.to_builtins(loaded.manifest))
    else:
        _print_bundle(loaded, bundle)


def _print_bundle(loaded: Any, bundle: Path) -> None:
    from refocus.edge.bundle.table import artifact_table

    manifest = loaded.manifest
    typer.echo(f"{manifest.name} in {bundle}: every file verified")
    if not manifest.has_encoder:
        typer.echo("heads alone, without an encoder: install them with refocus upgrade")
    for head in manifest.heads:
        typer.echo(f"{head.name}: {len(head.labels)} labels; {_head_text(head)}")
    for line in _bank_lines(manifest):
        typer.echo(line)
    artifact_table(manifest)


def _head_text(head: Any) -> str:
    personal = head.personalisation
    if personal.form == "none":
        return f"{personal.method}, reads no history"
    kept = ", ".join(state.name for state in head.state)
    return (
        f"{personal.method}, looks back on {personal.window} photos; gate: {personal.gate}; kept between photos: {kept}"
    )


def _bank_lines(manifest: Any) -> list[str]:
    lines, bank, task = [], manifest.bank, manifest.task
    if bank is not None:
        domains = ", ".join(word for word in bank.domains if word) or "none"
        lines.append(
            f"a bank of {bank.bases} networks of {bank.size} numbers, {bank.mixers} mixers; domains:"
            f" {domains}; the programs are its generic model"
        )
    if task is not None:
        lines.append(f"condensed from bank {task.bank[:12]} for {len(task.classes)} classes: {task.description}")
    return lines


def check(
    bundle: Annotated[Path, typer.Argument(help="folder of the bundle")],
    provider: Annotated[str, typer.Option(help=PROVIDER_HELP)] = "",
    refuse_fallback: Annotated[bool, typer.Option("--refuse-fallback", help=FALLBACK_HELP)] = False,
    write_golden: Annotated[
        Path | None, typer.Option(help="instead, write golden vectors into this new folder")
    ] = None,
    photos: Annotated[
        Path | None, typer.Option(help="with --write-golden: folder of photos; default: the bundle's, and turned ones")
    ] = None,
    golden: Annotated[Path | None, typer.Option(help="instead, run the golden vectors of this folder again")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Recognise the bundle's own photos on this machine, with every program it can run; fail on another answer."""
    from refocus.edge.bundle.load import load_bundle
    from refocus.edge.errors import BundleError, RefocusError, RuntimeUnavailable
    from refocus.edge.recognize.check import check as run_checks

    if photos is not None and write_golden is None:
        raise RefocusError(f"--photos {photos}: expected --write-golden FOLDER, for which the photos are")
    if write_golden is not None:
        _write_golden(bundle, write_golden, photos, as_json)
        return
    if golden is not None:
        _compare_golden(bundle, golden, as_json)
        return
    found = run_checks(load_bundle(bundle), provider, not refuse_fallback)
    if as_json:
        print_json([row.as_dict() for row in found])
    for row in [] if as_json else found:
        name = f"{row.head} {row.target}"
        if row.skipped:
            typer.echo(f"{name}: not run here: {row.skipped}")
        else:
            typer.echo(
                f"{name}: {row.same} of {row.photos} photos as {row.expected} answered, logits within"
                f" {row.largest:.1e} (tolerance {row.tolerance}), on {row.ran_on}"
            )
    failures = [f"{row.head} {row.target}: {row.failures[0]}" for row in found if row.failures]
    if failures:
        raise BundleError(f"{bundle}: the self-test failed: " + "; ".join(failures))
    if all(row.skipped for row in found):
        raise RuntimeUnavailable(f"{bundle}: nothing in it can run on this machine")


def _write_golden(bundle: Path, folder: Path, photos: Path | None, as_json: bool) -> None:
    from refocus.edge.bundle.load import load_bundle
    from refocus.edge.photos.preprocess import read_photo
    from refocus.edge.recognize.album import find_photos
    from refocus.edge.recognize.golden import write_golden

    contents = [read_photo(file) for file in find_photos([photos])] if photos is not None else []
    if contents:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # for copies of a person's photos
    written = write_golden(load_bundle(bundle), folder, contents)
    steps = sum(len(history.steps) for history in written.sequences)
    found = {"golden": str(folder), "photos": len(written.photos), "sequences": len(written.sequences), "steps": steps}
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{folder}: {len(written.photos)} photos, {len(written.sequences)} sequences of {steps} steps")


def _compare_golden(bundle: Path, folder: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from refocus.edge.bundle.load import load_bundle
    from refocus.edge.errors import BundleError
    from refocus.edge.recognize.golden import FEATURE_TOLERANCE, compare_golden

    found = compare_golden(load_bundle(bundle), folder)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(
            f"{folder}: {found.steps - found.decisions} of {found.steps} decisions as written; pixels within"
            f" {found.pixels:.1e}, features {found.features:.1e}, logits {found.logits:.1e}, trust {found.trust:.1e}"
        )
    if found.decisions or not found.features <= FEATURE_TOLERANCE:
        raise BundleError(
            f"{bundle}: {found.decisions} of {found.steps} decisions differ from {folder}, features by up to"
            f" {found.features:.1e} (tolerance {FEATURE_TOLERANCE}); see that runtime and Pillow are those it was"
            " written with"
        )


def upgrade(
    installed: Annotated[Path, typer.Argument(help="folder of the installed bundle")],
    heads: Annotated[Path, typer.Argument(help="bundle with the new heads (refocus export --head-only)")],
) -> None:
    """Put new heads beside the encoder that is already here, after their feature space was checked."""
    from refocus.edge.bundle.load import load_bundle
    from refocus.edge.bundle.load import upgrade as put_heads

    done = put_heads(load_bundle(installed), load_bundle(heads))
    typer.echo(f"{installed}: now serves {', '.join(head.name for head in done.manifest.heads)}")
