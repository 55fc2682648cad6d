"""What an ONNX file keeps outside itself, read without the onnx package, which is not part of a device.

Operators that make ONNX Runtime read files, or crash, are refused on the way.

ONNX Runtime would read external tensors from files by itself, wherever in a model they are declared. Refocus gives it
the contents of verified files instead, which is possible for the initializers of the main graph alone; a model that
declares an external tensor anywhere else is refused. Numbers are cut to the 32 bits that protobuf's own readers keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from refocus.edge.errors import BundleError

# Numbers of fields in onnx.proto, and of those of its messages that can hold a tensor.
_DIMS, _DATA_TYPE, _NAME, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 8, 13, 14
_KEY, _VALUE = 1, 2
_INPUT, _OP_TYPE = 1, 4
_HOLDS: dict[str, dict[int, str]] = {
    "model": {7: "main graph", 20: "training", 25: "function"},
    "main graph": {1: "node", 5: "initializer", 15: "sparse tensor"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "function": {7: "node", 11: "attribute"},
    "training": {1: "graph", 2: "graph"},
}
_EXTERNAL = 1
_READS_FILES = b"EPContext"  # an operator that names a file of compiled code
# Operators of any number of inputs, with which ONNX Runtime (seen: 1.28) crashes where one but the first is missing.
_NEEDS_ALL_INPUTS = (b"Sum", b"Max", b"Min", b"Mean")
_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
}
MAX_DEPTH = 64  # messages inside one another; a graph in a graph takes three
MAX_FIELDS = 2_000_000  # looked at in one model


@dataclass(frozen=True)
class External:
    """One tensor that a graph keeps elsewhere.

    Attributes:
        dtype: numpy's name; the number ONNX gives it where numpy has no such type.
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
        BundleError: the bytes are not ONNX file (``where`` names it), are nested too deep or have too many parts; or
            the model names a file anywhere else.
    """
    try:
        return _Walk(where).external(memoryview(content))
    except (IndexError, UnicodeDecodeError, ValueError):
        raise BundleError(f"{where} is not a program for onnxruntime: it is not ONNX; fetch the bundle again") from None


class _Walk:
    """One pass over all messages of a model that can hold a tensor."""

    def __init__(self, where: str) -> None:
        self._where, self._left = where, MAX_FIELDS
        self._found: dict[str, External] = {}
        self._names: set[str] = set()

    def external(self, model: memoryview) -> dict[str, External]:
        waiting = [("model", model, 0)]
        while waiting:
            kind, message, depth = waiting.pop()
            if depth > MAX_DEPTH:
                raise self._refused(f"its graphs are nested more than {MAX_DEPTH} levels deep")
            if kind == "initializer":
                self._initializer(message)
            elif kind == "tensor":
                if self._tensor(message)[2]:
                    raise self._refused("it keeps a tensor outside itself that is not an initializer of its main graph")
            else:
                waiting += [(held, part, depth + 1) for held, part in self._held(kind, message)]
        return self._found

    def _held(self, kind: str, message: memoryview) -> Iterator[tuple[str, memoryview]]:
        holds, operator, lacks_input = _HOLDS[kind], b"", False
        for field, value in self._fields(message):
            if isinstance(value, int):
                continue
            if kind == "node" and field == _OP_TYPE:
                operator = bytes(value)
            elif kind == "node" and field == _INPUT:
                lacks_input |= not value
            if field in holds:
                yield holds[field], value
        if operator == _READS_FILES:
            raise self._refused("it holds the operator EPContext, which reads a file of compiled code")
        if lacks_input and operator in _NEEDS_ALL_INPUTS:
            raise self._refused(f"an input of an operator {operator.decode()} is missing")

    def _initializer(self, message: memoryview) -> None:
        name, tensor, is_external = self._tensor(message)
        if name in self._names and (is_external or name in self._found):
            raise self._refused(f"two of its initializers are called {name[:80]!r}")
        self._names.add(name)
        if is_external:
            self._found[name] = tensor

    def _tensor(self, message: memoryview) -> tuple[str, External, bool]:
        name, dtype, place, is_external = "", 0, {"location": "", "offset": "0"}, False
        shape: list[int] = []
        for field, value in self._fields(message):
            if field == _DIMS:
                shape += [value] if isinstance(value, int) else self._varints(value)
            elif field == _DATA_TYPE and isinstance(value, int):
                dtype = _int32(value)
            elif field == _DATA_LOCATION and isinstance(value, int):
                is_external = _int32(value) == _EXTERNAL
            elif field == _NAME and not isinstance(value, int):
                name = str(value, "utf-8")
            elif field == _EXTERNAL_DATA and not isinstance(value, int):
                entry = {key: str(text, "utf-8") for key, text in self._fields(value) if not isinstance(text, int)}
                place[entry.get(_KEY, "")] = entry.get(_VALUE, "")
        offset = _offset(place["offset"]) if is_external else 0
        found = External(_DTYPES.get(dtype, f"ONNX type {dtype}"), tuple(shape), place["location"], offset)
        return name, found, is_external

    def _fields(self, message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
        """Number and value of each field: an integer, or the bytes of a string, message or packed list."""
        # Numbers of one byte, nearly all, are read here: a model has thousands, and a call for each would be felt.
        position, end = 0, len(message)
        while position < end:
            self._left -= 1
            if self._left < 0:
                raise self._refused(f"it has more than {MAX_FIELDS} parts")
            tag = message[position]
            position += 1
            if tag >= 0x80:
                tag, position = _varint(message, position - 1)
            field, kind = (tag & 0xFFFFFFFF) >> 3, tag & 7
            if kind in (0, 2):
                length = message[position]
                position += 1
                if length >= 0x80:
                    length, position = _varint(message, position - 1)
                if kind == 0:
                    yield field, length
                    continue
            elif kind in (1, 5):
                length = 8 if kind == 1 else 4
            else:
                raise ValueError(f"protobuf wire type {kind} is not supported")
            if position + length > end:
                raise ValueError("a field ends behind its message")
            yield field, message[position : position + length]
            position += length

    def _varints(self, packed: memoryview) -> list[int]:
        values, position = [], 0
        while position < len(packed):
            self._count()
            value, position = _varint(packed, position)
            values.append(value)
        return values

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise self._refused(f"it has more than {MAX_FIELDS} parts")

    def _refused(self, why: str) -> BundleError:
        return BundleError(f"{self._where} is not a program for onnxruntime: {why}; export it again")


def _int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(f"offset {text[:40]}")
    return int(text)


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    byte = message[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while shift < 70:
        position += 1
        byte = message[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position + 1
        shift += 7
    raise ValueError("a number of more than ten bytes")
