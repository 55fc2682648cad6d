"""Named tensors in one file, in the layout of safetensors: any tool of that name reads what is written here.

Eight bytes give the length of a JSON header, the header gives each tensor's type, shape and place, the rest is the
tensors. All of it can be checked before a number is used, nothing in it can run, and arrays over the mapped file need
no memory of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from refocus.edge.bundle.manifest import NOT_JSON, check_members
from refocus.edge.errors import PersonalWeightsError

MAX_HEADER_BYTES = 1024 * 1024  # thousands of tensors
MAX_NAME = 200
MAX_AXES = 32  # of one tensor; numpy from 1.26 on takes as many
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I8": np.dtype("i1"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH_BYTES = 8
_ALIGNMENT = 64  # of the first tensor; the wider types come first, so every other one is aligned for its type
_METADATA = "__metadata__"

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: Literal["F32", "F16", "I64", "I8"]
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=MAX_AXES)]
    data_offsets: tuple[_Size, _Size]


def encode_tensors(tensors: Mapping[str, np.ndarray]) -> list[bytes | memoryview]:
    """The file as parts to be written one after the other; the same tensors always give the same bytes.

    Args:
        tensors: by name; float32, float16, int64 or int8.

    Raises:
        PersonalWeightsError: no tensors, a name or type that the file does not hold, or too many of them.
    """
    if not tensors:
        raise PersonalWeightsError("there are no tensors; personal weights hold at least one")
    header: dict[str, Any] = {}
    parts: list[bytes | memoryview] = []
    end = 0
    for name in sorted(tensors, key=lambda n: (-tensors[n].dtype.itemsize, n)):
        value = tensors[name]
        if not 0 < len(name) <= MAX_NAME or name == _METADATA:
            raise PersonalWeightsError(f"tensor {name[:40]!r}: a name has 1 to {MAX_NAME} characters")
        dtype = value.dtype.newbyteorder("<")
        if dtype not in _NAMES:
            types = ", ".join(map(str, _NAMES))
            raise PersonalWeightsError(f"tensor {name} is {value.dtype}; personal weights hold {types}")
        start, end = end, end + value.nbytes
        header[name] = {"dtype": _NAMES[dtype], "shape": value.shape, "data_offsets": (start, end)}
        parts.append(np.ascontiguousarray(value, dtype=dtype).reshape(-1).view(np.uint8).data)
    text = msgspec.json.encode(header)
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise PersonalWeightsError(f"{len(tensors)} tensors need a header above {MAX_HEADER_BYTES} bytes; join them")
    return [len(text).to_bytes(_LENGTH_BYTES, "little"), text, *parts]


def decode_tensors(content: memoryview, where: str) -> dict[str, np.ndarray]:
    """Read-only arrays over a file's bytes; nothing is copied.

    Args:
        content: the whole file.
        where: named in errors.

    Raises:
        PersonalWeightsError: the bytes are not such a file, or a tensor lies outside it, over another or unaligned.
    """
    start, raw = _header(content, where)
    try:
        places = {name: msgspec.json.decode(value, type=_Place) for name, value in raw.items() if name != _METADATA}
    except NOT_JSON as error:
        raise _not_ours(where, str(error)) from None
    tensors, end = {}, 0
    for name, place in sorted(places.items(), key=lambda item: item[1].data_offsets):
        if not 0 < len(name) <= MAX_NAME or len(place.shape) > MAX_AXES:
            raise _not_ours(
                where,
                f"tensor {name[:MAX_NAME]!r} of {len(place.shape)} axes; names have 1 to {MAX_NAME}"
                f" characters, tensors at most {MAX_AXES} axes",
            )
        dtype, count = DTYPES[place.dtype], math.prod(place.shape)
        begin, previous, end = place.data_offsets[0], end, place.data_offsets[1]
        aligned = (start + begin) % dtype.itemsize == 0
        if begin != previous or end - begin != count * dtype.itemsize or start + end > len(content) or not aligned:
            raise _not_ours(where, f"tensor {name!r} at {place.data_offsets}")
        flat = np.frombuffer(content, dtype, count, start + begin) if count else np.empty(0, dtype)
        try:
            tensors[name] = flat.reshape(place.shape)
        except ValueError as error:  # without a number, and yet too large for numpy
            raise _not_ours(where, f"tensor {name!r}: {error}") from None
        tensors[name].flags.writeable = False
    if start + end != len(content):
        raise _not_ours(where, f"{len(content) - start - end} bytes belong to no tensor")
    return tensors


def metadata_of(content: memoryview, where: str) -> dict[str, str]:
    """What a file's header says beside its tensors.

    Raises:
        PersonalWeightsError: as :func:`decode_tensors`.
    """
    _, raw = _header(content, where)
    try:
        return msgspec.json.decode(raw[_METADATA], type=dict[str, str]) if _METADATA in raw else {}
    except NOT_JSON as error:
        raise _not_ours(where, str(error)) from None


def _header(content: memoryview, where: str) -> tuple[int, dict[str, msgspec.Raw]]:
    """Where the tensors begin, and what the header says of each.

    Raises:
        PersonalWeightsError: there is no such header.
    """
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if not 0 < length <= MAX_HEADER_BYTES or start > len(content):
        raise _not_ours(where, f"a header of {length} bytes in a file of {len(content)}")
    try:
        check_members(bytes(content[_LENGTH_BYTES:start]))
        return start, msgspec.json.decode(content[_LENGTH_BYTES:start], type=dict[str, msgspec.Raw])
    except NOT_JSON as error:
        raise _not_ours(where, str(error)) from None


def _not_ours(where: str, why: str) -> PersonalWeightsError:
    return PersonalWeightsError(f"{where} is no file of tensors ({why}); fetch the weights again")
