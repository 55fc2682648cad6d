"""Outcome of each target of an export: written, written but not run here, or failed."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from refocus.edge.bundle import Artifact, Bundle
from refocus.edge.errors import RefocusError
from refocus.export.errors import ExportError, TargetUnavailable, told
from refocus.export.targets import canonical, find_target

Status = Literal["written", "not run here", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What became of one target.

    Attributes:
        target: as ``onnx:w8a8``.
        status: "not run here" is written too; this machine has no such runtime, so its parity is not known.
        reason: of anything but "written".
    """

    target: str
    status: Status
    reason: str = ""


@dataclass(frozen=True)
class Exported:
    """A finished export.

    Attributes:
        outcomes: of every target, in the order in which they were asked for.
    """

    bundle: Bundle
    outcomes: tuple[Outcome, ...]

    @property
    def complete(self) -> bool:
        return all(outcome.status != "failed" for outcome in self.outcomes)


class Attempt:
    """The targets of one export, and which of them have failed.

    Args:
        targets: as they were asked for; a target that is named twice, by an old name too, is one.
        partial: go on with the others where one fails.

    Raises:
        ExportError: an unknown target or precision; if not partial, a missing library too.
    """

    def __init__(self, targets: Sequence[str], partial: bool = False) -> None:
        self._partial = partial
        self._failed: dict[str, RefocusError] = {}
        self._asked: dict[str, None] = {}
        for target in targets:
            try:
                self._asked[canonical(target)] = None
            except TargetUnavailable as error:
                self._asked[target] = None
                self.fail(target, error)
        if not self._asked:
            raise ExportError("--to names no target; give one, such as onnx:fp32")
        self.require_one()

    @property
    def left(self) -> list[str]:
        """Targets that have not failed."""
        return [target for target in self._asked if target not in self._failed]

    def __contains__(self, target: str) -> bool:
        return target in self._asked and target not in self._failed

    def fail(self, target: str, error: BaseException) -> None:
        """Notes that a target failed; raises the error itself if others are not to go on."""
        if not self._partial or isinstance(error, OSError) or not isinstance(error, Exception):
            raise error
        if not isinstance(error, RefocusError):
            traceback.print_exception(error)  # --verbose shows it
            error = ExportError(f"an error that was not expected ({told(error)}); --verbose shows where")
        self._failed.setdefault(target, error)

    @contextmanager
    def trying(self, target: str) -> Iterator[None]:
        """Context manager that records an exception as the export failure of ``target`` instead of raising it."""
        try:
            yield
        except Exception as error:
            self.fail(target, error)

    def require_one(self) -> None:
        """Raises the failure if no target is left; of several, one error that names all."""
        if self.left:
            return
        first = next(iter(self._failed.values()))
        if len(self._failed) == 1:
            raise first
        reasons = "; ".join(f"{target}: {error}" for target, error in self._failed.items())
        raise type(first)(f"no target could be exported: {reasons}")

    def artifacts_left(self, artifacts: Sequence[Artifact]) -> tuple[Artifact, ...]:
        """Those of targets that have not failed."""
        runtimes = {runtime_target(target) for target in self.left}
        return tuple(artifact for artifact in artifacts if artifact.target in runtimes)

    def target_of(self, artifact_target: str) -> str:
        """``onnxruntime:fp32`` -> ``onnx:fp32``."""
        return next(target for target in self._asked if target in self and runtime_target(target) == artifact_target)

    def outcomes(self, bundle: Bundle) -> tuple[Outcome, ...]:
        """Of every target, in the order in which they were asked for."""
        notes = {artifact.target: artifact.parity_note for artifact in bundle.manifest.artifacts}
        return tuple(self._outcome(target, notes) for target in self._asked)

    def _outcome(self, target: str, notes: dict[str, Any]) -> Outcome:
        if target in self._failed:
            return Outcome(target, "failed", str(self._failed[target]))
        note = notes[runtime_target(target)]
        return (
            Outcome(target, "not run here", note.removeprefix("parity: not run here: "))
            if note
            else Outcome(target, "written")
        )


def runtime_target(name: str) -> str:
    """``onnx:fp32`` -> ``onnxruntime:fp32``, the name of its artifacts."""
    target, precision = find_target(name)
    return f"{target.RUNTIME}:{precision}"
