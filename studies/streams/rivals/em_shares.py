"""Class shares by expectation maximisation with a bounded shift.

A fixed copy of the algorithm that devices had when the camera-roll protocol was written, so that later algorithms are
compared with it. Every photo is explained by one of the C classes. Calibrated probabilities p(c | x) are multiplied by
s(c) / b(c), where the shares s are estimated by incremental EM under several hypotheses of strength a and half-life h.
A hypothesis is weighted by how well it predicted each photo before the photo was added; "no shift" is one of them.

Notation: C classes, k most likely classes of a photo, J hypotheses, n photos.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from studies.streams.rivals.method import Knowledge, softmax

_TINY = float(np.finfo(np.float32).tiny)
_RESCALE = 40.0  # halvings after which faded counts are scaled again


@dataclass(frozen=True)
class EmSettings:
    """Settings of the estimate.

    Attributes:
        temperature: temperature T > 0 of the classifier.
        base: class shares b of the training photos, (C,); empty: equal shares.
        strengths: strengths a of the hypotheses, in photos.
        half_lives: half-lives of the hypotheses, in photos; 0: nothing is forgotten.
        no_shift: prior probability of "no shift".
        elsewhere: share of the photos that may show any class.
        evidence_half_life: photos after which evidence has half its weight; 0: it does not fade.
        support: minimum probability, as a part of the largest one, of classes that shares may favour over the most
            likely class; 0: any class.
        top: number k of likely classes of a photo that are kept.
        revisit: number of older photos whose E-step is repeated after each photo.
    """

    temperature: float = 1.0
    base: tuple[float, ...] = ()
    strengths: tuple[float, ...] = (4.0,)
    half_lives: tuple[float, ...] = (0.0, 32.0, 8.0)
    no_shift: float = 0.5
    elsewhere: float = 0.2
    evidence_half_life: float = 16.0
    support: float = 0.07
    top: int = 8
    revisit: int = 4


class EmAnswer(NamedTuple):
    """Answer to one photo, with vectors (C,)."""

    logits: np.ndarray  # calibrated logits plus the bounded shift
    plain_logits: np.ndarray  # calibrated logits
    alone: np.ndarray  # probabilities without shares


@dataclass
class _Photo:
    index: np.ndarray  # (k,) classes
    ratio: np.ndarray  # (k,) p / b
    rest: np.float32  # p / b of all other classes
    born: int
    owned: np.ndarray  # (J, k) responsibilities
    others: np.ndarray  # (J,) those of all other classes


class EmShares:
    """Class shares of one person, updated photo by photo."""

    def __init__(self, settings: EmSettings, classes: int) -> None:
        pairs = [(a, h) for a in settings.strengths for h in settings.half_lives]
        base = np.asarray(settings.base or np.full(classes, 1 / classes), dtype=float)
        self.settings, self.k, self._base = settings, min(settings.top, classes), base / base.sum()
        self._strength = np.array([a for a, _ in pairs])
        self._fading = np.array([1 / h if h else 0.0 for _, h in pairs])  # halvings per photo
        self._evidence_fading = 1 / settings.evidence_half_life if settings.evidence_half_life else 0.0
        with np.errstate(divide="ignore"):
            prior = [settings.no_shift, *[(1 - settings.no_shift) / len(pairs)] * len(pairs)]
            self._prior = np.log(prior)
        self._time = self._origin = self._next = 0
        self._counts = np.zeros((len(pairs), classes))
        self._spread, self._number, self._evidence = (np.zeros(len(pairs)) for _ in range(3))
        self._photos: list[_Photo] = []

    def __len__(self) -> int:
        """Return the number of photos."""
        return len(self._photos)

    def row(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the likely classes of a photo and their probabilities."""
        probability = softmax(np.asarray(logits, dtype=float) / self.settings.temperature)
        top = np.lexsort((np.arange(len(probability)), -probability))[: self.k]
        return top, probability[top].astype(np.float32)

    def add(self, row: tuple[np.ndarray, np.ndarray]) -> None:
        """Add a photo to the estimate."""
        (index, probability), hypotheses = row, len(self._strength)
        prior = self._base[index]
        rest = max(0.0, 1.0 - float(probability.sum())) / max(1.0 - float(prior.sum()), _TINY)
        rest = rest if self.k < len(self._base) else 0.0
        owned, others = np.zeros((hypotheses, self.k), np.float32), np.zeros(hypotheses, np.float32)
        ratio = (probability / prior).astype(np.float32)
        self._photos.append(_Photo(index, ratio, np.float32(rest), self._time, owned, others))
        self._advance()
        self._evidence += self._expect(self._photos[-1:])
        self._number += np.exp2((self._photos[-1].born - self._origin) * self._fading)
        self._expect(self._revisited())

    def estimate(self) -> np.ndarray:
        """Return the shares, (C,)."""
        weights = softmax(self._prior + np.concatenate([[0.0], self._evidence]))
        fade = np.exp2(-(self._time - self._origin) * self._fading)
        personal = weights[1:] / (fade * self._number + self._strength)
        share = (personal * fade) @ self._counts
        share += (weights[0] + personal @ (fade * self._spread + self._strength)) * self._base
        share = (1 - self.settings.elsewhere) * share + self.settings.elsewhere * self._base
        found: np.ndarray = share / share.sum()
        return found

    def answer(self, logits: np.ndarray) -> EmAnswer:
        """Answer a photo with the shares as class prior.

        A class without support cannot gain on the most likely class.
        """
        plain = np.asarray(logits, dtype=float) / self.settings.temperature
        shift = np.log(np.maximum(self.estimate(), _TINY) / self._base)
        if self.settings.support:
            best = int(plain.argmax())
            unsupported = plain < plain[best] + math.log(self.settings.support)
            shift = np.where(unsupported, np.minimum(shift, shift[best]), shift)
        return EmAnswer(plain + shift, plain, softmax(plain))

    def _advance(self) -> None:
        """Let evidence fade by one photo, and scale counts before they overflow."""
        self._time += 1
        self._evidence *= 2.0**-self._evidence_fading
        halvings = (self._time - self._origin) * self._fading
        if halvings.max() > _RESCALE:
            fade = np.exp2(-halvings)
            self._counts *= fade[:, None]
            self._spread *= fade
            self._number *= fade
            self._origin = self._time

    def _revisited(self) -> list[_Photo]:
        """Return the older photos whose E-step is repeated now."""
        if not self.settings.revisit or len(self) < 2:
            return []
        slots = [(self._next + step) % len(self) for step in range(min(self.settings.revisit, len(self)))]
        self._next = (slots[-1] + 1) % len(self)
        return [self._photos[slot] for slot in slots]

    def _expect(self, photos: list[_Photo]) -> np.ndarray:
        """Repeat the E-step of photos; return their log-likelihoods, (J,)."""
        if not photos:
            return np.zeros(len(self._strength))
        index = np.stack([photo.index for photo in photos])  # (r, k)
        fade = np.exp2(-(self._time - self._origin) * self._fading)
        scale = fade / (fade * self._number + self._strength)
        prior = (fade * self._spread + self._strength) * scale / fade
        share = scale[:, None, None] * self._counts[:, index] + prior[:, None, None] * self._base[index]  # (J, r, k)
        owned = share * np.stack([photo.ratio for photo in photos])
        others = np.array([photo.rest for photo in photos]) * np.maximum(1.0 - share.sum(-1), 0.0)
        total = np.maximum(owned.sum(-1) + others, _TINY)
        owned, others = owned / total[..., None], others / total
        for place, photo in enumerate(photos):
            weight = np.exp2(self._fading * (photo.born - self._origin))
            self._counts[:, photo.index] += weight[:, None] * (owned[:, place] - photo.owned)
            self._spread += weight * (others[:, place] - photo.others)
            photo.owned, photo.others = owned[:, place].astype(np.float32), others[:, place].astype(np.float32)
        found: np.ndarray = np.log(total).sum(1)
        return found


class EmMethod:
    """Calibrated classifier multiplied by shares that EM estimates."""

    def __init__(self, knowledge: Knowledge, settings: EmSettings) -> None:
        base = np.maximum(knowledge.base, 1e-6)
        of_point = replace(settings, temperature=knowledge.temperature, base=tuple(base / base.sum()))
        self.state = EmShares(of_point, len(base))

    def observe(self, feature: np.ndarray, logits: np.ndarray) -> None:
        """Add a photo to the estimate of the shares."""
        self.state.add(self.state.row(logits))

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities (C,) of a photo."""
        return softmax(self.state.answer(logits).logits)

    def state_bytes(self) -> int:
        """Return the size of the state in bytes."""
        return len(self.state) * 8 * self.state.k
