"""The class shares of one profile: kept in step with its file, whoever writes to it.

The file has the most likely classes of each stored photo beside its feature. What they add up to is kept in memory,
and built again from them after a restart without running the classifier. Where the file lacks them (a profile of
Refocus 0.1, another classifier, damage) they are computed from the stored features, once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from refocus.edge.bundle.manifest import Head
from refocus.edge.errors import HistoryError, PhotoError
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.history.likely_classes import Classifier, LikelyClasses
from refocus.edge.recognize.class_shares import Shares
from refocus.edge.recognize.label_sets import AnyShares, settings_of, shares_of
from refocus.edge.recognize.rejection import known_scores_of, length_of

Rows = list[tuple[str, LikelyClasses]]  # identity of each photo and its likely classes, oldest first
AT_ONCE = 256  # photos whose classes are computed, and then stored in one transaction


class LabelSetError(HistoryError):
    """The profile's class shares are of other labels than the bundle's."""


@dataclass(frozen=True)
class Shared:
    """Effect of class shares on one answer.

    Attributes:
        estimate: the shares (C,) before this photo, in the manifest's label order, and what they rest on.
        trust: probability that the photo's class is drawn from the person's shares rather than from anywhere.
        moved: probability that they moved from some classes to others; 0: the answer without them is the same.
        logits: (C,) of the answer without them, calibrated as the answer is.
        alone: (C,) of the answer with no photo before this one, calibrated as the answer is.
        row: what is kept of this photo.
    """

    estimate: Shares
    trust: float
    moved: float
    logits: np.ndarray
    alone: np.ndarray
    row: LikelyClasses


def shared(
    state: AnyShares, delivered: np.ndarray, plain: np.ndarray, feature: np.ndarray, reads_history: bool
) -> tuple[np.ndarray, Shared]:
    """Logits (C,) of an answer with shares, and what these did.

    Args:
        state: the photos before.
        delivered: (C,) logits of the answer without shares.
        plain: (C,) logits of the classifier without history.
        feature: (D,) of the photo.
        reads_history: whether ``delivered`` comes of a head with a history of its own, which knows part of what shares
            say: these then count with the exponent ``with_head``.
    """
    length = length_of(feature)
    if reads_history:
        answer, logits = state.answer_beside(plain, delivered, length)
        moved, without, alone, row = answer.moved, delivered, plain, answer.row
        if state.settings.gated:  # without earlier photos the calibrated classifier answers, and the head has no part
            without, moved = state.without(delivered, answer, logits)
            alone = answer.plain_logits
    else:
        answer = state.answer(delivered, length)
        moved, logits, without = answer.moved, answer.logits, answer.plain_logits
        same = np.array_equal(delivered, plain)
        alone, row = (without, answer.row) if same else (state.calibrated(plain), state.row(plain, length))
    did = Shared(answer.estimate, answer.trust, moved, without.astype(np.float32), alone.astype(np.float32), row)
    return logits.astype(np.float32), did


class ProfileShares:
    """The shares of the photos of one space of a profile.

    Args:
        history, space: the profile.
        width: D, of a stored feature.
        head: of the bundle; it declares shares.
        identity: of the classifier.
        classify: feature (D,) -> logits (C,) of the classifier without history.

    Attributes:
        now: the shares that are in memory.
        by: what derives the classes.

    Raises:
        LabelSetError: the file has the classes of another set of labels.
    """

    def __init__(
        self,
        history: FeatureHistory,
        space: str,
        width: int,
        head: Head,
        identity: str,
        classify: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        now, replayed = shares_of(head), shares_of(head)
        assert head.personalisation.shares is not None  # noqa: S101  # callers looked
        assert now is not None  # noqa: S101
        assert replayed is not None  # noqa: S101
        self._history, self._space, self._width, self._classify = history, space, width, classify
        self._settings = settings_of(head.personalisation.shares)
        self.by = Classifier(f"{identity}:{self._settings.identity(head.labels, known_scores_of(head))}", head.labels)
        self.now, self._replayed = now, replayed
        self._met: list[str] = []  # the photos of ``_replayed``
        self._rows: Rows | None = None  # of the file, for photos that come again; None: not in step with it
        self._version = -1  # of the file, when what is in memory was last in step with it
        self._unusable: set[str] = set()  # photos whose features the classifier cannot answer
        self._check_labels()

    def before(self, photo: str, seen: tuple[int, bool]) -> AnyShares:
        """The shares of the photos before one: before its own place, if it is stored.

        Args:
            seen: the version of the history, and whether the photo is stored in it.

        Raises:
            HistoryError: the file cannot be read.
        """
        version, known = seen
        if version != self._version:
            self._refresh()
        return self._before_stored(photo) if known else self.now

    def stored(self, photo: str, row: LikelyClasses, evicted: Sequence[str]) -> None:
        """The photo that was answered last was just stored, by one write to the history at hand."""
        for gone in evicted:
            self.now.forget(gone)
        self.now.add(row, photo)
        self._rows = None
        self._version += 1

    # ---- in step with the file

    def _check_labels(self) -> None:
        stored = self._history.likely_by(self._space)
        if stored is not None and stored.labels != self.by.labels:
            theirs, ours = (
                f"{len(labels)} labels ({', '.join(labels[:3])}, …)" for labels in (stored.labels, self.by.labels)
            )
            raise LabelSetError(
                f"{self._history.path} counts the classes of {theirs}, this bundle has {ours}; give another --profile,"
                " --no-shares, or count them again with this bundle after refocus history erase --classes"
            )

    def _refresh(self) -> None:
        """Takes in what others stored as the newest; begins again where they erased something or, as a move to another
        model does, filled in older photos: the last one that is added counts as the newest."""
        self._version, self._rows = -1, None
        version = self._history.version()
        rows = self.filled()
        known = [number for number, (photo, _) in enumerate(rows) if photo in self.now]
        end = known[-1] + 1 if known else 0
        if [photo for photo, _ in rows[max(0, end - self._settings.capacity) : end]] != list(self.now):
            self.now.clear()
        for photo, row in rows[max(0, len(rows) - self._settings.capacity) :]:
            if photo not in self.now:
                self.now.add(row, photo)
        self._version = version  # what was filled in has raised it: the next photo looks once more

    def filled(self) -> Rows:
        """All rows; what the file lacks is computed from the features, of the newest photos that count alone."""
        column = self._history.likely(self._space, self.by, self.now.k)
        wanted = [photo for photo in column.missing if photo not in self._unusable]
        wanted = wanted[max(0, len(wanted) - self._settings.capacity) :]
        if wanted:
            self._check_labels()  # another process may have counted others meanwhile
        computed: dict[str, LikelyClasses] = {}
        for start in range(0, len(wanted), AT_ONCE):
            computed |= self._fill(wanted[start : start + AT_ONCE])
        classes = column.classes.astype(np.int32)
        kept = zip(column.photos, classes, column.probabilities, column.credits.tolist(), strict=True)
        found = {photo: LikelyClasses(*row) for photo, *row in kept}
        found |= computed
        return [(photo, found[photo]) for photo in column.stored if photo in found]

    def _fill(self, photos: Sequence[str]) -> dict[str, LikelyClasses]:
        past = self._history.rows(self._space, photos, self._width)
        found: dict[str, LikelyClasses] = {}
        for photo, feature in zip(past.photos, past.features, strict=True):
            try:
                found[photo] = self.now.row(self._classify(feature), length_of(feature))
            except PhotoError:  # NaN or infinite
                self._unusable.add(photo)
        with contextlib.suppress(HistoryError):  # a full disk: they are computed again at the next start
            self._history.put_likely(self._space, self.by, found)
        return found

    def _before_stored(self, photo: str) -> AnyShares:
        """Photos that come again mostly come in their old order, so the shares before one lead to those of the next."""
        if self._rows is None:
            self._rows = self.filled()
        place = next((number for number, (known, _) in enumerate(self._rows) if known == photo), len(self._rows))
        rows = self._rows[:place]
        if self._met != [known for known, _ in rows[: len(self._met)]]:
            self._replayed.clear()
            self._met.clear()
        for known, row in rows[len(self._met) :]:
            self._replayed.add(row, known)
            self._met.append(known)
        return self._replayed
