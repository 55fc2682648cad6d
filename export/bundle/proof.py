"""Proof that a bundle is right: parity of its programs, measured by the device's own code, and its self-test."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from refocus.edge.bundle import (
    EAGER,
    SCHEMA_VERSION,
    Artifact,
    Bundle,
    Head,
    Manifest,
    Parity,
    Personalisation,
    SelfTest,
    SelfTestAnswer,
    SelfTestPhoto,
    write_manifest,
)
from refocus.edge.recognize import Recognizer, answer_all, check, expected_answer
from refocus.export.bundle.artifacts import Export
from refocus.export.bundle.worker_process import WorkerProcess
from refocus.export.errors import ExportError, ParityError
from refocus.export.parity.parity import TOLERANCES, Deviation, Reference, compare, evaluate
from refocus.export.parity.photos import Streams, distinct
from refocus.export.program.checkpoint import Checkpoint
from refocus.export.program.eager_recognizer import EagerRecognizer
from refocus.export.program.program import TorchProgram

SELF_TEST_PHOTOS = 8


@dataclass(frozen=True)
class Model:
    """A head with its checkpoint and eager PyTorch's answers."""

    name: str
    checkpoint: Checkpoint
    program: TorchProgram
    reference: Reference

    def entry(self) -> Head:
        """The head in the manifest."""
        card = self.checkpoint.card
        return Head(
            name=self.name,
            labels=card.labels,
            personalisation=Personalisation(**self.program.personalisation),
            state=self.program.state,
            training={**card.training, "checkpoint_sha256": card.sha256},
        )


def prove(
    folder: Path,
    name: str,
    artifacts: Sequence[Artifact],
    encoder: TorchProgram,
    models: Sequence[Model],
    export: Export,
    streams: Streams,
    worker: WorkerProcess,
) -> Bundle:
    """Writes the manifest of programs that are written, with their measured parity and the self-test.

    Args:
        encoder: of eager PyTorch, as the models are.

    Raises:
        ParityError: a program does not compute what PyTorch computes.
    """
    if encoder.preprocessing is None:
        raise ExportError("the encoder states no preprocessing")
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name=name,
        preprocessing=encoder.preprocessing,
        artifacts=tuple(artifacts),
        heads=tuple(model.entry() for model in models),
        self_test_photos=make_self_test_photos(folder, streams),
    )
    bundle = measure(write_manifest(folder, manifest), models, export, worker)
    return with_self_test(bundle, encoder, models)


def measure(bundle: Bundle, models: Sequence[Model], export: Export, worker: WorkerProcess) -> Bundle:
    """Parity of every artifact that can run here, measured through edge; of fp32 runtimes also with mixed histories.

    Raises:
        ParityError: a program does not compute what PyTorch computes.
    """
    measured = {(a.head, a.target): a for a in bundle.manifest.artifacts}
    passes: list[tuple[Model, list[tuple[str, str]]]] = []
    for model in models:
        runnable = [t for t in bundle.targets(model.name) if not measured["", ":".join(t)].parity_note]
        passes += [(model, [target]) for target in runnable]
        shared = fp32_targets(bundle, model.name)
        if len(shared) > 1:
            passes.append((model, shared))
    for model, targets in passes:
        export.say(f"parity: {model.name} {' and '.join(map(':'.join, targets))}")
    deviations = worker.share(compare, [(bundle, targets, model.reference, model.name) for model, targets in passes])
    for (model, targets), deviation in zip(passes, deviations, strict=True):
        if len(deviation.right):
            before, after = deviation.right.mean(0)
            where = " and ".join(map(":".join, targets))
            export.say(f"top-1 of {len(deviation.right)} labelled photos: PyTorch {before:.1%}, {where} {after:.1%}")
        if len(targets) > 1:
            evaluate_mixed(model.name, targets, deviation, export.allow_mismatch)
            continue
        [(runtime, precision)] = targets
        for role, head in (("encoder", ""), ("head", model.name)):
            key = head, f"{runtime}:{precision}"
            what = f"{head or role} {role if head else ''}".strip() + f" for {runtime}:{precision}"
            parity = evaluate(role, deviation, precision, what, export.allow_mismatch)
            measured[key] = msgspec.structs.replace(measured[key], parity=_worse(measured[key].parity, parity))
    return write_manifest(bundle.folder, msgspec.structs.replace(bundle.manifest, artifacts=tuple(measured.values())))


def fp32_targets(bundle: Bundle, head: str) -> list[tuple[str, str]]:
    """Targets that run here and share one feature space."""
    notes = {a.target: a.parity_note for a in bundle.manifest.artifacts if a.role == "encoder"}
    return [target for target in bundle.targets(head) if target[1] == "fp32" and not notes[":".join(target)]]


def evaluate_mixed(head: str, targets: Sequence[tuple[str, str]], deviation: Deviation, allow: bool = False) -> None:
    """Raises ParityError if histories of one runtime are not met by another as its own are."""
    runtimes = " and ".join(runtime for runtime, _ in targets)
    evaluate("head", deviation, "fp32", f"{head} on histories of {runtimes} mixed", allow)


def _worse(one: Parity | None, other: Parity) -> Parity:
    return one if one is not None and one.max_abs > other.max_abs else other


# ---- the self-test


def make_self_test_photos(folder: Path, streams: Streams) -> tuple[SelfTestPhoto, ...]:
    """The start of the first person's stream."""
    (folder / "self-test").mkdir()
    rows = []
    first = itertools.islice(distinct(next(iter(streams.values()))), SELF_TEST_PHOTOS)
    for number, (path, content) in enumerate(first):
        suffix = path.suffix.lower() if path.suffix[1:].isalnum() and path.suffix.isascii() else ""
        file = f"self-test/{number:02d}{suffix}"
        (folder / file).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        rows.append(SelfTestPhoto(file=file, sha256=digest, size_bytes=len(content)))
    return tuple(rows)


def with_self_test(bundle: Bundle, encoder: TorchProgram, models: Sequence[Model]) -> Bundle:
    """Adds the expected answers, of PyTorch and of every target that runs here, and runs the self-test.

    Raises:
        ParityError: a target does not answer as it did a moment ago.
    """
    artifacts = {(a.head, a.target): a for a in bundle.manifest.artifacts}
    tolerance = {precision: limit.self_test for precision, limit in TOLERANCES.items()}
    heads = []
    for model, head in zip(models, bundle.manifest.heads, strict=True):
        eager = EagerRecognizer(encoder, model.program.definition or model.program)
        photos = [(bundle.folder / photo.file).read_bytes() for photo in bundle.manifest.self_test_photos]
        answers: dict[str, tuple[SelfTestAnswer, ...]] = {
            EAGER: tuple(expected_answer(head.labels, eager.recognize(p).outputs["logits"]) for p in photos)
        }
        for target in bundle.targets(head.name):
            if artifacts["", ":".join(target)].parity is not None:
                with Recognizer(bundle, None, *target, 1, head=head.name) as recognizer:
                    found = answer_all(bundle, recognizer)
                answers[":".join(target)] = tuple(expected_answer(head.labels, answer.logits) for answer in found)
        heads.append(msgspec.structs.replace(head, self_test=SelfTest(answers=answers, tolerance=tolerance)))
    done = write_manifest(bundle.folder, msgspec.structs.replace(bundle.manifest, heads=tuple(heads)))
    require_self_test(done)
    return done


def require_self_test(bundle: Bundle) -> None:
    """Raises ParityError if the bundle fails its own self-test."""
    for row in check(bundle):
        if row.failures:
            raise ParityError(f"the bundle fails its own self-test: {row.head} {row.target}: {row.failures[0]}")
