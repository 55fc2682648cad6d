"""What machine this is, as far as it says so: for the record beside every result, and for comparing two."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from datetime import datetime, timedelta, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from refocus.benchmarks.document.schema import Document, Machine, Mode, Photos
from refocus.benchmarks.measure.machine_monitor import MachineMonitor, read_text

# Of a processor's many flags, those that decide which kernels a runtime takes.
_X86_FLAGS = {"sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx_vnni"}
_X86_NEWER_FLAGS = {"avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"}
_ARM_FLAGS = {"neon", "asimd", "asimdhp", "asimddp", "fphp", "i8mm", "bf16", "sve", "sve2"}
LIBRARIES = ("onnxruntime", "onnxruntime-gpu", "executorch", "tensorrt", "coremltools", "numpy", "pillow")
REFOCUS = "refocus-edge"


def describe(device: str = "cpu", root: Path = Path("/")) -> Machine:
    """This machine.

    Args:
        device: what the programs run on.
        root: where ``proc`` and ``sys`` are.
    """
    about = read_fields(read_text(root / "proc/cpuinfo"))
    flags = (about.get("flags") or about.get("Features") or "").split()
    board = read_text(root / "proc/device-tree/model").strip("\0")
    cpu = about.get("model name") or about.get("Hardware") or board or platform.machine()
    monitor = MachineMonitor(root=root)
    monitor.start()
    (seen,) = monitor.observations
    memory = memory_bytes(read_text(root / "proc/meminfo"))
    cores = os.cpu_count() or 1
    identity = "\n".join([platform.machine(), cpu, str(cores), str(memory // 2**28), *sorted(flags)])
    governors = sorted(
        {read_text(path) for path in root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")}
    )
    return Machine(
        device=device,
        id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        cpu=cpu,
        cores=cores,
        memory_bytes=memory,
        features=tuple(sorted((_X86_FLAGS | _X86_NEWER_FLAGS | _ARM_FLAGS) & set(flags))),
        governor=", ".join(governor for governor in governors if governor),
        clocks_mhz=seen.clocks_mhz,
        temperature_c=seen.temperature_c,
        virtual="hypervisor" in flags,
        load_average=_load_average(),
        versions=versions(LIBRARIES),
        extra={"implementation": sys.implementation.name, **_limits(root)},
    )


def new_document(command: str, mode: Mode, machine: Machine, photos: Photos, began: float, **found: Any) -> Document:
    """The document of a run that ends now.

    Args:
        began: ``time.perf_counter()`` when it began.
        found: the document's other fields.
    """
    seconds = time.perf_counter() - began
    return Document(
        command=command,
        refocus=versions((REFOCUS,)).get(REFOCUS, "unknown"),
        mode=mode,
        started=(datetime.now(timezone.utc) - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
        seconds=seconds,
        machine=machine,
        photos=photos,
        **found,
    )


def versions(names: tuple[str, ...]) -> dict[str, str]:
    """The installed version of each library that is installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def read_fields(text: str) -> dict[str, str]:
    """Values by name of lines ``name: value``; of a name that comes again, the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def memory_bytes(meminfo: str) -> int:
    """Installed memory in bytes, from ``/proc/meminfo``; 0 if unknown."""
    return int(read_fields(meminfo).get("MemTotal", "0 kB").split()[0]) * 1024


def _limits(root: Path) -> dict[str, str]:
    """Turbo and the scaling driver, where the kernel says so; the environment that decides threads."""
    cpu = root / "sys/devices/system/cpu"
    files = {
        "no_turbo": "intel_pstate/no_turbo",
        "boost": "cpufreq/boost",
        "scaling_driver": "cpu0/cpufreq/scaling_driver",
        "smt": "smt/active",
    }
    found = {name: read_text(cpu / file) for name, file in files.items()}
    found["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "")
    found["executorch_threads"] = "as asked for"  # documents without it are of all cores, whatever was asked for
    return {name: value for name, value in found.items() if value}


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
