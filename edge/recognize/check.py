"""The device checks itself: the bundle's own photos, in order, on every program that this machine can run."""

from __future__ import annotations

from refocus.edge.bundle.load import Bundle
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.recognize.self_test import Check, answer_all, checking, compared


def check(bundle: Bundle, provider: str = "", allow_fallback: bool = True) -> list[Check]:
    """Runs the self-test of every head on every runtime and precision; what cannot run here says why."""
    found = []
    for head in bundle.manifest.heads:
        for runtime, precision in bundle.targets(head.name):
            if head.self_test is None and bundle.manifest.task is not None:
                raise BundleError(
                    f"{bundle.folder} was condensed for a task and carries no answers to check; check the"
                    " bank that it was made of"
                )
            if head.self_test is None:
                raise BundleError(f"{bundle.folder}: {head.name} carries no self-test; export the bundle again")
            target, where = f"{runtime}:{precision}", (head.name, provider, allow_fallback)
            try:
                with checking(), Recognizer(bundle, None, runtime, precision, 1, *where) as recognizer:
                    answers, ran_on = answer_all(bundle, recognizer), recognizer.encoder.ran_on()
            except RuntimeUnavailable as error:
                found.append(Check(head.name, target, skipped=str(error)))
            else:
                found.append(compared(bundle, head.name, target, answers, ran_on))
    return found
