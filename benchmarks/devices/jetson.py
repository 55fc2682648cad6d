"""A Jetson: power mode, locked clocks, and what ``tegrastats`` prints of clocks, temperatures and power rails.

The lines differ from board to board and release to release; what is parsed was compared with recorded lines of eight
boards and releases (tests/benchmarks/recorded). Statistics as in NVIDIA's Jetson Linux Developer Guide, "tegrastats".
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from refocus.benchmarks.document.schema import BenchError, Machine, Observation

INTERVAL_MS = 250
# Rails that carry the whole module; where a board has none, the sum of those that are fed side by side.
WHOLE = ("VDD_IN", "POM_5V_IN", "VIN")
SIDE_BY_SIDE = (
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),  # AGX Orin
    ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),  # AGX Xavier
)
_RAM = re.compile(r"\bRAM \d+/\d+MB")
_CPU = re.compile(r"\bCPU \[([^\]]*)\]")
_CORE = re.compile(r"\d+%@(\d+)")
_GPU = re.compile(r"\bGR3D_FREQ (?:(\d+)%)?(?:@\[?(\d+)[\d,]*\]?)?")
_TEMPERATURE = re.compile(r"\b(\w+)@(-?[\d.]+)C")
_RAIL = re.compile(r"\b([A-Z][A-Z0-9_]*) (\d+)(?:mW)?/(\d+)(?:mW)?(?:/\d+mW)?(?=\s|$)")
_NOT_RAILS = frozenset({"RAM", "SWAP", "IRAM"})
_PMIC = "PMIC"  # says 50 or 100 degrees on several boards, whatever the weather
_COLDEST = -40.0  # parts that are switched off say -256 or -45
_CLOCKS_CPU = re.compile(
    r"^cpu(\d+): Online=([01]) Governor=(\S+) MinFreq=(\d+) MaxFreq=(\d+) CurrentFreq=(\d+)", re.MULTILINE
)
_CLOCKS_GPU = re.compile(r"^GPU MinFreq=(\d+) MaxFreq=(\d+) CurrentFreq=(\d+)", re.MULTILINE)
_MODE = re.compile(r"^NV Power Mode: (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Stats:
    """One line of ``tegrastats``.

    Attributes:
        cpu_mhz: of the cores that are on.
        gpu_percent, gpu_mhz: None where the line does not say.
        temperatures_c: by sensor; those that are off are left out.
        rails_mw: power now, by rail.
    """

    cpu_mhz: tuple[int, ...]
    gpu_percent: int | None
    gpu_mhz: int | None
    temperatures_c: dict[str, float]
    rails_mw: dict[str, int]

    @property
    def total_mw(self) -> int | None:
        """Of the whole module; None where the board does not say."""
        for rail in WHOLE:
            if rail in self.rails_mw:
                return self.rails_mw[rail]
        for rails in SIDE_BY_SIDE:
            if all(rail in self.rails_mw for rail in rails):
                return sum(self.rails_mw[rail] for rail in rails)
        return None


def parse_tegrastats(line: str) -> Stats:
    """One line.

    Raises:
        BenchError: it is none of tegrastats.
    """
    cpu = _CPU.search(line)
    if not _RAM.search(line) or not cpu:
        raise BenchError(f"tegrastats printed '{line.strip()[:80]}', expected RAM and CPU in one line; update JetPack")
    gpu = _GPU.search(line)
    rest = line[cpu.end() :]
    return Stats(
        cpu_mhz=tuple(int(clock) for clock in _CORE.findall(cpu[1])),
        gpu_percent=int(gpu[1]) if gpu and gpu[1] else None,
        gpu_mhz=int(gpu[2]) if gpu and gpu[2] else None,
        temperatures_c={
            name: float(value)
            for name, value in _TEMPERATURE.findall(line)
            if name != _PMIC and float(value) > _COLDEST
        },
        rails_mw={name: int(now) for name, now, _ in _RAIL.findall(rest) if name not in _NOT_RAILS},
    )


def parse_nvpmodel(text: str) -> tuple[str, int]:
    """Name and number of the power mode, from ``nvpmodel -q``.

    Raises:
        BenchError: it says no mode.
    """
    mode = _MODE.search(text)
    number = re.search(r"^(\d+)\s*$", text, re.MULTILINE)
    if not mode or not number:
        raise BenchError(
            f"nvpmodel -q printed '{text.strip()[:80]}', expected a power mode and its number; run it as root"
        )
    return mode[1], int(number[1])


@dataclass(frozen=True)
class Clocks:
    """What ``jetson_clocks --show`` prints.

    Attributes:
        locked: whether no clock of a core that is on, nor of the GPU, may move.
        governors: of the cores that are on.
    """

    locked: bool
    governors: tuple[str, ...]
    cpu_mhz: tuple[float, ...]
    gpu_mhz: float | None


def parse_jetson_clocks(text: str) -> Clocks:
    """The clocks and whether they are locked.

    Raises:
        BenchError: there are none in the text.
    """
    cores = [core for core in _CLOCKS_CPU.findall(text) if core[1] == "1"]
    if not cores:
        raise BenchError(
            f"jetson_clocks --show printed '{text.strip()[:80]}', expected a line for each core; run it as root"
        )
    gpu = _CLOCKS_GPU.search(text)
    limits = [(core[3], core[4]) for core in cores] + ([(gpu[1], gpu[2])] if gpu else [])
    return Clocks(
        locked=all(least == most for least, most in limits),
        governors=tuple(sorted({core[2] for core in cores})),
        cpu_mhz=tuple(int(core[5]) / 1000 for core in cores),
        gpu_mhz=int(gpu[3]) / 1e6 if gpu else None,
    )


def describe(machine: Machine) -> Machine:
    """The machine with its power mode and clocks; what needs root and was not given it is said so."""
    extra = dict(machine.extra)
    mode = clocks = ""
    try:
        name, number = parse_nvpmodel(_output("nvpmodel", "-q"))
        mode = f"{name} ({number})"
    except BenchError as error:
        extra["nvpmodel"] = str(error)
    try:
        found = parse_jetson_clocks(_output("jetson_clocks", "--show"))
        clocks = "clocks locked" if found.locked else "clocks not locked: sudo jetson_clocks"
        extra["gpu_mhz"] = f"{found.gpu_mhz or 0:.0f}"
    except BenchError as error:
        extra["jetson_clocks"] = str(error)
    return msgspec.structs.replace(machine, power_mode=", ".join(word for word in (mode, clocks) if word), extra=extra)


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        raise BenchError(f"{command[0]} is not installed; it comes with JetPack")
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # a fixed command
    return done.stdout or done.stderr


class Tegrastats:
    """``tegrastats`` beside a measurement, read by a thread as it prints; also the meter of the module's energy.

    Raises:
        BenchError: entered on a machine that has none.
    """

    command = ("tegrastats", "--interval", str(INTERVAL_MS))

    def __init__(self) -> None:
        self._stats: Stats | None = None
        self._joules, self._at_s = 0.0, 0.0

    def __enter__(self) -> Tegrastats:
        if shutil.which(self.command[0]) is None:
            raise BenchError(f"--device jetson: {self.command[0]} is not here; run this on the Jetson itself")
        self._process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)  # noqa: S603  # a fixed command
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._process:  # waits for it, and closes its output
            self._process.terminate()
        self._reader.join(timeout=2)

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            # A line that was cut short is left out; the next one comes in a quarter of a second.
            with contextlib.suppress(BenchError):
                self.take(line, time.monotonic())

    def take(self, line: str, at_s: float) -> None:
        """One more line, printed at a time: energy is power times the time since the line before."""
        stats = parse_tegrastats(line)
        if self._stats is not None and stats.total_mw is not None:
            self._joules += stats.total_mw / 1000 * (at_s - self._at_s)
        self._stats, self._at_s = stats, at_s

    def observe(self, seen: Observation) -> Observation:
        """Adds the values of the newest tegrastats line to an observation."""
        stats = self._stats
        if stats is None:
            return seen
        return msgspec.structs.replace(
            seen,
            clocks_mhz=tuple(float(clock) for clock in stats.cpu_mhz),
            temperature_c=max(stats.temperatures_c.values(), default=seen.temperature_c),
        )

    @property
    def source(self) -> str:
        """Where the energy comes from, or why there is none; known once tegrastats has printed its first line."""
        if self._stats is None:
            return "not measured: tegrastats has printed nothing yet"
        if self._stats.total_mw is None:
            return "not measured: tegrastats names no rail of the whole module on this board"
        return "power rails of the module (tegrastats)"

    def joules(self, action: Callable[[], object]) -> float | None:
        """Of the whole module while ``action`` ran; None: not measured."""
        before = self._joules
        action()
        return self._joules - before if not self.source.startswith("not") else None
