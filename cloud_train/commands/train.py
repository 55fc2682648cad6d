"""``refocus train``. Imports of what is trained stay inside, so that --help is instant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refocus.cloud_train.commands.evaluate import write_study
from refocus.cloud_train.commands.flags import (
    AsDocument,
    ClientEpochs,
    ClientsData,
    Column,
    Participation,
    PhotosData,
    Prompts,
    Rounds,
    RunFolder,
    Seeds,
    Vit,
    VitArguments,
    VitCheckpoint,
    clients_config,
    rounds_recipe,
)
from refocus.cloud_train.commands.parsing import (
    arguments,
    data_source,
    integers,
    numbers,
    rgb,
    stages,
    typed_command,
    with_flags,
    words,
)
from refocus.cloud_train.progress import say

if TYPE_CHECKING:
    from refocus.cloud_train.federated.run import FederatedConfig

train_app = typer.Typer(help="Train a personalisation method in the cloud.", no_args_is_help=True)


@train_app.command("iciia")
def train_iciia(
    out: RunFolder,
    data: PhotosData = "glyphs",
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
    seeds: Seeds = "0",
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
    flags = dict(locals())
    from refocus.cloud_train.backbones.backbone import feature_width
    from refocus.cloud_train.backbones.pretrain import GLYPH_BACKBONE
    from refocus.cloud_train.data.table import SPLITS
    from refocus.cloud_train.methods.iciia.block import IciiaConfig
    from refocus.cloud_train.methods.iciia.train import Devices, IciiaRecipe
    from refocus.cloud_train.methods.iciia.train_gate import GateRecipe
    from refocus.cloud_train.runs.iciia import DataConfig, Run, RunConfig, variant_name

    flags |= {"seed": data_seed, "layers": layers or (1 if data == "glyphs" else 3)}
    if people:
        expected, example = f"four counts, for {', '.join(SPLITS)}", "400,40,80,60"
        counts = numbers(people, "--people", int, lambda n: len(n) == len(SPLITS) and min(n) > 0, expected, example)
        flags["glyph_clients"] = dict(zip(SPLITS, counts, strict=True))
    config = RunConfig(
        with_flags(DataConfig, flags, source=data_source(data)),
        backbone or GLYPH_BACKBONE,
        data_source(checkpoint),
        arguments=arguments(backbone_arguments),
        mean=rgb(mean, "--mean"),
        std=rgb(std, "--std"),
    )
    flags["width"] = feature_width(config.backbone, config.arguments)
    blocks = [with_flags(IciiaConfig, flags, partitions=p) for p in integers(partitions, "--partitions")]
    seed_numbers = integers(seeds, "--seeds")
    fabric = Devices(devices, accelerator).launch()
    run = Run(out, config)
    prepared = run.prepare(fabric)
    if fabric.is_global_zero:
        run.note_command(typed_command({str(out): "RUN"}))
    for seed in seed_numbers:
        recipe = with_flags(IciiaRecipe, flags, seed=seed)
        for iciia in blocks:
            head = run.train_head(variant_name(iciia), iciia, recipe, prepared, fabric, GateRecipe(kind=gate))
            say(f"wrote {head.path}")


@train_app.command("taper")
def train_taper(
    out: RunFolder,
    data: PhotosData = "glyphs",
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
    seeds: Seeds = "0",
) -> None:
    """Train TAPER: bases of one architecture and the mixer predictor that makes a personal network of them."""
    given = {name: value for name, value in locals().items() if value not in (None, "")}
    from refocus.cloud_train.methods.taper.train import TaperRecipe
    from refocus.cloud_train.runs.taper import Network, TaperConfig, TaperRun

    config = TaperConfig()
    if data != "glyphs":
        kind, recipe = "group" if parent_column else "nearest", TaperRecipe(flip=True, shift=4)
        more: dict[str, Any] = {"small": Network("resnet18"), "large": Network("resnet101"), "shards": "classes"}
        config = TaperConfig(source=data_source(data), side=64, bases=10, kind=kind, recipe=recipe, **more)
    if epochs:
        given["epochs"] = stages(epochs, "--epochs")
    if rates:
        given["learning_rate"] = stages(rates, "--rates", float, "0.1,0.05,0.01")
    if people:
        writers = stages(people, "--people")
        given["glyph_clients"] = dict(zip(("train", "validation", "test"), writers, strict=True))
    for size, text in (("small", small_arguments), ("large", large_arguments)):
        if size in given:
            given[size] = Network(given[size], arguments(text, f"--{size}-arguments"))
    given["kind"] = given.pop("tasks", config.kind)  # a recipe has other tasks
    recipe = with_flags(TaperRecipe, given, config.recipe)
    run = TaperRun(out, with_flags(TaperConfig, given, config, recipe=recipe))
    for seed in integers(seeds, "--seeds"):
        say(f"wrote {run.export_checkpoint(seed).path}")


@train_app.command("prompt")
def train_prompt(
    out: RunFolder,
    data: ClientsData = "glyphs",
    partition: Annotated[str, typer.Option(help="who gets prompts: each domain, or natural: each client")] = "domain",
    photos_per_group: Annotated[int, typer.Option(min=15, help="at most, of a domain or client")] = 2000,
    people: Annotated[int, typer.Option(min=2, help="of glyphs: writers")] = 60,
    label_column: Column = "label",
    client_column: Column = "client",
    domain_column: Column = "domain",
    backbone: Vit = "",
    backbone_arguments: VitArguments = "",
    checkpoint: VitCheckpoint = "",
    prompts: Annotated[int, typer.Option(min=1, help="K; deep ones are as many in all")] = 10,
    epochs: Annotated[int, typer.Option(min=1, help="at a rate that falls along a cosine")] = 20,
    rates: Annotated[str, typer.Option(help="of SGD for the whole network; of several, the best")] = "0.05",
    part_rates: Annotated[str, typer.Option(help="the same for prompts and classifiers")] = "0.25",
    seeds: Seeds = "0,1,2",
    as_json: AsDocument = False,
) -> None:
    """Train prompts and a classifier for each domain, or each group of people, on one frozen vision transformer."""
    flags = dict(locals())
    from refocus.cloud_train.federated.run import prompts_recipe

    recipe, of_data = prompts_recipe(epochs, prompts), {"clients": people, "photos_per_client": photos_per_group}
    config = clients_config(flags | of_data, unseen=0.0, recipe=recipe)
    names = ["head", "singleset-vpt", "singleset-vpt-d"]
    _federated(out, config, names, integers(seeds, "--seeds"), as_json, always=("local",))


def _federated(
    out: Path,
    config: FederatedConfig,
    names: list[str],
    seeds: list[int],
    as_json: bool,
    whole: bool = False,
    **more: Any,
) -> None:
    """Trains, evaluates, and writes what the first seed's models are exported from."""
    from refocus.cloud_train.federated.deliver import deliver
    from refocus.cloud_train.federated.methods import METHODS
    from refocus.cloud_train.federated.run import FederatedRun, Rates
    from refocus.cloud_train.studies.federated import study_federated

    run = FederatedRun(out, config)
    document = study_federated(run, names, seeds, typed_command({str(out): "RUN"}), **more)
    for row in document["rows"]:
        if row["name"] in METHODS and (whole or METHODS[row["name"]].carrier != "whole"):
            checkpoint = deliver(run, row["name"], seeds[0], Rates(**row["rates"]))
            of_clients = len([*checkpoint.path.parent.glob("clients/*")])
            say(f"wrote {checkpoint.path} and {of_clients} files of clients")
    write_study(out, "federated", document, as_json)


@train_app.command("federated")
def train_federated(
    out: RunFolder,
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
    backbone: Vit = "",
    backbone_arguments: VitArguments = "",
    checkpoint: VitCheckpoint = "",
    rounds: Rounds = 20,
    participation: Participation = 1.0,
    epochs: ClientEpochs = 2,
    rates: Annotated[
        str, typer.Option(help="of SGD for whole networks; of several, each method takes its best")
    ] = "0.05",
    part_rates: Annotated[str, typer.Option(help="the same for parts on a frozen body")] = "0.25",
    feature_rates: Annotated[str, typer.Option(help="the same for Adam on features of a tower")] = "0.001",
    generator_rates: Annotated[str, typer.Option(help="the same for pFedPG's server")] = "0.01",
    prompts: Prompts = 10,
    whole: Annotated[
        bool, typer.Option("--deliver-whole", help="also write clients' files where each is a whole network")
    ] = False,
    seeds: Seeds = "0,1,2",
    as_json: AsDocument = False,
) -> None:
    """Train clients together by one method or many, and evaluate each client, members and newcomers."""
    config = clients_config(locals(), recipe=rounds_recipe(rounds, participation, epochs, prompts))
    from refocus.cloud_train.federated.methods import METHODS

    fitting = [name for name, method in METHODS.items() if not (method.tower and checkpoint)]
    _federated(out, config, words(methods) or fitting, integers(seeds, "--seeds"), as_json, whole)
