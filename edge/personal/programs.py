"""The programs as they are for one person: shared ones, with tensors of theirs as inputs or inside, or their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from refocus.edge.bundle.manifest import Artifact
from refocus.edge.bundle.personal_weights import PersonalWeights, model_of
from refocus.edge.errors import PersonalWeightsError
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.runtimes import Program

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ResolvedPrograms:
    """What serves a person.

    Attributes:
        program: the encoder.
        space: of the features that it gives.
        inputs: the encoder's, beside the photo.
        head_inputs: the head's, beside the feature and what it is given of the past.
    """

    program: Program
    space: str
    inputs: Tensors = field(default_factory=dict, repr=False)
    head_inputs: Tensors = field(default_factory=dict, repr=False)


class Load(Protocol):
    """Loads the encoder, as it is or with one person's weights."""

    def __call__(self, *, personal: PersonalWeights | None = None) -> Program: ...


class SessionPool:
    """Programs that stay loaded, by key, because loading costs many recognitions.

    When there are too many, the least recently used goes first and is closed.

    A program that the pool returned is good until a later :meth:`get` closes it: ask the pool on every switch, do not
    keep one for later. For one thread; another thread has its own pool.

    Args:
        max_programs: programs kept.
        max_bytes: of the sizes that callers state. The program asked for is kept whatever its size.
    """

    def __init__(self, max_programs: int = 4, max_bytes: int = 512 * 1024**2) -> None:
        if max_programs < 1:
            raise ValueError(f"max_programs {max_programs}: a pool holds at least one program")
        self.max_programs, self.max_bytes = max_programs, max_bytes
        self._warm: OrderedDict[Hashable, tuple[Program, int]] = OrderedDict()

    def get(self, key: Hashable, load: Callable[[], Program], size_bytes: int = 0) -> Program:
        """The program of that key: a warm one, or the one that ``load`` returns.

        The new one is loaded before an old one is closed, so an error in ``load`` leaves every program as it was;
        memory holds one more than the bound meanwhile.

        Args:
            key: everything that decides what ``load`` returns: SHA-256 of program and weights, runtime, threads.
            size_bytes: what it takes of ``max_bytes``.
        """
        if key in self._warm:
            self._warm.move_to_end(key)
        else:
            self._warm[key] = load(), size_bytes
            while self._too_many():
                _, (program, _) = self._warm.popitem(last=False)
                program.close()
        return self._warm[key][0]

    def _too_many(self) -> bool:
        over = sum(size for _, size in self._warm.values()) > self.max_bytes
        return len(self._warm) > 1 and (over or len(self._warm) > self.max_programs)

    def close(self) -> None:
        """Closes every program."""
        while self._warm:
            _, (program, _) = self._warm.popitem()
            program.close()

    def __len__(self) -> int:
        return len(self._warm)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._warm


class PersonalPrograms:
    """One interface over the three carriers of personal weights.

    A person has one file, kept for the encoder. Tensors in it that are personal inputs of the head go there, whatever
    the carrier; the rest is the encoder's. What it leaves out of a program's personal inputs comes from the bundle.

    Args:
        load: loads the encoder.
        cache: where personal weights are kept; None disables personal weights.
        sessions: keeps people's own sessions warm; default: a few.
        defaults: of the encoder's personal inputs, from the bundle.
        head: the head that reads the features, with the defaults of its personal inputs.

    Raises:
        BundleError, RuntimeUnavailable: as ``load``.
    """

    def __init__(
        self,
        load: Load,
        cache: PersonalWeightStore | None,
        sessions: SessionPool | None = None,
        defaults: Tensors | None = None,
        head: tuple[Artifact, Tensors] | None = None,
    ) -> None:
        self._load, self._cache = load, cache
        self.shared = load()
        self._sessions = SessionPool() if sessions is None else sessions
        self._defaults, self._head = defaults or {}, head
        self._of_head: Tensors = head[1] if head is not None else {}
        self._model = model_of(self.shared.artifact, head[0] if head is not None else None)
        self._fitting: set[str] = set()  # weights whose names and shapes were compared with the programs'

    def of(self, person: str) -> ResolvedPrograms:
        """What serves a person.

        Raises:
            PersonalWeightsError: their weights are damaged or do not fit, or the program needs weights and they have
                none.
        """
        shared = self.shared.artifact
        weights = self._cache.get(person, self._model) if self._cache is not None and person else None
        if weights is None:
            self._check_complete(self._defaults, person)
            return self.nobody
        space = weights.feature_space(shared.feature_space or "")
        own = {name: value for name, value in weights.tensors.items() if name not in self._of_head}
        for_head = {name: value for name, value in weights.tensors.items() if name in self._of_head}
        if weights.sha256 not in self._fitting:
            if self._head is not None:
                replace(weights, tensors=for_head).check_inputs(self._head[0])
            if weights.carrier == "inputs":
                replace(weights, tensors=own).check_inputs(shared)
            self._fitting.add(weights.sha256)
        head_inputs = {**self._of_head, **for_head}
        if weights.carrier == "inputs":
            inputs = {**self._defaults, **own}
            self._check_complete(inputs, person)
            return ResolvedPrograms(self.shared, space, inputs, head_inputs)
        size = shared.size_bytes + weights.size_bytes
        program = self._sessions.get(weights.sha256, lambda: self._load(personal=replace(weights, tensors=own)), size)
        return ResolvedPrograms(program, space, {} if weights.is_program else self._defaults, head_inputs)

    @property
    def nobody(self) -> ResolvedPrograms:
        """What serves a stranger: the shared programs with what the bundle has for them."""
        return ResolvedPrograms(self.shared, self.shared.artifact.feature_space or "", self._defaults, self._of_head)

    def close(self) -> None:
        """Frees the shared program and people's own."""
        self.shared.close()
        self._sessions.close()

    def _check_complete(self, inputs: Tensors, person: str) -> None:
        shared = self.shared.artifact
        needed = [tensor.name for tensor in shared.inputs if tensor.name not in {"photo", *inputs}]
        if needed:
            raise PersonalWeightsError(
                f"{shared.file} takes {', '.join(needed)} of each person, and there are none for '{person}' and"
                " this version of the model; fetch them, or use a bundle without personal inputs"
            )
