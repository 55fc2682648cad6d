"""The device checks itself: the bundle's own photos, in order, on every program that this machine can run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edge.bundle import Bundle
from edge.errors import BundleError, RuntimeUnavailable
from edge.manifest import EAGER, SelfTest, SelfTestAnswer
from edge.recognizer import Answer, Recognizer


@dataclass(frozen=True)
class Check:
    """What one recogniser of a bundle did on this machine.

    Attributes:
        head, target: which one.
        ran_on: provider or delegate in use; "" if it could not run, which ``skipped`` then explains.
        photos: photos recognised.
        same: how many of them got the expected best label.
        largest: largest difference of a best logit.
        tolerance: the largest that passes.
        expected: whose answers were expected: the target's own when it was exported, or those of PyTorch.
        failures: one line per photo that was answered otherwise.
    """

    head: str
    target: str
    ran_on: str = ""
    skipped: str = ""
    photos: int = 0
    same: int = 0
    largest: float = 0.0
    tolerance: float = 0.0
    expected: str = ""
    failures: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(bundle: Bundle, provider: str = "", allow_fallback: bool = True) -> list[Check]:
    """Runs the self-test of every head on every runtime and precision; what cannot run here says why."""
    found = []
    for head in bundle.manifest.heads:
        for runtime, precision in bundle.targets(head.name):
            where = head.name, f"{runtime}:{precision}"
            if head.self_test is None and bundle.manifest.task is not None:
                raise BundleError(f"{bundle.folder} was condensed for a task and carries no answers to check; check the"
                                  " bank that it was made of")  # fmt: skip
            if head.self_test is None:
                raise BundleError(f"{bundle.folder}: {head.name} carries no self-test; export the bundle again")
            try:
                recognizer = Recognizer(bundle, None, runtime, precision, 1, head=head.name, provider=provider,
                                        allow_fallback=allow_fallback)  # fmt: skip
                answers = answer_all(bundle, recognizer)
            except RuntimeUnavailable as error:
                found.append(Check(*where, skipped=str(error)))
            else:
                found.append(_compared(where, recognizer, head.self_test, precision, answers))
    return found


def answer_all(bundle: Bundle, recognizer: Recognizer) -> list[Answer]:
    """Recognises the bundle's own photos in order, from an empty history kept in memory."""
    photos = bundle.manifest.self_test_photos
    contents = ((photo.file, bytes(bundle.content(photo))) for photo in photos)
    return list(recognizer.replay(recognizer.encode(content, file) for file, content in contents))


def expected_answer(labels: tuple[str, ...], logits: np.ndarray) -> SelfTestAnswer:
    """Logits (C,) in label order -> what a self-test expects."""
    second, best = np.sort(logits)[-2:] if len(logits) > 1 else (logits[0], logits[0])
    return SelfTestAnswer(label=labels[int(logits.argmax())], logit=float(logits.max()), margin=float(best - second))


def _compared(where: tuple[str, str], recognizer: Recognizer, test: SelfTest, precision: str,
              answers: list[Answer]) -> Check:  # fmt: skip
    whose = where[1] if where[1] in test.answers else EAGER
    tolerance, failures, same, largest = test.tolerance.get(precision, 0.0), [], 0, 0.0
    photos = recognizer.manifest.self_test_photos
    for photo, got, want in zip(photos, answers, test.answers[whose], strict=True):
        off = abs(float(got.logits.max()) - want.logit)
        same += got.labels[0] == want.label
        largest = max(largest, off)
        # The other way round, so that what is not a number fails.
        if not (off <= tolerance and (got.labels[0] == want.label or want.margin <= tolerance)):
            failures.append(
                f"{photo.file}: expected '{want.label}' with logit {want.logit:.4f}, got '{got.labels[0]}' with"
                f" {float(got.logits.max()):.4f} (tolerance {tolerance})"
            )
    return Check(*where, ran_on=f"{recognizer.encoder.ran_on()}", photos=len(answers), same=same, largest=largest,
                 tolerance=tolerance, expected=whose, failures=tuple(failures))  # fmt: skip
