"""Bundles that count class shares, and what the arithmetic on docs/formats/class-shares.md gives, number by number."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

from pieces import add, alone, at, changed, streaming, window

SHARES: dict[str, Any] = {
    "version": 3, "outputs": "logits", "temperature": 1.0, "scale": [], "bias": [], "base": [],
    "strength": 1.5, "half_life": 8.0, "no_shift": 0.5, "penalty": 0.05,
    "evidence_half_life": 32.0, "elsewhere": 0.1, "with_head": 0.5, "gated": False, "support": 0.0, "top": 2,
    "capacity": 64,
}  # fmt: skip
REQUIRED = "version", "outputs", "temperature", "with_head", "top", "capacity"
PLACE = "heads.0.personalisation.shares"


def shared(**changes: Any) -> Any:
    """A change to a manifest: class shares, with other fields than usual; ``...`` leaves one out."""
    card = {name: value for name, value in {**SHARES, **changes}.items() if value is not ...}
    return at(PLACE, card)


def manifests() -> None:
    rule = "class shares"
    for name, made in {"window": window(), "streaming": streaming(), "alone": alone()}.items():
        add(f"shares-{name}", f"{rule}, of any form", changed(made, shared()), True, "shares")
    add("shares-null", f"{rule}: null is none", changed(alone(), at(PLACE, None)), True, "shares")
    add("shares-gated", f"{rule}: they may be the gate", changed(alone(), shared(gated=True)), True, "shares")
    for value in (0, 0.25):
        bounded = changed(alone(), shared(support=value))
        add(f"shares-support-{value}", f"{rule}: their shift may be bounded", bounded, True, "shares")
    vectors = {"scale": [1.5, 0.5], "bias": [-1.0, 2], "base": [0.25, 0.75]}
    add("shares-vectors", f"{rule}: one number for each class", changed(alone(), shared(**vectors)), True, "shares")
    least: dict[str, Any] = {name: ... for name in SHARES if name not in REQUIRED}
    add("shares-least", f"{rule}: fields with a default", changed(alone(), shared(**least)), True, "shares")
    most = {"strength": 1e9, "half_life": 1e9, "top": 256, "capacity": 2**20}
    add("shares-most", f"{rule}: the largest values", changed(alone(), shared(**most)), True, "shares")
    for value in (-3.5, 0, 4):
        known = changed(alone(), at("heads.0.rejection", value))
        add(f"head-rejection-{value}", "answers below it are guesses", known, True)
    for number, value in enumerate((-1001, 1001, "0", None)):
        wrong = changed(alone(), at("heads.0.rejection", value))
        add(f"head-rejection-wrong-{number}", "the score has a range", wrong, False)
    scores = [*range(10)]
    for name, given, fits in (
        ("known-scores", scores, True), ("known-scores-equal", [1.5] * 10, True), ("known-scores-few", scores[:9], False),
        ("known-scores-falling", scores[::-1], False), ("known-scores-beyond", [*scores[:9], 1001], False),
    ):  # fmt: skip
        made = changed(changed(alone(), at("heads.0.rejection", 0)), at("heads.0.known_scores", given))
        add(f"head-{name}", "scores of correct answers at ten quantiles, ascending", made, fits)
    add(
        "head-known-scores-alone",
        "they come with a threshold",
        changed(alone(), at("heads.0.known_scores", scores)),
        False,
    )
    earlier = {"version": 1, "no_shift": 0.0, "strengths": [1.0, 16.0], "half_lives": [0.0, 8.0], "revisit": 4}
    add("shares-earlier", f"{rule}: version 1 is read", changed(alone(), shared(**least | earlier)), True, "shares")
    for field in REQUIRED:
        without = changed(alone(), shared(**{field: ...}))
        add(f"shares-missing-{field}", "required fields must be there", without, False, "shares")
    for number, (field, value) in enumerate((
        ("version", 0), ("version", 4), ("version", 5), ("version", "1"), ("outputs", "scores"), ("outputs", None),
        ("temperature", 0), ("temperature", -1.0), ("temperature", 1000.5), ("temperature", "1"), ("strength", 0),
        ("strength", [1.0]), ("half_life", -1), ("half_life", 0.1), ("half_life", 1e10), ("no_shift", 1), ("no_shift", 0), ("penalty", -0.1),
        ("elsewhere", 1.1), ("elsewhere", -0.1), ("evidence_half_life", -1), ("evidence_half_life", 1e10),
        ("with_head", 1.5), ("with_head", -0.5), ("with_head", "half"),
        ("top", 0), ("top", 257), ("top", 2.0), ("capacity", 0), ("capacity", 2**20 + 1),
        ("scale", [1.0]), ("scale", [1.0, 0.0]), ("scale", [1.0, 1.0, 1.0]), ("bias", [0.0]), ("bias", [0.0, 1e7]),
        ("base", [0.5]), ("base", [0.5, 0.4]), ("base", [0.0, 1.0]), ("base", [1.5, -0.5]), ("background", [0.5, 0.5]),
        ("strengths", "4"), ("weight", 4.0), ("gated", 1),
        ("support", 1), ("support", -0.1), ("support", "0.1"), ("support", None),
    )):  # fmt: skip
        wrong = changed(alone(), shared(**{field: value}))
        add(f"shares-wrong-{number:02}-{field}", "each field has its type and range", wrong, False, "shares")
    add("shares-of-another-type", "class shares are an object", changed(alone(), at(PLACE, [1])), False, "shares")
    add("shares-of-one-label", "class shares need two labels", changed(alone(), lambda document, _: (
        document["heads"][0].update(labels=["fox"]), shared()(document, _),
        [output.update(shape=[1, 1]) for output in document["artifacts"][1]["outputs"][:3]])), False, "shares")  # fmt: skip


GROUPS = (manifests,)


# ---- the arithmetic, as the page states it, in plain Python


def softmax(logits: list[float]) -> list[float]:
    most = max(logits)
    powers = [math.exp(value - most) for value in logits]
    return [value / sum(powers) for value in powers]


def float32(value: float) -> float:
    """Return the nearest float32."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


Row = tuple[list[int], list[float], float]
LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Reference:
    """The page's formulas, each sum over all photos again.

    Args:
        expected: whether a photo votes for all of its classes.
    """

    def __init__(self, card: dict[str, Any], classes: int, expected: bool = False) -> None:
        self.card, self.classes, self.k, self.expected = card, classes, min(card["top"], classes), expected
        self.base = card["base"] or [1 / classes] * classes
        self.rows: list[Row] = []
        self.scores = card.get("known_scores", ())
        self.photos: list[dict[str, Any]] = []
        self.evidence = 0.0

    def calibrated(self, logits: list[float]) -> list[float]:
        scale, bias = self.card["scale"] or [1.0] * self.classes, self.card["bias"] or [0.0] * self.classes
        return [(s * z + b) / self.card["temperature"] for z, s, b in zip(logits, scale, bias, strict=True)]

    def row(self, logits: list[float], length: float) -> Row:
        p = softmax(self.calibrated(logits))
        best = sorted(range(self.classes), key=lambda c: (-p[c], c))[: self.k]
        score = max(logits) / length if self.scores else max(logits)
        if score < self.card.get("rejection", -math.inf):
            return best, [0.0] * len(best), 0.0
        return best, [float32(p[c]) for c in best], float32(self.credit(score)) if self.scores else 0.0

    def credit(self, score: float) -> float:
        """Return the credit of a score, by its place among the quantiles."""
        level = LEVELS[0] if score <= self.scores[0] else LEVELS[-1]
        for low, high, of_low, of_high in zip(self.scores, self.scores[1:], LEVELS, LEVELS[1:], strict=False):
            if low < score <= high:
                level = of_low + (of_high - of_low) * (score - low) / (high - low)
        return min(-math.log(5) - 4 * math.log(1 - level), 2.5)

    def faded(self, name: str) -> float:
        """Sum of a number of all photos."""
        half_life, last = self.card["half_life"], len(self.photos) - 1
        ages = [(last - born) / half_life if half_life else 0.0 for born in range(len(self.photos))]
        return sum(2.0**-age * photo[name] for age, photo in zip(ages, self.photos, strict=True))

    def personal(self, trusted: bool = True) -> list[float]:
        """Shares of the person; trusted: with the votes of each class as far as its credits go."""
        half_life, last = self.card["half_life"], len(self.photos) - 1
        counts, credits_ = [0.0] * self.classes, [0.0] * self.classes
        for born, photo in enumerate(self.photos):
            fade = 2 ** (-(last - born) / half_life) if half_life else 1.0
            for c, vote in photo["votes"].items():
                counts[c] += fade * vote
                credits_[c] += fade * photo["credit"]
        a, votes = self.card["strength"], self.faded("vote")
        if trusted and self.scores:
            odds = self.class_odds()
            counts = [n / (1 + math.exp(-odds - credit)) for n, credit in zip(counts, credits_, strict=True)]
            votes = sum(counts)
        return [(n + a * b) / (votes + a) for n, b in zip(counts, self.base, strict=True)]

    def class_odds(self) -> float:
        """Return the log odds of a class before credits."""
        half_life, above, below = self.card["half_life"], 0.0, 0.0
        for age, row in enumerate(reversed(self.rows)):
            fade = 2 ** (-age / half_life) if half_life else 1.0
            above, below = above + fade * (max(row[1]) > 0), below + fade * (max(row[1]) == 0)
        unknown = 0.3 * below
        return min(max(math.log((max(above - unknown, 0.0) + 1) / (unknown + 0.25)), -3.0), 6.0)

    def likelihood(self, of: list[float], row: Row) -> float:
        """Sum of ``of`` p / b over all classes, where the others share what the row leaves."""
        left = 1 - sum(self.base[c] for c in row[0])
        rest = max(0.0, 1 - sum(row[1])) / left if self.k < self.classes else 0.0
        inside = sum(of[c] * p / self.base[c] for c, p in zip(*row[:2], strict=True))
        return inside + rest * max(1 - sum(of[c] for c in row[0]), 0.0)

    def forget(self, number: int) -> None:
        """Leave a photo out: the state is that of the others."""
        rows, self.rows, self.photos, self.evidence = self.rows, [], [], 0.0
        for row in rows[:number] + rows[number + 1 :]:
            self.add(row)

    def add(self, row: Row) -> None:
        if len(self.rows) == self.card["capacity"]:
            self.forget(0)
        self.rows.append(row)
        if not max(row[1]):
            return
        card, vote, personal = self.card, max(row[1]) ** 2, self.personal(trusted=False)
        likelihood = self.likelihood(personal, row)
        gained = math.log(1 - vote + vote * likelihood) - card["penalty"]
        half_life = card["evidence_half_life"]
        fade = 2 ** (-1 / half_life) if half_life else 1.0
        self.evidence = min(max(fade * self.evidence + gained, -3.0), 6.0)
        votes = {row[0][row[1].index(max(row[1]))]: vote}
        if self.expected:
            votes = {c: vote * personal[c] * p / self.base[c] / likelihood for c, p in zip(*row[:2], strict=True)}
        self.photos.append({"votes": votes, "vote": vote, "credit": row[2]})

    def weights(self) -> list[float]:
        """Return the weights of no shift and of the person's shares."""
        odds = [self.card["no_shift"], (1 - self.card["no_shift"]) * math.exp(self.evidence)]
        return [value / sum(odds) for value in odds]

    def estimate(self) -> list[float]:
        elsewhere, (none, own) = self.card["elsewhere"], self.weights()
        mixed = [none * b + own * s for b, s in zip(self.base, self.personal(), strict=True)]
        return [elsewhere * b + (1 - elsewhere) * s for b, s in zip(self.base, mixed, strict=True)]

    def shift(self) -> list[float]:
        return [math.log(s / b) for s, b in zip(self.estimate(), self.base, strict=True)]

    def bounded(self, without: list[float]) -> list[float]:
        """The shift of an answer that has these logits without shares."""
        shift, support, p = self.shift(), self.card.get("support", 0), softmax(without)
        best = p.index(max(p))
        return [x if q >= support * p[best] else min(x, shift[best]) for q, x in zip(p, shift, strict=True)]

    def answer(self, logits: list[float]) -> list[float]:
        z = self.calibrated(logits)
        return [own + x for own, x in zip(z, self.bounded(z), strict=True)]

    def trust(self, logits: list[float]) -> float:
        """Of a photo."""
        if not self.rows:
            return 0.0
        z = self.calibrated(logits)
        likelihood = sum(q * math.exp(x) for q, x in zip(softmax(z), self.bounded(z), strict=True))
        elsewhere = self.card["elsewhere"]
        return min(max(1 - ((1 - elsewhere) * self.weights()[0] + elsewhere) / likelihood, 0.0), 1.0)

    def beside_head(self, head: list[float], logits: list[float]) -> list[float]:
        """Answer of a head, where the classifier gave ``logits``."""
        z, shift, exponent = self.calibrated(logits), self.shift(), self.card["with_head"]
        t = self.trust(logits) if self.card.get("gated") else 1.0
        shared = [math.log(p) for p in softmax([own + x for own, x in zip(z, shift, strict=True)])]
        both = [math.log(p) + exponent * x for p, x in zip(softmax(head), shift, strict=True)]
        mixed = [(1 - t) * one + t * other for one, other in zip(shared, both, strict=True)]
        taken = self.bounded([(1 - t) * own + t * other for own, other in zip(z, head, strict=True)])
        part = 1 - t + t * exponent
        return [value - part * (x - y) for value, x, y in zip(mixed, shift, taken, strict=True)]


class LabelsReference:
    """The section about several labels: each label and its absence as two classes."""

    def __init__(self, card: dict[str, Any], classes: int) -> None:
        self.card = card
        one = {**card, "temperature": 1.0, "scale": [], "bias": [], "top": 2}
        rates = card["base"] or [0.5] * classes
        self.labels = [Reference({**one, "base": [rate, 1 - rate]}, 2, expected=True) for rate in rates]

    def both(self, logits: list[float]) -> list[list[float]]:
        return [[logit / self.card["temperature"], 0.0] for logit in logits]

    def row(self, logits: list[float], length: float) -> Row:
        return [*range(len(logits))], [float32(softmax(both)[0]) for both in self.both(logits)], 0.0

    def forget(self, number: int) -> None:
        for label in self.labels:
            label.forget(number)

    def add(self, row: Row) -> None:
        for label, p in zip(self.labels, row[1], strict=True):
            label.add(([0, 1], [p, float32(1 - p)], 0.0))

    def estimate(self) -> list[float]:
        return [label.estimate()[0] for label in self.labels]

    def answer(self, logits: list[float]) -> list[float]:
        answers = [label.answer(both) for label, both in zip(self.labels, self.both(logits), strict=True)]
        return [there - absent for there, absent in answers]

    def beside_head(self, head: list[float], logits: list[float]) -> list[float]:
        three = zip(self.labels, head, self.both(logits), strict=True)
        answers = [label.beside_head([own, 0.0], both) for label, own, both in three]
        return [there - absent for there, absent in answers]


def arithmetic() -> list[dict[str, Any]]:
    cases = {
        "plain": ({}, 5), "all-classes": ({"top": 5}, 5), "rejection": ({"rejection": 3.0}, 5),
        "rejection-calibrated": ({"rejection": 2.5, "top": 3, "temperature": 2.0}, 5),
        "calibrated": ({"temperature": 2.5, "scale": [1.0, 0.5, 2.0, 1.5], "bias": [0.0, 1.0, -1.0, 0.25]}, 4),
        "base": ({"base": [0.5, 0.25, 0.125, 0.0625, 0.0625]}, 5), "penalty": ({"penalty": 0.3}, 5),
        "no-fading": ({"half_life": 0.0, "evidence_half_life": 0.0}, 5),
        "seldom-no-shift": ({"no_shift": 0.01, "elsewhere": 0.0}, 5), "everywhere": ({"elsewhere": 1.0}, 5),
        "two-classes": ({"top": 1, "with_head": 0.0}, 2), "more-top-than-classes": ({"top": 9}, 3),
        "gated": ({"gated": True}, 5), "gated-calibrated": ({"gated": True, "temperature": 2.0, "with_head": 0.75}, 4),
        "support": ({"support": 0.25}, 5), "support-base": ({"support": 0.1, "base": [0.5, 0.25, 0.125, 0.0625, 0.0625]}, 5),
        "support-gated": ({"support": 0.25, "gated": True, "with_head": 0.75}, 5),
    }  # fmt: skip
    labels = {"version": 4, "base": [0.1, 0.5, 0.3]}
    open_world = {"rejection": 2.0, "support": 0.1, "temperature": 1.5}
    sequences = {
        "sequence": (open_world, 5), "sequence-gated": ({**open_world, "gated": True, "top": 3}, 5),
        "sequence-capacity": ({**open_world, "capacity": 12}, 5), "labels": (labels, 3),
        "labels-support": ({**labels, "support": 0.1, "temperature": 1.5, "with_head": 0.75}, 3),
        "labels-gated": ({**labels, "gated": True, "support": 0.25}, 3),
    }  # fmt: skip
    known = {"known_scores": [2.0, 2.25, 2.5, 2.75, 3.0, 3.25, 3.5, 3.75, 4.0, 4.25], "rejection": 2.0}
    cases["known-scores"] = known, 5
    sequences["sequence-known-scores"] = {**open_world, **known, "half_life": 16.0}, 5
    sequences["sequence-known-scores-gated"] = {**known, "gated": True, "temperature": 0.5}, 4
    found = [_case(name, {**SHARES, **changes}, classes) for name, (changes, classes) in cases.items()]
    return found + [_case(name, {**SHARES, **changes}, classes, True) for name, (changes, classes) in sequences.items()]


def _case(name: str, card: dict[str, Any], classes: int, sequence: bool = False) -> dict[str, Any]:
    """Return one vector; a sequence has unknown and forgotten photos."""
    chance, photos, there = random.Random(name), [], []
    reference = LabelsReference(card, classes) if card["version"] == 4 else Reference(card, classes)
    for number in range(24):
        logits = [round(chance.gauss(0, 1), 3) for _ in range(classes)]
        if not sequence or number % 3:
            logits[chance.choice([0, 0, 0, 1])] += 3.0
        forgotten = [chance.choice(there) for _ in range(1) if sequence and number % 5 == 4]
        for photo in forgotten:
            reference.forget(there.index(photo))
            there.remove(photo)
        length = round(chance.uniform(0.7, 1.3), 3)
        row = reference.row(logits, length)
        beside = _rounded(reference.beside_head(logits[::-1], logits))
        photo = {
            "logits": logits,
            "length": length,
            "beside_head": beside,
            "answer": _rounded(reference.answer(logits)),
            "classes": row[0],
        }
        photo |= {
            "probabilities": _rounded(row[1]),
            "credit": round(row[2], 10),
            "shares": _rounded(reference.estimate()),
        }
        photos.append(photo | ({"forgotten": forgotten} if sequence else {}))
        reference.add(row)
        there = [*there, number][-card["capacity"] :]
    return {
        "name": name,
        "classes": classes,
        "rejection": card.get("rejection", -1000.0),
        "known_scores": card.get("known_scores", []),
        "settings": {field: value for field, value in card.items() if field not in ("rejection", "known_scores")},
        "photos": photos,
        "shares": _rounded(reference.estimate()),
    }


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 10) for value in values]
