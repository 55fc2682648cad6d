"""Parity: the exported programs, run by the device's own code, against eager PyTorch, on real photos in sequence.

A recogniser with a history is compared as it is used: one person after another, photo by photo, each side feeding on
the features that it computed itself, so that differences may add up. Failure stops the export.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from edge.bundle import Bundle
from edge.manifest import Parity
from edge.preprocess import preprocess
from edge.recognizer import Recognizer
from export.errors import ExportError, ParityError
from export.program import TorchProgram

TOLERANCE = {"fp32": 1e-3}
REASON = {"fp32": "float32 sums in another order; logits are of order 10, decisions turn on differences far larger"}
MIN_AGREEMENT = 0.999

Streams = dict[str, list[Path]]


@dataclass(frozen=True)
class Deviation:
    """Differences of one sequence run: absolute differences of all values of each program, and of decisions."""

    feature: np.ndarray
    head: np.ndarray
    same_top1: np.ndarray
    longest_history: int


@dataclass(frozen=True)
class EagerAnswer:
    """Eager PyTorch's side of one photo, over L history photos.

    Attributes:
        feature: (D,).
        outputs: the head's, by name, without the row of each.
    """

    feature: np.ndarray
    outputs: dict[str, np.ndarray]


def read_streams(folder: Path) -> Streams:
    """Photos to compare on: each subfolder is one person's stream, in the order of the file names.

    Raises:
        ExportError: there is none.
    """
    people = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    streams = {path.name: sorted(p for p in path.iterdir() if p.is_file()) for path in people}
    streams = {name: photos for name, photos in streams.items() if photos}
    if not any(len(photos) > 1 for photos in streams.values()):
        raise ExportError(
            f"--photos {folder}: expected one folder of photos per person, with several photos; parity needs histories"
        )
    return streams


class EagerRecognizer:
    """The recogniser in eager PyTorch, with its history in memory: the reference of every comparison."""

    def __init__(self, encoder: TorchProgram, head: TorchProgram) -> None:
        if encoder.preprocessing is None:
            raise ExportError("the encoder states no preprocessing")
        self.encoder, self.head, self.preprocessing = encoder, head, encoder.preprocessing
        self.slots = int(head.personalisation["window"])
        self.past: dict[str, deque[np.ndarray]] = {s.name: deque(maxlen=max(1, self.slots)) for s in head.state}

    @torch.inference_mode()
    def recognize(self, content: bytes) -> EagerAnswer:
        """One photo; its feature, and every other row of state, joins the past."""
        feature = self.encoder.module(torch.from_numpy(preprocess(content, self.preprocessing)))
        length = min(len(self.past["history"]), self.slots)
        given = {state.name: self._padded(state.name, state.shape, length) for state in self.head.state}
        given |= {"feature": feature, "history_length": torch.tensor([length])}
        found = self.head.module(*(given[spec.name] for spec in self.head.inputs))
        outputs = {spec.name: value[0].numpy() for spec, value in zip(self.head.outputs, found, strict=True)}
        for state in self.head.state:
            self.past[state.name].append({"feature": feature[0].numpy(), **outputs}[state.source])
        outputs["attention"] = outputs["attention"][self.slots - length :]
        return EagerAnswer(feature[0].numpy(), outputs)

    def _padded(self, name: str, shape: tuple[int, ...], length: int) -> torch.Tensor:
        rows = np.zeros((1, *shape), dtype=np.float32)
        if length:
            rows[0, -length:] = np.stack(list(self.past[name])[-length:])
        return torch.from_numpy(rows)


def compare(bundle: Bundle, runtime: str, precision: str, encoder: TorchProgram, head: TorchProgram,
            streams: Streams) -> Deviation:  # fmt: skip
    """Runs both sides over the same streams, each person from an empty history.

    The device side is the whole :class:`edge.Recognizer`, its store on disk included.
    """
    rows = list(_rows(bundle, runtime, precision, encoder, head, streams))
    feature, outputs, same, lengths = zip(*rows, strict=True)
    return Deviation(np.concatenate(feature), np.concatenate(outputs), np.array(same), max(lengths))


def _rows(bundle: Bundle, runtime: str, precision: str, encoder: TorchProgram, head: TorchProgram,
          streams: Streams) -> Iterator[tuple[np.ndarray, np.ndarray, bool, int]]:  # fmt: skip
    labels = bundle.manifest.labels
    with tempfile.TemporaryDirectory() as folder:
        for number, photos in enumerate(streams.values()):
            eager, profile = EagerRecognizer(encoder, head), Path(folder) / f"{number}.sqlite3"
            with Recognizer(bundle, profile, runtime, precision, threads=1) as device:
                for path, content in distinct(photos):
                    wanted, got = eager.recognize(content), device.recognize(content, str(path))
                    stored = device.history.recent(device.space, 1, device.width) if device.history else got.logits
                    found = {"plain_logits": got.plain_logits, "calibrated_logits": got.calibrated_logits,
                             "logits": got.logits, "attention": got.attention, "trust": got.trust}  # fmt: skip
                    outputs = np.concatenate([np.atleast_1d(v - wanted.outputs[k]) for k, v in found.items()])
                    same = got.labels[0] == labels[int(wanted.outputs["logits"].argmax())]
                    yield np.abs(stored[0] - wanted.feature), np.abs(outputs), same, len(got.attention) - 1


def distinct(photos: list[Path]) -> Iterator[tuple[Path, bytes]]:
    """Each photo once: a device knows a photo it has seen, the plain reference does not."""
    seen = set()
    for path in photos:
        content = path.read_bytes()
        if content not in seen:
            seen.add(content)
            yield path, content


def judge(values: np.ndarray, deviation: Deviation, precision: str, profiles: int, what: str) -> Parity:
    """The manifest's entry for one program.

    Raises:
        ParityError: not finite, beyond the tolerance, or decisions differ too often.
    """
    worst, agreement = float(values.max()), float(deviation.same_top1.mean())
    photos = len(deviation.same_top1)
    if not np.isfinite(values).all() or worst > TOLERANCE[precision] or agreement < MIN_AGREEMENT:
        raise ParityError(
            f"parity of the {what} failed on {photos} photos of {profiles} people: largest difference {worst:.3g}"
            f" (tolerance {TOLERANCE[precision]}), same top-1 on {agreement:.2%} (at least {MIN_AGREEMENT:.1%});"
            " no bundle was written"
        )
    return Parity(
        photos=photos,
        profiles=profiles,
        longest_history=deviation.longest_history,
        max_abs=worst,
        p99_abs=float(np.percentile(values, 99)),
        top1_agreement=agreement,
        tolerance=TOLERANCE[precision],
        reason=REASON[precision],
    )
