"""Writing a bundle: export, measure through the device runtime, and only then put it in place."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from refocus.edge.bundle import (
    EAGER,
    MANIFEST,
    SCHEMA_VERSION,
    Artifact,
    Bundle,
    Defaults,
    Head,
    Manifest,
    Parity,
    Personalisation,
    Preprocessing,
    SelfTest,
    SelfTestAnswer,
    SelfTestPhoto,
    encode_tensors,
    put_in_place,
    tree_sha256,
    write_manifest,
)
from refocus.edge.files import file_sha256
from refocus.edge.recognize import Recognizer, answer_all, check, expected_answer
from refocus.export.bundle.worker_process import WorkerProcess
from refocus.export.errors import ExportError, ParityError
from refocus.export.parity.calibration import Calibration
from refocus.export.parity.parity import TOLERANCES, EagerRecognizer, Reference, compare, judge
from refocus.export.parity.photos import Streams, distinct
from refocus.export.program.capture import capture_freest
from refocus.export.program.checkpoint import Checkpoint
from refocus.export.program.program import TorchProgram
from refocus.export.targets import DEFAULT_OPSET, TAKE_PERSONAL, Settings, Written, find_target
from refocus.export.targets.external_weights import fill

SELF_TEST_PHOTOS = 8


@dataclass(frozen=True)
class Export:
    """What is asked of an export.

    Attributes:
        targets: as ``onnx:fp32``.
        opset: of ONNX files.
        calibration: photos that fix the ranges of int8 programs, one stream per person.
        head_only: leave the encoder out of the bundle; it is still exported to measure the head.
        allow_mismatch: write a bundle that failed parity, marked as such.
        full_delegation: fail where an operator falls back.
        say: is told what is being done.
    """

    targets: Sequence[str]
    opset: int = DEFAULT_OPSET
    calibration: Streams | None = None
    head_only: bool = False
    allow_mismatch: bool = False
    full_delegation: bool = False
    say: Callable[[str], object] = field(default=lambda line: None)


@dataclass(frozen=True)
class Model:
    """A head with its checkpoint and eager PyTorch's answers."""

    name: str
    checkpoint: Checkpoint
    program: TorchProgram
    reference: Reference


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
    if out.exists() and not (out / MANIFEST).exists():
        raise ExportError(f"--out {out} exists and is not a bundle; choose another folder")
    for target in export.targets:
        find_target(target)
    encoder = _one_encoder(checkpoints)
    if encoder.preprocessing is None:
        raise ExportError("the encoder states no preprocessing")
    _check_personal(encoder, export.targets)
    heads = [(checkpoint.path.stem, checkpoint, checkpoint.program()) for checkpoint in checkpoints]
    if len({stem for stem, _, _ in heads}) < len(heads):
        raise ExportError("two heads have the same file name; a bundle tells them apart by it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary, WorkerProcess() as beside:
        folder = Path(temporary) / "bundle"
        folder.mkdir()
        jobs = [
            Job(
                folder, target, program.laid_out_for(target), stem, checkpoints[0] if program is encoder else checkpoint
            )
            for stem, checkpoint, program in [("", checkpoints[0], encoder), *heads]
            for target in export.targets
        ]
        _start(beside, [job for job in jobs if not job.needs_ranges], export, None)
        models = [Model(stem, c, program, Reference(encoder, program, streams)) for stem, c, program in heads]
        calibration = None
        if any(job.needs_ranges for job in jobs):
            calibration = Calibration.collect(encoder, [m.program for m in models], export.calibration)
        _start(beside, [job for job in jobs if job.needs_ranges], export, calibration)
        artifacts = _write_all(jobs, beside, encoder.preprocessing, export, calibration)
        photos = make_self_test_photos(folder, streams)
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            name=name or models[0].name,
            preprocessing=encoder.preprocessing,
            artifacts=tuple(artifacts),
            heads=tuple(head_entry(model) for model in models),
            self_test_photos=photos,
        )
        bundle = measure(write_manifest(folder, manifest), models, export, beside)
        bundle = with_self_test(bundle, encoder, models)
        if export.head_only:
            bundle = _without_encoder(bundle)
        return put_in_place(folder, out, Path(temporary))


def feature_space(program: TorchProgram, preprocessing: Preprocessing, precision: str, recipe: str = "") -> str:
    """Identity of the features of an encoder artifact: weights and architecture, preprocessing, precision, recipe."""
    contract = msgspec.json.encode(preprocessing, order="deterministic").decode()
    return hashlib.sha256(f"{program.identity}\n{contract}\n{precision}\n{recipe}".encode()).hexdigest()


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


@dataclass(frozen=True)
class Job:
    """One program for one target."""

    folder: Path
    name: str
    program: TorchProgram
    head: str
    checkpoint: Checkpoint

    @property
    def needs_ranges(self) -> bool:
        target, precision = find_target(self.name)
        return precision == "int8" and target.RUNTIME != "coreml"  # Core ML's int8 is of weights alone

    @property
    def beside(self) -> bool:
        # Half of the work: ExecuTorch takes as long for a head as ONNX does for everything.
        return self.name.startswith("coreml") or (self.name.startswith("executorch") and self.program.role == "encoder")

    def settings(self, export: Export, calibration: Calibration | None) -> Settings:
        rows = calibration.inputs_of(self.program) if calibration and self.needs_ranges else ()
        return Settings(find_target(self.name)[1], export.opset, rows)

    @property
    def path(self) -> Path:
        target, precision = find_target(self.name)
        stem = self.head or "encoder"
        if self.program.apart or self.program.personal:  # a folder: the program and its weights
            return self.folder / f"{stem}-{self.name.replace(':', '-')}"
        default = f"{stem}-{precision}{target.SUFFIX}"
        named: Callable[[str, str], str] = getattr(target, "file_name", lambda stem, precision: default)
        return self.folder / named(stem, precision)


def _start(beside: WorkerProcess, jobs: list[Job], export: Export, calibration: Calibration | None) -> None:
    for job in jobs:
        if job.beside:
            settings = job.settings(export, calibration)
            beside.start(job.checkpoint, job.program.role, job.name, settings, job.path)


def _write_all(
    jobs: list[Job],
    beside: WorkerProcess,
    preprocessing: Preprocessing,
    export: Export,
    calibration: Calibration | None,
) -> list[Artifact]:
    """Every program for every target; one capture each.

    What runs beside is waited for last, and what it has not begun by then is taken back.
    """
    written: dict[tuple[str, str], Written] = {}

    def write_here(some: Iterable[Job]) -> None:
        for program, of_program in itertools.groupby(some, key=lambda job: job.program):
            free, captured = capture_freest(program.probed or program)
            for job in of_program:
                export.say(f"{job.head or 'encoder'}: {job.name}")
                target, _ = find_target(job.name)
                found = target.write(free, captured, job.settings(export, calibration), job.path)
                if found.personal is not None:
                    fill(job.path, found.personal, program.personal)
                written[job.head, job.name] = found

    write_here([job for job in jobs if job.path not in beside])
    write_here(job for job in reversed(jobs) if job.path in beside and beside.take_back(job.path))
    artifacts: list[Artifact] = []
    for job in jobs:
        if job.path in beside:
            export.say(f"{job.head or 'encoder'}: {job.name}")
            found = beside.finish(job.path, job.program)
        else:
            found = written[job.head, job.name]
        artifact = artifact_entry(job, found, export, calibration)
        spaces = [a.feature_space for a in artifacts if a.role == "encoder" and a.target == artifact.target]
        if job.program.role == "encoder":
            space = feature_space(job.program, preprocessing, artifact.precision, space_recipe(artifact))
            artifact = msgspec.structs.replace(artifact, feature_space=space)
        else:
            artifact = msgspec.structs.replace(artifact, accepts=tuple(filter(None, spaces)))
        artifacts.append(_with_defaults(artifact, job))
    return artifacts


def _with_defaults(artifact: Artifact, job: Job) -> Artifact:
    """Writes what the program is given of a person who has nothing, once for all targets."""
    if not job.program.defaults:
        return artifact
    path = job.folder / f"{job.head or 'encoder'}.defaults.safetensors"
    tensors = {name: value.detach().contiguous().numpy() for name, value in job.program.defaults.items()}
    path.write_bytes(b"".join(encode_tensors(tensors)))
    defaults = Defaults(file=path.name, sha256=file_sha256(path), size_bytes=path.stat().st_size)
    return msgspec.structs.replace(artifact, defaults=defaults)


def space_recipe(artifact: Artifact) -> str:
    """fp32 features are shared by all runtimes that were measured here; others belong to the runtime that made them."""
    if artifact.precision == "fp32" and not artifact.parity_note:
        return ""
    return f"{artifact.runtime}\n{artifact.recipe.get('int8', '')}\n{artifact.calibration or ''}"


def artifact_entry(job: Job, written: Written, export: Export, calibration: Calibration | None) -> Artifact:
    target, precision = find_target(job.name)
    fallbacks = written.placement.fallbacks if written.placement else {}
    if export.full_delegation and fallbacks:
        raise ExportError(
            f"--require-full-delegation: {job.head or 'encoder'} for {job.name} leaves "
            + "; ".join(f"{operator} ({reason})" for operator, reason in fallbacks.items())
        )
    digest, size = tree_sha256(job.path) if job.path.is_dir() else (file_sha256(job.path), job.path.stat().st_size)
    role = job.program.role
    return Artifact(
        role=role,
        runtime=target.RUNTIME,
        precision=precision,  # type: ignore[arg-type]  # find_target allows only the manifest's own values
        head=job.head,
        file=job.path.name,
        sha256=digest,
        size_bytes=size,
        inputs=written.program.inputs,
        outputs=written.program.outputs,
        min_runtime_version=target.min_runtime_version(job.settings(export, None)),
        producer=written.producer,
        parts_bytes=job.program.parts_bytes(precision),
        placement=written.placement,
        parity_note=written.parity_note,
        recipe=written.recipe,
        personal=written.personal,
        calibration=calibration.fingerprint if calibration and job.needs_ranges else None,
        # Settled by the caller, who knows all encoders.
        feature_space="0" * 64 if role == "encoder" else None,
        accepts=("0" * 64,) if role == "head" else (),
    )


def head_entry(model: Model) -> Head:
    card = model.checkpoint.card
    return Head(
        name=model.name,
        labels=card.labels,
        personalisation=Personalisation(**model.program.personalisation),
        state=model.program.state,
        training={**card.training, "checkpoint_sha256": card.sha256},
    )


def measure(bundle: Bundle, models: list[Model], export: Export, beside: WorkerProcess) -> Bundle:
    """Parity of every artifact that can run here, measured through edge; of fp32 runtimes also with mixed histories."""
    measured = {(a.head, a.target): a for a in bundle.manifest.artifacts}
    passes: list[tuple[Model, list[tuple[str, str]]]] = []
    for model in models:
        runnable = [t for t in bundle.targets(model.name) if not measured["", ":".join(t)].parity_note]
        passes += [(model, [target]) for target in runnable]
        shared = [t for t in runnable if t[1] == "fp32"]
        if len(shared) > 1:
            passes.append((model, shared))
    for model, targets in passes:
        export.say(f"parity: {model.name} {' and '.join(map(':'.join, targets))}")
    deviations = beside.share(compare, [(bundle, targets, model.reference, model.name) for model, targets in passes])
    for (model, targets), deviation in zip(passes, deviations, strict=True):
        if len(targets) > 1:
            what = f"{model.name} on histories of {' and '.join(runtime for runtime, _ in targets)} mixed"
            judge("head", deviation, "fp32", what, export.allow_mismatch)
            continue
        [(runtime, precision)] = targets
        for role, head in (("encoder", ""), ("head", model.name)):
            key = head, f"{runtime}:{precision}"
            what = f"{head or role} {role if head else ''}".strip() + f" for {runtime}:{precision}"
            parity = judge(role, deviation, precision, what, export.allow_mismatch)
            measured[key] = msgspec.structs.replace(measured[key], parity=_worse(measured[key].parity, parity))
    return write_manifest(bundle.folder, msgspec.structs.replace(bundle.manifest, artifacts=tuple(measured.values())))


def _worse(one: Parity | None, other: Parity) -> Parity:
    return one if one is not None and one.max_abs > other.max_abs else other


def make_self_test_photos(folder: Path, streams: Streams) -> tuple[SelfTestPhoto, ...]:
    """The start of the first person's stream."""
    (folder / "self-test").mkdir()
    rows = []
    for number, (path, content) in enumerate(
        itertools.islice(distinct(next(iter(streams.values()))), SELF_TEST_PHOTOS)
    ):
        suffix = path.suffix.lower() if path.suffix[1:].isalnum() and path.suffix.isascii() else ""
        file = f"self-test/{number:02d}{suffix}"
        (folder / file).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        rows.append(SelfTestPhoto(file=file, sha256=digest, size_bytes=len(content)))
    return tuple(rows)


def with_self_test(bundle: Bundle, encoder: TorchProgram, models: list[Model]) -> Bundle:
    """Adds the expected answers, of PyTorch and of every target that runs here, and runs the self-test."""
    artifacts = {(a.head, a.target): a for a in bundle.manifest.artifacts}
    heads = []
    for model, head in zip(models, bundle.manifest.heads, strict=True):
        eager = EagerRecognizer(encoder, model.program.definition or model.program)
        photos = [(bundle.folder / photo.file).read_bytes() for photo in bundle.manifest.self_test_photos]
        answers: dict[str, tuple[SelfTestAnswer, ...]] = {
            EAGER: tuple(expected_answer(head.labels, eager.recognize(p).outputs["logits"]) for p in photos)
        }
        for runtime, precision in bundle.targets(head.name):
            target = f"{runtime}:{precision}"
            if artifacts["", target].parity is not None:
                with Recognizer(bundle, None, runtime, precision, 1, head=head.name) as recognizer:
                    found = answer_all(bundle, recognizer)
                answers[target] = tuple(expected_answer(head.labels, answer.logits) for answer in found)
        tolerance = {precision: limit.self_test for precision, limit in TOLERANCES.items()}
        heads.append(msgspec.structs.replace(head, self_test=SelfTest(answers=answers, tolerance=tolerance)))
    done = write_manifest(bundle.folder, msgspec.structs.replace(bundle.manifest, heads=tuple(heads)))
    for row in check(done):
        if row.failures:
            raise ParityError(f"the bundle fails its own self-test: {row.head} {row.target}: {row.failures[0]}")
    return done


def _without_encoder(bundle: Bundle) -> Bundle:
    heads = tuple(a for a in bundle.manifest.artifacts if a.role == "head")
    kept = {file.partition("/")[0] for artifact in heads for file in _files(artifact)}
    for file in {file for artifact in bundle.manifest.artifacts for file in _files(artifact)} - kept:
        path = bundle.folder / file
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return write_manifest(bundle.folder, msgspec.structs.replace(bundle.manifest, artifacts=heads))


def _files(artifact: Artifact) -> list[str]:
    return [artifact.file, *([artifact.defaults.file] if artifact.defaults is not None else [])]
