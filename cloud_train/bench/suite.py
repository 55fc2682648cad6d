"""The programs of ``refocus bench suite``: every method on every backbone, as it is exported, over the bare backbone.

Networks come without trained weights, with statistics of real photos (:mod:`refocus.cloud_train.bench.compatibility`):
weights decide nothing about speed as long as the numbers are ordinary. One pair of backbone and target is one process,
so that one that crashes or eats all memory is one row with a reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from refocus.benchmarks.devices import REFOCUS, describe, versions
from refocus.benchmarks.document import Conditions, Counted, Document, Missing, Photos, write_document
from refocus.benchmarks.rows.personal import CONDENSED
from refocus.benchmarks.rows.recorder import Rows
from refocus.benchmarks.suite import BARE, GROUP, Backbone, Pair, as_json
from refocus.cloud_train.bench.compatibility import CLASSES, photo_files, prepared
from refocus.cloud_train.bench.condensed import condensed
from refocus.cloud_train.bench.overhead import StreamingBlock, WindowBlock, specs
from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig
from refocus.cloud_train.methods.iciia.streaming import StreamingIciia, cache_shapes
from refocus.cloud_train.methods.iciia.windowed import WindowIciia
from refocus.cloud_train.methods.peft.adapters import insert_adapters
from refocus.cloud_train.methods.peft.prefixes import insert_prefixes
from refocus.cloud_train.methods.peft.prompts import PromptedViT
from refocus.edge.runtimes import Program
from refocus.export.program import TorchProgram, capture_freest
from refocus.export.targets import Settings, find_target
from refocus.export.targets.single_program import load_single, write_single

TAPER = "taper"
LAYERS, WINDOW = 3, 16  # of the paper's Table 1
PROMPTS, INNER = 8, 64
UNTRAINED = "statistics of real photos, no trained weights"
CALIBRATION = 8  # inputs that fix the ranges of an int8 program here; its accuracy is not what is measured


@dataclass(frozen=True)
class Candidate:
    """A method's program before export.

    Attributes:
        module: in eval mode.
        inputs: arrays by name, as the device would give them.
        outputs: names and shapes.
        parameters, flops: of what the method adds to the backbone, or of the whole for one that changes it.
        quantised: whether int8 takes its layers; ICIIA stays in floating point there, as in a bundle.
    """

    module: nn.Module
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, tuple[int, ...]]
    parameters: int
    flops: float
    quantised: bool = False


@dataclass(frozen=True)
class Setup:
    """What every method of a pair stands on."""

    network: Any
    width: int
    pixels: Tensor
    target: str
    spec: Backbone

    @property
    def photo(self) -> dict[str, np.ndarray]:
        return {"photo": self.pixels[:1].numpy()}


def parameters_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def flops_of(module: nn.Module, *inputs: Tensor) -> float:
    """Multiply-adds of one call."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*inputs)
    return counter.get_total_flops() / 2


def iciia_flops(config: IciiaConfig, rows: int) -> float:
    """Multiply-adds of a block for so many new photos (paper, section 3.5); biases and norms are negligible."""
    width = config.width
    return (6 * rows * width**2 / config.partitions + 2 * rows * config.window * width) * config.layers


def _config(ground: Setup, partitions: int, attention: Literal["full", "causal"]) -> IciiaConfig:
    return IciiaConfig(
        width=ground.width, layers=LAYERS, partitions=partitions, window=WINDOW, attention=attention, classifier="own"
    )


def _layout(ground: Setup) -> Any:
    return "elementwise" if ground.target.startswith("onnx") else "grouped"


def bare(ground: Setup) -> Candidate:
    network = ground.network
    return Candidate(
        network,
        ground.photo,
        {"feature": (1, CLASSES)},
        parameters_of(network),
        flops_of(network, ground.pixels[:1]),
        quantised=True,
    )


def _window(ground: Setup, partitions: int) -> Candidate:
    config = _config(ground, partitions, "full")
    iciia = IciiaClassifier(config, 1).iciia.eval()
    rows = _normal((1, WINDOW, ground.width))
    return Candidate(
        WindowBlock(WindowIciia(iciia, _layout(ground))).eval(),
        {"window": rows},
        {"calibrated": (1, ground.width)},
        parameters_of(iciia),
        iciia_flops(config, WINDOW),
    )


def _streaming(ground: Setup, partitions: int) -> Candidate:
    config = _config(ground, partitions, "causal")
    iciia = IciiaClassifier(config, 1).iciia.eval()
    shapes = cache_shapes(config)
    inputs = {"feature": _normal((1, ground.width)), "history_length": np.array([WINDOW - 1])}
    inputs |= {name: _normal(shape) for name, shape in shapes.items()}
    row = (config.heads, 1, ground.width // config.heads)
    outputs = {"calibrated": (1, ground.width), **{f"new_{name}": row for name in shapes}}
    return Candidate(
        StreamingBlock(StreamingIciia(iciia, _layout(ground))).eval(),
        inputs,
        outputs,
        parameters_of(iciia),
        iciia_flops(config, 1),
    )


class Naive(nn.Module):
    """ICIIA exported as it was trained: the whole window through every layer, no layout for a device."""

    def __init__(self, iciia: nn.Module) -> None:
        super().__init__()
        self.iciia = iciia

    def forward(self, window: Tensor) -> Tensor:
        """window (1, W, D) -> the calibrated feature of its last photo (1, D)."""
        found = self.iciia(window)
        rows: Tensor = found[0] if isinstance(found, tuple) else found
        return rows[:, -1]


def naive(ground: Setup) -> Candidate:
    config = _config(ground, ground.spec.partitions, "full")
    iciia = IciiaClassifier(config, 1).iciia.eval()
    return Candidate(
        Naive(iciia).eval(),
        {"window": _normal((1, WINDOW, ground.width))},
        {"calibrated": (1, ground.width)},
        parameters_of(iciia),
        iciia_flops(config, WINDOW),
    )


def _whole(change: Callable[[Any], nn.Module]) -> Callable[[Setup], Candidate]:
    """A method that changes the network itself: timed as a whole."""

    def make(ground: Setup) -> Candidate:
        import copy

        before = parameters_of(ground.network)
        module = change(copy.deepcopy(ground.network)).eval()
        added = parameters_of(module) - before
        with torch.no_grad():
            shape = tuple(module(ground.pixels[:1]).shape)
        return Candidate(
            module, ground.photo, {"feature": shape}, added, flops_of(module, ground.pixels[:1]), quantised=True
        )

    return make


def _prefixed(network: Any) -> nn.Module:
    found = insert_prefixes(network)
    return found if isinstance(found, nn.Module) else network


def _adapted(network: Any) -> nn.Module:
    found = insert_adapters(network, INNER)
    return found if isinstance(found, nn.Module) else network


METHODS: dict[str, Callable[[Setup], Candidate]] = {
    "iciia_b": lambda ground: _window(ground, 1),
    "iciia_t": lambda ground: _window(ground, ground.spec.partitions),
    "iciia_b_streaming": lambda ground: _streaming(ground, 1),
    "iciia_t_streaming": lambda ground: _streaming(ground, ground.spec.partitions),
    "naive_iciia_t": naive,
    "prompts": _whole(lambda network: nn.Sequential(PromptedViT(network, PROMPTS), network.get_classifier())),
    "prefixes": _whole(_prefixed),
    "adapters": _whole(_adapted),
}


def measure_pair(pair: Pair, photos: Path, conditions: Conditions, command: str) -> Document:
    """All methods of a pair, in turns with the bare backbone; a method that fails is named in ``missing``."""
    began, started = time.perf_counter(), datetime.now(timezone.utc)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    program, pixels = prepared(pair.backbone.name, photos)
    network: Any = program.module
    ground = Setup(network, int(network.head_hidden_size), pixels, pair.target, pair.backbone)
    table = Rows(pair.backbone.name, pair.target, describe(), conditions)
    counted: list[Counted] = []
    candidates: dict[str, Callable[[], object]] = {}
    condense: Callable[[], object] | None = None
    with tempfile.TemporaryDirectory() as temporary:
        for name in (BARE, *pair.backbone.methods):
            try:
                if name == TAPER:
                    (Path(temporary) / name).mkdir()
                    own = condensed(pair.backbone.name, network, pair.target, photos, Path(temporary) / name)
                    candidates[name], condense = own.photo, own.condense
                    parts = parameters_of(network), flops_of(network, pixels[:1]), own.size_bytes
                else:
                    candidates[name], parts = _candidate(name, ground, Path(temporary) / name)
            except Exception as error:
                if name == BARE:
                    raise
                table.lacks(name, " ".join(f"{type(error).__name__}: {error}".split())[:300])
                continue
            parameters, flops, size = parts
            counted.append(
                Counted(
                    bundle=table.bundle,
                    target=table.target_name,
                    name=name,
                    parameters=parameters,
                    flops=flops,
                    size_bytes=size,
                )
            )
        found = table.time(GROUP, candidates)
        for name in [*candidates][1:]:
            table.ratio(GROUP, found, name, BARE)
        if condense is not None:
            table.time("condensing", {"condense": condense}, conditions=CONDENSED)
    about = Photos(source=photos.name, count=len(pixels), fingerprint=UNTRAINED)
    return Document(
        command=command,
        refocus=versions((REFOCUS,)).get(REFOCUS, "unknown"),
        mode="suite",
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - began,
        machine=table.machine,
        photos=about,
        rows=tuple(table.rows),
        ratios=tuple(table.ratios),
        counted=tuple(counted),
        missing=tuple(table.missing),
    )


def _candidate(name: str, ground: Setup, folder: Path) -> tuple[Callable[[], object], tuple[int, float, int]]:
    """A method's program, ready to run, and its parameters, multiply-adds and bytes."""
    make = {**METHODS, BARE: bare}.get(name)
    if make is None:
        raise ValueError(f"no such method; known are {', '.join((*METHODS, TAPER))}")
    made = make(ground)
    program, size = load(made, ground.target, folder)
    action = program.bind(dict(made.inputs))
    action()  # what cannot run is found here, where it stops nothing else
    return action, (made.parameters, made.flops, size)


def load(made: Candidate, target: str, folder: Path) -> tuple[Program, int]:
    """Exports a method's program for a target and loads it through the device's own code.

    Returns:
        the program, and the size of its file.
    """
    folder.mkdir()
    inputs = specs({name: value.shape for name, value in made.inputs.items()})
    program = TorchProgram(
        role="encoder",
        module=made.module.eval(),
        inputs=inputs,
        outputs=specs(made.outputs),
        identity=folder.name,
        quantisable=_layers(made),
    )
    if not made.quantised:
        target = target.replace(":int8", ":fp32")
    with torch.no_grad():
        program, captured = capture_freest(program)
        _, precision = find_target(target)
        settings = Settings(precision)
        if precision == "int8":
            settings = replace(settings, calibration=tuple(_varied(made.inputs, n) for n in range(CALIBRATION)))
        written, path = write_single(target, program, captured, settings, folder)
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return load_single(target, written, path), sum(file.stat().st_size for file in files)


def _layers(made: Candidate) -> tuple[str, ...]:
    return tuple(name for name, _ in made.module.named_children()) if made.quantised else ()


def _varied(inputs: Mapping[str, np.ndarray], number: int) -> tuple[Tensor, ...]:
    """Inputs of other sizes of values, so that ranges have some width."""
    scale = np.float32(0.8 + 0.4 * number / CALIBRATION)
    return tuple(
        torch.from_numpy(value if value.dtype.kind == "i" else np.ascontiguousarray(value * scale))
        for value in inputs.values()
    )


def _normal(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# ---- each pair in a process


def in_a_process(photos: Path, conditions: Conditions, command: str, limit_s: float) -> Callable[[Pair, Path], None]:
    """Measures a pair in a process of its own; what went wrong becomes the document."""
    if len(photo_files(photos)) == 0:
        from refocus.cloud_train.errors import UsageError

        raise UsageError(f"--photos {photos}: expected a folder of photos")

    def measure(pair: Pair, path: Path) -> None:
        asked = as_json(pair, photos=str(photos), conditions=conditions, command=command, out=str(path))
        try:
            own = [sys.executable, "-m", "refocus.cloud_train.bench.suite"]
            done = subprocess.run(own, input=asked, capture_output=True, timeout=limit_s, check=False)  # noqa: S603
            last = (done.stderr.decode(errors="replace").strip() or "no message").splitlines()[-1]
            why = f"the process ended with status {done.returncode}: {last}"
        except subprocess.TimeoutExpired:
            why = f"not done after {limit_s:.0f} s"
        if not path.exists():
            write_document(_empty(pair, photos, command, why[:300]), path)

    return measure


def _empty(pair: Pair, photos: Path, command: str, why: str) -> Document:
    return Document(
        command=command,
        refocus=versions((REFOCUS,)).get(REFOCUS, "unknown"),
        mode="suite",
        seconds=0.0,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=describe(),
        photos=Photos(source=photos.name, count=0, fingerprint=""),
        missing=(Missing(what=f"{pair.backbone.name} {pair.target}", why=why),),
    )


def main() -> None:
    """The process: is asked on standard input, writes the document."""
    asked = json.load(sys.stdin)
    pair = Pair(msgspec.convert(asked["backbone"], Backbone), asked["target"])
    conditions = msgspec.convert(asked["conditions"], Conditions)
    photos, out = Path(asked["photos"]), Path(asked["out"])
    try:
        document = measure_pair(pair, photos, conditions, asked["command"])
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        document = _empty(pair, photos, asked["command"], why)
    write_document(document, out)


if __name__ == "__main__":
    main()
