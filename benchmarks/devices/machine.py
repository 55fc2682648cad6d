"""What machine this is, as far as it says so: for the record beside every result, and for comparing two."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from refocus.benchmarks.document.schema import Machine, Observation
from refocus.benchmarks.measure.machine_monitor import MachineMonitor

# Of a processor's many flags, those that decide which kernels a runtime takes.
_KERNEL_FLAGS = frozenset(
    {
        "sse4_2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512vl",
        "avx512_vnni",
        "avx_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
        "amx_int8",
        "amx_bf16",
        "neon",
        "asimd",
        "asimdhp",
        "asimddp",
        "fphp",
        "i8mm",
        "bf16",
        "sve",
        "sve2",
    }
)
LIBRARIES = ("onnxruntime", "onnxruntime-gpu", "executorch", "tensorrt", "coremltools", "numpy", "pillow")
REFOCUS = "refocus-edge"


def describe(device: str = "cpu", root: Path = Path("/")) -> Machine:
    """This machine.

    Args:
        device: what the programs run on.
        root: where ``proc`` and ``sys`` are.
    """
    about = _cpuinfo(root)
    flags = (about.get("flags") or about.get("Features") or "").split()
    cpu = about.get("model name") or about.get("Hardware") or _device_tree(root) or platform.machine()
    seen = _look(root)
    memory = _memory_bytes(root)
    cores = os.cpu_count() or 1
    identity = "\n".join([platform.machine(), cpu, str(cores), str(memory // 2**28), *sorted(flags)])
    governors = sorted({_text(path) for path in root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")})
    return Machine(
        device=device,
        id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        cpu=cpu,
        cores=cores,
        memory_bytes=memory,
        features=tuple(sorted(_KERNEL_FLAGS & set(flags))),
        governor=", ".join(governor for governor in governors if governor),
        clocks_mhz=seen.clocks_mhz,
        temperature_c=seen.temperature_c,
        virtual="hypervisor" in flags,
        load_average=_load_average(),
        versions=versions(LIBRARIES),
        extra={"implementation": sys.implementation.name, **_limits(root)},
    )


def _look(root: Path) -> Observation:
    watch = MachineMonitor(root=root)
    watch.start()
    return watch.observations[0]


def versions(names: tuple[str, ...]) -> dict[str, str]:
    """The installed version of each library that is installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's entries."""
    found: dict[str, str] = {}
    for line in _text(root / "proc/cpuinfo").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _device_tree(root: Path) -> str:
    return _text(root / "proc/device-tree/model").strip("\0")


def _memory_bytes(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _limits(root: Path) -> dict[str, str]:
    """Turbo and the scaling driver, where the kernel says so; the environment that decides threads."""
    cpu = root / "sys/devices/system/cpu"
    files: dict[str, Callable[[], str]] = {
        "no_turbo": lambda: _text(cpu / "intel_pstate/no_turbo"),
        "boost": lambda: _text(cpu / "cpufreq/boost"),
        "scaling_driver": lambda: _text(cpu / "cpu0/cpufreq/scaling_driver"),
        "smt": lambda: _text(cpu / "smt/active"),
        "OMP_NUM_THREADS": lambda: os.environ.get("OMP_NUM_THREADS", ""),
    }
    return {name: value for name, read in files.items() if (value := read())}


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
