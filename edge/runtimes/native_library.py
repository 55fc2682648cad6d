"""The shared library of the native head, through ctypes: one for all versions of Python."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from refocus.edge.errors import RuntimeUnavailable
from refocus.edge.runtimes.native_format import NATIVE_VERSION

LIBRARY = Path(__file__).with_name("refocus_native.so")
_INPUTS = ("feature", "length", "history", "caches", "traits")
_OUTPUTS = ("plain", "calibrated", "logits", "attention", "trust", "rows", "trait")


class Sizes(ctypes.Structure):
    """Numbers that a head has, and works with."""

    floats: int
    integers: int
    bytes: int
    scratch: int
    _fields_ = [(name, ctypes.c_int64) for name in ("floats", "integers", "bytes", "scratch")]


class Io(ctypes.Structure):
    """Pointers to one photo's inputs and outputs."""

    _fields_ = [(name, ctypes.c_void_p) for name in (*_INPUTS, *_OUTPUTS)]


class Packed(ctypes.Structure):
    """Pointers to a head's configuration and numbers."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("config", "floats", "integers", "bytes")]


class NativeLibrary:
    """The functions of edge/runtimes/native_head/head.h.

    Attributes:
        functions: the library itself.

    Raises:
        RuntimeUnavailable: there is no library, it cannot be loaded here, or is of another version.
    """

    def __init__(self, path: Path = LIBRARY) -> None:
        if not path.is_file():
            raise RuntimeUnavailable(
                f"the native head was not built ({path.name} is not there); install refocus-edge from a wheel, or where"
                " there is a C compiler"
            )
        try:
            library = ctypes.CDLL(str(path))
            library.refocus_variant_name.restype = ctypes.c_char_p
            library.refocus_photo_signature.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
            self.version = int(library.refocus_version())
            self.run, self._sizes = library.refocus_head_run, library.refocus_head_sizes
            self.variant = int(library.refocus_variant())
        except (OSError, AttributeError) as error:
            raise RuntimeUnavailable(
                f"the library of the native head cannot be used ({' '.join(str(error).split())}); install refocus-edge"
                " again"
            ) from None
        if self.version != NATIVE_VERSION:
            raise RuntimeUnavailable(
                f"the library of the native head has version {self.version}, this refocus needs {NATIVE_VERSION};"
                " install refocus-edge again"
            )
        self.functions = library
        self.run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32]

    def name(self, variant: int) -> str:
        """Of a variant, as ``avx2``; "" where there is none of that number."""
        return (self.functions.refocus_variant_name(ctypes.c_int32(variant)) or b"").decode()

    @property
    def variants(self) -> list[str]:
        """Instruction sets that this library has and this processor can run, the fastest last."""
        return [name for number in range(self.variant + 1) if (name := self.name(number))]

    def find(self, name: str) -> int:
        """The number of a variant; "" is the fastest.

        Raises:
            RuntimeUnavailable: this processor, or the library, has none of that name.
        """
        if not name:
            return self.variant
        if name not in self.variants:
            raise RuntimeUnavailable(
                f"--provider {name}: the native head runs with {' or '.join(self.variants)} on this processor"
            )
        return next(number for number in range(self.variant + 1) if self.name(number) == name)

    def sizes(self, config: Sequence[int] | np.ndarray) -> tuple[int, Sizes]:
        """0 and the sizes of a head; or 1 and more: the number of the first member that is out of range."""
        sizes, numbers = Sizes(), np.array(config, dtype=np.int64)
        wrong = int(self._sizes(ctypes.c_void_p(numbers.ctypes.data), ctypes.byref(sizes)))
        return wrong, sizes

    def signature(self, pixels: np.ndarray) -> np.ndarray:
        """Normalised pixels (3, side, side) -> the photo's signature (12,)."""
        pixels = np.ascontiguousarray(pixels, dtype=np.float32)
        found = np.empty(12, dtype=np.float32)
        self.functions.refocus_photo_signature(pixels.ctypes.data, pixels.shape[-1], found.ctypes.data)
        return found
