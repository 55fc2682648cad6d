"""Which program serves as the head behind an encoder: the native one where it can run, else that of its target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from refocus.edge.bundle.load import Bundle
from refocus.edge.bundle.manifest import Artifact
from refocus.edge.bundle.precision import find_named_target
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.runtimes import Program, load_program

NATIVE = "native"
Load = Callable[[Artifact], Program]


@dataclass(frozen=True)
class ServingHead:
    """A loaded head.

    Attributes:
        passed_over: why the bundle's native head does not serve; "" where it does, or there is none.
    """

    program: Program
    passed_over: str = ""


def heads_behind(bundle: Bundle, encoder: Artifact, head: str = "") -> list[Artifact]:
    """Programs of a head that may serve behind an encoder: native ones first, then that of the encoder's own target."""
    name = bundle.manifest.head(head).name
    heads = [a for a in bundle.manifest.artifacts if a.role == "head" and a.head == name]
    native = [a for a in heads if a.runtime == NATIVE and encoder.feature_space in a.accepts]
    return native + [a for a in heads if a.target == encoder.target]


def load_head(bundle: Bundle, encoder: Artifact, head: str, asked: str, load: Load) -> ServingHead:
    """The head that was asked for; or, by default, the first native one that this machine can run, else the other.

    Args:
        asked: target of the head, as ``native:w16`` or ``onnxruntime:fp32``; "" chooses.
        load: loads one artifact.

    Raises:
        BundleError: the bundle has no such head for this encoder, or it cannot be loaded.
        RuntimeUnavailable: the head that was asked for, or every one, cannot run here.
    """
    offered = heads_behind(bundle, encoder, head)
    if asked or not offered:
        found = find_named_target(asked, [a.target for a in offered])
        if not found:
            has = ", ".join(a.target for a in offered) or "none"
            asked = asked or encoder.target
            raise BundleError(f"{bundle.folder} has no head {asked} behind the encoder {encoder.target}; it has {has}")
        return ServingHead(load(next(a for a in offered if a.target == found)))
    reasons: list[str] = []
    for artifact in offered[:-1]:
        if artifact.runtime == NATIVE:
            try:
                return ServingHead(load(artifact), "; ".join(reasons))
            except (BundleError, RuntimeUnavailable) as error:
                reasons.append(f"{artifact.target} does not serve: {error}")
    return ServingHead(load(offered[-1]), "; ".join(reasons))


def serving_lines(bundle: Bundle) -> list[str]:
    """For each head with a native form, which program serves behind each encoder on this machine, and why."""
    lines = []
    for card in bundle.manifest.heads:
        for encoder in (a for a in bundle.manifest.artifacts if a.role == "encoder"):
            offered = heads_behind(bundle, encoder, card.name)
            if not any(a.runtime == NATIVE for a in offered):
                continue
            try:
                served = load_head(bundle, encoder, card.name, "", partial(_load, bundle, card.name))
            except (BundleError, RuntimeUnavailable) as error:
                lines.append(f"{card.name} behind {encoder.target}: nothing serves here: {error}")
                continue
            where = f"{served.program.artifact.target} serves, on {served.program.ran_on()}"
            why = f"; {served.passed_over}" if served.passed_over else ""
            served.program.close()
            lines.append(f"{card.name} behind {encoder.target}: {where}{why}")
    return lines


def _load(bundle: Bundle, head: str, artifact: Artifact) -> Program:
    return load_program(bundle, "head", artifact.runtime, artifact.precision, 1, head)
