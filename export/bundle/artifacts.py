"""The programs of a bundle: where each one is written, and the manifest's entry of what was written."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch

from refocus.edge.bundle import ALIASES, Artifact, Defaults, Preprocessing, encode_tensors, tree_sha256
from refocus.edge.files import file_sha256
from refocus.export.errors import ExportError
from refocus.export.parity.calibration import Calibration
from refocus.export.parity.limits import Limits
from refocus.export.parity.photos import Streams
from refocus.export.program.checkpoint import Checkpoint
from refocus.export.program.program import TorchProgram
from refocus.export.targets import DEFAULT_OPSET, QUANTISATION, Settings, Written, find_target, needs_ranges
from refocus.export.targets.external_weights import fill


@dataclass(frozen=True)
class Export:
    """What is asked of an export.

    Attributes:
        targets: as ``onnx:fp32``; old names of precisions are taken too.
        opset: of ONNX files.
        calibration: photos that fix the ranges of quantised activations, one stream per person.
        head_only: leave the encoder out of the bundle; it is still exported to measure the head.
        allow_mismatch: write a bundle that failed parity, marked as such.
        full_delegation: fail where an operator falls back.
        say: is told what is being done.
        partial: go on with the other targets where one fails; otherwise the first failure ends the export.
        limits: of parity, in the place of the table's (:mod:`refocus.export.parity.limits`).
        shares: have devices estimate which classes a person meets, where something calibrates it.
    """

    targets: Sequence[str]
    opset: int = DEFAULT_OPSET
    calibration: Streams | None = None
    head_only: bool = False
    allow_mismatch: bool = False
    full_delegation: bool = False
    say: Callable[[str], object] = field(default=lambda line: None)
    partial: bool = False
    limits: Limits = field(default_factory=dict)
    shares: bool = False


def heads_alone(name: str) -> bool:
    """Whether a target writes heads alone, which serve behind the encoders of other targets."""
    return bool(getattr(find_target(name)[0], "HEADS_ALONE", False))


@dataclass(frozen=True)
class Job:
    """One program for one target.

    Attributes:
        name: the target, as ``onnx:fp32``.
        head: name of the head; "" for the encoder.
    """

    folder: Path
    name: str
    program: TorchProgram
    head: str
    checkpoint: Checkpoint

    @property
    def title(self) -> str:
        return self.head or "encoder"

    @property
    def needs_ranges(self) -> bool:
        return not self.program.source and needs_ranges(self.name)

    @property
    def in_worker(self) -> bool:
        """Whether the second process writes it: half of the work. ExecuTorch takes as long as ONNX for everything."""
        slow = self.name.startswith("coreml") or (self.name.startswith("executorch") and self.program.role == "encoder")
        return slow and self.checkpoint.on_disk and not self.program.source

    def settings(self, export: Export, calibration: Calibration | None) -> Settings:
        rows = calibration.inputs[self.program.identity] if calibration and self.needs_ranges else ()
        return Settings(find_target(self.name)[1], export.opset, rows)

    @property
    def path(self) -> Path:
        target, precision = find_target(self.name)
        if self.program.external or self.program.personal:  # a folder: the program and its weights
            return self.folder / f"{self.title}-{self.name.replace(':', '-')}"
        default = f"{self.title}-{precision}{target.SUFFIX}"
        named: Callable[[str, str], str] = getattr(target, "file_name", lambda stem, precision: default)
        return self.folder / named(self.title, precision)


Captured = tuple[TorchProgram, torch.export.ExportedProgram]


def write_program(program: TorchProgram, captured: Captured, name: str, settings: Settings, path: Path) -> Written:
    """Writes a program for a target, each person's tensors as they are for somebody who has none.

    Args:
        captured: the program, or the one with probes in the place of these tensors, with the shapes of its capture.
    """
    written = find_target(name)[0].write(*captured, settings, path)
    if written.personal is not None:
        fill(path, written.personal, program.personal)
    return written


def artifact_entry(
    job: Job,
    written: Written,
    export: Export,
    calibration: Calibration | None,
    preprocessing: Preprocessing,
    before: Sequence[Artifact],
) -> Artifact:
    """The manifest's entry of a program that was written.

    Args:
        before: entries of the programs written earlier, the encoders' among them: a head accepts their features.

    Raises:
        ExportError: operators fall back where that was forbidden.
    """
    target, precision = find_target(job.name)
    fallbacks = written.placement.fallbacks if written.placement else {}
    if export.full_delegation and fallbacks:
        raise ExportError(
            f"--require-full-delegation: {job.title} for {job.name} leaves "
            + "; ".join(f"{operator} ({reason})" for operator, reason in fallbacks.items())
        )
    digest, size = tree_sha256(job.path) if job.path.is_dir() else (file_sha256(job.path), job.path.stat().st_size)
    role, fingerprint = job.program.role, calibration.fingerprint if calibration and job.needs_ranges else None
    space, accepts = None, tuple[str, ...]()
    if role == "encoder":
        # fp32 features are shared by all runtimes that were measured here; others belong to the runtime that made them.
        shared = precision == "fp32" and not written.parity_note
        recipe = "" if shared else f"{target.RUNTIME}\n{written.recipe.get(QUANTISATION, '')}\n{fingerprint or ''}"
        space = feature_space(job.program, preprocessing, precision, recipe)
    else:
        alone = heads_alone(job.name)
        encoders = (
            a
            for a in before
            if a.role == "encoder" and (alone or (a.runtime, a.precision) == (target.RUNTIME, precision))
        )
        accepts = tuple(dict.fromkeys(a.feature_space for a in encoders if a.feature_space))
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
        parts_bytes={} if role == "head" and heads_alone(job.name) else job.program.parts_bytes(precision),
        **{name: getattr(written, name) for name in ("producer", "placement", "parity_note", "recipe", "personal")},
        calibration=fingerprint,
        feature_space=space,
        accepts=accepts,
        defaults=_defaults(job),
    )


def feature_space(program: TorchProgram, preprocessing: Preprocessing, precision: str, recipe: str = "") -> str:
    """Identity of the features of an encoder artifact: weights and architecture, preprocessing, precision, recipe."""
    contract = msgspec.json.encode(preprocessing, order="deterministic").decode()
    # By the name that 0.1 had for it: people's stored features stay usable when the same model is exported again.
    named = next((old for old, names in ALIASES.items() if precision in names), precision)
    return hashlib.sha256(f"{program.identity}\n{contract}\n{named}\n{recipe}".encode()).hexdigest()


def _defaults(job: Job) -> Defaults | None:
    """Writes what the program is given of a person who has nothing, once for all targets."""
    return tensor_file(job.folder / f"{job.title}.defaults.safetensors", job.program.defaults)


def tensor_file(path: Path, tensors: Mapping[str, torch.Tensor]) -> Defaults | None:
    """Writes tensors beside the programs; None where there are none."""
    if not tensors:
        return None
    arrays = {name: value.detach().contiguous().numpy() for name, value in tensors.items()}
    path.write_bytes(b"".join(encode_tensors(arrays)))
    return Defaults(file=path.name, sha256=file_sha256(path), size_bytes=path.stat().st_size)


def exported_before(program: TorchProgram, name: str) -> Artifact | None:
    """What the bundle that a program comes from says of it for a target; None: it is to be written.

    Raises:
        ExportError: that bundle has none for the target.
    """
    if program.source is None:
        return None
    target, precision = find_target(name)
    has = {a.target: a for a in program.source.manifest.artifacts if a.role == program.role}
    found = has.get(f"{target.RUNTIME}:{precision}")
    if found is None:
        raise ExportError(
            f"--to {name}: the {program.role} is that of the bundle that training began with, which has"
            f" {', '.join(has)}; export the network for {name} too, and train from that bundle"
        )
    return found


def reused(job: Job) -> Artifact | None:
    """Copies a program that was written and measured before; None: it is to be written."""
    found, source = exported_before(job.program, job.name), job.program.source
    if found is None or source is None:
        return None
    for listed in (found, found.defaults):
        if listed is not None and not (job.folder / listed.file).exists():
            copy = shutil.copytree if (source.folder / listed.file).is_dir() else shutil.copyfile
            copy(source.folder / listed.file, job.folder / listed.file)
    return found
