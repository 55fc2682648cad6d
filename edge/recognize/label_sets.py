"""Photos with several labels each: answers as sets, and each label's share of a person's photos.

Every label is a question of its own, answered yes or no. A classifier was trained where label c has the rate b(c); the
photos of one person have another rate, s(c). Label by label this is the label shift of
:mod:`refocus.edge.recognize.class_shares` with two classes, the label and its absence. The same arithmetic estimates
s(c), without a background: a photo that shows no label is a known one. A photo counts by its expectation, because a
rare label is seldom the likelier answer.

Notation: C labels, n photos.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import fields, replace

import numpy as np

from refocus.edge.bundle.manifest import MAX_SET_LABELS, SHARES_VERSION, Head, ShareCard
from refocus.edge.errors import BundleError, HistoryError, PhotoError
from refocus.edge.history.likely_classes import LikelyClasses, size_of
from refocus.edge.recognize.class_shares import ClassShares, ShareAnswer, Shares, ShareSettings, softmax
from refocus.edge.recognize.rejection import known_scores_of

LABEL_SEPARATOR = ";"  # between the labels of one photo in a table
_BOTH = np.arange(2, dtype=np.int32)  # a label, and its absence


def label_set(text: str) -> tuple[str, ...]:
    """The labels that a table's text names, as ``a;b``; none where it is empty."""
    return tuple(part.strip() for part in text.split(LABEL_SEPARATOR)) if text.strip() else ()


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """(C,) logits -> (C,) probabilities, of each label for itself."""
    small = np.exp(-np.abs(logits))
    probability: np.ndarray = np.where(logits >= 0, 1.0, small) / (1.0 + small)
    return probability


def probabilities_of(logits: np.ndarray, several: bool) -> np.ndarray:
    """(C,) logits -> (C,) probabilities: of each label for itself where photos have several, else of all together."""
    return sigmoid(logits) if several else softmax(logits)


class LabelShares:
    """Shares of each label among one person's photos; the interface of :class:`ClassShares`.

    A row keeps the probabilities of all C labels, in their order.

    Args:
        settings: of the bundle; ``base`` is (C,), the rate of each label where the classifier was trained.
        classes: C.

    Raises:
        BundleError: the settings do not fit the classifier.
    """

    def __init__(self, settings: ShareSettings, classes: int) -> None:
        base = settings.base or (0.5,) * classes
        if not 1 <= classes <= MAX_SET_LABELS or len(base) != classes or not 0 < min(base) <= max(base) < 1:
            raise BundleError(
                f"label shares: base has {len(base)} rates for {classes} labels; expected one above 0 and below 1 for"
                f" each of at most {MAX_SET_LABELS} labels"
            )
        self.settings, self.classes, self.k = settings, classes, classes
        one = replace(settings, outputs="logits", temperature=1.0, scale=(), bias=(), top=2)
        self._labels = [ClassShares(replace(one, base=(rate, 1 - rate)), 2, expected=True) for rate in base]
        self._trust = np.zeros(classes)  # of the shares in the last answer

    def clear(self) -> None:
        """Forgets everything."""
        for label in self._labels:
            label.clear()

    def __len__(self) -> int:
        return len(self._labels[0])

    def __contains__(self, key: Hashable) -> bool:
        return key in self._labels[0]

    def __iter__(self) -> Iterator[Hashable]:
        """The keys of the photos, in the order in which they were added."""
        return iter(self._labels[0])

    def add(self, row: LikelyClasses, key: Hashable = None) -> None:
        """Takes one photo into account, after it was answered.

        Raises:
            HistoryError: the row is not of this classifier; nothing is changed.
        """
        self._check(row)
        for label, probability in zip(self._labels, row.probabilities.astype(np.float64), strict=True):
            label.add(LikelyClasses(_BOTH, np.array([probability, 1 - probability], dtype=np.float32)), key)

    def extend(self, rows: Iterable[LikelyClasses]) -> None:
        """:meth:`add` for each row, oldest first."""
        for row in rows:
            self.add(row)

    def forget(self, key: Hashable) -> bool:
        """Takes a photo's contribution out again. Returns whether it was there."""
        there = key in self
        for label in self._labels:
            label.forget(key)
        return there

    def row(self, outputs: np.ndarray, length: float = 1.0) -> LikelyClasses:
        """Return what to keep of a photo; the length of its feature has no effect.

        Args:
            outputs: outputs of the classifier, (C,).
            length: length of the photo's feature.

        Raises:
            PhotoError: not what the classifier should give.
        """
        return _row(sigmoid(self.calibrated(outputs)))

    def calibrated(self, outputs: np.ndarray) -> np.ndarray:
        """(C,) logits after calibration.

        Raises:
            PhotoError: as :meth:`row`.
        """
        logits = np.asarray(outputs, dtype=np.float64)
        if logits.shape != (self.classes,) or not np.isfinite(logits).all():
            raise PhotoError(
                f"the classifier gave an output of shape {logits.shape}, or NaN or infinite numbers, where"
                f" ({self.classes},) finite logits were expected; nothing was stored"
            )
        return logits / self.settings.temperature

    def estimate(self) -> Shares:
        """Return the present rates (C,), and the mean weights over labels."""
        return _joined([label.estimate() for label in self._labels])

    def answer(self, outputs: np.ndarray, length: float = 1.0) -> ShareAnswer:
        """Answer of one photo with the person's rates: logits (C,), of each label for itself.

        ``trust`` and ``moved`` are means over labels.

        Raises:
            PhotoError: as :meth:`row`.
        """
        plain = self.calibrated(outputs)
        found = [label.answer(np.array([logit, 0.0])) for label, logit in zip(self._labels, plain, strict=True)]
        alone, self._trust = sigmoid(plain), np.array([one.trust for one in found])
        now, moved = _joined([one.estimate for one in found]), float(np.mean([one.moved for one in found]))
        logits = np.array([one.logits[0] - one.logits[1] for one in found])
        shift = np.array([one.shift[0] - one.shift[1] for one in found])
        support, trust = self.settings.support, float(self._trust.mean())
        return ShareAnswer(logits, plain, shift, support, alone, trust, moved, now, _row(alone))

    def answer_beside(
        self, outputs: np.ndarray, head: np.ndarray, length: float = 1.0
    ) -> tuple[ShareAnswer, np.ndarray]:
        """One photo's answer by a head with a history of its own, logits (C,), and the person's rates; see
        :meth:`beside`.

        Raises:
            PhotoError: as :meth:`row`.
        """
        answer, own = self.answer(outputs), head.astype(np.float64)
        logits = self.beside(own, answer, self.settings.with_head)
        return answer._replace(moved=float(np.abs(sigmoid(logits) - sigmoid(own)).mean())), logits

    def without(self, head: np.ndarray, answer: ShareAnswer, logits: np.ndarray) -> tuple[np.ndarray, float]:
        """As :meth:`refocus.edge.recognize.class_shares.ClassShares.without`, for the last photo that was answered."""
        unmoved = answer._replace(shift=np.zeros(self.classes))
        found = self.beside(head.astype(np.float64), unmoved, self.settings.with_head)
        return found, float(np.abs(sigmoid(logits) - sigmoid(found)).mean())

    def beside(self, head: np.ndarray, answer: ShareAnswer, exponent: float) -> np.ndarray:
        """Logits (C,) of a head with a history of its own, and the log-odds by which the shares moved each label, as of
        :func:`refocus.edge.recognize.class_shares.beside_head` with a trust of each label.

        Args:
            answer: of the shares to the same photo, the last one that was answered.
            exponent: of the shares, in [0, 1].
        """
        trust: np.ndarray | float = self._trust if self.settings.gated else 1.0
        without = (1 - trust) * answer.plain_logits + trust * head
        unsupported = np.exp(-np.abs(without)) < answer.support
        shift = np.where(unsupported & (without * answer.shift < 0), 0.0, answer.shift)
        with_shares: np.ndarray = without + (1 - trust + trust * exponent) * shift
        return with_shares

    def decode(self, content: bytes) -> LikelyClasses:
        """A stored row.

        Raises:
            HistoryError: it was not stored for this classifier.
        """
        if len(content) != size_of(self.k):
            raise HistoryError(f"a stored row of label shares has {len(content)} bytes, expected {size_of(self.k)}")
        classes = np.frombuffer(content, "<u4", self.k).astype(np.int32)
        row = LikelyClasses(classes, np.frombuffer(content, "<f4", self.k, 4 * self.k).astype(np.float32))
        self._check(row)
        return row

    def _check(self, row: LikelyClasses) -> None:
        there = row.probabilities
        whole = there.shape == (self.k,) and row.classes.tolist() == [*range(self.k)]
        if not whole or not ((there >= 0) & (there <= 1)).all():
            raise HistoryError("a row of label shares is of other labels, or damaged; compute the rows again")


AnyShares = ClassShares | LabelShares


def settings_of(card: ShareCard) -> ShareSettings:
    """Return the settings that a manifest states."""
    names = [field.name for field in fields(ShareSettings)]
    if card.version < SHARES_VERSION:  # the rest belongs to another estimate
        names = ["outputs", "temperature", "scale", "bias", "base", "with_head", "gated", "top", "capacity"]
    return ShareSettings(**{name: getattr(card, name) for name in names})


def shares_of(head: Head) -> AnyShares | None:
    """The shares of a head's labels before the first photo; None where the bundle declares none."""
    card = head.personalisation.shares
    if card is None:
        return None
    if head.several:
        return LabelShares(settings_of(card), len(head.labels))
    return ClassShares(settings_of(card), len(head.labels), known=known_scores_of(head))


def _joined(labels: Sequence[Shares]) -> Shares:
    """The estimates of all labels as one; ``weights`` are means over labels, ``evidence`` is their sum."""
    rates, weights = np.array([one.shares[0] for one in labels]), np.mean([one.weights for one in labels], axis=0)
    return Shares(rates, weights, float(sum(one.evidence for one in labels)), labels[0].photos)


def _row(probability: np.ndarray) -> LikelyClasses:
    return LikelyClasses(np.arange(len(probability), dtype=np.int32), probability.astype(np.float32))
