"""Energy, where the machine tells; on a host by the processor packages' own counters (RAPL)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

PACKAGE = re.compile(r"intel-rapl:\d+")  # whole packages; what lies below them (core, dram) is partly in them
NOT_MEASURED = "not measured"


class Meter(Protocol):
    """Tells energy, or in ``source`` why not."""

    @property
    def source(self) -> str: ...

    def joules(self, action: Callable[[], object]) -> float | None:
        """Energy in joules that was used while ``action`` ran; None: not measured."""


def energy_of(meter: Meter, photo: Callable[[], object], seconds: float) -> dict[str, Any]:
    """Energy of photo after photo, as the document's :class:`~refocus.benchmarks.document.schema.Energy` has it.

    Args:
        photo: answers one.
        seconds: that it is repeated for, at least; power is of the time that it took.
    """
    found: dict[str, Any] = {"source": meter.source}
    if meter.source.startswith(NOT_MEASURED):
        return found
    photos, took = 0, 0.0

    def work() -> None:
        nonlocal photos, took
        begin = time.perf_counter()
        while took < seconds:
            photo()
            photos += 1
            took = time.perf_counter() - begin

    joules = meter.joules(work)
    if joules is not None:
        found |= {"joules": joules, "watts": joules / took, "joules_per_photo": joules / photos}
    return found


class EnergyMeter:
    """Joules between two moments.

    Attributes:
        source: what is read, or why nothing is.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        folder = root / "sys/class/powercap"
        packages = [path for path in sorted(folder.glob("intel-rapl:*")) if PACKAGE.fullmatch(path.name)]
        self._counters: list[tuple[Path, int]] = []  # of microjoules, and the value after which each starts again
        self.source = "not measured: this machine has no energy counter that Linux reads (RAPL)"
        for package in packages:
            try:
                counter = package / "energy_uj", int((package / "max_energy_range_uj").read_text())
                int(counter[0].read_text())
            except PermissionError:
                self.source = f"not measured: {package / 'energy_uj'} is readable by root alone; run it with sudo"
            except (OSError, ValueError):
                self.source = f"not measured: {package} does not say its energy"
            else:
                self._counters.append(counter)
        if self._counters:
            self.source = f"RAPL, {len(self._counters)} packages: the whole processor, other programs included"

    def joules(self, action: Callable[[], object]) -> float | None:
        """Energy in joules that was used while ``action`` ran, which must take less time than a counter to start again.

        None: not measured.
        """
        before = [int(file.read_text()) for file, _ in self._counters]
        action()
        if not self._counters:
            return None
        rows = zip(self._counters, before, strict=True)
        return sum((int(file.read_text()) - begin) % wraps_at for (file, wraps_at), begin in rows) / 1e6
