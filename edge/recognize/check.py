"""The device checks itself: the bundle's own photos, in order, on every program that this machine can run."""

from __future__ import annotations

import itertools

from refocus.edge.bundle.load import Bundle
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.recognize.self_test import Check, accepted_encoders, answer_all, checking, compared
from refocus.edge.recognize.serving_head import NATIVE


def check(
    bundle: Bundle,
    provider: str = "",
    allow_fallback: bool = True,
    head_target: str = "",
    encoder: str = "",
    threads: int = 1,
) -> list[Check]:
    """Runs the self-test of every head on every runtime and precision; what cannot run here says why.

    Args:
        head_target: of the only heads to run, as ``native:w16``; default: all.
        encoder: target of the only encoder to run, as ``onnxruntime:fp32``, with every head that may serve behind it;
            default: all.
        threads: as of :class:`refocus.edge.Recognizer`; those of whoever goes on in this process.

    Raises:
        BundleError: a head has no self-test, or there is no head of that target.
    """
    found = []
    for head in bundle.manifest.heads:
        tested = {target: pair for pair, target in head_targets(bundle, head.name)}  # when answers were expected
        for (runtime, precision), target in head_targets(bundle, head.name, encoder):
            if head_target and target != head_target:
                continue
            if head.self_test is None and bundle.manifest.task is not None:
                raise BundleError(
                    f"{bundle.folder} was condensed for a task and has no self-test; check the bank that it"
                    " was condensed from"
                )
            if head.self_test is None:
                raise BundleError(f"{bundle.folder}: {head.name} carries no self-test; export the bundle again")
            where = head.name, provider, allow_fallback
            try:
                with (
                    checking(),
                    Recognizer(bundle, None, runtime, precision, threads, *where, head_target=target) as recognizer,
                ):
                    own = target != f"{runtime}:{precision}"
                    program = recognizer.head if own else recognizer.encoder
                    answers, ran_on = answer_all(bundle, recognizer), program.ran_on()
            except RuntimeUnavailable as error:
                found.append(Check(head.name, target, skipped=str(error)))
            else:
                other = "" if tested[target] == (runtime, precision) else f"{runtime}:{precision}"
                found.append(compared(bundle, head.name, target, answers, ran_on, other))
    if head_target and not found:
        has = sorted({a.target for a in bundle.manifest.artifacts if a.role == "head"})
        raise BundleError(f"--head-target {head_target}: {bundle.folder} has heads for {', '.join(has)}")
    return found


def head_targets(bundle: Bundle, head: str, encoder: str = "") -> list[tuple[tuple[str, str], str]]:
    """Encoders, by runtime and precision, each with the target of a head to test behind it: its own, and each native
    one behind the first encoder whose features it accepts.

    Args:
        encoder: target of the only one, as ``onnxruntime:fp32``; default: all.
    """
    pairs = [pair for pair in bundle.targets(head) if encoder in ("", ":".join(pair))]
    found = [(pair, ":".join(pair)) for pair in pairs]
    for artifact in bundle.manifest.artifacts:
        if artifact.role == "head" and artifact.runtime == NATIVE and artifact.head == head:
            behind = (pair for pair in accepted_encoders(bundle, head, artifact) if pair in pairs)
            found += [(pair, artifact.target) for pair in itertools.islice(behind, 1)]
    return found
