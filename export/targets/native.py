"""The native head (edge/runtimes/native_head/): the weight file that a program's numbers are packed into.

A target for heads alone, behind an encoder of any other target. The layout is docs/formats/native-head.md.

Notation: as of :mod:`refocus.edge.runtimes.native_format`; k projections at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from refocus.edge.bundle import encode_tensors
from refocus.edge.runtimes import NATIVE_PRECISIONS, NATIVE_VERSION, SHUFFLE, NativeConfig, NativeWeights
from refocus.export.errors import ExportError
from refocus.export.program.program import TorchProgram
from refocus.export.targets import QUANTISATION, Settings, Written

RUNTIME = "native"
SUFFIX = ".native.safetensors"
PRECISIONS = NATIVE_PRECISIONS
HEADS_ALONE = True

_TILE = 16
_WHAT = {
    "fp32": "",
    "w16": "every matrix int16, a scale per output; of partitioned projections one for the outputs at the same place in"
    " their partitions",
    "w8": "classifiers int8, a scale per output; the other matrices as in w16",
}
Tensors = Mapping[str, np.ndarray]


def write(program: TorchProgram, captured: object, settings: Settings, path: Path) -> Written:
    """Packs a head's numbers into one file.

    Args:
        captured: is not used; the program says itself what it computes.

    Raises:
        ExportError: the program has no native form, or it takes weights of each person.
    """
    native = program.native
    if native is None or program.role != "head" or program.defaults or program.personal or program.external:
        raise ExportError(
            f"--to native:{settings.precision}: only ICIIA heads with attention and without personal weights have a"
            " native form; leave the target out"
        )
    config = native.config._replace(precision=PRECISIONS.index(settings.precision))
    weights = pack(config, {name: value.detach().numpy() for name, value in native.tensors.items()})
    path.write_bytes(b"".join(encode_tensors(weights.tensors())))
    recipe = {QUANTISATION: _WHAT[settings.precision]} if _WHAT[settings.precision] else {}
    return Written(program, {"torch": str(torch.__version__), "layout": str(NATIVE_VERSION)}, None, recipe, not_run())


def min_runtime_version(settings: Settings) -> str:
    return str(NATIVE_VERSION)


def not_run() -> str:
    """Why it cannot be run on this machine; "" if it can."""
    from refocus.edge.errors import RuntimeUnavailable

    try:
        import refocus.edge.runtimes.native  # noqa: F401
    except RuntimeUnavailable as error:
        return f"parity: not run here: {error}"
    return ""


class _Packer:
    """Streams of numbers that grow matrix by matrix."""

    def __init__(self, config: NativeConfig) -> None:
        self.config = config
        self.floats: list[np.ndarray] = []
        self.int16: list[np.ndarray] = []
        self.int8: list[np.ndarray] = []

    def vector(self, value: np.ndarray) -> None:
        """A vector with zeros behind it, up to a whole tile."""
        self.floats.append(_padded(np.ravel(value), 0))

    def matrix(self, weight: np.ndarray, axes: tuple[int, ...], steps: int) -> None:
        """Weights as they lie in the file; scales, the largest of an output over ``axes``, come before the bias.

        Args:
            steps: of an integer, up to which the largest weight is scaled; 0: floating point.
        """
        if not steps:
            self.floats.append(np.ravel(weight))
            return
        largest = np.abs(weight).max(axes, keepdims=True)
        scales = np.maximum(largest / steps, np.finfo(np.float32).tiny).astype(np.float32)
        stream, dtype = (self.int16, np.int16) if steps > 127 else (self.int8, np.int8)
        stream.append(np.ravel(np.rint(weight / scales).astype(dtype)))
        self.vector(scales)

    def dense(self, weight: np.ndarray, bias: np.ndarray, steps: int) -> None:
        """(outputs, inputs) in tiles of outputs: (tiles, inputs, 16)."""
        tiles = _padded(weight, 0).reshape(-1, _TILE, weight.shape[1]).transpose(0, 2, 1)
        self.matrix(tiles, (1,), steps)
        self.vector(bias)

    def projection(self, weight: np.ndarray, bias: np.ndarray, k: int) -> None:
        """(P, k d, d) and (k D,): P partitions side by side in tiles, (k d, tiles, d, 16); fewer than 16 one by one."""
        parts, steps = weight.shape[0], 32767 if self.config.precision else 0
        size = weight.shape[2]
        shape = (k, size, parts) if self.config.flags & SHUFFLE else (k, parts, size)
        in_order = bias.reshape(shape) if self.config.flags & SHUFFLE else bias.reshape(shape).transpose(0, 2, 1)
        by_output = in_order.reshape(k * size, parts)
        if parts < _TILE:
            tiles = [_padded(part, 0).reshape(-1, _TILE, size).transpose(0, 2, 1) for part in weight]
            self.matrix(np.stack(tiles), (2,), steps)
            self.floats.append(np.ravel(_padded(by_output.T, 1)))
            return
        side_by_side = _padded(weight.transpose(1, 2, 0), 2)
        self.matrix(side_by_side.reshape(k * size, size, -1, _TILE).transpose(0, 2, 1, 3), (1, 2, 3), steps)
        self.floats.append(np.ravel(_padded(by_output, 1)))


def _padded(value: np.ndarray, axis: int) -> np.ndarray:
    """With zeros up to a multiple of 16 along an axis."""
    more = [(0, 0)] * value.ndim
    more[axis] = 0, -value.shape[axis] % _TILE
    return np.pad(value, more)


def pack(config: NativeConfig, tensors: Tensors) -> NativeWeights:
    """The numbers of a head in the order in which a run reads them.

    Args:
        tensors: float32. Of layer n ``n.qkv``, ``n.out``, ``n.expand`` and ``n.contract`` with ``.weight`` (P, k d, d)
            and ``.bias`` (k D,), ``n.attention_norm`` and ``n.feed_forward_norm`` with ``.weight`` and ``.bias`` (D,);
            ``trait`` (K, D + S), ``plain`` and ``own`` (C, D) with ``.weight`` and ``.bias``; ``gate.between``,
            ``gate.inside`` and ``gate.log_inside`` (K,), ``gate.expand`` (hidden, 17) and ``gate.decide`` (1, hidden)
            with ``.weight`` and ``.bias``.
    """
    packer, order = _Packer(config), _order(config)
    for kind, name in order:
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        if kind == "projection":
            packer.projection(weight, bias, 3 if name.endswith("qkv") else 1)
        elif kind == "norm":
            packer.vector(weight)
            packer.vector(bias)
        else:
            integer = 127 if kind == "classifier" and PRECISIONS[config.precision] == "w8" else 32767
            packer.dense(weight, bias, integer if config.precision else 0)
    if config.traits:
        for name in ("between", "inside", "log_inside"):
            packer.vector(tensors[f"gate.{name}"])
        packer.floats.append(np.ravel(_padded(tensors["gate.expand.weight"].T, 1)))
        packer.vector(tensors["gate.expand.bias"])
        packer.vector(tensors["gate.decide.weight"])
        packer.vector(tensors["gate.decide.bias"])
    return NativeWeights(
        np.array(config, dtype=np.int64),
        np.concatenate(packer.floats).astype(np.float32),
        np.concatenate([np.empty(0, np.int16), *packer.int16]),
        np.concatenate([np.empty(0, np.int8), *packer.int8]),
    )


def _order(config: NativeConfig) -> Iterator[tuple[str, str]]:
    for n in range(config.layers):
        yield from (("projection", f"{n}.qkv"), ("projection", f"{n}.out"), ("norm", f"{n}.attention_norm"))
        yield from (("projection", f"{n}.expand"), ("projection", f"{n}.contract"), ("norm", f"{n}.feed_forward_norm"))
    if config.traits:
        yield "trait", "trait"
    yield "classifier", "plain"
    if config.classifier:
        yield "classifier", "own"
