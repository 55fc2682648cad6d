"""What dex and class files refer to, read from their bytes: enough to say which methods of Android are called."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

_CALL_SITES = 0x0007  # in the map of a dex file: invoke-custom needs them

Member = tuple[str, str, str]  # class as "Landroid/net/Uri;", name, type or descriptor


class Dex:
    """One ``classes.dex``."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._strings = self._table(0x38, 1)
        self._types = [self._string(index) for (index,) in self._table(0x40, 1)]
        self._protos = self._table(0x48, 3)

    def _table(self, at: int, width: int) -> list[tuple[int, ...]]:
        count, offset = struct.unpack_from("<2I", self._content, at)
        return [struct.unpack_from(f"<{width}I", self._content, offset + 4 * width * i) for i in range(count)]

    def _string(self, index: int) -> str:
        at = self._strings[index][0]
        while self._content[at] & 0x80:
            at += 1
        at += 1
        return self._content[at : self._content.index(b"\0", at)].decode("utf-8", "replace")

    def defined(self) -> set[str]:
        """The classes in the file."""
        count, offset = struct.unpack_from("<2I", self._content, 0x60)
        return {self._types[struct.unpack_from("<I", self._content, offset + 32 * i)[0]] for i in range(count)}

    def members(self) -> Iterator[Member]:
        """Every field and method that is referred to."""
        for at in (0x50, 0x58):
            count, offset = struct.unpack_from("<2I", self._content, at)
            for i in range(count):
                owner, kind, name = struct.unpack_from("<2HI", self._content, offset + 8 * i)
                yield (
                    self._types[owner],
                    self._string(name),
                    self._types[kind] if at == 0x50 else self._descriptor(kind),
                )

    def _descriptor(self, index: int) -> str:
        _, returned, parameters = self._protos[index]
        taken = ""
        if parameters:
            (count,) = struct.unpack_from("<I", self._content, parameters)
            listed = struct.unpack_from(f"<{count}H", self._content, parameters + 4)
            taken = "".join(self._types[each] for each in listed)
        return f"({taken}){self._types[returned]}"

    def types(self) -> list[str]:
        """Every type that is referred to."""
        return list(self._types)

    def has_call_sites(self) -> bool:
        """Whether anything in it is an invoke-custom."""
        (offset,) = struct.unpack_from("<I", self._content, 0x34)
        (count,) = struct.unpack_from("<I", self._content, offset)
        return any(struct.unpack_from("<H", self._content, offset + 4 + 12 * i)[0] == _CALL_SITES for i in range(count))


class Platform:
    """The classes of one version of Android, from a jar of its class files; read one by one as they are asked for."""

    def __init__(self, jar: Path) -> None:
        self._jar = zipfile.ZipFile(jar)
        self._names = set(self._jar.namelist())
        self._classes: dict[str, tuple[set[tuple[str, str]], list[str]]] = {}

    def has_class(self, kind: str) -> bool:
        return f"{kind[1:-1]}.class" in self._names

    def has(self, member: Member) -> bool:
        """Whether a class, or one that it inherits from, has the member."""
        owner, name, descriptor = member
        todo = [owner]
        while todo:
            kind = todo.pop()
            if self.has_class(kind):
                members, parents = self._class(kind)
                if (name, descriptor) in members:
                    return True
                todo += parents
        return False

    def _class(self, kind: str) -> tuple[set[tuple[str, str]], list[str]]:
        if kind not in self._classes:
            self._classes[kind] = _class_file(self._jar.read(f"{kind[1:-1]}.class"))
        return self._classes[kind]


def _class_file(content: bytes) -> tuple[set[tuple[str, str]], list[str]]:
    """Members (name, descriptor) of a class file, and the types that it inherits from."""
    (count,) = struct.unpack_from(">H", content, 8)
    pool: list[str | int] = [""] * count
    at, index = 10, 1
    sizes = {3: 5, 4: 5, 5: 9, 6: 9, 7: 3, 8: 3, 9: 5, 10: 5, 11: 5, 12: 5, 15: 4, 16: 3, 17: 5, 18: 5, 19: 3, 20: 3}
    while index < count:
        tag = content[at]
        if tag == 1:
            (length,) = struct.unpack_from(">H", content, at + 1)
            pool[index] = content[at + 3 : at + 3 + length].decode("utf-8", "replace")
            at += 3 + length
        else:
            if tag == 7:
                (pool[index],) = struct.unpack_from(">H", content, at + 1)
            at += sizes[tag]
        index += 2 if tag in (5, 6) else 1
    _, _, parent, interfaces = struct.unpack_from(">4H", content, at)
    listed = struct.unpack_from(f">{interfaces}H", content, at + 8)
    parents = [f"L{pool[int(pool[each])]};" for each in (parent, *listed) if each]
    at += 8 + 2 * interfaces
    members: set[tuple[str, str]] = set()
    for _ in ("fields", "methods"):
        (number,) = struct.unpack_from(">H", content, at)
        at += 2
        for _ in range(number):
            _, name, descriptor, attributes = struct.unpack_from(">4H", content, at)
            members.add((str(pool[name]), str(pool[descriptor])))
            at += 8
            for _ in range(attributes):
                at += 6 + struct.unpack_from(">I", content, at + 2)[0]
    return members, parents
