"""Proof that a bundle is right: parity of its programs, measured by the device's own code, and its self-test."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
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
from refocus.edge.recognize import Recognizer, answer_all, check, expected_answer, head_targets
from refocus.export.bundle.artifacts import Export, tensor_file
from refocus.export.bundle.attempt import Attempt, runtime_target
from refocus.export.bundle.class_shares import FEWEST_LABELLED, labelled_photos, with_shares
from refocus.export.bundle.rejection import with_rejection
from refocus.export.bundle.worker_process import WorkerProcess
from refocus.export.errors import ExportError, ParityError
from refocus.export.parity.limits import limit_for
from refocus.export.parity.parity import TOLERANCES, Deviation, Reference, Tolerance, compare, evaluate
from refocus.export.parity.photos import Streams, distinct
from refocus.export.program.checkpoint import Checkpoint
from refocus.export.program.eager_recognizer import EagerRecognizer
from refocus.export.program.program import TorchProgram

SELF_TEST_PHOTOS = 8
Target = tuple[str, ...]  # runtime and precision, and the target of the head where it is another


@dataclass(frozen=True)
class Model:
    """A head with its checkpoint and eager PyTorch's answers."""

    name: str
    checkpoint: Checkpoint
    program: TorchProgram
    reference: Reference

    def entry(self, folder: Path) -> Head:
        """The head in the manifest; a network's own classifier, which is on no disk, is written too."""
        card = self.checkpoint.card
        return Head(
            name=self.name,
            labels=card.labels,
            personalisation=Personalisation(**self.program.personalisation),
            state=self.program.state,
            training={**card.training, "checkpoint_sha256": card.sha256},
            classifier=None
            if self.checkpoint.on_disk
            else tensor_file(folder / f"{self.name}.classifier.safetensors", self.checkpoint.weights),
            thresholds=self.program.thresholds or msgspec.UNSET,
            taught_by=tensor_file(folder / f"{self.name}.taught-by.safetensors", self.checkpoint.taught_by()),
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
    attempt: Attempt,
    kept: Sequence[str] = (),
) -> Bundle:
    """Writes the manifest of programs that are written, with their measured parity and the self-test.

    Targets that fail are left out, if the attempt allows it.

    Args:
        encoder: of eager PyTorch, as the models are.
        kept: folders of the bundle that the manifest does not list yet.

    Raises:
        ParityError: a program, or every target's, does not compute what PyTorch computes.
    """
    if encoder.preprocessing is None:
        raise ExportError("the encoder states no preprocessing")
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name=name,
        preprocessing=encoder.preprocessing,
        artifacts=tuple(artifacts),
        heads=tuple(_entry(model, export, folder) for model in models),
        self_test_photos=tuple(make_self_test_photos(folder, streams)),
    )
    bundle = measure(write_manifest(folder, manifest), models, export, worker, attempt)
    bundle = with_self_test(bundle, encoder, models)
    for target, error in failed_self_tests(bundle).items():
        attempt.fail(attempt.target_of(target), error)
    attempt.require_one()
    left = attempt.artifacts_left(bundle.manifest.artifacts)
    if len(left) < len(bundle.manifest.artifacts):
        bundle = write_manifest(folder, msgspec.structs.replace(bundle.manifest, artifacts=left))
        bundle = with_self_test(bundle, encoder, models)
    remove_unlisted(bundle, kept)
    return bundle


def _entry(model: Model, export: Export, folder: Path) -> Head:
    entry = model.entry(folder)
    entry = with_shares(entry, model.reference, export.say) if export.shares else entry
    known = entry.training.get("calibration", {})
    if known and len(labelled_photos(entry, model.reference)) < FEWEST_LABELLED:
        scores = tuple(known["known_scores"])
        return msgspec.structs.replace(entry, rejection=scores[0], known_scores=scores)
    return with_rejection(entry, model.reference)


def remove_unlisted(bundle: Bundle, kept: Sequence[str] = ()) -> None:
    """Remove files that the manifest of a bundle does not list."""
    listed = {bundle.folder / file for file in bundle.files()}
    for path in sorted(bundle.folder.rglob("*"), reverse=True):  # what is in a folder before the folder
        if path.relative_to(bundle.folder).parts[0] in kept:
            continue
        if not path.is_dir() and path not in listed:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def measure(bundle: Bundle, models: Sequence[Model], export: Export, worker: WorkerProcess, attempt: Attempt) -> Bundle:
    """Parity of every artifact that can run here, measured through edge; of fp32 runtimes also with mixed histories.

    Raises:
        ParityError: a program, or every target's, does not compute what PyTorch computes.
    """
    measured = {(a.head, a.target): a for a in bundle.manifest.artifacts}
    passes: list[tuple[Model, list[Target]]] = []
    for model in models:
        runnable: list[Target] = [t for t in bundle.targets(model.name) if not measured["", ":".join(t)].parity_note]
        passes += [(model, [target]) for target in runnable]
        shared = fp32_targets(bundle, model.name)
        if len(shared) > 1:
            passes.append((model, shared))
    for model in models:  # native heads, each behind one encoder
        passes += [
            (model, [(*pair, target)])
            for pair, target in head_targets(bundle, model.name)
            if target != ":".join(pair)
            and not measured[model.name, target].parity_note
            and not measured["", ":".join(pair)].parity_note
        ]
    for model, targets in passes:
        export.say(f"parity: {model.name} {' and '.join(map(':'.join, targets))}")
    deviations = worker.share(_compared, [(bundle, targets, model.reference, model.name) for model, targets in passes])
    mixed: list[tuple[Model, list[Target], Deviation | Exception]] = []
    for (model, targets), deviation in zip(passes, deviations, strict=True):
        if len(targets) > 1:
            mixed.append((model, targets, deviation))
            continue
        if len(targets[0]) == 3:
            _measure_native(measured, model, targets[0], deviation, export, attempt)
            continue
        runtime, precision = targets[0]
        name = attempt.target_of(f"{runtime}:{precision}") if _is_left(attempt, runtime, precision) else ""
        if not name:
            continue
        with attempt.trying(name):
            found = _found(export, model, targets, deviation)
            limit = limit_for(name, precision, export.limits)
            for role, head in (("encoder", ""), ("head", model.name)):
                key = head, f"{runtime}:{precision}"
                what = f"{head or role} {role if head else ''}".strip() + f" for {runtime}:{precision}"
                parity = evaluate(role, found, precision, what, export.allow_mismatch, limit, name)
                measured[key] = msgspec.structs.replace(measured[key], parity=_worse(measured[key].parity, parity))
    for model, targets, deviation in mixed:
        _measure_mixed(bundle, model, targets, deviation, export, attempt)
    attempt.require_one()
    left = attempt.artifacts_left(tuple(measured.values()))
    return write_manifest(bundle.folder, msgspec.structs.replace(bundle.manifest, artifacts=left))


def _measure_native(
    measured: dict[tuple[str, str], Artifact],
    model: Model,
    target: Sequence[str],
    deviation: Deviation | Exception,
    export: Export,
    attempt: Attempt,
) -> None:
    """A native head, measured behind the encoder of another target, by whose precision it is judged where that is less
    exact than its own."""
    encoder, head = target[1], target[2]
    if not _is_left(attempt, *head.split(":")):
        return
    name, precision = attempt.target_of(head), head.partition(":")[2]
    with attempt.trying(name):
        found = _found(export, model, [tuple(head.split(":"))], deviation)
        judged = max((precision, encoder), key=lambda p: TOLERANCES[p].self_test)
        limit = limit_for(name, judged, export.limits)
        what = f"{model.name} head for {head}"
        parity = evaluate("head", found, judged, what, export.allow_mismatch, limit, name)
        measured[model.name, head] = msgspec.structs.replace(measured[model.name, head], parity=parity)


def _measure_mixed(
    bundle: Bundle,
    model: Model,
    targets: Sequence[Target],
    deviation: Deviation | Exception,
    export: Export,
    attempt: Attempt,
) -> None:
    """Histories of several fp32 runtimes, where that of one is met by another; all but the first fail together."""
    left = [target for target in targets if _is_left(attempt, *target)]
    if len(left) < 2:
        return
    if len(left) < len(targets):  # it was measured with one that has failed since
        deviation = _compared(bundle, left, model.reference, model.name)
    try:
        found = _found(export, model, left, deviation)
        evaluate_mixed(model.name, left, found, export.allow_mismatch, limit_for("", "fp32", export.limits))
    except Exception as error:
        for target in left[1:]:
            attempt.fail(attempt.target_of(":".join(target)), error)


def _compared(bundle: Bundle, targets: Sequence[Target], reference: Reference, head: str) -> Deviation | Exception:
    """The comparison, or what ended it; the other process hands over either."""
    try:
        return compare(bundle, targets, reference, head)
    except Exception as error:
        return error


def _is_left(attempt: Attempt, runtime: str, precision: str) -> bool:
    return f"{runtime}:{precision}" in {runtime_target(target) for target in attempt.left}


def _found(export: Export, model: Model, targets: Sequence[Target], deviation: Deviation | Exception) -> Deviation:
    """Return the comparison, or raise what ended it."""
    if isinstance(deviation, Exception):
        raise deviation
    if len(deviation.right):
        before, after = deviation.right.mean(0)
        where = " and ".join(map(":".join, targets))
        what = "right labels" if model.program.thresholds else "top-1"
        export.say(f"{what} of {len(deviation.right)} labelled photos: PyTorch {before:.1%}, {where} {after:.1%}")
    return deviation


def fp32_targets(bundle: Bundle, head: str) -> list[Target]:
    """Targets that run here and share one feature space."""
    notes = {a.target: a.parity_note for a in bundle.manifest.artifacts if a.role == "encoder"}
    return [target for target in bundle.targets(head) if target[1] == "fp32" and not notes[":".join(target)]]


def evaluate_mixed(
    head: str,
    targets: Sequence[Target],
    deviation: Deviation,
    allow: bool = False,
    limit: Tolerance | None = None,
) -> None:
    """Raises ParityError if histories of one runtime are not met by another as its own are."""
    runtimes = " and ".join(target[0] for target in targets)
    evaluate("head", deviation, "fp32", f"{head} on histories of {runtimes} mixed", allow, limit)


def _worse(one: Parity | None, other: Parity) -> Parity:
    return one if one is not None and one.max_abs > other.max_abs else other


# ---- the self-test


def make_self_test_photos(folder: Path, streams: Streams) -> Iterator[SelfTestPhoto]:
    """The start of the first person's stream."""
    (folder / "self-test").mkdir()
    first = itertools.islice(distinct(next(iter(streams.values()))), SELF_TEST_PHOTOS)
    for number, (path, content) in enumerate(first):
        suffix = path.suffix.lower() if path.suffix[1:].isalnum() and path.suffix.isascii() else ""
        file = f"self-test/{number:02d}{suffix}"
        (folder / file).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        yield SelfTestPhoto(file=file, sha256=digest, size_bytes=len(content))


def with_self_test(bundle: Bundle, encoder: TorchProgram, models: Sequence[Model]) -> Bundle:
    """Adds the expected answers, of PyTorch and of every target that runs here."""
    artifacts = {(a.head, a.target): a for a in bundle.manifest.artifacts}
    tolerance = {precision: limit.self_test for precision, limit in TOLERANCES.items()}
    heads = []
    for model, head in zip(models, bundle.manifest.heads, strict=True):
        eager = EagerRecognizer(encoder, model.program.definition or model.program)
        photos = [(bundle.folder / photo.file).read_bytes() for photo in bundle.manifest.self_test_photos]
        answers: dict[str, tuple[SelfTestAnswer, ...]] = {
            EAGER: tuple(expected_answer(head.labels, eager.recognize(p).outputs["logits"]) for p in photos)
        }
        for pair, target in head_targets(bundle, head.name):
            own = artifacts["", target] if target == ":".join(pair) else artifacts[head.name, target]
            if own.parity is not None and artifacts["", ":".join(pair)].parity is not None:
                with Recognizer(bundle, None, *pair, 1, head.name, shares=False, head_target=target) as recognizer:
                    found = answer_all(bundle, recognizer)
                answers[target] = tuple(expected_answer(head.labels, answer.logits) for answer in found)
        heads.append(msgspec.structs.replace(head, self_test=SelfTest(answers=answers, tolerance=tolerance)))
    return write_manifest(bundle.folder, msgspec.structs.replace(bundle.manifest, heads=tuple(heads)))


def failed_self_tests(bundle: Bundle) -> dict[str, ParityError]:
    """By target, why it does not answer as it did a moment ago."""
    return {
        row.target: ParityError(f"the bundle fails its own self-test: {row.head} {row.target}: {row.failures[0]}")
        for row in check(bundle)
        if row.failures
    }


def require_self_test(bundle: Bundle) -> None:
    """Raises ParityError if the bundle fails its own self-test."""
    for error in failed_self_tests(bundle).values():
        raise error
