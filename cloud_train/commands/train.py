"""``refocus train``: settings in, a run's folder out. What is trained is imported inside, so that --help is instant."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from refocus.cloud_train.commands.flags import AsDocument, Seeds
from refocus.cloud_train.commands.parsing import arguments, seeds_of, typed_command
from refocus.cloud_train.errors import UsageError
from refocus.edge.commands import words

if TYPE_CHECKING:
    from refocus.cloud_train.train.clients import TrainedClients

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

# Flags of Refocus 0.1 whose settings have another name, or whose name several settings have.
RENAMED = {
    "iciia": {
        "backbone-arguments": "arguments",
        "people": "data.glyph_clients",
        "clients": "data.clients",
        "gate": "gate.kind",
        "layers": "block.layers",
        "heads": "block.heads",
        "classifier": "block.classifier",
        "devices": "devices.count",
        "learning-rate": "recipe.learning_rate",
        "epochs": "recipe.epochs",
        "data-seed": "data.seed",
        "partitions": "partitions",
    },
    "taper": {
        "small": "small.name",
        "large": "large.name",
        "small-arguments": "small.arguments",
        "tasks": "kind",
        "large-arguments": "large.arguments",
        "people": "glyph_clients",
        "rates": "recipe.learning_rate",
    },
    "federated": {"epochs": "recipe.full.epochs recipe.parts.epochs", "backbone-arguments": "arguments"},
    "prompt": {
        "epochs": "recipe.full.epochs recipe.parts.epochs recipe.parts.head_epochs",
        "backbone-arguments": "arguments",
        "people": "clients",
        "photos-per-group": "photos_per_client",
    },
}


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


class SettingsCommand(TyperCommand):
    """A command that says which settings flags of Refocus 0.1 have become."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {flag for parameter in self.get_params(ctx) for flag in (*parameter.opts, *parameter.secondary_opts)}
        if any(word.startswith("--") and word.partition("=")[0] not in known for word in args):
            self._refuse_old_flags(args, known)
        return super().parse_args(ctx, args)

    def _refuse_old_flags(self, args: Sequence[str], known: Collection[str]) -> None:
        """Raises UsageError with the whole command as it is typed now, if there is one."""
        folder, words, old, rest = [], [], [], list(args)
        while rest:
            flag, sign, value = rest.pop(0).partition("=")
            if not flag.startswith("--") or flag in known:
                words.append(flag + sign + value)
                continue
            keys = keys_that_replace(str(self.name), flag)
            takes_value = flag == "--out" or any(not isinstance(own, bool) for own in keys.values())
            if takes_value and not sign and rest:
                value = rest.pop(0)
            if flag == "--out":
                folder.append(value)
            elif not keys:
                return  # never was a flag: click says so
            old.append(flag)
            texts = [text for key, own in keys.items() for text in assigned(key, own, value, flag.startswith("--no-"))]
            words += [word for text in texts for word in ("--set", text)]
        now = shlex.join(["refocus", "train", str(self.name), *folder, *words])
        what = "is a setting" if len(old) == 1 else "are settings"
        raise UsageError(f"{', '.join(old)} {what} now; type: {now} (--show-settings prints all settings)")


def settings_of(kind: str) -> Any:
    """The settings class of ``refocus train KIND``."""
    from refocus.cloud_train import train

    return getattr(train, f"{kind.capitalize()}Settings")


def keys_that_replace(kind: str, flag: str) -> dict[str, Any]:
    """The settings that a flag of Refocus 0.1 has become, with their defaults; none for one that never was."""
    from refocus.cloud_train.settings import keys_of

    word = flag.removeprefix("--").removeprefix("no-")
    known = {".".join(keys): own for keys, own in keys_of(settings_of(kind)())}
    of_that_name = [key for key in known if key.rpartition(".")[2] == word.replace("-", "_")]
    return {key: known[key] for key in RENAMED[kind].get(word, "").split() or of_that_name}


def assigned(key: str, default: Any, value: str, no: bool) -> list[str]:
    """``--set`` assignments that replace a flag and its text."""
    if isinstance(default, bool):
        return [f"{key}={'false' if no else 'true'}"]
    if isinstance(default, dict):
        texts = zip(default, value.split(","), strict=False)
        named = arguments(value) if "=" in value or value.startswith("{") else dict(texts)
        return [f"{key}.{name}={_toml(part) if not isinstance(part, str) else part}" for name, part in named.items()]
    return [f"{key}=[{value}]" if isinstance(default, tuple) else f"{key}={value}"]


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
        _evaluate_clients(trained, out, as_json)


def _evaluate_clients(trained: TrainedClients, out: Path, as_json: bool) -> None:
    """Evaluate each client, write the results document into the run, and print it."""
    from refocus.cloud_train.documents import write_results
    from refocus.cloud_train.evaluate.clients import study_federated
    from refocus.cloud_train.evaluate.report import show_study

    command, path = typed_command({str(out): "RUN"}), out / "studies" / "federated.json"
    document = study_federated(trained.run, trained.methods, trained.seeds, command, trained.baselines)
    write_results(document, path)
    show_study(document, path, as_json)


@train_app.command("iciia", cls=SettingsCommand)
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


@train_app.command("taper", cls=SettingsCommand)
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


@train_app.command("federated", cls=SettingsCommand)
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


@train_app.command("prompt", cls=SettingsCommand)
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
