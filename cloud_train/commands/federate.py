"""``refocus federate``: clients on machines of their own. Imports stay inside, so that --help is instant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from refocus.cloud_train.commands.parsing import arguments
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.progress import say
from refocus.edge.commands import print_json, words

federate_app = typer.Typer(
    help="Federated training over a network with mutual TLS; photos stay on the clients.", no_args_is_help=True
)

ServerKit = Annotated[Path, typer.Argument(help="the server's startup kit: the folder server/ of a project")]
ClientKit = Annotated[Path, typer.Argument(help="the client's startup kit: its folder in clients/ of a project")]


@federate_app.command("provision")
def federate_provision(
    out: Annotated[Path, typer.Option(help="folder of the project; existing clients keep their kits")],
    server: Annotated[str, typer.Option(help="host name or address at which clients reach the server")],
    clients: Annotated[str, typer.Option(help="comma-separated names of clients to add")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port of the server")] = 8002,
) -> None:
    """Make the startup kits of a project: one for the server, one for each client, with certificates."""
    from refocus.cloud_train.federated.deployment.kits import provision

    for kit in provision(out, server, port, words(clients)):
        say(f"wrote {kit}")


@federate_app.command("server")
def federate_server(
    kit: ServerKit,
    out: Annotated[Path, typer.Option(help="folder of the run; an interrupted run resumes")],
    method: Annotated[str, typer.Option(help="federated method, as in refocus train federated")],
    classes: Annotated[
        str, typer.Option(help="class names: comma-separated, a file with one per line, or the folder of a run")
    ],
    backbone: Annotated[str, typer.Option(help="timm model name; default: a small vision transformer")] = "",
    backbone_arguments: Annotated[
        str, typer.Option(help="keyword arguments of timm.create_model, JSON or NAME=VALUE")
    ] = "",
    checkpoint: Annotated[
        Path | None, typer.Option(help="backbone weights, .safetensors; default: pretrained on letters")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="number of rounds T")] = 20,
    participation: Annotated[float, typer.Option(min=0.001, max=1, help="fraction of clients per round")] = 1.0,
    epochs: Annotated[int, typer.Option(min=1, help="local epochs per round")] = 2,
    rate: Annotated[float, typer.Option(help="learning rate of the clients; 0: the method's default")] = 0.0,
    generator_rate: Annotated[
        float, typer.Option(help="learning rate of pFedPG's prompt generator on the server")
    ] = 0.01,
    prompts: Annotated[int, typer.Option(min=1, help="number of prompts K")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="random seed of the training")] = 0,
    patience: Annotated[float, typer.Option(min=0, help="seconds to wait for absent clients at the start")] = 60.0,
    deadline: Annotated[float, typer.Option(min=1, help="round timeout of a client, in seconds")] = 600.0,
    at_least: Annotated[int, typer.Option(min=1, help="minimum number of clients per round")] = 1,
    most_photos: Annotated[
        int, typer.Option(min=1, help="maximum number of photos counted per client in the weighted mean")
    ] = 100_000,
    most_change: Annotated[
        float, typer.Option(min=0, help="maximum RMS change of a tensor per round, relative to its RMS")
    ] = 1000.0,
    outlier: Annotated[
        float, typer.Option(min=1, help="outlier limit: maximum change of a client, in multiples of the round's median")
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="print the final accuracy of each client as JSON")] = False,
) -> None:
    """Serve a project: train one method with its clients, show every round, say how all are served."""
    from refocus.cloud_train.federated.client import Recipe
    from refocus.cloud_train.federated.deployment.replies import Limits
    from refocus.cloud_train.federated.deployment.serve import serve
    from refocus.cloud_train.federated.deployment.session import Deployment
    from refocus.cloud_train.federated.methods import PeftSizes, find_method
    from refocus.cloud_train.federated.run import FederatedConfig, Rates

    if backbone_arguments and not backbone:
        raise UsageError(f"--backbone-arguments {backbone_arguments}: name the timm model they are for with --backbone")
    base = Recipe(rounds=rounds, participation=participation, sizes=PeftSizes(prompts=prompts))
    recipe = replace(base, full=replace(base.full, epochs=epochs), parts=replace(base.parts, epochs=epochs))
    chosen, config = find_method(method), FederatedConfig(recipe=recipe, classes=read_classes(classes))
    if backbone:
        config = replace(config, backbone=backbone, arguments=arguments(backbone_arguments))
    if checkpoint is not None:
        config = replace(config, checkpoint=str(checkpoint.resolve()))
    rates = Rates(rate or recipe.of(chosen).learning_rate, 0.0 if chosen.server == "mean" else generator_rate)
    limits = Limits(most_photos, most_change, outlier)
    asked = Deployment(method, seed, rates, (), deadline, at_least, limits=limits)
    result = serve(kit, out, config, asked, patience)
    if as_json:
        print_json(result)
        return
    for row in result["members"]:
        say(f"{row['name']}: {row['used']} of {row['test']} test photos are recognised")


@federate_app.command("client")
def federate_client(
    kit: ClientKit,
    photos: Annotated[Path, typer.Option(help="the client's photos: a folder, a .zip or an .npz; they are never sent")],
    label_column: Annotated[str, typer.Option(help="column of the metadata file with the label")] = "label",
) -> None:
    """Take part in a project with one's own photos, until stopped; what is learned for oneself stays here too."""
    from refocus.cloud_train.federated.deployment.processes import become_client
    from refocus.cloud_train.federated.deployment.sites import SiteConfig, check_kit, check_photos, save_site

    name, server = check_kit(kit)
    config = SiteConfig(str(photos.resolve()), label_column)
    say(f"{name}: {check_photos(config, name)}; the server is {server}")
    save_site(kit, config)
    become_client(kit, name)


def read_classes(text: str) -> tuple[str, ...]:
    """Class names: comma-separated, from a file with one per line, or from a run of ``refocus train federated``.

    Raises:
        UsageError: fewer than two, or a name twice.
    """
    path = Path(text)
    if (path / "federated.json").exists():
        from refocus.cloud_train.federated.run import FederatedRun

        return FederatedRun(path).classes
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines() if path.is_file() else text.split(",")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--classes {text}: expected text in UTF-8, one class name per line ({error})") from None
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageError(f"--classes {text}: expected two names or more, each once")
    return names
