"""The device checks itself: the bundle's own photos, in order, on every program that this machine can run."""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from refocus.edge.bundle.load import Bundle
from refocus.edge.bundle.manifest import EAGER, SelfTest, SelfTestAnswer
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.recognize.recognizer import Answer, Recognizer
from refocus.edge.runtimes.base import RUNTIMES

_checking: ContextVar[bool] = ContextVar("checking", default=False)


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
                raise BundleError(
                    f"{bundle.folder} was condensed for a task and carries no answers to check; check the"
                    " bank that it was made of"
                )
            if head.self_test is None:
                raise BundleError(f"{bundle.folder}: {head.name} carries no self-test; export the bundle again")
            try:
                with _checking_now():
                    recognizer = Recognizer(
                        bundle,
                        None,
                        runtime,
                        precision,
                        1,
                        head=head.name,
                        provider=provider,
                        allow_fallback=allow_fallback,
                    )
                    answers = answer_all(bundle, recognizer)
            except RuntimeUnavailable as error:
                found.append(Check(*where, skipped=str(error)))
            else:
                found.append(_compared(where, recognizer, head.self_test, precision, answers))
    return found


def ensure_checked(bundle: Bundle, head: str, runtime: str, precision: str, provider: str = "") -> None:
    """Runs the self-test of one head and target the first time that this machine loads them, before the first answer.

    The first time is one for each bundle, version of the runtime and release of the operating system. What passed is
    noted in ``refocus/checks`` below the user's cache folder; what failed is tested again at the next load. A bundle
    without a self-test passes.

    Raises:
        BundleError: this machine computes another answer than the bundle expects.
    """
    test = bundle.manifest.head(head).self_test
    if test is None or _checking.get():
        return
    passed = _passed_file(bundle, head, f"{runtime}:{precision}", provider)
    if passed.exists():
        return
    with _checking_now():
        recognizer = Recognizer(bundle, None, runtime, precision, 1, head=head, provider=provider)
        answers = answer_all(bundle, recognizer)
    found = _compared((head, f"{runtime}:{precision}"), recognizer, test, precision, answers)
    if found.failures:
        raise BundleError(
            f"{bundle.folder} fails its self-test on this processor with {runtime} {_version(runtime)}:"
            f" {found.failures[0]}; install another version of {runtime}"
        )
    _note(passed)


@contextmanager
def _checking_now() -> Iterator[None]:
    """Inside, recognisers are those of a self-test, and need none before they answer."""
    token = _checking.set(True)
    try:
        yield
    finally:
        _checking.reset(token)


def _passed_file(bundle: Bundle, head: str, target: str, provider: str) -> Path:
    """The file that is there once a self-test has passed; its name says what it depends on."""
    runtime = target.split(":")[0]
    manifest = hashlib.sha256(msgspec.json.encode(bundle.manifest)).hexdigest()
    machine = platform.machine(), platform.system(), platform.release()
    parts = manifest, head, target, provider, _version(runtime), *machine
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "refocus" / "checks" / hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _version(runtime: str) -> str:
    return str(importlib.import_module(RUNTIMES[runtime][0]).VERSION)


def _note(passed: Path) -> None:
    try:
        passed.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        passed.touch()
    except OSError:
        return  # tested again at the next load


def answer_all(bundle: Bundle, recognizer: Recognizer) -> list[Answer]:
    """Recognises the bundle's own photos in order, from an empty history kept in memory."""
    photos = bundle.manifest.self_test_photos
    contents = ((photo.file, bytes(bundle.content(photo))) for photo in photos)
    return list(recognizer.replay(recognizer.encode(content, file) for file, content in contents))


def expected_answer(labels: tuple[str, ...], logits: np.ndarray) -> SelfTestAnswer:
    """Logits (C,) in label order -> what a self-test expects."""
    second, best = np.sort(logits)[-2:] if len(logits) > 1 else (logits[0], logits[0])
    return SelfTestAnswer(label=labels[int(logits.argmax())], logit=float(logits.max()), margin=float(best - second))


def _compared(
    where: tuple[str, str], recognizer: Recognizer, test: SelfTest, precision: str, answers: list[Answer]
) -> Check:
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
    return Check(
        *where,
        ran_on=f"{recognizer.encoder.ran_on()}",
        photos=len(answers),
        same=same,
        largest=largest,
        tolerance=tolerance,
        expected=whose,
        failures=tuple(failures),
    )
