"""Measure encoders and heads on a GPU: torch and ONNX Runtime.

The runs are eager torch, torch with CUDA graphs, and ONNX Runtime's CUDA and TensorRT providers. CUDA events separate a
query's copies, its wait in the stream's queue and its compute. Without a GPU the same code runs on the CPU with the
host's clock instead of events.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from refocus.benchmarks.suite import Backbone
from refocus.benchmarks.suite_pair import reason_of
from refocus.cloud_train.backbones.backbone import create_backbone
from refocus.cloud_train.bench.candidates import METHODS, Candidate, Setup, bare, load
from refocus.cloud_train.bench.compatibility import wake
from refocus.edge.runtimes import Program, load_artifact, profile_folder, profiled

PARTS = ("host_to_device", "queue", "compute", "device_to_host", "whole")
MAX_ERROR = 2e-2  # relative to the largest value: TF32 and other kernels differ, wrong answers more
WARM_UP = 8
Query = Callable[[], dict[str, float]]  # milliseconds by part


class Clock:
    """Moments of a query: CUDA events on the stream, or the host's clock."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        self._moments: dict[str, Any] = {}

    def mark(self, name: str) -> None:
        """Record the current moment of the stream under a name."""
        if self.cuda:
            event = self._moments.setdefault(name, torch.cuda.Event(enable_timing=True))
            event.record()
        else:
            self._moments[name] = time.perf_counter()

    def between(self, first: str, second: str) -> float:
        """Return the milliseconds between two moments.

        The caller must have synchronised the stream.
        """
        if self.cuda:
            return float(self._moments[first].elapsed_time(self._moments[second]))
        return float(1000 * (self._moments[second] - self._moments[first]))


def recorded(forward: Callable[[], Any]) -> Callable[[], Any]:
    """Record a computation on the GPU as one launch of a CUDA graph.

    Its inputs and output keep their addresses.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # memory is allocated before it is recorded
            forward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = forward()

    def replay() -> Any:
        graph.replay()
        return out

    return replay


def torch_query(module: Any, inputs: Mapping[str, np.ndarray], device: str, graph: bool) -> tuple[Query, np.ndarray]:
    """Prepare a query of a module in torch, and compute its first output.

    The module runs eagerly, or as one launch of a CUDA graph.
    """
    module = module.to(device)
    host = {name: torch.from_numpy(value) for name, value in inputs.items()}
    host = {name: value.pin_memory() for name, value in host.items()} if device == "cuda" else host
    there = {name: value.to(device) for name, value in host.items()}
    clock = Clock(device)

    def forward() -> Any:
        with torch.no_grad():
            found = module(*there.values())
        return found[0] if isinstance(found, tuple) else found

    compute = recorded(forward) if graph else forward
    out = compute()

    def query() -> dict[str, float]:
        begin = time.perf_counter()
        clock.mark("begin")
        for name, value in host.items():
            there[name].copy_(value, non_blocking=True)
        clock.mark("copied")
        found = compute()
        clock.mark("computed")
        found.cpu()
        clock.mark("end")
        if device == "cuda":
            torch.cuda.synchronize()
        whole = 1000 * (time.perf_counter() - begin)
        parts = {
            "host_to_device": clock.between("begin", "copied"),
            "compute": clock.between("copied", "computed"),
            "device_to_host": clock.between("computed", "end"),
            "whole": whole,
        }
        return {**parts, "queue": max(0.0, whole - clock.between("begin", "end"))}

    return query, out.detach().cpu().numpy()


def runtime_query(program: Program, inputs: Mapping[str, np.ndarray], device: str) -> tuple[Query, np.ndarray]:
    """Prepare a query of an exported program in ONNX Runtime.

    Copies and compute are synchronised. The program's first output is returned too.
    """
    from refocus.benchmarks.devices.cuda import onnxruntime_split

    first = next(iter(program.run(**dict(inputs)).values()))
    parts = onnxruntime_split(program, dict(inputs), device)

    def query() -> dict[str, float]:
        begin = time.perf_counter()
        there, compute, back = parts()
        whole = 1000 * (time.perf_counter() - begin)
        told = {"host_to_device": there, "compute": compute, "device_to_host": back, "whole": whole}
        return {**told, "queue": max(0.0, whole - there - compute - back)}

    return query, first


def measured(candidate: Candidate, device: str, seconds: float, fewest: int) -> dict[str, Any]:
    """Measure one program in every runtime, compared with eager torch.

    The reference output is that of eager torch on the CPU.

    Returns:
        ``rows``, and ``missing``, the runtimes that failed with the reason.
    """
    _, wanted = torch_query(candidate.module.eval(), candidate.inputs, "cpu", False)
    rows: list[dict[str, Any]] = []
    missing: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, make in _ways(candidate, device, Path(temporary)).items():
            try:
                query, found, placed = make()
                error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
                if not error <= MAX_ERROR:
                    raise ValueError(f"its answer is {error:.1e} off, at most {MAX_ERROR} counts")
                rows.append({"way": name, "error": error, "placement": placed, **_timed(query, seconds, fewest)})
            except Exception as error:
                missing.append({"way": name, "why": reason_of(error)})
    return {"rows": rows, "missing": missing}


Made = tuple[Query, np.ndarray, list[dict[str, Any]]]


def _ways(candidate: Candidate, device: str, folder: Path) -> dict[str, Callable[[], Made]]:
    module, inputs = candidate.module, candidate.inputs
    ways: dict[str, Callable[[], Made]] = {"torch eager": lambda: (*torch_query(module, inputs, device, False), [])}
    if device == "cuda":
        ways["torch with a CUDA graph"] = lambda: (*torch_query(module, inputs, device, True), [])
        ways["onnxruntime CUDA"] = lambda: _exported(candidate, folder, "cuda", device)
        ways["onnxruntime TensorRT"] = lambda: _exported(candidate, folder, "tensorrt", device)
    else:
        ways["onnxruntime CPU"] = lambda: _exported(candidate, folder, "cpu", device)
    return ways


def _exported(candidate: Candidate, folder: Path, provider: str, device: str) -> Made:
    """Load the program in ONNX Runtime on a provider.

    The providers on which its nodes ran are returned too.
    """
    import onnxruntime

    place = folder / provider
    known = [name.removesuffix("ExecutionProvider").lower() for name in onnxruntime.get_available_providers()]
    if provider not in known:
        raise ValueError(f"this build of ONNX Runtime has no provider {provider}")
    candidate.module.to("cpu")
    artifact = load(candidate, "onnx:fp32", place)[0].artifact
    with profile_folder() as profile:
        parts = profiled(load_artifact(place, artifact, 1, provider, profile=Path(profile)), candidate.inputs)
    if not any(part.asked for part in parts):
        raise ValueError(f"nothing ran on {provider}: {', '.join(part.provider for part in parts)} took all nodes")
    loaded = load_artifact(place, artifact, 1, provider)
    return (*runtime_query(loaded, candidate.inputs, device), [asdict(part) for part in parts])


def _timed(query: Query, seconds: float, fewest: int) -> dict[str, Any]:
    """Measure the median and the 90th percentile of each part."""
    for _ in range(WARM_UP):
        query()
    told: list[dict[str, float]] = []
    begin = time.perf_counter()
    while len(told) < fewest or time.perf_counter() - begin < seconds:
        told.append(query())
    columns = {part: np.array([one[part] for one in told]) for part in PARTS}
    points = {
        part: {"p50_ms": float(np.median(v)), "p90_ms": float(np.percentile(v, 90))} for part, v in columns.items()
    }
    return {"samples": len(told), **points}


def programs(backbones: Mapping[str, int]) -> dict[str, Callable[[], Candidate]]:
    """Return functions that build encoders and heads, by name.

    The heads are ICIIA-T after the first encoder, as window and as streaming head.

    Args:
        backbones: timm names and the side of their photos; 0: timm's default.
    """
    found: dict[str, Callable[[], Candidate]] = {}

    def setup(name: str) -> Setup:
        torch.manual_seed(0)
        side = backbones[name]
        backbone = create_backbone(name, 1000)
        wake(backbone.network)
        network: Any = backbone.network.eval()
        crop = side or backbone.preprocessing.crop
        pixels = torch.randn(1, 3, crop, crop, generator=torch.Generator().manual_seed(0))
        width = int(network.head_hidden_size)
        partitions = next(p for p in (256, 192, 128, 96, 64, 32) if width % p == 0)
        return Setup(network, width, pixels, "onnx:fp32", Backbone(name, (), partitions))

    for name in backbones:
        found[name] = lambda name=name: bare(setup(name))  # type: ignore[misc]
    first = next(iter(backbones))
    for method in ("iciia_t", "iciia_t_streaming"):
        found[f"{method} behind {first}"] = lambda method=method: METHODS[method](setup(first))  # type: ignore[misc]
    return found
