"""The steps that need PyTorch: photos to features, a head, answers of people, one bundle per target, and one of all.

Each is a plain function of the run's folder that reads what earlier steps left and leaves a small JSON document. Done
again, it gives the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.accuracy import Photos
from cloud_train.errors import PipelineError, ReleaseError
from cloud_train.pipeline.config import PipelineConfig, settings
from cloud_train.pipeline.data import judged_photos, open_run
from cloud_train.pipeline.state import (
    current_bundle,
    current_work,
    folder_of,
    parity_photos,
    read_state,
    write_state,
)
from cloud_train.release.evidence import photo_counts, shares, shares_of_bank, size_bytes
from cloud_train.runs import Run, variant_name
from cloud_train.taper_runs import TaperRun
from cloud_train.train_iciia import Devices
from edge.bundle import MANIFEST, Bundle, load_bundle
from export.bank import export_bank
from export.bundle import Export, export_bundle
from export.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from export.errors import ParityError
from export.merge import merge_bundles
from export.parity import read_streams
from export.targets import find_target


def features(work: Path) -> dict[str, Any]:
    """The frozen encoder and the features of all photos; for TAPER decoded photos and descriptions of classes."""
    config = settings(work)
    _same_every_time(config)
    if config.method == "taper":
        taper = open_taper(config, work)
        return write_state(work, "features", {"width": taper.text.width, "photos": len(taper.train)})
    run = open_run(config, work)
    run.save()
    _keep_encoder(config, run, current_work(work))
    prepared = run.prepare(Devices(accelerator=config.devices.accelerator).launch())
    encoder = load_checkpoint(run.encoder_path).card
    return write_state(work, "features", {
        "encoder": encoder.sha256, "width": prepared.backbone.width,
        "photos": len(prepared.bank.table)})  # fmt: skip


def train(work: Path) -> dict[str, Any]:
    """The head, on several devices through torchrun; or TAPER's bank."""
    config = settings(work)
    if config.method == "taper":
        _same_every_time(config)
        open_taper(config, work).export_checkpoint(config.taper.recipe.seed)
    elif config.devices.count > 1:
        several = f"--nproc-per-node={config.devices.count}", "-m", "cloud_train.pipeline.model", str(work)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *several]
        environment = {**os.environ, "OMP_NUM_THREADS": str(config.threads)}
        if subprocess.run(command, check=False, env=environment).returncode:  # noqa: S603  # our own module
            raise PipelineError(f"training on {config.devices.count} devices failed; the lines above say why")
    else:
        train_here(work)
    path = next((work / "model").glob("seed-*/*.safetensors"))
    head = _without_times(load_checkpoint(path))
    return write_state(work, "train", {
        "head": str(path.relative_to(work)), "sha256": head.card.sha256, "training": head.card.training})  # fmt: skip


def train_here(work: Path) -> None:
    """This process's part of the training; it is one of ``devices.count``.

    Raises:
        UsageError: another number of processes came up.
    """
    config = settings(work)
    _same_every_time(config)
    fabric = config.devices.launch()
    run = open_run(config, work)
    prepared = run.prepare(fabric)
    iciia = config.iciia(prepared.backbone.width)
    run.train_head(variant_name(iciia), iciia, config.recipe, prepared, fabric, config.gate)


def open_taper(config: PipelineConfig, work: Path) -> TaperRun:
    """The bank's run over the photos of the list alone."""
    return TaperRun(work / "model", config.taper_config(), open_run(config, work).table)


def evaluate(work: Path) -> dict[str, Any]:
    """Every test person's share of right answers, by the candidate and by the current release, on the same photos."""
    config, current = settings(work), current_bundle(work)
    torch.set_num_threads(config.threads)
    try:
        candidate = _exported(work, config, config.judging.target)
    except ParityError as error:
        return write_state(work, "evaluate", {"mismatch": str(error)})
    labels = set(candidate.manifest.head().labels)
    known = labels & set(current.manifest.head().labels) if current is not None else labels
    photos = judged_photos(open_run(config, work).table, config.judging.photos_per_person, known)
    target = _target(config.judging.target)
    found = _shares(candidate, photos, target, config)
    # The first release is compared with the plain classifier: what people have without any.
    before = found[:, 1] if current is None else _shares(current, photos, _target_of(current, config), config)[:, 0]
    return write_state(work, "evaluate", {
        "people": [*photos.people], "photos": photo_counts(photos).tolist(), "current": before.tolist(),
        "candidate": found[:, 0].tolist(), "plain": found[:, 1].tolist(), "against": _against(work),
        "new_labels": sorted(labels - known), "runs": list(target), "fingerprint": photos.fingerprint})  # fmt: skip


def export(work: Path, target: str) -> dict[str, Any]:
    """One target's bundle; one that does not compute what PyTorch computes is left for the gate to refuse."""
    config = settings(work)
    torch.set_num_threads(config.threads)
    name = folder_of(target)
    try:
        bundle = _exported(work, config, target)
    except ParityError as error:
        return write_state(work, f"export-{name}", {"target": target, "mismatch": str(error)})
    found = {"target": target, "bundle": f"exports/{name}", "bytes": size_bytes(bundle)}
    return write_state(work, f"export-{name}", found)


def merge(work: Path) -> dict[str, Any]:
    """Joins the targets to one bundle, unless one of them is not what PyTorch computes."""
    config = settings(work)
    torch.set_num_threads(config.threads)
    states = [read_state(work, f"export-{folder_of(target)}") for target in config.targets]
    mismatch = {str(state["target"]): str(state["mismatch"]) for state in states if "mismatch" in state}
    if not mismatch:
        parts = [load_bundle(work / state["bundle"]) for state in states]
        try:
            merge_bundles(parts, work / "bundle", load_checkpoint(_head(work)), read_streams(parity_photos(work)))
        except ParityError as error:
            mismatch["all targets together"] = str(error)
    return write_state(work, "merge", {"mismatch": mismatch})


def _shares(bundle: Bundle, photos: Photos, target: tuple[str, str], config: PipelineConfig) -> np.ndarray:
    if bundle.manifest.bank is not None:
        return shares_of_bank(bundle, photos, target, config.judging.batch)
    return shares(bundle, photos, target)


def _same_every_time(config: PipelineConfig) -> None:
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.recipe.seed)


def _keep_encoder(config: PipelineConfig, run: Run, current: Path | None) -> None:
    """Puts the current release's encoder where the run would make its own."""
    if not config.model.keep_encoder or current is None or run.encoder_path.with_suffix(".json").exists():
        return
    source = current / "model" / "encoder.safetensors"
    for path in (source, source.with_suffix(".json")):  # the card last: with it the encoder is there
        temporary = run.folder / f".{path.name}"
        shutil.copyfile(path, temporary)
        temporary.replace(run.folder / path.name)


def _without_times(head: Checkpoint) -> Checkpoint:
    """How long training took is no part of a release: the same model would else be another one each time."""
    training = {name: value for name, value in head.card.training.items() if name != "seconds"}
    if training == head.card.training:
        return head
    return save_checkpoint(head.path, head.weights, msgspec.structs.replace(head.card, training=training))


def _exported(work: Path, config: PipelineConfig, target: str) -> Bundle:
    out, head = work / "exports" / folder_of(target), load_checkpoint(_head(work))
    if (out / MANIFEST).exists():
        return load_bundle(out)
    streams = read_streams(parity_photos(work))
    if config.method == "taper":
        return export_bank(head, out, Export([target]), streams, config.name)
    ranges = read_streams(work / "model" / "calibration") if target.endswith("int8") else None
    return export_bundle([head], out, Export([target], calibration=ranges), streams, config.name)


def _head(work: Path) -> Path:
    return work / str(read_state(work, "train")["head"])


def _against(work: Path) -> str:
    current = read_state(work, "current")
    return f"release {current['number']}" if current else "the plain classifier"


def _target(name: str) -> tuple[str, str]:
    target, precision = find_target(name)
    return target.RUNTIME, precision


def _target_of(current: Bundle, config: PipelineConfig) -> tuple[str, str]:
    wanted = _target(config.judging.target)
    if wanted not in current.targets():
        has = ", ".join(":".join(target) for target in current.targets())
        raise ReleaseError(
            f"[judging] target {config.judging.target}: the current release has {has}; choose one of them"
        )
    return wanted


if __name__ == "__main__":
    train_here(Path(sys.argv[1]))
