"""``refocus train``, ``refocus evaluate`` and ``refocus demo``. Imports stay inside, so that --help is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from edge.cli import print_json

train_app = typer.Typer(help="Train a personalisation method in the cloud.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(train_app, name="train")
    app.command()(evaluate)
    app.command()(demo)
    app.command()(results)


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
    photos_per_client: Annotated[int, typer.Option(min=2, help="size of a client made by parent")] = 48,
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
    from cloud_train.backbones import feature_width
    from cloud_train.methods.iciia import IciiaConfig
    from cloud_train.progress import say
    from cloud_train.runs import DataConfig, Run, RunConfig, variant_name
    from cloud_train.train_encoder import GLYPH_BACKBONE
    from cloud_train.train_iciia import Devices, IciiaRecipe

    source = data if data == "glyphs" else str(Path(data).resolve())
    settings: Any = dict(
        source=source, clients=clients, label_column=label_column, client_column=client_column,
        parent_column=parent_column, photos_per_client=photos_per_client, ratio=ratio, alpha=alpha,
        number_of_clients=number_of_clients, seed=data_seed,
    )  # fmt: skip
    weights = str(Path(checkpoint).resolve()) if checkpoint else ""
    config = RunConfig(
        DataConfig(**settings), backbone or GLYPH_BACKBONE, weights, arguments=parse_arguments(backbone_arguments),
        mean=parse_rgb(mean, "--mean"), std=parse_rgb(std, "--std"),
    )  # fmt: skip
    block: Any = dict(
        width=feature_width(config.backbone, config.arguments), layers=layers or (1 if data == "glyphs" else 3),
        heads=heads, window=window, attention=attention, shuffle=shuffle,
    )  # fmt: skip
    blocks = [IciiaConfig(partitions=p, **block) for p in parse_numbers(partitions, "--partitions")]
    seed_numbers = parse_numbers(seeds, "--seeds")
    fabric = Devices(devices, accelerator).launch()
    run = Run(out, config)
    prepared = run.prepare(fabric)
    for seed in seed_numbers:
        for iciia in blocks:
            recipe = IciiaRecipe(learning_rate=learning_rate, momentum=momentum, windows_per_step=windows_per_step,
                                 epochs=epochs, patience=patience, seed=seed)  # fmt: skip
            head = run.train_head(variant_name(iciia), iciia, recipe, prepared, fabric)
            say(f"wrote {head.path}, personal from {head.card.config['warm_up']} history photos on")


def evaluate(
    run: Annotated[Path, typer.Argument(help="folder of a run made by refocus train")],
    targets: Annotated[int, typer.Option(min=1, help="target photos per test client, at most")] = 33,
    labelled: Annotated[bool, typer.Option(help="also the labelled baselines: fine-tuning, prompt tuning")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the results document")] = False,
) -> None:
    """Evaluate every head of a run on people never seen in training, through exported bundles, with controls."""
    from cloud_train.evaluate import evaluate_run
    from cloud_train.report import print_summary, write_results
    from cloud_train.runs import Run

    results = evaluate_run(Run(run), targets, labelled)
    write_results(results, run / "results.json")
    if as_json:
        print_json(results)
    else:
        print_summary(results)
        typer.echo(f"results: {run / 'results.json'}")


def results(
    folder: Annotated[Path, typer.Argument(help="folder of result documents, each a run's results.json")],
    out: Annotated[Path, typer.Option(help="the page, in Markdown")] = Path("docs/results.md"),
) -> None:
    """Generate the results page and its pictures from result documents."""
    from cloud_train.results_page import write_results_page

    write_results_page(folder, out)
    typer.echo(f"wrote {out}")


def demo(
    out: Annotated[Path, typer.Option(help="folder for the run, results.json and report.html")] = Path("demo"),
) -> None:
    """The whole path on the embedded glyphs: train, export, replay unseen people, and draw the report."""
    from cloud_train.demo import run_demo

    run_demo(out)


def parse_numbers(text: str, flag: str) -> list[int]:
    """``0,1,2`` -> [0, 1, 2].

    Raises:
        UsageError: anything else.
    """
    from cloud_train.errors import UsageError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{flag} {text}: expected whole numbers separated by commas, as 0,1,2") from None


def parse_rgb(text: str, flag: str) -> tuple[float, ...]:
    """``0.5,0.5,0.5`` -> three numbers; nothing -> ().

    Raises:
        UsageError: anything else.
    """
    from cloud_train.errors import UsageError

    try:
        values = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        values = (0.0,)
    if len(values) not in (0, 3):
        raise UsageError(f"{flag} {text}: expected three numbers separated by commas, as 0.5,0.5,0.5")
    return values


def parse_arguments(text: str) -> dict[str, Any]:
    """``pad_type=same,drop_rate=0.1`` -> keyword arguments, numbers and booleans read as such.

    Raises:
        UsageError: a part is no NAME=VALUE.
    """
    import json

    from cloud_train.errors import UsageError

    arguments: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, sign, value = part.partition("=")
        if not name or not sign:
            raise UsageError(f"--backbone-arguments {text}: expected NAME=VALUE pairs separated by commas")
        try:
            arguments[name] = json.loads(value)
        except json.JSONDecodeError:
            arguments[name] = value
    return arguments
