"""Personal weights: what was learned for one person, and the three ways in which a program takes it.

``inputs``: tensors that are further inputs of the shared program, so a person is switched by passing others.
``weights``: tensors that stand in the shared program's place for them, so a person is one loaded session.
``whole``: a network of the person's own: all tensors of the shared program, or a program instead of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from refocus.edge.bundle.manifest import Artifact
from refocus.edge.errors import PersonalWeightsError

Carrier = Literal["inputs", "weights", "whole"]
TENSORS = ".safetensors"


def model_of(encoder: Artifact, head: Artifact | None = None) -> str:
    """Identity of the model version that personal weights belong to, under which they are kept.

    Programs whose personal tensors are inputs are the same for every training of one frozen body; what tells trainings
    apart are the tensors for somebody who has none.
    """
    artifacts = [artifact for artifact in (encoder, head) if artifact is not None]
    if not any(artifact.defaults for artifact in artifacts):
        return encoder.sha256
    parts = [part for a in artifacts for part in (a.sha256, a.defaults.sha256 if a.defaults else "")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class NewWeights:
    """Weights as they arrive, before they are kept.

    Attributes:
        carrier: how a program takes them.
        method: name of the method that made them.
        tensors: by name.
        file: instead of tensors, a program (``whole``: .onnx, .pte) or a runtime's own weight file (``weights``: .ptd).
    """

    carrier: Carrier
    method: str
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    file: Path | None = None


@dataclass(frozen=True, eq=False)
class PersonalWeights:
    """One person's verified weights for one version of a model, mapped from their file.

    Attributes:
        carrier, method: as of :class:`NewWeights`.
        model: identity of the model version they belong to, a SHA-256.
        sha256: of the file; the same tensors have the same on every device.
        path: the file. It may be gone when another process made room; the mapped bytes stay.
        content: the file's bytes.
        tensors: read-only arrays over ``content``, by name; empty for a program or a runtime's own weight file.
    """

    carrier: Carrier
    method: str
    model: str
    sha256: str
    path: Path
    content: memoryview = field(repr=False)
    tensors: Mapping[str, np.ndarray] = field(repr=False)

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    @property
    def is_program(self) -> bool:
        """Whether the file is loaded instead of the shared program."""
        return self.carrier == "whole" and self.path.suffix != TENSORS

    def feature_space(self, base: str) -> str:
        """The space of an encoder's features under these weights; ``base`` is that of the shared encoder.

        Features that one person's prompts have shaped mean nothing to a head that meets another's.
        """
        return hashlib.sha256(f"{base}:{self.sha256}".encode()).hexdigest()

    def artifact_of(self, shared: Artifact) -> Artifact:
        """The manifest's entry for the shared program as it is under these weights.

        An encoder gets its own feature space, a program of the person's own also its own file. Whether the head beside
        it accepts the features is decided by the shared encoder's space.

        Raises:
            PersonalWeightsError: tensors of the carrier ``inputs`` are not inputs of the program, or of another shape
                or type.
        """
        if self.carrier == "inputs":
            self.check_inputs(shared)
        space = shared.feature_space and self.feature_space(shared.feature_space)
        if not self.is_program:
            return msgspec.structs.replace(shared, feature_space=space)
        return msgspec.structs.replace(
            shared, feature_space=space, file=self.path.name, sha256=self.sha256, size_bytes=self.size_bytes
        )

    def check_inputs(self, shared: Artifact) -> None:
        """All that a switch needs for the carrier ``inputs``: the tensors are inputs of the shared program.

        Raises:
            PersonalWeightsError: as of :meth:`artifact_of`.
        """
        declared = {tensor.name: tensor for tensor in shared.inputs}
        for name, value in self.tensors.items():
            tensor = declared.get(name)
            if tensor is None or value.dtype != tensor.dtype or value.shape != tensor.shape:
                takes = f"{tensor.dtype} {tensor.shape}" if tensor else f"only {', '.join(declared)}"
                raise self.does_not_fit(f"{name} is {value.dtype} {value.shape}, {shared.file} takes {takes}")

    def does_not_fit(self, why: str) -> PersonalWeightsError:
        """The error for weights that are whole, but not made for the program they meet."""
        return PersonalWeightsError(
            f"personal weights of {self.method} for model {self.model[:12]} do not fit: {why}; fetch them again for"
            " this version of the model"
        )
