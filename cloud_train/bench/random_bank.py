"""A TAPER bank of any timm network with random weights: the cost of condensing does not depend on training.

The bases are distinct, their batch norms scale and shift, and photos get different answers, so that a wrong mixture or
a wrong fold is seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from refocus.cloud_train.backbones.backbone import Backbone, create_backbone
from refocus.cloud_train.bench.compatibility import photo_files
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.taper.bank import MixerPredictor, layout_of
from refocus.cloud_train.progress import say
from refocus.edge.bundle import Preprocessing
from refocus.edge.photos import preprocess
from refocus.export.bank import export_bank
from refocus.export.bundle import Export
from refocus.export.program import Card, Checkpoint, save_checkpoint

DOMAINS = ("", "sketch")
DESCRIBED = 16  # E, numbers of a description
NOISE = 0.3  # of a basis' weights, in standard deviations of the layer's
SEEN, COMPARED = 16, 16  # photos that batch norms are measured on, and photos of the parity check


def write_random_bank(
    path: Path,
    name: str,
    arguments: Mapping[str, Any],
    labels: Sequence[str],
    side: int,
    bases: int,
    photos: Sequence[bytes],
) -> Checkpoint:
    """Writes the checkpoint of a bank, as :func:`refocus.export.bank.export_bank` takes it; seed 0.

    Args:
        name, arguments: of the timm network.
        side: pixels of its input.
        bases: Q.
        photos: contents of photo files; batch norms get their statistics.
    """
    preprocessing = Preprocessing(resize_shorter=side, crop=side, mean=(0.5,) * 3, std=(0.25,) * 3)
    seen = torch.cat([torch.from_numpy(preprocess(content, preprocessing)) for content in photos])
    torch.manual_seed(0)
    backbone = create_backbone(name, len(labels), preprocessing, **arguments)
    network = backbone.network
    layout = layout_of(network)
    first = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    rows = []
    for _ in range(1 + bases):
        _differ(network, first, seen)
        rows.append(layout.join(network.state_dict()))
    predictor = MixerPredictor(DESCRIBED, layout.mixers, bases)
    nn.init.normal_(dict(predictor.named_parameters())[f"layers.{len(predictor.layers) - 1}.weight"], std=0.5)
    return save_bank(path, backbone, rows[0], torch.stack(rows[1:]), predictor, labels, DOMAINS)


def save_bank(
    path: Path,
    backbone: Backbone,
    generic: Tensor,
    rows: Tensor,
    predictor: MixerPredictor,
    labels: Sequence[str],
    domains: Sequence[str] = ("",),
) -> Checkpoint:
    """Writes the checkpoint of a bank whose descriptions are random numbers.

    Args:
        generic, rows: (n,) and (Q, n).
        labels: C class names.
    """
    width = next(predictor.parameters()).shape[1]
    weights = {
        "rows": rows,
        "generic": generic,
        "descriptions": torch.randn(len(domains), len(labels), width),
        **{f"predictor.{name}": value for name, value in predictor.state_dict().items()},
    }
    config = backbone.card_config(
        classes=len(labels), blockwise=True, domains=list(domains), text_encoder="none", prompts=["{}"]
    )
    return save_checkpoint(path, weights, Card(builder="taper", labels=tuple(labels), config=config))


@torch.no_grad()
def _differ(network: nn.Module, first: Mapping[str, Tensor], seen: Tensor) -> None:
    """Turns the network into one more basis: noise on the weights, norms that fit the photos, answers around zero."""
    for name, parameter in network.named_parameters():
        spread = first[name].std() if parameter.dim() > 1 else 0
        parameter.copy_(first[name] + NOISE * spread * torch.randn_like(parameter))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.uniform_(module.bias, -0.3, 0.3)
            module.momentum = 1.0
    classifier = network.get_classifier()  # type: ignore[operator]
    classifier.weight.mul_(1 / classifier.weight.std())
    network.train()(seen)
    classifier.bias.zero_()
    classifier.bias.sub_(network.eval()(seen).mean(0))


def main(
    out: Annotated[Path, typer.Argument(help="folder of the bank; its checkpoint is written beside it")],
    photos: Annotated[Path, typer.Option(help="folder of real photos")],
    network: Annotated[str, typer.Option(help="timm network")] = "resnet18",
    bases: Annotated[int, typer.Option(min=1, help="number of bases Q")] = 10,
    classes: Annotated[int, typer.Option(min=2, help="number of classes C")] = 1000,
    side: Annotated[int, typer.Option(min=8, help="input side in pixels")] = 224,
    to: Annotated[str, typer.Option(help="comma-separated targets")] = "onnx:fp32,executorch:fp32",
) -> None:
    """Write a bank with random weights, to measure what condensing and the service cost."""
    files = photo_files(photos)
    if len(files) < SEEN + COMPARED:
        raise UsageError(f"--photos {photos}: expected {SEEN + COMPARED} photos, found {len(files)}")
    labels = [f"class {number}" for number in range(classes)]
    contents = [file.read_bytes() for file in files[:SEEN]]
    checkpoint = out.with_name(f"{out.name}.safetensors")
    made = write_random_bank(checkpoint, network, {}, labels, side, bases, contents)
    compared = files[SEEN : SEEN + COMPARED]
    streams = {"anna": compared[: COMPARED // 2], "bob": compared[COMPARED // 2 :]}
    export_bank(made, out, Export(to.split(",")), streams)
    say(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
