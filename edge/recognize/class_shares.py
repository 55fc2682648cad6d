"""Class shares: the class prior of a person, estimated without labels.

A classifier was trained where class c has the share b(c). A person's photos have other shares, s(c), but a photo of a
class looks alike to both (label shift), so Bayes' rule turns the classifier's answer p(c | x) into the person's:
p(c | x) s(c) / b(c), normalised (Saerens, Latinne and Decaestecker, "Adjusting the outputs of a classifier to new a
priori probabilities", Neural Computation 14(1), 2002). A real folder also has photos that show none of the C classes.
They collect in classes that attract them, and so do the classifier's mistakes. The estimate therefore works as follows:

- Calibration first, as label-shift estimates need it: z = (scale * logits + bias) / temperature (Alexandari, Kundaje
  and Shrikumar, "Maximum likelihood with bias-corrected calibration is hard-to-beat at label shift adaptation", ICML
  2020).
- A photo does not count if its score is below the rejection threshold of the bundle (:attr:`Answer.is_known`). Such
  photos show none of the classes, by the classifier alone: a personal prior cannot confirm itself.
- Each other photo votes for its most likely class alone, with the weight v = p(best)^2. Votes depend less on the
  temperature than the responsibilities of expectation maximisation do. (For photos with several labels each label
  counts its expectation.)
- A Dirichlet prior of strength a with mean b: s(c) = (N(c) + a b(c)) / (n + a), where N(c) are the votes. Votes fade
  with a half-life, so that other habits can take over.
- Unknown photos above the threshold collect in a few classes. The votes of a class therefore count with the probability
  that the class is the person's: 1 / (1 + exp(-o - L(c))). L(c) sums the credits of its photos
  (:mod:`refocus.edge.recognize.rejection`). The prior log odds o come from the numbers A of photos above the threshold
  and B below it: R B of the photos above are taken for unknown, so o = log((A - R B + 1) / (R B + 1/4)), with limits.
- "No shift" competes with s. Each photo is predicted before it votes (Dawid, "Statistical theory: the prequential
  approach", JRSS A, 1984), and E sums log(1 - v + v sum_c s(c) p(c) / b(c)) minus a penalty per photo. The penalty
  makes "no shift" win ties: a diffuse history predicts its own photos a little better than b does, by the classifier's
  mistakes. E fades and has limits, so that new habits are noticed after a few photos.
- A share ``elsewhere`` of the photos is of anything: s' = elsewhere b + (1 - elsewhere) (w b + (1 - w) s), where w is
  the probability of "no shift".
- The shift is bounded by the photo: a class whose probability without shares is below ``support`` times the largest
  one cannot gain on the most likely class, see :func:`excess`.

The rules and their numbers were chosen on development photos of rolls with and without unknown photos
(`studies/streams/camera-roll.toml`).

Notation: C classes, k most likely classes that are kept of a photo, n photos.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from refocus.edge.bundle.manifest import SHARES_VERSION, ShareCard
from refocus.edge.errors import BundleError, HistoryError, PhotoError, RuntimeUnavailable
from refocus.edge.history.likely_classes import MOST_CREDIT, LikelyClasses, size_of
from refocus.edge.recognize.rejection import KnownScores

if TYPE_CHECKING:
    from refocus.edge.runtimes.native_shares import NativeShares

_TINY = float(np.finfo(np.float32).tiny)
_LEAST, _MOST = -3.0, 6.0  # limits of the evidence, and of the log odds of a class, in nats
_PASSING = 0.3  # R: unknown photos above the threshold, for each one below it
_FADED = 12  # half-lives after which the newest photos alone decide: a vote is below 1/4000


@dataclass(frozen=True)
class ShareSettings:
    """Settings of the estimate; part of a bundle.

    Attributes:
        outputs: what the classifier gives: logits, or probabilities that sum to one.
        temperature: T > 0 of calibration.
        scale: factors of vector scaling, (C,), or empty: ones.
        bias: terms of vector scaling, (C,), or empty: zeros.
        base: b, class shares of the photos that the classifier was trained on, (C,), or empty: all equal.
        strength: a, weight of the prior, in photos.
        half_life: number of photos after which a vote counts half; 0: votes do not fade.
        no_shift: prior probability of "no shift", in (0, 1).
        penalty: evidence that each photo costs, in nats.
        evidence_half_life: number of photos after which evidence counts half; 0: it does not fade.
        elsewhere: share of the photos that may be of any class, in [0, 1].
        with_head: exponent of s / b in the answer of a head that has a history too, in [0, 1]; such a head knows part
            of what shares say.
        gated: whether the trust of the shares decides how far such a head is followed, see :func:`beside_head`: a gate
            that needs no training.
        support: minimum probability without shares, relative to the largest one, of classes that shares may favour over
            the most likely class, in [0, 1); 0: any class.
        top: k.
        capacity: number of photos that count; older ones are forgotten.
    """

    outputs: Literal["logits", "probabilities"] = "logits"
    temperature: float = 1.0
    scale: tuple[float, ...] = ()
    bias: tuple[float, ...] = ()
    base: tuple[float, ...] = ()
    strength: float = 2.0
    half_life: float = 46.0
    no_shift: float = 0.73
    penalty: float = 0.1
    evidence_half_life: float = 34.0
    elsewhere: float = 0.25
    with_head: float = 0.5
    gated: bool = False
    support: float = 0.15
    top: int = 8
    capacity: int = 4096

    def check(self, classes: int) -> None:
        """Check the settings for a classifier.

        Args:
            classes: C.

        Raises:
            BundleError: a value is out of its bounds, or a vector is not (C,); or C < 2.
        """
        try:
            stated = {name: value if isinstance(value, str) else _plain(value) for name, value in asdict(self).items()}
            card = msgspec.convert({"version": SHARES_VERSION, **stated}, ShareCard)
            card.check("classifier", classes)
        except (msgspec.ValidationError, ValueError) as error:
            raise BundleError(f"class shares: {error}") from None

    @property
    def looks_back(self) -> int:
        """Number of photos after which an estimate rests on the person.

        It is the half-life, or the weight of the prior, whichever is more.
        """
        return min(math.ceil(max(self.strength, self.half_life)), self.capacity)

    def identity(self, labels: Sequence[str], known: KnownScores) -> str:
        """Return a hash of what stored rows depend on.

        Rows also depend on the feature and the classifier. The hash covers the labels, the scores of correct answers
        and the settings that :meth:`ClassShares.row` reads. Rows of another identity must be computed again.
        """
        parts = [self.outputs, self.temperature, self.scale, self.bias, self.top, tuple(labels), known]
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Convert numpy numbers to those of Python."""
    return [*map(float, value)] if isinstance(value, tuple) else getattr(value, "item", lambda: value)()


# Numbers of the settings that the arithmetic in C takes.
_NUMBERS = "temperature", "strength", "penalty", "elsewhere", "with_head", "support"


class Shares(NamedTuple):
    """The present estimate.

    Attributes:
        shares: s', (C,), summing to one.
        weights: probabilities of "no shift" and of the person's shares, (2,).
        evidence: log of how much likelier the history is under both together than under "no shift".
        photos: n.
    """

    shares: np.ndarray
    weights: np.ndarray
    evidence: float
    photos: int


class ShareAnswer(NamedTuple):
    """Answer to one photo with shares.

    Attributes:
        logits: calibrated logits plus the bounded shift, (C,); their softmax is the answer.
        plain_logits: calibrated logits of the classifier alone, (C,).
        shift: log(s' / b), not bounded, (C,).
        support: limit of the shift, see :func:`excess`.
        alone: probabilities of the classifier alone, calibrated, (C,).
        trust: probability, given the photo, that its class is drawn from the person's shares rather than from b ("no
            shift" or "elsewhere"); 0 without history.
        moved: probability that the shares moved from some classes to others: half the L1 distance between the answers
            with and without them; 0: they are equal.
        estimate: the shares.
        row: what is kept of the photo.
    """

    logits: np.ndarray
    plain_logits: np.ndarray
    shift: np.ndarray
    support: float
    alone: np.ndarray
    trust: float
    moved: float
    estimate: Shares
    row: LikelyClasses


@dataclass
class ClassShares:
    """Shares of one person, updated photo by photo.

    The state is a function of the settings and of the rows in their order: adding the stored rows again rebuilds it.

    Args:
        settings: settings of the bundle.
        classes: C.
        native: whether to compute in C where the library is available.
        expected: whether a photo counts for all of its classes, by their expectation, instead of the most likely one.
        known: scores of correct answers, which say which photos and classes count.

    Raises:
        BundleError: the settings do not fit the classifier.
    """

    settings: ShareSettings
    classes: int
    native: bool = True
    expected: bool = False
    known: KnownScores = field(default_factory=KnownScores)
    _slots: dict[Hashable, int] = field(default_factory=dict, init=False, repr=False)  # key -> slot, oldest first
    _stale: bool = field(default=False, init=False, repr=False)  # whether a photo was forgotten since the last fold
    _index: np.ndarray = field(init=False, repr=False)  # of each slot: its k classes
    _kept: np.ndarray = field(init=False, repr=False)  # and their probabilities, and the credit of the photo
    _counts: np.ndarray = field(init=False, repr=False)  # N, and L
    _sums: np.ndarray = field(init=False, repr=False)  # votes n, those of classes beyond k, evidence, A, B

    def __post_init__(self) -> None:
        self.settings.check(self.classes)
        self.k = min(self.settings.top, self.classes)
        self._odds = math.log(self.settings.no_shift / (1 - self.settings.no_shift))
        self._fade, self._evidence_fade = (
            2.0 ** (-1 / photos) if photos else 1.0
            for photos in (self.settings.half_life, self.settings.evidence_half_life)
        )
        self._native = self._find_native() if self.native else None
        self.clear()

    # ---- the state

    def clear(self) -> None:
        """Forget all photos."""
        self._slots.clear()
        self._stale = False
        self._voters = 0  # photos above the rejection threshold
        self._free: list[int] = []
        self._index = np.zeros((0, self.k), np.int32)
        self._kept = np.zeros((0, self.k + 1), np.float32)
        self._counts, self._sums = np.zeros((2, self.classes)), np.zeros(5)
        self._place()

    def __len__(self) -> int:
        """Number of photos that count."""
        return len(self._slots)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._slots

    def __iter__(self) -> Iterator[Hashable]:
        """Keys of the photos, in the order in which they were added."""
        return iter(self._slots)

    def add(self, row: LikelyClasses, key: Hashable = None) -> None:
        """Count one photo, after it was answered.

        Args:
            row: what is kept of the photo.
            key: key for :meth:`forget`; the same key again replaces the photo. Default: a new one.

        Raises:
            HistoryError: the row is not of this classifier; nothing is changed.
        """
        self._check_row(row)
        key = object() if key is None else key
        self.forget(key)
        while len(self._slots) >= self.settings.capacity:
            self.forget(next(iter(self._slots)))
        slot = self._slots[key] = self._take_slot()
        self._index[slot], self._kept[slot, : self.k], self._kept[slot, self.k] = row
        self._voters += bool(row.probabilities.any())
        self._fold([] if self._stale else [slot])

    def extend(self, rows: Iterable[LikelyClasses], keys: Iterable[Hashable] | None = None) -> None:
        """Add rows, oldest first, as after a restart."""
        for row, key in zip(rows, keys, strict=True) if keys is not None else ((row, None) for row in rows):
            self.add(row, key)

    def forget(self, key: Hashable) -> bool:
        """Forget one photo; return whether it was there.

        The estimate is then that of the other photos in their order. Where the oldest photo has faded, what is left of
        its vote stays.
        """
        if key not in self._slots:
            return False
        half_lives = self.settings.half_life, self.settings.evidence_half_life
        faded = all(half_lives) and self._voters > _FADED * max(half_lives)
        self._stale |= not faded or next(iter(self._slots)) != key
        self._free.append(self._slots.pop(key))
        self._voters -= bool(self._kept[self._free[-1], : self.k].any())
        return True

    # ---- what it says

    def row(self, outputs: np.ndarray, length: float = 1.0) -> LikelyClasses:
        """Return what to keep of a photo.

        Args:
            outputs: outputs of the classifier, (C,), as ``settings.outputs`` says.
            length: length of the photo's feature.

        Raises:
            PhotoError: the outputs are not finite, or not probabilities.
        """
        return self._counted(self.row_of(softmax(self.calibrated(outputs))), outputs, length)

    def _counted(self, row: LikelyClasses, outputs: np.ndarray, length: float) -> LikelyClasses:
        """Return a row with its credit, or with zeros if the photo does not count."""
        score = self.known.score(outputs, length)
        if score >= self.known.rejection:
            return row._replace(credit=float(np.float32(self.known.credit(score))))
        return row._replace(probabilities=np.zeros_like(row.probabilities))

    def row_of(self, probability: np.ndarray) -> LikelyClasses:
        """Return the k most likely of calibrated probabilities (C,)."""
        if self._native is not None:
            return LikelyClasses(*self._native.top(probability))
        top = np.argpartition(-probability, self.k - 1)[: self.k] if self.k < self.classes else np.arange(self.classes)
        top = top[np.lexsort((top, -probability[top]))]  # ties by index: the same on every machine
        return LikelyClasses(top.astype(np.int32), probability[top].astype(np.float32))

    def calibrated(self, outputs: np.ndarray) -> np.ndarray:
        """Return calibrated logits (C,) in float64.

        Args:
            outputs: outputs of the classifier, (C,).

        Raises:
            PhotoError: as :meth:`row`.
        """
        logits = self._logits(np.asarray(outputs, dtype=np.float64))
        if self.settings.scale:
            logits = logits * self._scale
        if self.settings.bias:
            logits = logits + self._bias
        return logits / self.settings.temperature

    def estimate(self) -> Shares:
        """Return the present shares."""
        self._settle()
        if self._native is not None:
            return Shares(*self._native.estimate(), len(self._slots))
        settings, (votes, spread, evidence, *_), counts = self.settings, self._sums, self._counts[0]
        if self._vouched:
            counts = counts / (1 + np.exp(-self._class_odds() - self._counts[1]))
            votes = float(counts.sum())
        none = 1 / (1 + math.exp(evidence - self._odds))
        share = (counts + (spread + settings.strength) * self._base) / (votes + settings.strength)
        share = none * self._base + (1 - none) * share
        share = settings.elsewhere * self._base + (1 - settings.elsewhere) * share
        likelier = math.log(settings.no_shift + (1 - settings.no_shift) * math.exp(evidence))
        return Shares(share / share.sum(), np.array([none, 1 - none]), likelier, len(self._slots))

    def _class_odds(self) -> float:
        """Return the log odds that a class is the person's, before credits."""
        above, below = self._sums[3:].tolist()
        unknown = _PASSING * below
        return min(max(math.log((max(above - unknown, 0.0) + 1) / (unknown + 0.25)), _LEAST), _MOST)

    def answer(self, outputs: np.ndarray, length: float = 1.0) -> ShareAnswer:
        """Answer one photo with the shares as its class prior.

        Args:
            outputs: logits or probabilities of the classifier, (C,), as the settings say.
            length: length of the photo's feature.

        Raises:
            PhotoError: as :meth:`row`.
        """
        found = self._answered(outputs, length)
        if found is not None:
            return found[0]
        plain = self.calibrated(outputs)
        now = self.estimate()
        alone, support = softmax(plain), self.settings.support
        shift = np.log(np.maximum(now.shares, _TINY) / self._base)
        bounded = shift - excess(plain, shift, support)
        weighed = alone * np.exp(bounded)
        likelihood = float(weighed.sum())
        anything = (1 - self.settings.elsewhere) * float(now.weights[0]) + self.settings.elsewhere
        trust = min(max(1 - anything / likelihood, 0.0), 1.0) if len(self) else 0.0
        moved = 0.5 * float(np.abs(weighed / likelihood - alone).sum())
        row = self._counted(self.row_of(alone), np.asarray(outputs), length)
        return ShareAnswer(plain + bounded, plain, shift, support, alone, trust, moved, now, row)

    def answer_beside(
        self, outputs: np.ndarray, head: np.ndarray, length: float = 1.0
    ) -> tuple[ShareAnswer, np.ndarray]:
        """One photo's answer by a head with a history of its own and class shares.

        Args:
            outputs: (C,) of the classifier without history, as the settings say.
            head: (C,) logits of the head.
            length: length of the photo's feature.

        Returns:
            what the shares say, with ``moved`` of this answer; and its logits (C,), see :func:`beside_head`.

        Raises:
            PhotoError: as :meth:`answer`.
        """
        found = self._answered(outputs, length, head)
        if found is not None:
            return found
        answer = self.answer(outputs, length)
        logits = beside_head(head, answer, self.settings.with_head, self.settings.gated)
        moved = 0.5 * float(np.abs(softmax(logits) - softmax(head.astype(np.float64))).sum())
        return answer._replace(moved=moved), logits

    def without(self, head: np.ndarray, answer: ShareAnswer, logits: np.ndarray) -> tuple[np.ndarray, float]:
        """The answer of a gated head with the trust of the shares, and nothing else of them.

        Args:
            head, answer, logits: given to :meth:`answer_beside`, and what it returned.

        Returns:
            its logits (C,), and the probability by which ``logits`` moved from them.
        """
        unmoved = answer._replace(shift=np.zeros(self.classes))
        found = beside_head(head.astype(np.float64), unmoved, self.settings.with_head, self.settings.gated)
        return found, 0.5 * float(np.abs(softmax(logits) - softmax(found)).sum())

    def _answered(
        self, outputs: np.ndarray, length: float, head: np.ndarray | None = None
    ) -> tuple[ShareAnswer, np.ndarray] | None:
        """An answer in C; None where there is no library, or the outputs are not finite logits (C,)."""
        outputs = np.asarray(outputs)
        if self._native is None or self.settings.outputs != "logits" or outputs.shape != (self.classes,):
            return None
        self._settle()
        found = self._native.answer(len(self), outputs, head)
        if found is None:
            return None
        logits, shared, plain, shift, alone, shares, weights, numbers, *kept = found
        evidence, trust, moved = numbers
        now, row = Shares(shares, weights, evidence, len(self)), self._counted(LikelyClasses(*kept), outputs, length)
        return ShareAnswer(shared, plain, shift, self.settings.support, alone, trust, moved, now, row), logits

    def decode(self, content: bytes) -> LikelyClasses:
        """A stored row.

        Raises:
            HistoryError: it was not stored for this classifier.
        """
        if len(content) != size_of(self.k):
            raise HistoryError(
                f"a stored row of class shares has {len(content)} bytes, expected {size_of(self.k)}: it is of another"
                " classifier or other settings; compute the rows again"
            )
        row = LikelyClasses(
            np.frombuffer(content, "<u4", self.k).astype(np.int64),
            np.frombuffer(content, "<f4", self.k, 4 * self.k).astype(np.float32),
            float(np.frombuffer(content, "<f4", 1, 8 * self.k)[0]),
        )
        self._check_row(row)
        return row._replace(classes=row.classes.astype(np.int32))

    # ---- inside

    def _settle(self) -> None:
        """Count all photos again after one was forgotten."""
        if self._stale:
            self._stale = False
            self._counts[:] = 0
            self._sums[:] = 0
            self._fold([*self._slots.values()])

    def _fold(self, slots: Sequence[int]) -> None:
        """Count the photos of these slots, in this order."""
        if self._native is not None:
            self._native.fold(slots)
        for slot in slots if self._native is None else ():
            self._count(self._index[slot], *np.split(self._kept[slot].astype(np.float64), [self.k]))

    def _count(self, index: np.ndarray, kept: np.ndarray, credit: np.ndarray) -> None:
        """Count one photo by its row; zeros do not vote."""
        self._sums[3:] = self._fade * self._sums[3:] + ([1, 0] if kept.any() else [0, 1])
        if not kept.any():
            return
        settings, (votes, spread, evidence, *_) = self.settings, self._sums
        base, best, counts = self._base[index], int(kept.argmax()), self._counts[0]
        share = (counts[index] + (spread + settings.strength) * base) / (votes + settings.strength)
        covered = max(1.0 - float(base.sum()), _TINY)
        rest = max(0.0, 1.0 - float(kept.sum())) / covered if self.k < self.classes else 0.0
        owned, others = share * kept / base, rest * max(1.0 - float(share.sum()), 0.0)
        personal, vote = max(float(owned.sum()) + others, _TINY), float(kept[best]) ** 2
        self._counts *= self._fade
        if self.expected:
            counts[index] += vote * owned / personal
        else:
            self._counts[:, index[best]] += [vote, float(credit[0])]
        self._sums[:2] = self._fade * self._sums[:2] + [vote, vote * others / personal if self.expected else 0.0]
        gained = math.log(max(1 - vote + vote * personal, _TINY)) - settings.penalty
        self._sums[2] = min(max(self._evidence_fade * evidence + gained, _LEAST), _MOST)

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        used = len(self._slots)
        if used == len(self._index):
            more = max(64, min(used, self.settings.capacity))
            self._index = np.concatenate([self._index, np.zeros((more, self.k), np.int32)])
            self._kept = np.concatenate([self._kept, np.zeros((more, self.k + 1), np.float32)])
            self._place()
        return used

    def _find_native(self) -> NativeShares | None:
        try:
            from refocus.edge.runtimes.native_shares import NativeShares
        except RuntimeUnavailable:
            return None
        vectors = {"base": self._base, "scale": self._scale, "bias": self._bias}
        numbers = {name: getattr(self.settings, name) for name in _NUMBERS}
        fading = {"odds": self._odds, "fade": self._fade, "evidence_fade": self._evidence_fade}
        flags = {"expected": self.expected, "gated": self.settings.gated, "vouched": self._vouched}
        limits = {"least": _LEAST, "most": _MOST, "passing": _PASSING}
        return NativeShares(self.classes, self.k, vectors, numbers | fading | flags | limits)

    def _place(self) -> None:
        """Pass the state's memory to the native arithmetic."""
        if self._native is not None:
            self._native.place(self._index, self._kept, self._counts, self._sums)

    @property
    def _vouched(self) -> bool:
        return bool(self.known.quantiles)

    @cached_property
    def _base(self) -> np.ndarray:
        return _normalised(self.settings.base or np.full(self.classes, 1 / self.classes))

    @cached_property
    def _scale(self) -> np.ndarray:
        return np.asarray(self.settings.scale)

    @cached_property
    def _bias(self) -> np.ndarray:
        return np.asarray(self.settings.bias)

    def _logits(self, outputs: np.ndarray) -> np.ndarray:
        if outputs.shape != (self.classes,):
            raise PhotoError(
                f"the classifier gave an output of shape {outputs.shape} where ({self.classes},) was expected;"
                " nothing was stored"
            )
        if not np.isfinite(outputs).all():
            raise PhotoError("the classifier's output for this photo holds NaN or infinity; nothing was stored")
        if self.settings.outputs == "logits":
            return outputs
        if outputs.min() < 0 or abs(outputs.sum() - 1) > 1e-2:
            raise PhotoError(
                f"the classifier's outputs are not probabilities (least {outputs.min():.3g}, sum {outputs.sum():.3g});"
                " nothing was stored; if they are logits, the bundle must say so"
            )
        logits: np.ndarray = np.log(np.maximum(outputs, _TINY))
        return logits

    def _check_row(self, row: LikelyClasses) -> None:
        classes, probabilities, credit = row
        if classes.shape != (self.k,) or probabilities.shape != (self.k,):
            raise HistoryError(
                f"a row of class shares has shapes {classes.shape} and {probabilities.shape}, expected ({self.k},)"
                " twice: it is of another classifier or other settings; compute the rows again"
            )
        named, there = classes.tolist(), probabilities.tolist()  # of a few numbers lists are faster than arrays
        if min(named) < 0 or max(named) >= self.classes or len(set(named)) < self.k:
            raise HistoryError(
                f"a row of class shares names classes that are not {self.k} different ones below {self.classes}: it is"
                " of another label set, or damaged; compute the rows again"
            )
        if not (all(one >= 0 for one in there) and sum(there) <= 1.001 and abs(credit) <= MOST_CREDIT):  # NaN too
            raise HistoryError("a row of class shares holds no probabilities: it is damaged; compute the rows again")


def excess(without: np.ndarray, shift: np.ndarray, support: float) -> np.ndarray:
    """Return the part of a shift by which unsupported classes would gain on the most likely class without shares.

    Class c is supported if its probability is at least ``support`` times the largest one. Without its excess the shift
    of any other class is min(shift(c), shift(t)), where t is the most likely class: the odds of c to t do not grow, so
    that it cannot overtake t, and the most likely class with shares is a supported one.

    Args:
        without: (C,) logits of the answer without shares.
        shift: (C,) logarithms by which shares would move them.
        support: in [0, 1); 0: all classes are supported.

    Returns:
        (C,) numbers from 0, to be subtracted from the shift.
    """
    best = int(without.argmax())
    if not support:
        return np.zeros_like(shift)
    supported = without >= without[best] + math.log(support)
    found: np.ndarray = np.where(supported, 0.0, np.maximum(shift - shift[best], 0.0))
    return found


def beside_head(delivered: np.ndarray, answer: ShareAnswer, exponent: float, gated: bool = False) -> np.ndarray:
    """Logits (C,) of a head that has a history of its own, with shares.

    log q + g log(s / b), where q is the head's answer and g the exponent. Gated, this counts by the trust t of the
    shares, and the classifier with shares by the rest: (1 - t) (log p + log(s / b)) + t (log q + g log(s / b)). A photo
    that is not of the classes that the person meets has a small t, and is not left to a head that was given them.

    The shift is bounded as that of the classifier alone, by the answer that it changes: log q, or if gated
    (1 - t) log p + t log q.

    Args:
        delivered: (C,) logits of the head.
        answer: of the shares to the same photo.
        exponent: g in [0, 1].
        gated: see above.
    """
    without = _log_softmax(delivered)
    logits, part = without + exponent * answer.shift, exponent
    if gated:
        trust = answer.trust
        logits = (1 - trust) * _log_softmax(answer.plain_logits + answer.shift) + trust * logits
        without, part = (1 - trust) * answer.plain_logits + trust * without, 1 - trust + trust * exponent
    bounded: np.ndarray = logits - part * excess(without, answer.shift, answer.support)
    return bounded


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - np.float64(logits.max())
    log: np.ndarray = shifted - np.log(np.exp(shifted).sum())
    return log


def softmax(logits: np.ndarray) -> np.ndarray:
    """(C,) logits -> (C,) probabilities."""
    exponential = np.exp(logits - logits.max())
    probability: np.ndarray = exponential / exponential.sum()
    return probability


def _normalised(shares: Sequence[float] | np.ndarray) -> np.ndarray:
    array = np.asarray(shares, dtype=np.float64)
    normalised: np.ndarray = array / array.sum()
    return normalised
