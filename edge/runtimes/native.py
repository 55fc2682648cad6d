"""The native head: everything behind the encoder as one C function (edge/runtimes/native_head/).

A stock graph of a hundred operators is cold each time that an encoder has run; one function of a few kilobytes is not
(docs/decisions/0024-native-head.md). Importing this module raises RuntimeUnavailable where the library was not built.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from refocus.edge.bundle.manifest import MAX_NUMBERS
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.runtimes.base import Program, Source
from refocus.edge.runtimes.native_format import NativeConfig, check_interface, read_native, room, source_of
from refocus.edge.runtimes.native_library import Io, NativeLibrary, Packed
from refocus.edge.runtimes.placement import Part, whole

_LIBRARY = NativeLibrary()
VERSION = str(_LIBRARY.version)
# Member of the C structure -> input or output of the program.
_INPUTS = {"feature": "feature", "length": "history_length", "history": "history", "traits": "traits"}
_OUTPUTS = {
    "plain": "plain_logits",
    "calibrated": "calibrated_logits",
    "logits": "logits",
    "attention": "attention",
    "trust": "trust",
    "trait": "trait",
}
Arrays = Mapping[str, np.ndarray]


class Loaded(Program):
    """A head in C. Several threads may run it at once; what is bound is for one thread.

    The provider is the instruction set: ``sse2``, ``avx2`` or ``avx512``, on arm64 ``neon``; default: the best.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        artifact, self._run = source.artifact, _LIBRARY.run
        if artifact.role != "head" or source.weights is not None or source.is_folder:
            raise RuntimeUnavailable(
                f"{artifact.file}: native runs heads that are one file, and takes no personal weights"
            )
        self._variant = _LIBRARY.find(source.provider)
        self._config, self._weights = read_native(source.file(""), artifact)
        wrong, sizes = _LIBRARY.sizes(self._weights.config)
        if wrong:
            name = NativeConfig._fields[wrong - 1]
            raise BundleError(
                f"{artifact.file}: {name} {self._config[wrong - 1]} is out of range; export the bundle again"
            )
        check_interface(self._config, artifact)
        wanted = sizes.floats, sizes.integers, sizes.bytes
        found = tuple(len(stream) for stream in self._weights[1:])
        if found != wanted or sizes.scratch > MAX_NUMBERS:
            raise BundleError(
                f"{artifact.file} has {found} numbers (float32, int16, int8), a head of its configuration has {wanted};"
                " export the bundle again"
            )
        self._scratch = int(sizes.scratch)
        self._outputs = {tensor.name: tuple(map(int, tensor.shape)) for tensor in artifact.outputs}
        self._head = Packed(*(stream.ctypes.data for stream in self._weights))

    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        given = {name: np.require(value, requirements=("C", "A")) for name, value in inputs.items()}
        outputs, call = self._prepared(given)
        call()
        return [*outputs.values()]

    def bind(
        self, inputs: dict[str, np.ndarray], outputs: Arrays = MappingProxyType({})
    ) -> Callable[[], dict[str, np.ndarray]]:
        self.check(inputs)
        if not all(value.flags.c_contiguous and value.flags.aligned for value in inputs.values()):
            return super().bind(inputs, outputs)
        answer, call = self._prepared(inputs, outputs)

        def bound() -> dict[str, np.ndarray]:
            self.check_open()
            call()
            return answer

        return bound

    def _prepared(
        self, inputs: Arrays, given: Arrays = MappingProxyType({})
    ) -> tuple[dict[str, np.ndarray], Callable[[], None]]:
        """Outputs, those that were given among them, and a call that fills them; both keep alive what they point to."""
        outputs = {name: np.zeros(shape, dtype=np.float32) for name, shape in self._outputs.items()} | dict(given)
        scratch, config = room(4 * self._scratch).view(np.float32), self._config
        caches = _pointers([inputs[name] for name in config.caches])
        rows = _pointers([outputs[source_of(name)] for name in config.caches])
        io = Io(caches=ctypes.addressof(caches), rows=ctypes.addressof(rows))
        for names, arrays in ((_INPUTS, inputs), (_OUTPUTS, outputs)):
            for member, name in names.items():
                if name in arrays:
                    setattr(io, member, arrays[name].ctypes.data)
        run, variant, kept = self._run, self._variant, (inputs, caches, rows, io, self._head, self._weights, scratch)
        where = ctypes.addressof(self._head), ctypes.addressof(io), scratch.ctypes.data

        def call(kept: object = kept) -> None:
            run(*where, variant)

        return outputs, call

    def ran_on(self) -> str:
        return _LIBRARY.name(self._variant)

    def placement(self) -> tuple[Part, ...]:
        return whole(self.ran_on())  # one function

    def numeric_path(self) -> str:
        return f"native {VERSION} {self.ran_on()}"

    def close(self) -> None:
        self.closed = True


def _pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(arrays)))(*(array.ctypes.data for array in arrays))
