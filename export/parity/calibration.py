"""Calibration data: real photos of several people that determine the ranges of quantised activations."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from refocus.export.errors import ExportError
from refocus.export.parity.photos import Streams, distinct
from refocus.export.program.eager_recognizer import EagerRecognizer
from refocus.export.program.program import TorchProgram
from refocus.export.targets import NO_CALIBRATION

MOST_PHOTOS = 100
FEWEST_PEOPLE = 3


@dataclass(frozen=True)
class Calibration:
    """What the programs were given on the calibration photos.

    Attributes:
        fingerprint: SHA-256 over the SHA-256 of every photo, in order.
        photos, people: how many.
        inputs: by the identity of a program, its inputs for each photo.
    """

    fingerprint: str
    photos: int
    people: int
    inputs: dict[str, tuple[tuple[Tensor, ...], ...]]

    @classmethod
    def collect(cls, encoder: TorchProgram, heads: Sequence[TorchProgram], streams: Streams | None) -> Calibration:
        """Runs eager PyTorch over the photos, person by person with a growing history; everyone gets an equal share.

        Raises:
            ExportError: no photos, or photos of too few people: ranges of one person's photos would clip another's.
        """
        if not streams:
            raise ExportError(NO_CALIBRATION)
        if len(streams) < FEWEST_PEOPLE:
            raise ExportError(
                f"--calibration holds photos of {len(streams)} people, expected at least {FEWEST_PEOPLE}: ranges of few"
                " people's photos clip everybody else's"
            )
        digest, photos = hashlib.sha256(), 0
        inputs: dict[str, list[tuple[Tensor, ...]]] = {program.identity: [] for program in (encoder, *heads)}
        for paths in streams.values():
            people = [EagerRecognizer(encoder, head) for head in heads]
            for path, content in list(distinct(paths))[: max(1, MOST_PHOTOS // len(streams))]:
                digest.update(hashlib.sha256(content).digest())
                photos += 1
                for number, person in enumerate(people):
                    answer = person.recognize(content, str(path))
                    inputs[heads[number].identity].append(answer.given)
                    if number == 0:
                        inputs[encoder.identity].append(answer.pixels)
        return cls(digest.hexdigest(), photos, len(streams), {k: tuple(v) for k, v in inputs.items()})
