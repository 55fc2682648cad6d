"""``refocus train``, ``refocus evaluate`` and ``refocus demo``. Imports stay inside, so that --help is instant."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from refocus.benchmarks.commands.bench import bench
from refocus.cloud_train.commands.bench import register as register_bench
from refocus.edge.commands import print_json

train_app = typer.Typer(help="Train a personalisation method in the cloud.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    from refocus.cloud_train.commands.federate import federate_app
    from refocus.cloud_train.commands.pipeline import app as pipeline
    from refocus.cloud_train.commands.release import app as release
    from refocus.cloud_train.commands.serve import serve

    app.add_typer(train_app, name="train")
    app.add_typer(federate_app, name="federate")
    app.add_typer(release, name="release")
    app.add_typer(pipeline, name="pipeline")
    app.command()(evaluate)
    app.command()(study)
    app.command()(demo)
    app.command()(results)
    app.command()(compatibility)
    app.command()(overhead)
    register_bench(bench)
    app.command()(serve)


@train_app.command("iciia")
def train_iciia(
    out: Annotated[Path, typer.Option(help="folder of the run; a run that was stopped goes on here")],
    data: Annotated[str, typer.Option(help="folder or .zip of photos, or 'glyphs'")] = "glyphs",
    backbone: Annotated[str, typer.Option(help="timm name; default for glyphs: a small one, trained here")] = "",
    checkpoint: Annotated[str, typer.Option(help="weights of the backbone, .safetensors")] = "",
    backbone_arguments: Annotated[str, typer.Option(help="more for timm.create_model, as pad_type=same")] = "",
    mean: Annotated[str, typer.Option(help="pixel mean of R,G,B in 0..1; default: what timm states")] = "",
    std: Annotated[str, typer.Option(help="pixel standard deviation of R,G,B; default: what timm states")] = "",
    clients: Annotated[str, typer.Option(help="natural, parent, dirichlet or disjoint")] = "natural",
    label_column: Annotated[str, typer.Option(help="column of the label")] = "label",
    client_column: Annotated[str, typer.Option(help="column of the person")] = "client",
    parent_column: Annotated[str, typer.Option(help="column of the parent category, or of the domain")] = "domain",
    photos_per_client: Annotated[int, typer.Option(min=2, help="size of a parent client, or of a glyph writer")] = 48,
    people: Annotated[
        str, typer.Option(help="glyph writers for training, validation, gate and test, as 400,40,80,60")
    ] = "",
    ratio: Annotated[float, typer.Option(help="heterogeneity ratio of clients made by parent")] = 1.0,
    alpha: Annotated[float, typer.Option(help="concentration of dirichlet clients")] = 0.1,
    number_of_clients: Annotated[int, typer.Option(min=4, help="dirichlet and disjoint clients")] = 100,
    seeds: Annotated[str, typer.Option(help="one head per seed, as 0,1,2")] = "0",
    partitions: Annotated[str, typer.Option(help="P; 256 is ICIIA-T, 1 is ICIIA-B; several by commas")] = "256",
    layers: Annotated[int, typer.Option(min=0, help="N; 0: 1 for glyphs, as for FEMNIST in the paper, else 3")] = 0,
    heads: Annotated[int, typer.Option(min=1, help="H")] = 4,
    window: Annotated[int, typer.Option(min=1, help="photos in a window, the target among them")] = 16,
    attention: Annotated[str, typer.Option(help="full (the paper), causal (streaming) or none (ablation)")] = "full",
    shuffle: Annotated[bool, typer.Option(help="feature shuffling; off is an ablation")] = True,
    classifier: Annotated[str, typer.Option(help="after ICIIA: own, shared (the plain one) or residual")] = "own",
    gate: Annotated[
        str, typer.Option(help="whom to trust: statistics, or warm_up (the paper's fixed count)")
    ] = "statistics",
    learning_rate: Annotated[float, typer.Option(help="of SGD; the paper: 0.01")] = 0.01,
    momentum: Annotated[float, typer.Option(help="of SGD; the paper: 0")] = 0.0,
    windows_per_step: Annotated[int, typer.Option(min=1, help="windows per step; the paper: 1")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="at most")] = 100,
    patience: Annotated[int, typer.Option(min=1, help="epochs without improvement before the end")] = 10,
    devices: Annotated[int, typer.Option(min=1, help="processes or GPUs; launch several with torchrun")] = 1,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
    data_seed: Annotated[int, typer.Option(min=0, help="seed of drawing, dealing and splitting")] = 0,
) -> None:
    """Train ICIIA heads on the frozen features of a backbone."""
    from refocus.cloud_train.backbones.backbone import feature_width
    from refocus.cloud_train.backbones.pretrain import GLYPH_BACKBONE
    from refocus.cloud_train.methods.iciia.block import IciiaConfig
    from refocus.cloud_train.methods.iciia.train import Devices, IciiaRecipe
    from refocus.cloud_train.methods.iciia.train_gate import GateRecipe
    from refocus.cloud_train.progress import say
    from refocus.cloud_train.runs.iciia import DataConfig, Run, RunConfig, variant_name

    source = data if data == "glyphs" else str(Path(data).resolve())
    settings: Any = dict(
        source=source,
        clients=clients,
        label_column=label_column,
        client_column=client_column,
        parent_column=parent_column,
        photos_per_client=photos_per_client,
        ratio=ratio,
        alpha=alpha,
        number_of_clients=number_of_clients,
        seed=data_seed,
        **parse_people(people),
    )
    weights = str(Path(checkpoint).resolve()) if checkpoint else ""
    config = RunConfig(
        DataConfig(**settings),
        backbone or GLYPH_BACKBONE,
        weights,
        arguments=parse_arguments(backbone_arguments),
        mean=parse_rgb(mean, "--mean"),
        std=parse_rgb(std, "--std"),
    )
    block: Any = dict(
        width=feature_width(config.backbone, config.arguments),
        layers=layers or (1 if data == "glyphs" else 3),
        heads=heads,
        window=window,
        attention=attention,
        shuffle=shuffle,
        classifier=classifier,
    )
    blocks = [IciiaConfig(partitions=p, **block) for p in parse_numbers(partitions, "--partitions")]
    seed_numbers = parse_numbers(seeds, "--seeds")
    fabric = Devices(devices, accelerator).launch()
    run = Run(out, config)
    prepared = run.prepare(fabric)
    if fabric.is_global_zero:
        run.note_command(typed_command({str(out): "RUN"}))
    for seed in seed_numbers:
        for iciia in blocks:
            recipe = IciiaRecipe(
                learning_rate=learning_rate,
                momentum=momentum,
                windows_per_step=windows_per_step,
                epochs=epochs,
                patience=patience,
                seed=seed,
            )
            head = run.train_head(variant_name(iciia), iciia, recipe, prepared, fabric, GateRecipe(kind=gate))
            say(f"wrote {head.path}")


@train_app.command("taper")
def train_taper(
    out: Annotated[Path, typer.Option(help="folder of the run; a run that was stopped goes on here")],
    data: Annotated[str, typer.Option(help="folder or .zip of photos, or 'glyphs'")] = "glyphs",
    label_column: Annotated[str, typer.Option(help="column of class names in plain words")] = "label",
    parent_column: Annotated[str, typer.Option(help="column of the super-category")] = "",
    domain_column: Annotated[str, typer.Option(help="column of the domain, as 'sketch'")] = "",
    side: Annotated[int | None, typer.Option(min=8, help="pixels of the square that networks see")] = None,
    small: Annotated[str, typer.Option(help="timm name of the network that is condensed")] = "",
    small_arguments: Annotated[str, typer.Option(help="for timm.create_model, as JSON or NAME=VALUE pairs")] = "",
    large: Annotated[str, typer.Option(help="timm name of a network at least three times as large")] = "",
    large_arguments: Annotated[str, typer.Option(help="for timm.create_model, as JSON or NAME=VALUE pairs")] = "",
    bases: Annotated[int | None, typer.Option(min=1, help="Q")] = None,
    shards: Annotated[str, typer.Option(help="what a specialist of stage 2 sees: classes, domains or both")] = "",
    tasks: Annotated[str, typer.Option(help="group, nearest, fixed or dynamic")] = "",
    ways: Annotated[int, typer.Option(min=2, help="classes of a task")] = 20,
    any_domain: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="share of training tasks that are of all domains [glyphs: 0, else 0.2]"),
    ] = None,
    people: Annotated[
        str, typer.Option(help="of glyphs: writers for training, validation and test, as 400,30,60")
    ] = "",
    epochs: Annotated[str, typer.Option(help="of the three stages, as 100,5,20")] = "",
    flip: Annotated[bool | None, typer.Option(help="mirror half of the photos while training [glyphs: no]")] = None,
    shift: Annotated[int | None, typer.Option(min=0, help="pixels photos are moved by while training, at most")] = None,
    rates: Annotated[str, typer.Option(help="of SGD in the three stages, as 0.1,0.05,0.01")] = "",
    select_shards: Annotated[
        bool, typer.Option("--select-shards", help="specialists learn to tell only the classes of their shard apart")
    ] = False,
    norm: Annotated[str, typer.Option(help="batch normalisation in stage 3: mixed or task")] = "mixed",
    text_encoder: Annotated[str, typer.Option(help="Hugging Face name or folder of a sentence encoder")] = "",
    seeds: Annotated[str, typer.Option(help="one bank per seed, as 0,1,2")] = "0",
) -> None:
    """Train TAPER: bases of one architecture and the mixer predictor that makes a personal network of them."""
    from refocus.cloud_train.methods.taper.train import TaperRecipe
    from refocus.cloud_train.progress import say
    from refocus.cloud_train.runs.taper import Network, TaperConfig, TaperRun

    glyphs = (
        TaperConfig()
        if data == "glyphs"
        else TaperConfig(
            source=str(Path(data).resolve()),
            side=64,
            small=Network("resnet18"),
            large=Network("resnet101"),
            bases=10,
            shards="classes",
            kind="group" if parent_column else "nearest",
            recipe=TaperRecipe(flip=True, shift=4),
        )
    )
    config = dataclasses.replace(
        glyphs,
        label_column=label_column,
        parent_column=parent_column,
        domain_column=domain_column,
        ways=ways,
        norm=norm,
        side=side or glyphs.side,
        bases=bases or glyphs.bases,
        shards=shards or glyphs.shards,
        kind=tasks or glyphs.kind,
        text_encoder=text_encoder or glyphs.text_encoder,
        small=Network(small, parse_arguments(small_arguments, "--small-arguments")) if small else glyphs.small,
        large=Network(large, parse_arguments(large_arguments, "--large-arguments")) if large else glyphs.large,
    )
    asked: dict[str, Any] = {
        "epochs": parse_stages(epochs) if epochs else None,
        "learning_rate": parse_stages(rates, float, "--rates") if rates else None,
        "flip": flip,
        "shift": shift,
        "any_domain": any_domain,
        "select_shards": select_shards,
    }
    if people:
        writers = dict(zip(("train", "validation", "test"), parse_stages(people, flag="--people"), strict=True))
        config = dataclasses.replace(config, glyph_clients=writers)
    recipe = dataclasses.replace(config.recipe, **{name: value for name, value in asked.items() if value is not None})
    run = TaperRun(out, dataclasses.replace(config, recipe=recipe))
    for seed in parse_numbers(seeds, "--seeds"):
        say(f"wrote {run.export_checkpoint(seed).path}")


# Flags of the commands that train on clients' photos.
ClientsData = Annotated[str, typer.Option(help="photos, an .npz, Omniglot's folder, or 'glyphs'")]
Column = Annotated[str, typer.Option(help="of the metadata file")]
VitArguments = Annotated[str, typer.Option(help="for timm.create_model, as JSON or NAME=VALUE")]
VitCheckpoint = Annotated[str, typer.Option(help="its weights, .safetensors; default: pretrained on letters")]
MethodSeeds = Annotated[str, typer.Option(help="each method is trained once per seed")]
AsDocument = Annotated[bool, typer.Option("--json", help="print the results document")]


@train_app.command("prompt")
def train_prompt(
    out: Annotated[Path, typer.Option(help="folder of the run; a run that was stopped goes on here")],
    data: ClientsData = "glyphs",
    partition: Annotated[str, typer.Option(help="who gets prompts: each domain, or natural: each client")] = "domain",
    photos_per_group: Annotated[int, typer.Option(min=15, help="at most, of a domain or client")] = 2000,
    people: Annotated[int, typer.Option(min=2, help="of glyphs: writers")] = 60,
    label_column: Column = "label",
    client_column: Column = "client",
    domain_column: Column = "domain",
    backbone: Annotated[str, typer.Option(help="timm vision transformer; default: a small one")] = "",
    backbone_arguments: VitArguments = "",
    checkpoint: VitCheckpoint = "",
    prompts: Annotated[int, typer.Option(min=1, help="K; deep ones are as many in all")] = 10,
    epochs: Annotated[int, typer.Option(min=1, help="at a rate that falls along a cosine")] = 20,
    rates: Annotated[str, typer.Option(help="of SGD for the whole network; of several, the best")] = "0.05",
    part_rates: Annotated[str, typer.Option(help="the same for prompts and classifiers")] = "0.25",
    seeds: MethodSeeds = "0,1,2",
    as_json: AsDocument = False,
) -> None:
    """Train prompts and a classifier for each domain, or each group of people, on one frozen vision transformer."""
    from refocus.cloud_train.federated.run import prompts_recipe

    config = _clients_config(
        data,
        (label_column, client_column, domain_column),
        backbone,
        backbone_arguments,
        checkpoint,
        partition=partition,
        clients=people,
        photos_per_client=photos_per_group,
        unseen=0.0,
        recipe=prompts_recipe(epochs, prompts),
        rates=parse_rates(rates, "--rates"),
        part_rates=parse_rates(part_rates, "--part-rates"),
    )
    names = ["head", "singleset-vpt", "singleset-vpt-d"]
    _federated(out, config, names, parse_numbers(seeds, "--seeds"), as_json, always=("local",))


def _clients_config(
    data: str, columns: tuple[str, str, str], backbone: str, arguments: str, checkpoint: str, **more: Any
) -> Any:
    """What is asked of clients' photos and their network; ``more`` as of ``FederatedConfig``."""
    from refocus.cloud_train.federated.run import FederatedConfig

    if backbone:
        more |= {"backbone": backbone, "arguments": parse_arguments(arguments)}
    return FederatedConfig(
        source=data if data == "glyphs" else str(Path(data).resolve()),
        label_column=columns[0],
        client_column=columns[1],
        domain_column=columns[2],
        checkpoint=str(Path(checkpoint).resolve()) if checkpoint else "",
        **more,
    )


def _federated(
    out: Path, config: Any, names: list[str], seeds: list[int], as_json: bool, whole: bool = False, **more: Any
) -> None:
    """Trains, judges, and writes what the first seed's models are exported from."""
    from refocus.cloud_train.federated.deliver import deliver
    from refocus.cloud_train.federated.methods import METHODS
    from refocus.cloud_train.federated.run import FederatedRun, Rates
    from refocus.cloud_train.progress import say
    from refocus.cloud_train.studies.federated import study_federated

    run = FederatedRun(out, config)
    found = study_federated(run, names, seeds, typed_command({str(out): "RUN"}), **more)
    for row in found["rows"]:
        if row["name"] in METHODS and (whole or METHODS[row["name"]].carrier != "whole"):
            made = deliver(run, row["name"], seeds[0], Rates(**row["rates"]))
            of_clients = len([*made.path.parent.glob("clients/*")])
            say(f"wrote {made.path} and {of_clients} files of clients")
    _print_study(out, "federated", found, as_json)


@train_app.command("federated")
def train_federated(
    out: Annotated[Path, typer.Option(help="folder of the run; a run that was stopped goes on here")],
    data: ClientsData = "glyphs",
    methods: Annotated[str, typer.Option(help="by commas; default: all. local and fedavg always come along")] = "",
    partition: Annotated[str, typer.Option(help="natural, dirichlet, disjoint, domain, domain-dirichlet")] = "natural",
    clients: Annotated[int, typer.Option(min=2, help="how many the photos are dealt to; of glyphs: people")] = 20,
    alpha: Annotated[float, typer.Option(help="of Dirichlet partitions")] = 0.1,
    photos_per_client: Annotated[int, typer.Option(min=15, help="at most")] = 200,
    unseen: Annotated[float, typer.Option(min=0, max=0.9, help="share of clients that come after training")] = 0.2,
    label_column: Column = "label",
    client_column: Column = "client",
    domain_column: Column = "domain",
    backbone: Annotated[str, typer.Option(help="timm name; default: a small vision transformer")] = "",
    backbone_arguments: VitArguments = "",
    checkpoint: VitCheckpoint = "",
    rounds: Annotated[int, typer.Option(min=1, help="T")] = 20,
    participation: Annotated[float, typer.Option(min=0.001, max=1, help="share of clients in a round")] = 1.0,
    epochs: Annotated[int, typer.Option(min=1, help="of a client in a round")] = 2,
    rates: Annotated[
        str, typer.Option(help="of SGD for whole networks; of several, each method takes its best")
    ] = "0.05",
    part_rates: Annotated[str, typer.Option(help="the same for parts on a frozen body")] = "0.25",
    feature_rates: Annotated[str, typer.Option(help="the same for Adam on features of a tower")] = "0.001",
    generator_rates: Annotated[str, typer.Option(help="the same for pFedPG's server")] = "0.01",
    prompts: Annotated[int, typer.Option(min=1, help="K")] = 10,
    whole: Annotated[
        bool, typer.Option("--deliver-whole", help="also write clients' files where each is a whole network")
    ] = False,
    seeds: MethodSeeds = "0,1,2",
    as_json: AsDocument = False,
) -> None:
    """Train clients together by one method or many, and judge each client, members and newcomers."""
    from refocus.cloud_train.federated.client import Recipe
    from refocus.cloud_train.federated.methods import METHODS, PluginSizes

    base = Recipe()
    recipe = Recipe(
        rounds=rounds,
        participation=participation,
        sizes=PluginSizes(prompts=prompts),
        full=dataclasses.replace(base.full, epochs=epochs),
        parts=dataclasses.replace(base.parts, epochs=epochs),
    )
    config = _clients_config(
        data,
        (label_column, client_column, domain_column),
        backbone,
        backbone_arguments,
        checkpoint,
        partition=partition,
        clients=clients,
        alpha=alpha,
        photos_per_client=photos_per_client,
        unseen=unseen,
        recipe=recipe,
        rates=parse_rates(rates, "--rates"),
        part_rates=parse_rates(part_rates, "--part-rates"),
        feature_rates=parse_rates(feature_rates, "--feature-rates"),
        generator_rates=parse_rates(generator_rates, "--generator-rates"),
    )
    fitting = [name for name, method in METHODS.items() if not (method.tower and checkpoint)]
    names = [name.strip() for name in methods.split(",") if name.strip()] or fitting
    _federated(out, config, names, parse_numbers(seeds, "--seeds"), as_json, whole)


def evaluate(
    run: Annotated[Path, typer.Argument(help="folder of a run made by refocus train")],
    targets: Annotated[int, typer.Option(min=1, help="target photos per test client, at most")] = 33,
    labelled: Annotated[bool, typer.Option(help="also the labelled baselines: fine-tuning, prompt tuning")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the results document")] = False,
) -> None:
    """Evaluate every head of a run on people never seen in training, through exported bundles, with controls."""
    from refocus.cloud_train.report.report import print_summary, write_results
    from refocus.cloud_train.runs.iciia import Run
    from refocus.cloud_train.studies.evaluate import evaluate_run

    results = evaluate_run(Run(run), targets, labelled, typed_command({str(run): "RUN"}))
    write_results(results, run / "results.json")
    if as_json:
        print_json(results)
    else:
        print_summary(results)
        typer.echo(f"results: {run / 'results.json'}")


def study(
    name: Annotated[
        str,
        typer.Argument(
            help="heterogeneity, partitions, ablations, baselines, gates, streaming, memories; of a TAPER run: taper, "
            "ways, improvement"
        ),
    ],
    run: Annotated[Path, typer.Argument(help="folder of a run made by refocus train")],
    seeds: Annotated[str, typer.Option(help="each point is trained once per seed")] = "0,1,2",
    layers: Annotated[str, typer.Option(help="N; others than the first for partitions; default: of the run")] = "",
    heads: Annotated[int, typer.Option(min=1, help="H")] = 4,
    partitions: Annotated[str, typer.Option(help="P of the study partitions")] = "1,16,256",
    ratios: Annotated[str, typer.Option(help="levels of the study heterogeneity")] = "0,0.25,0.5,0.75,1",
    targets: Annotated[int, typer.Option(min=1, help="target photos per test client, at most")] = 8,
    people: Annotated[int, typer.Option(min=2, help="unseen people of the study memories, at most")] = 24,
    histories: Annotated[str, typer.Option(help="history lengths of the study memories")] = "16,64,256,1024,4096",
    learning_rate: Annotated[str, typer.Option(help="of SGD; of several, each block takes its best one")] = "0.1",
    momentum: Annotated[float, typer.Option(help="of SGD")] = 0.9,
    windows_per_step: Annotated[int, typer.Option(min=1, help="windows per step")] = 16,
    epochs: Annotated[int, typer.Option(min=1, help="at most")] = 4,
    rows: Annotated[str, typer.Option(help="of the study taper: names of rows by ';', '*' for anything")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print the results document")] = False,
) -> None:
    """Repeat a study of the ICIIA paper, or compare gates, on a run's features. Resumable, point by point."""
    from refocus.cloud_train.methods.iciia.block import IciiaConfig
    from refocus.cloud_train.methods.iciia.train import IciiaRecipe
    from refocus.cloud_train.runs.iciia import Run
    from refocus.cloud_train.studies.history_policies import study_memories
    from refocus.cloud_train.studies.iciia import run_study

    if name in ("taper", "ways", "improvement"):
        _print_study(run, name, _study_taper(run, name, parse_numbers(seeds, "--seeds"), rows), as_json)
        return
    opened = Run(run)
    depths = parse_numbers(layers, "--layers") if layers else [1 if opened.config.data.source == "glyphs" else 3]
    iciia = IciiaConfig(width=opened.backbone().width, layers=depths[0], heads=heads)
    rates = parse_shares(learning_rate, "--learning-rate")
    recipe = IciiaRecipe(learning_rate=rates[0], momentum=momentum, windows_per_step=windows_per_step, epochs=epochs)
    command = typed_command({str(run): "RUN"})
    numbers = parse_numbers(seeds, "--seeds")
    if name == "memories":
        found = study_memories(opened, numbers, command, people, targets, parse_numbers(histories, "--histories"))
    else:
        found = run_study(
            opened,
            name,
            iciia,
            recipe,
            numbers,
            command,
            targets,
            parse_shares(ratios),
            parse_numbers(partitions, "--partitions"),
            depths,
            rates=rates if len(rates) > 1 else (),
        )
    _print_study(run, name, found, as_json)


def _study_taper(run: Path, name: str, seeds: list[int], rows: str) -> dict[str, Any]:
    from refocus.cloud_train.runs.taper import TaperRun
    from refocus.cloud_train.studies.self_improvement import study_improvement
    from refocus.cloud_train.studies.taper import study_taper, study_ways

    opened, command = TaperRun(run), typed_command({str(run): "RUN"})
    if name == "taper":
        return study_taper(opened, seeds, command, [part.strip() for part in rows.split(";") if part.strip()])
    return study_ways(opened, seeds, command) if name == "ways" else study_improvement(opened, seeds, command)


def _print_study(run: Path, name: str, found: dict[str, Any], as_json: bool) -> None:
    from refocus.cloud_train.report.report import print_study, write_results

    write_results(found, run / "studies" / f"{name}.json")
    if as_json:
        print_json(found)
    else:
        print_study(found)
        typer.echo(f"results: {run / 'studies' / f'{name}.json'}")


def compatibility(
    out: Annotated[Path, typer.Option(help="folder of the results; what is there is not run again")],
    photos: Annotated[Path, typer.Option(help="folder of real photos, at least 40")],
    networks: Annotated[str, typer.Option(help="timm names; default: one or more of 20 and more families")] = "",
    to: Annotated[str, typer.Option(help="targets")] = "onnx:fp32,executorch:fp32,coreml:fp16",
    limit_s: Annotated[float, typer.Option(help="seconds for one network and target")] = 900,
    page: Annotated[Path | None, typer.Option(help="also write the page here, in Markdown")] = None,
) -> None:
    """Export timm networks to every target and compare on real photos. Resumable, pair by pair."""
    import json

    from refocus.cloud_train.bench.compatibility import DOCUMENT, NETWORKS, sweep, write_page

    names = networks.split(",") if networks else list(NETWORKS)
    document = sweep(names, to.split(","), photos, out, limit_s)
    (out / DOCUMENT).write_text(json.dumps(document, indent=2) + "\n")
    if page is not None:
        write_page(document, page)
    for target in to.split(","):
        outcomes = [row["outcome"] for row in document["rows"] if row["target"] == target]
        counts = {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)}
        typer.echo(f"{target}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))


def overhead(
    photos: Annotated[Path, typer.Option(help="folder of real photos, at least 40")],
    out: Annotated[Path, typer.Option(help="the results document, as overhead.json")],
    backbone: Annotated[str, typer.Option(help="timm name of a network whose feature is 1280 wide")] = "",
    to: Annotated[str, typer.Option(help="targets to time, by commas")] = "onnx:fp32,executorch:fp32",
    classes: Annotated[str, typer.Option(help="C of the delivered heads, by commas")] = "200,1000",
    rounds: Annotated[int, typer.Option(min=64, help="of every interleaved run")] = 512,
    as_json: Annotated[bool, typer.Option("--json", help="print the results document")] = False,
) -> None:
    """What personalisation costs in time and memory, as ratios of the bare backbone, one thread, interleaved."""
    from refocus.cloud_train.bench.overhead import Plan, lines, measure
    from refocus.cloud_train.report.report import write_results

    plan = Plan(classes=tuple(parse_numbers(classes, "--classes")), targets=tuple(to.split(",")), rounds=rounds)
    if backbone:
        plan = dataclasses.replace(plan, backbone=backbone)
    found = measure(plan, photos)
    found["command"] = typed_command({str(photos): "PHOTOS", str(out): "OUT"})
    write_results(found, out)
    if as_json:
        print_json(found)
    else:
        typer.echo("\n".join(lines(found)))


def results(
    folder: Annotated[Path, typer.Argument(help="folder of result documents, each a run's results.json")],
    out: Annotated[Path, typer.Option(help="the page, in Markdown")] = Path("docs/results.md"),
) -> None:
    """Generate the results page and its pictures from result documents."""
    from refocus.cloud_train.report.results_page import write_results_page

    write_results_page(folder, out)
    typer.echo(f"wrote {out}")


def demo(
    out: Annotated[Path, typer.Option(help="folder for the run, results.json and report.html")] = Path("demo"),
) -> None:
    """The whole path on the embedded glyphs: train, export, replay unseen people, and draw the report."""
    from refocus.cloud_train.demos.demo import run_demo

    run_demo(out)


def typed_command(names: dict[str, str]) -> str:
    """The command line as it was typed, with some words replaced, and files by their names: it may be published."""
    import shlex
    import sys

    words = [names.get(word, Path(word).name if "/" in word else word) for word in sys.argv[1:]]
    return shlex.join(["refocus", *words])


def parse_people(text: str) -> dict[str, dict[str, int]]:
    """``400,40,80,60`` -> glyph writers per split; nothing -> nothing.

    Raises:
        UsageError: not four positive numbers.
    """
    from refocus.cloud_train.data.table import SPLITS
    from refocus.cloud_train.errors import UsageError

    counts = parse_numbers(text, "--people") if text else [1] * len(SPLITS)
    if len(counts) != len(SPLITS) or min(counts) < 1:
        raise UsageError(f"--people {text}: expected four counts, for {', '.join(SPLITS)}, as 400,40,80,60")
    return {"glyph_clients": dict(zip(SPLITS, counts, strict=True))} if text else {}


def parse_shares(text: str, flag: str = "--ratios") -> list[float]:
    """``0,0.5,1`` -> numbers from 0 to 1.

    Raises:
        UsageError: anything else.
    """
    from refocus.cloud_train.errors import UsageError

    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = [-1.0]
    if not all(0 <= share <= 1 for share in shares):
        raise UsageError(f"{flag} {text}: expected numbers between 0 and 1 separated by commas, as 0,0.5,1")
    return shares


def parse_numbers(text: str, flag: str) -> list[int]:
    """``0,1,2`` -> [0, 1, 2].

    Raises:
        UsageError: anything else.
    """
    from refocus.cloud_train.errors import UsageError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{flag} {text}: expected whole numbers separated by commas, as 0,1,2") from None


def parse_stages(text: str, kind: type[int] | type[float] = int, flag: str = "--epochs") -> tuple[Any, Any, Any]:
    """``100,5,20`` -> three numbers, as of the three stages of TAPER.

    Raises:
        UsageError: not three positive numbers of that kind.
    """
    from refocus.cloud_train.errors import UsageError

    try:
        first, second, third = (kind(part) for part in text.split(","))
    except ValueError:
        first = second = third = 0
    if min(first, second, third) <= 0:
        example = "100,5,20" if kind is int else "0.1,0.05,0.01"
        raise UsageError(f"{flag} {text}: expected three positive numbers, as {example}")
    return first, second, third


def parse_rates(text: str, flag: str) -> tuple[float, ...]:
    """``0.05,0.25`` -> learning rates.

    Raises:
        UsageError: not positive numbers.
    """
    from refocus.cloud_train.errors import UsageError

    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = (0.0,)
    if min(rates) <= 0:
        raise UsageError(f"{flag} {text}: expected positive numbers separated by commas, as 0.05,0.25")
    return rates


def parse_rgb(text: str, flag: str) -> tuple[float, ...]:
    """``0.5,0.5,0.5`` -> three numbers; nothing -> ().

    Raises:
        UsageError: anything else.
    """
    from refocus.cloud_train.errors import UsageError

    try:
        values = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        values = (0.0,)
    if len(values) not in (0, 3):
        raise UsageError(f"{flag} {text}: expected three numbers separated by commas, as 0.5,0.5,0.5")
    return values


def parse_arguments(text: str, flag: str = "--backbone-arguments") -> dict[str, Any]:
    """``pad_type=same,drop_rate=0.1``, or a JSON object -> keyword arguments, numbers and booleans read as such.

    Raises:
        UsageError: a part is no NAME=VALUE.
    """
    import json

    from refocus.cloud_train.errors import UsageError

    if text.startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise UsageError(f"{flag} {text}: not a JSON object ({error})") from None
    arguments: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, sign, value = part.partition("=")
        if not name or not sign:
            raise UsageError(f"{flag} {text}: expected NAME=VALUE pairs separated by commas")
        try:
            arguments[name] = json.loads(value)
        except json.JSONDecodeError:
            arguments[name] = value
    return arguments
