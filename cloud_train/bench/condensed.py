"""A condensed network for ``refocus bench suite``: a bank of untrained bases, and a bundle condensed for a task."""

from __future__ import annotations

from pathlib import Path

import torch

from refocus.benchmarks.rows.saved_program import BANK, PERSONAL
from refocus.cloud_train.backbones.backbone import create_backbone
from refocus.cloud_train.bench.candidates import labels
from refocus.cloud_train.bench.compatibility import CLASSES, photo_files
from refocus.cloud_train.bench.random_bank import save_bank
from refocus.cloud_train.methods.taper.bank import MixerPredictor, layout_of
from refocus.edge.bundle import load_bundle
from refocus.edge.runtimes import RUNTIMES
from refocus.edge.taper import Bank
from refocus.export.bank import export_bank
from refocus.export.bundle import Export
from refocus.export.program import Checkpoint

BASES, WORDS = 10, 384  # of the paper; width of a description by all-MiniLM-L6-v2
TASK_CLASSES = 20
NOISE = 1e-3  # between bases: enough to be another network, so little that every mixture answers ordinarily


def save_condensed(
    name: str, network: torch.nn.Module, target: str, photos: Path, folder: Path
) -> tuple[tuple[str, ...], int]:
    """Makes a bank of the network for one target, and condenses it, below a folder that is made.

    Args:
        network: in eval mode, with statistics of real photos.
        target: as ``onnx:fp32``.

    Returns:
        labels of the task, and bytes of the condensed network's weight files.
    """
    folder.mkdir()
    files = photo_files(photos)[:16]  # of two people: as many as parity asks for
    checkpoint = _checkpoint(name, network, folder / "bank.safetensors")
    bundle = export_bank(checkpoint, folder / BANK, Export([target]), {"one": files[:8], "other": files[8:]})
    checkpoint.path.unlink()
    bank = Bank.open(bundle.folder)
    task = tuple(bank.labels[:TASK_CLASSES])
    made = bank.condense(bank.task(task), folder / PERSONAL)
    runtime, _ = load_bundle(folder / PERSONAL).targets()[0]
    if runtime not in RUNTIMES:
        raise ValueError(f"the bank has no program for {target}")
    return task, made.weights_bytes


def _checkpoint(name: str, network: torch.nn.Module, path: Path) -> Checkpoint:
    backbone = create_backbone(name, CLASSES)
    layout = layout_of(network)
    generic = layout.join(network.state_dict())
    rows = torch.stack([generic * (1 + NOISE * torch.randn_like(generic)) for _ in range(BASES)])
    predictor = MixerPredictor(WORDS, layout.mixers, BASES)
    return save_bank(path, backbone, generic, rows, predictor, labels(CLASSES))
