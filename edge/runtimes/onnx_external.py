"""What an ONNX file keeps outside itself, read without the onnx package, which is no part of a device.

Only the tensors that a graph declares are looked at: their names, types, shapes and the files they are said to be in.
ONNX Runtime takes others in their place, but its own refusals do not say which tensor did not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edge.errors import BundleError

# Numbers of fields and values in onnx.proto.
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _NAME, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 8, 13, 14
_KEY, _VALUE = 1, 2
_EXTERNAL = 1
_DTYPES = {1: "float32", 3: "int8", 7: "int64", 10: "float16"}


@dataclass(frozen=True)
class External:
    """One tensor that a graph keeps elsewhere.

    Attributes:
        dtype: numpy's name; the number ONNX gives it where personal weights cannot hold that type.
        location: file that holds it, relative to the program.
        offset: of its first byte there.
    """

    dtype: str
    shape: tuple[int, ...]
    location: str
    offset: int = 0


def external_tensors(content: bytes, where: str) -> dict[str, External]:
    """The external tensors of a model's main graph, by name.

    Raises:
        BundleError: the bytes are no ONNX file; ``where`` names it.
    """
    found = {}
    try:
        for graph in _messages(memoryview(content), _MODEL_GRAPH):
            for initializer in _messages(graph, _GRAPH_INITIALIZER):
                name, tensor, is_external = _tensor(initializer)
                if is_external:
                    found[name] = tensor
    except (IndexError, UnicodeDecodeError, ValueError):
        raise BundleError(f"{where} is no program for onnxruntime: it is not ONNX; fetch the bundle again") from None
    return found


def _tensor(message: memoryview) -> tuple[str, External, bool]:
    name, dtype, place, is_external = "", 0, {"location": "", "offset": "0"}, False
    shape: list[int] = []
    for field, value in _fields(message):
        if field == _DIMS:
            shape += [value] if isinstance(value, int) else _varints(value)
        elif field == _DATA_TYPE and isinstance(value, int):
            dtype = value
        elif field == _DATA_LOCATION:
            is_external = value == _EXTERNAL
        elif field == _NAME and not isinstance(value, int):
            name = str(value, "utf-8")
        elif field == _EXTERNAL_DATA and not isinstance(value, int):
            entry = {key: str(text, "utf-8") for key, text in _fields(value) if not isinstance(text, int)}
            place[entry.get(_KEY, "")] = entry.get(_VALUE, "")
    found = External(_DTYPES.get(dtype, f"ONNX type {dtype}"), tuple(shape), place["location"], int(place["offset"]))
    return name, found, is_external


def _messages(message: memoryview, wanted: int) -> Iterator[memoryview]:
    for field, value in _fields(message):
        if field == wanted and not isinstance(value, int):
            yield value


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field: an integer, or the bytes of a string, message or packed list."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            value, position = _varint(message, position)
            yield field, value
            continue
        if kind == 2:
            length, position = _varint(message, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if position + length > len(message):
            raise ValueError("a field ends behind its message")
        yield field, message[position : position + length]
        position += length


def _varints(packed: memoryview) -> list[int]:
    values, position = [], 0
    while position < len(packed):
        value, position = _varint(packed, position)
        values.append(value)
    return values


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number of more than ten bytes")
