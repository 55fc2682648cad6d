"""Self-improvement: the classes that an owner meets, found in their own photos, and a model condensed for them.

TAPER section 5.2: the generic model's answers say which classes are common, these describe a task, the task's network
replaces the generic one. Three things are settled otherwise than in the paper. How common each class is comes from all
probabilities, not from counts of best answers, by the maximum likelihood of Saerens, Latinne and Decaestecker
("Adjusting the outputs of a classifier to new a priori probabilities", Neural Computation 2002): no number of classes
must be known. And before anything is replaced, the next photos must bear it out: each batch is judged before it is
learned from, and only if all together are much likelier under what was found than under "all classes alike" is a
personal model served, until they no longer are (a cumulative sum, as of Page, Biometrika 1954). The generic model's own
answers are asked throughout, so that a personal model never confirms itself. And where a
bank's training did not show that owners gain by a task's network beyond the shares of their classes, as its card says,
a model is the generic network with these shares added to its logits, or, where these did not help either, the generic
network as it is.

Notation: C classes, n photos.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from refocus.edge.bundle.load import MANIFEST, load_bundle, move_into_place
from refocus.edge.bundle.manifest import SelfImprovementBy
from refocus.edge.bundle.tensor_file import decode_tensors, encode_tensors
from refocus.edge.errors import BundleError, PersonalWeightsError, PhotoError, RefocusError
from refocus.edge.files import working_folder, write_file
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
KNOWN = 1 << 16  # photos that are told apart from new ones, by their hashes
RENEWED = 0.1  # half of the sum of absolute differences of class shares from those that are served
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
        changed: whether it is another one than before: for other classes, or for shares of these that have moved.
        settled: whether the classes have not changed for some steps; the caller may stop here.
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


@dataclass(frozen=True)
class _Learned:
    """State of self-improvement: the evidence of an owner's photos so far.

    Attributes:
        seen: (n, C) probabilities of the newest photos.
        labels: of the task whose model serves; none: the generic one does.
        nats: evidence gathered for personal classes.
        calm: steps since something changed.
        shares: (C,) that the personal model was made with; none without one.
        known: (m,) int64 hashes of the photos that were learned from, the newest ones.
    """

    seen: np.ndarray
    labels: tuple[str, ...] = ()
    nats: float = 0.0
    calm: int = 0
    shares: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    known: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def stale(self, shares: np.ndarray) -> bool:
        """Whether class shares (C,) have moved away from those that are served."""
        return len(self.shares) != len(shares) or float(np.abs(self.shares - shares).sum()) > 2 * RENEWED


class SelfImprovement(contextlib.AbstractContextManager["SelfImprovement"]):
    """One owner's photos turn a bank's generic model into one for the classes they meet; without labels.

    What it has learned and the personal bundle live in a folder, and are found there again after a restart.

    Args:
        bank: an open bank.
        folder: made if it is missing.
        target: of the models, as ``onnxruntime:fp32``.
        threads: threads inside one operator; 0 leaves it to the runtime.
        by: "networks" condenses one for the classes found, "shares" keeps the generic network and adds what their
            shares say to its logits, "generic" changes nothing; default: what the bank's card says.

    Raises:
        RefocusError: the folder is a bundle, which may be published: what is private does not belong there.
    """

    def __init__(
        self,
        bank: Bank,
        folder: Path,
        target: str = "onnxruntime:fp32",
        threads: int = 0,
        by: SelfImprovementBy | None = None,
    ) -> None:
        if (folder / MANIFEST).exists():
            raise RefocusError(f"{folder} is a bundle; choose another folder, for what is learned of one owner alone")
        self.bank, self.folder, self.target, self._threads = bank, folder, target, threads
        self.by: SelfImprovementBy = by or bank.card.self_improvement
        self._generic = self._load(bank.folder)
        self._personal: Recognizer | None = None
        self._learned = _Learned(np.zeros((0, len(bank.labels)), dtype=np.float32))
        self._restore()

    @property
    def recognizer(self) -> Recognizer:
        """The model that serves now."""
        return self._personal or self._generic

    def recognize(self, content: bytes, where: str = "photo") -> Answer:
        """One photo by the model that serves now."""
        return self.recognizer.recognize(content, where)

    def step(self, photos: Sequence[bytes]) -> Step:
        """Learns from a batch of the owner's photos, best of some tens. A photo that was learned from counts once.

        Raises:
            PhotoError: no photos, or not whole ones; nothing is learned from the batch.
            OSError: the folder cannot be written; the model that served goes on.
        """
        if not photos:
            raise PhotoError("a step learns from photos, and there are none; give some tens")
        new = {photo_number(content): content for content in photos if not self.knows(content)}
        if not new:
            now = self._learned
            return Step(len(now.seen), float("nan"), now.labels, False, now.calm >= CALM)
        return self.learn(np.array([self.judge(content) for content in new.values()]), [*new])

    def knows(self, content: bytes) -> bool:
        """Whether a photo was learned from before."""
        return bool((self._learned.known == photo_number(content)).any())

    def judge(self, content: bytes, where: str = "photo") -> np.ndarray:
        """One photo -> the generic model's probabilities (C,), for :meth:`learn`.

        Raises:
            PhotoError: not one whole photo.
        """
        pixels = preprocess(content, self.bank.manifest.preprocessing, where)
        return softmax(self._generic.recognize_pixels(pixels, "").logits)

    def learn(self, probabilities: np.ndarray, numbers: Sequence[int] = ()) -> Step:
        """As :meth:`step`, from the generic model's probabilities (n, C), n > 0.

        After an error nothing is learned, so that the same photos may be given again.

        Args:
            numbers: :func:`photo_number` of the photos, by which :meth:`knows` knows them later.

        Raises:
            RefocusError: not such probabilities.
        """
        probabilities = np.asarray(probabilities, dtype=np.float32)
        if not _are_probabilities(probabilities, len(self.bank.labels)) or not len(probabilities):
            raise RefocusError(
                f"probabilities of shape {probabilities.shape}: expected (n, {len(self.bank.labels)}) numbers from 0"
                " to 1, a row for each photo"
            )
        now = self._learned
        evidence = evidence_for(class_shares(now.seen), probabilities) if len(now.seen) else float("nan")
        seen = np.concatenate([now.seen, probabilities])[-REMEMBERED:]
        shares, nats = class_shares(seen), now.nats
        served = [self.bank.labels.index(label) for label in now.labels]
        if not np.isnan(evidence):
            nats = min(max(nats + len(probabilities) * evidence, 0.0), MOST_CONVINCED)
        personal = (nats > 0 if served else nats >= CONVINCED) and self.by != "generic"
        changed = personal != bool(served) or (personal and not still_fits(served, shares))
        undecided = np.isnan(evidence) or (not personal and nats > 0 and self.by != "generic")
        known = np.concatenate([now.known, np.array(numbers, dtype=np.int64)])[-KNOWN:]
        learned = _Learned(seen, now.labels, nats, 0 if changed or undecided else now.calm + 1, now.shares, known)
        changed = changed or (personal and now.stale(shares))
        if changed:
            of_owner = shares.astype(np.float32) if personal else shares[:0].astype(np.float32)
            learned = self._change(replace(learned, shares=of_owner), self._task(shares) if personal else None)
        else:
            self._keep(learned)
        self._learned = learned
        return Step(len(seen), evidence, learned.labels, changed, learned.calm >= CALM)

    def _change(self, learned: _Learned, task: Task | None) -> _Learned:
        """Puts a task's model, or for None the generic one, in the place of the one that serves; what is learned with
        its labels. After an error the one that served still does."""
        learned, before = replace(learned, labels=task.labels if task is not None else ()), self._personal
        if task is not None:
            self._personal = self._made(task, learned)
        else:
            self._keep(learned)
            self._personal = None
        if before is not None:
            before.close()
        if task is None:
            self._remove_personal()
        return learned

    def _remove_personal(self) -> None:
        """Removes the personal model from the folder, or others would go on answering with it."""
        shutil.rmtree(self.folder / "personal", ignore_errors=True)

    def _task(self, shares: np.ndarray) -> Task:
        classes = common_classes(shares)
        task = self.bank.task([self.bank.labels[number] for number in classes])
        mixers = task.mixers if self.by == "networks" else task.mixers[:0]
        return replace(task, shift=shift_of(shares), mixers=mixers)

    def _made(self, task: Task, learned: _Learned) -> Recognizer:
        """A task's model, which has taken the place of the personal one in the folder, and what is learned is kept.
        After an error the folder holds what it held."""
        place = self.folder / "personal"
        self._make_folder()
        with working_folder(place) as temporary, contextlib.ExitStack() as undo:
            made = temporary / "bundle"
            self.bank.condense(task, made, [self.target])
            made.chmod(0o700)  # whatever the rights of the folder around it
            move_into_place(made, place, temporary)  # whatever is at that place, it is replaced
            undo.callback(_put_back, place, (made, temporary / "previous"))
            model = self._load(place)
            undo.callback(model.close)
            self._keep(learned)
            undo.pop_all()
        return model

    def _load(self, folder: Path) -> Recognizer:
        runtime, _, precision = self.target.partition(":")
        return Recognizer(load_bundle(folder), None, runtime, precision, self._threads)

    # ---- over restarts

    @property
    def _state(self) -> Path:
        return self.folder / f"{self.bank.card.sha256[:16]}.safetensors"  # of another bank nothing is taken over

    def _keep(self, learned: _Learned) -> None:
        numbers = {"calm": learned.calm, "personal": int(bool(learned.labels))}
        tensors: dict[str, np.ndarray] = {name: np.array([value]) for name, value in numbers.items()}
        tensors |= {"seen": learned.seen, "nats": np.array([learned.nats], dtype=np.float32)}
        tensors |= {"shares": learned.shares, "known": learned.known}
        self._make_folder()
        write_file(self._state, b"".join(encode_tensors(tensors)), private=True)

    def _make_folder(self) -> None:
        """Which classes a person meets, and how often, is theirs alone to read."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _restore(self) -> None:
        # Of what is damaged nothing is taken over: it learns from the beginning.
        with contextlib.suppress(OSError, PersonalWeightsError, LookupError, ValueError, OverflowError):
            found = decode_tensors(memoryview(self._state.read_bytes()), str(self._state))
            seen, calm, nats = found["seen"].copy(), int(found["calm"][0]), float(found["nats"][0])
            if not _are_probabilities(seen, len(self.bank.labels)) or not 0 <= nats <= MOST_CONVINCED:
                return
            if found["personal"][0]:
                self._personal = self._found()
            else:  # a kill just before it was removed, or before it was noted, left it
                self._remove_personal()
            task = self._personal.manifest.task if self._personal is not None else None
            more = {name: found[name].copy() for name in ("shares", "known") if name in found}  # since 0.2
            self._learned = _Learned(seen, task.classes if task is not None else (), nats, calm, **more)

    def _found(self) -> Recognizer | None:
        """The personal model of an earlier process, if it is whole and of this bank."""
        with contextlib.suppress(BundleError):
            recognizer = self._load(self.folder / "personal")
            task = recognizer.manifest.task
            same_kind = task is not None and bool(task.mixers) == (self.by == "networks")
            if task is not None and same_kind and task.bank == self.bank.card.sha256:
                return recognizer
            recognizer.close()
        return None

    def close(self) -> None:
        self._generic.close()
        if self._personal is not None:
            self._personal.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _put_back(place: Path, before: Sequence[Path]) -> None:
    """Removes what has taken a place, and puts back what was there, if anything was: the first of these that exists."""
    shutil.rmtree(place)
    for folder in [path for path in before if path.exists()][:1]:
        folder.rename(place)


def photo_number(content: bytes) -> int:
    """A photo file's number, by which it is known again: the first eight bytes of its SHA-256."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little", signed=True)


def _are_probabilities(values: np.ndarray, classes: int) -> bool:
    """Whether values are (n, C) numbers from 0 to 1."""
    return values.ndim == 2 and values.shape[1] == classes and bool(((values >= 0) & (values <= 1 + 1e-3)).all())
