"""The bundle's own photos, in order, through an open recogniser; on arm64, before the machine's first answer."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from refocus.edge.bundle.load import Bundle
from refocus.edge.bundle.manifest import EAGER, Artifact, SelfTestAnswer
from refocus.edge.errors import BundleError
from refocus.edge.files import cache_folder
from refocus.edge.runtimes.base import ARM64, RUNTIMES, loader_of

_checking: ContextVar[bool] = ContextVar("checking", default=False)


class Answered(Protocol):
    """An answer, as far as a self-test compares it: labels, most likely first, and logits (C,) in label order."""

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def logits(self) -> np.ndarray: ...


A_co = TypeVar("A_co", bound=Answered, covariant=True)


class Replays(Protocol[A_co]):
    """An open recogniser, as far as a self-test needs one."""

    def encode(self, content: bytes, where: str) -> np.ndarray: ...

    def replay_programs(self, features: Iterable[np.ndarray]) -> Iterator[A_co]: ...


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


def answer_all(bundle: Bundle, recognizer: Replays[A_co]) -> list[A_co]:
    """Recognises the bundle's own photos in order, from an empty history kept in memory."""
    photos = bundle.manifest.self_test_photos
    contents = ((photo.file, bytes(bundle.content(photo))) for photo in photos)
    return list(recognizer.replay_programs(recognizer.encode(content, file) for file, content in contents))


def expected_answer(labels: tuple[str, ...], logits: np.ndarray) -> SelfTestAnswer:
    """Logits (C,) in label order -> what a self-test expects."""
    second, best = np.sort(logits)[-2:] if len(logits) > 1 else (logits[0], logits[0])
    return SelfTestAnswer(label=labels[int(logits.argmax())], logit=float(logits.max()), margin=float(best - second))


def compared(
    bundle: Bundle, head: str, target: str, answers: Sequence[Answered], ran_on: str, encoder: str = ""
) -> Check:
    """The answers of one recogniser to the bundle's own photos, beside those that its self-test expects.

    Args:
        encoder: target of the encoder, where answers of a native head were expected behind another one. Features of
            the two may differ: then those of this encoder's own head are expected, with the larger tolerance of both.
    """
    test = bundle.manifest.head(head).self_test
    assert test is not None  # noqa: S101  # callers looked
    whose = next(name for name in (encoder or target, EAGER) if name in test.answers)
    tolerance = max(test.tolerance.get(name.split(":")[1], 0.0) for name in (target, encoder or target))
    failures, same, largest = list[str](), 0, 0.0
    for photo, got, want in zip(bundle.manifest.self_test_photos, answers, test.answers[whose], strict=True):
        off = abs(float(got.logits.max()) - want.logit)
        same += got.labels[0] == want.label
        largest = max(largest, off)
        # The other way round, so that what is not a number fails.
        if not (off <= tolerance and (got.labels[0] == want.label or want.margin <= tolerance)):
            failures.append(
                f"{photo.file}: expected '{want.label}' with logit {want.logit:.4f}, got '{got.labels[0]}' with"
                f" {float(got.logits.max()):.4f} (tolerance {tolerance})"
            )
    return Check(head, target, ran_on, "", len(answers), same, largest, tolerance, whose, tuple(failures))


def accepted_encoders(bundle: Bundle, head: str, native: Artifact) -> Iterator[tuple[str, str]]:
    """Encoders, by runtime and precision, whose features a native head accepts. Its expected answers are those behind
    the first one."""
    return (p for p in bundle.targets(head) if bundle.artifact("encoder", *p).feature_space in native.accepts)


def ensure_checked(
    bundle: Bundle,
    head: str,
    runtime: str,
    precision: str,
    provider: str,
    load: Callable[[], AbstractContextManager[Replays[Answered]]],
    encoder: str = "",
) -> None:
    """On arm64, where runtimes differ most between processors: runs the self-test of one head and target the first time
    that this machine loads them, before the first answer.

    The first time is one for each bundle, version of the runtime and release of the operating system. What passed is
    noted in ``refocus/checks`` below the user's cache folder; what failed is tested again at the next load. A bundle
    without a self-test passes.

    Args:
        load: opens a recogniser of that head and target, of nobody.
        encoder: of a native head, the target of the encoder that it serves behind.

    Raises:
        BundleError: this machine computes another answer than the bundle expects.
        RuntimeUnavailable: the runtime is not installed.
    """
    if _checking.get() or platform.machine().lower() not in ARM64 or bundle.manifest.head(head).self_test is None:
        return
    if runtime not in RUNTIMES:  # which loading it will say
        return
    role, target = "head" if runtime == "native" else "encoder", f"{runtime}:{precision}"
    artifact = bundle.artifact(role, runtime, precision, head)
    version, other = loader_of(artifact).VERSION, ""
    if role == "head":
        other = "" if ":".join(next(accepted_encoders(bundle, head, artifact))) == encoder else encoder
    passed = _passed_file(bundle, head, target, provider, version, *([other] if other else []))
    if passed is not None and passed.exists():
        return
    with checking(), load() as recognizer:
        found = compared(bundle, head, target, answer_all(bundle, recognizer), "", other)
    if found.failures:
        raise BundleError(
            f"{bundle.folder} fails its self-test on this processor with {runtime} {version}:"
            f" {found.failures[0]}; install another version of {runtime}"
        )
    if passed is None:
        return
    with suppress(OSError):  # then it is tested again at the next load
        passed.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        passed.touch()


@contextmanager
def checking() -> Iterator[None]:
    """Inside, recognisers are those of a self-test, and need none before they answer."""
    token = _checking.set(True)
    try:
        yield
    finally:
        _checking.reset(token)


def _passed_file(bundle: Bundle, *about: str) -> Path | None:
    """The file that is there once a self-test has passed; its name says what it depends on. None: nothing is kept."""
    manifest = hashlib.sha256(msgspec.json.encode(bundle.manifest)).hexdigest()
    parts = manifest, *about, platform.machine(), platform.system(), platform.release()
    cache = cache_folder()
    return cache / "checks" / hashlib.sha256("\n".join(parts).encode()).hexdigest() if cache is not None else None
