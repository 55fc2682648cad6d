"""``refocus train``: settings in, a run's folder out. What is trained is imported inside, so that --help is instant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from refocus.cloud_train.commands.flags import AsDocument, Seeds
from refocus.cloud_train.commands.parsing import seeds_of, typed_command
from refocus.cloud_train.errors import UsageError
from refocus.edge.commands import words

TRACKERS = ("tensorboard", "mlflow")
train_app = typer.Typer(help="Train a personalisation method in the cloud.", no_args_is_help=True)

Out = Annotated[Path | None, typer.Argument(help="folder of the run; an interrupted run resumes")]
Data = Annotated[
    str,
    typer.Option(
        help="data set: folder or .zip of photos, hf:OWNER/NAME, 'glyphs' (embedded letters), or, for train iciia,"
        " 'moving-glyphs' (embedded clips)"
    ),
]
Clients = Annotated[
    str, typer.Option("--data", help="data set: photos, an .npz, Omniglot's folder, hf:OWNER/NAME, or 'glyphs'")
]
Backbone = Annotated[str, typer.Option(help="timm model name of the backbone")]
Weights = Annotated[str, typer.Option("--checkpoint", help="pretrained weights of the backbone, .safetensors")]
Bundle = Annotated[str, typer.Option("--from", help="bundle whose encoder and classifier are used")]
Methods = Annotated[
    str, typer.Option(help="comma-separated methods; default: all. The baselines local and fedavg are always included")
]

Recipe = Annotated[str, typer.Option(help="preset of the settings: default (as in the published results) or paper")]
Config = Annotated[Path | None, typer.Option(help="settings file (TOML), such as run.toml of another run")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="override one setting, such as recipe.epochs=12; repeatable")
]
Show = Annotated[bool, typer.Option("--show-settings", help="print all settings with descriptions as TOML, and exit")]

_tracker = [""]  # what --track names


def _choose_tracker(context: typer.Context, value: str) -> None:
    if value and value not in TRACKERS:
        raise UsageError(f"--track {value}: expected {' or '.join(TRACKERS)}")
    if value or context.info_name == "train":  # before a subcommand, where it is looked at first, or behind one
        _tracker[0] = value


@train_app.callback()
def _of_all(
    track: Annotated[
        str,
        typer.Option(
            help="experiment tracker for loss and accuracy curves: tensorboard or mlflow", callback=_choose_tracker
        ),
    ] = "",
) -> None:
    """Train a personalisation method in the cloud."""


def settings_of(kind: str) -> Any:
    """The settings class of ``refocus train KIND``."""
    from refocus.cloud_train import train

    return getattr(train, f"{kind.capitalize()}Settings")


def _toml(value: Any) -> str:
    """A flag's value as ``--set`` takes it; text in quotation marks, so that it stays text."""
    import json

    return json.dumps(value, ensure_ascii=False)


def _train(
    kind: str,
    out: Path | None,
    seeds: str,
    recipe: str,
    config: Path | None,
    changes: Sequence[str] | None,
    show: bool,
    as_json: bool = False,
    **flags: Any,
) -> None:
    """Trains by the settings of a recipe, changed by a file, then by flags, then by ``--set``; or shows them."""
    from refocus.cloud_train.settings import explained_toml, keys_of, read_settings

    flags["seeds"] = seeds_of(seeds) if seeds else []
    given = [f"{key.replace('__', '.')}={_toml(value)}" for key, value in flags.items() if value]
    settings = read_settings(partial(settings_of(kind).start, recipe or "default"), config, [*given, *(changes or ())])
    if show:
        typer.echo(explained_toml(settings))
        return
    from refocus.cloud_train import train
    from refocus.cloud_train.tracking import tracked

    if out is None:
        raise UsageError(f"give the folder of the run: refocus train {kind} OUT")
    command = [typed_command({str(out): "RUN"})] if kind == "iciia" else []
    with tracked(_tracker[0], out, {".".join(keys): value for keys, value in keys_of(settings)}):
        trained = getattr(train, f"train_{kind}")(settings, out, *command)
    if kind in ("federated", "prompt"):
        from refocus.cloud_train.documents import write_results
        from refocus.cloud_train.evaluate.clients import evaluate_clients
        from refocus.cloud_train.evaluate.report import show_study

        path = out / "studies" / "federated.json"
        document = evaluate_clients(trained, typed_command({str(out): "RUN"}))
        write_results(document, path)
        show_study(document, path, as_json)


@train_app.command("iciia")
def iciia(
    out: Out = None,
    data: Data = "",
    backbone: Backbone = "",
    checkpoint: Weights = "",
    bundle: Bundle = "",
    seeds: Seeds = "",
    recipe: Recipe = "",
    config: Config = None,
    changes: Changes = None,
    show: Show = False,
) -> None:
    """Train ICIIA heads on the frozen features of a network."""
    more: dict[str, Any] = {"data__source": data, "backbone": backbone, "checkpoint": checkpoint, "bundle": bundle}
    _train("iciia", out, seeds, recipe, config, changes, show, **more)


@train_app.command("taper")
def taper(
    out: Out = None,
    data: Data = "",
    add_basis: Annotated[
        Path | None,
        typer.Option(help="run whose bank gets one basis more, of the photos of --data"),
    ] = None,
    seeds: Seeds = "",
    recipe: Recipe = "",
    config: Config = None,
    changes: Changes = None,
    show: Show = False,
) -> None:
    """Train TAPER: bases of one architecture and the mixer predictor that makes a personal network of them.

    What each basis sees is the setting shards: classes, groups (super-categories), domains, both, or nearest. What
    tasks are is kind: fixed, dynamic, group or nearest, of so many ways. All settings: --show-settings.
    """
    grown_from = str(add_basis) if add_basis is not None else ""
    _train("taper", out, seeds, recipe, config, changes, show, source=data, grown_from=grown_from)


@train_app.command("federated")
def federated(
    out: Out = None,
    data: Clients = "",
    methods: Methods = "",
    backbone: Backbone = "",
    checkpoint: Weights = "",
    seeds: Seeds = "",
    recipe: Recipe = "",
    config: Config = None,
    changes: Changes = None,
    show: Show = False,
    as_json: AsDocument = False,
) -> None:
    """Train clients together by one method or many, and evaluate each client, members and newcomers."""
    more: dict[str, Any] = {"source": data, "methods": words(methods), "backbone": backbone, "checkpoint": checkpoint}
    _train("federated", out, seeds, recipe, config, changes, show, as_json, **more)


@train_app.command("prompt")
def prompt(
    out: Out = None,
    data: Clients = "",
    backbone: Backbone = "",
    checkpoint: Weights = "",
    seeds: Seeds = "",
    recipe: Recipe = "",
    config: Config = None,
    changes: Changes = None,
    show: Show = False,
    as_json: AsDocument = False,
) -> None:
    """Train prompts and a classifier for each domain, or each group of people, on one frozen vision transformer."""
    more: dict[str, Any] = {"source": data, "backbone": backbone, "checkpoint": checkpoint}
    _train("prompt", out, seeds, recipe, config, changes, show, as_json, **more)
