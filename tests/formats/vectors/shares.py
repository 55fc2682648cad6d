"""Bundles that count class shares, and what the arithmetic on docs/formats/class-shares.md gives, number by number."""

from __future__ import annotations

import math
import random
from typing import Any

from pieces import add, alone, at, changed, streaming, window

SHARES: dict[str, Any] = {
    "version": 1, "outputs": "logits", "temperature": 1.0, "scale": [], "bias": [], "base": [],
    "strengths": [1.0, 16.0], "half_lives": [0.0, 8.0], "no_shift": 0.5, "elsewhere": 0.1,
    "evidence_half_life": 32.0, "with_head": 0.5, "top": 2, "revisit": 3, "capacity": 64,
}  # fmt: skip
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
    least = {"scale": ..., "bias": ..., "base": ...}
    add("shares-least", f"{rule}: fields with a default", changed(alone(), shared(**least)), True, "shares")
    most = {"strengths": [1.0] * 8, "half_lives": [0.0, 1e9], "top": 256, "capacity": 2**20, "revisit": 2**20}
    add("shares-most", f"{rule}: the largest values", changed(alone(), shared(**most)), True, "shares")
    for field in SHARES:
        if field not in least:
            without = changed(alone(), shared(**{field: ...}))
            add(f"shares-missing-{field}", "required fields must be there", without, False, "shares")
    for number, (field, value) in enumerate((
        ("version", 0), ("version", 2), ("version", "1"), ("outputs", "scores"), ("outputs", None),
        ("temperature", 0), ("temperature", -1.0), ("temperature", 1000.5), ("temperature", "1"), ("strengths", []),
        ("strengths", [0]), ("strengths", [-1.0]), ("strengths", [1e10]), ("strengths", 1.0), ("strengths", [1.0] * 9),
        ("half_lives", []), ("half_lives", [-1]), ("half_lives", [1e10]), ("no_shift", 1), ("no_shift", -0.1),
        ("elsewhere", 1.1), ("elsewhere", -0.1), ("evidence_half_life", -1), ("evidence_half_life", 1e10), ("with_head", 1.5), ("with_head", -0.5), ("with_head", "half"),
        ("top", 0), ("top", 257), ("top", 2.0), ("revisit", -1), ("revisit", 65), ("capacity", 0), ("capacity", 2**20 + 1),
        ("scale", [1.0]), ("scale", [1.0, 0.0]), ("scale", [1.0, 1.0, 1.0]), ("bias", [0.0]), ("bias", [0.0, 1e7]),
        ("base", [0.5]), ("base", [0.5, 0.4]), ("base", [0.0, 1.0]), ("base", [1.5, -0.5]), ("strength", 4.0), ("gated", 1),
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


class Reference:
    """The page's formulas, each sum over all photos anew."""

    def __init__(self, card: dict[str, Any], classes: int) -> None:
        self.card, self.classes, self.k = card, classes, min(card["top"], classes)
        self.pairs = [(a, h) for a in card["strengths"] for h in card["half_lives"]]
        self.base = card["base"] or [1 / classes] * classes
        self.photos: list[dict[str, Any]] = []
        self.evidence = [0.0] * len(self.pairs)
        self.next = 0

    def calibrated(self, logits: list[float]) -> list[float]:
        scale, bias = self.card["scale"] or [1.0] * self.classes, self.card["bias"] or [0.0] * self.classes
        return [(s * z + b) / self.card["temperature"] for z, s, b in zip(logits, scale, bias, strict=True)]

    def row(self, logits: list[float]) -> tuple[list[int], list[float]]:
        p = softmax(self.calibrated(logits))
        best = sorted(range(self.classes), key=lambda c: (-p[c], c))[: self.k]
        return best, [p[c] for c in best]

    def shares(self, j: int) -> list[float]:
        (strength, half_life), now = self.pairs[j], len(self.photos)
        counts, others, photos = [0.0] * self.classes, 0.0, 0.0
        for born, photo in enumerate(self.photos):
            weight = 2 ** (-(now - born) / half_life) if half_life else 1.0
            if photo["counted"]:
                photos += weight
                for c, q in zip(photo["classes"], photo["q"][j], strict=True):
                    counts[c] += weight * q
                others += weight * photo["others"][j]
        return [(n + (others + strength) * b) / (photos + strength) for n, b in zip(counts, self.base, strict=True)]

    def expect(self, numbers: list[int]) -> list[list[float]]:
        """E-steps of some photos under the present shares; the log likelihood of each under each hypothesis."""
        found = []
        for j in range(len(self.pairs)):
            s, likelihoods = self.shares(j), []
            steps = []
            for number in numbers:
                photo = self.photos[number]
                owned = [s[c] * p / self.base[c] for c, p in zip(photo["classes"], photo["p"], strict=True)]
                left = 1 - sum(self.base[c] for c in photo["classes"])
                rest = max(0.0, 1 - sum(photo["p"])) / left if self.k < self.classes else 0.0
                others = rest * max(1 - sum(s[c] for c in photo["classes"]), 0.0)
                total = sum(owned) + others
                steps.append((number, [value / total for value in owned], others / total))
                likelihoods.append(math.log(total))
            for number, owned, others in steps:
                self.photos[number]["q"][j], self.photos[number]["others"][j] = owned, others
            found.append(likelihoods)
        return found

    def add(self, row: tuple[list[int], list[float]]) -> None:
        nothing: list[Any] = [None] * len(self.pairs)
        self.photos.append({"classes": row[0], "p": row[1], "q": [*nothing], "others": [*nothing], "counted": False})
        new, half_life = len(self.photos) - 1, self.card["evidence_half_life"]
        likelihoods = self.expect([new])
        self.photos[new]["counted"] = True
        fade = 2 ** (-1 / half_life) if half_life else 1.0
        self.evidence = [fade * e + found[0] for e, found in zip(self.evidence, likelihoods, strict=True)]
        if self.card["revisit"] and new:
            again = [(self.next + i) % len(self.photos) for i in range(min(self.card["revisit"], len(self.photos)))]
            self.next = (again[-1] + 1) % len(self.photos)
            self.expect(again)

    def weights(self) -> list[float]:
        """Of no shift, and of each hypothesis."""
        none = self.card["no_shift"]
        odds = [none, *((1 - none) / len(self.pairs) * math.exp(e) for e in self.evidence)]
        return [value / sum(odds) for value in odds]

    def estimate(self) -> list[float]:
        elsewhere, weights = self.card["elsewhere"], self.weights()
        each = [self.base, *(self.shares(j) for j in range(len(self.pairs)))]
        mixed = [sum(w * s[c] for w, s in zip(weights, each, strict=True)) for c in range(self.classes)]
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
        if not self.photos:
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


def arithmetic() -> list[dict[str, Any]]:
    cases = {
        "plain": ({}, 5), "all-classes": ({"top": 5}, 5), "one-hypothesis": ({"strengths": [4.0], "half_lives": [0.0]}, 4),
        "calibrated": ({"temperature": 2.5, "scale": [1.0, 0.5, 2.0, 1.5], "bias": [0.0, 1.0, -1.0, 0.25]}, 4),
        "base": ({"base": [0.5, 0.25, 0.125, 0.0625, 0.0625]}, 5), "no-revisit": ({"revisit": 0}, 5),
        "all-revisited": ({"revisit": 64}, 5), "no-fading": ({"half_lives": [0.0], "evidence_half_life": 0.0}, 5),
        "never-no-shift": ({"no_shift": 0.0, "elsewhere": 0.0}, 5), "everywhere": ({"elsewhere": 1.0}, 5),
        "two-classes": ({"top": 1, "with_head": 0.0}, 2), "more-top-than-classes": ({"top": 9}, 3),
        "gated": ({"gated": True}, 5), "gated-calibrated": ({"gated": True, "temperature": 2.0, "with_head": 0.75}, 4),
        "support": ({"support": 0.25}, 5), "support-base": ({"support": 0.1, "base": [0.5, 0.25, 0.125, 0.0625, 0.0625]}, 5),
        "support-gated": ({"support": 0.25, "gated": True, "with_head": 0.75}, 5),
    }  # fmt: skip
    return [_case(name, {**SHARES, **changes}, classes) for name, (changes, classes) in cases.items()]


def _case(name: str, card: dict[str, Any], classes: int) -> dict[str, Any]:
    chance, reference, photos = random.Random(name), Reference(card, classes), []
    for _ in range(24):
        logits = [round(chance.gauss(0, 1), 3) for _ in range(classes)]
        logits[chance.choice([0, 0, 0, 1])] += 3.0
        row = reference.row(logits)
        beside = _rounded(reference.beside_head(logits[::-1], logits))
        photo = {
            "logits": logits,
            "beside_head": beside,
            "answer": _rounded(reference.answer(logits)),
            "classes": row[0],
        }
        photos.append({**photo, "probabilities": _rounded(row[1]), "shares": _rounded(reference.estimate())})
        reference.add(row)
    return {
        "name": name,
        "classes": classes,
        "settings": card,
        "photos": photos,
        "shares": _rounded(reference.estimate()),
    }


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 6) for value in values]
