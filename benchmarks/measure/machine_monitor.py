"""Looks at the machine while something is timed: other programs, clocks, temperature, throttling.

What a machine does not say is None, and a verdict never rests on it. Everything is read from ``/proc`` and ``/sys``
below a root, so that recorded machines can be tested.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from refocus.benchmarks.document.schema import BenchError, Observation, Start

EVERY_S = 0.25  # an observation takes well below a millisecond, so it costs less than 0.4 % of the time
WAIT_S = 1.0  # between two looks while the device cools
_WORK = bytes(32 * 1024)
_TRIES = 5
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


# Cooling devices of Linux that slow what computes; fans are cooling devices too.
_SLOWING = ("Processor", "cpufreq", "cpu-", "thermal-cpufreq", "devfreq", "thermal-devfreq", "gpu", "intel_powerclamp")


@dataclass(frozen=True)
class StartBelow:
    """Begin a row only when the warmest sensor is below a temperature.

    Attributes:
        celsius: the temperature.
        within_s: give up after so long; the row is measured all the same, and its verdict says so.
    """

    celsius: float
    within_s: float = 600.0


class MachineMonitor:
    """Observations of one run.

    Args:
        every_s: time between two of them.
        root: where ``proc`` and ``sys`` are.
        extra: a device's own eyes: what it returns replaces what is read here.
        start_below: wait for a cool device before each run.

    Attributes:
        waited: the last such wait; None where none was asked for.
    """

    def __init__(
        self,
        every_s: float = EVERY_S,
        root: Path = Path("/"),
        extra: Callable[[Observation], Observation] | None = None,
        start_below: StartBelow | None = None,
    ) -> None:
        self._every_ns, self._root, self._extra, self._start_below = int(every_s * 1e9), root, extra, start_below
        self.waited: Start | None = None
        self._found: list[Observation] = []
        self._started_ns = self._next_ns = 0
        self._clocks = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self._zones = sorted(root.glob("sys/class/thermal/thermal_zone*/temp")) or sorted(
            root.glob("sys/class/hwmon/hwmon*/temp*_input")
        )
        self._cooling = [
            path.with_name("cur_state")
            for path in sorted(root.glob("sys/class/thermal/cooling_device*/type"))
            if read_text(path).startswith(_SLOWING)
        ]
        self._throttles = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count"))

    @property
    def observations(self) -> tuple[Observation, ...]:
        """So far, in order."""
        return tuple(self._found)

    def wait_until_cool(self) -> None:
        """Waits until the device is as cool as was asked for, or the time for it is over.

        Raises:
            BenchError: the machine does not say its temperature.
        """

        def warmest() -> float | None:
            self.start()
            return self._found[0].temperature_c

        if self._start_below is not None:
            self.waited = wait_until_cool(self._start_below, warmest)

    def start(self) -> None:
        """Forgets what was seen and looks for the first time."""
        self._found = []
        self._started_ns = time.perf_counter_ns()
        self.finish()

    def look(self) -> None:
        """Looks again if it is time to."""
        if time.perf_counter_ns() >= self._next_ns:
            self.finish()

    def finish(self) -> None:
        """Looks now."""
        now = time.perf_counter_ns()
        busy, steal = self._machine()
        seen = Observation(
            at_s=(now - self._started_ns) / 1e9,
            busy_s=busy,
            own_s=own_seconds(),
            steal_s=steal,
            waited_s=self._waited(),
            clocks_mhz=tuple(value / 1000 for value in _numbers(self._clocks)),
            temperature_c=self._temperature(),
            throttled=self._throttled(),
            slowed=sum(value > 0 for value in _numbers(self._cooling)) if self._cooling else None,
            yardstick_us=yardstick_us(),
        )
        self._found.append(self._extra(seen) if self._extra else seen)
        self._next_ns = time.perf_counter_ns() + self._every_ns

    def _machine(self) -> tuple[float | None, float | None]:
        """Processor seconds of all cores that were used, and those that a hypervisor gave to others."""
        try:
            with (self._root / "proc/stat").open() as stream:
                words = stream.readline().split()
            user, nice, system, _idle, _wait, irq, softirq, steal = (int(word) for word in words[1:9])
        except (OSError, ValueError):
            return None, None
        return (user + nice + system + irq + softirq) / _TICKS, steal / _TICKS

    def _waited(self) -> float | None:
        """Of the main thread, in which everything is timed."""
        try:
            return int((self._root / "proc/self/schedstat").read_text().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return None

    def _temperature(self) -> float | None:
        found = (value / 1000 for value in _numbers(self._zones))
        # Some zones are switched off and say nonsense.
        return max((value for value in found if -20 < value < 150), default=None)

    def _throttled(self) -> int | None:
        found = _numbers(self._throttles)
        return int(sum(found)) if found else None


def wait_until_cool(limit: StartBelow, warmest: Callable[[], float | None]) -> Start:
    """Waits until a device is below a temperature, or the time for it is over.

    Args:
        warmest: reads the warmest sensor, °C.

    Raises:
        BenchError: it does not say.
    """
    began = time.monotonic()
    while True:
        reached, waited = warmest(), time.monotonic() - began
        if reached is None:
            raise BenchError(
                f"--start-below {limit.celsius:g}C: this device does not say its temperature; leave it out"
            )
        if reached < limit.celsius or waited >= limit.within_s:
            return Start(below_c=limit.celsius, reached_c=reached, waited_s=waited)
        time.sleep(min(WAIT_S, limit.within_s - waited))


def own_seconds() -> float:
    """Processor seconds of this process and of the children it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def yardstick_us() -> float:
    """The least time of a few runs of one piece of work, a hash: it lies in cache and needs the clock alone."""
    best = float("inf")
    for _ in range(_TRIES):
        begin = time.perf_counter_ns()
        hashlib.sha256(_WORK).digest()
        best = min(best, time.perf_counter_ns() - begin)
    return best / 1000


def read_text(path: Path) -> str:
    """A small file of the system; "" where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _numbers(paths: Sequence[Path]) -> list[float]:
    """Numbers read from files of the system; files that cannot be read are left out."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            found.append(float(path.read_text()))
    return found
