"""Writing a bundle: export, measure through the device runtime, and only then put it in place."""

from __future__ import annotations

import glob
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from refocus.edge.bundle import Artifact, Bundle, Preprocessing, put_in_place, write_manifest
from refocus.edge.files import locked
from refocus.export.bundle.artifacts import (
    Export,
    Job,
    artifact_entry,
    exported_before,
    heads_alone,
    reused,
    write_program,
)
from refocus.export.bundle.attempt import Attempt, Exported
from refocus.export.bundle.proof import Model, prove, remove_unlisted
from refocus.export.bundle.worker_process import WorkerProcess
from refocus.export.errors import ExportError
from refocus.export.parity.calibration import Calibration
from refocus.export.parity.parity import Reference
from refocus.export.parity.photos import Streams
from refocus.export.program.capture import capture_freest
from refocus.export.program.checkpoint import Checkpoint
from refocus.export.program.eager_recognizer import Remembered
from refocus.export.program.program import TorchProgram
from refocus.export.targets import TAKE_PERSONAL, Written, needs_ranges, refused

_LOCK = "lock"  # in the hidden folder of an export at work


def export_bundle(
    checkpoints: Sequence[Checkpoint], out: Path, export: Export, streams: Streams, name: str = ""
) -> Bundle:
    """As :func:`export_targets`, all targets or none: the first failure ends the export."""
    return export_targets(checkpoints, out, replace(export, partial=False), streams, name).bundle


def export_targets(
    checkpoints: Sequence[Checkpoint], out: Path, export: Export, streams: Streams, name: str = ""
) -> Exported:
    """Exports one or several heads and the encoder they were trained on.

    The bundle is built in a hidden folder beside ``out`` and renamed to it once its programs passed parity and the
    self-test: a failed export leaves an earlier bundle untouched. If ``export.partial``, a target that fails is left
    out, encoder and heads, and named in the outcomes.

    Args:
        checkpoints: the heads; their cards name the encoder, one for all.
        out: folder of the bundle; must not exist, or be a bundle, which is replaced.
        streams: real photos, one stream per person.
        name: of the bundle; default: the first checkpoint's file name.

    Raises:
        ExportError: the flags or the checkpoints do not allow it.
        ParityError: an artifact, or if partial every target's, does not compute what PyTorch computes.
    """
    Bundle.check_replaceable(out)
    attempt = Attempt(export.targets, export.partial)
    encoder = _one_encoder(checkpoints)
    if encoder.preprocessing is None:
        raise ExportError("the encoder states no preprocessing")
    _require_encoder(attempt)
    for target in (name for name in attempt.left if not heads_alone(name)):
        with attempt.trying(target):
            _check_personal(encoder, target)
            exported_before(encoder, target)
    attempt.require_one()
    heads = [(checkpoint.path.stem, checkpoint, checkpoint.program()) for checkpoint in checkpoints]
    if len({stem for stem, _, _ in heads}) < len(heads):
        raise ExportError("two heads have the same file name; give each head a unique one")
    preprocessing, programs = encoder.preprocessing, [("", checkpoints[0], encoder), *heads]
    eager = replace(encoder, module=Remembered(encoder.module))

    def write(folder: Path) -> None:
        jobs = [
            Job(folder, target, program.laid_out_for(target), stem, checkpoint)
            for stem, checkpoint, program in programs
            for target in attempt.left
            if program.role == "head" or not heads_alone(target)
        ]
        with WorkerProcess() as worker:
            _start(worker, [job for job in jobs if not job.needs_ranges], export, None)
            models = [Model(stem, c, program, Reference(eager, program, streams)) for stem, c, program in heads]
            calibration = None
            if any(job.needs_ranges for job in jobs):
                calibration = Calibration.collect(eager, [m.program for m in models], export.calibration)
            _start(worker, [job for job in jobs if job.needs_ranges], export, calibration)
            artifacts = _write_all(jobs, worker, preprocessing, export, calibration, attempt)
            bundle = prove(folder, name or models[0].name, artifacts, eager, models, export, streams, worker, attempt)
        if export.head_only:
            _leave_encoder_out(bundle)

    bundle = build(out, write)
    return Exported(bundle, attempt.outcomes(bundle))


def build(out: Path, write: Callable[[Path], object]) -> Bundle:
    """Has a bundle written into a hidden folder beside ``out``, and moves it there once it is whole."""
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(out)
    with (
        tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary,
        locked(Path(temporary) / _LOCK),
    ):
        folder = Path(temporary) / "bundle"
        folder.mkdir()
        write(folder)
        return put_in_place(folder, out, Path(temporary))


def _remove_abandoned(out: Path) -> None:
    """Removes hidden folders of exports to the same place that were killed; one at work holds its lock."""
    for lock in out.parent.glob(f".{glob.escape(out.name)}-*/{_LOCK}"):
        with locked(lock, wait=False) as mine:
            if mine and not (lock.parent / "previous").exists():  # an earlier bundle, between two renames
                shutil.rmtree(lock.parent, ignore_errors=True)


def _one_encoder(checkpoints: Sequence[Checkpoint]) -> TorchProgram:
    found = [checkpoint.required("encoder") for checkpoint in checkpoints]
    for checkpoint, encoder in zip(checkpoints, found, strict=True):
        if encoder.card.sha256 != found[0].card.sha256:
            raise ExportError(
                f"{checkpoint.path} was trained on {encoder.path}, {checkpoints[0].path} on {found[0].path}: heads of"
                " one bundle share one encoder"
            )
    return found[0].program()


def _check_personal(encoder: TorchProgram, target: str) -> None:
    """Raises ExportError for a target that has no place for a person's tensors inside a program."""
    if encoder.personal and target not in TAKE_PERSONAL:
        why = " (the ranges of one network's activations would be everybody's)" if needs_ranges(target) else ""
        raise refused(target, TAKE_PERSONAL, "an encoder with tensors of each person inside", why)


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
    attempt: Attempt,
) -> list[Artifact]:
    """Every program for every target that does not fail; one capture each.

    What the worker writes is waited for last, and what it has not begun by then is taken back.
    """
    written: dict[tuple[str, str], Written] = {}  # by head and target: targets may share a file

    def write_here(some: Iterable[Job]) -> None:
        for program, of_program in itertools.groupby(some, key=lambda job: job.program):
            if program.source is not None:
                continue
            captured = None
            for job in of_program:
                if job.name not in attempt:
                    continue
                with attempt.trying(job.name):
                    if captured is None:
                        captured = capture_freest(program.probed or program)
                    export.say(f"{job.title}: {job.name}")
                    settings = job.settings(export, calibration)
                    written[job.head, job.name] = write_program(program, captured, job.name, settings, job.path)

    write_here([job for job in jobs if job.path not in worker])
    write_here(job for job in reversed(jobs) if job.path in worker and worker.take_back(job.path))
    artifacts: list[Artifact] = []
    for job in jobs:
        if job.name not in attempt:
            continue
        with attempt.trying(job.name):
            copied = reused(job)
            if copied is None:
                if job.path in worker:
                    export.say(f"{job.title}: {job.name}")
                    written[job.head, job.name] = worker.finish(job.path, job.program)
                found = written[job.head, job.name]
                copied = artifact_entry(job, found, export, calibration, preprocessing, artifacts)
            artifacts.append(copied)
    _require_encoder(attempt)
    return list(attempt.artifacts_left(artifacts))


def _require_encoder(attempt: Attempt) -> None:
    """Fails the targets that write heads alone where no other one is left to write the encoder.

    Raises:
        ExportError: none is left at all.
    """
    if attempt.left and all(map(heads_alone, attempt.left)):
        for target in attempt.left:
            told = "writes heads alone; name a target for the encoder too, as onnx:fp32"
            attempt.fail(target, ExportError(f"--to {target}: {told}"))
    attempt.require_one()


def _leave_encoder_out(bundle: Bundle) -> None:
    heads = tuple(a for a in bundle.manifest.artifacts if a.role == "head")
    remove_unlisted(write_manifest(bundle.folder, msgspec.structs.replace(bundle.manifest, artifacts=heads)))
