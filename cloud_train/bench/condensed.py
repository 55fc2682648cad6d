"""A condensed network for ``refocus bench suite``: a bank of untrained bases, a task, and its bundle's programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from refocus.cloud_train.backbones.backbone import create_backbone
from refocus.cloud_train.bench.candidates import labels
from refocus.cloud_train.bench.compatibility import CLASSES, photo_files
from refocus.cloud_train.bench.random_bank import save_bank
from refocus.cloud_train.methods.taper.bank import MixerPredictor, layout_of
from refocus.edge.bundle import load_bundle
from refocus.edge.photos import preprocess
from refocus.edge.runtimes import RUNTIMES, load_program
from refocus.edge.taper import Bank
from refocus.export.bank import export_bank
from refocus.export.bundle import Export
from refocus.export.program import Checkpoint

BASES, WORDS = 10, 384  # of the paper; width of a description by all-MiniLM-L6-v2
TASK_CLASSES = 20
NOISE = 1e-3  # between bases: enough to be another network, so little that every mixture answers ordinarily


@dataclass(frozen=True)
class Condensed:
    """What a condensed network costs.

    Attributes:
        photo: its encoder and head on one photo.
        condense: the bank and a task to a bundle in place.
        size_bytes: of its weight files.
    """

    photo: Callable[[], object]
    condense: Callable[[], object]
    size_bytes: int


def condensed(name: str, network: torch.nn.Module, target: str, photos: Path, folder: Path) -> Condensed:
    """Makes a bank of the network for one target, and condenses it.

    Args:
        network: in eval mode, with statistics of real photos.
        target: as ``onnx:fp32``.
    """
    files = photo_files(photos)[:16]  # of two people: as many as parity asks for
    checkpoint = _checkpoint(name, network, folder / "bank.safetensors")
    bundle = export_bank(checkpoint, folder / "bank", Export([target]), {"one": files[:8], "other": files[8:]})
    bank = Bank.open(bundle.folder)
    task, out = bank.task(bank.labels[:TASK_CLASSES]), folder / "personal"
    made = bank.condense(task, out)
    personal = load_bundle(out)
    runtime, precision = personal.targets()[0]
    if runtime not in RUNTIMES:
        raise ValueError(f"the bank has no program for {target}")
    encoder, head = (load_program(personal, role, runtime, precision, threads=1) for role in ("encoder", "head"))
    pixels = preprocess(files[0].read_bytes(), personal.manifest.preprocessing)
    encode = encoder.bind({"photo": pixels})

    def photo() -> object:
        return head.run(feature=encode()["feature"])

    return Condensed(photo, lambda: bank.condense(task, folder / "again"), made.weights_bytes)


def _checkpoint(name: str, network: torch.nn.Module, path: Path) -> Checkpoint:
    backbone = create_backbone(name, CLASSES)
    layout = layout_of(network)
    generic = layout.join(network.state_dict())
    rows = torch.stack([generic * (1 + NOISE * torch.randn_like(generic)) for _ in range(BASES)])
    predictor = MixerPredictor(WORDS, layout.mixers, BASES)
    return save_bank(path, backbone, generic, rows, predictor, labels(CLASSES))
