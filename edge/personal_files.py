"""A person's file as it arrives from the cloud: tensors, and in its header which bundle and method they belong to."""

from __future__ import annotations

from pathlib import Path

from edge.bundle import Bundle
from edge.errors import PersonalWeightsError
from edge.personal import NewWeights
from edge.tensor_file import decode_tensors, metadata_of

MAX_BYTES = 512 * 1024**2
METHOD, CHECKPOINT = "method", "checkpoint_sha256"  # in the header


def read_personal(path: Path, bundle: Bundle) -> NewWeights:
    """Reads a person's inputs of a bundle's programs.

    Raises:
        PersonalWeightsError: unreadable, not such a file, made for another model, or not inputs of its programs.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PersonalWeightsError(f"{path} has {path.stat().st_size} bytes, at most {MAX_BYTES} are read")
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise PersonalWeightsError(f"{path} cannot be read ({error.strerror}); fetch the person's file again") from None
    about = metadata_of(content, str(path))
    tensors = decode_tensors(content, str(path))
    models = {str(head.training.get(CHECKPOINT)): head.name for head in bundle.manifest.heads}
    if METHOD not in about or about.get(CHECKPOINT) not in models:
        raise PersonalWeightsError(
            f"{path} was made for model {about.get(CHECKPOINT, 'unknown')[:12]}, {bundle.folder} is of"
            f" {', '.join(model[:12] for model in models)}; fetch the person's file for this bundle"
        )
    taken = {tensor.name: tensor for artifact in bundle.manifest.artifacts for tensor in artifact.inputs}
    for name, value in tensors.items():
        tensor = taken.get(name)
        if tensor is None or tensor.name in ("photo", "feature") or value.shape != tensor.shape:
            raise PersonalWeightsError(
                f"{path}: {name} {value.shape} is no input of {bundle.folder}'s programs; fetch the person's file again"
            )
    return NewWeights("inputs", about[METHOD], dict(tensors))
