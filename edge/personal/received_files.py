"""A person's file as it arrives from the cloud: tensors, and in its header whose they are, of which model and method.

The header is not signed: it keeps a whole file from serving the wrong person or model, not a forged one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from refocus.edge.bundle.load import Bundle
from refocus.edge.bundle.manifest import Artifact
from refocus.edge.bundle.personal_weights import NewWeights, model_of
from refocus.edge.bundle.tensor_file import decode_tensors, metadata_of
from refocus.edge.errors import PersonalWeightsError
from refocus.edge.files import read_file

LONGEST_NAME = 255  # bytes of a file's name, on all common file systems
BY_DIGEST = "+"  # how names begin that are no file's when quoted: too long, or dots alone; no quoted name has it

MAX_BYTES = 512 * 1024**2
METHOD, CHECKPOINT, FORMAT = "method", "checkpoint_sha256", "format"  # in the header
PERSON = "person"  # in the header; release 0.1.0 named no person
FORMAT_VERSION = "2"  # of a file that is written: Refocus 0.2; a file of Refocus 0.1 has no number
_SAID = 4  # tensors that an error names


@dataclass(frozen=True)
class ForBundle:
    """A person's file that fits a bundle.

    Attributes:
        models: identities under which it is kept: one for each runtime and precision.
    """

    weights: NewWeights
    models: tuple[str, ...]


def file_name(person: str, suffix: str = ".safetensors") -> str:
    """Name of the file of a person, or of a group of people, whose name may have any characters and any length; no two
    have the same."""
    name = f"{quote(person, safe='')}{suffix}"
    if name not in ("", ".", "..") and len(name) <= LONGEST_NAME:
        return name
    return f"{BY_DIGEST}{hashlib.sha256(person.encode()).hexdigest()}{suffix}"


def read_personal(path: Path, bundle: Bundle, person: str = "") -> ForBundle:
    """Reads what a bundle's programs take of one person: inputs, or tensors in the place of their own.

    Args:
        person: who the file must have been made for, if it names somebody; "" for anybody.

    Raises:
        PersonalWeightsError: unreadable, not such a file, made for another person or model, with numbers that are not
            finite, or not exactly what its programs take of each person.
    """
    content = memoryview(read_file(path, MAX_BYTES, "a person's file", PersonalWeightsError))
    about = metadata_of(content, str(path))
    if about.get(FORMAT, "1") not in ("1", FORMAT_VERSION):
        raise PersonalWeightsError(
            f"{path} has format {about[FORMAT][:12]}, this refocus reads 1 and {FORMAT_VERSION}; update refocus"
        )
    tensors = decode_tensors(content, str(path))
    if person and about.get(PERSON, person) != person:
        raise PersonalWeightsError(
            f"{path} was made for {about[PERSON][:80]!r}, not for {person!r}; fetch that person's file, or give"
            " --person where both are the same"
        )
    name = _head_of(path, about, bundle)
    carrier = bundle.manifest.head(name).personalisation.carrier
    if carrier == "none":
        raise PersonalWeightsError(f"the programs of {bundle.folder} take nothing of each person: {path} is not used")
    _check_finite(path, tensors)
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


def _head_of(path: Path, about: Mapping[str, str], bundle: Bundle) -> str:
    """Name of the head that a file was made for."""
    heads = {
        head.training[CHECKPOINT]: head.name
        for head in bundle.manifest.heads
        if isinstance(head.training.get(CHECKPOINT), str)
    }
    name = heads.get(about.get(CHECKPOINT, ""))
    if METHOD not in about or name is None:
        raise PersonalWeightsError(
            f"{path} was made for model {about.get(CHECKPOINT, 'unknown')[:12]}, {bundle.folder} is of"
            f" {', '.join(str(model)[:12] for model in heads) or 'an unknown one'}; fetch the person's file for this"
            " bundle"
        )
    return name


def _check_finite(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    for name, value in tensors.items():
        if not np.isfinite(value).all():
            raise PersonalWeightsError(
                f"{path}: {name[:80]} has numbers that are not finite; fetch the person's file again"
            )


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
