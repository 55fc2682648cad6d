"""Parity: the exported programs, run by the device's own code, against eager PyTorch, on real photos in sequence.

A recogniser with a history is compared as it is used: several people take turns, photo by photo, each side feeding on
the features that it computed itself, so that differences may add up. The device side is the whole
:class:`edge.Recognizer` with its store on disk. It meets an empty history, a growing and a full one, one whose oldest
photos were evicted, a restart (what it keeps in memory is gone), and a switch to another profile and back. Failure
stops the export.
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

from edge.bundle import Bundle
from edge.history import Keeping
from edge.manifest import Parity, State
from edge.preprocess import preprocess
from edge.recognizer import Answer, Recognizer
from export.errors import ExportError, ParityError
from export.program import TorchProgram


@dataclass(frozen=True)
class Tolerance:
    """What still counts as the same program.

    Attributes:
        max_abs: of any value of features or answers.
        cosine: of the two features, and of the two answers, of each photo: the smallest that passes.
        agreement: share of photos with the same best class.
        self_test: of a best logit, on other machines than the one that exported.
        reason: why.
    """

    max_abs: float
    cosine: float
    agreement: float
    self_test: float
    reason: str


# One table for every runtime. Compared by decisions as well as by numbers.
TOLERANCES: Mapping[str, Tolerance] = {
    "fp32": Tolerance(1e-3, 0.9999, 0.999, 2e-3,
                      "float32 sums in another order; logits are of order 10, decisions turn on far larger ones"),
    "fp16": Tolerance(0.5, 0.999, 0.98, 0.5,
                      "11 significant bits: 0.5 is a twentieth of the range of logits, and only near ties turn"),
    "int8": Tolerance(float("inf"), 0.80, 0.80, 2.0,
                      "256 steps per value: single numbers may be far off and near ties turn, so this only tells a"
                      " program that computes something else; what int8 costs each person, refocus accuracy says"),
    "palette6": Tolerance(float("inf"), 0.80, 0.80, 2.0, "64 values per weight tensor: judged as int8 is"),
}  # fmt: skip
TURN = 6  # photos of one person before the next person's turn

Streams = dict[str, list[Path]]


@dataclass(frozen=True)
class Deviation:
    """Differences of one run over the same photos, one entry per photo unless said otherwise.

    Attributes:
        feature, head: absolute differences of all values of each program, in one row after the other.
        feature_cosine, head_cosine: (n,) cosines of the features, and of the delivered answers without their mean.
        same_top1, same_top5: (n,) whether the best class, and the five best in order, are the same.
        situations: photos in each situation.
        profiles, longest_history: people, and photos in the longest history.
    """

    feature: np.ndarray
    head: np.ndarray
    feature_cosine: np.ndarray
    head_cosine: np.ndarray
    same_top1: np.ndarray
    same_top5: np.ndarray
    situations: dict[str, int]
    profiles: int
    longest_history: int


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


def read_streams(folder: Path, flag: str = "--photos") -> Streams:
    """Photos to compare on: each subfolder is one person's stream, in the order of the file names.

    Raises:
        ExportError: there is none.
    """
    people = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    streams = {path.name: sorted(p for p in path.iterdir() if p.is_file()) for path in people}
    streams = {name: photos for name, photos in streams.items() if photos}
    if not any(len(photos) > 1 for photos in streams.values()):
        raise ExportError(
            f"{flag} {folder}: expected one folder of photos per person, with several photos; parity needs histories"
        )
    return streams


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
    """One photo of a comparison: whose, and in which situation."""

    person: str
    path: Path
    content: bytes
    situation: str


class Reference:
    """Eager PyTorch's answers to all steps, computed once for all targets.

    Args:
        encoder, head: the programs.
        streams: real photos, one stream per person.
    """

    def __init__(self, encoder: TorchProgram, head: TorchProgram, streams: Streams) -> None:
        self.window = int(head.personalisation["window"])
        self.steps = list(steps(streams, self.window))
        people = {name: EagerRecognizer(encoder, head.definition or head) for name in streams}
        answers = (people[step.person].recognize(step.content) for step in self.steps)
        # Nothing is compared with what the programs were given; a pixel tensor per photo would be kept, and copied.
        self.answers = [replace(answer, pixels=(), given=()) for answer in answers]


def steps(streams: Streams, window: int) -> Iterator[Step]:
    """All photos of all people, in turns of a few photos, and what each of them meets."""
    waiting = {name: deque(distinct(photos)) for name, photos in streams.items()}
    seen: Counter[str] = Counter()
    last = ""
    while waiting:
        for name in list(waiting):
            for _ in range(min(TURN, len(waiting[name]))):
                path, content = waiting[name].popleft()
                yield Step(name, path, content, _situation(seen[name], window, switched=name != last))
                seen[name] += 1
                last = name
            if not waiting[name]:
                del waiting[name]


def _situation(length: int, window: int, switched: bool) -> str:
    if not length:
        return "empty"
    if switched:
        # Every second time the process has gone in between, and with it all that was kept in memory.
        return "restarted" if length // TURN % 2 else "switched"
    return "growing" if length < window else "full" if length == window else "evicted"


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
    feature, outputs, feature_cosine, head_cosine, top1, top5, lengths = zip(*rows, strict=True)
    return Deviation(
        np.concatenate(feature),
        np.concatenate(outputs),
        np.array(feature_cosine),
        np.array(head_cosine),
        np.array(top1),
        np.array(top5),
        dict(Counter(step.situation for step in reference.steps)),
        len({step.person for step in reference.steps}),
        max(lengths),
    )


_Row = tuple[np.ndarray, np.ndarray, float, float, bool, bool, int]


def _rows(bundle: Bundle, targets: Sequence[tuple[str, str]], reference: Reference, head: str) -> Iterator[_Row]:
    labels = bundle.manifest.head(head).labels
    people = sorted({step.person for step in reference.steps})
    with tempfile.TemporaryDirectory() as folder:
        profiles = {name: Path(folder) / f"{number}.sqlite3" for number, name in enumerate(people)}

        # As many photos as the window holds are kept: whatever is older is evicted from the store too.
        starts = (
            Recognizer(bundle, None, *target, 1, head=head, keeping=Keeping(capacity=1))
            for target in itertools.cycle(targets)
        )
        device, at = next(starts), ""
        for step, wanted in zip(reference.steps, reference.answers, strict=True):
            if step.situation == "restarted":
                device.close()
                device = next(starts)
            if step.situation == "restarted" or step.person != at:
                device.switch(profiles[step.person])
                at = step.person
            got = device.recognize(step.content, str(step.path))
            yield _row(wanted, got, labels)
        device.close()


def _row(wanted: EagerAnswer, got: Answer, labels: tuple[str, ...]) -> _Row:
    found = {"plain_logits": got.plain_logits, "calibrated_logits": got.calibrated_logits, "logits": got.logits,
             "attention": got.attention, "trust": got.trust}  # fmt: skip
    if len(got.attention) != len(wanted.outputs["attention"]):
        raise ParityError(
            f"the device answered over {len(got.attention) - 1} history photos, PyTorch over"
            f" {len(wanted.outputs['attention']) - 1}: its history is not this person's; no bundle was written"
        )
    outputs = np.concatenate([np.atleast_1d(value - wanted.outputs[name]) for name, value in found.items()])
    order = np.argsort(-wanted.outputs["logits"], kind="stable")[:5]
    return (
        np.abs(got.feature - wanted.feature),
        np.abs(outputs),
        cosine(got.feature, wanted.feature),
        cosine(got.logits - got.logits.mean(), wanted.outputs["logits"] - wanted.outputs["logits"].mean()),
        got.labels[0] == labels[int(order[0])],
        got.labels[: len(order)] == tuple(labels[int(i)] for i in order),
        len(got.attention) - 1,
    )


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else float(np.array_equal(a, b))


def distinct(photos: list[Path]) -> Iterator[tuple[Path, bytes]]:
    """Each photo once: a device knows a photo it has seen, the plain reference does not."""
    seen = set()
    for path in photos:
        content = path.read_bytes()
        if content not in seen:
            seen.add(content)
            yield path, content


def judge(role: str, deviation: Deviation, precision: str, what: str, allow_mismatch: bool = False) -> Parity:
    """The manifest's entry for one program.

    Args:
        role: "encoder" or "head": whose numbers count.
        what: named in the error.
        allow_mismatch: return an entry that says so, where an error is due.

    Raises:
        ParityError: not finite, beyond the tolerance, or decisions differ too often.
    """
    encoder, limit = role == "encoder", TOLERANCES[precision]
    values = deviation.feature if encoder else deviation.head
    cosines = deviation.feature_cosine if encoder else deviation.head_cosine
    worst, agreement, photos = float(values.max()), float(deviation.same_top1.mean()), len(deviation.same_top1)
    passed = bool(
        np.isfinite(values).all()
        and worst <= limit.max_abs
        and cosines.min() >= limit.cosine
        and (encoder or agreement >= limit.agreement)  # decisions are the head's; it is judged next
    )
    if not passed and not allow_mismatch:
        raise ParityError(
            f"parity of the {what} failed on {photos} photos of {deviation.profiles} people: largest difference"
            f" {worst:.3g} (tolerance {limit.max_abs}), smallest cosine {cosines.min():.4f} (at least {limit.cosine}),"
            f" same top-1 on {agreement:.2%} (at least {limit.agreement:.1%}); no bundle was written. --bisect names"
            " the first layer that differs"
        )
    return Parity(
        photos=photos,
        profiles=deviation.profiles,
        longest_history=deviation.longest_history,
        max_abs=finite(worst),
        p99_abs=finite(float(np.percentile(values, 99))),
        top1_agreement=agreement,
        tolerance=finite(limit.max_abs),
        reason=limit.reason,
        situations=deviation.situations,
        cosine=finite(float(cosines.min())),
        rank_changes=float(1 - deviation.same_top5.mean()),
        passed=passed,
    )


def finite(value: float) -> float:
    """JSON has no infinity and no not-a-number: the largest float stands for both."""
    return value if np.isfinite(value) else float(np.finfo(np.float32).max)
