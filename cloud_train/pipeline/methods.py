"""What the steps do differently for each method: what is prepared, what is trained, how one target is exported.

Everything is done over the photos of the run's list alone, below ``model/`` of the run's folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from refocus.cloud_train.errors import PipelineError, UsageError
from refocus.cloud_train.federated.delivery.deliver import deliver
from refocus.cloud_train.federated.run import FederatedRun, Rates
from refocus.cloud_train.methods.iciia.train import Devices
from refocus.cloud_train.pipeline.config import PipelineConfig, settings
from refocus.cloud_train.pipeline.data import open_run
from refocus.cloud_train.pipeline.state import current_work, parity_photos
from refocus.cloud_train.runs.iciia import Run, variant_name
from refocus.cloud_train.runs.taper import TaperRun
from refocus.edge.bundle import Bundle
from refocus.edge.commands import show_news
from refocus.edge.files import new_file, write_file
from refocus.export.bank import export_bank
from refocus.export.bundle import Export, export_bundle
from refocus.export.parity import read_streams
from refocus.export.program import Checkpoint, load_checkpoint
from refocus.export.targets import needs_ranges

PERSONAL = "personal"  # beside the bundle: what groups of people have of their own, a file each


@dataclass(frozen=True)
class Method:
    """One of the methods.

    Attributes:
        prepare: makes what training needs; what there is to say about it.
        train: trains; where the checkpoint is.
        export: (checkpoint, folder, target, run's folder, name) -> a bundle of that target alone.
    """

    prepare: Callable[[PipelineConfig, Path], dict[str, Any]]
    train: Callable[[PipelineConfig, Path], Path]
    export: Callable[[Checkpoint, Path, str, Path, str], Bundle]


def same_every_time(config: PipelineConfig) -> None:
    """The same settings give the same bytes."""
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.recipe.seed)


# ---- ICIIA: a head on the features of a frozen encoder


def _features(config: PipelineConfig, work: Path) -> dict[str, Any]:
    run = open_run(config, work)
    run.save()
    _keep_encoder(config, run, current_work(work))
    prepared = run.prepare(Devices(accelerator=config.devices.accelerator).launch())
    encoder = load_checkpoint(run.encoder_path).card
    return {"encoder": encoder.sha256, "width": prepared.backbone.width, "photos": len(prepared.bank.table)}


def _keep_encoder(config: PipelineConfig, run: Run, current: Path | None) -> None:
    """Puts the current release's encoder where the run would make its own, with the classes of this run.

    Raises:
        UsageError: the run would answer with the encoder's own classifier, which has other classes.
    """
    if not config.model.keep_encoder or current is None or run.encoder_path.with_suffix(".json").exists():
        return
    source, classes = current / "model" / "encoder.safetensors", run.table.classes
    card = load_checkpoint(source).card
    if card.labels != classes and run.own_classifier:
        raise UsageError(
            f"[model] keep_encoder: the classifier of {source} is of {len(card.labels)} other classes than the"
            f" {len(classes)} of these photos; leave keep_encoder out, or give a checkpoint"
        )
    with source.open("rb") as old, new_file(run.encoder_path) as copy:
        shutil.copyfileobj(old, copy)
    told = msgspec.to_builtins(msgspec.structs.replace(card, labels=classes))
    text = json.dumps(told, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    write_file(run.encoder_path.with_suffix(".json"), text)  # last: with the card the encoder is there


def _train_head(config: PipelineConfig, work: Path) -> Path:
    if config.devices.count > 1:
        several = f"--nproc-per-node={config.devices.count}", "-m", "refocus.cloud_train.pipeline.methods", str(work)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *several]
        environment = {**os.environ, "OMP_NUM_THREADS": str(config.threads)}
        if subprocess.run(command, check=False, env=environment).returncode:  # noqa: S603  # our own module
            raise PipelineError(f"training on {config.devices.count} devices failed; the lines above say why")
    else:
        train_here(work)
    return next((work / "model").glob("seed-*/*.safetensors"))


def train_here(work: Path) -> None:
    """This process's part of the training of a head; it is one of ``devices.count``.

    Raises:
        UsageError: another number of processes came up.
    """
    config = settings(work)
    same_every_time(config)
    fabric = config.devices.launch()
    run = open_run(config, work)
    prepared = run.prepare(fabric)
    iciia = config.iciia(prepared.backbone.width)
    run.train_head(variant_name(iciia), iciia, config.recipe, prepared, fabric, config.gate)


def _export_head(head: Checkpoint, out: Path, target: str, work: Path, name: str) -> Bundle:
    ranges = read_streams(work / "model" / "calibration") if needs_ranges(target) else None
    return export_bundle([head], out, Export([target], calibration=ranges), read_streams(parity_photos(work)), name)


# ---- TAPER: a bank of networks


def _taper(config: PipelineConfig, work: Path) -> TaperRun:
    return TaperRun(work / "model", config.taper_config(), open_run(config, work).table)


def _photos(config: PipelineConfig, work: Path) -> dict[str, Any]:
    run = _taper(config, work)
    return {"width": run.text.width, "photos": len(run.train)}


def _train_bank(config: PipelineConfig, work: Path) -> Path:
    return _taper(config, work).export_checkpoint(config.taper.recipe.seed).path


def _export_bank(bank: Checkpoint, out: Path, target: str, work: Path, name: str) -> Bundle:
    return export_bank(bank, out, Export([target]), read_streams(parity_photos(work)), name)


# ---- prompts: one frozen vision transformer, and of each group its prompts and classifier


def _groups(config: PipelineConfig, work: Path) -> FederatedRun:
    """Groups are the photos' domains; test people have no part in them."""
    table = open_run(config, work).table
    table = table.rows(table.split != "test")
    undivided = replace(table, split=np.full(len(table), "", dtype="<U10"))  # each group's photos are divided anew
    return FederatedRun(work / "model", config.prompts_config(), undivided)


def _body(config: PipelineConfig, work: Path) -> dict[str, Any]:
    run = _groups(config, work)
    groups = run.clients.members
    return {"width": run.backbone().width, "photos": sum(len(each.train) for each in groups), "groups": len(groups)}


def _train_prompts(config: PipelineConfig, work: Path) -> Path:
    path = deliver(_groups(config, work), config.prompts.method, config.recipe.seed, Rates(config.prompts.rate)).path
    unfinished = work / f".{PERSONAL}"
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(path.parent / "clients", unfinished)
    shutil.rmtree(work / PERSONAL, ignore_errors=True)
    unfinished.rename(work / PERSONAL)
    return path


METHODS = {
    "iciia": Method(_features, _train_head, _export_head),
    "taper": Method(_photos, _train_bank, _export_bank),
    "prompts": Method(_body, _train_prompts, _export_head),
}


if __name__ == "__main__":
    show_news()
    train_here(Path(sys.argv[1]))
