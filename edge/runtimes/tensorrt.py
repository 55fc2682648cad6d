"""TensorRT: the bundle holds ONNX; the engine is built on this device on first use and kept.

An engine runs only on the TensorRT version and the GPU it was built for. So it never travels: it is kept below the
user's cache folder under a key of everything that decides it, and built again, with one sentence that says why, when
the key of what is there does not match.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorrt as trt
from cuda.bindings import runtime as cudart

from edge.errors import BundleError, RuntimeUnavailable
from edge.manifest import Artifact
from edge.runtimes.base import Program, Source
from edge.runtimes.engines import EngineCache, EngineKey

VERSION = str(trt.__version__)
_LOGGER = trt.Logger(trt.Logger.ERROR)


class Loaded(Program):
    """An engine with one execution context; inputs and outputs are copied to and from the GPU for each photo.

    Attributes:
        mark: called with the name of a part and the stream once the part is enqueued, for those who measure.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        if source.provider not in ("", "cuda"):
            raise RuntimeUnavailable(f"--provider {source.provider}: tensorrt runs on cuda")
        artifact = source.artifact
        key = EngineKey(VERSION, gpu_name(), artifact.precision, artifact.calibration or "", artifact.sha256)
        content = EngineCache().get(key, lambda: build_engine(source.content or b"", artifact), sys.stderr.write)
        engine = trt.Runtime(_LOGGER).deserialize_cuda_engine(content)
        if engine is None:
            raise BundleError(
                f"{artifact.file}: TensorRT {VERSION} cannot load its engine; remove {EngineCache().folder}"
            )
        self._engine, self._context = engine, engine.create_execution_context()
        _, self._stream = _cuda(cudart.cudaStreamCreate())
        self.mark: Callable[[str, Any], object] = _unmarked

    def run_unchecked(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        memory, outputs = [], []
        try:
            self.mark("begin", self._stream)
            for tensor in self.artifact.inputs:
                value = np.ascontiguousarray(inputs[tensor.name])
                self._context.set_input_shape(tensor.name, value.shape)
                memory.append(self._upload(tensor.name, value))
            self.mark("host to device", self._stream)
            for tensor in self.artifact.outputs:
                output = np.empty(tuple(self._context.get_tensor_shape(tensor.name)), dtype=np.float32)
                memory.append(self._reserve(tensor.name, output.nbytes))
                outputs.append((output, memory[-1]))
            if not self._context.execute_async_v3(self._stream):
                raise BundleError(f"{self.artifact.file}: TensorRT could not run the engine")
            self.mark("compute", self._stream)
            for output, pointer in outputs:
                kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
                _cuda(cudart.cudaMemcpyAsync(output.ctypes.data, pointer, output.nbytes, kind, self._stream))
            self.mark("device to host", self._stream)
            _cuda(cudart.cudaStreamSynchronize(self._stream))
        finally:
            for pointer in memory:
                cudart.cudaFree(pointer)
        return [output for output, _ in outputs]

    def _upload(self, name: str, value: np.ndarray) -> Any:
        pointer = self._reserve(name, value.nbytes)
        kind = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        _cuda(cudart.cudaMemcpyAsync(pointer, value.ctypes.data, value.nbytes, kind, self._stream))
        return pointer

    def _reserve(self, name: str, size: int) -> Any:
        _, pointer = _cuda(cudart.cudaMalloc(max(size, 1)))
        self._context.set_tensor_address(name, int(pointer))
        return pointer

    def ran_on(self) -> str:
        return f"TensorRT {VERSION} on {gpu_name()}"

    def close(self) -> None:
        del self._context, self._engine
        cudart.cudaStreamDestroy(self._stream)


def _unmarked(part: str, stream: Any) -> None:
    """Where nobody measures."""


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
