"""A person's file as it arrives from the cloud: tensors, and in its header which bundle and method they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.bundle import Bundle
from edge.errors import PersonalWeightsError
from edge.personal import NewWeights, model_of
from edge.tensor_file import decode_tensors, metadata_of

MAX_BYTES = 512 * 1024**2
METHOD, CHECKPOINT = "method", "checkpoint_sha256"  # in the header


@dataclass(frozen=True)
class ForBundle:
    """A person's file that fits a bundle.

    Attributes:
        models: identities under which it is kept: one for each runtime and precision.
    """

    weights: NewWeights
    models: tuple[str, ...]


def read_personal(path: Path, bundle: Bundle) -> ForBundle:
    """Reads a person's inputs of a bundle's programs.

    Raises:
        PersonalWeightsError: unreadable, not such a file, made for another model, or not exactly the personal inputs of
            its programs.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PersonalWeightsError(f"{path} has {path.stat().st_size} bytes, at most {MAX_BYTES} are read")
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise PersonalWeightsError(f"{path} cannot be read ({error.strerror}); fetch the person's file again") from None
    about = metadata_of(content, str(path))
    tensors = decode_tensors(content, str(path))
    heads = {str(head.training.get(CHECKPOINT)): head.name for head in bundle.manifest.heads}
    name = heads.get(about.get(CHECKPOINT, ""))
    if METHOD not in about or name is None:
        raise PersonalWeightsError(
            f"{path} was made for model {about.get(CHECKPOINT, 'unknown')[:12]}, {bundle.folder} is of"
            f" {', '.join(model[:12] for model in heads)}; fetch the person's file for this bundle"
        )
    models = []
    for runtime, precision in bundle.targets(name):
        encoder, head = (bundle.artifact(role, runtime, precision, name) for role in ("encoder", "head"))
        expected = {**bundle.defaults(encoder), **bundle.defaults(head)}
        found = {key: (value.dtype, value.shape) for key, value in tensors.items()}
        wanted = {key: (value.dtype, value.shape) for key, value in expected.items()}
        if found != wanted:
            raise PersonalWeightsError(
                f"{path} holds {_said(found)}; the programs of {bundle.folder} take {_said(wanted)} of each person;"
                " fetch the person's file again"
            )
        models.append(model_of(encoder, head))
    return ForBundle(NewWeights("inputs", about[METHOD], dict(tensors)), tuple(dict.fromkeys(models)))


def _said(tensors: dict[str, Any]) -> str:
    return ", ".join(f"{name} {dtype} {shape}" for name, (dtype, shape) in sorted(tensors.items())) or "nothing"
