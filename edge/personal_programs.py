"""The encoder as it is for one person: the shared program, the shared one with tensors of theirs, or their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from edge.errors import PersonalWeightsError
from edge.personal import PersonalWeights
from edge.prompt_cache import PromptCache
from edge.runtimes import Program
from edge.sessions import SessionPool

Served = tuple[Program, str, Mapping[str, np.ndarray]]


class Load(Protocol):
    """Loads the encoder, as it is or with one person's weights."""

    def __call__(self, *, personal: PersonalWeights | None = None) -> Program: ...


class PersonalPrograms:
    """One interface over the three carriers of personal weights.

    Args:
        load: loads the encoder.
        cache: where personal weights are kept; None: nobody has any.
        sessions: keeps people's own sessions warm; default: a few.

    Raises:
        BundleError, RuntimeUnavailable: as ``load``.
    """

    def __init__(self, load: Load, cache: PromptCache | None, sessions: SessionPool | None = None) -> None:
        self._load, self._cache = load, cache
        self.shared = load()
        self._sessions = SessionPool() if sessions is None else sessions
        self._fitting: set[str] = set()  # weights whose names and shapes were compared with the program's

    def of(self, person: str) -> Served:
        """The program that serves a person, the feature space of what it gives, and its inputs beside the photo.

        Raises:
            PersonalWeightsError: their weights are damaged or do not fit, or the program needs weights and they have
                none.
        """
        shared = self.shared.artifact
        weights = self._cache.get(person, shared.sha256) if self._cache is not None and person else None
        if weights is None:
            needed = [tensor.name for tensor in shared.inputs if tensor.name != "photo"]
            if needed:
                raise PersonalWeightsError(
                    f"{shared.file} takes {', '.join(needed)} of each person, and there are none for '{person}' and"
                    " this version of the model; fetch them, or use a bundle without personal inputs"
                )
            return self.shared, shared.feature_space or "", {}
        space = weights.feature_space(shared.feature_space or "")
        if weights.carrier == "inputs":
            if weights.sha256 not in self._fitting:
                weights.check_inputs(shared)
                self._fitting.add(weights.sha256)
            return self.shared, space, weights.tensors
        size = shared.size_bytes + weights.size_bytes
        return self._sessions.get(weights.sha256, lambda: self._load(personal=weights), size), space, {}
