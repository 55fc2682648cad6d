"""The device that the command itself runs on: a CPU, a CUDA machine, or a Jetson."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from refocus.benchmarks.devices import cuda, jetson
from refocus.benchmarks.devices.energy import EnergyMeter, Meter
from refocus.benchmarks.devices.machine import describe
from refocus.benchmarks.document.schema import BenchError, Machine
from refocus.benchmarks.measure.machine_monitor import MachineMonitor, StartBelow


@dataclass(frozen=True)
class Device:
    """Where programs run.

    Attributes:
        provider: that programs are asked to run on unless the user names another.
        monitor: makes the machine monitor of one row, given the seconds between two looks.
        meter: of energy.
    """

    machine: Machine
    provider: str
    monitor: Callable[[float], MachineMonitor]
    meter: Meter


@contextlib.contextmanager
def open_device(name: str, start_below: StartBelow | None = None) -> Iterator[Device]:
    """The device of that name, as long as it is used.

    Args:
        start_below: wait for a cool device before each row.

    Raises:
        BenchError: no such device, or this machine is none.
    """
    machine = describe(name)
    watch = partial(MachineMonitor, start_below=start_below)
    if name == "cpu":
        yield Device(machine, "", watch, EnergyMeter())
    elif name == "cuda":
        gpu = cuda.Gpu()
        yield Device(gpu.describe(machine), "cuda", partial(watch, extra=gpu.observe), gpu)
    elif name == "jetson":
        with jetson.Tegrastats() as stats:
            yield Device(jetson.describe(machine), "cuda", partial(watch, extra=stats.observe), stats)
    else:
        raise BenchError(f"--device {name}: expected cpu, cuda, jetson or android")
