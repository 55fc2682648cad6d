"""Flags that several commands have, each declared once, and the settings that they make."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refocus.cloud_train.commands.parsing import arguments, data_source, rates, with_flags

if TYPE_CHECKING:
    from refocus.cloud_train.federated.client import Recipe
    from refocus.cloud_train.federated.run import FederatedConfig

RunFolder = Annotated[Path, typer.Option(help="folder of the run; a run that was stopped goes on here")]
MadeRun = Annotated[Path, typer.Argument(help="folder of a run made by refocus train")]
PhotosData = Annotated[str, typer.Option(help="folder or .zip of photos, or 'glyphs'")]
Seeds = Annotated[str, typer.Option(help="one of each is trained per seed, as 0,1,2")]
AsDocument = Annotated[bool, typer.Option("--json", help="print the results document")]

# Of commands that train on clients' photos.
ClientsData = Annotated[str, typer.Option(help="photos, an .npz, Omniglot's folder, or 'glyphs'")]
Column = Annotated[str, typer.Option(help="of the metadata file")]
Vit = Annotated[str, typer.Option(help="timm name; default: a small vision transformer")]
VitArguments = Annotated[str, typer.Option(help="for timm.create_model, as JSON or NAME=VALUE")]
VitCheckpoint = Annotated[str, typer.Option(help="its weights, .safetensors; default: pretrained on letters")]
Rounds = Annotated[int, typer.Option(min=1, help="T")]
Participation = Annotated[float, typer.Option(min=0.001, max=1, help="share of clients in a round")]
ClientEpochs = Annotated[int, typer.Option(min=1, help="of a client in a round")]
Prompts = Annotated[int, typer.Option(min=1, help="K")]


def clients_config(flags: Mapping[str, Any], **more: Any) -> FederatedConfig:
    """What flags of these names ask of clients' photos and their network; ``more`` as of ``FederatedConfig``."""
    from refocus.cloud_train.federated.run import FederatedConfig

    more |= {name: rates(text, f"--{name.replace('_', '-')}") for name, text in flags.items() if name.endswith("rates")}
    if flags["backbone"]:
        more["arguments"] = arguments(flags["backbone_arguments"])
    more |= {"source": data_source(flags.get("data", "")), "checkpoint": data_source(flags["checkpoint"])}
    given = {name: value for name, value in flags.items() if value != ""}
    return with_flags(FederatedConfig, given, **more)


def rounds_recipe(rounds: int, participation: float, epochs: int, prompts: int) -> Recipe:
    """Of clients that train together, whatever they train."""
    from refocus.cloud_train.federated.client import Recipe
    from refocus.cloud_train.federated.methods import PeftSizes

    base, sizes = Recipe(), PeftSizes(prompts=prompts)
    full, parts = (dataclasses.replace(part, epochs=epochs) for part in (base.full, base.parts))
    return Recipe(rounds=rounds, participation=participation, sizes=sizes, full=full, parts=parts)
