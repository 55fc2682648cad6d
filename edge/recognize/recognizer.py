"""Recogniser: takes a photo, returns ranked labels, and appends the photo's feature to the history."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from refocus.edge.bundle.load import Bundle, load_bundle
from refocus.edge.bundle.manifest import Artifact, Manifest
from refocus.edge.errors import BundleError, HistoryError, PersonalWeightsError, PhotoError, RefocusError
from refocus.edge.files import default_bundle, default_profiles, printable
from refocus.edge.history.damage import Unwritable
from refocus.edge.history.feature_history import CAPACITY, PROTECT, FeatureHistory, RetentionPolicy
from refocus.edge.history.likely_classes import Classifier, LikelyClasses
from refocus.edge.history.recovery import Recovery
from refocus.edge.personal.programs import PersonalPrograms, ResolvedPrograms
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.photos.decode import from_image
from refocus.edge.photos.preprocess import decode_for, prepare, preprocess, preprocess_folder, read_photo, refuse_image
from refocus.edge.recognize.chosen_target import target_for
from refocus.edge.recognize.head_state import ROWS_KEPT, Outputs, make_head_state
from refocus.edge.recognize.history_selection import HISTORY_SELECTIONS, HistorySelection, Named
from refocus.edge.recognize.label_sets import AnyShares, probabilities_of, settings_of, shares_of
from refocus.edge.recognize.profile_shares import ProfileShares, Shared, shared
from refocus.edge.recognize.rejection import KnownScores, known_scores_of, length_of
from refocus.edge.recognize.self_test import ensure_checked
from refocus.edge.recognize.serving_head import NATIVE, load_head
from refocus.edge.runtimes import NATIVE_PRECISIONS, Program, load_program

_BY_LARGEST = 16  # so few labels are found one after the other sooner than all are ranked
_PROFILE_ENDING = ".history.sqlite3"
AT_ONCE = {"tensorrt": 8}  # photos that an encoder for any number takes at once: engines are built for so many
MAX_THREADS = 256  # a runtime starts as many as it is told, and takes minutes for millions
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What a photo goes through, in order.
STAGES = ("decode", "preprocess", "identity", "encoder", "history read", "head", "append")


class Displayed(NamedTuple):
    """Label of an answer, as it is displayed.

    Attributes:
        label: the label.
        confidence: mean of its probabilities with and without history; the number to show.
        probability: its probability with history.
    """

    label: str
    confidence: float
    probability: float


@dataclass(frozen=True)
class Answer:
    """What the recogniser says about one photo.

    Notation: C classes, n history photos used.

    Labels are ranked when they are asked for.

    Attributes:
        names: (C,) the labels in the manifest's order.
        trust: weight of the answer with history in the delivered one, in [0, 1]; 0: the plain classifier answers.
        logits: (C,) of the delivered answer, in the manifest's label order.
        plain_logits: (C,) of the classifier without history, as the program gives them.
        calibrated_logits: (C,) of the head with history, however much of it was delivered.
        attention: (n + 1,) weight of each history photo, oldest first, and last of the photo itself.
        feature: (D,) of the photo.
        history: identity and name of each history photo, oldest first, where they are known.
        notices: what the person should know of this photo's history: that the photo was not stored and why, that the
            history could not be read, or that it was damaged and what was lost.
        shared: what class shares did to the answer; None where they have no part in it.
        thresholds: (C,) of a bundle whose answers are sets of labels, the least probability of each; None of any other.
        known_scores: scores of correct answers; None: the bundle has no rejection threshold.
    """

    names: np.ndarray
    trust: float
    logits: np.ndarray
    plain_logits: np.ndarray
    calibrated_logits: np.ndarray
    attention: np.ndarray
    feature: np.ndarray
    history: tuple[Named, ...] = ()
    notices: tuple[str, ...] = ()
    shared: Shared | None = None
    thresholds: np.ndarray | None = None
    known_scores: KnownScores | None = None

    @cached_property
    def known_score(self) -> float:
        """Score of the hypothesis that the photo shows one of the labels.

        It is the largest logit of the classifier without history, as the program gives it, divided by the length of the
        feature if the bundle has quantiles of it.
        """
        return (self.known_scores or KnownScores()).score(self.plain_logits, length_of(self.feature))

    @property
    def rejection(self) -> float | None:
        """Return the minimum score of known photos, or None without one."""
        return None if self.known_scores is None else self.known_scores.rejection

    @property
    def is_known(self) -> bool:
        """Whether the photo shows one of the labels; if not, it is a guess."""
        return self.rejection is None or self.known_score >= self.rejection

    @property
    def confidence(self) -> float:
        """Return the mean probability of the label with and without history.

        With history alone, it is too high for photos that show none of the labels.
        """
        return self.displayed(1)[0].confidence

    def displayed(self, count: int = 5) -> tuple[Displayed, ...]:
        """Return the ``count`` most likely labels as they are displayed.

        They keep the order of the answer. Labels of probability 0, as the classes that a condensed bundle masks, are
        left out.
        """
        order, several = best(self.logits, count), self.thresholds is not None
        found, alone = (probabilities_of(logits, several)[order] for logits in (self.logits, self.alone_logits))
        rows = zip(self.names[order], ((found + alone) / 2).tolist(), found.tolist(), strict=True)
        return tuple(Displayed(*row) for row in rows if several or row[1] > 0)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The C labels, most likely first; of equal ones that of the lower number is first."""
        return tuple(self.names[best(self.logits, len(self.logits))])

    @cached_property
    def probabilities(self) -> np.ndarray:
        """(C,) in the order of :attr:`labels`; they sum to 1, but where photos have several labels."""
        ranked: np.ndarray = self._probabilities()[best(self.logits, len(self.logits))]
        return ranked

    @cached_property
    def label_set(self) -> tuple[tuple[str, float], ...]:
        """The labels of the photo with their probabilities, most likely first.

        Where photos have several labels, those at or above their thresholds, which may be none; else the most likely
        one.
        """
        return self._set_of(self.logits)

    @cached_property
    def plain_label_set(self) -> tuple[tuple[str, float], ...]:
        """As :attr:`label_set`, of the photo without history."""
        return self._set_of(self.alone_logits)

    @property
    def alone_logits(self) -> np.ndarray:
        """(C,) of the photo without history: :attr:`plain_logits`, calibrated where class shares calibrate the
        answer."""
        return self.plain_logits if self.shared is None else self.shared.alone

    def _set_of(self, logits: np.ndarray) -> tuple[tuple[str, float], ...]:
        found, ranked = probabilities_of(logits, self.thresholds is not None), best(logits, len(logits))
        chosen = ranked[:1] if self.thresholds is None else ranked[(found >= self.thresholds)[ranked]]
        return tuple((str(self.names[number]), float(found[number])) for number in chosen)

    def _probabilities(self) -> np.ndarray:
        return probabilities_of(self.logits, self.thresholds is not None)

    @cached_property
    def history_photos(self) -> tuple[str, ...]:
        """Identity of each history photo, oldest first, where they are known."""
        return tuple(photo for photo, _ in self.history)

    @cached_property
    def history_names(self) -> tuple[str, ...]:
        """Name of each history photo, oldest first, where they are known."""
        return tuple(name for _, name in self.history)

    @property
    def label(self) -> str:
        """The most likely label."""
        return str(self.names[int(self.logits.argmax())])

    def top(self, count: int = 5) -> tuple[tuple[str, float], ...]:
        """The ``count`` most likely labels with their probabilities, most likely first; all C where C is less.

        Raises:
            RefocusError: ``count`` is below 1.
        """
        if count < 1:
            raise RefocusError(f"top({count}): expected 1 label or more")
        order = best(self.logits, count)
        names, probabilities = self.names[order].tolist(), self._probabilities()[order].tolist()
        return tuple(zip(names, probabilities, strict=True))

    @property
    def personalised(self) -> bool:
        """Whether the history had more say in the answer than the photo alone."""
        return self.trust > 0.5 or (self.shared is not None and self.shared.trust > 0.5)


class Recognizer:
    """A bundle and the profile of one person.

    A recogniser with a profile is for one thread of one process: the one that made it, or that called :meth:`switch`
    last. Servers recognise in one worker thread, or open one recogniser per thread, and after a fork.

    Args:
        bundle: a verified bundle.
        profile: file of the person's history; None keeps nothing.
        runtime, precision: which artifacts to use.
        threads: threads inside one operator; 0 leaves it to the runtime. ExecuTorch runs all programs of a process on
            as many as the first.
        head: name of the head; default: the bundle's first.
        provider: part of the device to run on, in the runtime's words.
        allow_fallback: False refuses to run what that part does not take.
        memory: which stored photos stand before a new one: "newest"; or, for heads that see a window, "spread" or
            "similar", a sample or the most similar ones of a long history
            (:mod:`refocus.edge.recognize.history_selection`).
        weights: personal weights of the profiles, by the profile's name; None disables personal weights.
        time_limit: seconds that one run of a program may take, on ONNX Runtime alone; 0 sets none. Loading is not
            limited.
        keeping: how much of the history is kept, and how safely; never less than the head's window. Without a number,
            as many photos as the heads of the bundle need, with or without ``shares``, and no fewer than there are.
        shares: whether answers take class shares into account, where the bundle declares them.
        head_target: which program serves as the head, as ``native:w16``; default: the native one where it can run, else
            that of the encoder's target.

    Attributes:
        head_passed_over: why the bundle's native head does not serve; "" where it does, or was not to.
        capacity: photos that a profile keeps.
        looks_back: photos that answers rest on: the head's window or, where class shares are counted, as many as these
            need to say something of the person, if that is more.
        mark: called with its name of ``STAGES`` at the end of each stage of a photo, for those who measure.

    Raises:
        RefocusError: ``memory``, ``threads`` or ``time_limit`` is not one of those expected; or, of every method that
            uses the profile, the recogniser is used from another thread.
        BundleError: the bundle has no such artifacts, its head refuses this encoder's features, or, on arm64, it fails
            its self-test (:func:`refocus.edge.recognize.self_test.ensure_checked`).
        RuntimeUnavailable: the runtime is not installed, is refused, or knows no time limit.
        HistoryError: the profile cannot be opened. One that cannot be written, as on a read-only or full disk, is read
            if it can be, and stops no photo: :attr:`refusal` and the notices of each answer say why nothing is stored.
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
        shares: bool = True,
        head_target: str = "",
    ) -> None:
        if memory not in HISTORY_SELECTIONS:
            raise RefocusError(f"--memory {memory}: expected {' or '.join(HISTORY_SELECTIONS)}")
        if not isinstance(threads, (int, np.integer)) or not 0 <= threads <= MAX_THREADS:
            raise RefocusError(
                f"threads {threads!r}: expected a whole number, 0 to {MAX_THREADS}; 0 leaves it to the runtime"
            )
        if not isinstance(time_limit, (int, float, np.integer, np.floating)) or not time_limit >= 0:
            raise RefocusError(f"time_limit {time_limit!r}: expected seconds, 0 or more; 0 sets no limit")
        self.manifest, self.card = bundle.manifest, bundle.manifest.head(head)
        encoder = bundle.artifact("encoder", runtime, precision)
        runtime, precision = encoder.runtime, encoder.precision  # another name of them may be asked for
        target, stock = (self.card.name, runtime, precision, provider), f"{runtime}:{precision}"
        nobody = partial(Recognizer, bundle, None, runtime, precision, threads, self.card.name, provider)
        ensure_checked(bundle, *target, lambda: nobody(head_target=stock))
        where = threads, head, provider, allow_fallback

        def load_one(artifact: Artifact) -> Program:
            part, fall_back = ("", True) if artifact.runtime == NATIVE else (provider, allow_fallback)
            which = artifact.runtime, artifact.precision, threads, head, part, fall_back
            return load_program(bundle, "head", *which, time_limit=time_limit)

        served = load_head(bundle, encoder, head, head_target, load_one)
        self.head, self.head_passed_over = served.program, served.passed_over
        if self.head.artifact.runtime == NATIVE:
            own = NATIVE, self.head.artifact.precision
            ensure_checked(bundle, self.card.name, *own, provider, lambda: nobody(head_target=":".join(own)), stock)
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
        self._one_at_a_time = threading.RLock()  # of answers without a profile: the head has one memory
        self._told: Recovery | None = None
        self._labels = np.array(self.card.labels, dtype=object)
        self.width = int(self.encoder.artifact.outputs[0].shape[-1])
        self.keeping = keeping
        self._of_clips = self.manifest.preprocessing.of_clips
        self._thresholds = np.array(self.card.thresholds) if isinstance(self.card.thresholds, tuple) else None
        declared = self.card.personalisation.shares if shares else None
        self._counts_shares = declared is not None
        self._known_scores = known_scores_of(self.card) if isinstance(self.card.rejection, float) else None
        self.capacity = max(keeping.capacity or _usual_capacity(self.manifest), self.window)
        needed = settings_of(declared).looks_back if declared is not None else 0
        self.looks_back = max(self.window, min(needed, self.capacity))
        self.history: FeatureHistory | None = None
        self._profile: Path | None = None
        self._unopened = ""  # why the profile that is served has no history
        self._make_memory = HISTORY_SELECTIONS[memory]
        self._memory: HistorySelection | None = None
        self._shares: ProfileShares | None = None
        self._classified: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()  # plain logits of features
        self._state: Literal["open", "left", "closed"] = "left"
        try:
            self._serve(profile)
            self._past = make_head_state(self.head, self.card, self._head_inputs)
            self._remember(profile)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        bundle: str | os.PathLike[str] | None = None,
        profile: str | None = None,
        *,
        profiles: str | os.PathLike[str] | None = None,
        runtime: str = "",
        precision: str = "",
        threads: int = 0,
        head: str = "",
        provider: str = "",
        allow_fallback: bool = True,
        memory: str = "newest",
        keeping: RetentionPolicy = RetentionPolicy(),  # noqa: B008  # frozen
        time_limit: float = 0,
        shares: bool = True,
        head_target: str = "",
    ) -> Recognizer:
        """Opens a bundle's folder for a profile by name, as ``refocus recognize`` does.

        Args:
            bundle: the folder; of its files, those of the chosen target are read and verified. None: the installed
                default bundle.
            profile: name of the person; their history, and their personal weights if there are any, are in
                ``profiles``. None keeps nothing.
            profiles: folder of the profiles; default: the user's data folder, as for the command.
            runtime, precision: which artifacts to use; default: those that ``refocus bench --choose`` found to be the
                fastest here, or else ``onnxruntime`` and ``fp32``.

        The other arguments are those of the class.

        Raises:
            BundleError, RuntimeUnavailable, HistoryError: as for the class; or there is no bundle.
            PersonalWeightsError: the person's weights are damaged or do not fit.
            RefocusError: an argument is not one of those expected.
        """
        bundle = default_bundle() if bundle is None else bundle
        if not isinstance(bundle, str | os.PathLike):
            raise BundleError(f"a bundle of type {type(bundle).__name__}: expected the path of its folder")
        if profile is not None and not isinstance(profile, str):
            raise RefocusError(f"a profile of type {type(profile).__name__}: expected a name, such as 'anna'")
        folder = default_profiles() if profiles is None else Path(profiles)
        path = None if profile is None else profile_path(folder, profile)
        runtime, precision = target_for(Path(bundle), path, head, runtime, precision)
        native = [head_target] if head_target else [f"{NATIVE}:{name}" for name in NATIVE_PRECISIONS]
        opened = load_bundle(Path(bundle), [f"{runtime}:{precision}", *native])
        where = runtime, precision, threads, head, provider, allow_fallback, memory, keeping
        weights: PersonalWeightStore | None = None
        try:
            weights = PersonalWeightStore.beside(folder)
        except PersonalWeightsError:
            if path is not None:  # else nobody's are asked for
                raise
        return cls(opened, path, *where, weights, time_limit, shares, head_target)

    def switch(self, profile: Path | None) -> None:
        """Serves another person from now on, with their history and their personal weights. Programs stay loaded.

        After an error, :meth:`recognize` raises RefocusError until a switch succeeds: no photo is answered without the
        person's history unnoticed.

        Raises:
            HistoryError: the profile cannot be opened.
            PersonalWeightsError: the person's weights are damaged or do not fit; damaged ones are set aside.
            RefocusError: the recogniser is closed.
        """
        self.encode_as(profile)
        self._remember(profile)

    def encode_as(self, profile: Path | None) -> None:
        """Encodes with another person's personal weights from now on, as :meth:`switch`; their history stays closed, so
        :meth:`recognize` waits for a switch.

        Raises:
            PersonalWeightsError, RefocusError: as :meth:`switch`.
        """
        self.leave()
        self._check("left")
        before = self.space
        self._serve(profile)
        if self.space != before:  # what was derived from other features, or by another head, is worth nothing
            self._past = make_head_state(self.head, self.card, self._head_inputs)

    def _serve(self, profile: Path | None) -> None:
        try:
            served = self._encoders.of(profile_name(profile) if profile else "")
        except BaseException:
            self._take(self._encoders.nobody)  # never the one before, whatever the caller does next
            self._past = make_head_state(self.head, self.card, self._head_inputs)
            raise
        self._take(served)

    def _take(self, served: ResolvedPrograms) -> None:
        self.encoder, self.space = served.program, served.space
        self._inputs, self._head_inputs = served.inputs, served.head_inputs

    @property
    def numeric_path(self) -> str:
        """Runtime, version and provider that compute features now."""
        return self.encoder.numeric_path()

    def _remember(self, profile: Path | None) -> None:
        """Opens the person's history: to be read alone where it cannot be written, and not at all where it cannot be
        read either. Photos are answered all the same, with a notice."""
        if profile is not None:
            self._profile, self._owner = profile, (os.getpid(), threading.get_ident())
            try:
                self._use(self._opened(profile, or_read_only=True))
            except Unwritable as error:
                self.leave()
                self._profile, self._unopened = profile, str(error)
        self._state = "open"

    def _opened(self, profile: Path, or_read_only: bool) -> FeatureHistory:
        kept = replace(self.keeping, capacity=self.capacity if self.keeping.capacity else None)
        protect, usual = max(PROTECT, self.window), self.capacity
        return FeatureHistory(profile, **asdict(kept), protect=protect, usual=usual, or_read_only=or_read_only)

    def _use(self, history: FeatureHistory) -> None:
        self.history = history
        try:
            history.computed_by(self.space, self.numeric_path)
            self._memory = self._make_memory(history, self.space, self.width, self.card, self._past)
            if self._counts_shares:
                where = history, self.space, self.width
                self._shares = ProfileShares(*where, self.card, self.classifier, self._classify)
        except BaseException:
            self.leave()
            raise

    def _try_to_store(self) -> None:
        """Opens a profile again that could not be written: a full disk may have room by now."""
        assert self._profile is not None  # noqa: S101
        try:
            opened = self._opened(self._profile, or_read_only=False)
        except HistoryError:
            return
        if self.history is not None:
            self.history.close()
        self._unopened = ""
        self._use(opened)

    @property
    def refusal(self) -> str:
        """Why no photo can be stored in the profile, as on a read-only disk; "" where one can, or there is no
        profile."""
        return self.history.refusal if self.history is not None else self._unopened

    def _check(self, least: Literal["open", "left"]) -> None:
        """Raises RefocusError if the recogniser is closed, lacks the profile it needs, or is used in a wrong thread."""
        if self._state == "closed":
            raise RefocusError("this recognizer is closed; make a new one")
        if self._state == "left" and least == "open":
            raise RefocusError("this recognizer has closed its profile, or failed to open another; call switch first")
        self.check_thread()

    def check_thread(self) -> None:
        """Raises RefocusError in another thread or process than the one that opened the profile."""
        if self._profile is not None and self._owner != (os.getpid(), threading.get_ident()):
            raise RefocusError(
                "this recognizer was used from another thread or process than the one that opened its profile; use one"
                " for all calls, or open one recognizer per thread, in each process"
            )

    def recognize(
        self, content: bytes | str | os.PathLike[str] | Image.Image, where: str = "", remember: bool = True
    ) -> Answer:
        """Recognises one photo, or one clip where the bundle is for clips, and, once the answer is known, remembers its
        feature.

        A photo that is stored already is recognised from the photos before it, and stays where it is.

        Args:
            content: the photo's file, its encoded bytes, or an image of Pillow's, which is decoded at full size. The
                SHA-256 of the encoded bytes identifies the photo; of an image, which has none, that of its upright RGB
                pixels. A clip is an animated GIF or WebP, or the path of a folder of frames, which the SHA-256 over
                the SHA-256 of all its frames identifies.
            where: names the photo in errors and explanations; default: the path, or "photo".
            remember: False leaves the history as it is.

        A history that cannot be read or written, as on a full disk, stops no photo: it is answered, without its history
        if need be, and :attr:`Answer.notices` says so.

        Raises:
            PhotoError: not one whole photo, or clip where the bundle is for clips; or the programs gave NaN or infinite
                numbers; the history is unchanged.
            BundleError: a program fails, gives other outputs than its manifest says, or took longer than it may.
        """
        return self.recognize_pixels(*self.prepare(content, where), remember)

    def prepare(
        self, content: bytes | str | os.PathLike[str] | Image.Image, where: str = ""
    ) -> tuple[np.ndarray, str, str]:
        """Decodes and preprocesses a photo or clip, as :meth:`recognize` takes it, for :meth:`recognize_pixels`.

        Returns:
            pixels (1, 3, S, S), or of a clip (1, T, 3, S, S), float32; its identity, SHA-256; its name.

        Raises:
            PhotoError: not one whole photo, or clip where the bundle is for clips.
        """
        if isinstance(content, str | os.PathLike):
            path = Path(content)
            if self._of_clips and path.is_dir():
                where = where or printable(path.resolve())
                return (*self._frames(path, where), where)
            content, where = read_photo(path), where or printable(path.resolve())
        where, contract = where or "photo", self.manifest.preprocessing
        if isinstance(content, bytes) and self._of_clips:
            return (*self._frames(content, where), where)
        if isinstance(content, bytes):
            image, encoded = decode_for(content, contract, where), content
        else:
            image, encoded = from_image(content, where, contract.apply_exif_orientation), b""
            if self._of_clips:
                refuse_image(where)
        self.mark("decode")
        pixels = prepare(image, contract)
        self.mark("preprocess")
        photo = hashlib.sha256(encoded).hexdigest() if encoded else image.identity()
        self.mark("identity")
        return pixels, photo, where

    def _frames(self, clip: bytes | Path, where: str) -> tuple[np.ndarray, str]:
        """An animation's bytes, or a folder of frames -> pixels (1, T, 3, S, S) and the clip's identity."""
        contract = self.manifest.preprocessing
        if isinstance(clip, Path):
            pixels, identity = preprocess_folder(clip, contract, where)
        else:
            pixels, identity = preprocess(clip, contract, where), hashlib.sha256(clip).hexdigest()
        for stage in ("decode", "preprocess", "identity"):  # frame by frame, all three at once
            self.mark(stage)
        return pixels, identity

    def recognize_pixels(self, pixels: np.ndarray, photo: str, name: str = "", remember: bool = True) -> Answer:
        """As :meth:`recognize`, for a photo that was decoded and prepared elsewhere.

        Args:
            pixels: (1, 3, S, S) float32, or of a clip (1, T, 3, S, S), as the manifest's preprocessing makes them.
            photo: what identifies the photo; two photos of one identity are taken for the same.
            name: where the photo is, for explanations.

        Raises:
            RefocusError: the recogniser is closed, or its last switch failed.
        """
        self._check("open")
        feature = self.feature_of(pixels)
        self.mark("encoder")
        if remember and self.refusal:
            self._try_to_store()
        if self._memory is None or self.history is None:
            answer, why = self._answer_alone(feature, photo), self._unopened
            return self._noticed(answer, f"answered without the history, and not stored: {why}") if why else answer
        try:
            seen = self.history.look(self.space, photo)
            shares = (
                self._shares.before(photo, seen) if self._shares is not None else None
            )  # first: it may ask the head
            before, known = self._memory.recall(feature, photo, seen)
        except HistoryError as error:
            answer = self._answer_alone(feature, photo)
            return self._noticed(answer, f"answered without the history, and not stored: {error}")
        self.mark("history read")
        answer = self._answer(*self._past.answer(feature, photo), feature, before, shares)
        self.mark("head")
        if remember and not known:
            try:
                evicted = self._memory.remember(
                    feature, photo, name, self.likely(answer.shared.row if answer.shared is not None else None)
                )
            except HistoryError as error:
                return self._noticed(answer, f"the photo was not stored: {error}")
            self._count(answer, photo, evicted)
            self.mark("append")
        return self._noticed(answer)

    def likely(self, row: LikelyClasses | None) -> tuple[Classifier, LikelyClasses] | None:
        """What is stored of an answered photo for the shares; None where none are counted."""
        return (self._shares.by, row) if self._shares is not None and row is not None else None

    def _count(self, answer: Answer, photo: str, evicted: Sequence[str]) -> None:
        if self._shares is not None and answer.shared is not None:
            self._shares.stored(photo, answer.shared.row, evicted)

    @property
    def classifier(self) -> str:
        """Identity of what answers without history; that of the encoder is the feature space."""
        digest = hashlib.sha256(str(self.card.training.get("checkpoint_sha256", self.head.artifact.sha256)).encode())
        for name, value in sorted(self._head_inputs.items()):
            digest.update(f"{name}{value.shape}".encode() + value.tobytes())
        return digest.hexdigest()

    def _classify(self, feature: np.ndarray) -> np.ndarray:
        """Feature (D,) -> logits (C,) of the classifier without history; what is in memory is lost by it."""
        self._lose_memory()
        self._past.restart(np.zeros((0, self.width), dtype=np.float32), ())
        logits: np.ndarray = self._past.answer(feature, _identity(feature))[0]["plain_logits"][0].copy()
        return logits

    def _answer_alone(self, feature: np.ndarray, photo: str) -> Answer:
        answer = self.answer(feature, np.zeros((0, self.width), dtype=np.float32), [photo])
        self.mark("head")
        return answer

    def _noticed(self, answer: Answer, *notices: str) -> Answer:
        """An answer with notices, and what became of the history since the last one."""
        notices = (*self.untold(), *notices)
        return replace(answer, notices=notices) if notices else answer

    def untold(self) -> tuple[str, ...]:
        """That the history was found damaged, and what was lost, unless an answer or this has said so: one text, or
        none."""
        recovered = self.history.recovered if self.history is not None else None
        told, self._told = self._told, recovered
        return (str(recovered),) if recovered is not None and recovered is not told else ()

    def stored(self, answer: Answer, photo: str, name: str, evicted: Sequence[str]) -> None:
        """The caller has just stored the photo that was answered last, as the newest, by one write to :attr:`history`.

        Without this the past is read again before the next photo, as after a write by somebody else.

        Args:
            evicted: photos of this feature space that were evicted for it.
        """
        if self._memory is not None:
            self._memory.stored(answer.feature, photo, name)
            self._count(answer, photo, evicted)

    def encode(self, content: bytes | str | os.PathLike[str] | Image.Image, where: str = "") -> np.ndarray:
        """One photo or clip, as :meth:`recognize` takes it -> its feature (D,)."""
        return self.feature_of(self.prepare(content, where)[0])

    def feature_of(self, pixels: np.ndarray) -> np.ndarray:
        """One preprocessed photo (1, 3, S, S), or clip (1, T, 3, S, S) -> its feature (D,).

        Raises:
            PhotoError: it has NaN or infinite numbers.
        """
        self._check("left")
        feature: np.ndarray = self.encoder.run(photo=pixels, **self._inputs)["feature"][0]
        _check_finite(feature, "the feature of the encoder", self.encoder.artifact.file)
        return feature

    @property
    def at_once(self) -> int:
        """Photos that the encoder takes at once, at most."""
        size = self.encoder.artifact.inputs[0].shape[0]
        return size if isinstance(size, int) else AT_ONCE.get(self.encoder.artifact.runtime, sys.maxsize)

    def features_of(self, pixels: np.ndarray) -> np.ndarray:
        """Preprocessed photos (B, 3, S, S) or clips (B, T, 3, S, S), B > 0 -> their features (B, D); in parts where the
        encoder takes fewer.

        A row may have NaN or infinite numbers, which no history stores and no head answers: check each.
        """
        self._check("left")
        at_once = min(self.at_once, len(pixels))
        parts = [pixels[start : start + at_once] for start in range(0, len(pixels), at_once)]
        return np.concatenate([self.encoder.run(photo=part, **self._inputs)["feature"] for part in parts])

    def answer_next(self, feature: np.ndarray) -> Answer:
        """The answer to a photo of feature (D,) after the photos that are in memory now; it is not remembered."""
        self._check("open")
        shares = self._shares.now if self._shares is not None else self.empty_shares()
        return self._answer(*self._past.answer(feature, _identity(feature)), feature, shares=shares)

    def replay(self, features: Iterable[np.ndarray], shares: AnyShares | None = None) -> Iterator[Answer]:
        """Features (D,) of one person's photos in order -> the answer to each, from an empty history kept in memory.

        One replay at a time, and nothing else in between.

        Args:
            shares: of the photos before, which grow with these; default: there are none.
        """
        return self._replayed(features, self.empty_shares() if shares is None else shares)

    def replay_programs(self, features: Iterable[np.ndarray]) -> Iterator[Answer]:
        """As :meth:`replay`, without class shares: what the programs themselves answer."""
        return self._replayed(features, None)

    def _replayed(self, features: Iterable[np.ndarray], shares: AnyShares | None) -> Iterator[Answer]:
        self._check("left")
        self._lose_memory()
        self._past.restart(np.zeros((0, self.width), dtype=np.float32), ())
        for feature in features:
            itself = _identity(feature)
            answer = self._answer(*self._past.answer(feature, itself), feature, shares=shares)
            yield answer
            self._past.take_in(feature, itself)
            if shares is not None and answer.shared is not None:
                shares.add(answer.shared.row)

    def answer(
        self, feature: np.ndarray, history: np.ndarray, photos: Sequence[str] = (), shares: AnyShares | None = None
    ) -> Answer:
        """The head alone, over a history of the caller's.

        Args:
            feature: (D,) of the photo.
            history: (n, D), oldest first, of which the newest ``window`` count, and for class shares all.
            photos: identities of the history's photos and of this one; default: the features identify themselves.
            shares: of the photos before; default: those of ``history``.
        """
        self._check("left")
        with self._one_at_a_time:
            shares = self._shares_of(history) if shares is None else shares
            kept = min(self.window, len(history))
            history, photos = history[len(history) - kept :], photos[len(photos) - kept - 1 :]
            photos = photos or [_identity(row) for row in (*history, feature)]
            self._lose_memory()
            self._past.restart(history, photos[:-1])
            return self._answer(*self._past.answer(feature, photos[-1]), feature, shares=shares)

    def empty_shares(self) -> AnyShares | None:
        """Class shares before the first photo; None where they have no part in answers."""
        return shares_of(self.card) if self._counts_shares else None

    def likely_by_photo(self) -> list[tuple[str, LikelyClasses]]:
        """All photos of the open profile with their likely classes, oldest first; none where shares are not counted.

        Raises:
            HistoryError: the profile cannot be read.
        """
        return [*self._shares.filled()] if self._shares is not None else []

    def _shares_of(self, history: np.ndarray) -> AnyShares | None:
        state = self.empty_shares()
        for feature in history if state is not None else ():
            key = self.space, _identity(feature)
            if key not in self._classified:
                self._classified[key] = self._classify(feature)
            state.add(state.row(self._classified[key], length_of(feature)))  # type: ignore[union-attr]  # not None, or there is no loop
        while len(self._classified) > ROWS_KEPT:
            self._classified.popitem(last=False)
        return state

    def _lose_memory(self) -> None:
        if self._memory is not None:
            self._memory.lost()

    def _answer(
        self,
        out: Outputs,
        attention: np.ndarray,
        feature: np.ndarray,
        before: Sequence[Named] = (),
        shares: AnyShares | None = None,
    ) -> Answer:
        # One copy, because the program writes its next answer where this one is, and one check of all numbers.
        answers = [out[name][0] for name in ("plain_logits", "calibrated_logits", "logits")]
        numbers = np.concatenate([*answers, attention, out["trust"], feature])
        _check_finite(numbers, "the answer of the head", self.card.name)
        classes = len(self._labels)
        plain, calibrated, logits = numbers[: 3 * classes].reshape(3, classes)
        did = None
        if shares is not None:
            logits, did = shared(shares, logits, plain, feature, self.card.personalisation.form != "none")
        return Answer(
            names=self._labels,
            trust=float(out["trust"][0]),
            logits=logits,
            plain_logits=plain,
            calibrated_logits=calibrated,
            attention=attention,
            feature=feature,
            history=tuple(before),
            shared=did,
            thresholds=self._thresholds,
            known_scores=self._known_scores,
        )

    def with_shares(self, answer: Answer, shares: AnyShares) -> Answer:
        """An answer of the programs, with class shares of the photos before."""
        reads = self.card.personalisation.form != "none"
        logits, did = shared(shares, answer.logits, answer.plain_logits, answer.feature, reads)
        return replace(answer, logits=logits, shared=did)

    def leave(self) -> None:
        """Closes the profile; the programs stay loaded for :meth:`switch`."""
        self.check_thread()
        self._memory = self._shares = self._profile = None
        self._unopened = ""
        if self._state == "open":
            self._state = "left"
        history, self.history = self.history, None
        if history is not None:
            history.close()

    def close(self) -> None:
        """Closes the profile and frees the programs. Nothing can be asked of the recogniser afterwards."""
        if self._state == "closed":
            return
        self.check_thread()
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


def _check_finite(numbers: np.ndarray, what: str, of: str) -> None:
    """Numbers (n,), of what, of something that has a name.

    Raises:
        PhotoError: some are NaN or infinite.
    """
    if not np.isfinite(numbers).all():
        raise PhotoError(
            f"{what} {of} has NaN or infinite numbers; the photo was not stored; if other photos fail too, run refocus"
            " check, and choose another precision or bundle"
        )


def _usual_capacity(manifest: Manifest) -> int:
    """Photos that a profile keeps where nobody asked for a number: enough for every head of a bundle, whichever is used
    and with class shares or without, since what is deleted for one of them is missing for all."""
    ways = [head.personalisation for head in manifest.heads]
    return max(max(how.window, how.shares.capacity if how.shares is not None else CAPACITY) for how in ways)


def profile_name(path: Path) -> str:
    """The name of the profile whose history lives at a path."""
    return path.name.removesuffix(_PROFILE_ENDING)


def profile_path(folder: Path, name: str) -> Path:
    """Where a profile's history lives.

    Raises:
        RefocusError: the name could leave the folder.
    """
    if not _PROFILE_NAME.fullmatch(name):
        raise RefocusError(
            f"profile {name!r}: expected at most 64 ASCII letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return folder / f"{name}{_PROFILE_ENDING}"


def _identity(feature: np.ndarray) -> str:
    """Of a photo of which nothing but the feature is known."""
    return hashlib.sha256(feature.tobytes()).hexdigest()


def best(logits: np.ndarray, count: int) -> np.ndarray:
    """Numbers of the ``count`` largest logits of (C,), the largest first; of equal ones the lower number is first."""
    if count <= _BY_LARGEST and count < len(logits):
        left, found = logits.copy(), []
        for _ in range(count):
            found.append(largest := int(left.argmax()))
            left[largest] = -np.inf
        return np.array(found)
    order: np.ndarray = np.argsort(-logits, kind="stable")[:count]
    return order
