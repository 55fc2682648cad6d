"""Photo in, ranked labels out, history grown by one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from refocus.edge.bundle.load import Bundle
from refocus.edge.errors import BundleError, HistoryError, PersonalWeightsError, PhotoError, RefocusError
from refocus.edge.history.feature_history import PROTECT, FeatureHistory, RetentionPolicy
from refocus.edge.history.recovery import Recovery
from refocus.edge.personal.programs import PersonalPrograms, ResolvedPrograms
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.photos.decode import decode
from refocus.edge.photos.preprocess import prepare, preprocess
from refocus.edge.recognize.head_state import Outputs, make_head_state
from refocus.edge.recognize.history_selection import HISTORY_SELECTIONS, HistorySelection, Named
from refocus.edge.recognize.self_test import ensure_checked
from refocus.edge.runtimes import load_program

_PROFILE_ENDING = ".history.sqlite3"
AT_ONCE = {"tensorrt": 8}  # photos that an encoder for any number takes at once: engines are built for so many
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What a photo goes through, in order.
STAGES = ("decode", "preprocess", "identity", "encoder", "history read", "head", "append")


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
        notices: what the person should know of this photo's history: that the photo was not stored and why, that the
            history could not be read, or that it was damaged and what was lost.
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
    notices: tuple[str, ...] = ()

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
        head: name of the head; default: the bundle's first.
        provider: part of the device to run on, in the runtime's words.
        allow_fallback: False refuses to run what that part does not take.
        memory: which stored photos stand before a new one: "newest"; or, for heads that see a window, "spread" or
            "similar", a sample or the most similar ones of a long history
            (:mod:`refocus.edge.recognize.history_selection`).
        weights: personal weights of the profiles, by the profile's name; None: nobody has any.
        time_limit: seconds that one run of a program may take, on ONNX Runtime alone; 0 sets none. Loading is not
            limited.
        keeping: how much of the history is kept, and how safely; never less than the head's window.

    Attributes:
        mark: called with its name of ``STAGES`` at the end of each stage of a photo, for those who measure.

    Raises:
        BundleError: the bundle has no such artifacts, its head refuses this encoder's features, or, on arm64, it fails
            its self-test (:func:`refocus.edge.recognize.self_test.ensure_checked`).
        RuntimeUnavailable: the runtime is not installed, is refused, or knows no time limit.
        HistoryError: the profile cannot be opened.
    """

    def __init__(
        self,
        bundle: Bundle,
        profile: Path | None = None,
        runtime: str = "onnxruntime",
        precision: str = "fp32",
        threads: int = 0,
        head: str = "",
        provider: str = "",
        allow_fallback: bool = True,
        memory: str = "newest",
        keeping: RetentionPolicy = RetentionPolicy(),  # noqa: B008  # frozen
        weights: PersonalWeightStore | None = None,
        time_limit: float = 0,
    ) -> None:
        if memory not in HISTORY_SELECTIONS:
            raise RefocusError(f"--memory {memory}: expected {' or '.join(HISTORY_SELECTIONS)}")
        self.manifest, self.card = bundle.manifest, bundle.manifest.head(head)
        target = self.card.name, runtime, precision, provider
        ensure_checked(
            bundle, *target, lambda: Recognizer(bundle, None, runtime, precision, 1, self.card.name, provider)
        )
        where = threads, head, provider, allow_fallback
        encoder = bundle.artifact("encoder", runtime, precision)
        self.head = load_program(bundle, "head", runtime, precision, *where, time_limit=time_limit)
        self._encoders = PersonalPrograms(
            partial(load_program, bundle, "encoder", runtime, precision, *where, time_limit=time_limit),
            weights,
            defaults=bundle.defaults(encoder),
            head=(self.head.artifact, bundle.defaults(self.head.artifact)),
        )
        self._take(self._encoders.nobody)
        if self.space not in self.head.artifact.accepts:
            raise BundleError(f"{self.head.artifact.file} does not accept features of {self.encoder.artifact.file}")
        self.window = self.card.personalisation.window
        self.mark: Callable[[str], object] = lambda stage: None
        self._told: Recovery | None = None
        self._labels = np.array(self.card.labels, dtype=object)
        self.width = int(self.encoder.artifact.outputs[0].shape[-1])
        self.keeping = keeping
        self.history: FeatureHistory | None = None
        self._make_memory = HISTORY_SELECTIONS[memory]
        self._memory: HistorySelection | None = None
        self._state: Literal["open", "left", "closed"] = "left"
        try:
            self._serve(profile)
            self._past = make_head_state(self.head, self.card, self._head_inputs)
            self._remember(profile)
        except BaseException:
            self.close()
            raise

    def switch(self, profile: Path | None) -> None:
        """Serves another person from now on, with their history and their personal weights. Programs stay loaded.

        After an error, :meth:`recognize` raises RefocusError until a switch succeeds: no photo is answered without the
        person's history unnoticed.

        Raises:
            HistoryError: the profile cannot be opened.
            PersonalWeightsError: the person's weights are damaged or do not fit; damaged ones are set aside.
            RefocusError: the recogniser is closed.
        """
        self.leave()
        self._check("left")
        before = self.space
        self._serve(profile)
        if self.space != before:  # what was derived from other features, or by another head, is worth nothing
            self._past = make_head_state(self.head, self.card, self._head_inputs)
        self._remember(profile)

    def _serve(self, profile: Path | None) -> None:
        try:
            served = self._encoders.of(profile_name(profile) if profile else "")
        except PersonalWeightsError:
            self._take(self._encoders.nobody)  # never the one before, whatever the caller does next
            self._past = make_head_state(self.head, self.card, self._head_inputs)
            raise
        self._take(served)

    def _take(self, served: ResolvedPrograms) -> None:
        self.encoder, self.space = served.program, served.space
        self._inputs, self._head_inputs = served.inputs, served.head_inputs

    def _remember(self, profile: Path | None) -> None:
        """Opens the person's history."""
        if profile is not None:
            kept = replace(self.keeping, capacity=max(self.keeping.capacity, self.window))
            self.history = FeatureHistory(profile, **asdict(kept), protect=max(PROTECT, self.window))
            try:
                self._memory = self._make_memory(self.history, self.space, self.width, self.card, self._past)
            except BaseException:
                self.leave()
                raise
        self._state = "open"

    def _check(self, least: Literal["open", "left"]) -> None:
        """Raises RefocusError where the recogniser is closed, or has left its profile and may not."""
        if self._state == "closed":
            raise RefocusError("this recognizer is closed; make a new one")
        if self._state == "left" and least == "open":
            raise RefocusError("this recognizer has closed its profile, or failed to open another; call switch first")

    def recognize(self, content: bytes, where: str = "photo", remember: bool = True) -> Answer:
        """Recognises one photo and, once the answer is known, remembers its feature.

        A photo that is stored already is recognised from the photos before it, and stays where it is.

        Args:
            content: encoded bytes of the photo.
            where: named in errors.
            remember: False leaves the history as it is.

        A history that cannot be read or written, as on a full disk, stops no photo: it is answered, without its history
        if need be, and :attr:`Answer.notices` says so.

        Raises:
            PhotoError: not one whole photo, or the programs gave NaN or infinite numbers; the history is unchanged.
            BundleError: a program fails, gives other outputs than its manifest says, or took longer than it may.
        """
        image = decode(content, where, self.manifest.preprocessing.apply_exif_orientation)
        self.mark("decode")
        pixels = prepare(image, self.manifest.preprocessing)
        self.mark("preprocess")
        photo = hashlib.sha256(content).hexdigest()
        self.mark("identity")
        return self.recognize_pixels(pixels, photo, where, remember)

    def recognize_pixels(self, pixels: np.ndarray, photo: str, name: str = "", remember: bool = True) -> Answer:
        """As :meth:`recognize`, for a photo that was decoded and prepared elsewhere.

        Args:
            pixels: (1, 3, S, S) float32, as the manifest's preprocessing makes them.
            photo: what identifies the photo; two photos of one identity are taken for the same.
            name: where the photo is, for explanations.

        Raises:
            RefocusError: the recogniser is closed, or its last switch failed.
        """
        self._check("open")
        feature = self.feature_of(pixels)
        self.mark("encoder")
        if self._memory is None:
            return self._answer_alone(feature, photo)
        try:
            before, known = self._memory.recall(feature, photo)
        except HistoryError as error:
            answer = self._answer_alone(feature, photo)
            return self._noticed(answer, f"answered without the history, and not stored: {error}")
        self.mark("history read")
        answer = self._answer(*self._past.answer(feature, photo), feature, before)
        self.mark("head")
        if remember and not known:
            try:
                self._memory.remember(feature, photo, name)
            except HistoryError as error:
                return self._noticed(answer, f"the photo was not stored: {error}")
            self.mark("append")
        return self._noticed(answer)

    def _answer_alone(self, feature: np.ndarray, photo: str) -> Answer:
        answer = self.answer(feature, np.zeros((0, self.width), dtype=np.float32), [photo])
        self.mark("head")
        return answer

    def _noticed(self, answer: Answer, *notices: str) -> Answer:
        """An answer with notices, and what became of the history since the last one."""
        recovered = self.history.recovered if self.history is not None else None
        if recovered is not None and recovered is not self._told:
            notices = (str(recovered), *notices)
        self._told = recovered
        return replace(answer, notices=notices) if notices else answer

    def stored(self, feature: np.ndarray, photo: str, name: str) -> None:
        """The caller has just stored the photo that was answered last, as the newest, by one write to :attr:`history`.

        Without this the past is read again before the next photo, as after a write by somebody else.
        """
        if self._memory is not None:
            self._memory.stored(feature, photo, name)

    def encode(self, content: bytes, where: str = "photo") -> np.ndarray:
        """One photo -> its feature (D,)."""
        return self.feature_of(preprocess(content, self.manifest.preprocessing, where))

    def feature_of(self, pixels: np.ndarray) -> np.ndarray:
        """One preprocessed photo (1, 3, S, S) -> its feature (D,).

        Raises:
            PhotoError: it has NaN or infinite numbers.
        """
        self._check("left")
        feature: np.ndarray = self.encoder.run(photo=pixels, **self._inputs)["feature"][0]
        _check_finite(feature, f"the feature of the encoder {self.encoder.artifact.file}")
        return feature

    def features_of(self, pixels: np.ndarray) -> np.ndarray:
        """Preprocessed photos (B, 3, S, S), B > 0 -> their features (B, D); in parts where the encoder takes fewer.

        A row may have NaN or infinite numbers, which no history stores and no head answers: check each.
        """
        self._check("left")
        at_once = self.encoder.artifact.inputs[0].shape[0]
        if isinstance(at_once, str):  # free
            at_once = AT_ONCE.get(self.encoder.artifact.runtime, len(pixels))
        parts = [pixels[start : start + at_once] for start in range(0, len(pixels), at_once)]
        return np.concatenate([self.encoder.run(photo=part, **self._inputs)["feature"] for part in parts])

    def answer_next(self, feature: np.ndarray) -> Answer:
        """The answer to a photo of feature (D,) after the photos that are in memory now; it is not remembered."""
        self._check("open")
        return self._answer(*self._past.answer(feature, _identity(feature)), feature)

    def replay(self, features: Iterable[np.ndarray]) -> Iterator[Answer]:
        """Features (D,) of one person's photos in order -> the answer to each, from an empty history kept in memory.

        One replay at a time, and nothing else in between.
        """
        self._check("left")
        self._lose_memory()
        self._past.restart(np.zeros((0, self.width), dtype=np.float32), ())
        for feature in features:
            itself = _identity(feature)
            yield self._answer(*self._past.answer(feature, itself), feature)
            self._past.take_in(feature, itself)

    def answer(self, feature: np.ndarray, history: np.ndarray, photos: Sequence[str] = ()) -> Answer:
        """The head alone, over a history of the caller's.

        Args:
            feature: (D,) of the photo.
            history: (n, D), oldest first, of which the newest ``window`` count.
            photos: identities of the history's photos and of this one; default: the features identify themselves.
        """
        self._check("left")
        kept = min(self.window, len(history))
        history, photos = history[len(history) - kept :], photos[len(photos) - kept - 1 :]
        photos = photos or [_identity(row) for row in (*history, feature)]
        self._lose_memory()
        self._past.restart(history, photos[:-1])
        return self._answer(*self._past.answer(feature, photos[-1]), feature)

    def _lose_memory(self) -> None:
        if self._memory is not None:
            self._memory.lost()

    def _answer(self, out: Outputs, attention: np.ndarray, feature: np.ndarray, before: Sequence[Named] = ()) -> Answer:
        # The program writes its next answer where this one is.
        plain, calibrated, logits = (out[name][0].copy() for name in ("plain_logits", "calibrated_logits", "logits"))
        for numbers in (feature, plain, calibrated, logits, out["trust"], attention):
            _check_finite(numbers, f"the answer of the head {self.card.name}")
        order = np.argsort(-logits, kind="stable")
        return Answer(
            labels=tuple(self._labels[order]),
            probabilities=softmax(logits)[order],
            trust=float(out["trust"][0]),
            logits=logits,
            plain_logits=plain,
            calibrated_logits=calibrated,
            attention=attention,
            feature=feature,
            history_photos=tuple(photo for photo, _ in before),
            history_names=tuple(name for _, name in before),
        )

    def leave(self) -> None:
        """Closes the profile; the programs stay loaded for :meth:`switch`."""
        self._memory = None
        if self._state == "open":
            self._state = "left"
        history, self.history = self.history, None
        if history is not None:
            history.close()

    def close(self) -> None:
        """Closes the profile and frees the programs. Nothing can be asked of the recogniser afterwards."""
        if self._state == "closed":
            return
        self._state = "closed"
        try:
            self.leave()
        finally:
            self.__dict__.pop("_past", None)  # its bound calls keep the head's program
            self.head.close()
            self._encoders.close()

    def __enter__(self) -> Recognizer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _check_finite(numbers: np.ndarray, what: str) -> None:
    """Raises:
    PhotoError: some are NaN or infinite.
    """
    if not np.isfinite(numbers).all():
        raise PhotoError(
            f"{what} has NaN or infinite numbers; the photo was not stored; if other photos fail too, run refocus"
            " check, and choose another precision or bundle"
        )


def profile_name(path: Path) -> str:
    """The name of the profile whose history lives at a path."""
    return path.name.removesuffix(_PROFILE_ENDING)


def profile_path(folder: Path, name: str) -> Path:
    """Where a profile's history lives.

    Raises:
        RefocusError: the name could leave the folder.
    """
    if not _PROFILE_NAME.fullmatch(name):
        raise RefocusError(f"--profile '{name}': use letters, digits, '.', '_' and '-', at most 64, no leading '.'")
    return folder / f"{name}{_PROFILE_ENDING}"


def _identity(feature: np.ndarray) -> str:
    """Of a photo of which nothing but the feature is known."""
    return hashlib.sha256(feature.tobytes()).hexdigest()


def softmax(logits: np.ndarray) -> np.ndarray:
    """(C,) logits -> (C,) probabilities."""
    exponentials = np.exp(logits - logits.max())
    probabilities: np.ndarray = exponentials / exponentials.sum()
    return probabilities
