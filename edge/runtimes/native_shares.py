"""The arithmetic of class shares in C (edge/runtimes/native_head/shares.h), in the library of the native head.

One photo takes some hundred calls of numpy on arrays of a few numbers, which cost more than the arithmetic. Importing
this module raises RuntimeUnavailable where the library was not built, or has no class shares.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refocus.edge.errors import RuntimeUnavailable
from refocus.edge.runtimes.native_library import LIBRARY, NativeLibrary

VERSION = 3
_POINTERS = {
    "base": np.float64,
    "strength": np.float64,
    "fading": np.float64,
    "prior": np.float64,
}
_STATE = {
    "index": np.int32,
    "ratio": np.float32,
    "rest": np.float32,
    "born": np.int64,
    "owned": np.float32,
    "others": np.float32,
    "predicted": np.float32,
    "counts": np.float64,
    "spread": np.float64,
    "photos": np.float64,
    "evidence": np.float64,
}
_VECTORS = "logits", "shared", "plain", "shift", "alone", "shares"


class _State(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("classes", "top", "hypotheses")),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("elsewhere", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in _STATE),
    ]


class _Calibration(ctypes.Structure):
    _fields_ = [("scale", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("temperature", ctypes.c_double)]


class _Answer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("outputs", "head")),
        ("exponent", ctypes.c_double),
        ("support", ctypes.c_double),
        ("gated", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in (*_VECTORS, "scratch", "weights", "said", "index", "kept")),
    ]


def load(path: Path = LIBRARY) -> ctypes.CDLL:
    """The library with the functions of shares.h.

    Raises:
        RuntimeUnavailable: there is none, it has no class shares, or those of another version.
    """
    library = NativeLibrary(path).functions
    try:
        version = int(library.refocus_shares_version())
        library.refocus_shares_estimate.restype = ctypes.c_double
    except AttributeError:
        raise RuntimeUnavailable(f"{path.name} has no class shares; install refocus-edge again") from None
    if version != VERSION:
        raise RuntimeUnavailable(f"{path.name} has class shares of version {version}, this refocus needs {VERSION}")
    integer, pointer, number = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
    library.refocus_shares_add.restype = integer
    library.refocus_shares_add.argtypes = [
        pointer, integer, integer, number, integer, pointer, pointer, pointer, integer, pointer]  # fmt: skip
    library.refocus_shares_forget.argtypes = [pointer, integer, integer, number, integer]
    library.refocus_shares_answer.argtypes = [pointer, pointer, integer, integer, integer, pointer]
    library.refocus_shares_count.argtypes = [pointer, integer, integer, pointer, integer, ctypes.c_int32, pointer]
    library.refocus_shares_estimate.argtypes = [pointer, integer, integer, pointer, pointer]
    library.refocus_shares_top.argtypes = [integer, integer, pointer, pointer, pointer]
    return library


_FUNCTIONS = load()


class NativeAnswer(NamedTuple):
    """Result of :meth:`NativeShares.answer`.

    Attributes:
        logits, shared_logits, plain_logits, shift, alone, shares: (C,) of the answer; of the classifier with shares and
            without, calibrated; log(s / b); the probabilities without; the shares.
        weights: (J + 1,) of "no shift" and of the hypotheses.
        evidence, trust, moved: of the shares; how far they moved the answer.
        classes, kept: (k,) what is kept of the photo.
    """

    logits: np.ndarray
    shared_logits: np.ndarray
    plain_logits: np.ndarray
    shift: np.ndarray
    alone: np.ndarray
    shares: np.ndarray
    weights: np.ndarray
    evidence: float
    trust: float
    moved: float
    classes: np.ndarray
    kept: np.ndarray


class NativeShares:
    """The functions for the state of one person.

    Args:
        settings: ``base`` (C,), ``strength`` and ``fading`` (J,), ``prior`` (J + 1,), as the header says.
        elsewhere: as in the settings of the bundle.
        classes, top: C, k.
        calibration: ``scale`` and ``bias`` (C,), or empty, and the temperature.
        evidence_fading: halvings a photo.
        revisit: older photos whose E-step is repeated with each new one.
        beside: exponent of the shares beside a head with a history of its own, the least support of classes that
            shares may favour, and whether the head is gated.
    """

    def __init__(
        self,
        settings: Mapping[str, np.ndarray],
        elsewhere: float,
        classes: int,
        top: int,
        calibration: tuple[np.ndarray, np.ndarray, float],
        evidence_fading: float,
        revisit: int,
        beside: tuple[float, float, bool],
    ) -> None:
        self._kept = {name: np.ascontiguousarray(settings[name], dtype=kind) for name, kind in _POINTERS.items()}
        pointers = {name: value.ctypes.data for name, value in self._kept.items()}
        self._classes, self._top, self._hypotheses = classes, top, len(settings["strength"])
        self._state = _State(classes, top, self._hypotheses, elsewhere=elsewhere, **pointers)
        self._where = ctypes.addressof(self._state)
        *vectors, temperature = calibration
        self._vectors = [np.ascontiguousarray(vector, dtype=np.float64) for vector in vectors]
        self._calibration = _Calibration(*(v.ctypes.data if v.size else None for v in self._vectors), temperature)
        self._calibrated = ctypes.addressof(self._calibration)
        self._fading = evidence_fading
        # Memory whose place is known: to ask numpy for an address costs as much as the arithmetic.
        self._slots, self._scratch = np.empty(revisit, np.int64), np.empty(max(1, revisit) * (top + 1))
        self._index, self._share = np.empty(top, np.int32), np.empty(top, np.float32)
        self._in, self._out = np.empty((2, classes)), np.empty(8 * classes + self._hypotheses + 4)
        memory = self._index, self._share, self._slots, self._scratch
        self._row = tuple(value.ctypes.data for value in memory)
        self._answer = _Answer(self._in.ctypes.data, None, *beside)
        parts = {name: number * classes for number, name in enumerate((*_VECTORS, "scratch"))}
        parts |= {"weights": 8 * classes, "said": 8 * classes + self._hypotheses + 1}
        for name, start in parts.items():
            setattr(self._answer, name, self._out[start:].ctypes.data)
        self._answer.index, self._answer.kept = self._row[:2]
        self._head = self._in[1].ctypes.data
        self._answered = ctypes.addressof(self._answer)

    def place(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Names the memory of the state, which must stay where it is until the next call."""
        for name, kind in _STATE.items():
            value = arrays[name]
            if value.dtype != kind or not value.flags.c_contiguous:
                raise ValueError(f"{name}: expected contiguous {np.dtype(kind)}, got {value.dtype}")
            setattr(self._state, name, value.ctypes.data)

    def count(self, time: int, origin: int, slots: np.ndarray) -> None:
        """E-steps of the photos in these slots (n,), which were counted before, and the sums that follow."""
        slots = np.ascontiguousarray(slots, dtype=np.int64)
        scratch = np.empty(len(slots) * (self._top + 1))
        data = slots.ctypes.data, len(slots), 0, scratch.ctypes.data
        _FUNCTIONS.refocus_shares_count(self._where, time, origin, *data)

    def add(
        self, time: int, origin: int, slot: int, row: tuple[np.ndarray, np.ndarray], revisited: Sequence[int]
    ) -> int:
        """Adds a photo in an empty slot, and repeats the E-step of others.

        Args:
            row: classes (k,), different ones below C, and their probabilities (k,).
            revisited: at most ``revisit`` slots.

        Returns:
            the time to which the sums are scaled.
        """
        self._index[:], self._share[:] = row
        self._slots[: len(revisited)] = revisited
        index, share, slots, scratch = self._row
        data = index, share, slots, len(revisited), scratch
        return int(_FUNCTIONS.refocus_shares_add(self._where, time, origin, self._fading, slot, *data))

    def forget(self, time: int, origin: int, slot: int) -> None:
        """Takes a photo's contribution out of the sums."""
        _FUNCTIONS.refocus_shares_forget(self._where, time, origin, self._fading, slot)

    def estimate(self, time: int, origin: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Shares (C,), weights (J + 1,) and evidence."""
        shares, weights = np.empty(self._classes), np.empty(self._hypotheses + 1)
        data = shares.ctypes.data, weights.ctypes.data
        evidence = float(_FUNCTIONS.refocus_shares_estimate(self._where, time, origin, *data))
        return shares, weights, evidence

    def answer(
        self, time: int, origin: int, photos: int, outputs: np.ndarray, head: np.ndarray | None = None
    ) -> NativeAnswer | None:
        """The answer to a photo behind so many.

        Args:
            outputs: (C,) of the classifier without history.
            head: (C,) logits of a head with a history of its own, which then answers beside shares.

        Returns:
            None where the outputs are not finite.
        """
        self._in[0] = outputs
        if head is not None:
            self._in[1] = head
        self._answer.head = None if head is None else self._head
        where = self._where, self._calibrated, time, origin, photos, self._answered
        if _FUNCTIONS.refocus_shares_answer(*where):
            return None
        classes = self._classes
        logits, shared, plain, shift, alone, shares = self._out[: 6 * classes].reshape(6, classes).copy()
        rest = self._out[8 * classes :].copy()
        *said, evidence, trust, moved = rest.tolist()
        kept = self._index.copy(), self._share.copy()
        weights = rest[: len(said)]
        return NativeAnswer(logits, shared, plain, shift, alone, shares, weights, evidence, trust, moved, *kept)

    def top(self, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The k most likely classes (k,), in order, and their probabilities (k,), float32."""
        classes, kept = np.empty(self._top, dtype=np.int32), np.empty(self._top, dtype=np.float32)
        probability = np.ascontiguousarray(probability, dtype=np.float64)
        data = [value.ctypes.data for value in (probability, classes, kept)]
        _FUNCTIONS.refocus_shares_top(len(probability), self._top, *data)
        return classes, kept
