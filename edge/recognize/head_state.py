"""What a head is given of the photos before: the features themselves, or what it left behind at each of them.

Both forms answer a photo, take it in, and can begin again from stored features. Neither is more than a cache of what
the profile's file holds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np

from refocus.edge.bundle.manifest import Head, State
from refocus.edge.runtimes import Program

ROWS_KEPT = 4096  # rows of derived state kept in memory; what is not kept is computed again
Outputs = dict[str, np.ndarray]
Tensors = Mapping[str, np.ndarray]


class HeadState(Protocol):
    """The photos before, as one head sees them."""

    def restart(self, features: np.ndarray, photos: Sequence[str]) -> None:
        """Forgets all, then takes in features (n, D), oldest first, with the identities of their photos."""

    def answer(self, feature: np.ndarray, photo: str) -> tuple[Outputs, np.ndarray]:
        """The head's outputs for a feature (D,), valid until the next call, and its attention (n + 1,) to the
        history photos, oldest first, and to itself."""

    def take_in(self, feature: np.ndarray, photo: str) -> None:
        """Adds the photo that was answered last."""


def make_head_state(program: Program, card: Head, own: Tensors) -> HeadState:
    """The head state of the form that the card names.

    Args:
        own: further inputs of the head, settled for one person, such as their classifier.
    """
    return _FORMS[card.personalisation.form](program, card, own)


class NoState:
    """Of a head that reads the photo's own feature alone."""

    def __init__(self, program: Program, card: Head, own: Tensors = MappingProxyType({})) -> None:
        self._program, self._own = program, own

    def restart(self, features: np.ndarray, photos: Sequence[str]) -> None:
        """Nothing to forget."""

    def answer(self, feature: np.ndarray, photo: str) -> tuple[Outputs, np.ndarray]:
        out = self._program.run(feature=feature[None], **self._own)
        return out, out["attention"][0]

    def take_in(self, feature: np.ndarray, photo: str) -> None:
        """Nothing to keep."""


class WindowState:
    """The newest features, padded in front to the window, with what the program derives from each of them.

    Derived rows depend on a photo's own feature alone, so nothing but features need be stored.
    """

    def __init__(self, program: Program, card: Head, own: Tensors = MappingProxyType({})) -> None:
        self._program, self._window, self._own = program, card.personalisation.window, own
        self._shapes = {state.name: state.shape for state in card.state}
        self._derived = tuple(state for state in card.state if state.source != "feature")
        self._rows: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()
        self._past: deque[tuple[str, np.ndarray]] = deque(maxlen=self._window)

    def restart(self, features: np.ndarray, photos: Sequence[str]) -> None:
        self._past.clear()
        self._past.extend(zip(photos, np.array(features), strict=True))  # the caller's may change

    def answer(self, feature: np.ndarray, photo: str) -> tuple[Outputs, np.ndarray]:
        rows = {"history": [row for _, row in self._past]}
        rows |= {state.name: [self._row(state.source, *known) for known in self._past] for state in self._derived}
        out = self._run(feature, photo, rows)
        return out, out["attention"][0, self._window - len(self._past) :]

    def take_in(self, feature: np.ndarray, photo: str) -> None:
        self._past.append((photo, feature.copy()))  # it is part of an answer, whose owner may change it

    def _run(self, feature: np.ndarray, photo: str, rows: dict[str, list[np.ndarray]]) -> Outputs:
        padded = {name: np.zeros((1, *shape), dtype=np.float32) for name, shape in self._shapes.items()}
        for name, values in rows.items():
            if values:
                padded[name][0, self._window - len(values) :] = values
        length = np.array([len(rows.get("history", ()))])
        out = self._program.run(feature=feature[None], history_length=length, **padded, **self._own)
        for state in self._derived:
            self._rows[state.source, photo] = out[state.source][0]
        while len(self._rows) > ROWS_KEPT:
            self._rows.popitem(last=False)
        return out

    def _row(self, source: str, photo: str, feature: np.ndarray) -> np.ndarray:
        """What the program returned, or now returns, for one photo of the past."""
        row = self._rows.get((source, photo))
        return self._run(feature, photo, {})[source][0] if row is None else row


class StreamState:
    """Rings of what the program left behind at each photo; the program reads them where they are.

    A photo costs one run and one row per ring, whatever the length of the history.
    """

    def __init__(self, program: Program, card: Head, own: Tensors = MappingProxyType({})) -> None:
        by_name = {tensor.name: tensor.shape for tensor in (*program.artifact.inputs, *program.artifact.outputs)}
        self._feature = np.zeros([int(size) for size in by_name["feature"]], dtype=np.float32)
        self._length = np.zeros(1, dtype=np.int64)  # photos taken in
        self._window, self._looks_back = card.personalisation.window, int(by_name["attention"][1]) - 1
        self._rings: list[tuple[np.ndarray, np.ndarray]] = []
        inputs, outputs = self._place_rings(card, {name: tuple(map(int, by_name[name])) for name in by_name})
        run: Outputs = {"feature": self._feature, "history_length": self._length, **inputs, **own}
        self._run = program.bind(run, outputs)
        # Places in the answer's attention, oldest photo first and the photo itself last, by the slot of the oldest.
        slots = np.arange(self._looks_back)
        self._order = [np.append(np.roll(slots, -oldest), self._looks_back) for oldest in range(max(1, len(slots)))]
        self._out: Outputs = {}

    def _place_rings(self, card: Head, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Outputs, Outputs]:
        """Memory of the rings, and of the rows that the program leaves for them. Those of one shape lie side by side,
        so that one assignment takes in the rows of all layers."""
        alike: dict[tuple[object, ...], list[State]] = {}
        for state in card.state:
            others = [other.name for other in card.state if other.source == state.source and other is not state]
            alone = state.name if others else ""  # one of several rings of one output
            alike.setdefault((alone, state.shape, state.axis, shapes[state.source]), []).append(state)
        inputs: Outputs = {}
        outputs: Outputs = {}
        for states in alike.values():
            first = states[0]
            rings = np.zeros((len(states), *shapes[first.name]), dtype=np.float32)
            rows = np.zeros((len(states), *shapes[first.source]), dtype=np.float32)
            rows = outputs[first.source][None] if first.source in outputs else rows
            for ring, row, state in zip(rings, rows, states, strict=True):
                inputs[state.name], outputs[state.source] = ring, row
            slots = np.moveaxis(rings, 1 + first.axis, 0)  # slots first, so that a row is written to one index
            self._rings.append((slots, rows.reshape(slots.shape[1:])))
        return inputs, outputs

    def restart(self, features: np.ndarray, photos: Sequence[str]) -> None:
        """Replays the newest ``window`` photos: the rings then hold what they would after the whole stream."""
        self._length[0] = 0
        kept = min(self._window, len(features))
        for feature, photo in zip(features[len(features) - kept :], photos[len(photos) - kept :], strict=True):
            self.answer(feature, photo)
            self.take_in(feature, photo)

    def answer(self, feature: np.ndarray, photo: str) -> tuple[Outputs, np.ndarray]:
        self._feature[0] = feature
        self._out = self._run()
        found, seen = self._out["attention"][0], int(self._length[0])
        attention = np.zeros(min(seen, self._window) + 1, dtype=np.float32)
        near = min(seen, self._looks_back)
        oldest = seen % near if near else 0  # its slot, once the ring is full; else photos lie in order from the first
        order = self._order[oldest] if near == self._looks_back else [*range(near), self._looks_back]
        attention[len(attention) - 1 - near :] = found[order]
        return self._out, attention

    def take_in(self, feature: np.ndarray, photo: str) -> None:
        seen = int(self._length[0])
        for ring, rows in self._rings:
            ring[seen % len(ring)] = rows
        self._length[0] += 1


_FORMS: dict[str, Callable[[Program, Head, Tensors], HeadState]] = {
    "window": WindowState,
    "streaming": StreamState,
    "none": NoState,
}
