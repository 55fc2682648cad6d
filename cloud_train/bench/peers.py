"""One network side by side in everything that runs it here: the device's own code, bare runtimes, eager and compiled
torch, OpenVINO; and ICIIA-T as Refocus exports it beside a naive export. All in turns in one process.

On a GPU, torch with CUDA graphs is the reference. It lives here because torch is no part of ``benchmarks``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from refocus.benchmarks.devices import REFOCUS, describe, versions
from refocus.benchmarks.document import Conditions, Document, Photos
from refocus.benchmarks.rows.recorder import Rows
from refocus.benchmarks.suite import Backbone
from refocus.cloud_train.bench.compatibility import prepared
from refocus.cloud_train.bench.suite import METHODS, UNTRAINED, Candidate, Setup, bare, load

GROUP = "peers"
REFERENCE = "refocus, onnxruntime"
LIBRARIES = ("torch", "timm", "onnxruntime", "executorch", "openvino", "numpy")
MAX_ERROR = 1e-3  # relative to the largest value: who is faster by being wrong is no peer
Action = Callable[[], Any]


def measure(backbone: str, photos: Path, conditions: Conditions, command: str, device: str = "cpu") -> Document:
    """Every peer that is installed here; the others are named with the reason.

    Args:
        device: "cpu", or "cuda" for torch's own reference on a GPU.
    """
    began, started = time.perf_counter(), datetime.now(timezone.utc)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    program, pixels = prepared(backbone, photos)
    network: Any = program.module
    ground = Setup(network, int(network.head_hidden_size), pixels, "onnx:fp32", Backbone(backbone, (), 256))
    table = Rows(backbone, "fp32", describe(device), conditions)
    with tempfile.TemporaryDirectory() as temporary, torch.inference_mode():
        wanted = network(pixels[:1]).numpy()
        candidates: dict[str, Action] = {}
        for name, make in _peers(ground, Path(temporary), device).items():
            try:
                action = make()
                _check(np.asarray(action()), wanted)
                candidates[name] = action
            except Exception as error:
                table.lacks(name, " ".join(f"{type(error).__name__}: {error}".split())[:300])
        found = table.time(GROUP, candidates)
        for name in [*candidates][1:]:
            table.ratio(GROUP, found, name, REFERENCE)
        _heads(table, ground, Path(temporary))
    machine = table.machine
    return Document(
        command=command,
        refocus=versions((REFOCUS,)).get(REFOCUS, "unknown"),
        mode="peers",
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - began,
        machine=type(machine)(
            **{f: getattr(machine, f) for f in machine.__struct_fields__} | {"versions": versions(LIBRARIES)}
        ),
        photos=Photos(source=photos.name, count=len(pixels), fingerprint=UNTRAINED),
        rows=tuple(table.rows),
        ratios=tuple(table.ratios),
        missing=tuple(table.missing),
    )


def _check(found: np.ndarray, wanted: np.ndarray) -> None:
    error = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    if not error <= MAX_ERROR:
        raise ValueError(f"its answer is {error:.1e} off, at most {MAX_ERROR} counts")


def _peers(ground: Setup, folder: Path, device: str) -> dict[str, Callable[[], Action]]:
    made = bare(ground)
    onnx_file = folder / "refocus-onnx" / "program.onnx"
    return {
        REFERENCE: lambda: _refocus(made, "onnx:fp32", folder / "refocus-onnx"),
        "bare onnxruntime": lambda: _onnxruntime(onnx_file, ground),
        "refocus, executorch": lambda: _refocus(made, "executorch:fp32", folder / "refocus-executorch"),
        "eager torch": lambda: lambda: ground.network(ground.pixels[:1]).numpy(),
        "compiled torch": lambda: _compiled(ground),
        "openvino": lambda: _openvino(onnx_file, ground),
        **(
            {
                "eager torch on cuda": lambda: _cuda(ground, False),
                "torch with a CUDA graph": lambda: _cuda(ground, True),
            }
            if device == "cuda"
            else {}
        ),
    }


def _refocus(made: Candidate, target: str, folder: Path) -> Action:
    program, _ = load(made, target, folder)
    bound = program.bind(dict(made.inputs))
    return lambda: bound()["feature"]


def _onnxruntime(file: Path, ground: Setup) -> Action:
    """As a tutorial does it: a session, and run with a dictionary."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    inputs = dict(ground.photo)
    return lambda: session.run(None, inputs)[0]


def _compiled(ground: Setup) -> Action:
    compiled = torch.compile(ground.network)
    photo = ground.pixels[:1]
    return lambda: compiled(photo).numpy()


def _openvino(file: Path, ground: Setup) -> Action:
    """OpenVINO's runtime without its telemetry package.

    Raises:
        RuntimeError: the package that reports to its maker's servers is installed.
    """
    try:
        found = version("openvino-telemetry")
    except PackageNotFoundError:
        found = ""
    if found:
        raise RuntimeError(f"openvino-telemetry {found} is installed and reports to servers: pip uninstall it")
    import openvino  # type: ignore[import-not-found,unused-ignore]

    core = openvino.Core()
    model = core.compile_model(
        str(file), "CPU", {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    )
    request = model.create_infer_request()
    request.set_input_tensor(openvino.Tensor(ground.photo["photo"]))

    def run() -> Any:
        request.infer()
        return request.get_output_tensor().data

    return run


def _cuda(ground: Setup, graph: bool) -> Action:
    """A photo's whole way: copied in, computed, copied out, waited for; computed by one graph launch if asked."""
    import copy

    network = copy.deepcopy(ground.network).cuda()
    host = ground.pixels[:1].pin_memory()
    there = host.cuda()
    if graph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # memory is allocated before it is recorded
                network(there)
        torch.cuda.current_stream().wait_stream(side)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            out = network(there)

        def replay() -> Any:
            there.copy_(host, non_blocking=True)
            recorded.replay()
            return out.cpu().numpy()

        return replay

    def eager() -> Any:
        there.copy_(host, non_blocking=True)
        return network(there).cpu().numpy()

    return eager


def _heads(table: Rows, ground: Setup, folder: Path) -> None:
    """ICIIA-T as Refocus exports it, streaming and window, beside the naive export, in one session each."""
    candidates: dict[str, Action] = {}
    for name in _iciia():
        made = METHODS[name](ground)
        program, _ = load(made, "onnx:fp32", folder / name)
        candidates[name] = program.bind(dict(made.inputs))
    found = table.time("ICIIA-T, onnxruntime", candidates)
    for name in [*candidates][1:]:
        table.ratio("ICIIA-T, onnxruntime", found, name, next(iter(candidates)))


def _iciia() -> Iterator[str]:
    yield from ("naive_iciia_t", "iciia_t", "iciia_t_streaming")
