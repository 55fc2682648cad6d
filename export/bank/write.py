"""Writing a bank: the generic model as an ordinary bundle, with everything that personal models are condensed from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from refocus.edge.bundle import (
    Artifact,
    BankCard,
    Bundle,
    Column,
    Preprocessing,
    SelfImprovementBy,
    WeightFile,
    encode_tensors,
    find_named_target,
    tree_sha256,
    write_manifest,
)
from refocus.edge.files import replaced
from refocus.edge.taper import ROWS, WORDS, MixedNetwork, write_weights
from refocus.export.bank.batchnorm_folding import find_folds, folded_structure, kept_norms
from refocus.export.bundle.artifacts import Export, Job, artifact_entry, write_program
from refocus.export.bundle.attempt import Attempt, Exported
from refocus.export.bundle.proof import Model, prove
from refocus.export.bundle.worker_process import WorkerProcess
from refocus.export.bundle.write import build
from refocus.export.errors import ExportError
from refocus.export.parity.parity import Reference
from refocus.export.parity.photos import Streams
from refocus.export.program.capture import capture_freest
from refocus.export.program.checkpoint import Checkpoint
from refocus.export.program.network import OwnClassifier
from refocus.export.program.program import TorchProgram, head_without_history, photo_encoder
from refocus.export.targets import canonical, needs_ranges, refused
from refocus.export.targets.external_weights import fill_with_probes

BANKS_GROUP = "refocus.banks"
BANK_TARGETS = ("onnx:fp32", "onnx:fp16", "onnx:w8", "executorch:fp32")
FOLDER = "bank"
_OF_SOURCE = ("classifier", "domains", "text_encoder", "prompts", "self_improvement")  # that the card has as they are


@dataclass(frozen=True)
class BankSource:
    """What the builder of a bank gives.

    Attributes:
        network: with the generic weights, in eval mode.
        encoder: wraps a network into what turns photos (B, 3, S, S) into features (B, ``row``).
        classifier: name of the network's last layer, an ``nn.Linear`` of the first ``width`` numbers of a feature.
        columns: of ``generic`` and ``rows``, in any order that has no gaps.
        generic, rows: (n,) and (Q, n).
        words: weights of the mixer predictor by name, as :func:`refocus.edge.taper.weight_mixing.predict_mixers`
            takes them, and
            ``descriptions`` (domains, C, E).
        self_improvement: what owners without a task description get (:class:`BankCard`).
    """

    network: nn.Module
    encoder: Callable[[nn.Module], nn.Module]
    classifier: str
    width: int
    row: int
    preprocessing: Preprocessing
    columns: tuple[Column, ...]
    generic: Tensor
    rows: Tensor
    words: dict[str, Tensor]
    domains: tuple[str, ...]
    text_encoder: str
    prompts: tuple[str, ...]
    self_improvement: SelfImprovementBy = "networks"


def builder_of(checkpoint: Checkpoint) -> Callable[[Checkpoint], BankSource] | None:
    """The builder of a bank's checkpoint; None where it is of something else."""
    found = [entry for entry in entry_points(group=BANKS_GROUP) if entry.name == checkpoint.card.builder]
    return found[0].load() if found else None


def read_source(checkpoint: Checkpoint) -> BankSource:
    """What a checkpoint's builder makes of it.

    Raises:
        ExportError: it holds no bank.
    """
    build = builder_of(checkpoint)
    if build is None:
        raise ExportError(f"{checkpoint.path} holds no bank; train one with refocus train taper")
    return build(checkpoint)


def export_bank(checkpoint: Checkpoint, out: Path, export: Export, streams: Streams, name: str = "") -> Bundle:
    """As :func:`export_bank_targets`, all targets or none: the first failure ends the export."""
    return export_bank_targets(checkpoint, out, replace(export, partial=False), streams, name).bundle


def export_bank_targets(
    checkpoint: Checkpoint, out: Path, export: Export, streams: Streams, name: str = ""
) -> Exported:
    """Exports the generic model and its bank; as careful as :func:`refocus.export.bundle.write.export_targets`.

    Raises:
        ExportError: the flags or the network do not allow it.
        ParityError: a program, with the generic weights in its weight file, does not compute what PyTorch computes.
    """
    source = read_source(checkpoint)
    Bundle.check_replaceable(out)
    attempt = Attempt(_check_flags(export), export.partial)
    title = name or checkpoint.path.stem

    def write(folder: Path) -> None:
        encoder, head = _programs(checkpoint, source, source.network)
        folds = find_folds(source.network)
        columns = _in_order(source)
        _save_rows(folder / FOLDER, source, columns)
        digest, size = tree_sha256(folder / FOLDER)
        card = BankCard(
            file=FOLDER,
            sha256=digest,
            size_bytes=size,
            bases=len(source.rows),
            mixers=1 + max(column.mixer for column in source.columns),
            columns=tuple(columns.values()),
            folds=folds,
            weight_files=(),
            **{name: getattr(source, name) for name in _OF_SOURCE},
        )
        generic = MixedNetwork(card, _ordered(source, columns, source.generic[None]), np.ones((card.mixers, 1)))
        network = folded_structure(source.network, folds)
        artifacts, files = _artifacts(folder, checkpoint, source, network, generic, export, attempt)
        models = [Model(checkpoint.path.stem, checkpoint, head, Reference(encoder, head, streams))]
        with WorkerProcess() as worker:
            bundle = prove(folder, title, artifacts, encoder, models, export, streams, worker, attempt, (FOLDER,))
        left = {artifact.file for artifact in bundle.manifest.artifacts}
        card = msgspec.structs.replace(card, weight_files=tuple(file for file in files if file.artifact in left))
        write_manifest(folder, msgspec.structs.replace(bundle.manifest, bank=card))

    bundle = build(out, write)
    return Exported(bundle, attempt.outcomes(bundle))


def _check_flags(export: Export) -> list[str]:
    """The targets by their present names."""
    targets = [find_named_target(name, BANK_TARGETS) if ":" in name else canonical(name) for name in export.targets]
    for name, found in zip(export.targets, targets, strict=True):
        if found not in BANK_TARGETS:
            asked = canonical(name)
            ranges = " (calibrated ranges are those of one network's activations, and all tasks share the program)"
            raise refused(asked, BANK_TARGETS, "a bank", ranges if needs_ranges(asked) else "")
    if export.head_only:
        raise ExportError("--head-only: a personal model has an encoder of its own; leave the flag out")
    return targets


def _in_order(source: BankSource) -> dict[str, Column]:
    """The columns as the bank has them: vectors first, which are needed before any block can be folded."""
    columns, start = {}, 0
    for column in sorted(source.columns, key=lambda column: (len(column.shape) > 1, column.start)):
        stop = start + column.stop - column.start
        columns[column.name] = msgspec.structs.replace(column, start=start, stop=stop)
        start = stop
    return columns


def _ordered(source: BankSource, columns: dict[str, Column], rows: Tensor) -> np.ndarray:
    given, ordered = rows.numpy(), np.empty(rows.shape, dtype="<f4")
    for old in source.columns:
        new = columns[old.name]
        ordered[:, new.start : new.stop] = given[:, old.start : old.stop]
    return ordered


def _save_rows(folder: Path, source: BankSource, columns: dict[str, Column]) -> None:
    folder.mkdir()
    _ordered(source, columns, source.rows).tofile(folder / ROWS)
    with (folder / WORDS).open("wb") as stream:
        stream.writelines(encode_tensors({name: value.numpy() for name, value in source.words.items()}))


def _artifacts(
    folder: Path,
    checkpoint: Checkpoint,
    source: BankSource,
    network: nn.Module,
    generic: MixedNetwork,
    export: Export,
    attempt: Attempt,
) -> tuple[list[Artifact], list[WeightFile]]:
    """Writes both programs for every target, with the generic weights in their weight files."""
    artifacts: list[Artifact] = []
    files: list[WeightFile] = []
    name = checkpoint.path.stem
    encoder, head = _programs(checkpoint, source, network)
    fill_with_probes(network)
    of_head = {f"{source.classifier}.{kind}": f"layer.{kind}" for kind in ("weight", "bias")}
    of_encoder = {n: f"{_prefix(encoder.module, network)}{n}" for n in generic.names if n not in of_head}
    for program, names, stem in ((encoder, of_encoder, ""), (head, of_head, name)):
        # In the bank's order, so that a weight file is filled by one pass over the bank.
        external = {names[placed]: placed for placed in generic.names if placed in names}
        captured = capture_freest(replace(program, external=external))
        for target in attempt.left:
            with attempt.trying(target):
                job = Job(folder, target, captured[0], stem, checkpoint)
                export.say(f"{job.title}: {target}")
                if target.startswith("executorch"):
                    _check_no_norms(captured[0])
                written = write_program(program, captured, target, job.settings(export, None), job.path)
                file = WeightFile(artifact=job.path.name, file=written.weights[0], tensors=written.weights[1])
                _fill(folder, file, generic)
                files.append(file)
                artifacts.append(artifact_entry(job, written, export, None, source.preprocessing, artifacts))
    attempt.require_one()
    return list(attempt.artifacts_left(artifacts)), files


def _fill(folder: Path, file: WeightFile, network: MixedNetwork) -> None:
    """Puts a network's weights where the probes are, by the code that a device condenses with."""
    path = folder / file.artifact / file.file
    with replaced(path) as filled:
        write_weights(network, file, memoryview(path.read_bytes()), filled)


def _check_no_norms(program: TorchProgram) -> None:
    norms = kept_norms(program.module)
    if norms:
        raise ExportError(
            f"the {program.role} for executorch: the batch norm {norms[0]} is not behind a convolution of its own, and"
            " XNNPACK would fold it into numbers that no personal model can replace; leave this target out"
        )


def _programs(checkpoint: Checkpoint, source: BankSource, network: nn.Module) -> tuple[TorchProgram, TorchProgram]:
    """Encoder and head of a network in the shape of the source's."""
    classes, identity = len(checkpoint.card.labels), checkpoint.identity
    classifier = network.get_submodule(source.classifier)
    if not isinstance(classifier, nn.Linear):
        raise ExportError(
            f"the classifier {source.classifier} is not a linear layer; banks of such networks have no export"
        )
    if classifier.bias is None:  # which masks the classes that are not in a task
        classifier.bias = nn.Parameter(torch.zeros(classifier.out_features))
    method, parts = {"method": "taper", "carrier": "weights"}, {"plain_classifier": classifier}
    head = head_without_history(OwnClassifier(classifier), classes, source.row, identity, method, parts=parts)
    return photo_encoder(source.encoder(network), source.preprocessing, source.row, identity), head


def _prefix(module: nn.Module, network: nn.Module) -> str:
    return next(f"{name}." for name, inner in module.named_modules() if inner is network)
