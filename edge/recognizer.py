"""Photo in, ranked labels out, history grown by one."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from edge.bundle import Bundle
from edge.errors import BundleError, RefocusError
from edge.history import CAPACITY, FeatureHistory
from edge.preprocess import preprocess

_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Answer:
    """What the recogniser says about one photo.

    Notation: C classes, n history photos used.

    Attributes:
        labels: the C labels, most likely first.
        probabilities: (C,) in the same order.
        personalised: False while the plain classifier answers (history shorter than the warm-up).
        logits: (C,) of the delivered answer, in the manifest's label order.
        plain_logits: (C,) of the classifier without history.
        calibrated_logits: (C,) of the head with history, whether delivered or not.
        attention: (n + 1,) weight of each history photo, oldest first, and last of the photo itself.
        feature: (D,) of the photo.
    """

    labels: tuple[str, ...]
    probabilities: np.ndarray
    personalised: bool
    logits: np.ndarray
    plain_logits: np.ndarray
    calibrated_logits: np.ndarray
    attention: np.ndarray
    feature: np.ndarray


class Recognizer:
    """One bundle at work for one person.

    Args:
        bundle: a verified bundle.
        profile: file of the person's history; None keeps nothing.
        runtime, precision: which artifacts to use.
        threads: threads inside one operator; 0 leaves it to the runtime.
        capacity: features kept per feature space.

    Raises:
        BundleError: the bundle has no such artifacts, or its head refuses this encoder's features.
        RuntimeUnavailable: the runtime is not installed or refused.
        HistoryError: the profile cannot be opened.
    """

    def __init__(
        self,
        bundle: Bundle,
        profile: Path | None = None,
        runtime: str = "onnxruntime",
        precision: str = "fp32",
        threads: int = 0,
        capacity: int = CAPACITY,
    ) -> None:
        self.manifest = bundle.manifest
        self.encoder = bundle.load("encoder", runtime, precision, threads)
        self.head = bundle.load("head", runtime, precision, threads)
        self.space = self.encoder.artifact.feature_space or ""
        if self.space not in self.head.artifact.accepts:
            raise BundleError(f"{self.head.artifact.file} does not accept features of {self.encoder.artifact.file}")
        self.window = bundle.manifest.personalisation.window
        self.width = int(self.encoder.artifact.outputs[0].shape[-1])
        self.history = FeatureHistory(profile, max(capacity, self.window)) if profile is not None else None

    def recognize(self, content: bytes, where: str = "photo", remember: bool = True) -> Answer:
        """Recognises one photo and, once the answer is known, remembers its feature.

        Args:
            content: encoded bytes of the photo.
            where: named in errors.
            remember: False leaves the history as it is.

        Raises:
            PhotoError: not one whole photo; the history is unchanged.
            HistoryError: the history could not be read or written.
        """
        feature = self.encode(content, where)
        photo = hashlib.sha256(content).hexdigest()
        answer = self.answer(feature, self._recall(photo))
        if remember and self.history is not None:
            self.history.append(self.space, photo, feature)
        return answer

    def encode(self, content: bytes, where: str = "photo") -> np.ndarray:
        """One photo -> its feature (D,)."""
        pixels = preprocess(content, self.manifest.preprocessing, where)
        feature: np.ndarray = self.encoder.run(photo=pixels)["feature"][0]
        return feature

    def answer(self, feature: np.ndarray, history: np.ndarray) -> Answer:
        """The head alone: a feature (D,) and a history (n, D), oldest first, of which the newest ``window`` count."""
        history = history[-self.window :] if self.window else history[:0]
        padded = np.zeros((1, self.window, self.width), dtype=np.float32)
        padded[0, self.window - len(history) :] = history
        out = self.head.run(feature=feature[None], history=padded, history_length=np.array([len(history)]))
        personalised = len(history) >= self.manifest.personalisation.warm_up
        logits = out["logits" if personalised else "plain_logits"][0]
        order = np.argsort(-logits, kind="stable")
        return Answer(
            labels=tuple(self.manifest.labels[i] for i in order),
            probabilities=softmax(logits)[order],
            personalised=personalised,
            logits=logits,
            plain_logits=out["plain_logits"][0],
            calibrated_logits=out["logits"][0],
            attention=out["attention"][0, self.window - len(history) :],
            feature=feature,
        )

    def _recall(self, photo: str) -> np.ndarray:
        if self.history is None:
            return np.zeros((0, self.width), dtype=np.float32)
        return self.history.recent(self.space, self.window, self.width, before=photo)

    def close(self) -> None:
        if self.history is not None:
            self.history.close()

    def __enter__(self) -> Recognizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def profile_path(folder: Path, name: str) -> Path:
    """Where a profile's history lives.

    Raises:
        RefocusError: the name could leave the folder.
    """
    if not _PROFILE_NAME.fullmatch(name):
        raise RefocusError(f"--profile '{name}': use letters, digits, '.', '_' and '-', at most 64, no leading '.'")
    return folder / f"{name}.history.sqlite3"


def self_test(bundle: Bundle, runtime: str = "onnxruntime", precision: str = "fp32") -> list[str]:
    """Recognises the bundle's own photos in order, from an empty history; returns one line per disagreement."""
    test = bundle.manifest.self_test
    if test is None:
        return ["the bundle carries no self-test"]
    failures: list[str] = []
    features: list[np.ndarray] = []
    recognizer = Recognizer(bundle, runtime=runtime, precision=precision)
    for photo in test.photos:
        feature = recognizer.encode((bundle.folder / photo.file).read_bytes(), photo.file)
        history = np.stack(features) if features else np.zeros((0, recognizer.width), dtype=np.float32)
        answer = recognizer.answer(feature, history)
        features.append(feature)
        off = abs(float(answer.logits.max()) - photo.logit)
        if answer.labels[0] != photo.label or not off <= test.tolerance:
            failures.append(
                f"{photo.file}: expected '{photo.label}' with logit {photo.logit:.4f}, got '{answer.labels[0]}' with"
                f" {float(answer.logits.max()):.4f} (tolerance {test.tolerance})"
            )
    return failures


def softmax(logits: np.ndarray) -> np.ndarray:
    """(C,) logits -> (C,) probabilities."""
    exponentials = np.exp(logits - logits.max())
    probabilities: np.ndarray = exponentials / exponentials.sum()
    return probabilities
