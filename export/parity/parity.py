"""Parity: the exported programs, run by the device's own code, against eager PyTorch, on real photos in sequence.

A recogniser with a history is compared as it is used: several people take turns, photo by photo, each side feeding on
the features that it computed itself, so that differences may add up. The device side is the whole
:class:`refocus.edge.Recognizer` with its store on disk. It meets an empty history, a growing and a full one, one whose
oldest photos were evicted, a restart (what it keeps in memory is gone), and a switch to another profile and back. A
comparison that does not cover all of these is refused, and so is one of too few photos or people. Failure stops the
export.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from refocus.edge.bundle import Bundle, Parity
from refocus.edge.history import RetentionPolicy
from refocus.edge.recognize import Answer, Recognizer, label_set, sigmoid
from refocus.export.errors import ExportError, ParityError
from refocus.export.parity.photos import FEWEST_PEOPLE, FEWEST_PHOTOS, Streams, contents, labels_of
from refocus.export.program.eager_recognizer import EagerAnswer, EagerRecognizer
from refocus.export.program.photo_signature import SIGNATURE, sizes
from refocus.export.program.program import TorchProgram


@dataclass(frozen=True)
class Tolerance:
    """Limits within which two programs count as the same.

    Attributes:
        largest: largest absolute difference of any value, by kind of output: "feature" (its signature in units of
            :func:`_units`), "logits" (plain, calibrated and delivered), "attention", "trust" (both in [0, 1]).
        typical_logits: 90th percentile over photos of the largest difference of a logit, as a share of the range of
            that photo's logits in PyTorch. It bounds programs whose single values may be far off.
        cosine: smallest cosine of the two features, and of the two delivered answers, of one photo.
        agreement: smallest share of photos with the same best class.
        accuracy_loss: largest net loss of right answers, as a share of the labelled photos; one photo always passes.
        self_test: largest difference of a best logit on machines other than the exporting one.
        reason: why these limits.
    """

    largest: Mapping[str, float]
    typical_logits: float
    cosine: float
    agreement: float
    accuracy_loss: float
    self_test: float
    reason: str


_ANY = float("inf")
_FP32 = {"feature": 1e-3, "logits": 1e-3, "attention": 1e-4, "trust": 1e-3}
_FP16 = {"feature": 0.5, "logits": 0.5, "attention": 0.02, "trust": 0.05}
_QUANTISED = {"feature": _ANY, "logits": _ANY, "attention": 0.25, "trust": _ANY}
_OTHER_ORDER = "float32 sums in another order; logits are of order 10, decisions turn on far larger ones"
_HALF = "11 significant bits: 0.5 is a twentieth of the range of logits, and only near ties turn"
_STEPS = (
    "256 steps per value: values of single photos may be far off and near ties turn; bounded are the"
    " typical difference of logits, decisions, and right answers where labels are known"
)
_PALETTE = "64 values per weight tensor: judged as w8a8 is"
_WEIGHTS = "256 steps per weight: judged as w8a8 is"
_FINE = "65536 steps per weight: 0.5 is a twentieth of the range of logits, and only near ties turn"
# One table for every runtime: largest, typical_logits, cosine, agreement, accuracy_loss, self_test, reason.
TOLERANCES: Mapping[str, Tolerance] = {
    "fp32": Tolerance(_FP32, 1e-3, 0.9999, 0.999, 0.0, 2e-3, _OTHER_ORDER),
    "fp16": Tolerance(_FP16, 0.05, 0.999, 0.98, 0.01, 0.5, _HALF),
    "w8a8": Tolerance(_QUANTISED, 0.15, 0.80, 0.80, 0.05, 2.0, _STEPS),
    "w8a16": Tolerance(_QUANTISED, 0.15, 0.80, 0.80, 0.05, 2.0, _WEIGHTS),
    "w16": Tolerance(_FP16, 0.05, 0.999, 0.98, 0.01, 0.5, _FINE),
    "w8": Tolerance(_QUANTISED, 0.15, 0.80, 0.80, 0.05, 2.0, _WEIGHTS),
    "palette6": Tolerance(_QUANTISED, 0.15, 0.80, 0.80, 0.05, 2.0, _PALETTE),
}
TURN = 6  # photos of one person before the next person's turn


@dataclass(frozen=True)
class Deviation:
    """Differences of one run over the same n photos.

    Attributes:
        largest: (n,) largest absolute difference of each photo, by kind of output (see :class:`Tolerance`).
        values: absolute differences of all values of the head's outputs, and of the features, in one row each.
        typical_logits: (n,) largest difference of a logit as a share of the range of the photo's logits in PyTorch.
        feature_cosine, head_cosine: (n,) cosines of the features, and of the delivered answers without their mean.
        same_top1, same_top5: (n,) whether the best class (all labels where photos have several), and the five best in
            order, are the same.
        right: (m, 2) of the m labelled photos, whether PyTorch and the device answered with the label; or the
            share of labels that are right, where photos have several.
        situations: number of photos in each situation; a photo can be in two.
        profiles, longest_history: people, and photos in the longest history.
    """

    largest: dict[str, np.ndarray]
    values: dict[str, np.ndarray]
    typical_logits: np.ndarray
    feature_cosine: np.ndarray
    head_cosine: np.ndarray
    same_top1: np.ndarray
    same_top5: np.ndarray
    right: np.ndarray
    situations: dict[str, int]
    profiles: int
    longest_history: int

    @property
    def photos(self) -> int:
        return len(self.same_top1)

    @property
    def accuracy_loss(self) -> float:
        """Net loss of right answers as a share of the labelled photos; 0 where no photo has a label."""
        return float(self.right[:, 0].mean() - self.right[:, 1].mean()) if len(self.right) else 0.0

    @property
    def typical(self) -> float:
        """90th percentile over photos of ``typical_logits``."""
        return float(np.percentile(self.typical_logits, 90))

    def smallest_cosine(self, role: str) -> float:
        return float((self.feature_cosine if role == "encoder" else self.head_cosine).min())


@dataclass(frozen=True)
class Step:
    """One photo of a comparison: whose, in which situations, and its label where one is known.

    Attributes:
        label: of photos with several labels, all of them with ";" between them; None where nothing is known.
    """

    person: str
    path: Path
    content: bytes
    situations: tuple[str, ...]
    label: str | None = None


class Reference:
    """Eager PyTorch's answers to all steps, computed once for all targets.

    Args:
        encoder, head: the programs.
        streams: real photos, one stream per person.

    Raises:
        ExportError: too few people or photos, or not every situation occurs.
    """

    def __init__(self, encoder: TorchProgram, head: TorchProgram, streams: Streams) -> None:
        self.window, self.signed = int(head.personalisation["window"]), encoder.signed
        self.steps = list(steps(streams, self.window))
        require_coverage(self.steps, self.window)
        people = {name: EagerRecognizer(encoder, head.definition or head) for name in streams}
        answers = (people[step.person].recognize(step.content, str(step.path)) for step in self.steps)
        # Nothing is compared with what the programs were given; a pixel tensor per photo would be kept, and copied.
        self.answers = [replace(answer, pixels=(), given=()) for answer in answers]


def steps(streams: Streams, window: int) -> Iterator[Step]:
    """All photos of all people, in turns of a few photos, and the situation of each of them."""
    labels = labels_of(streams)
    shortest = max(window + 2, 2 * TURN + 1)  # of two people, so that every situation occurs
    waiting = {name: deque(photos) for name, photos in contents(streams, shortest).items()}
    seen: Counter[str] = Counter()
    last = ""
    while waiting:
        for name in list(waiting):
            for _ in range(min(TURN, len(waiting[name]))):
                path, content = waiting[name].popleft()
                situations = _situations(seen[name], window, switched=name != last)
                yield Step(name, path, content, situations, labels.get(path))
                seen[name] += 1
                last = name
            if not waiting[name]:
                del waiting[name]


def _situations(length: int, window: int, switched: bool) -> tuple[str, ...]:
    """How full the history is, and whether the device has just come from another profile or from a restart."""
    if not length:
        return ("empty",)
    filled = "growing" if length < window else "full" if length == window else "evicted"
    fullness = (filled,) if window else ("no history",)
    if not switched:
        return fullness
    # Every second time the process has gone in between, and with it all that was kept in memory.
    return (*fullness, "restarted" if length // TURN % 2 else "switched")


def require_coverage(steps: Sequence[Step], window: int) -> None:
    """Refuses a comparison that could pass without having compared what a device does.

    Raises:
        ExportError: too few people or photos, or a situation that does not occur.
    """
    people, photos = len({step.person for step in steps}), len({step.path for step in steps})
    wanted = {"empty", "restarted", "switched"} | ({"full", "evicted"} if window else {"no history"})
    missing = sorted(wanted - {situation for step in steps for situation in step.situations})
    if people < FEWEST_PEOPLE or photos < FEWEST_PHOTOS or missing:
        raise ExportError(
            f"parity would compare {photos} photos of {people} people"
            + (f" and no situation {', '.join(missing)}" if missing else "")
            + f"; expected at least {FEWEST_PHOTOS} different photos of {FEWEST_PEOPLE} people or more: add photos"
        )


def compare(bundle: Bundle, targets: Sequence[tuple[str, ...]], reference: Reference, head: str = "") -> Deviation:
    """Runs the device side over the reference's steps, each person from an empty history.

    Args:
        targets: runtime and precision, and the target of the head where it is another; of several, each start takes the
            next one, so that histories of one are met by another: they share a feature space only if that changes
            nothing.
        head: name of the bundle's head.

    Raises:
        ParityError: the device's history is not what it was told to remember.
    """
    rows = list(_rows(bundle, targets, reference, head))
    kinds = {kind: [row.differences[kind] for row in rows] for kind in rows[0].differences}
    of_head = np.concatenate([values for kind, found in kinds.items() if kind != "feature" for values in found])
    return Deviation(
        largest={kind: np.array([values.max() for values in found]) for kind, found in kinds.items()},
        values={"encoder": np.concatenate(kinds["feature"]), "head": of_head},
        **{name: np.array([getattr(row, name) for row in rows]) for name in _PER_PHOTO},
        right=np.array([row.right for row in rows if row.right]).reshape(-1, 2),
        situations=dict(Counter(situation for step in reference.steps for situation in step.situations)),
        profiles=len({step.person for step in reference.steps}),
        longest_history=max(row.history for row in rows),
    )


@dataclass(frozen=True)
class _Row:
    """One photo's comparison; ``right`` is empty where its label is not known."""

    differences: dict[str, np.ndarray]
    typical_logits: float
    feature_cosine: float
    head_cosine: float
    same_top1: bool
    same_top5: bool
    right: tuple[float, ...]
    history: int


_PER_PHOTO = ("typical_logits", "feature_cosine", "head_cosine", "same_top1", "same_top5")


def _rows(bundle: Bundle, targets: Sequence[tuple[str, ...]], reference: Reference, head: str) -> Iterator[_Row]:
    labels = bundle.manifest.head(head).labels
    people = sorted({step.person for step in reference.steps})
    with tempfile.TemporaryDirectory() as folder:
        profiles = {name: Path(folder) / f"{number}.sqlite3" for number, name in enumerate(people)}

        # As many photos as the window holds are kept: whatever is older is evicted from the store too.
        starts = (
            Recognizer(
                bundle,
                None,
                target[0],
                target[1],
                1,
                head=head,
                keeping=RetentionPolicy(capacity=1),
                shares=False,
                head_target=target[2] if len(target) > 2 else ":".join(target),
            )
            for target in itertools.cycle(targets)
        )
        device, at = next(starts), ""
        for step, wanted in zip(reference.steps, reference.answers, strict=True):
            restarted = "restarted" in step.situations
            if restarted:
                device.close()
                device = next(starts)
            if restarted or step.person != at:
                device.switch(profiles[step.person])
                at = step.person
            got = device.recognize(step.content, str(step.path))
            yield _row(wanted, got, labels, step.label, reference.signed)
        device.close()


_LOGITS = "plain_logits", "calibrated_logits", "logits"


def _units(feature: np.ndarray, signed: bool) -> np.ndarray:
    """Units of differences of a feature (D,): 1; of a signature of large pixels, a tenth of each number's size.

    Of pixels up to 255 covariances are thousands, whose last bit is no thousandth. Of pixels up to 3 no number is above
    10, and all units are 1.
    """
    units = np.ones_like(feature)
    if signed:
        units[-SIGNATURE:] = np.maximum(1, sizes(feature[-SIGNATURE:]) / 10)
    return units


def _row(wanted: EagerAnswer, got: Answer, labels: tuple[str, ...], label: str | None, signed: bool) -> _Row:
    outputs, units = wanted.outputs, _units(wanted.feature, signed)
    feature, expected = got.feature / units, wanted.feature / units
    if len(got.attention) != len(outputs["attention"]):
        raise ParityError(
            f"the device answered over {len(got.attention) - 1} history photos, PyTorch over"
            f" {len(outputs['attention']) - 1}: its history is not this person's"
        )
    logits = np.abs(np.concatenate([getattr(got, name) - outputs[name] for name in _LOGITS]))
    order = np.argsort(-outputs["logits"], kind="stable")[:5]
    best, answered = {labels[int(order[0])]}, {got.labels[0]}
    if got.thresholds is not None:
        chosen = sigmoid(outputs["logits"]) >= got.thresholds
        best, answered = ({labels[int(i)] for i in np.flatnonzero(chosen)}, {name for name, _ in got.label_set})
    right: tuple[float, ...] = (float(best == {label}), float(answered == {label})) if label in labels else ()
    if got.thresholds is not None and label is not None:
        truth = {*label_set(label)}
        right = tuple(1 - len(truth ^ found) / len(labels) for found in (best, answered)) if truth <= {*labels} else ()
    return _Row(
        differences={
            "feature": np.abs(feature - expected),
            "logits": logits,
            "attention": np.abs(got.attention - outputs["attention"]),
            "trust": np.atleast_1d(np.abs(got.trust - outputs["trust"])),
        },
        typical_logits=float(logits.max() / max(float(np.ptp(outputs["logits"])), 1e-6)),
        feature_cosine=cosine(feature, expected),
        head_cosine=cosine(got.logits - got.logits.mean(), outputs["logits"] - outputs["logits"].mean()),
        same_top1=answered == best,
        same_top5=got.labels[: len(order)] == tuple(labels[int(i)] for i in order),
        right=right,
        history=len(got.attention) - 1,
    )


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else float(np.array_equal(a, b))


_KINDS = {"encoder": ("feature",), "head": ("logits", "attention", "trust")}


def evaluate(
    role: str,
    deviation: Deviation,
    precision: str,
    what: str,
    allow_mismatch: bool = False,
    limit: Tolerance | None = None,
    target: str = "",
) -> Parity:
    """The manifest's entry for one program.

    Args:
        role: "encoder" or "head": whose numbers count.
        what: named in the error.
        allow_mismatch: return an entry that says so, where an error is due.
        limit: in the place of the precision's own.
        target: as ``onnx:w8a8``, for the option in the error that would allow it.

    Raises:
        ParityError: not finite, beyond the tolerance, or decisions differ too often.
    """
    limit = limit or TOLERANCES[precision]
    failures = failures_of(role, deviation, precision, limit)
    if failures and not allow_mismatch:
        allowed = allowing(failures, target or precision)
        raise ParityError(
            f"parity of the {what} failed on {deviation.photos} photos of {deviation.profiles} people:"
            f" {'; '.join(map(str, failures))}."
            + (f" {allowed} would allow it;" if allowed else "")
            + " --bisect names the first layer that differs"
        )
    largest = {kind: finite(float(deviation.largest[kind].max())) for kind in _KINDS[role]}
    of_head, deciding = role == "head", "feature" if role == "encoder" else "logits"
    return Parity(
        **{name: getattr(deviation, name) for name in ("photos", "profiles", "longest_history", "situations")},
        max_abs=largest[deciding],
        p99_abs=finite(float(np.percentile(deviation.values[role], 99))),
        top1_agreement=float(deviation.same_top1.mean()),
        tolerance=finite(limit.largest[deciding]),
        reason=limit.reason,
        cosine=finite(deviation.smallest_cosine(role)),
        rank_changes=float(1 - deviation.same_top5.mean()),
        passed=not failures,
        largest=largest,
        typical_logits=finite(deviation.typical) if of_head else None,
        accuracy_loss=deviation.accuracy_loss if of_head and len(deviation.right) else None,
    )


@dataclass(frozen=True)
class Breach:
    """A limit that was passed.

    Attributes:
        name: of the limit, as ``--max-deviation`` takes it.
        value: largest value that was seen, as that option states it.
        text: the figure and its limit in words.
    """

    name: str
    value: float
    text: str

    def __str__(self) -> str:
        return self.text


def failures_of(role: str, deviation: Deviation, precision: str, limit: Tolerance | None = None) -> list[Breach]:
    """Every limit that was passed, with its figure; decisions are the head's, so an encoder is not judged by them."""
    limit = limit or TOLERANCES[precision]
    at_most = [
        (kind, f"largest difference of {kind}", float(deviation.largest[kind].max()), limit.largest[kind])
        for kind in _KINDS[role]
    ]
    at_least = [("cosine-distance", "smallest cosine", deviation.smallest_cosine(role), limit.cosine)]
    if role == "head":
        loss = max(limit.accuracy_loss, 1 / max(1, len(deviation.right)))
        typical = "90th percentile of the difference of logits over their range"
        at_most += [
            ("typical-logits", typical, deviation.typical, limit.typical_logits),
            ("accuracy-loss", "net loss of right answers", deviation.accuracy_loss, loss),
        ]
        at_least.append(("disagreement", "same top-1", float(deviation.same_top1.mean()), limit.agreement))
    # A value that is not a number fails.
    found = [
        Breach(name, v, f"{text} {v:.3g} (at most {most:.3g})")
        for name, text, v, most in at_most
        if not v <= most or not np.isfinite(v)
    ]
    return found + [
        Breach(name, 1 - v, f"{text} {v:.4g} (at least {least:.4g})")
        for name, text, v, least in at_least
        if not v >= least
    ]


def allowing(breaches: Sequence[Breach], target: str) -> str:
    """The option that would allow all of these, with values rounded up; "" where one is not a finite number."""
    if not all(np.isfinite(breach.value) for breach in breaches):
        return ""
    parts = [f"{target}:{breach.name}={_rounded_up(breach.value):.3g}" for breach in breaches]
    return f"--max-deviation {','.join(parts)}"


def _rounded_up(value: float) -> float:
    """To two digits, never below the value."""
    step = 10.0 ** (np.floor(np.log10(value)) - 1) if value > 0 else 1.0
    return float(np.ceil(value / step * (1 + 1e-9)) * step)


def finite(value: float) -> float:
    """JSON has no infinity and no not-a-number: the largest float stands for both."""
    return value if np.isfinite(value) else float(np.finfo(np.float32).max)
