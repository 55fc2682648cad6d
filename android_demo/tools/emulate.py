"""Runs a bundle on Android's own arm64 library of ONNX Runtime, on processors that QEMU emulates.

The library of the APK computes; photos, histories and the comparison are those of ``edge``. Prints how far each
processor is from golden vectors (``golden.py write BUNDLE FOLDER``). Needs qemu-user-static and
gcc-aarch64-linux-gnu.
"""

from __future__ import annotations

import argparse
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from catalog import DEMO, DemoError, android_runtime, versions
from desktop_runtime import compile_c, prepare
from golden import FEATURE_TOLERANCE, compare_golden, read_golden
from results import manifest_sha256, write_document

from refocus.edge.bundle.load import Bundle, load_bundle
from refocus.edge.errors import BundleError, RefocusError, RuntimeUnavailable
from refocus.edge.recognize.check import check
from refocus.edge.runtimes.base import RUNTIMES, Program, Source
from refocus.edge.runtimes.placement import Part

QEMU = "qemu-aarch64-static"
ABI = "arm64-v8a"
VERSION = versions()["onnxruntime"]  # what a module of a runtime has; edge compares it with the bundle's
# Processors as QEMU names them, and what /proc/cpuinfo calls them: implementer and part.
PROCESSORS = {
    "cortex-a53": (0x41, 0xD03),
    "cortex-a76": (0x41, 0xD0B),
    "neoverse-n1": (0x41, 0xD0C),
    "a64fx": (0x46, 0x001),
    "max,sme=off": (0x41, 0xD4F),  # everything that QEMU can emulate, called a Neoverse V2
    "max": (0x41, 0xD4F),
}
_CROSS = Path("/usr/aarch64-linux-gnu")  # libraries of Debian's cross compiler
_TYPES = {"float32": 1, "int64": 7}  # ONNX's numbers


def command(processor: str, root: Path, environment: dict[str, str], program: Path) -> list[str]:
    """What runs a program for Linux on arm64 on an emulated processor.

    Args:
        root: folder of its system's files; what it has there it sees in place of this machine's. Written into:
            ``proc/cpuinfo``, without which ONNX Runtime takes this machine's processor for its own.
        environment: variables beside this process' own.

    Raises:
        DemoError: QEMU is missing.
    """
    if shutil.which(QEMU) is None:
        raise DemoError(f"{QEMU} is missing; Debian: apt install qemu-user-static")
    implementer, part = PROCESSORS[processor]
    (root / "proc").mkdir(exist_ok=True)
    lines = (f"processor\t: {number}\nFeatures\t: fp asimd\nCPU implementer\t: {implementer:#x}\nCPU architecture: 8\n"
             f"CPU variant\t: 0x0\nCPU part\t: {part:#05x}\nCPU revision\t: 0\n\n" for number in range(2))  # fmt: skip
    (root / "proc" / "cpuinfo").write_text("".join(lines), encoding="utf-8")
    given = [word for name, value in environment.items() for word in ("-E", f"{name}={value}")]
    return [QEMU, "-cpu", processor, "-L", str(root), *given, str(program)]


def build(folder: Path) -> Path:
    """Makes the APK's libraries loadable on Linux, and compiles the process that runs programs on them.

    Raises:
        DemoError: a tool or the archive is missing.
    """
    if not _CROSS.is_dir():
        raise DemoError(f"{_CROSS} is missing; Debian: apt install gcc-aarch64-linux-gnu")
    prepare(android_runtime(versions()), ABI, folder)
    compile_c(ABI, "-I", folder, "-o", folder / "server", DEMO / "tools" / "ort_server.c")
    return folder


@dataclass(frozen=True)
class Machine:
    """A processor with Android's library.

    Attributes:
        folder: what :func:`build` made.
        processor: of :data:`PROCESSORS`.
        entries: of each session.
    """

    folder: Path
    processor: str
    entries: dict[str, str] = field(default_factory=dict)

    def start(self, program: Path) -> subprocess.Popen[bytes]:
        """A process that holds one program loaded."""
        root = self.folder / f"root-{self.processor}"
        root.mkdir(exist_ok=True)
        if not (root / "lib").is_symlink():
            (root / "lib").symlink_to(_CROSS / "lib")
        line = command(self.processor, root, {"LD_LIBRARY_PATH": f"{self.folder}:/lib"}, self.folder / "server")
        line += [str(program), *(f"{key}={value}" for key, value in self.entries.items())]
        return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


_machine: Machine | None = None


@contextmanager
def running_on(machine: Machine) -> Iterator[None]:
    """Inside, ``edge`` runs programs for ONNX Runtime on that machine."""
    global _machine
    before = RUNTIMES["onnxruntime"]
    RUNTIMES["onnxruntime"], _machine = (__name__, "cpu"), machine
    try:
        yield
    finally:
        RUNTIMES["onnxruntime"], _machine = before, None


class Loaded(Program):
    """A program in a process of its own; see ``ort_server.c`` for what is said between the two."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        if _machine is None:
            raise RuntimeUnavailable("no machine was chosen; use running_on")
        self._machine = _machine
        self._file = tempfile.NamedTemporaryFile(dir=_machine.folder, suffix=".onnx")  # noqa: SIM115  # until close
        self._file.write(source.program("program.onnx"))  # what was verified
        self._file.flush()
        self._process = _machine.start(Path(self._file.name))
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeUnavailable("the process has no pipes")
        self._to, self._from = self._process.stdin, self._process.stdout
        self._refuse_error()

    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        names = [tensor.name for tensor in self.artifact.outputs]
        question = [struct.pack("<i", len(inputs))]
        for name, value in inputs.items():
            form = struct.pack(f"<2i{value.ndim}q", _TYPES[value.dtype.name], value.ndim, *value.shape)
            question += [_text(name), form, np.ascontiguousarray(value).tobytes()]
        self._to.write(b"".join([*question, struct.pack("<i", len(names)), *map(_text, names)]))
        self._to.flush()
        self._refuse_error()
        return [self._output(tensor.shape) for tensor in self.artifact.outputs]

    def _output(self, shape: Sequence[int | str]) -> np.ndarray:
        (size,) = struct.unpack("<q", self._read(8))
        numbers = np.frombuffer(self._read(size), dtype=np.float32)
        return numbers.reshape([n if isinstance(n, int) else -1 for n in shape]).copy()

    def _refuse_error(self) -> None:
        (length,) = struct.unpack("<i", self._read(4))
        if length:
            raise BundleError(f"{self.artifact.file}: {self._read(length).decode()}")

    def _read(self, size: int) -> bytes:
        found = self._from.read(size)
        if len(found) != size:
            raise RuntimeUnavailable(f"the process on {self._machine.processor} ended with {self._process.wait()}")
        return found

    def ran_on(self) -> str:
        return f"{self._machine.processor}, emulated"

    def placement(self) -> tuple[Part, ...]:
        raise ValueError("a program on an emulated processor has no profile; measure placement on this machine's own")

    def numeric_path(self) -> str:
        entries = "".join(f", {name} {value}" for name, value in self._machine.entries.items())
        return f"onnxruntime {VERSION}, {self.ran_on()}{entries}"

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.communicate()
        self._file.close()

    def __del__(self) -> None:
        self.close()


def _text(name: str) -> bytes:
    return struct.pack("<i", len(name.encode())) + name.encode()


def judge(machine: Machine, bundle: Bundle, golden: Path) -> dict[str, Any]:
    """How far a processor is from golden vectors, and whether the bundle's own self-test passes there."""
    answers = sum(len(sequence.steps) + len(sequence.album) for sequence in read_golden(golden)[0].sequences)
    with running_on(machine):
        found = compare_golden(bundle, golden)
        refused = any(row.failures for row in check(bundle))
    return {
        "processor": machine.processor,
        "entries": machine.entries,
        "answers": answers,
        "same": answers - found.decisions,
        "features": found.features,
        "passed": not found.decisions and found.features <= FEATURE_TOLERANCE,
        "self_test_passed": not refused,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("golden", type=Path, help="golden vectors that the bundle wrote")
    parser.add_argument("--processor", choices=PROCESSORS, action="append", help="default: all")
    parser.add_argument("--entry", action="append", default=[], metavar="KEY=VALUE", help="of the sessions")
    parser.add_argument("--control", action="store_true", help="also the processor with SME without the entries")
    parser.add_argument("--document", type=Path, help="where a result document is written")
    given = parser.parse_args(arguments)
    entries, rows = dict(entry.split("=", 1) for entry in given.entry), []
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder, bundle = build(Path(scratch)), load_bundle(given.bundle)
            machines = [Machine(folder, processor, entries) for processor in given.processor or PROCESSORS]
            if given.control and entries:
                machines.append(Machine(folder, "max", {}))
            for machine in machines:
                rows.append(judge(machine, bundle, given.golden))
                sys.stdout.write(_line(rows[-1]))
    except (DemoError, RefocusError) as error:
        sys.stderr.write(f"emulate: {error}\n")
        return 1
    if given.document is not None:
        about = {"bundle": bundle.manifest.name, "bundle_sha256": manifest_sha256(given.bundle), "library": VERSION}
        words = [f"--entry {entry}" for entry in given.entry] + ["--control"] * given.control
        command = f"python android_demo/tools/emulate.py BUNDLE GOLDEN {' '.join(words)}"
        write_document(given.document, "android_processors", about, rows, command)
    return 0 if all(row["passed"] for row in rows if row["entries"] == entries) else 1


def _line(row: dict[str, Any]) -> str:
    name = row["processor"] + ("" if row["entries"] else " without session entries")
    verdict = "passed" if row["self_test_passed"] else "refuses the bundle"
    return (
        f"{name}: {row['same']} of {row['answers']} answers as written, features within {row['features']:.1e},"
        f" self-test {verdict}{'' if row['passed'] else ': WRONG'}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
