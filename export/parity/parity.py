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
import torch
from torch import Tensor

from refocus.edge.bundle import Bundle, Parity, State
from refocus.edge.history import RetentionPolicy
from refocus.edge.photos import preprocess
from refocus.edge.recognize import Answer, Recognizer
from refocus.export.errors import ExportError, ParityError
from refocus.export.parity.photos import Streams, contents, labels_of
from refocus.export.program.program import TorchProgram


@dataclass(frozen=True)
class Tolerance:
    """Limits within which two programs count as the same.

    Attributes:
        largest: largest absolute difference of any value, by kind of output: "feature", "logits" (plain, calibrated
            and delivered), "attention", "trust" (both in [0, 1]).
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
_QUANTISED = {"feature": _ANY, "logits": _ANY, "attention": 0.25, "trust": _ANY}
# One table for every runtime.
TOLERANCES: Mapping[str, Tolerance] = {
    "fp32": Tolerance(
        {"feature": 1e-3, "logits": 1e-3, "attention": 1e-4, "trust": 1e-3},
        1e-3,
        0.9999,
        0.999,
        0.0,
        2e-3,
        "float32 sums in another order; logits are of order 10, decisions turn on far larger ones",
    ),
    "fp16": Tolerance(
        {"feature": 0.5, "logits": 0.5, "attention": 0.02, "trust": 0.05},
        0.05,
        0.999,
        0.98,
        0.01,
        0.5,
        "11 significant bits: 0.5 is a twentieth of the range of logits, and only near ties turn",
    ),
    "int8": Tolerance(
        _QUANTISED,
        0.15,
        0.80,
        0.80,
        0.05,
        2.0,
        "256 steps per value: values of single photos may be far off and near ties turn; bounded are the"
        " typical difference of logits, decisions, and right answers where labels are known",
    ),
    "palette6": Tolerance(_QUANTISED, 0.15, 0.80, 0.80, 0.05, 2.0, "64 values per weight tensor: judged as int8 is"),
}
FEWEST_PEOPLE, FEWEST_PHOTOS = 2, 16
TURN = 6  # photos of one person before the next person's turn


@dataclass(frozen=True)
class Deviation:
    """Differences of one run over the same n photos.

    Attributes:
        largest: (n,) largest absolute difference of each photo, by kind of output (see :class:`Tolerance`).
        values: absolute differences of all values of the head's outputs, and of the features, in one row each.
        typical_logits: (n,) largest difference of a logit as a share of the range of the photo's logits in PyTorch.
        feature_cosine, head_cosine: (n,) cosines of the features, and of the delivered answers without their mean.
        same_top1, same_top5: (n,) whether the best class, and the five best in order, are the same.
        right: (m, 2) of the m labelled photos, whether PyTorch and the device answered with the label.
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


@dataclass(frozen=True)
class EagerAnswer:
    """Eager PyTorch's side of one photo, over L history photos.

    Attributes:
        feature: (D,).
        outputs: the head's, by name, without the row of each.
        pixels, given: what the encoder and the head were given, in the order of their inputs.
    """

    feature: np.ndarray
    outputs: dict[str, np.ndarray]
    pixels: tuple[Tensor, ...]
    given: tuple[Tensor, ...]


class EagerRecognizer:
    """The recogniser in eager PyTorch, with its history in memory: the reference of every comparison."""

    def __init__(self, encoder: TorchProgram, head: TorchProgram) -> None:
        if encoder.preprocessing is None:
            raise ExportError("the encoder states no preprocessing")
        self.encoder, self.head, self.preprocessing = encoder, head, encoder.preprocessing
        self.window = int(head.personalisation["window"])
        self.seen = 0
        self.past: dict[str, deque[np.ndarray]] = {s.name: deque(maxlen=max(1, s.slots)) for s in head.state}

    @torch.inference_mode()
    def recognize(self, content: bytes) -> EagerAnswer:
        """One photo; its feature, or every other row that the program left, joins the past."""
        pixels = torch.from_numpy(preprocess(content, self.preprocessing))
        shown = pixels, *(self.encoder.defaults[spec.name] for spec in self.encoder.inputs if spec.name != "photo")
        feature = self.encoder.module(*shown)
        length = min(self.seen, self.window)
        given = {state.name: self._state(state) for state in self.head.state}
        given |= {"feature": feature, "history_length": torch.tensor([length]), **self.head.defaults}
        inputs = tuple(given[spec.name] for spec in self.head.inputs)
        found = self.head.module(*inputs)
        outputs = {spec.name: value[0].numpy() for spec, value in zip(self.head.outputs, found, strict=True)}
        rows = {spec.name: value.numpy() for spec, value in zip(self.head.outputs, found, strict=True)}
        for state in self.head.state:
            self.past[state.name].append({"feature": feature.numpy(), **rows}[state.source])
        self.seen += 1
        weights, near = outputs["attention"], min(length, len(outputs["attention"]) - 1)
        ring = self.head.personalisation["form"] == "streaming"
        past = weights[:near] if ring else weights[len(weights) - 1 - near : -1]
        outputs["attention"] = np.concatenate([np.zeros(length - near, np.float32), past, weights[-1:]])
        return EagerAnswer(feature[0].numpy(), outputs, shown, inputs)

    def _state(self, state: State) -> torch.Tensor:
        """Rows of the past in a state's own shape; those of a ring fill its first slots, in order."""
        rows = [row.reshape(state.shape[: state.axis] + state.shape[state.axis + 1 :]) for row in self.past[state.name]]
        value = np.zeros(state.shape, dtype=np.float32)
        slots = np.moveaxis(value, state.axis, 0)
        if rows and state.update == "ring":
            slots[: len(rows)] = rows
        elif rows:
            slots[-len(rows) :] = rows
        return torch.from_numpy(value if state.update == "ring" else value[None])


@dataclass(frozen=True)
class Step:
    """One photo of a comparison: whose, in which situations, and its label where one is known ("")."""

    person: str
    path: Path
    content: bytes
    situations: tuple[str, ...]
    label: str = ""


class Reference:
    """Eager PyTorch's answers to all steps, computed once for all targets.

    Args:
        encoder, head: the programs.
        streams: real photos, one stream per person.

    Raises:
        ExportError: too few people or photos, or not every situation occurs.
    """

    def __init__(self, encoder: TorchProgram, head: TorchProgram, streams: Streams) -> None:
        self.window = int(head.personalisation["window"])
        self.steps = list(steps(streams, self.window))
        require_coverage(self.steps, self.window)
        people = {name: EagerRecognizer(encoder, head.definition or head) for name in streams}
        answers = (people[step.person].recognize(step.content) for step in self.steps)
        # Nothing is compared with what the programs were given; a pixel tensor per photo would be kept, and copied.
        self.answers = [replace(answer, pixels=(), given=()) for answer in answers]


def steps(streams: Streams, window: int) -> Iterator[Step]:
    """All photos of all people, in turns of a few photos, and the situation of each of them."""
    labels = labels_of(streams)
    waiting = {name: deque(photos) for name, photos in contents(streams, _shortest_stream(window)).items()}
    seen: Counter[str] = Counter()
    last = ""
    while waiting:
        for name in list(waiting):
            for _ in range(min(TURN, len(waiting[name]))):
                path, content = waiting[name].popleft()
                situations = _situations(seen[name], window, switched=name != last)
                yield Step(name, path, content, situations, labels.get(path, ""))
                seen[name] += 1
                last = name
            if not waiting[name]:
                del waiting[name]


def _shortest_stream(window: int) -> int:
    """Photos that two people need so that every situation occurs: more than the window, and three turns."""
    return max(window + 2, 2 * TURN + 1)


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


def compare(bundle: Bundle, targets: Sequence[tuple[str, str]], reference: Reference, head: str = "") -> Deviation:
    """Runs the device side over the reference's steps, each person from an empty history.

    Args:
        targets: runtime and precision; of several, each start takes the next one, so that histories of one are met by
            another: they share a feature space only if that changes nothing.
        head: name of the bundle's head.

    Raises:
        ParityError: the device's history is not what it was told to remember.
    """
    rows = list(_rows(bundle, targets, reference, head))
    kinds = {kind: [row.differences[kind] for row in rows] for kind in rows[0].differences}
    return Deviation(
        largest={kind: np.array([values.max() for values in found]) for kind, found in kinds.items()},
        values={
            "encoder": np.concatenate(kinds["feature"]),
            "head": np.concatenate([values for kind, found in kinds.items() if kind != "feature" for values in found]),
        },
        typical_logits=np.array([row.typical_logits for row in rows]),
        feature_cosine=np.array([row.feature_cosine for row in rows]),
        head_cosine=np.array([row.head_cosine for row in rows]),
        same_top1=np.array([row.same_top1 for row in rows]),
        same_top5=np.array([row.same_top5 for row in rows]),
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
    right: tuple[bool, ...]
    history: int


def _rows(bundle: Bundle, targets: Sequence[tuple[str, str]], reference: Reference, head: str) -> Iterator[_Row]:
    labels = bundle.manifest.head(head).labels
    people = sorted({step.person for step in reference.steps})
    with tempfile.TemporaryDirectory() as folder:
        profiles = {name: Path(folder) / f"{number}.sqlite3" for number, name in enumerate(people)}

        # As many photos as the window holds are kept: whatever is older is evicted from the store too.
        starts = (
            Recognizer(bundle, None, *target, 1, head=head, keeping=RetentionPolicy(capacity=1))
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
            yield _row(wanted, got, labels, step.label)
        device.close()


_LOGITS = "plain_logits", "calibrated_logits", "logits"


def _row(wanted: EagerAnswer, got: Answer, labels: tuple[str, ...], label: str) -> _Row:
    outputs = wanted.outputs
    if len(got.attention) != len(outputs["attention"]):
        raise ParityError(
            f"the device answered over {len(got.attention) - 1} history photos, PyTorch over"
            f" {len(outputs['attention']) - 1}: its history is not this person's; no bundle was written"
        )
    logits = np.abs(np.concatenate([getattr(got, name) - outputs[name] for name in _LOGITS]))
    order = np.argsort(-outputs["logits"], kind="stable")[:5]
    best = labels[int(order[0])]
    return _Row(
        differences={
            "feature": np.abs(got.feature - wanted.feature),
            "logits": logits,
            "attention": np.abs(got.attention - outputs["attention"]),
            "trust": np.atleast_1d(np.abs(got.trust - outputs["trust"])),
        },
        typical_logits=float(logits.max() / max(float(np.ptp(outputs["logits"])), 1e-6)),
        feature_cosine=cosine(got.feature, wanted.feature),
        head_cosine=cosine(got.logits - got.logits.mean(), outputs["logits"] - outputs["logits"].mean()),
        same_top1=got.labels[0] == best,
        same_top5=got.labels[: len(order)] == tuple(labels[int(i)] for i in order),
        right=(best == label, got.labels[0] == label) if label in labels else (),
        history=len(got.attention) - 1,
    )


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else float(np.array_equal(a, b))


def judge(role: str, deviation: Deviation, precision: str, what: str, allow_mismatch: bool = False) -> Parity:
    """The manifest's entry for one program.

    Args:
        role: "encoder" or "head": whose numbers count.
        what: named in the error.
        allow_mismatch: return an entry that says so, where an error is due.

    Raises:
        ParityError: not finite, beyond the tolerance, or decisions differ too often.
    """
    limit, failures = TOLERANCES[precision], failures_of(role, deviation, precision)
    if failures and not allow_mismatch:
        raise ParityError(
            f"parity of the {what} failed on {deviation.photos} photos of {deviation.profiles} people:"
            f" {'; '.join(failures)}; no bundle was written. --bisect names the first layer that differs"
        )
    largest = {kind: finite(float(deviation.largest[kind].max())) for kind in _KINDS[role]}
    deciding = "feature" if role == "encoder" else "logits"
    cosines = deviation.feature_cosine if role == "encoder" else deviation.head_cosine
    return Parity(
        photos=deviation.photos,
        profiles=deviation.profiles,
        longest_history=deviation.longest_history,
        max_abs=largest[deciding],
        p99_abs=finite(float(np.percentile(deviation.values[role], 99))),
        top1_agreement=float(deviation.same_top1.mean()),
        tolerance=finite(limit.largest[deciding]),
        reason=limit.reason,
        situations=deviation.situations,
        cosine=finite(float(cosines.min())),
        rank_changes=float(1 - deviation.same_top5.mean()),
        passed=not failures,
        largest=largest,
        typical_logits=None if role == "encoder" else finite(float(np.percentile(deviation.typical_logits, 90))),
        accuracy_loss=None if role == "encoder" or not len(deviation.right) else deviation.accuracy_loss,
    )


_KINDS = {"encoder": ("feature",), "head": ("logits", "attention", "trust")}


def failures_of(role: str, deviation: Deviation, precision: str) -> list[str]:
    """Every limit that was passed, with its figure; decisions are the head's, so an encoder is not judged by them."""
    limit, found = TOLERANCES[precision], []

    def at_most(name: str, value: float, most: float) -> None:
        if not value <= most or not np.isfinite(value):  # a value that is not a number fails
            found.append(f"{name} {value:.3g} (at most {most:.3g})")

    def at_least(name: str, value: float, least: float) -> None:
        if not value >= least:
            found.append(f"{name} {value:.4g} (at least {least:.4g})")

    for kind in _KINDS[role]:
        at_most(f"largest difference of {kind}", float(deviation.largest[kind].max()), limit.largest[kind])
    cosines = deviation.feature_cosine if role == "encoder" else deviation.head_cosine
    at_least("smallest cosine", float(cosines.min()), limit.cosine)
    if role == "head":
        typical = float(np.percentile(deviation.typical_logits, 90))
        at_most("90th percentile of the difference of logits over their range", typical, limit.typical_logits)
        at_least("same top-1", float(deviation.same_top1.mean()), limit.agreement)
        loss = max(limit.accuracy_loss, 1 / max(1, len(deviation.right)))
        at_most("net loss of right answers", deviation.accuracy_loss, loss)
    return found


def finite(value: float) -> float:
    """JSON has no infinity and no not-a-number: the largest float stands for both."""
    return value if np.isfinite(value) else float(np.finfo(np.float32).max)
