"""Compare one network in all installed runtimes, in one process.

The runs are interleaved: the device's own code, bare runtimes, eager and compiled torch, and OpenVINO; and ICIIA-T as
Refocus exports it, compared with a naive export. On a GPU, torch with CUDA graphs is the reference. The module is in
``studies`` because ``benchmarks`` does not depend on torch.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from refocus.benchmarks.devices import describe, new_document, versions
from refocus.benchmarks.document import Conditions, Document, Photos
from refocus.benchmarks.rows.recorder import Rows
from refocus.benchmarks.rows.saved_program import Action
from refocus.benchmarks.suite import Backbone
from refocus.benchmarks.suite_pair import reason_of, time_over_first
from refocus.cloud_train.bench.candidates import METHODS, UNTRAINED, Candidate, Setup, bare, load, set_up
from refocus.cloud_train.bench.compatibility import bare_session
from studies.bench.cuda_programs import recorded

GROUP = "peers"
REFERENCE = "refocus, onnxruntime"
LIBRARIES = ("torch", "timm", "onnxruntime", "executorch", "openvino", "numpy")
MAX_ERROR = 1e-3  # relative to the largest value: who is faster by being wrong is no peer


def measure(backbone: str, photos: Path, conditions: Conditions, command: str, device: str = "cpu") -> Document:
    """Measure all installed peers; name the others with the reason.

    Args:
        backbone: timm name of the network.
        photos: folder of real photos.
        conditions: conditions of the measurement.
        command: command line, stored in the document.
        device: "cpu", or "cuda" for torch's own reference on a GPU.
    """
    began = time.perf_counter()
    setup = set_up(Backbone(backbone, (), 256), "onnx:fp32", photos)
    table = Rows(backbone, "fp32", describe(device), conditions)
    with tempfile.TemporaryDirectory() as temporary, torch.inference_mode():
        wanted = setup.network(setup.pixels[:1]).numpy()
        actions: dict[str, Action] = {}
        for name, make in _peers(setup, Path(temporary), device).items():
            try:
                action = make()
                _check(np.asarray(action()), wanted)
                actions[name] = action
            except Exception as error:
                table.lacks(name, reason_of(error))
        time_over_first(table, GROUP, actions, REFERENCE)
        # ICIIA-T as Refocus exports it, window and streaming, and the naive export, in one session each.
        blocks = {name: METHODS[name](setup) for name in ("naive_iciia_t", "iciia_t", "iciia_t_streaming")}
        loaded = {name: load(block, "onnx:fp32", Path(temporary) / name)[0] for name, block in blocks.items()}
        time_over_first(
            table, "ICIIA-T, onnxruntime", {name: loaded[name].bind(dict(blocks[name].inputs)) for name in blocks}
        )
    machine = msgspec.structs.replace(table.machine, versions=versions(LIBRARIES))
    about = Photos(source=photos.name, count=len(setup.pixels), fingerprint=UNTRAINED)
    return table.added_to(new_document(command, "peers", machine, about, began))


def _check(result: np.ndarray, wanted: np.ndarray) -> None:
    error = float(np.abs(result - wanted).max() / np.abs(wanted).max())
    if not error <= MAX_ERROR:
        raise ValueError(f"its answer is {error:.1e} off, at most {MAX_ERROR} counts")


def _peers(setup: Setup, folder: Path, device: str) -> dict[str, Callable[[], Action]]:
    candidate = bare(setup)
    onnx_file = folder / "refocus-onnx" / "program.onnx"
    peers: dict[str, Callable[[], Action]] = {
        REFERENCE: lambda: _refocus(candidate, "onnx:fp32", folder / "refocus-onnx"),
        "bare onnxruntime": lambda: _onnxruntime(onnx_file, setup),
        "refocus, executorch": lambda: _refocus(candidate, "executorch:fp32", folder / "refocus-executorch"),
        "eager torch": lambda: lambda: setup.network(setup.pixels[:1]).numpy(),
        "compiled torch": lambda: _compiled(setup),
        "openvino": lambda: _openvino(onnx_file, setup),
    }
    if device == "cuda":
        peers["eager torch on cuda"] = lambda: _cuda(setup, False)
        peers["torch with a CUDA graph"] = lambda: _cuda(setup, True)
    return peers


def _refocus(candidate: Candidate, target: str, folder: Path) -> Action:
    program, _ = load(candidate, target, folder)
    bound = program.bind(dict(candidate.inputs))
    return lambda: bound()["feature"]


def _onnxruntime(file: Path, setup: Setup) -> Action:
    """Run a session with a dictionary, as a tutorial does."""
    session = bare_session(str(file))
    inputs = dict(setup.photo)
    return lambda: session.run(None, inputs)[0]


def _compiled(setup: Setup) -> Action:
    compiled = torch.compile(setup.network)
    photo = setup.pixels[:1]
    return lambda: compiled(photo).numpy()


def _openvino(file: Path, setup: Setup) -> Action:
    """Compile a network in OpenVINO; refuse its telemetry package.

    Raises:
        RuntimeError: the package that reports to its maker's servers is installed.
    """
    if telemetry := versions(("openvino-telemetry",)).get("openvino-telemetry"):
        raise RuntimeError(f"openvino-telemetry {telemetry} is installed and reports to servers: pip uninstall it")
    import openvino  # type: ignore[import-not-found,unused-ignore]

    core = openvino.Core()
    model = core.compile_model(
        str(file), "CPU", {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    )
    request = model.create_infer_request()
    request.set_input_tensor(openvino.Tensor(setup.photo["photo"]))

    def run() -> Any:
        request.infer()
        return request.get_output_tensor().data

    return run


def _cuda(setup: Setup, graph: bool) -> Action:
    """Prepare a run of a photo on the GPU, with both copies.

    The photo is copied in, computed, copied out and waited for; with ``graph`` it is computed by one graph launch.
    """
    network = copy.deepcopy(setup.network).cuda()
    host = setup.pixels[:1].pin_memory()
    there = host.cuda()
    compute = recorded(lambda: network(there)) if graph else lambda: network(there)

    def run() -> Any:
        there.copy_(host, non_blocking=True)
        return compute().cpu().numpy()

    return run
