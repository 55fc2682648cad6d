"""``refocus bench``: bundles are measured unless a subcommand is named; nothing heavy is imported before one runs."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from refocus.edge.commands import ThreadsOption

DEFAULT_COMMAND = "run"


class MeasureUnlessNamed(TyperGroup):
    """``refocus bench BUNDLE`` is ``refocus bench run BUNDLE``; a bundle called "compare" is ``./compare``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    cls=MeasureUnlessNamed,
    help="How long what users run takes, whether the figure can be trusted, and what really ran.",
)


def register(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")


@bench.command(name=DEFAULT_COMMAND)
def run_bench(
    bundles: Annotated[list[Path], typer.Argument(help="folders of bundles")],
    quick: Annotated[bool, typer.Option("--quick", help="the whole table in five minutes, few samples")] = False,
    runtime: Annotated[str, typer.Option(help="onnxruntime, executorch, … by commas; default: all")] = "",
    precision: Annotated[str, typer.Option(help="fp32, fp16 or int8, by commas; default: all")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, jetson or android")] = "cpu",
    provider: Annotated[str, typer.Option(help="part of the device; see refocus recognize")] = "",
    refuse_fallback: Annotated[
        bool, typer.Option("--refuse-fallback", help="fail where the provider does not take everything")
    ] = False,
    threads: ThreadsOption = 1,
    head: Annotated[str, typer.Option(help="which of the bundle's heads; default: its first")] = "",
    photos: Annotated[
        Path | None, typer.Option(help="folder or zip of photos to recognise; default: the bundle's own")
    ] = None,
    accuracy: Annotated[
        Path | None, typer.Option(help="labelled photos with metadata.csv: adds how often the answers are right")
    ] = None,
    person: Annotated[str, typer.Option(help="with --accuracy: column that says whose photo it is")] = "client",
    label: Annotated[str, typer.Option(help="with --accuracy: column of the label")] = "label",
    split: Annotated[str, typer.Option(help="with --accuracy: take the rows whose column 'split' says so")] = "",
    only: Annotated[str, typer.Option(help="groups of rows, by commas, as stages,overhead; default: all")] = "",
    queries: Annotated[int, typer.Option(min=0, help="samples of a row at least; default 1024")] = 0,
    seconds: Annotated[float, typer.Option(min=0, help="seconds of a row at least; default 10")] = 0,
    sustained: Annotated[str, typer.Option(help="instead of the table: one load for so long, as 30m")] = "",
    runner: Annotated[Path | None, typer.Option(help="android: folder with a run.sh; none is shipped yet")] = None,
    serial: Annotated[str, typer.Option(help="android: which phone, where several are attached")] = "",
    paired: Annotated[bool, typer.Option("--paired", help="two bundles in turns: is B slower than A?")] = False,
    out: Annotated[Path | None, typer.Option(help="folder for the document (one file per run)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the document")] = False,
) -> None:
    """Measure bundles on this machine or device. See also: refocus bench compare, report and suite (--help each)."""
    import msgspec

    from refocus.benchmarks import modes
    from refocus.benchmarks.document.schema import BenchError, write_document
    from refocus.benchmarks.measure.timer import DEFAULT
    from refocus.benchmarks.run import Labelled, Plan, run

    custom = queries or seconds
    conditions = msgspec.structs.replace(
        DEFAULT, min_queries=queries or DEFAULT.min_queries, min_seconds=seconds or DEFAULT.min_seconds
    )
    plan = Plan(
        conditions=conditions,
        mode="quick" if quick else "custom" if custom else "default",
        runtimes=_words(runtime),
        precisions=_words(precision),
        only=_words(only),
        photos=photos,
        head=head,
        device=device,
        provider=provider,
        allow_fallback=not refuse_fallback,
        threads=threads,
        labelled=Labelled(accuracy, person, label, split) if accuracy else None,
    )
    command = "refocus bench " + " ".join(_without_paths(sys.argv[2:]))
    if device == "android":
        document = _measure_phone(bundles, plan, runner, serial, command, bool(sustained or paired))
        _deliver(document, _file_in(out), as_json)
        return
    if sustained and paired:
        raise BenchError("--sustained and --paired are two runs; give one of them")
    file = _file_in(out)
    with tempfile.TemporaryDirectory(prefix="refocus-bench-") as scratch:
        if paired:
            document = modes.pair(bundles, plan, Path(scratch), command)
        elif sustained:
            lasting = modes.duration_seconds(sustained)
            document = modes.sustained(bundles, plan, Path(scratch), command, lasting)
        else:
            keep = partial(write_document, path=file) if file else (lambda found: None)
            document = run(bundles, plan, Path(scratch), command, _say, keep)
    _deliver(document, file, as_json)


def _deliver(document: Any, target: Path | None, as_json: bool) -> None:
    import msgspec

    from refocus.benchmarks.document.schema import write_document
    from refocus.benchmarks.report.text import print_document

    if target is not None:
        write_document(document, target)
        sys.stderr.write(f"{target}\n")
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    else:
        print_document(document)


def _measure_phone(bundles: list[Path], plan: Any, runner: Path | None, serial: str, command: str, other: bool) -> Any:
    from refocus.benchmarks.devices import android
    from refocus.benchmarks.document.schema import BenchError

    if other:
        raise BenchError("--device android: the table alone is measured on phones, without --sustained and --paired")
    if runner is None or len(bundles) != 1:
        raise BenchError("--device android: expected one bundle and --runner FOLDER with a run.sh (none is shipped)")
    if plan.mode == "quick":
        from refocus.benchmarks.run import quick

        plan = quick(plan, 1)
    return android.run(bundles[0], runner, plan, command, android.Adb.find(serial), _say)


def _say(what: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{what}\n")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _without_paths(words: list[str]) -> list[str]:
    """The command as it goes into a document, which others read: names of files, not where they are here."""
    return [Path(word).name if "/" in word else word for word in words]


def _file_in(folder: Path | None) -> Path | None:
    """A new file for the document."""
    from datetime import datetime

    from refocus.benchmarks.document.schema import BenchError

    if folder is None:
        return None
    if folder.exists() and not folder.is_dir():
        raise BenchError(f"--out {folder} is a file; give a folder, which gets one document per run")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"bench-{datetime.now():%Y%m%d-%H%M%S}.json"


@bench.command()
def compare(
    first: Annotated[Path, typer.Argument(help="document of one run")],
    second: Annotated[Path, typer.Argument(help="document of another run")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say which rows of two separate runs differ, where that can be said."""
    from dataclasses import asdict

    from refocus.benchmarks.document.schema import read_document
    from refocus.benchmarks.report.compare import changes, obstacles
    from refocus.benchmarks.report.compare import compare as compare_documents
    from refocus.edge.commands import print_json

    one, other = read_document(first), read_document(second)
    found = compare_documents(one, other)
    if as_json:
        print_json(
            {
                "obstacles": [*obstacles(one, other)],
                "changes": [*changes(one, other)],
                "rows": [asdict(row) for row in found],
            }
        )
        return
    for line in obstacles(one, other):
        typer.echo(f"not comparable: {line}")
    for line in changes(one, other):
        typer.echo(f"changed: {line}")
    for row in found:
        place = " ".join(word for word in row.key if word)
        if row.ratio is None or row.low is None or row.high is None:
            typer.echo(f"{place}: not comparable: {row.why}")
        else:
            typer.echo(f"{place}: {row.answer}: {row.ratio - 1:+.1%} ({row.low - 1:+.1%} to {row.high - 1:+.1%})")


@bench.command()
def report(folder: Annotated[Path, typer.Argument(help="folder with documents of refocus bench")]) -> None:
    """Write one page, report.html, and the Markdown table, table.md, of all documents in a folder."""
    from refocus.benchmarks.report.report import write_report

    page, count = write_report(folder)
    typer.echo(f"{page}: {count} documents")
