"""The weight file of the native head: docs/formats/native-head.md. No library is needed to read or to write it.

Notation: D feature width, S signature width, P partitions, d = D / P, N layers, H heads, W attention window, L rows of
the history and of traits, C classes, K traits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refocus.edge.bundle.manifest import Artifact
from refocus.edge.bundle.tensor_file import decode_tensors
from refocus.edge.bundle.verified_files import Content
from refocus.edge.errors import BundleError, PersonalWeightsError

NATIVE_VERSION = 1  # of the layout of the numbers, and of the library's interface
NATIVE_FORMS = ("window", "streaming")
NATIVE_CLASSIFIERS = ("shared", "own", "residual")
NATIVE_PRECISIONS = ("fp32", "w16", "w8")
_LINE = 64  # bytes of a line of the cache
SHUFFLE, CAUSAL, SEVERAL = 1, 2, 4  # bits of ``flags``
Shapes = dict[str, tuple[int, ...]]


class NativeConfig(NamedTuple):
    """What a head computes, as whole numbers in the order of the tensor ``config``.

    Attributes:
        version: of the layout.
        form, classifier, precision: place in ``NATIVE_FORMS``, ``NATIVE_CLASSIFIERS``, ``NATIVE_PRECISIONS``.
        window: W, of attention; ``rows``: L.
        traits, hidden: K and the width of the gate's hidden layer; both 0 where the gate is a warm-up.
        flags: 1: features are shuffled; 2: attention is causal; 4: photos have several labels.
        warm_up: photos that the history must have before it counts, where there are no traits.
    """

    version: int
    form: int
    width: int
    signature: int
    partitions: int
    layers: int
    heads: int
    window: int
    rows: int
    classes: int
    traits: int
    hidden: int
    classifier: int
    flags: int
    precision: int
    warm_up: int

    @property
    def caches(self) -> list[str]:
        """Names of the rings of a streaming head, keys and values of each layer in turn."""
        streaming = NATIVE_FORMS[self.form] == "streaming"
        return [f"{kind}_{n}" for n in range(self.layers) for kind in ("keys", "values")] if streaming else []

    def shapes(self) -> tuple[Shapes, Shapes]:
        """Inputs and outputs of the program by name."""
        streaming, row, size = self.form == NATIVE_FORMS.index("streaming"), self.width + self.signature, self.width
        size //= self.heads
        inputs: Shapes = {"feature": (1, row), "history_length": (1,)}
        outputs: Shapes = dict.fromkeys(("plain_logits", "calibrated_logits", "logits"), (1, self.classes))
        outputs |= {"attention": (1, self.window if streaming else self.rows + 1), "trust": (1,)}
        for name in self.caches:
            inputs[name] = self.heads, self.window - 1, size
            outputs[source_of(name)] = self.heads, 1, size
        if not streaming:
            inputs["history"] = 1, self.rows, row
        if self.traits:
            inputs["traits"] = (self.rows, self.traits) if streaming else (1, self.rows, self.traits)
            outputs["trait"] = 1, self.traits
        return inputs, outputs


def source_of(cache: str) -> str:
    """``keys_0`` -> ``key_0``: the output that a ring takes."""
    return cache.replace("keys", "key").replace("values", "value")


class NativeWeights(NamedTuple):
    """A weight file's tensors.

    Attributes:
        config: (16,) int64.
        floats, int16, int8: the streams of numbers, in the order in which a run reads them.
    """

    config: np.ndarray
    floats: np.ndarray
    int16: np.ndarray
    int8: np.ndarray

    def tensors(self) -> Mapping[str, np.ndarray]:
        """As they are in the file; 16-bit integers as their two bytes, the lower one first."""
        pairs = self.int16.astype("<i2").view(np.int8).reshape(-1, 2)
        return {"config": self.config, "floats": self.floats, "int16": pairs, "int8": self.int8}


def read_native(content: Content, artifact: Artifact) -> tuple[NativeConfig, NativeWeights]:
    """Reads a weight file whose bytes were verified, into memory of its own at multiples of 64 bytes.

    Raises:
        BundleError: it is not such a file, of another version, or for other inputs and outputs than the manifest says.
    """
    where = artifact.file
    try:
        found = decode_tensors(memoryview(content), where)
    except PersonalWeightsError as error:
        raise BundleError(f"{where} holds no tensors ({error}); export the bundle again") from None
    wanted: dict[str, tuple[type[np.generic], tuple[int | None, ...]]] = {
        "config": (np.int64, (len(NativeConfig._fields),)),
        "floats": (np.float32, (None,)),
        "int16": (np.int8, (None, 2)),
        "int8": (np.int8, (None,)),
    }
    for name, (dtype, shape) in wanted.items():
        value = found.get(name, np.empty(0))
        fits = value.dtype == dtype and value.ndim == len(shape)
        if not fits or any(want not in (None, have) for want, have in zip(shape, value.shape, strict=True)):
            raise BundleError(
                f"{where}: tensor {name} is {value.dtype} {value.shape}, expected {np.dtype(dtype)} {shape}; export"
                " the bundle again"
            )
    config = NativeConfig(*map(int, found["config"]))
    if config.version != NATIVE_VERSION:
        raise BundleError(
            f"{where} has version {config.version} of the native head's layout, this refocus reads {NATIVE_VERSION};"
            f" {'update refocus' if config.version > NATIVE_VERSION else 'export the bundle again'}"
        )
    pairs = _own(found["int16"]).view("<i2").reshape(-1)
    streams = _own(found["config"]), _own(found["floats"]), pairs, _own(found["int8"])
    return config, NativeWeights(*streams)


def check_interface(config: NativeConfig, artifact: Artifact) -> None:
    """Raises BundleError where the head is for other inputs and outputs than the manifest says."""
    for kind, shapes, tensors in zip(
        ("takes", "gives"), config.shapes(), (artifact.inputs, artifact.outputs), strict=True
    ):
        declared = {tensor.name: tensor.shape for tensor in tensors}
        if declared != shapes:
            raise BundleError(f"{artifact.file} {kind} {shapes}, its manifest says {declared}; export the bundle again")


def room(size: int) -> np.ndarray:
    """So many bytes that begin where a line of the cache does: vectors over two lines take twice as long."""
    there = np.empty(size + _LINE, dtype=np.uint8)
    start = -there.ctypes.data % _LINE
    return there[start : start + size]


def _own(value: np.ndarray) -> np.ndarray:
    copy = room(value.nbytes).view(value.dtype).reshape(value.shape)
    copy[...] = value
    return copy
