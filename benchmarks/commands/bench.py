"""``refocus bench``: bundles are measured unless a subcommand is named; nothing heavy is imported before one runs."""

from __future__ import annotations

import contextlib
import logging
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from refocus.benchmarks.commands.outputs import naming, ready
from refocus.edge.commands import MEASURE, Head, HeadTarget, Json, RefuseFallback, ThreadsOption, options, words

if TYPE_CHECKING:
    from refocus.benchmarks.document.schema import Conditions, Mode

logger = logging.getLogger(__name__)

DEFAULT_COMMAND = "run"


class MeasureUnlessNamed(TyperGroup):
    """``refocus bench BUNDLE`` is ``refocus bench run BUNDLE``; a bundle called "compare" is ``./compare``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    cls=MeasureUnlessNamed,
    help="Measure latency, memory, energy and accuracy of bundles, with a verdict per row.",
)


def register(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench", rich_help_panel=MEASURE)


@bench.command(name=DEFAULT_COMMAND)
def run_bench(
    ctx: typer.Context,
    bundles: options.Bundles,
    quick: Annotated[
        bool, typer.Option("--quick", help="measure the whole table in about five minutes, with fewer samples")
    ] = False,
    runtime: Annotated[
        str, typer.Option(help="comma-separated runtimes: onnxruntime, executorch, ...; default: all")
    ] = "",
    precision: Annotated[
        str, typer.Option(help="comma-separated precisions: fp32, fp16, w8a8, ...; default: all")
    ] = "",
    device: Annotated[str, typer.Option(help="device type: cpu, cuda, jetson or android")] = "cpu",
    provider: Annotated[str, typer.Option(help="execution provider, as in refocus recognize")] = "",
    refuse_fallback: RefuseFallback = False,
    threads: ThreadsOption = 1,
    head: Head = "",
    head_target: HeadTarget = "",
    photos: Annotated[
        Path | None, typer.Option(help="folder or zip of photos to recognise; default: the bundle's own")
    ] = None,
    accuracy: Annotated[
        Path | None, typer.Option(help="labelled photos with metadata.csv; adds accuracy to the document")
    ] = None,
    person: Annotated[
        str, typer.Option(help="with --accuracy: column with the person (client) of each photo")
    ] = "client",
    label: Annotated[str, typer.Option(help="with --accuracy: column with the label")] = "label",
    split: Annotated[str, typer.Option(help="with --accuracy: use only rows of this value in column 'split'")] = "",
    only: Annotated[
        str, typer.Option(help="comma-separated groups of rows, such as stages,overhead; default: all")
    ] = "",
    queries: Annotated[int, typer.Option(min=0, help="minimum number of samples per row; default: 1024")] = 0,
    seconds: Annotated[float, typer.Option(min=0, help="minimum duration of a row in seconds; default: 10")] = 0,
    start_below: Annotated[
        str,
        typer.Option(
            help="cool-down temperature, such as 37C: wait before each row until the warmest sensor is below it"
        ),
    ] = "",
    start_within: Annotated[str, typer.Option(help="with --start-below: maximum cool-down time")] = "10m",
    sustained: Annotated[
        str, typer.Option(help="measure sustained load for this long, such as 30m, instead of the table")
    ] = "",
    runner: Annotated[Path | None, typer.Option(help="android: folder with a run.sh; none is shipped yet")] = None,
    serial: Annotated[str, typer.Option(help="serial number of the phone, if several are attached")] = "",
    host: Annotated[str, typer.Option(help="measure on a remote machine over SSH, such as user@board")] = "",
    ssh: Annotated[str, typer.Option(help="with --host: ssh options, such as '-p 2222 -i key'")] = "",
    wheel: Annotated[
        Path | None, typer.Option(help="with --host: Refocus wheel to install; default: this source tree")
    ] = None,
    power_mode: Annotated[
        str, typer.Option(help="with --host: nvpmodel power mode; set with locked clocks for the run, then restored")
    ] = "",
    keep_on_host: Annotated[
        bool,
        typer.Option("--keep-on-host", help="with --host: keep the bundle and the environment on the remote machine"),
    ] = False,
    paired: Annotated[bool, typer.Option("--paired", help="compare two bundles in interleaved runs")] = False,
    choose: Annotated[
        bool, typer.Option("--choose", help="select and store the fastest target whose answers pass parity")
    ] = False,
    forget_choice: Annotated[
        bool, typer.Option("--forget-choice", help="remove the stored choice of --choose for these bundles")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="output folder for the document (one file per run)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the document")] = False,
) -> None:
    """Measure bundles on this machine or device. See also: refocus bench compare, report and suite (--help each)."""
    from refocus.benchmarks import modes
    from refocus.benchmarks.document.schema import BenchError
    from refocus.benchmarks.run import Labelled, Plan, run

    conditions, mode = _conditions(quick, queries, seconds)
    plan = Plan(
        conditions=conditions,
        mode=mode,
        runtimes=(*words(runtime),),
        precisions=(*words(precision),),
        only=(*words(only),),
        photos=photos,
        allow_fallback=not refuse_fallback,
        **{name: ctx.params[name] for name in ("head", "head_target", "device", "provider", "threads")},
        labelled=Labelled(accuracy, person, label, split) if accuracy else None,
        start_below=modes.start_below(start_below, start_within) if start_below else None,
    )
    if choose or forget_choice:
        _choose(bundles, plan, forget_choice, as_json)
        return
    command = "refocus bench " + " ".join(_without_paths([word for word in sys.argv[1:] if word != "--quiet"][1:]))
    file = _file_in(out)
    if host:
        _deliver(_measure_board(ctx, Path(wheel) if wheel else None), file, as_json)
        return
    if device == "android":
        lasting = modes.duration_seconds(sustained) if sustained else 0.0
        document = _measure_phone(bundles, plan, runner, serial, command, lasting, paired)
        _deliver(document, file, as_json)
        return
    if sustained and paired:
        raise BenchError("--sustained and --paired exclude each other; give one")
    with tempfile.TemporaryDirectory(prefix="refocus-bench-") as scratch:
        if paired:
            document = modes.pair(bundles, plan, Path(scratch), command, logger.info)
        elif sustained:
            lasting = modes.duration_seconds(sustained)
            document = modes.sustained(bundles, plan, Path(scratch), command, lasting)
        else:
            document = run(bundles, plan, Path(scratch), command, logger.info, partial(_keep, file))
    _deliver(document, file, as_json)


def _conditions(quick: bool, queries: int, seconds: float) -> tuple[Conditions, Mode]:
    """Conditions of a measurement, and the mode that a document names them by.

    Args:
        queries, seconds: at least; 0: the default.

    Raises:
        BenchError: ``quick`` has others than these.
    """
    import msgspec

    from refocus.benchmarks.document.schema import BenchError
    from refocus.benchmarks.measure.timer import DEFAULT

    custom = queries or seconds
    if quick and custom:
        given = " and ".join(name for name, value in (("--queries", queries), ("--seconds", seconds)) if value)
        raise BenchError(f"--quick has conditions of its own; leave out --quick, or {given}")
    conditions = msgspec.structs.replace(
        DEFAULT, min_queries=queries or DEFAULT.min_queries, min_seconds=seconds or DEFAULT.min_seconds
    )
    return conditions, "quick" if quick else "custom" if custom else "default"


def _choose(bundles: list[Path], plan: Any, forget: bool, as_json: bool) -> None:
    """Keeps, or removes, the fastest target of each bundle on this machine."""
    import msgspec

    from refocus.benchmarks.choose import choose, lines
    from refocus.benchmarks.document.schema import BenchError
    from refocus.edge.commands import print_result
    from refocus.edge.recognize import forget_choice

    if plan.device != "cpu" or plan.provider:
        raise BenchError("--choose compares what runs without --provider on this machine; leave --device and it out")
    for bundle in bundles:
        if forget:
            typer.echo(f"{bundle}: " + ("forgotten" if forget_choice(bundle) else "nothing was chosen"))
            continue
        with tempfile.TemporaryDirectory(prefix="refocus-bench-") as scratch:
            found = choose(bundle, plan, Path(scratch), logger.info)
        print_result(msgspec.to_builtins(found), lines(found), as_json)


def _keep(target: Path | None, document: Any) -> None:
    """Writes what a run has so far; where that fails, the run goes on, and the whole document is written or not."""
    from refocus.benchmarks.document.schema import write_document

    if target is not None:
        with contextlib.suppress(OSError):
            write_document(document, target)


def _deliver(document: Any, target: Path | None, as_json: bool) -> None:
    """Writes the document and prints it, which it does even where it cannot be written."""
    import msgspec

    from refocus.benchmarks.document.schema import write_document
    from refocus.benchmarks.report.text import print_document

    try:
        if target is not None:
            with naming(target):
                write_document(document, target)
            logger.info(f"{target}")
    finally:
        if as_json:
            sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
        else:
            print_document(document)


def _measure_phone(
    bundles: list[Path], plan: Any, runner: Path | None, serial: str, command: str, lasting: float, paired: bool
) -> Any:
    from refocus.benchmarks import modes
    from refocus.benchmarks.devices import android
    from refocus.benchmarks.document.schema import BenchError
    from refocus.benchmarks.run import quick

    if paired:
        raise BenchError("--device android: expected the table or --sustained; --paired is not measured on phones")
    if runner is None or len(bundles) != 1:
        raise BenchError("--device android: expected one bundle and --runner FOLDER with a run.sh (none is shipped)")
    if lasting:
        plan = modes.sustained_plan(plan, lasting)
    elif plan.mode == "quick":
        plan = quick(plan, 1)
    return android.run(bundles[0], runner, plan, command, android.Adb.find(serial), logger.info)


LOCAL = ("host", "ssh", "wheel", "power_mode", "keep_on_host", "out", "as_json")  # options that a board is not given


def _measure_board(ctx: typer.Context, wheel: Path | None) -> Any:
    """Measures on another machine, with the same options."""
    import shlex

    from refocus.benchmarks.devices import board
    from refocus.benchmarks.document.schema import BenchError
    from refocus.edge.bundle import load_bundle

    given = ctx.params
    if given["device"] == "android":
        raise BenchError("--host is for boards with SSH; a phone is reached by adb (--device android --runner FOLDER)")
    bundles: list[Path] = given["bundles"]
    runtimes = sorted({artifact.runtime for path in bundles for artifact in load_bundle(path, ()).manifest.artifacts})
    files = {board.safe_name(path): path for path in bundles}
    if len(files) < len(bundles):
        raise BenchError("--host: two bundles have one name; rename the folder of one of them")
    words = list(files)
    for option in ctx.command.params:
        name, value = option.name or "", given.get(option.name or "")
        if name in (*LOCAL, "bundles") or value in (None, option.get_default(ctx)):
            continue
        if isinstance(value, Path):
            files[board.safe_name(value)] = value
            value = board.safe_name(value)
        words += [option.opts[-1]] if value is True else [option.opts[-1], str(value)]
    extras = {"cpu": "cpu" * ("onnxruntime" in runtimes) + ",executorch" * ("executorch" in runtimes), "cuda": "cuda"}
    wanted = extras.get(given["device"], "").strip(",")  # a Jetson has its own runtimes
    to = board.Board(given["host"], shlex.split(given["ssh"]), say=logger.info)
    with tempfile.TemporaryDirectory(prefix="refocus-source-") as scratch:
        refocus = wheel or board.own_source(Path(scratch))
        mode, kept = given["power_mode"], given["keep_on_host"]
        return board.measure(to, words, files, refocus, f"[{wanted}]" if wanted else "", mode, kept)


def _without_paths(words: list[str]) -> list[str]:
    """The command as it goes into a document, which others read: names of files, not where they are here."""
    return [Path(word).name if "/" in word else word for word in words]


def _file_in(folder: Path | None) -> Path | None:
    """A new file for the document, which can be written.

    Raises:
        RefocusError: it cannot.
    """
    from datetime import datetime

    from refocus.benchmarks.document.schema import BenchError

    if folder is None:
        return None
    if folder.exists() and not folder.is_dir():
        raise BenchError(f"--out {folder} is a file; give a folder, which gets one document per run")
    file = folder / f"bench-{datetime.now():%Y%m%d-%H%M%S}.json"
    ready(file)
    return file


@bench.command()
def compare(
    first: Annotated[Path, typer.Argument(help="document of one run")],
    second: Annotated[Path, typer.Argument(help="document of another run")],
    as_json: Json = False,
) -> None:
    """Say which rows of two separate runs differ, where that can be said."""
    from dataclasses import asdict

    from refocus.benchmarks.document.schema import read_document
    from refocus.benchmarks.report.compare import changes, obstacles, shares_rows
    from refocus.benchmarks.report.compare import compare as compare_documents
    from refocus.edge.commands import print_result

    one, other = read_document(first), read_document(second)
    found, differ, changed = [*compare_documents(one, other)], [*obstacles(one, other)], [*changes(one, other)]
    lines = [*(f"not comparable: {line}" for line in differ), *(f"changed: {line}" for line in changed)]
    if shares_rows(one, other):
        lines += [f"{row.place}: {row.answer}: {row.interval}" for row in found]
    else:
        lines.append(
            f"not comparable: {first} and {second} share no row; give two runs of the same targets, or compare the"
            " targets of one bundle with refocus bench BUNDLE --choose"
        )
    print_result({"obstacles": differ, "changes": changed, "rows": [asdict(row) for row in found]}, lines, as_json)


@bench.command()
def report(folder: Annotated[Path, typer.Argument(help="folder with documents of refocus bench")]) -> None:
    """Write one page, report.html, and the Markdown table, table.md, of all documents in a folder."""
    from refocus.benchmarks.report.report import write_report

    page, count = write_report(folder)
    typer.echo(f"{page}: {count} documents")


@bench.command()
def track(
    folder: Annotated[Path, typer.Argument(help="history folder: documents by machine and commit")],
    documents: Annotated[list[Path] | None, typer.Argument(help="documents of this commit to add")] = None,
    commit: Annotated[
        str, typer.Option(help="commit that was measured; default: the git commit of the working folder")
    ] = "",
    baseline: Annotated[str, typer.Option(help="baseline commit; default: the previous one")] = "",
    fail: Annotated[bool, typer.Option("--fail", help="exit with status 1 if the newest commit is slower")] = False,
    as_json: Json = False,
) -> None:
    """Keep documents by machine and commit, and say what got slower (history.html draws it)."""
    from dataclasses import asdict

    from refocus.benchmarks.document.schema import BenchError, read_document
    from refocus.benchmarks.report import track as tracking
    from refocus.edge.commands import print_result

    given = [read_document(path) for path in documents or ()]  # all can be read, or none is kept
    for document in given:
        tracking.keep(folder, document, commit or tracking.current_commit())
    kept = tracking.tracked(folder)
    if baseline and baseline not in {one.commit for one in kept}:
        known = ", ".join(dict.fromkeys(one.commit for one in kept))
        raise BenchError(f"--baseline {baseline}: {folder} keeps {known}")
    found = list(tracking.changes(kept, baseline))
    path = tracking.write_history(folder, kept, found)
    told = {"page": str(path), "documents": len(kept), "changes": [asdict(change) for change in found]}
    lines = [*map(str, found), f"{path}: {len(kept)} documents, {len(found)} differences"]
    print_result(told, lines, as_json)
    newest = {one.machine: one.commit for one in kept}
    if fail and any(c.difference.answer == "slower" and c.after == newest[c.machine] for c in found):
        raise typer.Exit(1)
