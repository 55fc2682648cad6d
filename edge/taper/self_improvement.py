"""Self-improvement: the classes that an owner meets, found in their own photos, and a model condensed for them.

TAPER section 5.2: the generic model's answers say which classes are common, these describe a task, the task's network
replaces the generic one. Two things are settled otherwise than in the paper. How common each class is comes from all
probabilities, not from counts of best answers, by the maximum likelihood of Saerens, Latinne and Decaestecker
("Adjusting the outputs of a classifier to new a priori probabilities", Neural Computation 2002): no number of classes
must be known. And before anything is replaced, the next photos must bear it out: each batch is judged before it is
learned from, and only if all together are much likelier under what was found than under "all classes alike" is a
personal model served, until they no longer are (a cumulative sum, as of Page, Biometrika 1954). The generic model's own
answers are asked throughout, so that a personal model never confirms itself.

Notation: C classes, n photos.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from refocus.edge.bundle.load import load_bundle
from refocus.edge.bundle.tensor_file import decode_tensors, encode_tensors
from refocus.edge.errors import BundleError, PersonalWeightsError, PhotoError
from refocus.edge.files import write_file
from refocus.edge.photos.preprocess import preprocess
from refocus.edge.recognize.class_shares import softmax
from refocus.edge.recognize.recognizer import Answer, Recognizer
from refocus.edge.taper.bank import Bank, Task

REMEMBERED = 1024  # photos whose probabilities are kept: what an owner met long ago fades
EVENNESS = 10.0  # photos' worth of "all classes alike": what is said before the first photo
COVERAGE = 0.95  # share of the photos that the classes of the task are of
LEAST_COVERAGE = 0.9  # share below which a task no longer fits
FEWEST = 2  # classes of a task
# Nats, over all judged photos, by which these must be likelier than under all classes alike. Sixteen photos of
# everything reach two by chance now and then, six (400 to 1) hardly ever.
CONVINCED = 6.0
MOST_CONVINCED = 12.0  # what is kept of more: an owner who changes should not have to outweigh years
CALM = 3  # steps without a new class set after which there is nothing more to find
FLOOR = -8.0  # of the shift of a class that was never met: it can still win
_ROUNDS = 50


@dataclass(frozen=True)
class Step:
    """What one batch of photos taught.

    Attributes:
        photos: seen so far.
        evidence: nats per photo of this batch, judged before it was learned from; nan for the first.
        labels: classes of the personal model that serves from now on; none while the generic one does.
        changed: whether it is another one than before.
        settled: whether the task has not changed for some steps; the caller may stop here.
    """

    photos: int
    evidence: float
    labels: tuple[str, ...]
    changed: bool
    settled: bool

    @property
    def personal(self) -> bool:
        """Whether a personal model serves from now on."""
        return bool(self.labels)


def class_shares(probabilities: np.ndarray, evenness: float = EVENNESS) -> np.ndarray:
    """How common each class is among photos, from the answers of a model that was trained on all classes alike.

    Expectation maximisation (Saerens et al., section 2.2), smoothed.

    Args:
        probabilities: (n, C).
        evenness: photos' worth of even shares that are added.

    Returns:
        (C,), summing to one.
    """
    classes = probabilities.shape[1]
    shares = np.full(classes, 1 / classes)
    for _ in range(_ROUNDS):
        weighed = probabilities * shares
        weighed /= np.maximum(weighed.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
        shares = (weighed.sum(axis=0) + evenness / classes) / (len(probabilities) + evenness)
    return shares


def evidence_for(shares: np.ndarray, probabilities: np.ndarray) -> float:
    """By how many nats per photo answers (n, C) are likelier under class shares (C,) than under even ones."""
    return float(np.log(np.maximum(probabilities @ (shares * len(shares)), np.finfo(np.float32).tiny)).mean())


def shift_of(shares: np.ndarray) -> np.ndarray:
    """(C,) what class shares (C,) add to the logits of a model that was trained on all classes alike (Bayes' rule)."""
    shift: np.ndarray = np.maximum(np.log(shares * len(shares)), FLOOR).astype(np.float32)
    return shift


def common_classes(shares: np.ndarray) -> tuple[int, ...]:
    """The fewest classes that hold ``COVERAGE`` of the shares beyond what all classes have alike, most common first."""
    order, beyond = np.argsort(-shares, kind="stable"), shares - shares.min()
    needed = int(np.searchsorted(np.cumsum(beyond[order]), COVERAGE * beyond.sum())) + 1
    return tuple(int(number) for number in order[: max(FEWEST, needed)])


def still_fits(classes: Sequence[int], shares: np.ndarray) -> bool:
    """Whether a task covers nearly all and is not much too wide: a class more or less is no reason for a new model."""
    beyond = shares - shares.min()
    covers = float(beyond[list(classes)].sum()) >= LEAST_COVERAGE * float(beyond.sum())
    return covers and 2 * len(common_classes(shares)) >= len(classes)


class SelfImprovement:
    """One owner's photos turn a bank's generic model into one for the classes they meet; without labels.

    What it has learned and the personal bundle live in a folder, and are found there again after a restart.

    Args:
        bank: an open bank.
        folder: made if it is missing.
        target: of the models, as ``onnxruntime:fp32``.
        threads: threads inside one operator; 0 leaves it to the runtime.
    """

    def __init__(self, bank: Bank, folder: Path, target: str = "onnxruntime:fp32", threads: int = 0) -> None:
        self.bank, self.folder, self.target, self._threads = bank, folder, target, threads
        self._generic = self._load(bank.folder)
        self._personal: Recognizer | None = None
        self._seen = np.zeros((0, len(bank.labels)), dtype=np.float32)
        self._labels: tuple[str, ...] = ()
        self._nats = 0.0
        self._calm = 0
        self._restore()

    @property
    def recognizer(self) -> Recognizer:
        """The model that serves now."""
        return self._personal or self._generic

    def recognize(self, content: bytes, where: str = "photo") -> Answer:
        """One photo by the model that serves now."""
        return self.recognizer.recognize(content, where)

    def step(self, photos: Sequence[bytes]) -> Step:
        """Learns from a batch of the owner's photos, best of some tens.

        Raises:
            PhotoError: no photos, or not whole ones; nothing is learned from the batch.
            OSError: the folder cannot be written; the model that served goes on.
        """
        if not photos:
            raise PhotoError("a step learns from photos, and there are none; give some tens")
        return self.learn(np.array([self.judge(content) for content in photos]))

    def judge(self, content: bytes, where: str = "photo") -> np.ndarray:
        """One photo -> the generic model's probabilities (C,), for :meth:`learn`.

        Raises:
            PhotoError: not one whole photo.
        """
        pixels = preprocess(content, self.bank.manifest.preprocessing, where)
        return softmax(self._generic.recognize_pixels(pixels, "").logits)

    def learn(self, probabilities: np.ndarray) -> Step:
        """As :meth:`step`, from the generic model's probabilities (n, C), n > 0."""
        evidence = evidence_for(class_shares(self._seen), probabilities) if len(self._seen) else float("nan")
        self._seen = np.concatenate([self._seen, probabilities.astype(np.float32)])[-REMEMBERED:]
        shares = class_shares(self._seen)
        served = [self.bank.labels.index(label) for label in self._labels]
        if not np.isnan(evidence):
            self._nats = min(max(self._nats + len(probabilities) * evidence, 0.0), MOST_CONVINCED)
        personal = self._nats > 0 if served else self._nats >= CONVINCED
        changed = personal != bool(served) or (personal and not still_fits(served, shares))
        undecided = np.isnan(evidence) or (not personal and self._nats > 0)
        self._calm = 0 if changed or undecided else self._calm + 1
        if changed:
            task = self._task(shares) if personal else None
            self._serve(task)
            self._labels = task.labels if task is not None else ()
        self._keep()
        return Step(len(self._seen), evidence, self._labels, changed, self._calm >= CALM)

    def _task(self, shares: np.ndarray) -> Task:
        classes = common_classes(shares)
        task = self.bank.task([self.bank.labels[number] for number in classes])
        return replace(task, shift=shift_of(shares))

    def _serve(self, task: Task | None) -> None:
        """Puts a task's model in the place of the one that serves; None: the generic one."""
        place = self.folder / "personal"
        if task is not None:
            self._make_folder()
            self.bank.condense(task, place, [self.target])
        if self._personal is not None:
            self._personal.close()
        self._personal = self._load(place) if task is not None else None

    def _load(self, folder: Path) -> Recognizer:
        runtime, _, precision = self.target.partition(":")
        return Recognizer(load_bundle(folder), None, runtime, precision, self._threads)

    # ---- over restarts

    @property
    def _state(self) -> Path:
        return self.folder / f"{self.bank.card.sha256[:16]}.safetensors"  # of another bank nothing is taken over

    def _keep(self) -> None:
        numbers = {"calm": self._calm, "personal": int(bool(self._labels))}
        tensors: dict[str, np.ndarray] = {name: np.array([value]) for name, value in numbers.items()}
        tensors |= {"seen": self._seen, "nats": np.array([self._nats], dtype=np.float32)}
        self._make_folder()
        write_file(self._state, b"".join(encode_tensors(tensors)), private=True)

    def _make_folder(self) -> None:
        """Which classes a person meets, and how often, is theirs alone to read."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _restore(self) -> None:
        with contextlib.suppress(FileNotFoundError, PersonalWeightsError, KeyError):  # damaged: it learns anew
            found = decode_tensors(memoryview(self._state.read_bytes()), str(self._state))
            if found["seen"].shape[1:] != self._seen.shape[1:]:
                return
            self._seen, self._calm, self._nats = found["seen"].copy(), int(found["calm"][0]), float(found["nats"][0])
            if found["personal"][0]:
                self._personal = self._found()

    def _found(self) -> Recognizer | None:
        """The personal model of an earlier process, if it is whole and of this bank."""
        with contextlib.suppress(BundleError):
            recognizer = self._load(self.folder / "personal")
            task = recognizer.manifest.task
            if task is not None and task.bank == self.bank.card.sha256:
                self._labels = task.classes
                return recognizer
            recognizer.close()
        return None

    def close(self) -> None:
        self._generic.close()
        if self._personal is not None:
            self._personal.close()

    def __enter__(self) -> SelfImprovement:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
