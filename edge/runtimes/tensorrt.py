"""TensorRT: the bundle holds ONNX; the engine is built on this device on first use and kept.

An engine runs only on the TensorRT version and the GPU it was built for. So it never travels: it is kept below the
user's cache folder under a key of everything that decides it, and built again, with one sentence that says why, when
the key of what is there does not match.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorrt as trt
from cuda.bindings import runtime as cudart

from refocus.edge.bundle.manifest import Artifact
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.runtimes.base import Program, Source
from refocus.edge.runtimes.engine_cache import EngineCache, EngineKey
from refocus.edge.runtimes.onnx_external_data import external_tensors
from refocus.edge.runtimes.placement import Part, no_profile, whole

VERSION = str(trt.__version__)
logger = logging.getLogger(__name__)
_LOGGER = trt.Logger(trt.Logger.ERROR)


class Loaded(Program):
    """An engine with one execution context; inputs and outputs are copied to and from the GPU for each photo.

    Memory on the GPU is reserved once per input and output, and again only where a later one is larger.

    Attributes:
        mark: called with the name of a part and the stream once the part is enqueued, for those who measure.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.threads = 0  # a GPU's are not chosen
        if source.provider not in ("", "cuda"):
            raise RuntimeUnavailable(f"--provider {source.provider}: tensorrt runs on cuda")
        artifact, program = source.artifact, source.file("")
        if external_tensors(bytes(program), artifact.file):  # which TensorRT's parser would look for by itself
            raise BundleError(
                f"{artifact.file} keeps tensors outside itself, which TensorRT must not read; export it again"
            )
        key = EngineKey(VERSION, gpu_name(), artifact.precision, artifact.calibration or "", artifact.sha256)
        content = EngineCache().get(key, lambda: build_engine(bytes(program), artifact), logger.info)
        engine = trt.Runtime(_LOGGER).deserialize_cuda_engine(content)
        if engine is None:
            raise BundleError(
                f"{artifact.file}: TensorRT {VERSION} cannot load its engine; remove {EngineCache().folder}"
            )
        self._engine, self._context = engine, engine.create_execution_context()
        if self._context is None:
            raise BundleError(f"{artifact.file}: TensorRT {VERSION} has no memory for its engine; close other programs")
        _, self._stream = _cuda(cudart.cudaStreamCreate())
        self._memory: dict[str, tuple[Any, int]] = {}  # pointer and size by the name of an input or output
        self._free = weakref.finalize(self, _free, self._stream, self._memory)
        self._free.atexit = False  # the driver frees what is left when the process ends
        self.mark: Callable[[str, Any], object] = lambda part, stream: None
        self._layers: dict[str, float] | None = None
        if source.profile is not None:
            self._layers = {}
            self._context.profiler = _profiler(self._layers)

    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        given = {tensor.name: np.ascontiguousarray(inputs[tensor.name]) for tensor in self.artifact.inputs}
        outputs = []
        with self._waited_for():
            self.mark("begin", self._stream)
            for name, value in given.items():
                self._context.set_input_shape(name, value.shape)
                self._upload(name, value)
            self.mark("host to device", self._stream)
            for tensor in self.artifact.outputs:
                output = np.empty(tuple(self._context.get_tensor_shape(tensor.name)), dtype=np.float32)
                outputs.append((output, self._reserve(tensor.name, output.nbytes)))
            if not self._context.execute_async_v3(self._stream):
                raise BundleError(f"{self.artifact.file}: TensorRT could not run the engine")
            self.mark("compute", self._stream)
            for output, pointer in outputs:
                kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
                _cuda(cudart.cudaMemcpyAsync(output.ctypes.data, pointer, output.nbytes, kind, self._stream))
            self.mark("device to host", self._stream)
        return [output for output, _ in outputs]

    @contextlib.contextmanager
    def _waited_for(self) -> Iterator[None]:
        """Waits for all that was enqueued, after an error too: arrays of the host must live as long."""
        try:
            yield
        except BaseException:
            cudart.cudaStreamSynchronize(self._stream)
            raise
        _cuda(cudart.cudaStreamSynchronize(self._stream))

    def _upload(self, name: str, value: np.ndarray) -> None:
        pointer = self._reserve(name, value.nbytes)
        kind = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        _cuda(cudart.cudaMemcpyAsync(pointer, value.ctypes.data, value.nbytes, kind, self._stream))

    def _reserve(self, name: str, size: int) -> Any:
        """Memory for an input or output; what it had before is kept where that is enough. Nothing runs meanwhile."""
        pointer, reserved = self._memory.get(name, (None, 0))
        if pointer is not None and reserved >= size:
            return pointer
        if pointer is not None:
            del self._memory[name]
            _cuda(cudart.cudaFree(pointer))
        _, pointer = _cuda(cudart.cudaMalloc(max(size, 1)))
        self._memory[name] = pointer, max(size, 1)
        self._context.set_tensor_address(name, int(pointer))
        return pointer

    def ran_on(self) -> str:
        return f"TensorRT {VERSION} on {gpu_name()}"

    def placement(self) -> tuple[Part, ...]:
        """The engine's layers and their time; an engine runs on its GPU alone."""
        if self._layers is None:
            raise no_profile(self.artifact.file)
        layers, self._layers = self._layers, None
        self._context.profiler = None
        return whole(f"TensorRT on {gpu_name()}", int(self._engine.num_layers), sum(layers.values()))

    def numeric_path(self) -> str:
        return f"tensorrt {VERSION} {gpu_name()}"

    def close(self) -> None:
        self.closed = True
        self._context = self._engine = None
        self._free()


def _profiler(layers: dict[str, float]) -> Any:
    """A profiler that keeps the milliseconds of each layer of the newest run."""

    def report_layer_time(self: Any, name: str, ms: float) -> None:
        layers[name] = ms

    made = type("LayerTimes", (trt.IProfiler,), {"report_layer_time": report_layer_time})
    return made()


def _free(stream: Any, memory: dict[str, tuple[Any, int]]) -> None:
    """Frees what a program holds on the GPU, once."""
    cudart.cudaStreamSynchronize(stream)
    for pointer, _ in memory.values():
        cudart.cudaFree(pointer)
    memory.clear()
    cudart.cudaStreamDestroy(stream)


def gpu_name() -> str:
    """Name and compute capability of the first GPU.

    Raises:
        RuntimeUnavailable: CUDA finds none.
    """
    error, properties = cudart.cudaGetDeviceProperties(0)
    if error != cudart.cudaError_t.cudaSuccess:
        raise RuntimeUnavailable(f"tensorrt needs an NVIDIA GPU, and CUDA finds none ({error.name})")
    return f"{properties.name.decode()} sm_{properties.major}{properties.minor}"


def build_engine(onnx: bytes, artifact: Artifact) -> bytes:
    """Parses the ONNX file as a strongly typed network and builds an engine; free dimensions take 1 to 8 photos.

    Raises:
        BundleError: TensorRT cannot parse the file or build the engine.
    """
    builder = trt.Builder(_LOGGER)
    # From 11 on every network is strongly typed and the flag means nothing.
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(1 << int(flag) if flag is not None else 0)
    parser = trt.OnnxParser(network, _LOGGER)
    if not parser.parse(onnx):
        errors = "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors))
        raise BundleError(f"{artifact.file}: TensorRT {VERSION} cannot parse it: {errors}")
    configuration, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for tensor in artifact.inputs:
        if any(isinstance(size, str) for size in tensor.shape):
            least, most = ([n if isinstance(s, str) else s for s in tensor.shape] for n in (1, 8))
            profile.set_shape(tensor.name, least, least, most)
    configuration.add_optimization_profile(profile)
    built = builder.build_serialized_network(network, configuration)
    if built is None:
        raise BundleError(f"{artifact.file}: TensorRT {VERSION} could not build an engine on {gpu_name()}")
    return bytes(built)


def _cuda(result: Any) -> Any:
    if result[0] != cudart.cudaError_t.cudaSuccess:
        raise RuntimeUnavailable(f"CUDA: {result[0].name}")
    return result if len(result) > 1 else (result[0], None)
