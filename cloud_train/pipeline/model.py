"""The steps that need PyTorch: photos to features, a head, answers of people, one bundle per target, and one of all.

Each is a plain function of the run's folder that reads what earlier steps left and leaves a small JSON document. Done
again, it gives the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from refocus.benchmarks.measure import Photos
from refocus.cloud_train.errors import ReleaseError
from refocus.cloud_train.pipeline.config import PipelineConfig, settings
from refocus.cloud_train.pipeline.data import open_run, photos_to_test
from refocus.cloud_train.pipeline.methods import METHODS, PERSONAL, same_every_time
from refocus.cloud_train.pipeline.state import (
    current_bundle,
    current_work,
    folder_of,
    parity_photos,
    read_state,
    write_state,
)
from refocus.cloud_train.release.evidence import photo_counts, shares, shares_of_groups, size_bytes
from refocus.edge.bundle import MANIFEST, Bundle, load_bundle
from refocus.export.bundle import merge_bundles
from refocus.export.errors import ParityError
from refocus.export.parity import read_streams
from refocus.export.program import Checkpoint, load_checkpoint, save_checkpoint
from refocus.export.targets import find_target


def features(work: Path) -> dict[str, Any]:
    """What training needs of the photos: the features of a frozen encoder; or decoded photos, and what TAPER's classes
    are described by, or the network that prompts are put before."""
    config = settings(work)
    same_every_time(config)
    return write_state(work, "features", METHODS[config.method].prepare(config, work))


def train(work: Path) -> dict[str, Any]:
    """The head, on several devices through torchrun; or a bank; or the prompts of every group."""
    config = settings(work)
    same_every_time(config)
    path = METHODS[config.method].train(config, work)
    head = _without_times(load_checkpoint(path))
    state = {"head": str(path.relative_to(work)), "sha256": head.card.sha256, "training": head.card.training}
    return write_state(work, "train", state)


def evaluate(work: Path) -> dict[str, Any]:
    """Every test person's share of right answers, by the candidate and by the current release, on the same photos."""
    config, released, current = settings(work), current_work(work), current_bundle(work)
    torch.set_num_threads(config.threads)
    try:
        candidate = _exported(work, config, config.judging.target)
    except ParityError as error:
        return write_state(work, "evaluate", {"mismatch": str(error)})
    labels = set(candidate.manifest.head().labels)
    known = labels & set(current.manifest.head().labels) if current is not None else labels
    table = open_run(config, work).table
    photos = photos_to_test(table, config.judging.photos_per_person, known)
    group_of = {client: table.home(rows) for client, rows in table.clients()}
    target = _target(config.judging.target)
    result = _shares(candidate, photos, target, config, work, group_of)
    before = result[:, 1]  # the first release is compared with the plain classifier: what people have without any
    if released is not None and current is not None:
        before = _shares(current, photos, _target_of(current, config), config, released, group_of)[:, 0]
    state = {
        "people": [*photos.people],
        "photos": photo_counts(photos).tolist(),
        "current": before.tolist(),
        "candidate": result[:, 0].tolist(),
        "plain": result[:, 1].tolist(),
        "against": _against(work),
        "new_labels": sorted(labels - known),
        "runs": list(target),
        "fingerprint": photos.fingerprint,
    }
    return write_state(work, "evaluate", state)


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


def _shares(
    bundle: Bundle,
    photos: Photos,
    target: tuple[str, str],
    config: PipelineConfig,
    work: Path,
    group_of: dict[str, str],
) -> np.ndarray:
    """(G, 2) of a release, whatever its method; ``work`` is the run that made it."""
    if (work / PERSONAL).exists():
        return shares_of_groups(bundle, photos, target, group_of, work / PERSONAL)
    return shares(bundle, photos, target, config.judging.batch)


def _without_times(head: Checkpoint) -> Checkpoint:
    """How long training took is not part of a release: the same model would else be another one each time."""
    training = {name: value for name, value in head.card.training.items() if name != "seconds"}
    if training == head.card.training:
        return head
    return save_checkpoint(head.path, head.weights, msgspec.structs.replace(head.card, training=training))


def _exported(work: Path, config: PipelineConfig, target: str) -> Bundle:
    out, head = work / "exports" / folder_of(target), load_checkpoint(_head(work))
    if (out / MANIFEST).exists():
        return load_bundle(out)
    return METHODS[config.method].export(head, out, target, work, config.name)


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
