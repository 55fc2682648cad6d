"""ONNX Runtime."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import platform
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before the library is loaded; the bound below is the real guard

import numpy as np
import onnxruntime

from refocus.edge.bundle.manifest import MAX_AXES, Tensor
from refocus.edge.bundle.verified_files import Content
from refocus.edge.bundle.weight_patching import weight_file_of
from refocus.edge.errors import BundleError, PersonalWeightsError, RuntimeUnavailable
from refocus.edge.runtimes.base import ARM64, ONNX_PROGRAM, Program, Source, in_one_line, version_numbers
from refocus.edge.runtimes.onnx_external_data import External, external_tensors
from refocus.edge.runtimes.placement import Part, Ran, no_profile, parts_of

# Where ONNX Runtime looks for files that a program names: below what is no folder and can never become one.
NOWHERE = f"{os.devnull}/none"
_KINDS = {"float32": "tensor(float)", "int64": "tensor(int64)"}  # the manifest's name of a type -> ONNX Runtime's
FIRST_WITH_TELEMETRY = (1, 29)
X86_64 = ("x86_64", "amd64")
VNNI = {"avx512_vnni", "avx_vnni"}  # instruction sets that add products of bytes without saturation
WRONG_WITH_SME = (1, 24), (1, 28)  # the first version with wrong convolutions, and the first without


def refuse_telemetry(version: str) -> None:
    """Official builds from 1.29 report to their maker's servers unless told not to: photos must stay on the device.

    Raises:
        RuntimeUnavailable: the version is 1.29 or newer.
    """
    if tuple(int(part) for part in version.split(".")[:2]) >= FIRST_WITH_TELEMETRY:
        raise RuntimeUnavailable(
            f"onnxruntime {version} carries telemetry; Refocus needs >=1.20,<1.29: pip install 'onnxruntime<1.29'"
        )


def session_entries(version: str, machine: str, precision: str = "fp32", instructions: str = "") -> dict[str, str]:
    """Session entries without which a version computes wrong features on some processors of a machine.

    x86 processors without VNNI multiply unsigned bytes by signed ones in a form that saturates: programs of w8a8 lose
    most there. The entry has ONNX Runtime make the signed ones unsigned, which is exact, and slower. Other programs do
    not get it: on integers without a zero point, as those of w8, it ends the process.

    From 1.24 to 1.27, convolutions of KleidiAI are wrong on arm64 processors with SME. 1.24 cannot be told to leave
    KleidiAI out and ignores the entry; there the bundle's self-test alone protects
    (:func:`refocus.edge.recognize.self_test.ensure_checked`).

    Args:
        machine: as ``platform.machine()`` names it.
        precision: of the program.
        instructions: of the processor, as Linux lists them; "" where nothing does.
    """
    if machine.lower() in X86_64:
        saturates = precision == "w8a8" and not VNNI & set(instructions.split())
        return {"session.x64quantprecision": "1"} if saturates else {}
    first, fixed = WRONG_WITH_SME
    affected = machine.lower() in ARM64 and first <= version_numbers(version) < fixed
    return {"mlas.disable_kleidiai": "1"} if affected else {}


@functools.cache
def processor_instructions(file: Path = Path("/proc/cpuinfo")) -> str:
    """The instruction sets of the first processor; "" where the system does not list them."""
    with contextlib.suppress(OSError):
        for line in file.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("flags"):
                return line.partition(":")[2]
    return ""


VERSION = str(onnxruntime.__version__)
refuse_telemetry(VERSION)


# What a user calls a provider -> what ONNX Runtime calls it.
PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
    "nnapi": "NnapiExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}
_FALLBACK_OFF = "fallback to CPU EP has been explicitly disabled"  # ONNX Runtime's words
# Options of a provider that decide how it computes, by its name in ONNX Runtime.
NUMERIC_OPTIONS = {"CUDAExecutionProvider": ("use_tf32",), "TensorrtExecutionProvider": ("trt_fp16_enable",)}


class Loaded(Program):
    """A program in an ONNX Runtime session."""

    session: Any

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.fallback, self._time_limit = "", source.time_limit if source.time_limit < threading.TIMEOUT_MAX else 0
        self._asked, self._profile = PROVIDERS.get(source.provider or "cpu", ""), source.profile
        program, options = source.program(ONNX_PROGRAM), _options(source)
        values = initial_values(program, source)
        options.add_external_initializers(list(values), list(values.values()))
        providers = self._providers(source)
        try:
            # Its own fallback prints and tries the same again, which helps where there is another provider alone.
            self.session = onnxruntime.InferenceSession(
                program, options, providers=providers, enable_fallback=int(len(providers) > 1)
            )
            if len(providers) == 1:
                self.session._model_bytes = None  # it keeps the whole file for that fallback
        except Exception as error:  # the library raises many private types for a program it cannot take
            if not source.allow_fallback and _FALLBACK_OFF in str(error):
                raise RuntimeUnavailable(
                    f"--refuse-fallback: {source.provider} does not take every node of {self.artifact.file};"
                    " refocus bench says what share, or allow the fallback to the CPU"
                ) from None
            raise self._refused(in_one_line(error)) from None
        self._check_declared()

    def _check_declared(self) -> None:
        """Compares the program's inputs and outputs with the manifest.

        Raises:
            BundleError: names, types or shapes differ, or are no text.
        """
        artifact = self.artifact
        declared = [tensor.name for tensor in artifact.inputs], [tensor.name for tensor in artifact.outputs]
        try:
            inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
            found = [node.name for node in inputs], [node.name for node in outputs]
            _ = [node.shape for node in (*inputs, *outputs)]
        except UnicodeDecodeError:
            raise self._refused("a name of an input or output is not UTF-8") from None
        if (sorted(declared[0]), declared[1]) != (sorted(found[0]), found[1]):
            raise BundleError(
                f"{artifact.file} has inputs and outputs {found}, its manifest says {declared}; export it again"
            )
        by_name = {tensor.name: tensor for tensor in artifact.inputs}
        pairs = [*((by_name[node.name], node) for node in inputs), *zip(artifact.outputs, outputs, strict=True)]
        for tensor, node in pairs:
            if not _as_declared(tensor, node.type, node.shape):
                raise BundleError(
                    f"{artifact.file} has {tensor.name[:80]} as {node.type} {node.shape}, its manifest"
                    f" says {tensor.dtype} {tensor.shape}; export it again"
                )

    def _refused(self, why: str) -> BundleError:
        return BundleError(f"{self.artifact.file} is not a program for onnxruntime {VERSION}: {why}")

    def _providers(self, source: Source) -> list[str]:
        cpu, asked = PROVIDERS["cpu"], source.provider or "cpu"
        if asked not in PROVIDERS:
            raise RuntimeUnavailable(f"--provider {asked}: onnxruntime has {', '.join(PROVIDERS)}")
        wanted, there = PROVIDERS[asked], onnxruntime.get_available_providers()
        if wanted == cpu:
            return [cpu]
        if wanted in there:
            return [wanted, cpu] if source.allow_fallback else [wanted]
        self.fallback = f"{asked} is not in this build of onnxruntime {VERSION}, which has {', '.join(there)}"
        if not source.allow_fallback:
            raise RuntimeUnavailable(f"{self.fallback}; install one that has it, or allow the fallback to the CPU")
        return [cpu]

    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return cast(list[np.ndarray], self._timed(lambda options: self.session.run(None, inputs, options)))

    def _timed(self, run: Callable[[onnxruntime.RunOptions | None], Any]) -> Any:
        """One run; ended by another thread if it takes longer than it may.

        ONNX Runtime looks between two operators whether it shall end, so one that is at work is waited for.

        Raises:
            BundleError: the program fails, or did not end in time.
        """
        options = onnxruntime.RunOptions() if self._time_limit else None
        timer = threading.Timer(self._time_limit, setattr, (options, "terminate", True)) if self._time_limit else None
        try:
            if timer is not None:
                timer.start()
            return run(options)
        except Exception as error:  # many private types
            if options is not None and options.terminate:
                raise BundleError(
                    f"{self.artifact.file} did not end within the time limit of {self._time_limit:g} s; give a longer"
                    " one, or fetch the bundle again from its source"
                ) from None
            raise self.failed(error) from None
        finally:
            if timer is not None:
                timer.cancel()

    def bind(
        self, inputs: dict[str, np.ndarray], outputs: Mapping[str, np.ndarray] = MappingProxyType({})
    ) -> Callable[[], dict[str, np.ndarray]]:
        self.check(inputs)
        shapes = {t.name: [n for n in t.shape if isinstance(n, int)] for t in self.artifact.outputs}
        if any(len(shapes[t.name]) < len(t.shape) for t in self.artifact.outputs):
            return super().bind(inputs, outputs)  # how large they will be is known at run time alone
        if self.session.get_providers() != [PROVIDERS["cpu"]]:
            return super().bind(inputs, outputs)  # a binding copies inputs to a GPU once, when they are bound
        answer = {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()} | dict(outputs)
        binding = self.session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
        for name, value in answer.items():
            binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
        return functools.partial(self._run_bound, binding, answer, (*inputs.values(),))

    def _run_bound(self, binding: Any, answer: dict[str, np.ndarray], inputs: object) -> dict[str, np.ndarray]:
        """One run of a binding.

        Args:
            inputs: the binding reads their memory and does not own it; they live as long as this call is to be made.
        """
        self.check_open()
        self._timed(lambda options: self.session.run_with_iobinding(binding, options))
        return answer

    def ran_on(self) -> str:
        nodes = self._nodes()
        said = ", ".join(f"{name} ({count} nodes)" if len(nodes) > 1 else name for name, count in nodes.items())
        said = said or cast(str, self.session.get_providers()[0])
        return said + (f" ({self.fallback})" if self.fallback else "")

    def _nodes(self) -> Counter[str]:
        """Nodes of the graph by the provider that has them, most first; empty where the session does not say.

        Since 1.24 it does. The providers that it registers are those that may take nodes, not those that do.
        """
        told, found = getattr(self.session, "get_provider_graph_assignment_info", None), Counter[str]()
        for subgraph in told() if told is not None else ():
            found[subgraph.ep_name] += len(subgraph.get_nodes())
        return Counter(dict(found.most_common()))

    def placement(self) -> tuple[Part, ...]:
        if self._profile is None:
            raise no_profile(self.artifact.file)
        self._profile = None
        return parts_of(newest_run(Path(self.session.end_profiling())), [self._asked], self._nodes())

    def numeric_path(self) -> str:
        told = self.session.get_provider_options()
        names = sorted(self._nodes()) or self.session.get_providers()[:1]
        said = [
            f"{option}={told[name][option]}"
            for name in names
            for option in NUMERIC_OPTIONS.get(name, ())
            if option in told.get(name, {})
        ]
        return " ".join([f"onnxruntime {VERSION}", "+".join(names), platform.machine(), *said])

    def close(self) -> None:
        self.closed, self.session = True, None


def newest_run(profile: Path) -> list[Ran]:
    """The nodes of the newest run in a profile of ONNX Runtime, in the order of the run.

    Raises:
        ValueError: nothing ran.
    """
    events = json.loads(profile.read_text())
    runs = [event["ts"] for event in events if event.get("name") == "model_run"]
    if not runs:
        raise ValueError(f"{profile.name}: the program was not run")
    kernels = [
        event
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and event["ts"] >= max(runs)
    ]
    kernels.sort(key=lambda event: event["ts"])
    return [Ran(event["args"]["provider"], event["dur"] / 1000, event["args"]["op_name"]) for event in kernels]


def _options(source: Source) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = source.threads
    options.log_severity_level = 4  # errors are raised; what is logged besides would repeat them on the terminal
    options.add_session_config_entry("session.load_model_format", "ONNX")  # the other format is not looked through
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", NOWHERE)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    # Threads that wait for work by spinning keep cores of a device busy, and warm, between two photos.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    entries = session_entries(VERSION, platform.machine(), source.artifact.precision, processor_instructions())
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    if source.profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(source.profile / "run")
    if not source.allow_fallback and source.provider not in ("", "cpu"):  # the CPU is no fallback of its own
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return options


def _as_declared(tensor: Tensor, kind: str, shape: Sequence[int | str | None]) -> bool:
    """Whether what a session says of an input or output can be what the manifest says."""
    sizes = zip(tensor.shape, shape, strict=False)
    return (
        kind == _KINDS[tensor.dtype]
        and len(tensor.shape) == len(shape)
        and all(want == have for want, have in sizes if isinstance(want, int) and isinstance(have, int))
    )


def initial_values(program: bytes, source: Source) -> dict[str, onnxruntime.OrtValue]:
    """Every tensor that a program keeps outside itself, by name: a person's, or that of a verified file beside it.

    Raises:
        BundleError: the program is not an ONNX file, or declares a tensor that its files do not hold.
        PersonalWeightsError: a tensor that the graph does not keep outside itself, or of another shape or type; or one
            is missing that neither they nor the bundle have.
    """
    file, weights, placed = source.artifact.file, source.weights, source.artifact.personal
    declared, files = external_tensors(program, file), dict(source.files)
    given = dict(weights.tensors) if weights is not None else {}
    if weights is not None and placed is not None:
        files[placed.file] = weight_file_of(weights, source.file(placed.file), placed).data
        given = {
            name: _inside(files[placed.file], tensor, f"{file}: {name[:80]}")
            for name, tensor in declared.items()
            if tensor.location == placed.file
        }
    if weights is not None and not given:
        raise weights.does_not_fit(f"{weights.path.name} is for another runtime than onnxruntime")
    for name, value in given.items():
        found = f"{value.dtype.name} {value.shape}"
        wanted = f"{declared[name].dtype} {declared[name].shape}" if name in declared else "no such external tensor"
        if weights is not None and found != wanted:
            raise weights.does_not_fit(f"{name} is {found}, {file} has {wanted}")
    for name in sorted(declared.keys() - given.keys()):
        location = declared[name].location
        if not source.is_folder or location not in files:
            raise PersonalWeightsError(
                f"{file} keeps {name[:80]} outside itself, and neither the bundle nor the person's weights have it;"
                " fetch weights for this version of the model"
            )
        given[name] = _inside(files[location], declared[name], f"{file}: {name[:80]}")
    return {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in given.items()}


def _inside(content: Content, tensor: External, what: str) -> np.ndarray:
    """A tensor over the bytes of a file; a copy where it is not aligned there.

    Raises:
        BundleError: it lies outside the file, or is of a type that numpy has not.
    """
    if tensor.dtype.startswith("ONNX") or len(tensor.shape) > MAX_AXES or max(tensor.shape, default=0) >= 2**31:
        raise BundleError(
            f"{what} is of {tensor.dtype} {tensor.shape[:MAX_AXES]}, which external data cannot"
            " hold; export the bundle again"
        )
    dtype, numbers = np.dtype(tensor.dtype), math.prod(tensor.shape)
    if tensor.offset + numbers * dtype.itemsize > len(content):
        raise BundleError(f"{what} lies outside {tensor.location[:80]}; export the bundle again")
    found = np.frombuffer(content, dtype, numbers, tensor.offset) if numbers else np.empty(0, dtype)
    return np.require(found.reshape(tensor.shape), requirements="A")
