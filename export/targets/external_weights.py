"""Programs with external weights, in one flat file: which bytes of that file are which tensor.

Programs are written with probes, weights of which no two are alike, and the probes are then looked for. So it is seen,
not assumed, what an exporter or a delegate did to each tensor, and one that was merged with another or computed with
cannot be mistaken for one that was kept.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor, nn

from refocus.edge.bundle import PersonalFile, PersonalTensor, Piece, PlacedTensor, filled
from refocus.export.errors import ExportError

WEIGHTS_BIN = "weights.bin"
_ALIGNMENT = 64
_LIKELY = {2: ((0, 1), (1, 0)), 4: ((0, 1, 2, 3), (0, 2, 3, 1), (1, 2, 3, 0))}
_DTYPES: dict[int, Literal["float32", "float16"]] = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}


@torch.no_grad()
def fill_with_probes(module: nn.Module, names: Collection[str] | None = None) -> None:
    """Random weights, no two alike, of a size that lets numbers pass through the network.

    Args:
        names: of those that are filled; default: all.
    """
    generator = torch.Generator().manual_seed(0)
    for name, value in itertools.chain(module.named_parameters(), module.named_buffers()):
        if value.is_floating_point() and (names is None or name in names):
            fan_in = max(1, value[0].numel() if value.dim() > 1 else 1)
            value.copy_(torch.randn(value.shape, generator=generator) / fan_in**0.5)
            if name.endswith("running_var"):
                value.copy_(value.square() + 0.5)


def probes(module: nn.Module, external: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Tensors of a module that are stored as external weights, by their external names."""
    state = module.state_dict()
    return {placed: state[name].detach().numpy() for name, placed in external.items()}


def _orders(dimensions: int) -> Iterable[tuple[int, ...]]:
    likely = _LIKELY.get(dimensions, ())
    return [*likely, *(order for order in itertools.permutations(range(dimensions)) if order not in likely)]


def found_in(content: bytes, tensors: Mapping[str, np.ndarray], what: str) -> Iterator[PlacedTensor]:
    """Where each tensor lies in a weight file, as it is or with its axes in another order.

    Raises:
        ExportError: one is not there exactly once, so nobody could put another person's in its place.
    """
    for name, value in tensors.items():
        place = _sought(content, value)
        if place is None:
            raise _not_found(name, what)
        yield PlacedTensor(name=name, offset=place[0], dtype="float32", axes=place[1])


def _sought(content: bytes, value: np.ndarray) -> tuple[int, tuple[int, ...]] | None:
    """Offset and order of axes of a tensor that is in a file exactly once."""
    for axes in _orders(value.ndim):
        encoded = np.ascontiguousarray(value.transpose(axes)).tobytes()
        offset = content.find(encoded)
        if offset >= 0 and content.find(encoded, offset + 1) < 0:
            return offset, axes
    return None


def places_in(content: bytes, tensors: Mapping[str, Tensor], what: str) -> Iterator[PersonalTensor]:
    """Where a weight file has each tensor that is a person's own, whole or taken apart along its first axis.

    Raises:
        ExportError: as of :func:`found_in`.
    """
    for name, tensor in tensors.items():
        value = tensor.detach().numpy()
        for cuts in _cuts(value):
            placed = [_sought(content, value[first:last]) for first, last in cuts]
            if all(placed):
                pieces = [
                    Piece(first=first, last=last, offset=place[0], dtype="float32", axes=place[1])
                    for (first, last), place in zip(cuts, filter(None, placed), strict=True)
                ]
                yield PersonalTensor(name=name, shape=value.shape, pieces=tuple(pieces))
                break
        else:
            raise _not_found(name, what)


def as_personal(placed: Iterable[PlacedTensor], tensors: Mapping[str, Tensor]) -> Iterator[PersonalTensor]:
    """The same for tensors that a program has whole."""
    for place in placed:
        shape = tuple(tensors[place.name].shape)
        if place.dtype == "int8":
            raise ExportError(f"{place.name} in w8: no person's tensor could be put in its place")
        piece = Piece(first=0, last=shape[0], offset=place.offset, dtype=place.dtype, axes=place.axes)
        yield PersonalTensor(name=place.name, shape=shape, pieces=(piece,))


def fill(folder: Path, file: PersonalFile, tensors: Mapping[str, Tensor]) -> None:
    """Puts numbers where probes are, by the code that a device puts a person's with."""
    path = folder / file.file
    values = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    path.write_bytes(filled(path.read_bytes(), file, values, str(path)).tobytes())


def digests(tensors: Mapping[str, Tensor]) -> set[bytes]:
    """Of the bytes of all tensors, and of what they may be taken apart into."""
    values = [tensor.detach().numpy() for tensor in tensors.values()]
    return {digest(value[first:last]) for value in values for cuts in _cuts(value) for first, last in cuts}


def digest(value: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()


def _cuts(value: np.ndarray) -> list[list[tuple[int, int]]]:
    """Whole; in thirds, as query, key and value; in halves, as a prefix's keys and values."""
    rows = len(value)
    return [
        [(number * rows // parts, (number + 1) * rows // parts) for number in range(parts)]
        for parts in (1, 3, 2)
        if rows % parts == 0
    ]


def _not_found(name: str, what: str) -> ExportError:
    return ExportError(
        f"{what}: the weights {name} are not in its weight file exactly once, so a personal model could not be put in"
        " their place; leave this target out"
    )


def externalise(
    model: onnx.ModelProto, tensors: Mapping[str, np.ndarray], folder: Path, what: str, int8: bool = False
) -> tuple[PlacedTensor, ...]:
    """Moves tensors out of an ONNX model into ``weights.bin``, in the order of ``tensors``.

    Args:
        int8: those of two and more dimensions as int8, with a scale for each row of the first one; the program
            multiplies them out when it is loaded.

    Raises:
        ExportError: as of :func:`found_in`.
    """
    stored = {t.name: (t, numpy_helper.to_array(t)) for t in model.graph.initializer if t.data_type in _DTYPES}
    placed, position = [], 0
    with (folder / WEIGHTS_BIN).open("wb") as stream:
        for name, value in tensors.items():
            matches = [(t, array, axes) for t, array in stored.values() if (axes := _match(value, array)) is not None]
            if len(matches) != 1:
                raise _not_found(name, what)
            [(tensor, array, axes)] = matches
            position += stream.write(bytes(-position % _ALIGNMENT))
            if int8 and value.ndim > 1:
                scales = position + array.size + -array.size % _ALIGNMENT
                _multiply_out(model, tensor, axes.index(0), position, scales)
                placed.append(PlacedTensor(name=name, offset=position, dtype="int8", axes=axes, scales=scales))
                # No numbers yet: those of the generic model are put here by the code that a device condenses with.
                position += stream.write(bytes(scales + 4 * len(value) - position))
                continue
            _put_outside(tensor, position, array.nbytes)
            placed.append(PlacedTensor(name=name, offset=position, dtype=_DTYPES[tensor.data_type], axes=axes))
            position += stream.write(array.tobytes())
    return tuple(placed)


def _multiply_out(model: onnx.ModelProto, tensor: TensorProto, axis: int, offset: int, scales: int) -> None:
    """Puts an int8 tensor and its scales, both outside, and their product in the place of a tensor."""
    name, size, count = tensor.name, int(np.prod(tensor.dims)), tensor.dims[axis]
    tensor.name, tensor.data_type = f"{name}.int8", TensorProto.INT8
    _put_outside(tensor, offset, size)
    factors = model.graph.initializer.add(name=f"{name}.scales", data_type=TensorProto.FLOAT, dims=[count])
    _put_outside(factors, scales, 4 * count)
    inputs = [tensor.name, factors.name]
    model.graph.node.insert(0, onnx.helper.make_node("DequantizeLinear", inputs, [name], f"{name}.product", axis=axis))


def _match(value: np.ndarray, stored: np.ndarray) -> tuple[int, ...] | None:
    if value.size != stored.size or value.ndim != stored.ndim:
        return None
    for axes in _orders(value.ndim):
        turned = value.transpose(axes)
        if turned.shape == stored.shape and np.array_equal(turned.astype(stored.dtype), stored):
            return axes
    return None


def _put_outside(tensor: TensorProto, offset: int, length: int) -> None:
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.ClearField("int32_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS_BIN), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
