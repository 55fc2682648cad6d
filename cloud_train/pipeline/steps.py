"""What the steps of a retraining do: plain functions of the run's folder, whoever calls them in which order.

Each reads what earlier steps left, works, and leaves a small JSON document. A step that is done again gives the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from cloud_train.errors import PipelineError, ReleaseError
from cloud_train.pipeline.config import PipelineConfig
from cloud_train.pipeline.data import ingest as choose_photos
from cloud_train.pipeline.data import judged_photos, open_run
from cloud_train.pipeline.state import current_work, read_state, settings, write_state
from cloud_train.release.evidence import latency_ratio, parity_of, photo_counts, shares, size_bytes
from cloud_train.release.gates import COST, PEOPLE, Evidence, Gate, judge, never_worse
from cloud_train.release.gates import parity as judge_parity
from cloud_train.runs import Run, variant_name
from cloud_train.train_iciia import Devices
from edge.bundle import MANIFEST, Bundle, load_bundle
from export.bundle import Export, export_bundle
from export.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from export.errors import ParityError
from export.merge import merge_bundles
from export.parity import read_streams
from export.targets import find_target


def ingest(work: Path) -> dict[str, Any]:
    """Begins the record and chooses the photos; see :func:`cloud_train.pipeline.data.ingest`."""
    from cloud_train.pipeline.registry import Registry

    Registry(work.parent.parent).begin(work)
    current = current_work(work)
    before = current / "photos.csv" if current is not None else None
    return write_state(work, "ingest", choose_photos(settings(work), work / "photos.csv", before))


def features(work: Path) -> dict[str, Any]:
    """The frozen encoder and the features of all photos."""
    config = settings(work)
    _same_every_time(config)
    run = open_run(config, work)
    run.save()
    _keep_encoder(config, run, current_work(work))
    prepared = run.prepare(Devices(accelerator=config.devices.accelerator).launch())
    encoder = load_checkpoint(run.encoder_path).card
    return write_state(work, "features", {
        "encoder": encoder.sha256, "width": prepared.backbone.width, "bank": prepared.bank.key,
        "photos": len(prepared.bank.table)})  # fmt: skip


def train(work: Path) -> dict[str, Any]:
    """The head; on several devices through torchrun."""
    config = settings(work)
    if config.devices.count > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                   f"--nproc-per-node={config.devices.count}", "-m", "cloud_train.pipeline.steps", str(work)]  # fmt: skip
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


def evaluate(work: Path) -> dict[str, Any]:
    """Every test person's share of right answers, with the candidate and with the current release, on the same photos."""
    config, current = settings(work), _current(work)
    torch.set_num_threads(config.threads)
    candidate = _exported(work, config, config.judging.target)
    labels = set(candidate.manifest.head().labels)
    known = labels & set(current.manifest.head().labels) if current is not None else labels
    photos = judged_photos(open_run(config, work).table, config.judging.photos_per_person, known)
    target = _target(config.judging.target)
    found = shares(candidate, photos, target)
    # The first release is compared with the plain classifier: what people have without any.
    before = found[:, 1] if current is None else shares(current, photos, _target_of(current, config))[:, 0]
    return write_state(work, "evaluate", {
        "people": [*photos.people], "photos": photo_counts(photos).tolist(), "current": before.tolist(),
        "candidate": found[:, 0].tolist(), "plain": found[:, 1].tolist(), "against": _against(work),
        "new_labels": sorted(labels - known), "fingerprint": photos.fingerprint})  # fmt: skip


def gate(work: Path) -> bool:
    """Judges what people get."""
    limits, found = settings(work).limits, read_state(work, "evaluate")
    people = {name: np.array(found[name]) for name in ("photos", "current", "candidate", "plain")}
    return _judged(work, "gate", judge(Evidence(**people), limits, PEOPLE if _current(work) else (*PEOPLE[:2], never_worse)))


def export(work: Path, target: str) -> dict[str, Any]:
    """One target's bundle; one that does not compute what PyTorch computes is left for the gate to refuse."""
    config = settings(work)
    torch.set_num_threads(config.threads)
    name = _folder_of(target)
    try:
        bundle = _exported(work, config, target)
    except ParityError as error:
        return write_state(work, f"export-{name}", {"target": target, "mismatch": str(error)})
    return write_state(work, f"export-{name}", {"target": target, "bundle": f"exports/{name}", "bytes": size_bytes(bundle)})


def merge(work: Path) -> dict[str, Any]:
    """Joins the targets to one bundle, unless one of them is not what PyTorch computes."""
    config = settings(work)
    torch.set_num_threads(config.threads)
    states = [read_state(work, f"export-{_folder_of(target)}") for target in config.targets]
    mismatch = {str(state["target"]): str(state["mismatch"]) for state in states if "mismatch" in state}
    if not mismatch:
        parts = [load_bundle(work / state["bundle"]) for state in states]
        try:
            head, streams = load_checkpoint(_head(work)), read_streams(work / "model" / "parity")
            merge_bundles(parts, work / "bundle", head, streams)
        except ParityError as error:
            mismatch["all targets together"] = str(error)
    return write_state(work, "merge", {"mismatch": mismatch})


def parity_gate(work: Path) -> bool:
    """Judges whether every program computes what PyTorch computes."""
    limits, mismatch = settings(work).limits, read_state(work, "merge")["mismatch"]
    found = dict.fromkeys(mismatch, False) if mismatch else parity_of(load_bundle(work / "bundle"))
    none = np.zeros(limits.least_people)
    [judged] = judge(Evidence(none, none, none, none, parity=found), limits, [judge_parity])
    return _judged(work, "parity", [replace(judged, why="; ".join([judged.why, *mismatch.values()]))])


def benchmark_gate(work: Path) -> bool:
    """Judges size and time against the current release; a first release has nothing to be slower than."""
    config, current, candidate = settings(work), _current(work), load_bundle(work / "bundle")
    state: dict[str, Any] = {"bytes": size_bytes(candidate)}
    if current is None:
        return _judged(work, "benchmark", [], **state)
    labels = set(candidate.manifest.head().labels)
    photos = judged_photos(open_run(config, work).table, config.judging.photos_per_person, labels)
    ratio = latency_ratio(current, candidate, photos, _target_of(current, config), config.judging.rounds)
    none = np.zeros(config.limits.least_people)
    evidence = Evidence(none, none, none, none, size_bytes(current), state["bytes"], ratio)
    state |= {"current_bytes": evidence.current_bytes, "latency_ratio": list(ratio)}
    return _judged(work, "benchmark", judge(evidence, config.limits, COST), **state)


def card(work: Path) -> Path:
    """The model card."""
    from cloud_train.pipeline.report import model_card

    path = work / "card.md"
    path.write_text(model_card(work), encoding="utf-8")
    return path


def release(work: Path) -> dict[str, Any]:
    """Publishes the bundle, registers it and makes it the current release.

    Raises:
        ReleaseError: a gate was not passed, or was not judged at all.
    """
    from cloud_train.pipeline.registry import Registry

    states = {name: read_state(work, name) for name in ("gate", "parity", "benchmark")}
    for name, state in states.items():
        if not state.get("passed"):
            raise ReleaseError(f"{work}: the gate '{name}' was {'refused' if state else 'not judged'}; nothing is released")
    config = settings(work)
    published = _publish(work, config)
    version = Registry(work.parent.parent).release(work, config.name, published)
    return write_state(work, "release", {"number": published or version, "version": version,
                                         "published": published})  # fmt: skip


def report(work: Path) -> dict[str, Any]:
    """The last step, of a release and of a refusal alike: report, tracking, outcome."""
    from cloud_train.pipeline.registry import Registry
    from cloud_train.pipeline.report import write_report

    reasons = [f"{found['name']}: {found['why']}" for found in judged_gates(work) if not found["passed"]]
    released = read_state(work, "release")
    outcome = {"passed": not reasons and bool(released), "reasons": reasons, "release": released.get("number")}
    write_report(work, work / "report.html", outcome)
    Registry(work.parent.parent).finish(work, outcome)
    return write_state(work, "outcome", outcome)


def judged_gates(work: Path) -> list[dict[str, Any]]:
    """Every gate that was judged so far."""
    return [found for name in ("gate", "parity", "benchmark") for found in read_state(work, name).get("gates", [])]


def _judged(work: Path, name: str, gates: list[Gate], **more: Any) -> bool:
    passed = all(found.passed for found in gates)
    write_state(work, name, {**more, "passed": passed, "gates": [asdict(found) for found in gates]})
    return passed


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
    out, head = work / "exports" / _folder_of(target), load_checkpoint(_head(work))
    if (out / MANIFEST).exists():
        return load_bundle(out)
    model = work / "model"
    ranges = read_streams(model / "calibration") if target.endswith("int8") else None
    return export_bundle([head], out, Export([target], calibration=ranges), read_streams(model / "parity"), config.name)


def _head(work: Path) -> Path:
    return work / str(read_state(work, "train")["head"])


def _current(work: Path) -> Bundle | None:
    current = current_work(work)
    return load_bundle(current / "bundle") if current is not None else None


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
        raise ReleaseError(f"[judging] target {config.judging.target}: the current release has {has}; choose one of them")
    return wanted


def _folder_of(target: str) -> str:
    return target.replace(":", "-")


def _publish(work: Path, config: PipelineConfig) -> int | None:
    """Signs the bundle as the next release; one that a killed run published already keeps its number."""
    wanted = config.release
    if not wanted.repository:
        return None
    from cloud_train.release.keys import KeyRing
    from cloud_train.release.repository import Repository
    from cloud_train.release.stages import publish
    from edge.slots import files_of

    repository = Repository(Path(wanted.repository), KeyRing(Path(wanted.keys)))
    files = files_of(load_bundle(work / "bundle"))
    for known in repository.channel(wanted.device_class).releases:
        if known.files == files and not known.withdrawn:
            return known.number
    return publish(repository, work / "bundle", wanted.device_class, wanted.percent).release.number


if __name__ == "__main__":
    train_here(Path(sys.argv[1]))
