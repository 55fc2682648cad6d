"""A person's file as it arrives from the cloud: tensors, and in its header which bundle and method they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from edge.bundle import Bundle
from edge.errors import PersonalWeightsError
from edge.manifest import Artifact
from edge.personal import NewWeights, model_of
from edge.tensor_file import decode_tensors, metadata_of
from edge.user_files import read_file

MAX_BYTES = 512 * 1024**2
METHOD, CHECKPOINT = "method", "checkpoint_sha256"  # in the header
_SAID = 4  # tensors that an error names


@dataclass(frozen=True)
class ForBundle:
    """A person's file that fits a bundle.

    Attributes:
        models: identities under which it is kept: one for each runtime and precision.
    """

    weights: NewWeights
    models: tuple[str, ...]


def file_name(person: str) -> str:
    """What the file of a person, or of a group of people, is called, whatever characters the name has."""
    return f"{quote(person, safe='')}.safetensors"


def read_personal(path: Path, bundle: Bundle) -> ForBundle:
    """Reads what a bundle's programs take of one person: inputs, or tensors in the place of their own.

    Raises:
        PersonalWeightsError: unreadable, not such a file, made for another model, or not exactly what its programs take
            of each person.
    """
    content = memoryview(read_file(path, MAX_BYTES, "a person's file", PersonalWeightsError))
    about = metadata_of(content, str(path))
    tensors = decode_tensors(content, str(path))
    heads = {str(head.training.get(CHECKPOINT)): head.name for head in bundle.manifest.heads}
    name = heads.get(about.get(CHECKPOINT, ""))
    if METHOD not in about or name is None:
        raise PersonalWeightsError(
            f"{path} was made for model {about.get(CHECKPOINT, 'unknown')[:12]}, {bundle.folder} is of"
            f" {', '.join(model[:12] for model in heads)}; fetch the person's file for this bundle"
        )
    carrier = bundle.manifest.head(name).personalisation.carrier
    if carrier == "none":
        raise PersonalWeightsError(f"the programs of {bundle.folder} take nothing of each person: {path} is not used")
    models = []
    for runtime, precision in bundle.targets(name):
        encoder, head = (bundle.artifact(role, runtime, precision, name) for role in ("encoder", "head"))
        wanted = _taken_of_each(bundle, encoder) | _taken_of_each(bundle, head)
        found = {key: (str(value.dtype), value.shape) for key, value in tensors.items()}
        if found != wanted:
            other = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
            raise PersonalWeightsError(
                f"{path} holds {_said(found, other)}; the programs of {bundle.folder} take {_said(wanted, other)} of"
                " each person; fetch the person's file again"
            )
        models.append(model_of(encoder, head))
    return ForBundle(NewWeights(carrier, about[METHOD], dict(tensors)), tuple(dict.fromkeys(models)))


_Kinds = dict[str, tuple[str, tuple[int, ...]]]


def _taken_of_each(bundle: Bundle, artifact: Artifact) -> _Kinds:
    """Type and shape of all that one program takes of each person, by name."""
    inputs = {name: (str(value.dtype), value.shape) for name, value in bundle.defaults(artifact).items()}
    inside = artifact.personal.tensors if artifact.personal is not None else ()
    return inputs | {tensor.name: ("float32", tensor.shape) for tensor in inside}


def _said(tensors: _Kinds, names: list[str]) -> str:
    """What is said of some tensors; of many, the first ones."""
    said = [f"{name} {tensors[name][0]} {tensors[name][1]}" for name in names if name in tensors]
    more = f" and {len(said) - _SAID} more" if len(said) > _SAID else ""
    return (", ".join(said[:_SAID]) or "nothing else") + more
