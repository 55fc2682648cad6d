"""Makes Android's own libraries of ONNX Runtime loadable on a desktop's Linux, to run what phones run without a phone.

Their sections of symbol versions are dropped, names that mean something else in glibc are changed, and what glibc lacks
comes from ``bionic.c``. Not one instruction of the runtime is changed. Needs gcc, and for arm64 gcc-aarch64-linux-gnu.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from catalog import DemoError, android_runtime, versions

COMPILERS = {"x86_64": "gcc", "arm64-v8a": "aarch64-linux-gnu-gcc"}
LIBRARIES = ("libonnxruntime.so", "libonnxruntime4j_jni.so")
_TOOLS = Path(__file__).resolve().parent
_NEEDED, _DYNAMIC, _DYNSYM = 1, 6, 11
_VERSIONS = {0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF}  # VERSYM, VERDEF(NUM), VERNEED(NUM)
_KEPT = {b"libc.so", b"libonnxruntime.so"}  # of the libraries asked for; libc.so is bionic.c, with glibc's behind it
_SYMBOL = struct.Struct("<IBBHQQ")
# In bionic.c their first letter is a "B".
_RENAMED = frozenset(
    b"sysconf sigfillset strerror_r fflush fputc fputs fputwc fwrite fprintf vfprintf pthread_create pthread_attr_init"
    b" pthread_attr_setstacksize pthread_mutex_init pthread_cond_signal pthread_cond_broadcast pthread_cond_wait"
    b" pthread_cond_timedwait pthread_cond_destroy".split()
)


def prepare(archive: Path, abi: str, folder: Path) -> Path:
    """Writes loadable copies of an archive's libraries, and the ``libc.so`` and ``libm.so`` that they ask for.

    Args:
        archive: ONNX Runtime's Android archive (AAR).
        abi: of :data:`COMPILERS`.
        folder: made if it is missing; to be named in ``LD_LIBRARY_PATH``.

    Returns:
        the folder.

    Raises:
        DemoError: no compiler, or a library that is not as expected.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as aar:
        for name in LIBRARIES:
            (folder / name).write_bytes(loadable(aar.read(f"jni/{abi}/{name}")))
        for name in aar.namelist():
            if name.startswith("headers/") and name.endswith(".h"):
                (folder / Path(name).name).write_bytes(aar.read(name))
    for name, source in (("libc.so", _TOOLS / "bionic.c"), ("libm.so", os.devnull)):
        command = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, "-x", "c", source]
        compile_c(abi, *command, "-Wl,--no-as-needed", "-lm")
    return folder


def compile_c(abi: str, *arguments: object) -> None:
    """Runs the compiler of an ABI.

    Raises:
        DemoError: it is missing, or refuses.
    """
    compiler = COMPILERS[abi]
    if shutil.which(compiler) is None:
        raise DemoError(f"{compiler} is missing; Debian: apt install gcc gcc-aarch64-linux-gnu")
    command = [compiler, "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise DemoError(f"{compiler} failed:\n{done.stderr[-4000:]}")


def loadable(library: bytes) -> bytes:
    """A library of Android's without symbol versions, whose undefined symbols are called as ``bionic.c`` calls them.

    Raises:
        DemoError: not a 64-bit ELF library with a table of sections, or a name is the end of another one.
    """
    content = bytearray(library)
    sections = _sections(content)
    if not sections.keys() >= {_DYNAMIC, _DYNSYM}:
        raise DemoError("not a 64-bit ELF library with a table of sections")
    strings = sections[_DYNSYM].strings
    _drop_versions(content, sections[_DYNAMIC], strings)
    for name, _, _, section, *_ in _entries(content, sections[_DYNSYM], "<IBBHQQ"):
        if section == 0 and _string(content, strings + name) in _RENAMED:
            if content[strings + name - 1]:
                raise DemoError(f"{_string(content, strings + name).decode()} is the end of another name")
            content[strings + name : strings + name + 1] = b"B"
    return bytes(content)


def symbols(library: bytes) -> tuple[set[str], set[str]]:
    """Names that a library defines for others, and names that it takes from others.

    Raises:
        DemoError: not a 64-bit ELF library with a table of sections.
    """
    content = bytearray(library)
    table = _sections(content).get(_DYNSYM)
    if table is None:
        raise DemoError("not a 64-bit ELF library with a table of sections")
    found: tuple[set[str], set[str]] = (set(), set())
    for name, _, _, section, *_ in _entries(content, table, "<IBBHQQ"):
        if name:
            found[section == 0].add(_string(content, table.strings + name).decode())
    return found


def _drop_versions(content: bytearray, dynamic: Section, strings: int) -> None:
    """Takes out of the dynamic section what speaks of versions, and libraries that are not in :data:`_KEPT`."""
    entries = _entries(content, dynamic, "<2Q")
    kept = [(tag, value) for tag, value in entries
            if tag not in _VERSIONS and (tag != _NEEDED or _string(content, strings + value) in _KEPT)]  # fmt: skip
    kept += [(0, 0)] * (len(entries) - len(kept))
    for number, entry in enumerate(kept):
        struct.pack_into("<2Q", content, dynamic.start + 16 * number, *entry)


@dataclass(frozen=True)
class Section:
    """Where a section of an ELF file is, in bytes from its start, and where the strings are that it refers to."""

    start: int
    size: int
    strings: int


def _sections(content: bytearray) -> dict[int, Section]:
    """Sections by type; of a type that is there more than once, the last."""
    if content[:5] != b"\x7fELF\2":
        return {}
    (table,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<2H", content, 58)
    headers = [struct.unpack_from("<2I4Q2I2Q", content, table + size * i) for i in range(count)]
    return {header[1]: Section(header[4], header[5], headers[header[6]][4]) for header in headers}


def _entries(content: bytearray, section: Section, form: str) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack(form, content[section.start : section.start + section.size]))


def _string(content: bytearray, at: int) -> bytes:
    return bytes(content[at : content.index(0, at)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("abi", choices=COMPILERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runtime", type=Path, help="AAR of onnxruntime-android; default: Maven's or npm's")
    given = parser.parse_args(arguments)
    try:
        prepare(given.runtime or android_runtime(versions()), given.abi, given.folder)
    except DemoError as error:
        sys.stderr.write(f"desktop_runtime: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
