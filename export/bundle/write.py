"""Writing a bundle: export, measure through the device runtime, and only then put it in place."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from refocus.edge.bundle import (
    MANIFEST,
    Artifact,
    Bundle,
    Preprocessing,
    put_in_place,
    write_manifest,
)
from refocus.export.bundle.artifacts import Export, Job, artifact_entry, write_program
from refocus.export.bundle.proof import Model, prove
from refocus.export.bundle.worker_process import WorkerProcess
from refocus.export.errors import ExportError
from refocus.export.parity.calibration import Calibration
from refocus.export.parity.parity import Reference
from refocus.export.parity.photos import Streams
from refocus.export.program.capture import capture_freest
from refocus.export.program.checkpoint import Checkpoint
from refocus.export.program.program import TorchProgram
from refocus.export.targets import TAKE_PERSONAL, Written, find_target


def export_bundle(
    checkpoints: Sequence[Checkpoint], out: Path, export: Export, streams: Streams, name: str = ""
) -> Bundle:
    """Exports one or several heads and the encoder they were trained on.

    The bundle is built in a hidden folder beside ``out`` and renamed to it once every program passed parity and the
    self-test: a failed export leaves an earlier bundle untouched.

    Args:
        checkpoints: the heads; their cards name the encoder, one for all.
        out: folder of the bundle; must not exist, or be a bundle, which is replaced.
        streams: real photos, one stream per person.
        name: of the bundle; default: the first checkpoint's file name.

    Raises:
        ExportError: the flags or the checkpoints do not allow it.
        ParityError: an artifact does not compute what PyTorch computes.
    """
    refuse_other_folder(out)
    for target in export.targets:
        find_target(target)
    encoder = _one_encoder(checkpoints)
    if encoder.preprocessing is None:
        raise ExportError("the encoder states no preprocessing")
    _check_personal(encoder, export.targets)
    heads = [(checkpoint.path.stem, checkpoint, checkpoint.program()) for checkpoint in checkpoints]
    if len({stem for stem, _, _ in heads}) < len(heads):
        raise ExportError("two heads have the same file name; a bundle tells them apart by it")
    preprocessing, programs = encoder.preprocessing, [("", checkpoints[0], encoder), *heads]

    def write(folder: Path) -> None:
        jobs = [
            Job(folder, target, program.laid_out_for(target), stem, checkpoint)
            for stem, checkpoint, program in programs
            for target in export.targets
        ]
        with WorkerProcess() as worker:
            _start(worker, [job for job in jobs if not job.needs_ranges], export, None)
            models = [Model(stem, c, program, Reference(encoder, program, streams)) for stem, c, program in heads]
            calibration = None
            if any(job.needs_ranges for job in jobs):
                calibration = Calibration.collect(encoder, [m.program for m in models], export.calibration)
            _start(worker, [job for job in jobs if job.needs_ranges], export, calibration)
            artifacts = _write_all(jobs, worker, preprocessing, export, calibration)
            bundle = prove(folder, name or models[0].name, artifacts, encoder, models, export, streams, worker)
        if export.head_only:
            _leave_encoder_out(bundle)

    return build(out, write)


def refuse_other_folder(out: Path) -> None:
    """Raises ExportError if a folder is there that is no bundle."""
    if out.exists() and not (out / MANIFEST).exists():
        raise ExportError(f"--out {out} exists and is not a bundle; choose another folder")


def build(out: Path, write: Callable[[Path], object]) -> Bundle:
    """Has a bundle written into a hidden folder beside ``out``, and moves it there once it is whole."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        folder = Path(temporary) / "bundle"
        folder.mkdir()
        write(folder)
        return put_in_place(folder, out, Path(temporary))


def _one_encoder(checkpoints: Sequence[Checkpoint]) -> TorchProgram:
    found = [checkpoint.required("encoder") for checkpoint in checkpoints]
    for checkpoint, encoder in zip(checkpoints, found, strict=True):
        if encoder.card.sha256 != found[0].card.sha256:
            raise ExportError(
                f"{checkpoint.path} was trained on {encoder.path}, {checkpoints[0].path} on {found[0].path}: heads of"
                " one bundle share one encoder"
            )
    return found[0].program()


def _check_personal(encoder: TorchProgram, targets: Sequence[str]) -> None:
    """Raises ExportError for a target that has no place for a person's tensors inside a program."""
    for name in targets:
        precision = find_target(name)[1]
        asked = f"{name.partition(':')[0]}:{precision}"
        if encoder.personal and asked not in TAKE_PERSONAL:
            why = " (the ranges of one network's activations would be everybody's)" if precision == "int8" else ""
            raise ExportError(
                f"--to {asked}: an encoder with tensors of each person inside is exported to"
                f" {', '.join(TAKE_PERSONAL)}{why}"
            )


def _start(worker: WorkerProcess, jobs: list[Job], export: Export, calibration: Calibration | None) -> None:
    for job in jobs:
        if job.in_worker:
            worker.start(job, job.settings(export, calibration))


def _write_all(
    jobs: list[Job],
    worker: WorkerProcess,
    preprocessing: Preprocessing,
    export: Export,
    calibration: Calibration | None,
) -> list[Artifact]:
    """Every program for every target; one capture each.

    What the worker writes is waited for last, and what it has not begun by then is taken back.
    """
    written: dict[tuple[str, str], Written] = {}  # by head and target: targets may share a file

    def write_here(some: Iterable[Job]) -> None:
        for program, of_program in itertools.groupby(some, key=lambda job: job.program):
            captured = capture_freest(program.probed or program)
            for job in of_program:
                export.say(f"{job.title}: {job.name}")
                settings = job.settings(export, calibration)
                written[job.head, job.name] = write_program(program, captured, job.name, settings, job.path)

    write_here([job for job in jobs if job.path not in worker])
    write_here(job for job in reversed(jobs) if job.path in worker and worker.take_back(job.path))
    artifacts: list[Artifact] = []
    for job in jobs:
        if job.path in worker:
            export.say(f"{job.title}: {job.name}")
            written[job.head, job.name] = worker.finish(job.path, job.program)
        found = written[job.head, job.name]
        artifacts.append(artifact_entry(job, found, export, calibration, preprocessing, artifacts))
    return artifacts


def _leave_encoder_out(bundle: Bundle) -> None:
    heads = tuple(a for a in bundle.manifest.artifacts if a.role == "head")
    kept = {file.partition("/")[0] for artifact in heads for file in _files(artifact)}
    for file in {file for artifact in bundle.manifest.artifacts for file in _files(artifact)} - kept:
        path = bundle.folder / file
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_manifest(bundle.folder, msgspec.structs.replace(bundle.manifest, artifacts=heads))


def _files(artifact: Artifact) -> list[str]:
    return [artifact.file, *([artifact.defaults.file] if artifact.defaults is not None else [])]
