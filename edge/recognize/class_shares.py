"""Class shares: which classes a person meets, estimated from a classifier's answers without labels or training.

A classifier was trained where class c has the share b(c). A person's photos have other shares, s(c), but a photo of a
class looks alike to both (label shift), so Bayes' rule turns the classifier's answer p(c | x) into the person's:
p(c | x) s(c) / b(c), normalised. The shares are found by expectation maximisation over the whole history (Saerens,
Latinne and Decaestecker, "Adjusting the outputs of a classifier to new a priori probabilities", Neural Computation
14(1), 2002, equation 9), with these additions:

- Calibration first, as label-shift estimates need it: z = (scale * logits + bias) / temperature (Alexandari, Kundaje
  and Shrikumar, "Maximum likelihood with bias-corrected calibration is hard-to-beat at label shift adaptation", ICML
  2020).
- A Dirichlet prior of strength a with mean b. The M-step is s(c) = (N(c) + a b(c)) / (n + a), where N(c) is the sum of
  the n photos' responsibilities q(c), proportional to p(c | x) s(c) / b(c). a = infinity is "no shift".
- Several strengths and half-lives, each a hypothesis j, and "no shift" beside them. A hypothesis is weighed by how well
  it predicted each photo before it saw it (Dawid, "Statistical theory: the prequential approach", JRSS A, 1984):
  E_j = sum over photos of log sum_c s_j(c) p(c | x) / b(c), which is 0 for "no shift", and w_j is proportional to
  prior_j exp(E_j). Old evidence fades, so that another hypothesis can take over (Raftery, Karny and Ettler, "Online
  prediction under model uncertainty via dynamic model averaging", Technometrics 52(1), 2010, equation 15).
- A share ``elsewhere`` of the photos is of anything: s = elsewhere b + (1 - elsewhere) sum_j w_j s_j.
- The shift is bounded by the photo. The likelihood above has no place for photos of none of the C classes. They pile up
  in classes that attract them, which would then attract other photos too. A class whose probability without shares is
  below ``support`` times the largest one cannot gain on the most likely class, see :func:`excess`: the best class with
  shares is one that the answer without them supports.

One photo costs O(k): only its k most likely classes take part. The other classes share the rest of its probability in
proportion to b, and its responsibility for them counts as prior. A new photo's E-step is followed by those of
``revisit`` older photos in turn, under the present shares (incremental EM: Neal and Hinton, "A view of the EM algorithm
that justifies incremental, sparse, and other variants", 1998); without it the estimate would depend on their order.

Notation: C classes, k most likely classes that are kept of a photo, J hypotheses, n photos.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from refocus.edge.errors import BundleError, HistoryError, PhotoError, RuntimeUnavailable
from refocus.edge.history.likely_classes import LikelyClasses

if TYPE_CHECKING:
    from refocus.edge.runtimes.native_shares import NativeShares

MOST_TOP, MOST_HYPOTHESES, MOST_CAPACITY = 256, 16, 1 << 20  # bounds of what a bundle may ask of a device
_TINY = float(np.finfo(np.float32).tiny)
_SUMS = "counts", "spread", "photos", "evidence"
_RESCALE = 40.0  # halvings after which decayed counts are brought back to scale


@dataclass(frozen=True)
class ShareSettings:
    """How shares are estimated; part of a bundle.

    Attributes:
        outputs: what the classifier gives: logits, or probabilities that sum to one.
        temperature: T > 0 of calibration.
        scale: (C,) of vector scaling, or empty: ones.
        bias: (C,) of vector scaling, or empty: zeros.
        base: (C,) b, the class shares among the photos that the classifier was trained on, or empty: all alike.
        strengths: a of the hypotheses, in photos; each positive.
        half_lives: of the hypotheses, in photos; each strength is tried with each; 0: nothing is forgotten.
        no_shift: prior probability of "no shift", in [0, 1); the others share the rest.
        elsewhere: share of the photos that may be of any class, in [0, 1].
        evidence_half_life: photos after which old evidence counts half; 0: always the same.
        with_head: exponent of s / b beside the answer of a head that has a history of its own, in [0, 1]; such a head
            knows part of what shares say.
        gated: whether the trust of the shares decides how far such a head is followed, see :func:`beside_head`: a gate
            that needs no training.
        support: least probability without shares, as a part of the largest one, of classes that shares may favour over
            the most likely class, in [0, 1); 0: any class.
        top: k.
        revisit: older photos whose E-step is repeated with each new photo.
        capacity: photos that are taken into account; older ones are forgotten.
    """

    outputs: Literal["logits", "probabilities"] = "logits"
    temperature: float = 1.0
    scale: tuple[float, ...] = ()
    bias: tuple[float, ...] = ()
    base: tuple[float, ...] = ()
    strengths: tuple[float, ...] = (4.0,)
    half_lives: tuple[float, ...] = (0.0, 32.0, 8.0)
    no_shift: float = 0.5
    elsewhere: float = 0.2
    evidence_half_life: float = 16.0
    with_head: float = 0.5
    gated: bool = False
    support: float = 0.07
    top: int = 8
    revisit: int = 4
    capacity: int = 4096

    def check(self, classes: int) -> None:
        """Checks the settings for a classifier of so many classes.

        Raises:
            BundleError: a value is out of its bounds, or a vector is not (C,); or C < 2.
        """
        if classes < 2:
            raise BundleError(f"class shares need a classifier of at least 2 classes; this one has {classes}")
        for name in ("scale", "bias", "base"):
            vector = np.asarray(getattr(self, name), dtype=float)
            if vector.size and (vector.shape != (classes,) or not np.isfinite(vector).all()):
                raise BundleError(
                    f"class shares: {name} has {vector.size} numbers; expected {classes} finite ones, or none"
                )
        if self.base and (min(self.base) <= 0 or abs(sum(self.base) - 1) > 1e-3):
            raise BundleError("class shares: base must be positive shares that sum to 1")
        if self.scale and min(self.scale) <= 0:
            raise BundleError("class shares: scale must be positive")
        hypotheses = len(self.strengths) * len(self.half_lives)
        bounds: dict[str, tuple[bool, str]] = {
            "outputs": (self.outputs in ("logits", "probabilities"), "'logits' or 'probabilities'"),
            "temperature": (0 < self.temperature < math.inf, "a positive number"),
            "strengths": (all(0 < a < math.inf for a in self.strengths), "positive numbers"),
            "half_lives": (all(0 <= h < math.inf for h in self.half_lives), "numbers of photos, 0 for never"),
            "no_shift": (0 <= self.no_shift < 1, "from 0 to below 1"),
            "elsewhere": (0 <= self.elsewhere <= 1, "from 0 to 1"),
            "with_head": (0 <= self.with_head <= 1, "from 0 to 1"),
            "support": (0 <= self.support < 1, "from 0 to below 1"),
            "evidence_half_life": (0 <= self.evidence_half_life < math.inf, "a number of photos, 0 for never"),
            "top": (1 <= self.top <= MOST_TOP, f"from 1 to {MOST_TOP}"),
            "revisit": (0 <= self.revisit <= self.capacity, "from 0 to capacity"),
            "capacity": (1 <= self.capacity <= MOST_CAPACITY, f"from 1 to {MOST_CAPACITY}"),
        }
        for name, (good, expected) in bounds.items():
            if not good:
                raise BundleError(f"class shares: {name} is {getattr(self, name)}; expected {expected}")
        if not 1 <= hypotheses <= MOST_HYPOTHESES:
            raise BundleError(
                f"class shares: {hypotheses} hypotheses (strengths x half_lives); expected 1 to {MOST_HYPOTHESES}"
            )

    @property
    def looks_back(self) -> int:
        """Photos with which an estimate has begun to be the person's: as many as the longest half-life, or as the prior
        weighs, whichever is more."""
        return min(math.ceil(max(*self.strengths, *self.half_lives)), self.capacity)

    def identity(self, labels: Sequence[str]) -> str:
        """What stored rows depend on besides the feature and the classifier: SHA-256 of the labels and of the settings
        that :meth:`ClassShares.row` reads. Rows that were stored under another identity must be computed again."""
        parts = [self.outputs, self.temperature, self.scale, self.bias, self.top, tuple(labels)]
        return hashlib.sha256(repr(parts).encode()).hexdigest()


class Shares(NamedTuple):
    """The present estimate.

    Attributes:
        shares: (C,) s, summing to one.
        weights: (J + 1,) of "no shift" and of each hypothesis, summing to one.
        evidence: log of how much likelier the history is under the mixture of all hypotheses than under "no shift".
        photos: n.
    """

    shares: np.ndarray
    weights: np.ndarray
    evidence: float
    photos: int


class ShareAnswer(NamedTuple):
    """One photo's answer with shares.

    Attributes:
        logits: (C,) calibrated logits plus the bounded shift; their softmax is the answer.
        plain_logits: (C,) calibrated logits of the classifier alone.
        shift: (C,) log(s / b), not bounded.
        support: by which the shift is bounded, see :func:`excess`.
        trust: probability, given the photo, that its class is drawn from the person's shares rather than from b ("no
            shift" or "elsewhere"); 0 without history.
        alone: (C,) probabilities of the classifier alone, calibrated.
        moved: probability that the shares moved from some classes to others: half the L1 distance between the answers
            with and without them; 0: they say the same.
        estimate: the shares.
        row: what is to be kept of the photo.
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
        settings: of the bundle.
        classes: C.
        native: whether the arithmetic is done by the library of the native head, where there is one.

    Raises:
        BundleError: the settings do not fit the classifier.
    """

    settings: ShareSettings
    classes: int
    native: bool = True
    _slots: dict[Hashable, int] = field(default_factory=dict, init=False, repr=False)  # key -> slot, oldest first

    # Of each slot, which holds one photo: its k classes, p / b of these, p / b of all others, when it came, whether it
    # counts, responsibilities of its classes (J, k) and of the others (J,), log predictive likelihood (J,).
    _index: np.ndarray = field(init=False, repr=False)
    _ratio: np.ndarray = field(init=False, repr=False)
    _rest: np.ndarray = field(init=False, repr=False)
    _born: np.ndarray = field(init=False, repr=False)
    _live: np.ndarray = field(init=False, repr=False)
    _owned: np.ndarray = field(init=False, repr=False)
    _others: np.ndarray = field(init=False, repr=False)
    _predicted: np.ndarray = field(init=False, repr=False)

    _used: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self.settings.check(self.classes)
        settings, pairs = self.settings, [(a, h) for a in self.settings.strengths for h in self.settings.half_lives]
        self.k = min(settings.top, self.classes)
        self._strength = np.array([a for a, _ in pairs])
        self._fading = np.array([1 / h if h else 0.0 for _, h in pairs])  # halvings a photo
        self._evidence_fading = 1 / settings.evidence_half_life if settings.evidence_half_life else 0.0
        none = math.log(settings.no_shift) if settings.no_shift else -math.inf
        self._prior = np.array([none, *[math.log((1 - settings.no_shift) / len(pairs))] * len(pairs)])
        self._native = self._find_native() if self.native else None
        self.clear()

    # ---- the state

    def clear(self) -> None:
        """Forgets everything."""
        hypotheses = len(self._strength)
        self._slots.clear()
        self._free: list[int] = []
        self._grow(0)
        self._time = self._origin = 0  # photos added so far; the time to which counts are scaled
        self._counts = np.zeros((hypotheses, self.classes))  # N, without what counts as prior
        self._spread = np.zeros(hypotheses)  # responsibilities of the classes that are not among the k
        self._photos = np.zeros(hypotheses)  # n, faded
        self._evidence = np.zeros(hypotheses)
        self._next = 0  # the slot to revisit
        self._place()

    def __len__(self) -> int:
        """Photos taken into account."""
        return len(self._slots)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._slots

    def __iter__(self) -> Iterator[Hashable]:
        """The keys of the photos, in the order in which they were added."""
        return iter(self._slots)

    def add(self, row: LikelyClasses, key: Hashable = None) -> None:
        """Takes one photo into account, after it was answered.

        Args:
            key: by which :meth:`forget` finds it; the same key again replaces the photo. Default: a number.

        Raises:
            HistoryError: the row is not of this classifier; nothing is changed.
        """
        self._check_row(row)
        key = self._time if key is None else key
        slot = self._slot_for(key)
        self._live[slot] = True
        self._slots[key] = slot
        turn = self._in_turn()
        if self._native is not None:
            self._origin = self._native.add(self._time, self._origin, slot, row, turn)
            self._time += 1
            return
        rest = max(0.0, 1.0 - float(row.probabilities.sum()))
        prior = self._base[row.classes]
        self._index[slot] = row.classes
        self._ratio[slot] = row.probabilities / prior
        self._rest[slot] = rest / max(1.0 - float(prior.sum()), _TINY) if self.k < self.classes else 0.0
        self._born[slot] = self._time
        self._advance()
        self._count(np.array([slot]), first=True)
        self._count(np.array(turn, dtype=np.int64))

    def _slot_for(self, key: Hashable) -> int:
        """An empty slot for a photo; it is forgotten, if it is there, and older ones that there is no room for."""
        self.forget(key)
        while len(self._slots) >= self.settings.capacity:
            self.forget(next(iter(self._slots)))
        return self._take_slot()

    def _in_turn(self) -> list[int]:
        """The slots to revisit next to a photo that was just added; the turn moves on."""
        if not self.settings.revisit or len(self._slots) < 2:
            return []
        slots = [(self._next + step) % self._used for step in range(min(self.settings.revisit, self._used))]
        self._next = (slots[-1] + 1) % self._used
        return [slot for slot in slots if self._live[slot]]

    def extend(self, rows: Iterable[LikelyClasses], keys: Iterable[Hashable] | None = None) -> None:
        """:meth:`add` for each row, oldest first, as after a restart."""
        for row, key in zip(rows, keys, strict=True) if keys is not None else ((row, None) for row in rows):
            self.add(row, key)

    def forget(self, key: Hashable) -> bool:
        """Takes a photo's contribution out again. Returns whether it was there.

        The estimate is then what the other photos' present responsibilities say. What they owed to the erased photo
        fades as they are revisited; :meth:`clear` and :meth:`extend` remove it at once.
        """
        slot = self._slots.pop(key, None)
        if slot is None:
            return False
        if self._native is not None:
            self._native.forget(self._time, self._origin, slot)
        else:
            self._forget_slot(slot)
        if not self._slots:
            self._photos[:] = 0.0
        self._live[slot] = False
        self._free.append(slot)
        return True

    def _forget_slot(self, slot: int) -> None:
        weight = np.exp2((self._born[slot] - self._origin) * self._fading)
        self._counts[:, self._index[slot]] -= weight[:, None] * self._owned[slot]
        np.maximum(self._counts, 0.0, out=self._counts)
        np.maximum(self._spread - weight * self._others[slot], 0.0, out=self._spread)
        np.maximum(self._photos - weight, 0.0, out=self._photos)
        age = self._time - 1 - self._born[slot]
        self._evidence -= np.exp2(-age * self._evidence_fading) * self._predicted[slot]
        self._owned[slot] = self._others[slot] = self._predicted[slot] = 0.0

    # ---- what it says

    def row(self, outputs: np.ndarray) -> LikelyClasses:
        """What to keep of a photo.

        Args:
            outputs: (C,) of the classifier, as ``settings.outputs`` says.

        Raises:
            PhotoError: not what the classifier should give.
        """
        return self.row_of(softmax(self.calibrated(outputs)))

    def row_of(self, probability: np.ndarray) -> LikelyClasses:
        """The same, of the calibrated probabilities (C,) of the photo."""
        if self._native is not None:
            return LikelyClasses(*self._native.top(probability))
        top = np.argpartition(-probability, self.k - 1)[: self.k] if self.k < self.classes else np.arange(self.classes)
        top = top[np.lexsort((top, -probability[top]))]  # ties by index: the same on every machine
        return LikelyClasses(top.astype(np.int32), probability[top].astype(np.float32))

    def calibrated(self, outputs: np.ndarray) -> np.ndarray:
        """(C,) float64 calibrated logits of a classifier's outputs (C,).

        Raises:
            PhotoError: not what the classifier should give.
        """
        logits = self._logits(np.asarray(outputs, dtype=np.float64))
        if self.settings.scale:
            logits = logits * self._scale
        if self.settings.bias:
            logits = logits + self._bias
        return logits / self.settings.temperature

    def estimate(self) -> Shares:
        """The present shares; O(J C)."""
        if self._native is not None:
            return Shares(*self._native.estimate(self._time, self._origin), len(self._slots))
        weights = self._prior + np.concatenate([[0.0], self._evidence])
        most = weights.max()
        weights = np.exp(weights - most)
        evidence = math.log(weights.sum()) + most
        weights /= weights.sum()
        fade = np.exp2(-(self._time - self._origin) * self._fading)
        denominator = fade * self._photos + self._strength
        personal = weights[1:] / denominator
        share = (personal * fade) @ self._counts
        share += (weights[0] + personal @ (fade * self._spread + self._strength)) * self._base
        share *= 1 - self.settings.elsewhere
        share += self.settings.elsewhere * self._base
        return Shares(share / share.sum(), weights, evidence, len(self._slots))

    def answer(self, outputs: np.ndarray) -> ShareAnswer:
        """Probabilities of one photo with the class shares as its class prior.

        Args:
            outputs: (C,) logits or probabilities of the classifier, as the settings say.

        Raises:
            PhotoError: the outputs have NaN or infinite numbers, or are not probabilities.
        """
        found = self._answered(outputs)
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
        return ShareAnswer(plain + bounded, plain, shift, support, alone, trust, moved, now, self.row_of(alone))

    def answer_beside(self, outputs: np.ndarray, head: np.ndarray) -> tuple[ShareAnswer, np.ndarray]:
        """One photo's answer by a head with a history of its own and class shares.

        Args:
            outputs: (C,) of the classifier without history, as the settings say.
            head: (C,) logits of the head.

        Returns:
            what the shares say, with ``moved`` of this answer; and its logits (C,), see :func:`beside_head`.

        Raises:
            PhotoError: as :meth:`answer`.
        """
        found = self._answered(outputs, head)
        if found is not None:
            return found
        answer = self.answer(outputs)
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

    def _answered(self, outputs: np.ndarray, head: np.ndarray | None = None) -> tuple[ShareAnswer, np.ndarray] | None:
        """An answer in C; None where there is no library, or the outputs are not finite logits (C,)."""
        outputs = np.asarray(outputs)
        if self._native is None or self.settings.outputs != "logits" or outputs.shape != (self.classes,):
            return None
        found = self._native.answer(self._time, self._origin, len(self), outputs, head)
        if found is None:
            return None
        logits, shared, plain, shift, alone, shares, weights, evidence, trust, moved, *kept = found
        now, row = Shares(shares, weights, evidence, len(self)), LikelyClasses(*kept)
        return ShareAnswer(shared, plain, shift, self.settings.support, alone, trust, moved, now, row), logits

    def decode(self, content: bytes) -> LikelyClasses:
        """A stored row.

        Raises:
            HistoryError: it was not stored for this classifier.
        """
        if len(content) != 8 * self.k:
            raise HistoryError(
                f"a stored row of class shares has {len(content)} bytes, expected {8 * self.k}: it is of another"
                " classifier or other settings; compute the rows again"
            )
        row = LikelyClasses(
            np.frombuffer(content, "<u4", self.k).astype(np.int64),
            np.frombuffer(content, "<f4", self.k, 4 * self.k).astype(np.float32),
        )
        self._check_row(row)
        return LikelyClasses(row.classes.astype(np.int32), row.probabilities)

    # ---- inside

    def _count(self, slots: np.ndarray, first: bool = False) -> None:
        """E-steps of the photos in these slots (r,) under the present shares, and the counts that follow."""
        if self._native is not None:
            self._native.count(self._time, self._origin, slots)
            return
        if not len(slots):
            return
        index = self._index[slots]  # (r, k)
        fade = np.exp2(-(self._time - self._origin) * self._fading)
        scale = fade / (fade * self._photos + self._strength)
        prior = (fade * self._spread + self._strength) / (fade * self._photos + self._strength)
        share = scale[:, None, None] * self._counts[:, index] + prior[:, None, None] * self._base[index]  # (J, r, k)
        owned = share * self._ratio[slots]
        others = self._rest[slots] * np.maximum(1.0 - share.sum(-1), 0.0)  # (J, r)
        total = np.maximum(owned.sum(-1) + others, _TINY)
        owned /= total[..., None]
        others /= total
        weight = np.exp2(self._fading[:, None] * (self._born[slots] - self._origin))  # (J, r)
        change = weight[..., None] * (owned - self._owned[slots].transpose(1, 0, 2))
        for counts, part in zip(self._counts, change, strict=True):
            np.add.at(counts, index, part)  # two photos may have the same class
        self._spread += (weight * (others - self._others[slots].T)).sum(1)
        self._owned[slots] = owned.transpose(1, 0, 2)
        self._others[slots] = others.T
        if first:
            self._photos += weight.sum(1)
            self._predicted[slots] = np.log(total).T
            self._evidence += np.log(total).sum(1)

    def _advance(self) -> None:
        """One photo later: evidence fades, and counts are brought back to scale before they overflow."""
        self._time += 1
        self._evidence *= 2.0**-self._evidence_fading
        halvings = (self._time - self._origin) * self._fading
        if halvings.max() > _RESCALE:
            fade = np.exp2(-halvings)
            self._counts *= fade[:, None]
            self._spread *= fade
            self._photos *= fade
            self._origin = self._time

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == len(self._born):
            self._grow(max(64, min(2 * self._used, self.settings.capacity)))
        self._used += 1
        return self._used - 1

    def _grow(self, rows: int) -> None:
        """Room for so many photos; 0: none."""
        hypotheses = len(self._strength)
        shapes: dict[str, tuple[tuple[int, ...], type]] = {
            "_index": ((self.k,), np.int32),
            "_ratio": ((self.k,), np.float32),
            "_rest": ((), np.float32),
            "_born": ((), np.int64),
            "_live": ((), np.bool_),
            "_owned": ((hypotheses, self.k), np.float32),
            "_others": ((hypotheses,), np.float32),
            "_predicted": ((hypotheses,), np.float32),
        }
        for name, (shape, kind) in shapes.items():
            larger: np.ndarray = np.zeros((rows, *shape), kind)
            if rows:
                larger[: self._used] = getattr(self, name)[: self._used]
            setattr(self, name, larger)
        if rows:
            self._place()
        else:
            self._used = 0

    def _find_native(self) -> NativeShares | None:
        try:
            from refocus.edge.runtimes.native_shares import NativeShares
        except RuntimeUnavailable:
            return None
        settings = self.settings
        of = {"base": self._base, "strength": self._strength, "fading": self._fading, "prior": self._prior}
        calibration = self._scale, self._bias, settings.temperature
        more = (
            calibration,
            self._evidence_fading,
            settings.revisit,
            (settings.with_head, settings.support, settings.gated),
        )
        return NativeShares(of, settings.elsewhere, self.classes, self.k, *more)

    def _place(self) -> None:
        """Tells the native arithmetic where the state is."""
        if self._native is not None:
            names = "index", "ratio", "rest", "born", "owned", "others", "predicted"
            self._native.place({name: getattr(self, f"_{name}") for name in (*names, *_SUMS)})

    @cached_property
    def _base(self) -> np.ndarray:
        base = np.asarray(self.settings.base or np.full(self.classes, 1 / self.classes), dtype=np.float64)
        normalised: np.ndarray = base / base.sum()
        return normalised

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
        classes, probabilities = row
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
        if not (all(one >= 0 for one in there) and sum(there) <= 1.001):  # NaN too
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
