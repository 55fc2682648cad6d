"""Measure switching people on networks: ``-m studies.bench.switching``.

Weights do not affect speed, so the vision transformers are untrained; programs, files and cache are those that a
federated run delivers.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from refocus.cloud_train.backbones.backbone import Backbone, create_backbone
from refocus.cloud_train.bench.candidates import labels
from refocus.cloud_train.data import glyphs
from refocus.cloud_train.federated.methods import PeftSizes, find_method
from refocus.cloud_train.federated.parameters import ClientNetwork, names_in
from refocus.cloud_train.federated.programs import BIAS, PROMPTS, WEIGHT, body_of
from refocus.cloud_train.methods.peft.prompts import PromptedViT
from refocus.cloud_train.progress import say
from refocus.cloud_train.runs.folder import numbered, photo_folder
from refocus.edge.bundle import Bundle
from refocus.edge.commands import show_news
from refocus.edge.files import write_file
from refocus.export.bundle import Export, export_bundle
from refocus.export.parity import read_streams
from refocus.export.program import Card, Checkpoint, save_checkpoint
from studies.bench.rows.switching import SCHEMA, measure

CLASSES = 100
SIZES = PeftSizes(prompts=10, inner=256)  # FedPerfix's published adapter
PLAN = (
    "vit_small_patch16_224:pfedpg",
    "vit_small_patch16_224:fedperfix",
    "vit_base_patch16_224:pfedpg",
    "vit_small_patch16_224:adapters",
    "vit_small_patch16_224:local",
)
RUNTIMES = {"onnx": "onnxruntime", "executorch": "executorch"}


def untrained(name: str, method: str, folder: Path) -> Checkpoint:
    """Save untrained checkpoints of a network and a method.

    They have the form of :mod:`refocus.cloud_train.federated.delivery`.
    """
    torch.manual_seed(0)
    backbone, about = create_backbone(name, 0), find_method(method)
    config = backbone.card_config()
    known: dict[str, Any] = {"labels": labels(CLASSES), "training": {"method": method}}
    weights, builder = _encoder(backbone, method, config)
    encoder = save_checkpoint(folder / "encoder.safetensors", weights, Card(builder=builder, config=config, **known))
    requires = {"encoder": {"file": encoder.path.name, "sha256": encoder.card.sha256}}
    classifier = nn.Linear(backbone.width, CLASSES)
    head = {WEIGHT: classifier.weight, BIAS: classifier.bias}
    card = Card(builder="personal_classifier", config={"carrier": about.carrier}, requires=requires, **known)
    return save_checkpoint(folder / f"{method}.safetensors", head, card)


def _encoder(backbone: Backbone, method: str, config: dict[str, Any]) -> tuple[dict[str, torch.Tensor], str]:
    """Return an encoder's tensors and the name of its builder.

    The settings of the builder are added to ``config``.
    """
    about = find_method(method)
    if about.carrier == "inputs":
        prompts = PromptedViT(backbone.network, SIZES.prompts).prompts.tokens
        return {**backbone.network.state_dict(), PROMPTS: prompts.detach()}, "prompted_encoder"
    config |= {"method": method, "sizes": asdict(SIZES), "outputs": 0, "width": backbone.width}
    body = body_of(config)
    own = names_in(ClientNetwork(body, nn.Identity()), about.own)
    config["personal"] = [name.removeprefix("body.") for name in own]
    return body.state_dict(), "client_encoder"


def exported(name: str, method: str, folder: Path, targets: list[str]) -> Bundle:
    """Export a bundle as devices get it, with parity and self-test.

    The photos are a few letters.
    """
    table = glyphs.glyphs(0, {"test": 2}, 8)
    photos = photo_folder(folder / "parity", table, numbered(table.clients()))
    return export_bundle([untrained(name, method, folder)], folder / "bundle", Export(targets), read_streams(photos))


def environment() -> dict[str, Any]:
    """Return the machine and versions on which the times depend.

    ``load`` is later raised to the highest load of the run.
    """
    versions = {name: version(name) for name in ("onnxruntime", "executorch", "torch", "timm")}
    return {
        "classes": CLASSES,
        "cores": os.cpu_count(),
        "executorch_threads": 1,
        "processor": platform.machine(),
        "versions": versions,
        "load": round(os.getloadavg()[0], 1),
    }


def main(
    out: Annotated[Path, typer.Option(help="output file for the document, such as switching.json")],
    plan: Annotated[
        str, typer.Option(help="comma-separated pairs of network and method, such as vit_small_patch16_224:pfedpg")
    ] = "",
    to: Annotated[str, typer.Option(help="comma-separated targets")] = "onnx:fp32,executorch:fp32",
    rounds: Annotated[int, typer.Option(min=64, help="rounds of each interleaved run")] = 64,
    people: Annotated[int, typer.Option(help="number of profiles with their own inputs; 0: 1,000")] = 0,
) -> None:
    """Measure the cost of switching people on untrained networks.

    The networks have real sizes.
    """
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    about = environment()
    for item in plan.split(",") if plan else PLAN:
        name, _, method = item.partition(":")
        with tempfile.TemporaryDirectory() as temporary:
            say(f"{name}: {method}")
            bundle = exported(name, method, Path(temporary), to.split(","))
            for target in to.split(","):
                runtime, place = RUNTIMES[target.partition(":")[0]], Path(temporary) / target.partition(":")[0]
                row = measure(bundle, runtime, place, rounds, people if find_method(method).carrier == "inputs" else 0)
                rows.append({"backbone": name, "method": method, **row})
        about["load"] = max(about["load"], round(os.getloadavg()[0], 1))
        asked = [word if word != str(out) else "OUT" for word in sys.argv[1:]]
        command = " ".join(["python -m studies.bench.switching", *asked])
        document = {"schema_version": SCHEMA, "switching_people": about, "rows": rows, "command": command}
        write_file(out, json.dumps(document, indent=2) + "\n")  # after each: they take minutes


if __name__ == "__main__":
    show_news()
    typer.run(main)
