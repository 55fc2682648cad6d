"""Writing a bundle: export, measure through the device runtime, and only then put it in place."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from edge.bundle import MANIFEST, Bundle, load_bundle
from edge.manifest import (
    SCHEMA_VERSION,
    Artifact,
    Manifest,
    Personalisation,
    Preprocessing,
    SelfTest,
    SelfTestPhoto,
    encode_manifest,
)
from edge.recognizer import Recognizer, self_test
from export.capture import capture
from export.checkpoint import Checkpoint
from export.errors import ExportError, ParityError
from export.parity import REASON, TOLERANCE, Deviation, Streams, compare, distinct, judge
from export.placement import placement
from export.program import TorchProgram
from export.targets import find_target

SELF_TEST_PHOTOS = 8


@dataclass(frozen=True)
class _Written:
    """An artifact on disk, before it was measured."""

    target: str
    program: TorchProgram
    artifact: Artifact


def export_bundle(head_checkpoint: Checkpoint, out: Path, targets: Sequence[str], streams: Streams,
                  name: str = "") -> Bundle:  # fmt: skip
    """Exports a head and the encoder it was trained on.

    The bundle is built in a hidden folder beside ``out`` and renamed to it once every program passed parity and the
    self-test: a failed export leaves an earlier bundle untouched. Killed between the two renames that replace a bundle,
    the earlier one is in that hidden folder, as ``previous``.

    Args:
        head_checkpoint: the head; its card names the encoder.
        out: folder of the bundle; must not exist, or be a bundle, which is replaced.
        targets: as ``onnx:fp32``.
        streams: real photos, one stream per person.
        name: of the bundle; default: the checkpoint's file name.

    Raises:
        ExportError: the flags or the checkpoint do not allow it.
        ParityError: an artifact does not compute what PyTorch computes.
    """
    if out.exists() and not (out / MANIFEST).exists():
        raise ExportError(f"--out {out} exists and is not a bundle; choose another folder")
    encoder, head = head_checkpoint.required("encoder").program(), head_checkpoint.program()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        folder = Path(temporary) / "bundle"
        folder.mkdir()
        written = [row for target in targets for row in _write_target(target, encoder, head, folder)]
        manifest = _manifest(name or head_checkpoint.path.stem, head_checkpoint, encoder, head, written)
        manifest = _measure(folder, manifest, written, encoder, head, streams)
        _check_itself(folder, manifest, streams)
        if out.exists():
            shutil.move(out, Path(temporary) / "previous")
        shutil.move(folder, out)
    return load_bundle(out)


def feature_space(program: TorchProgram, preprocessing: Preprocessing, precision: str, recipe: str = "") -> str:
    """Identity of the features of an encoder artifact: weights and architecture, preprocessing, precision, recipe."""
    contract = msgspec.json.encode(preprocessing, order="deterministic").decode()
    return hashlib.sha256(f"{program.identity}\n{contract}\n{precision}\n{recipe}".encode()).hexdigest()


def _write_target(name: str, encoder: TorchProgram, head: TorchProgram, folder: Path) -> list[_Written]:
    target, precision = find_target(name)
    if encoder.preprocessing is None:
        raise ExportError("the encoder states no preprocessing")
    space = feature_space(encoder, encoder.preprocessing, precision)
    rows = []
    for program in (encoder, head):
        file = f"{program.role}-{precision}{target.SUFFIX}"
        producer = target.write(program, capture(program), precision, folder / file)
        content = (folder / file).read_bytes()
        artifact = Artifact(
            role=program.role,
            runtime=target.RUNTIME,
            precision=precision,  # type: ignore[arg-type]  # find_target allows only the manifest's own values
            file=file,
            sha256=hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
            inputs=program.inputs,
            outputs=program.outputs,
            min_runtime_version=target.MIN_RUNTIME_VERSION,
            producer=producer,
            parts_bytes=program.parts_bytes(),
            feature_space=space if program.role == "encoder" else None,
            accepts=(space,) if program.role == "head" else (),
        )
        rows.append(_Written(name, program, artifact))
    return rows


def _manifest(name: str, checkpoint: Checkpoint, encoder: TorchProgram, head: TorchProgram,
              written: list[_Written]) -> Manifest:  # fmt: skip
    if encoder.preprocessing is None:
        raise ExportError("the encoder states no preprocessing")
    return Manifest(
        schema_version=SCHEMA_VERSION,
        name=name,
        labels=checkpoint.card.labels,
        preprocessing=encoder.preprocessing,
        artifacts=tuple(row.artifact for row in written),
        personalisation=Personalisation(**head.personalisation),
        state=head.state,
        training={**checkpoint.card.training, "checkpoint_sha256": checkpoint.card.sha256},
    )


def _measure(folder: Path, manifest: Manifest, written: list[_Written], encoder: TorchProgram, head: TorchProgram,
             streams: Streams) -> Manifest:  # fmt: skip
    """Parity and placement of every artifact, measured through edge; returns the manifest that states them."""
    bundle = _save(folder, manifest)
    measured, deviations = [], {}
    for row in written:
        artifact = row.artifact
        key = artifact.runtime, artifact.precision
        if key not in deviations:
            deviations[key] = compare(bundle, *key, encoder, head, streams)
        values = _values(deviations[key], artifact.role)
        parity = judge(values, deviations[key], artifact.precision, len(streams), f"{row.target} {artifact.role}")
        placed = placement(folder / artifact.file, row.program)
        measured.append(msgspec.structs.replace(artifact, parity=parity, placement=placed))
    return msgspec.structs.replace(manifest, artifacts=tuple(measured))


def _values(deviation: Deviation, role: str) -> np.ndarray:
    return deviation.feature if role == "encoder" else deviation.head


def _check_itself(folder: Path, manifest: Manifest, streams: Streams) -> None:
    """Adds the self-test, the start of the first person's stream, and runs it."""
    photos = itertools.islice(distinct(next(iter(streams.values()))), SELF_TEST_PHOTOS)
    (folder / "self-test").mkdir()
    artifact = manifest.artifacts[0]
    bundle, rows = _save(folder, manifest), []
    with tempfile.TemporaryDirectory() as scratch, Recognizer(
        bundle, Path(scratch) / "profile.sqlite3", artifact.runtime, artifact.precision
    ) as recognizer:  # fmt: skip
        for number, (path, content) in enumerate(photos):
            file = f"self-test/{number:02d}{path.suffix.lower()}"
            (folder / file).write_bytes(content)
            answer = recognizer.recognize(content, str(path))
            digest = hashlib.sha256(content).hexdigest()
            logit = float(answer.logits.max())
            rows.append(SelfTestPhoto(file=file, sha256=digest, label=answer.labels[0], logit=logit))
    test = SelfTest(photos=tuple(rows), tolerance=2 * TOLERANCE[artifact.precision])
    failures = self_test(
        _save(folder, msgspec.structs.replace(manifest, self_test=test)), artifact.runtime, artifact.precision
    )
    if failures:
        raise ParityError(f"the bundle fails its own self-test: {failures[0]} ({REASON[artifact.precision]})")


def _save(folder: Path, manifest: Manifest) -> Bundle:
    (folder / MANIFEST).write_bytes(encode_manifest(manifest))
    return load_bundle(folder)
