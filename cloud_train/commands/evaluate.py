"""``refocus evaluate`` and ``refocus study``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refocus.cloud_train.commands.flags import AsDocument, MadeRun, Seeds
from refocus.cloud_train.commands.parsing import integers, seeds_of, shares, typed_command, with_flags
from refocus.edge.commands import print_json, words

if TYPE_CHECKING:
    from refocus.cloud_train.runs.iciia import Run
    from refocus.cloud_train.studies.federated_programme import Queue


def evaluate(
    run: MadeRun,
    targets: Annotated[int, typer.Option(min=1, help="maximum number of target photos per test client")] = 33,
    labelled: Annotated[bool, typer.Option(help="also run the labelled baselines: fine-tuning, prompt tuning")] = False,
    as_json: AsDocument = False,
) -> None:
    """Evaluate every head of a run on people never seen in training, through exported bundles, with controls."""
    from refocus.cloud_train.report.report import print_summary, write_results
    from refocus.cloud_train.runs.iciia import Run
    from refocus.cloud_train.studies.evaluate import evaluate_run

    opened = Run(run)
    if opened.table.several:
        _evaluate_sets(opened, run, labelled, as_json)
        return
    results = evaluate_run(opened, targets, labelled, typed_command({str(run): "RUN"}))
    write_results(results, run / "results.json")
    if as_json:
        print_json(results)
    else:
        print_summary(results)
        typer.echo(f"results: {run / 'results.json'}")


def _evaluate_sets(opened: Run, run: Path, labelled: bool, as_json: bool) -> None:
    """``refocus evaluate`` of a run on photos with several labels."""
    from rich.console import Console

    from refocus.benchmarks.commands.accuracy import label_sets_table
    from refocus.cloud_train.errors import UsageError
    from refocus.cloud_train.report.report import write_results
    from refocus.cloud_train.studies.sets import evaluate_sets

    if labelled:
        raise UsageError("--labelled: its baselines are of photos with one label each; leave it out")
    results = evaluate_sets(opened, command=typed_command({str(run): "RUN"}))
    write_results(results, run / "label-sets.json")
    if as_json:
        print_json(results)
        return
    named = [{**row, "target": f"{row['variant']} seed {row['seed']}, {row['answers']}"} for row in results["rows"]]
    console = Console(width=130)
    console.print(label_sets_table(named))
    for row in named:
        typer.echo(f"{row['target']}: right labels {row['delivered']:.2%}, photo alone {row['plain']:.2%}")
    typer.echo(f"results: {run / 'label-sets.json'}")


def study(
    name: Annotated[
        str,
        typer.Argument(
            help="heterogeneity, partitions, heads, ablations, shuffling, baselines, gates, streaming, memories,"
            " windows, attention; of a TAPER run: taper, ways, bank, improvement, growth; of a folder of photo sets"
            " (--data): stream, trade-off, few-people, decoding; of a federated run: sensitivity; of a programme:"
            " federated, bundles"
        ),
    ],
    run: MadeRun,
    seeds: Seeds = "0,1,2",
    layers: Annotated[
        str, typer.Option(help="number of layers N, comma-separated for the study partitions; default: as in the run")
    ] = "",
    heads: Annotated[
        str, typer.Option(help="number of attention heads H, comma-separated for the study heads; default: 4; 1,2,4,8")
    ] = "",
    classifier: Annotated[
        str,
        typer.Option(help="of each block: own, shared or residual; residual starts from the plain classifier"),
    ] = "own",
    partitions: Annotated[
        str, typer.Option(help="study partitions: numbers of partitions P, comma-separated")
    ] = "1,16,256",
    ratios: Annotated[
        str, typer.Option(help="study heterogeneity: heterogeneity levels, comma-separated")
    ] = "0,0.25,0.5,0.75,1",
    targets: Annotated[
        int, typer.Option(min=0, help="maximum number of target photos per person; default: 8, in stream studies 24")
    ] = 0,
    people: Annotated[
        int,
        typer.Option(
            min=0, help="maximum number of people; default: 24 in study memories, 40 per cell of stream studies"
        ),
    ] = 0,
    windows: Annotated[
        str, typer.Option(help="study windows: attention windows in photos, comma-separated")
    ] = "16,32,46,64",
    histories: Annotated[
        str, typer.Option(help="study memories: history lengths, comma-separated")
    ] = "16,64,256,1024,4096",
    learning_rate: Annotated[
        str, typer.Option(help="SGD learning rate; of several, comma-separated, each block uses its best")
    ] = "0.1",
    momentum: Annotated[float, typer.Option(min=0, max=0.9999, help="SGD momentum")] = 0.9,
    windows_per_step: Annotated[int, typer.Option(min=1, help="batch size, in history windows")] = 16,
    epochs: Annotated[int, typer.Option(min=1, help="maximum number of epochs")] = 4,
    rows: Annotated[str, typer.Option(help="study taper: row names, separated by ';'; '*' is a wildcard")] = "",
    data: Annotated[
        str,
        typer.Option(help="studies stream, decoding and federated: folder of photo sets and weights"),
    ] = "",
    sets: Annotated[str, typer.Option(help="study stream: comma-separated photo sets; default: all")] = "",
    encoders: Annotated[
        str, typer.Option(help="study stream: comma-separated encoders (mobilenetv2, deit_tiny); default: both")
    ] = "",
    photos_per_class: Annotated[
        int, typer.Option(min=0, help="study stream: training and test photos per class; 0: all")
    ] = 0,
    writers: Annotated[int, typer.Option(min=10, help="study stream: number of glyph writers in the test set")] = 24,
    trained: Annotated[
        str,
        typer.Option(help="study stream: comma-separated heads to train: iciia_t, streaming, iciia_b; default: none"),
    ] = "",
    steps: Annotated[int, typer.Option(min=1, help="study stream: maximum number of gradient steps per head")] = 600,
    cells: Annotated[str, typer.Option(help="study stream: comma-separated cells; default: all")] = "",
    programme: Annotated[
        Path | None, typer.Option(help="studies federated and bundles: programme definition, TOML")
    ] = None,
    documents: Annotated[
        Path, typer.Option(help="study federated: output folder for the documents of finished jobs")
    ] = Path("docs/results/federated"),
    jobs: Annotated[
        str,
        typer.Option(help="study federated: comma-separated job names, * is a wildcard; study bundles: one job name"),
    ] = "",
    processes: Annotated[
        int, typer.Option(min=1, help="study federated: jobs at a time, each in a process of one thread")
    ] = 1,
    to: Annotated[
        str, typer.Option(help="studies bank and bundles: comma-separated targets")
    ] = "onnx:fp32,executorch:fp32",
    as_json: AsDocument = False,
) -> None:
    """Repeat a study of the ICIIA paper, or compare gates, on a run's features. Resumable, point by point."""
    flags = dict(locals())
    if name in ("federated", "bundles"):
        queue = _queue(run, programme, documents, data)
        if name == "federated":
            _study_federated(queue, words(jobs), processes)
        else:
            _study_bundles(queue, words(jobs), words(to), data)
        return
    numbers, command = seeds_of(seeds), typed_command({str(run): "RUN"})
    if name == "sensitivity":
        from refocus.cloud_train.federated.run import FederatedRun
        from refocus.cloud_train.studies.sensitivity import study_sensitivity

        write_study(run, name, study_sensitivity(FederatedRun(run), numbers, command), as_json)
        return
    if name in ("taper", "ways", "bank", "improvement", "growth"):
        about = run, name, numbers, command, words(rows, ";"), words(to)
        write_study(run, name, _study_taper(*about), as_json)
        return
    if name in ("stream", "trade-off", "few-people"):
        write_study(run, name, _study_of_pseudo_people(run, name, flags, numbers, command), as_json)
        return
    if name == "decoding":
        from refocus.cloud_train.studies.decoding import study_decoding

        write_study(run, name, study_decoding(data, run, command), as_json)
        return
    write_study(run, name, _study_iciia(run, name, flags, numbers, command), as_json)


def _study_iciia(run: Path, name: str, flags: Mapping[str, Any], seeds: list[int], command: str) -> dict[str, Any]:
    """A study of a run of ``refocus train iciia``."""
    from refocus.cloud_train.methods.iciia.block import IciiaConfig, tiny_partitions
    from refocus.cloud_train.methods.iciia.train import IciiaRecipe
    from refocus.cloud_train.runs.iciia import Run
    from refocus.cloud_train.studies.attention import study_attention
    from refocus.cloud_train.studies.history_policies import study_memories
    from refocus.cloud_train.studies.iciia import Axes, run_study
    from refocus.cloud_train.studies.windows import study_windows

    opened = Run(run)
    opened.table.one_label(f"refocus study {name}")
    targets = flags["targets"] or 8
    if name == "windows":
        return study_windows(opened, seeds, command, integers(flags["windows"], "--windows"), targets)
    if name == "attention":
        return study_attention(opened, seeds, command, targets)
    if name == "memories":
        return study_memories(
            opened, seeds, command, flags["people"] or 24, targets, integers(flags["histories"], "--histories")
        )
    heads = integers(flags["heads"], "--heads") if flags["heads"] else [4]
    depths = integers(flags["layers"], "--layers") if flags["layers"] else [0]
    width = opened.backbone().width
    kind: Any = flags["classifier"]
    block = IciiaConfig(layers=depths[0], partitions=tiny_partitions(width), heads=heads[0], classifier=kind)
    iciia = block.on(width, opened.config.data.source == "glyphs")
    rates = shares(flags["learning_rate"], "--learning-rate")
    axes = Axes(
        ratios=shares(flags["ratios"], "--ratios"),
        partitions=integers(flags["partitions"], "--partitions"),
        layers=depths,
        heads=heads if flags["heads"] else Axes.heads,
        rates=rates if len(rates) > 1 else (),
    )
    recipe = with_flags(IciiaRecipe, flags, learning_rate=rates[0])
    return run_study(opened, name, iciia, recipe, seeds, command, targets, axes)


def _queue(run: Path, programme: Path | None, documents: Path, data: str) -> Queue:
    from refocus.cloud_train.errors import UsageError
    from refocus.cloud_train.studies.federated_programme import Queue, load_programme

    if programme is None:
        raise UsageError("this study needs its tables: --programme docs/federated-programme.toml")
    return Queue(load_programme(programme), Path(data or os.environ.get("REFOCUS_DATA", ".")), run, documents)


def _study_bundles(queue: Queue, jobs: list[str], targets: list[str], data: str) -> None:
    from refocus.cloud_train.errors import UsageError
    from refocus.cloud_train.federated.delivery.bundle_accuracy import bundle_accuracy
    from refocus.cloud_train.report.report import write_results

    run, path = str(queue.folder), queue.folder / "studies" / "bundles.json"
    known = {job.name: job for job in queue.jobs() if job.seed is not None}
    if len(jobs) != 1 or jobs[0] not in known:
        raise UsageError(f"--jobs {','.join(jobs)}: expected the name of one training, such as {next(iter(known))}")
    job = known[jobs[0]]
    command = typed_command({run: "RUN", data: "DATA"} if data else {run: "RUN"})
    document = bundle_accuracy(queue.run(job.table), job.method, job.seed or 0, queue.rates(job), targets, command)
    write_results(document, path)
    for row in document["rows"]:
        through = ", ".join(f"{target} {found['own']}" for target, found in row["targets"].items())
        typer.echo(f"{row['client']}: of {row['photos']} photos PyTorch recognises {row['pytorch']}, {through}")
    typer.echo(f"results: {path}")


def _study_federated(queue: Queue, jobs: list[str], processes: int) -> None:
    from refocus.cloud_train.errors import UsageError
    from refocus.cloud_train.studies.federated_programme import run_queue

    failed = run_queue(queue, jobs, processes)
    done = [job for job in queue.jobs() if queue.document(job) is not None]
    typer.echo(f"{len(done)} of {len([*queue.jobs()])} jobs are done; documents: {queue.documents}")
    if failed:
        raise UsageError(f"{len(failed)} jobs failed: {', '.join(failed)}; what is wrong is said above")


def _study_taper(
    run: Path, name: str, seeds: list[int], command: str, rows: list[str], targets: list[str]
) -> dict[str, Any]:
    from refocus.cloud_train.runs.taper import TaperRun
    from refocus.cloud_train.studies.banks.self_improvement import study_improvement
    from refocus.cloud_train.studies.banks.tables import study_taper, study_ways

    opened = TaperRun(run)
    if name == "growth":
        from refocus.cloud_train.studies.banks.growth import study_growth

        return study_growth(opened, seeds, command)
    if name == "bank":
        from refocus.cloud_train.studies.banks.evaluation import TASKS
        from refocus.cloud_train.studies.banks.replay import replay_bank

        return replay_bank(opened, seeds, TASKS, command, targets)
    if name == "taper":
        return study_taper(opened, seeds, command, rows)
    return study_ways(opened, seeds, command) if name == "ways" else study_improvement(opened, seeds, command)


def _study_of_pseudo_people(
    run: Path, name: str, flags: Mapping[str, Any], seeds: list[int], command: str
) -> dict[str, Any]:
    from refocus.cloud_train.studies.streams.few_people import study_few_people
    from refocus.cloud_train.studies.streams.points import StreamSettings
    from refocus.cloud_train.studies.streams.protocol import study_stream
    from refocus.cloud_train.studies.streams.trade_off import study_trade_off

    words_of = {"sets": "data", "encoders": "encoders", "trained": "heads", "cells": "cells"}
    given: dict[str, Any] = {field: (*words(flags[flag]),) for flag, field in words_of.items() if flags[flag]}
    numbers = ("people", "targets", "photos_per_class", "writers", "steps")
    given |= {field: flags[field] for field in numbers if flags[field]}
    study = {"stream": study_stream, "trade-off": study_trade_off, "few-people": study_few_people}[name]
    return study(StreamSettings(flags["data"], **given), run, seeds, command)


def write_study(run: Path, name: str, document: dict[str, Any], as_json: bool) -> None:
    """Writes a study's results document into its run, and prints it or a table of it."""
    from refocus.cloud_train.report.report import write_results

    path = run / "studies" / f"{name}.json"
    write_results(document, path)
    show_study(document, path, as_json)


def show_study(document: dict[str, Any], path: Path, as_json: bool) -> None:
    """Prints a study's results document, or a table of it and where it lies."""
    from refocus.cloud_train.report.report import print_study

    if as_json:
        print_json(document)
    else:
        print_study(document)
        typer.echo(f"results: {path}")
