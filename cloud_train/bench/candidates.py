"""Programs to measure: every method on a backbone, as it is exported, with example inputs.

Networks come without trained weights, with statistics of real photos (:mod:`refocus.cloud_train.bench.compatibility`):
weights decide nothing about speed as long as the numbers are ordinary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from refocus.benchmarks.suite import Backbone as BackboneSpec
from refocus.cloud_train.bench.compatibility import prepared, trained_weights
from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig, mac_count
from refocus.cloud_train.methods.iciia.gate import WarmUpGate
from refocus.cloud_train.methods.iciia.native import native_head
from refocus.cloud_train.methods.iciia.streaming import StreamingIciia, cache_shapes
from refocus.cloud_train.methods.iciia.windowed import WindowIciia
from refocus.cloud_train.methods.peft.adapters import insert_adapters
from refocus.cloud_train.methods.peft.prefixes import insert_prefixes
from refocus.cloud_train.methods.peft.prompts import PromptedViT
from refocus.edge.bundle import Artifact
from refocus.edge.runtimes import Program, load_artifact
from refocus.export.program import SIGNATURE, NativeHead, TorchProgram, answers, capture_freest, tensors
from refocus.export.targets import Settings, find_target, native, needs_ranges
from refocus.export.targets.single_program import artifact_of, write_single

LAYERS, WINDOW = 3, 16  # of the paper's Table 1
PROMPTS, INNER = 8, 64
FEWEST = 2  # classes of the native heads that stand for a block
UNTRAINED = "statistics of real photos, no trained weights"
CALIBRATION = 8  # inputs that fix the ranges of a w8a8 program here; its accuracy is not what is measured


@dataclass(frozen=True)
class Candidate:
    """A method's program before export.

    Attributes:
        module: in eval mode.
        inputs: arrays by name, as the device would give them.
        outputs: names and shapes.
        parameters, flops: of what the method adds to the backbone, or of the whole for one that changes it.
        quantised: whether w8a8 takes its layers; ICIIA stays in floating point there, as in a bundle.
        native: of a head for the native runtime, whatever the target of its encoder is.
    """

    module: nn.Module
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, tuple[int, ...]]
    parameters: int
    flops: float
    quantised: bool = False
    native: NativeHead | None = None


@dataclass(frozen=True)
class Setup:
    """Network, photos and target that all methods of a pair are built on.

    Attributes:
        weights: of what the network's numbers are.
    """

    network: Any
    width: int
    pixels: Tensor
    target: str
    spec: BackboneSpec
    weights: str = UNTRAINED

    @property
    def photo(self) -> dict[str, np.ndarray]:
        return {"photo": self.pixels[:1].numpy()}


def set_up(spec: BackboneSpec, target: str, photos: Path, weights: Path | None = None) -> Setup:
    """A backbone with statistics of real photos, or with trained weights, on one thread; the same every time.

    Args:
        weights: folder of trained weights, NAME_in1k.safetensors.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    program, pixels = prepared(spec.name, photos)
    network: Any = program.module
    file, about = trained_weights(weights, spec.name), UNTRAINED
    if file is not None:
        network.load_state_dict(load_file(file))
        about = f"trained weights, {file.name}"
    return Setup(network, int(network.head_hidden_size), pixels, target, spec, about)


def parameters_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def flops_of(module: nn.Module, *inputs: Tensor) -> float:
    """Multiply-adds of one call."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*inputs)
    return counter.get_total_flops() / 2


def _layout(setup: Setup) -> Any:
    return "elementwise" if setup.target.startswith("onnx") else "grouped"


def whole(module: nn.Module, setup: Setup, parameters: int | None = None) -> Candidate:
    """A network that is timed as a whole.

    Args:
        parameters: that a method added; None: all count.
    """
    with torch.no_grad():
        shape = tuple(module(setup.pixels[:1]).shape)
    parameters = parameters_of(module) if parameters is None else parameters
    flops = flops_of(module, setup.pixels[:1])
    return Candidate(module, setup.photo, {"feature": shape}, parameters, flops, quantised=True)


def bare(setup: Setup) -> Candidate:
    """The backbone with its classifier."""
    return whole(setup.network, setup)


def block(
    setup: Setup, partitions: int | None = None, form: Literal["window", "streaming", "naive"] = "window"
) -> Candidate:
    """An ICIIA block alone, neither classifier nor gate.

    Args:
        partitions: P; None: as many as the suite names for the backbone.
        form: "window": the paper's, a whole window for one photo; "streaming"; "naive": exported as it was trained,
            with no layout for a device.
    """
    partitions = partitions or setup.spec.partitions
    config = IciiaConfig(setup.width, LAYERS, partitions, window=WINDOW, classifier="own")
    inputs = {"window": _normal((1, WINDOW, setup.width))}
    outputs: dict[str, tuple[int, ...]] = {"calibrated": (1, setup.width)}
    if form == "streaming":
        config = replace(config, attention="causal")
        shapes = cache_shapes(config)
        inputs = {"feature": _normal((1, setup.width)), "history_length": np.array([WINDOW - 1])}
        inputs |= {name: _normal(shape) for name, shape in shapes.items()}
        outputs |= {f"new_{name}": (config.heads, 1, setup.width // config.heads) for name in shapes}
    iciia = IciiaClassifier(config, 1).iciia.eval()
    module = {
        "window": lambda: Called(WindowIciia(iciia, _layout(setup)), _last_of_window),
        "streaming": lambda: Called(StreamingIciia(iciia, _layout(setup)), _streamed),
        "naive": lambda: Called(iciia, lambda block, window: block(window)[:, -1]),
    }[form]()
    macs = mac_count(setup.width, partitions, LAYERS, WINDOW, 1 if form == "streaming" else WINDOW)
    return Candidate(module.eval(), inputs, outputs, parameters_of(iciia), macs)


class Called(nn.Module):
    """ICIIA alone, called as one form of it is exported."""

    def __init__(self, block: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.block, self.call = block, call

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(self.block, *inputs)


def _last_of_window(block: nn.Module, window: Tensor) -> Any:
    """window (1, W, D) -> the calibrated feature of its last photo (1, D)."""
    return block(window, torch.ones(window.shape[1], dtype=torch.bool, device=window.device))[0]


def _streamed(block: nn.Module, row: Tensor, length: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
    calibrated, _, rows = block(row, length, *caches)
    return calibrated, *rows


def _changed(change: Callable[[Any], Any]) -> Callable[[Setup], Candidate]:
    """A method that changes the network itself."""

    def candidate(setup: Setup) -> Candidate:
        module = change(copy.deepcopy(setup.network)).eval()
        return whole(module, setup, parameters_of(module) - parameters_of(setup.network))

    return candidate


def native_block(setup: Setup, form: Literal["window", "streaming"] = "window") -> Candidate:
    """ICIIA-T by the native head: of so few classes and so simple a gate that the block is nearly all of it."""
    partitions = setup.spec.partitions
    config = IciiaConfig(setup.width, LAYERS, partitions, window=WINDOW, classifier="shared")
    if form == "streaming":
        config = replace(config, attention="causal")
    plain = nn.Linear(setup.width, FEWEST)
    personal, gate = IciiaClassifier(config, FEWEST, plain).eval(), WarmUpGate(1)
    row = setup.width + SIGNATURE
    inputs, outputs = {"feature": _normal((1, row))}, dict[str, Any](answers(FEWEST, WINDOW))
    if form == "window":
        inputs |= {"history_length": np.array([WINDOW - 1]), "history": _normal((1, WINDOW - 1, row))}
    else:
        inputs["history_length"] = np.array([WINDOW * LAYERS])
        for name, shape in cache_shapes(config).items():
            inputs[name] = _normal(shape)
            outputs[name.replace("keys", "key").replace("values", "value")] = shape[0], 1, shape[-1]
    macs = mac_count(setup.width, partitions, LAYERS, WINDOW, 1 if form == "streaming" else WINDOW)
    return Candidate(
        nn.Identity(),
        inputs,
        outputs,
        parameters_of(personal.iciia),
        macs,
        native=native_head(plain, personal, gate, form),
    )


METHODS: dict[str, Callable[[Setup], Candidate]] = {
    "iciia_b": lambda setup: block(setup, 1),
    "iciia_t": block,
    "iciia_b_streaming": lambda setup: block(setup, 1, "streaming"),
    "iciia_t_streaming": lambda setup: block(setup, form="streaming"),
    "naive_iciia_t": lambda setup: block(setup, form="naive"),
    "iciia_t_native": native_block,
    "iciia_t_native_streaming": lambda setup: native_block(setup, "streaming"),
    "prompts": _changed(lambda network: nn.Sequential(PromptedViT(network, PROMPTS), network.get_classifier())),
    "prefixes": _changed(insert_prefixes),
    "adapters": _changed(lambda network: insert_adapters(network, INNER)),
}


def load(candidate: Candidate, target: str, folder: Path, free_batch: bool = False) -> tuple[Program, int]:
    """Exports a method's program for a target and loads it through the device's own code.

    Args:
        free_batch: as encoders have it in a bundle; else one photo at a time.

    Returns:
        the program, and the size of its file.
    """
    artifact, size = write(candidate, target, folder, free_batch)
    return load_artifact(folder, artifact, threads=1), size


def write(candidate: Candidate, target: str, folder: Path, free_batch: bool = False) -> tuple[Artifact, int]:
    """Exports a method's program for a target into a folder that is made.

    Args:
        free_batch: as of :func:`load`.

    Returns:
        what the device loads it by, and the size of its file.

    Raises:
        ExportError: the target has no form for it, or cannot run here.
    """
    folder.mkdir()
    inputs, outputs = (
        {name: ("batch", *shape[1:]) if free_batch else shape for name, shape in shapes.items()}
        for shapes in ({name: value.shape for name, value in candidate.inputs.items()}, candidate.outputs)
    )
    program = TorchProgram(
        role="head" if candidate.native else "encoder",
        module=candidate.module.eval(),
        inputs=tensors(inputs),
        outputs=tensors(outputs),
        identity=folder.name,
        quantisable=tuple(name for name, _ in candidate.module.named_children()) if candidate.quantised else (),
        native=candidate.native,
    )
    runtime, _, precision = target.partition(":")
    if candidate.native:
        precision = "fp32" if precision == "fp32" else "w16"
        path = folder / f"program{native.SUFFIX}"
        written = native.write(program, None, Settings(precision), path)
        return artifact_of(f"native:{precision}", written, path), path.stat().st_size
    if not candidate.quantised:
        target = f"{runtime}:fp32" if needs_ranges(target) else target
    with torch.no_grad():
        program, captured = capture_freest(program)
        _, precision = find_target(target)
        settings = Settings(precision)
        if needs_ranges(target):
            settings = replace(settings, calibration=tuple(_varied(candidate.inputs, n) for n in range(CALIBRATION)))
        written, path = write_single(target, program, captured, settings, folder)
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return artifact_of(target, written, path), sum(file.stat().st_size for file in files)


def _varied(inputs: Mapping[str, np.ndarray], number: int) -> tuple[Tensor, ...]:
    """Inputs of other sizes of values, so that ranges have some width."""
    scale = np.float32(0.8 + 0.4 * number / CALIBRATION)
    return tuple(
        torch.from_numpy(value if value.dtype.kind == "i" else np.ascontiguousarray(value * scale))
        for value in inputs.values()
    )


def _normal(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def labels(classes: int) -> tuple[str, ...]:
    """Names for classes that have none."""
    return tuple(f"class {number}" for number in range(classes))
