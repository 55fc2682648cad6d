"""Measure everything that needs a GPU: ``make measure-cuda OUT=DIR``.

The measurement is a sequence of sections. Existing sections are skipped, so an interrupted run resumes; no section
needs a network connection. At the end all documents are one archive. ``--dry`` runs the same code on a CPU with small
sizes.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import typer

from refocus.benchmarks.devices import versions
from refocus.benchmarks.devices.cuda import Gpu
from refocus.benchmarks.document.schema import BenchError
from refocus.benchmarks.suite_pair import reason_of
from refocus.cloud_train.progress import say
from refocus.edge.files import write_file
from studies.bench import cuda_programs, cuda_training

SCHEMA = 1
ARCHIVE = "measure-cuda.tar.gz"
LIBRARIES = ("torch", "torchvision", "timm", "onnxruntime", "onnxruntime-gpu", "tensorrt", "numpy", "nvidia-ml-py")
OLDEST_DRIVER = 580  # of CUDA 13, which torch is built for; older ones fail at the first kernel
BACKBONES = {"mobilenetv2_100": 0, "mobilenetv3_large_100": 0, "resnet18": 0, "deit_tiny_patch16_224": 0}
DRY_BACKBONES = {"mobilenetv3_small_050": 64}
ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/studies/bench/test_cuda.py",
    "tests/cloud_train/federated/test_budgets.py",
    "tests/export/parity/test_streaming.py",
)
Section = Callable[[str, bool], dict[str, Any]]


def sections() -> dict[str, Section]:
    """Return the sections of the measurement, most valuable first."""
    return {
        "iciia-epoch": lambda device, dry: cuda_training.iciia_epoch(device, _sizes(dry)),
        "encoders-and-heads": encoders_and_heads,
        "taper-steps": lambda device, dry: cuda_training.taper_steps(device, _sizes(dry)),
        "federated-steps": lambda device, dry: cuda_training.federated_steps(device, _sizes(dry)),
        "tests": tests,
    }


def _sizes(dry: bool) -> cuda_training.Sizes:
    return cuda_training.DRY if dry else cuda_training.Sizes()


def encoders_and_heads(device: str, dry: bool) -> dict[str, Any]:
    """Measure encoders and heads in every installed runtime."""
    found = {}
    for name, make in cuda_programs.programs(DRY_BACKBONES if dry else BACKBONES).items():
        say(f"  {name}")
        found[name] = cuda_programs.measured(make(), device, 0.0 if dry else 1.5, 4 if dry else 100)
    return {"programs": found}


def tests(device: str, dry: bool) -> dict[str, Any]:
    """Run the tests that are marked cuda, if the source tree is there.

    With ``dry`` they are only collected.
    """
    if not (ROOT / "tests").is_dir():
        return {"status": None, "summary": "this install has no tests"}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", *TESTS]
    done = subprocess.run(  # noqa: S603  # our own tests
        [*command, *(["--collect-only"] if dry else [])], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"status": done.returncode, "summary": lines[-1], "failures": failed}


@contextmanager
def watched(gpu: Gpu | None) -> Iterator[dict[str, Any]]:
    """Record clock, power and temperature of the GPU during a section.

    The values are read every half second.
    """
    seen: dict[str, Any] = {}
    if gpu is None:
        yield seen
        return
    states = [gpu.ask()]
    try:
        with gpu.asked_every(0.5) as found:
            yield seen
    finally:
        states += found
        for name in ("sm_mhz", "watts", "temperature_c"):
            values = [value for state in states if (value := getattr(state, name)) is not None]
            seen[name] = (
                {"least": min(values), "most": max(values), "mean": sum(values) / len(values)} if values else None
            )


def open_gpu() -> Gpu:
    """Open the first GPU.

    Raises:
        BenchError: there is none, its driver is too old, or this torch has no kernels for it.
    """
    gpu = Gpu()
    driver = gpu.ask().driver
    if int(driver.split(".")[0]) < OLDEST_DRIVER and str(torch.version.cuda or "").startswith("13"):
        raise BenchError(
            f"the driver is {driver}, torch {torch.__version__} needs {OLDEST_DRIVER} or newer; update the driver"
        )
    if not torch.cuda.is_available():
        raise BenchError(f"torch {torch.__version__} sees no GPU though nvidia-smi does; install its build for CUDA")
    return gpu


def machine(gpu: Gpu | None) -> dict[str, Any]:
    """Describe the GPU, its driver and the installed libraries."""
    found: dict[str, Any] = {"python": platform.python_version(), "versions": versions(LIBRARIES)}
    if gpu is not None:
        state = gpu.ask()
        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        found |= {"gpu": state.name, "driver": state.driver, "capability": capability, "cuda": torch.version.cuda}
        found["persistence"] = state.persistence
    found["tensorrt"] = importlib.util.find_spec("tensorrt") is not None
    return found


def measure(out: Path, dry: bool, command: str, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """Measure the missing sections and return the document of all of them.

    Raises:
        BenchError: there is no usable GPU and ``dry`` is false, or a section is unknown.
    """
    unknown = sorted(set(only) - sections().keys())
    if unknown:
        raise BenchError(f"--only {', '.join(unknown)}: expected some of {', '.join(sections())}")
    gpu = None if dry else open_gpu()
    device = "cpu" if dry else "cuda"
    out.mkdir(parents=True, exist_ok=True)
    whole: dict[str, Any] = {
        "schema_version": SCHEMA,
        "cuda_sections": {},
        "dry": dry,
        "machine": machine(gpu),
        "command": command,
    }
    for name, run in sections().items():
        path = out / f"{name}.json"
        if not path.exists() and (not only or name in only):
            say(name)
            begin = time.perf_counter()
            with watched(gpu) as seen:
                try:
                    found = run(device, dry)
                except (RuntimeError, ValueError, BenchError) as error:  # out of memory, no kernel: the others go on
                    found = {"failed": reason_of(error)}
            took = time.perf_counter() - begin
            document = {"section": name, "command": command, "seconds": took, "gpu": seen, **found}
            write_file(path, json.dumps(document, indent=1) + "\n")
        if path.exists():
            whole["cuda_sections"][name] = json.loads(path.read_text(encoding="utf-8"))
    write_file(out / "cuda.json", json.dumps(whole, indent=1) + "\n")
    with tarfile.open(out / ARCHIVE, "w:gz") as archive:
        for path in sorted(out.glob("*.json")):
            archive.add(path, path.name)
    return whole


def main(out: Path, dry: bool = False, only: str = "") -> None:
    """Measure, and exit with status 1 if a section failed."""
    words = [word for word, given in (("--dry", dry), (f"--only {only}", only)) if given]
    try:
        command = " ".join(["make measure-cuda", *words])
        whole = measure(out, dry, command, tuple(filter(None, only.split(","))))
    except BenchError as error:
        typer.echo(f"refocus: {error}", err=True)
        raise typer.Exit(1) from None
    failed = [name for name, section in whole["cuda_sections"].items() if "failed" in section]
    for name, section in whole["cuda_sections"].items():
        typer.echo(f"{name}: {section['seconds']:.1f} s" + (f", failed: {section['failed']}" if name in failed else ""))
    typer.echo(f"{out / ARCHIVE}")
    if failed:
        raise typer.Exit(1)
