"""An NVIDIA GPU: what NVML or ``nvidia-smi`` says of it, and a photo's way to it, through it and back.

NVML (``pip install nvidia-ml-py``) is asked where it can be imported: it answers in microseconds and counts energy.
Without it ``nvidia-smi`` is asked, which takes tens of milliseconds, and energy is its power draw over time.

The table on a machine with a GPU goes through the same code as on a CPU, with the provider "cuda" or "tensorrt". What
is added here is the split of the encoder: host to device, compute, device to host.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from refocus.benchmarks.document.schema import BenchError, Machine, Observation
from refocus.benchmarks.measure.timer import Series, measure
from refocus.benchmarks.rows.recorder import Table
from refocus.edge.errors import RuntimeUnavailable
from refocus.edge.runtimes import Program

FIELDS = ("name", "driver_version", "temperature.gpu", "clocks.sm", "power.draw", "persistence_mode")
PARTS = ("host to device", "compute", "device to host")
_SAMPLE_S = 0.2


@dataclass(frozen=True)
class State:
    """One answer of ``nvidia-smi``; None where the GPU does not say."""

    name: str
    driver: str
    temperature_c: float | None
    sm_mhz: float | None
    watts: float | None
    persistence: str


def parse_smi(text: str) -> State:
    """The first GPU of ``nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits``.

    Raises:
        BenchError: the text is no such answer.
    """
    words = [word.strip() for word in (text.strip().splitlines() or [""])[0].split(",")]
    if len(words) != len(FIELDS):
        raise BenchError(f"nvidia-smi printed '{text.strip()[:80]}', expected {len(FIELDS)} fields; check the driver")
    name, driver, temperature, clock, watts, persistence = words
    return State(name, driver, _number(temperature), _number(clock), _number(watts), persistence)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:  # [N/A], [Not Supported]
        return None


class Smi:
    """State of the first GPU, read from ``nvidia-smi``.

    Raises:
        BenchError: it is not here, or the driver does not answer.
    """

    name = "nvidia-smi"

    def __init__(self) -> None:
        smi = shutil.which("nvidia-smi")
        if smi is None:
            raise BenchError("--device cuda: nvidia-smi is not here; it comes with NVIDIA's driver, which CUDA needs")
        self._command = [smi, "--id=0", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]

    def ask(self) -> State:
        done = subprocess.run(self._command, capture_output=True, text=True, check=False)  # noqa: S603  # a fixed command
        if done.returncode:
            raise BenchError(
                f"nvidia-smi ended with status {done.returncode}: {done.stdout.strip()[:120]}; check the driver"
            )
        return parse_smi(done.stdout)

    def joules(self) -> float | None:
        """A counter of energy: there is none."""
        return None


class Nvml:
    """State and energy counter of the first GPU, read through NVML.

    Raises:
        ImportError: its package is not installed.
        BenchError: the driver does not answer.
    """

    name = "NVML"

    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        except pynvml.NVMLError as error:
            raise BenchError(f"NVML finds no GPU: {error}; check the driver") from None

    def _number(self, ask: str, *about: int) -> float | None:
        """One number, or None where this GPU does not say."""
        try:
            return float(getattr(self._nvml, ask)(self._handle, *about))
        except self._nvml.NVMLError:
            return None

    def ask(self) -> State:
        watts, persistent = self._number("nvmlDeviceGetPowerUsage"), self._number("nvmlDeviceGetPersistenceMode")
        return State(
            name=str(self._nvml.nvmlDeviceGetName(self._handle)),
            driver=str(self._nvml.nvmlSystemGetDriverVersion()),
            temperature_c=self._number("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU),
            sm_mhz=self._number("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            watts=None if watts is None else watts / 1000,
            persistence="[N/A]" if persistent is None else "Enabled" if persistent else "Disabled",
        )

    def joules(self) -> float | None:
        """A counter of energy since the driver was loaded; GPUs before Volta have none."""
        millijoules = self._number("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else millijoules / 1000


class Gpu:
    """The first GPU of this machine, which is also the meter of its energy.

    Raises:
        BenchError: there is none.
    """

    def __init__(self) -> None:
        try:
            self._teller: Nvml | Smi = Nvml()
        except (ImportError, BenchError):
            self._teller = Smi()  # says what is wrong if there is no driver
        self._next_s, self._state = 0.0, self.ask()

    def ask(self) -> State:
        return self._teller.ask()

    @contextmanager
    def asked_every(self, seconds: float) -> Iterator[list[State]]:
        """The states of the GPU while something runs, asked for by a thread; all are there at the end."""
        states, done = list[State](), threading.Event()

        def sample() -> None:
            while not done.wait(seconds):
                states.append(self.ask())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield states
        finally:
            done.set()
            thread.join()

    def describe(self, machine: Machine) -> Machine:
        """The machine with its GPU, which is part of what two runs must have in common."""
        state = self._state
        extra = {**machine.extra, "gpu": state.name, "driver": state.driver, "persistence": state.persistence}
        return msgspec.structs.replace(machine, extra=extra, id=f"{machine.id} {state.name}")

    def observe(self, seen: Observation) -> Observation:
        """An observation with the GPU's clock and temperature, asked for once a second: asking takes milliseconds."""
        if time.monotonic() >= self._next_s:
            self._state, self._next_s = self.ask(), time.monotonic() + 1
        state = self._state
        clocks = (state.sm_mhz,) if state.sm_mhz is not None else seen.clocks_mhz
        return msgspec.structs.replace(seen, clocks_mhz=clocks, temperature_c=state.temperature_c or seen.temperature_c)

    @property
    def source(self) -> str:
        """Where the energy comes from, or why there is none."""
        if self._teller.joules() is not None:
            return "energy counter of the GPU alone (NVML)"
        tells = self._state.watts is not None
        return f"power draw of the GPU alone ({self._teller.name})" if tells else "not measured: the GPU tells no power"

    def joules(self, action: Callable[[], object]) -> float | None:
        """Of the GPU while ``action`` ran, from its counter, or its power draw asked for beside the work; None: not
        measured."""
        if self.source.startswith("not"):
            return None
        before = self._teller.joules()
        if before is not None:
            action()
            after = self._teller.joules()
            return None if after is None else after - before
        with self.asked_every(_SAMPLE_S) as states:
            begin = time.perf_counter()
            action()
            seconds = time.perf_counter() - begin
        watts = [state.watts for state in states if state.watts is not None]
        return float(np.mean(watts)) * seconds if watts else None


# ---- a photo's way


def split(table: Table) -> None:
    """The encoder's three parts, apart, and the bound whole; per runtime as that runtime can say it."""
    target, runtime = table.target, table.target.pair[0]
    if runtime not in ("onnxruntime", "tensorrt"):
        table.lacks("encoder on the device", f"{runtime} does not tell a photo's way to a GPU")
        return
    program = target.encoder(target.threads)
    inputs = {"photo": target.pixels[0], **target.bundle.defaults(program.artifact)}
    split_of = onnxruntime_split if runtime == "onnxruntime" else tensorrt_split
    try:
        for name, series in measure_parts(table, split_of(program, inputs)):
            table.add("encoder on the device", series, name)
    finally:
        program.close()


Parts = Callable[[], tuple[float, float, float]]


def measure_parts(table: Table, parts: Parts) -> Iterator[tuple[str, Series]]:
    """Runs until the table's conditions are met; the parts of a query are its own account of its time."""
    told: list[tuple[float, float, float]] = []
    found = measure({"whole": lambda: told.append(parts())}, table.conditions, table.monitor())["whole"]
    columns = np.array(told[-len(found.samples_ms) :])
    for number, name in enumerate(PARTS):
        yield name, Series(columns[:, number], found.starts_s, found.observations, found.start)
    yield "whole", found


def onnxruntime_split(program: Program, inputs: dict[str, np.ndarray], device: str = "cuda") -> Parts:
    """Milliseconds of copying in, of running and of copying out, each waited for.

    Args:
        device: "cuda"; with "cpu" the same calls copy within the host's memory.

    Raises:
        RuntimeUnavailable: the session does not run on the device.
    """
    import onnxruntime

    session: Any = program.session  # type: ignore[attr-defined]  # of edge/runtimes/onnxruntime.py
    if device == "cuda" and not {"CUDAExecutionProvider", "TensorrtExecutionProvider"} & set(session.get_providers()):
        raise RuntimeUnavailable(f"{program.artifact.file} runs on {program.ran_on()}, so nothing is copied to a GPU")
    binding = session.io_binding()
    there = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value, device, 0) for name, value in inputs.items()}
    for name, value in there.items():
        binding.bind_ortvalue_input(name, value)
    for tensor in program.artifact.outputs:
        binding.bind_output(tensor.name, device)

    def parts() -> tuple[float, float, float]:
        begin = time.perf_counter_ns()
        for name, value in inputs.items():
            there[name].update_inplace(value)
        binding.synchronize_inputs()
        copied = time.perf_counter_ns()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        ran = time.perf_counter_ns()
        binding.copy_outputs_to_cpu()
        end = time.perf_counter_ns()
        return (copied - begin) / 1e6, (ran - copied) / 1e6, (end - ran) / 1e6

    return parts


def tensorrt_split(program: Program, inputs: dict[str, np.ndarray]) -> Parts:
    """Milliseconds between CUDA events on the engine's own stream."""
    from cuda.bindings import runtime as cudart

    events = {name: _made(cudart.cudaEventCreate()) for name in ("begin", *PARTS)}
    program.mark = lambda stage, stream: cudart.cudaEventRecord(events[stage], stream)  # type: ignore[attr-defined]

    def parts() -> tuple[float, float, float]:
        program.run_unchecked(inputs)  # ends with the stream: every event has happened
        names = ("begin", *PARTS)
        spans = [_made(cudart.cudaEventElapsedTime(events[a], events[b])) for a, b in zip(names, PARTS, strict=False)]
        return float(spans[0]), float(spans[1]), float(spans[2])

    return parts


def _made(result: Any) -> Any:
    if int(result[0]):
        raise RuntimeUnavailable(f"CUDA: {result[0].name}")
    return result[1]
