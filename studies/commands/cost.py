"""Commands that measure cost.

They measure overhead, other runtimes, plain bundles, a GPU, and a deployment on one machine.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from refocus.cloud_train.commands.flags import AsDocument
from refocus.cloud_train.commands.parsing import typed_command
from refocus.cloud_train.progress import say
from refocus.edge.commands import print_json, print_result
from studies.commands.parsing import integers
from studies.commands.study import STUDIES, typed

COST = "Of cost"


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (overhead, peers, plain_bundles, measure_cuda, federate_trial):
        app.command(rich_help_panel=COST)(command)


def overhead(
    photos: Annotated[Path, typer.Option(help="folder of real photos, at least 40")],
    out: Annotated[Path, typer.Option(help="output file for the results document, such as overhead.json")],
    backbone: Annotated[str, typer.Option(help="timm model name of a network with feature width D = 1280")] = "",
    to: Annotated[str, typer.Option(help="comma-separated targets to measure")] = "onnx:fp32,executorch:fp32",
    classes: Annotated[str, typer.Option(help="comma-separated numbers of classes C of the heads")] = "200,1000",
    rounds: Annotated[int, typer.Option(min=64, help="rounds of each interleaved run")] = 512,
    shares_only: Annotated[
        bool,
        typer.Option("--shares-only", help="measure class shares alone and keep the rest of the document at --out"),
    ] = False,
    as_json: AsDocument = False,
) -> None:
    """Measure the time and memory that personalisation adds to a backbone.

    Times are ratios to the bare backbone on one thread, interleaved.
    """
    from refocus.cloud_train.documents import write_results
    from studies.bench.overhead import Plan, lines, measure, measure_shares

    named: dict[str, Any] = {"backbone": backbone} if backbone else {}
    plan = Plan(classes=(*integers(classes, "--classes"),), targets=(*to.split(","),), rounds=rounds, **named)
    command = typed_command({str(photos): "PHOTOS", str(out): "OUT"}, STUDIES)
    if shares_only:
        document = json.loads(out.read_text(encoding="utf-8"))
        document["shares"] = {**measure_shares(plan, photos), "command": command}
    else:
        document = {**measure(plan, photos), "command": command}
    write_results(document, out)
    print_result(document, lines(document), as_json)


def peers(
    photos: Annotated[Path, typer.Option(help="folder of at least 40 real photos, for statistics and inputs")],
    out: Annotated[Path, typer.Option(help="output folder for the document")],
    backbone: Annotated[str, typer.Option(help="timm model name")] = "mobilenetv3_large_100",
    quick: Annotated[bool, typer.Option("--quick", help="use fewer samples per row")] = False,
    device: Annotated[str, typer.Option(help="cpu, or cuda to add torch with CUDA graphs as the reference")] = "cpu",
) -> None:
    """Measure one network in every installed runtime.

    Runs are interleaved in one process.
    """
    from refocus.benchmarks.document import write_document
    from refocus.benchmarks.report.text import print_document
    from refocus.benchmarks.suite import conditions_of
    from studies.bench.peers import measure

    document = measure(backbone, photos, conditions_of(quick), typed_command({}, STUDIES), device)
    out.mkdir(parents=True, exist_ok=True)
    write_document(document, out / f"peers-{backbone}-{device}.json")
    print_document(document)


def plain_bundles(
    out: Annotated[Path, typer.Option(help="output folder for the results; existing results are kept")],
    photos: Annotated[Path, typer.Option(help="folder of real photos, at least 40")],
    weights: Annotated[
        Path | None, typer.Option(help="folder of trained weights; default: seeded random weights")
    ] = None,
    limit_s: Annotated[float, typer.Option(help="time limit per network and target, in seconds")] = 900,
    page: Annotated[Path | None, typer.Option(help="output file for the page (Markdown)")] = None,
    document: Annotated[Path | None, typer.Option(help="output file for the results document (JSON)")] = None,
) -> None:
    """Export networks as plain bundles and compare them on real photos.

    The list of networks is fixed. An interrupted run resumes with the next pair of network and target.
    """
    from refocus.cloud_train.documents import write_results
    from studies.bench.plain_bundles import run_matrix, write_bundles_page

    found = run_matrix(photos, out, weights, limit_s)
    write_results(found, document or out / "compatibility.json")
    if page is not None:
        write_bundles_page(found, page)
    for row in found["rows"]:
        typer.echo(f"{row['network']}: " + ", ".join(f"{t} {one['status']}" for t, one in row["targets"].items()))


def measure_cuda(
    out: Annotated[Path, typer.Option(help="output folder for the documents")],
    dry: Annotated[bool, typer.Option("--dry", help="dry run: small sizes on the CPU, without a GPU")] = False,
    only: Annotated[str, typer.Option(help="comma-separated sections; default: all")] = "",
) -> None:
    """Measure everything that needs an NVIDIA GPU, offline.

    An interrupted run resumes with the next section.
    """
    from studies.bench.measure_cuda import main

    main(out, dry, only)


def federate_trial(
    out: Annotated[Path, typer.Argument(help="output folder of the trial; must be new")],
    method: Annotated[str, typer.Option(help="federated method, as in refocus train federated")] = "pfedpg",
    clients: Annotated[int, typer.Option(min=2, help="client processes, each with the letters of one writer")] = 8,
    photos: Annotated[int, typer.Option(min=15, help="photos per client")] = 100,
    rounds: Annotated[int, typer.Option(min=3, help="number of rounds T")] = 12,
    steps: Annotated[int, typer.Option(min=1, help="gradient steps per client and round (batch size 16)")] = 20,
    drop_after: Annotated[int, typer.Option(min=1, help="round after which a client is killed")] = 4,
    as_json: AsDocument = False,
) -> None:
    """Measure a federated deployment on this machine.

    A server with client processes is compared with the simulation in one process.
    """
    from refocus.cloud_train.documents import write_results
    from refocus.cloud_train.federated.methods import find_method
    from refocus.cloud_train.federated.run import FederatedConfig
    from refocus.cloud_train.train.clients import equal_steps
    from studies.federated.deployment_trial import Trial, measure

    recipe = dataclasses.replace(equal_steps(rounds, steps), watch=rounds, keep="last")
    config = FederatedConfig(clients=clients, photos_per_client=photos, unseen=0.0, scratch=True, recipe=recipe)
    rates = config.rates_of(find_method(method))[0]
    trial = Trial(config, method, rates, drop_after=drop_after)
    document = measure(trial, out, typed(out, "OUT"))
    write_results(document, out / "trial.json")
    if as_json:
        print_json(document)
        return
    for row in document["rows"]:
        sent = f"{row['bytes_up']:,} bytes up and {row['bytes_down']:,} down"
        say(f"{row['title']}: {row['round_s']:.2f} s a round, {sent}")
    say(f"results: {out / 'trial.json'}")
