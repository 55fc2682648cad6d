"""Photo in, ranked labels out, history grown by one."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np

from edge.bundle import Bundle
from edge.errors import BundleError, RefocusError
from edge.history import CAPACITY, FeatureHistory, Remembered
from edge.preprocess import preprocess

ROWS_KEPT = 4096  # rows of derived state kept in memory; what is not kept is computed again
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Answer:
    """What the recogniser says about one photo.

    Notation: C classes, n history photos used.

    Attributes:
        labels: the C labels, most likely first.
        probabilities: (C,) in the same order.
        trust: weight of the answer with history in the delivered one, in [0, 1]; 0: the plain classifier answers.
        logits: (C,) of the delivered answer, in the manifest's label order.
        plain_logits: (C,) of the classifier without history.
        calibrated_logits: (C,) of the head with history, however much of it was delivered.
        attention: (n + 1,) weight of each history photo, oldest first, and last of the photo itself.
        feature: (D,) of the photo.
        history_photos, history_names: identity and name of each history photo, oldest first, where they are known.
    """

    labels: tuple[str, ...]
    probabilities: np.ndarray
    trust: float
    logits: np.ndarray
    plain_logits: np.ndarray
    calibrated_logits: np.ndarray
    attention: np.ndarray
    feature: np.ndarray
    history_photos: tuple[str, ...] = ()
    history_names: tuple[str, ...] = ()

    @property
    def personalised(self) -> bool:
        """Whether the history had more say in the answer than the photo alone."""
        return self.trust > 0.5


class Recognizer:
    """One bundle at work for one person.

    Args:
        bundle: a verified bundle.
        profile: file of the person's history; None keeps nothing.
        runtime, precision: which artifacts to use.
        threads: threads inside one operator; 0 leaves it to the runtime.
        capacity: features kept per feature space.
        head: name of the head; default: the bundle's first.
        provider: part of the device to run on, in the runtime's words.
        allow_fallback: False refuses to run what that part does not take.

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
        head: str = "",
        provider: str = "",
        allow_fallback: bool = True,
    ) -> None:
        self.manifest, self.card = bundle.manifest, bundle.manifest.head(head)
        where = threads, head, provider, allow_fallback
        self.encoder = bundle.load("encoder", runtime, precision, *where)
        self.head = bundle.load("head", runtime, precision, *where)
        self.space = self.encoder.artifact.feature_space or ""
        if self.space not in self.head.artifact.accepts:
            raise BundleError(f"{self.head.artifact.file} does not accept features of {self.encoder.artifact.file}")
        self.window = self.card.personalisation.window
        self.width = int(self.encoder.artifact.outputs[0].shape[-1])
        self.state_shapes = {state.name: state.shape for state in self.card.state}
        self.derived = tuple(state for state in self.card.state if state.source != "feature")
        self._rows: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()
        self.capacity = max(capacity, self.window)
        self.history: FeatureHistory | None = None
        self.switch(profile)

    def switch(self, profile: Path | None) -> None:
        """Serves another person from now on. The programs stay loaded.

        Raises:
            HistoryError: the profile cannot be opened; the recogniser then serves nobody's history.
        """
        self.close()
        self._rows.clear()
        self.history = FeatureHistory(profile, self.capacity) if profile is not None else None

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
        past = self._recall(photo)
        answer = self.answer(feature, past.features, (*past.photos, photo))
        if remember and self.history is not None:
            self.history.append(self.space, photo, feature, where)
        return replace(answer, history_photos=past.photos, history_names=past.names)

    def encode(self, content: bytes, where: str = "photo") -> np.ndarray:
        """One photo -> its feature (D,)."""
        return self.feature_of(preprocess(content, self.manifest.preprocessing, where))

    def feature_of(self, pixels: np.ndarray) -> np.ndarray:
        """One preprocessed photo (1, 3, S, S) -> its feature (D,)."""
        feature: np.ndarray = self.encoder.run(photo=pixels)["feature"][0]
        return feature

    def answer(self, feature: np.ndarray, history: np.ndarray, photos: Sequence[str] = ()) -> Answer:
        """The head alone.

        Args:
            feature: (D,) of the photo.
            history: (n, D), oldest first, of which the newest ``window`` count.
            photos: identities of the history's photos and of this one; default: the features identify themselves.
        """
        photos = photos or [hashlib.sha256(row.tobytes()).hexdigest() for row in (*history, feature)]
        kept = min(self.window, len(history))
        history, past = history[len(history) - kept :], photos[len(history) - kept : -1]
        derived = {s.name: self._derived(s.source, history, past) for s in self.derived}
        out = self._run(feature, history, derived, photos[-1])
        order = np.argsort(-out["logits"][0], kind="stable")
        return Answer(
            labels=tuple(self.card.labels[i] for i in order),
            probabilities=softmax(out["logits"][0])[order],
            trust=float(out["trust"][0]),
            logits=out["logits"][0],
            plain_logits=out["plain_logits"][0],
            calibrated_logits=out["calibrated_logits"][0],
            attention=out["attention"][0, self.window - len(history) :],
            feature=feature,
        )

    def _run(self, feature: np.ndarray, history: np.ndarray, derived: dict[str, np.ndarray], photo: str
             ) -> dict[str, np.ndarray]:  # fmt: skip
        """The head's program; rows of state (n, ...) are padded in front to the window."""
        padded = {name: np.zeros((1, *shape), dtype=np.float32) for name, shape in self.state_shapes.items()}
        for name, values in {"history": history, **derived}.items():
            if len(values):
                padded[name][0, self.window - len(values) :] = values
        out = self.head.run(feature=feature[None], history_length=np.array([len(history)]), **padded)
        for state in self.derived:
            self._rows[state.source, photo] = out[state.source][0]
        while len(self._rows) > ROWS_KEPT:
            self._rows.popitem(last=False)
        return out

    def _derived(self, source: str, history: np.ndarray, photos: Sequence[str]) -> np.ndarray:
        """The rows that the program returned, or now returns, for each photo of the history: (n, ...).

        They depend on the photo's own feature alone, so nothing but features need be stored.
        """
        rows = []
        for feature, photo in zip(history, photos, strict=True):
            row = self._rows.get((source, photo))
            rows.append(self._run(feature, history[:0], {}, photo)[source][0] if row is None else row)
        return np.stack(rows) if rows else np.zeros((0, 0), dtype=np.float32)

    def _recall(self, photo: str) -> Remembered:
        if self.history is None:
            return Remembered(np.zeros((0, self.width), dtype=np.float32), (), ())
        return self.history.recall(self.space, self.window, self.width, before=photo)

    def close(self) -> None:
        if self.history is not None:
            self.history.close()
            self.history = None

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


def softmax(logits: np.ndarray) -> np.ndarray:
    """(C,) logits -> (C,) probabilities."""
    exponentials = np.exp(logits - logits.max())
    probabilities: np.ndarray = exponentials / exponentials.sum()
    return probabilities
