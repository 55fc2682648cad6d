"""The recogniser in eager PyTorch: the reference of parity, and what gives calibration and bisection their inputs."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from refocus.edge.bundle import State
from refocus.edge.photos import preprocess
from refocus.export.errors import ExportError
from refocus.export.program.program import TorchProgram


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


class Remembered(nn.Module):
    """An encoder that computes the feature of each photo once."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.known = encoder, dict[bytes, Tensor]()

    def forward(self, photo: Tensor, *given: Tensor) -> Tensor:
        """Return the feature (1, D) of a photo (1, 3, S, S).

        Args:
            photo: preprocessed photo.
            given: personal inputs of the encoder.
        """
        key = b"".join(hashlib.sha256(tensor.numpy().tobytes()).digest() for tensor in (photo, *given))
        if key not in self.known:
            self.known[key] = self.encoder(photo, *given)
        return self.known[key]


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
    def recognize(self, content: bytes, where: str = "photo") -> EagerAnswer:
        """One photo; its feature, or every other row that the program left, joins the past.

        Args:
            where: name of the photo, for errors.
        """
        pixels = torch.from_numpy(preprocess(content, self.preprocessing, where))
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
