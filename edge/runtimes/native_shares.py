"""Class shares in C (edge/runtimes/native_head/shares.h), in the library of the native head.

One photo takes some fifty calls of numpy on arrays of a few numbers, which cost more than the arithmetic. Importing
this module raises RuntimeUnavailable where the library was not built, or has no class shares.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refocus.edge.errors import RuntimeUnavailable
from refocus.edge.runtimes.native_library import LIBRARY, NativeLibrary

VERSION = 6
_VECTORS = "base", "scale", "bias"
_NUMBERS = (
    *("temperature", "strength", "fade", "evidence_fade", "odds"),
    *("penalty", "least", "most", "elsewhere", "support", "with_head", "passing"),
)
_FLAGS = "expected", "gated", "vouched"
_MEMORY = "index", "kept", "counts", "sums"
_ANSWERS = "logits", "shared", "plain", "shift", "alone", "shares"


class _State(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("classes", "top")),
        *((name, ctypes.c_void_p) for name in _VECTORS),
        *((name, ctypes.c_double) for name in _NUMBERS),
        *((name, ctypes.c_int32) for name in _FLAGS),
        *((name, ctypes.c_void_p) for name in _MEMORY),
    ]


class _Answer(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p) for name in ("outputs", "head", *_ANSWERS, "scratch", "weights", "said", "index", "row")
    ]


def load(path: Path = LIBRARY) -> ctypes.CDLL:
    """Load the library with the functions of shares.h.

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
    integer, pointer = ctypes.c_int64, ctypes.c_void_p
    library.refocus_shares_fold.argtypes = [pointer, pointer, integer]
    library.refocus_shares_fold.restype = None
    library.refocus_shares_estimate.argtypes = [pointer, pointer, pointer]
    library.refocus_shares_answer.argtypes = [pointer, integer, pointer]
    library.refocus_shares_top.argtypes = [integer, integer, pointer, pointer, pointer]
    return library


_FUNCTIONS = load()


class NativeShares:
    """The functions for the state of one person.

    Args:
        classes: C.
        top: k.
        vectors: ``base``, and ``scale`` and ``bias``, (C,) each or empty.
        settings: numbers and flags of the settings, and what follows from them, as the header names them.
    """

    def __init__(
        self, classes: int, top: int, vectors: Mapping[str, np.ndarray], settings: Mapping[str, float | bool]
    ) -> None:
        self._vectors = {name: np.ascontiguousarray(vectors[name], dtype=np.float64) for name in _VECTORS}
        pointers = {name: value.ctypes.data if value.size else None for name, value in self._vectors.items()}
        self._classes, self._top = classes, top
        self._state = _State(classes, top, **pointers, **settings)
        self._where = ctypes.addressof(self._state)
        # Memory whose place is known: to ask numpy for an address costs as much as the arithmetic.
        self._index, self._row = np.empty(top, np.int32), np.empty(top, np.float32)
        self._in, self._out = np.empty((2, classes)), np.empty(8 * classes + 6)
        self._answer = _Answer(self._in.ctypes.data)
        parts = {name: number * classes for number, name in enumerate((*_ANSWERS, "scratch"))}
        for name, start in (parts | {"weights": 8 * classes, "said": 8 * classes + 2}).items():
            setattr(self._answer, name, self._out[start:].ctypes.data)
        self._answer.index, self._answer.row = self._index.ctypes.data, self._row.ctypes.data
        self._head = self._in[1].ctypes.data
        self._answered = ctypes.addressof(self._answer)

    def place(self, *arrays: np.ndarray) -> None:
        """Set the memory of the state, which must stay where it is until the next call.

        Args:
            arrays: classes of the slots, (slots, k) int32, and their probabilities and credit, (slots, k + 1) float32;
                counts (2, C) and sums (5,), float64; all contiguous.
        """
        for name, value in zip(_MEMORY, arrays, strict=True):
            setattr(self._state, name, value.ctypes.data)

    def fold(self, slots: Sequence[int]) -> None:
        """Count the photos of these slots, in this order."""
        many = (ctypes.c_int64 * len(slots))(*slots)
        _FUNCTIONS.refocus_shares_fold(self._where, ctypes.addressof(many), len(slots))

    def estimate(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Return shares (C,), weights (2,) and evidence."""
        shares, weights = np.empty(self._classes), np.empty(2)
        evidence = _FUNCTIONS.refocus_shares_estimate(self._where, shares.ctypes.data, weights.ctypes.data)
        return shares, weights, float(evidence)

    def answer(self, photos: int, outputs: np.ndarray, head: np.ndarray | None = None) -> tuple[Any, ...] | None:
        """Answer one photo.

        Args:
            photos: number of photos before it.
            outputs: outputs of the classifier without history, (C,).
            head: logits (C,) of a head with a history, which then answers with shares.

        Returns:
            Logits of the answer, of the classifier with shares and without, calibrated; log(s / b); the probabilities
            without shares; the shares, (C,) each; the weights of "no shift" and of the person's, (2,); evidence, trust,
            and how far shares moved the answer, (3,); classes and probabilities that are kept, (k,) each. None if the
            outputs are not finite.
        """
        self._in[0] = outputs
        if head is not None:
            self._in[1] = head
        self._answer.head = None if head is None else self._head
        if _FUNCTIONS.refocus_shares_answer(self._where, photos, self._answered):
            return None
        classes = self._classes
        logits, shared, plain, shift, alone, shares = self._out[: 6 * classes].reshape(6, classes).copy()
        weights, numbers = self._out[8 * classes :][:2].copy(), self._out[8 * classes + 2 :][:3].tolist()
        kept = self._index.copy(), self._row.copy()
        return logits, shared, plain, shift, alone, shares, weights, numbers, *kept

    def top(self, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the k most likely classes (k,), in order, and their probabilities (k,), float32."""
        classes, kept = np.empty(self._top, dtype=np.int32), np.empty(self._top, dtype=np.float32)
        probability = np.ascontiguousarray(probability, dtype=np.float64)
        data = [value.ctypes.data for value in (probability, classes, kept)]
        _FUNCTIONS.refocus_shares_top(len(probability), self._top, *data)
        return classes, kept
