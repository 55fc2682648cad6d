"""The arithmetic of class shares in C (edge/runtimes/native_head/shares.h), in the library of the native head.

One photo takes some hundred calls of numpy on arrays of a few numbers, which cost more than the arithmetic. Importing
this module raises RuntimeUnavailable where the library was not built, or has no class shares.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from refocus.edge.errors import RuntimeUnavailable
from refocus.edge.runtimes.native_library import LIBRARY, NativeLibrary

VERSION = 1
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


class _State(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("classes", "top", "hypotheses")),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("elsewhere", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in _STATE),
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
    integer, pointer = ctypes.c_int64, ctypes.c_void_p
    library.refocus_shares_count.argtypes = [pointer, integer, integer, pointer, integer, ctypes.c_int32, pointer]
    library.refocus_shares_estimate.argtypes = [pointer, integer, integer, pointer, pointer]
    library.refocus_shares_top.argtypes = [integer, integer, pointer, pointer, pointer]
    return library


_FUNCTIONS = load()


class NativeShares:
    """The functions for the state of one person.

    Args:
        settings: ``base`` (C,), ``strength`` and ``fading`` (J,), ``prior`` (J + 1,), as the header says.
        elsewhere: as in the settings of the bundle.
        classes, top: C, k.
    """

    def __init__(self, settings: Mapping[str, np.ndarray], elsewhere: float, classes: int, top: int) -> None:
        self._kept = {name: np.ascontiguousarray(settings[name], dtype=kind) for name, kind in _POINTERS.items()}
        pointers = {name: value.ctypes.data for name, value in self._kept.items()}
        self._state = _State(classes, top, len(settings["strength"]), elsewhere=elsewhere, **pointers)
        self._where = ctypes.addressof(self._state)

    def place(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Names the memory of the state, which must stay where it is until the next call."""
        for name, kind in _STATE.items():
            value = arrays[name]
            if value.dtype != kind or not value.flags.c_contiguous:
                raise ValueError(f"{name}: expected contiguous {np.dtype(kind)}, got {value.dtype}")
            setattr(self._state, name, value.ctypes.data)

    def count(self, time: int, origin: int, slots: np.ndarray, first: bool) -> None:
        """E-steps of the photos in these slots (n,), and the sums that follow."""
        slots = np.ascontiguousarray(slots, dtype=np.int64)
        scratch = np.empty(len(slots) * (self._state.top + 1))
        data = slots.ctypes.data, len(slots), first, scratch.ctypes.data
        _FUNCTIONS.refocus_shares_count(self._where, time, origin, *data)

    def estimate(self, time: int, origin: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Shares (C,), weights (J + 1,) and evidence."""
        shares, weights = np.empty(self._state.classes), np.empty(self._state.hypotheses + 1)
        data = shares.ctypes.data, weights.ctypes.data
        evidence = float(_FUNCTIONS.refocus_shares_estimate(self._where, time, origin, *data))
        return shares, weights, evidence

    def top(self, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The k most likely classes (k,), in order, and their probabilities (k,), float32."""
        k = self._state.top
        classes, kept = np.empty(k, dtype=np.int32), np.empty(k, dtype=np.float32)
        probability = np.ascontiguousarray(probability, dtype=np.float64)
        data = [value.ctypes.data for value in (probability, classes, kept)]
        _FUNCTIONS.refocus_shares_top(len(probability), k, *data)
        return classes, kept
