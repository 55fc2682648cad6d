"""ONNX, for ONNX Runtime and, as the source of engines, for TensorRT."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime
import torch
from torch import Tensor

from refocus.edge.bundle import PersonalFile, Placement
from refocus.edge.runtimes import ONNX_PROGRAM
from refocus.export.errors import ExportError, NothingToQuantise, told
from refocus.export.program.capture import quiet
from refocus.export.program.program import TorchProgram
from refocus.export.targets import NO_CALIBRATION, OPSETS, QUANTISATION, Settings, Written
from refocus.export.targets.external_weights import WEIGHTS_BIN, as_personal, externalise, probes

RUNTIME = "onnxruntime"
SUFFIX = ".onnx"
PRECISIONS = ("fp32", "fp16", "w8a8", "w8")

OLDEST_EXPORTED = 18  # by torch's exporter
OLDEST_RUNTIME = "1.20"  # of what `edge` supports at all

# In fp16 a sum over many squares leaves the range (65504) or loses the small terms: these stay in fp32.
_SUMS = ("LayerNormalization", "Softmax", "LogSoftmax", "ReduceMean", "ReduceSum", "ReduceMax")
_NORMS = ("InstanceNormalization", "GroupNormalization", "RMSNormalization", "LpNormalization")
_CURVES = ("Pow", "Sqrt", "Exp", "Log", "Reciprocal", "Erf", "Range", "Resize", "CumSum")
KEPT_IN_FP32 = (*_SUMS, *_NORMS, *_CURVES)
# Activations that ONNX Runtime folds into the quantised layer before them. Left out, the values in front of them would
# be quantised, over a range that is cut away a moment later.
FOLDED_ACTIVATIONS = ("Clip", "Relu")
WEIGHTED = ("Conv", "Gemm", "MatMul")
_W8 = "weights alone, a scale for each output, multiplied out when the program is loaded"
_NOTHING = "nothing: the program has no layer to quantise"  # a head whose feature is the logits
CPU_PROVIDER = "CPUExecutionProvider"
_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir", "root", "")


def write(program: TorchProgram, captured: torch.export.ExportedProgram, settings: Settings, path: Path) -> Written:
    """Writes one ONNX file, checked by onnx's own full checker; weights that lie apart beside it, in a folder.

    Raises:
        ExportError: the exporter has no form for an operator, or what it wrote is not valid ONNX.
    """
    model = model_of(program, captured, settings)
    recipe = {"opset": str(settings.opset)}
    if settings.precision == "fp16":
        model = to_fp16(model, ("gate",))
        recipe["kept_in_fp32"] = ", ".join(KEPT_IN_FP32) + ", and the gate"
    elif settings.precision == "w8":
        if not program.external and program.quantisable:
            model = to_w8(model, program)
        recipe[QUANTISATION] = _W8 if program.external or program.quantisable else _NOTHING
    elif settings.precision == "w8a8":
        model, recipe[QUANTISATION] = to_w8a8(model, program, settings, symmetric=False)
    if not (program.external or program.personal):
        save(model, path)
        return Written(program, versions(), placement(path, program), recipe)
    path.mkdir()
    personal = {name: value.detach().numpy() for name, value in program.personal.items()}
    tensors = personal or probes(program.module, program.external)
    what, in_int8 = f"the {program.role} for onnx:{settings.precision}", settings.precision == "w8" and not personal
    placed = externalise(model, tensors, path, what, in_int8)
    save(model, path / ONNX_PROGRAM)
    written = Written(program, versions(), placement(path / ONNX_PROGRAM, program), recipe)
    if personal:
        own = tuple(as_personal(placed, program.personal))
        return replace(written, personal=PersonalFile(file=WEIGHTS_BIN, tensors=own))
    return replace(written, weights=(WEIGHTS_BIN, placed))


def min_runtime_version(settings: Settings) -> str:
    return max(OPSETS[settings.opset][0], OLDEST_RUNTIME, key=lambda v: [int(n) for n in v.split(".")])


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "onnx", "onnxscript", "onnxruntime")}


def model_of(program: TorchProgram, captured: torch.export.ExportedProgram, settings: Settings) -> onnx.ModelProto:
    """The program as an fp32 ONNX model with readable tensor names, constants folded.

    Raises:
        ExportError: as of :func:`write`.
    """
    if settings.opset not in OPSETS:
        raise ExportError(f"--opset {settings.opset}: expected one of {', '.join(map(str, OPSETS))}")
    key = captured, settings.opset
    if key not in _LAST:
        _LAST.clear()
        _LAST[key] = _converted(program, captured, settings).SerializeToString()
    return onnx.load_from_string(_LAST[key])


# The last one converted: its other precisions are made of it next.
_LAST: dict[tuple[torch.export.ExportedProgram, int], bytes] = {}


def _converted(program: TorchProgram, captured: torch.export.ExportedProgram, settings: Settings) -> onnx.ModelProto:
    exported = max(settings.opset, OLDEST_EXPORTED)
    try:
        with quiet(*_LOGGERS), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            torch.onnx.export(
                captured,
                f=path,
                dynamo=True,
                input_names=[tensor.name for tensor in program.inputs],
                output_names=[tensor.name for tensor in program.outputs],
                opset_version=exported,
                external_data=False,
                verbose=False,
            )
            model = _older(onnx.load(path), settings.opset) if settings.opset < exported else onnx.load(path)
    except (torch.onnx.errors.OnnxExporterError, onnx.checker.ValidationError, RuntimeError) as error:
        raise ExportError(
            f"the {program.role} cannot be written as ONNX opset {settings.opset}: {_reason(error)}"
        ) from error
    written = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if written != settings.opset:
        raise ExportError(
            f"the {program.role} cannot be written as ONNX opset {settings.opset}: the exporter stopped at {written}"
        )
    return model


def _reason(error: BaseException) -> str:
    """The first line of what an error began with: it names the operator, those around it how to debug torch."""
    while error.__cause__ is not None:
        error = error.__cause__
    return _COLOURS.sub("", told(error))


_COLOURS = re.compile("\x1b\\[[0-9;]*m")  # of a terminal
_NOT_CONVERTED = "refocus.kept"


def _refill(field: Any, values: list[Any]) -> None:
    """Puts other values into a repeated field of a model, which cannot be assigned to."""
    del field[:]
    field.extend(values)


def _older(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model in an opset that the exporter itself no longer writes."""
    for node in model.graph.node:
        if node.op_type.startswith("Reduce") and node.op_type != "ReduceSum":
            # Its default says what the older form means, but the converter does not know the attribute.
            _refill(node.attribute, [a for a in node.attribute if a.name != "noop_with_empty_axes" or a.i])
        elif node.op_type == "Split":
            # Opset 18 gave it an attribute that says what the older form takes for granted. The converter knows no way
            # back, but leaves alone what is not ONNX's own.
            _refill(node.attribute, [a for a in node.attribute if a.name != "num_outputs"])
            node.domain = _NOT_CONVERTED
        elif node.op_type == "Pad" and not any(node.input[3:]):
            # Opset 18 gave it an input of axes, which the older form has not. Where it is empty both mean all axes.
            del node.input[3:]
            node.domain = _NOT_CONVERTED
    model.opset_import.append(onnx.helper.make_opsetid(_NOT_CONVERTED, 1))
    older = onnx.version_converter.convert_version(model, opset)
    for node in older.graph.node:
        if node.domain == _NOT_CONVERTED:
            node.domain = ""
    _refill(older.opset_import, [entry for entry in older.opset_import if entry.domain != _NOT_CONVERTED])
    return older


def _remove_traces(nodes: Iterable[onnx.NodeProto]) -> None:
    """Remove the exporter's stack traces, which name folders of this machine."""
    for node in nodes:
        _refill(node.metadata_props, [one for one in node.metadata_props if one.key != "pkg.torch.onnx.stack_trace"])
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                _remove_traces(graph.node)


def save(model: onnx.ModelProto, path: Path) -> None:
    """Checks a model in full, then writes it.

    Raises:
        ExportError: it is not valid ONNX.
    """
    for part in (model.graph, *model.functions):
        _remove_traces(part.node)
    path.write_bytes(model.SerializeToString(deterministic=True))
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"{path.name} is not valid ONNX: {str(error).strip().splitlines()[0]}") from error


def to_fp16(model: onnx.ModelProto, kept: tuple[str, ...] = (), normalise_in_fp32: bool = True) -> onnx.ModelProto:
    """Weights and values in fp16; inputs and outputs stay fp32, so a caller feeds both alike.

    Args:
        kept: modules that stay in fp32.
        normalise_in_fp32: keep norms, softmax and sums in fp32 too (``KEPT_IN_FP32``).
    """
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    _round_smallest(model)
    blocked = [*DEFAULT_OP_BLOCK_LIST, *(KEPT_IN_FP32 if normalise_in_fp32 else ())]
    nodes = [node.name for node in model.graph.node if is_inside(node, kept)]
    with quiet(*_LOGGERS):
        converted: onnx.ModelProto = convert_float_to_float16(
            model, keep_io_types=True, op_block_list=blocked, node_block_list=nodes
        )
        # The converter casts a weight once for each node that reads it, always to the same name.
        once = {tuple(node.output): node for node in reversed(converted.graph.node)}
        _refill(converted.graph.node, [n for n in converted.graph.node if once[tuple(n.output)] is n])
        OnnxModel(converted).topological_sort()
    # Types noted before the conversion; the checker infers them again.
    del converted.graph.value_info[:]
    return converted


def _round_smallest(model: onnx.ModelProto) -> None:
    """Rounds what is near or below fp16's smallest number as numpy, PyTorch and devices do, half of it to 0.

    The converter would make that smallest number of all of it, and a person's weights, which are looked for byte by
    byte, would not be found.
    """
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor)
            small = (values != 0) & (np.abs(values) < 1e-7)
            if small.any():
                rounded = np.where(small, values.astype(np.float16).astype(np.float32), values)
                tensor.CopyFrom(onnx.numpy_helper.from_array(rounded, tensor.name))


def to_w8(model: onnx.ModelProto, program: TorchProgram) -> onnx.ModelProto:
    """Weights of the layers of ``program.quantisable`` as int8 with a scale per output; values stay in fp32.

    Raises:
        NothingToQuantise: there is no such layer.
    """
    chosen = set(quantised_nodes(model, program.quantisable))
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    made_by = {name: node for node in model.graph.node for name in node.output}
    layers = [node for node in model.graph.node if node.name in chosen and node.op_type in WEIGHTED]
    if not layers:
        raise NothingToQuantise(f"w8: the {program.role} has no layer to quantise; export it as fp32")
    added: dict[str, onnx.NodeProto] = {}
    for node in layers:
        name = _origin(node.input[1], made_by)
        if name in added or name not in weights:
            continue
        value = onnx.numpy_helper.to_array(weights[name])
        # Outputs are the first axis of a convolution's weight and of a transposed one, the last of a plain matrix.
        transposed = node.input[1] != name or any(a.name == "transB" and a.i for a in node.attribute)
        axis = 0 if node.op_type == "Conv" or transposed else value.ndim - 1
        others = tuple(n for n in range(value.ndim) if n != axis)
        scale = np.maximum(np.abs(value).max(others) / 127, np.finfo(np.float32).tiny).astype(np.float32)
        steps = np.rint(value / np.expand_dims(scale, others)).astype(np.int8)
        model.graph.initializer.remove(weights[name])
        model.graph.initializer.extend(
            [onnx.numpy_helper.from_array(steps, f"{name}.int8"), onnx.numpy_helper.from_array(scale, f"{name}.scale")]
        )
        inputs = [f"{name}.int8", f"{name}.scale"]
        added[name] = onnx.helper.make_node("DequantizeLinear", inputs, [name], f"{name}.dequantised", axis=axis)
    _refill(model.graph.node, [*added.values(), *model.graph.node])
    return model


def to_w8a8(
    model: onnx.ModelProto, program: TorchProgram, settings: Settings, symmetric: bool
) -> tuple[onnx.ModelProto, str]:
    """Explicit QuantizeLinear / DequantizeLinear around the layers of ``program.quantisable``.

    Weights per channel, signed; activations per tensor, over the range seen in calibration, unsigned. On x86, ONNX
    Runtime turns signed activations into unsigned ones itself, and then fuses no layer beside a residual connection.

    Args:
        symmetric: zero is the middle of every range, and activations are signed, as TensorRT wants them.

    Returns:
        The model, and what was done in words.

    Raises:
        ExportError: no calibration photos, or nothing to quantise.
    """
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType
    from onnxruntime.quantization.quantize import quantize_static

    if not settings.calibration:
        raise ExportError(NO_CALIBRATION)
    if not program.quantisable:
        return model, _NOTHING
    layers = [*quantised_nodes(model, program.quantisable)]
    if not layers:
        raise NothingToQuantise(f"w8a8: the {program.role} has no layer to quantise; export it as fp32")
    names = [tensor.name for tensor in program.inputs]

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        rows = iter([dict(zip(names, map(Tensor.numpy, row), strict=True)) for row in settings.calibration])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    with quiet(*_LOGGERS), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_static(
            model,
            str(path),
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=[*WEIGHTED, *FOLDED_ACTIVATIONS],
            nodes_to_quantize=layers,
            per_channel=True,
            activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"ActivationSymmetric": symmetric, "WeightSymmetric": True},
        )
        quantised = onnx.load(path)
    text = (
        f"{sum(1 for n in quantised.graph.node if n.op_type in WEIGHTED)} layers: weights int8 per channel,"
        f" activations {'int8 symmetric' if symmetric else 'uint8'}, ranges of {len(settings.calibration)} photos"
    )
    return quantised, text


def quantised_nodes(model: onnx.ModelProto, modules: tuple[str, ...]) -> Iterator[str]:
    """Names of the layers with weights inside the modules, and of the activations that follow them."""
    weights = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    made_by = {name: node for node in model.graph.node for name in node.output}
    layers = set()
    for node in model.graph.node:
        if node.op_type in WEIGHTED and is_inside(node, modules):
            # A batched product with a stack of small matrices is no layer that a runtime has in int8.
            if any(
                weights.get(_origin(name, made_by), 0) in ((3, 4) if node.op_type == "Conv" else (2,))
                for name in node.input[1:2]
            ):
                yield node.name
                layers |= set(node.output)
        elif node.op_type in FOLDED_ACTIVATIONS and node.input[0] in layers:
            yield node.name


def _origin(name: str, made_by: dict[str, onnx.NodeProto]) -> str:
    """Through a transpose, the weight it is of."""
    node = made_by.get(name)
    return node.input[0] if node is not None and node.op_type == "Transpose" else name


def is_inside(node: onnx.NodeProto, modules: tuple[str, ...]) -> bool:
    """Whether a node belongs to one of the modules, by the exporter's own notes or the name of its weight."""
    notes = {entry.key: entry.value for entry in node.metadata_props}
    try:
        scopes = json.loads(notes.get("pkg.torch.onnx.name_scopes", "[]").replace("'", '"'))
    except ValueError:
        scopes = []
    places = [*map(str, scopes), *node.input]
    return any(place == module or place.startswith(f"{module}.") for place in places for module in modules)


def placement(path: Path, program: TorchProgram) -> Placement:
    """Runs the program once and reads which provider executed how many nodes of which operator."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(str(path), options, providers=[CPU_PROVIDER])
        examples = zip(program.inputs, program.example_inputs(), strict=True)
        session.run(None, {spec.name: value.numpy() for spec, value in examples})
        events = json.loads(Path(session.end_profiling()).read_text())
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for event in events:
        arguments = event.get("args", {})
        if event.get("cat") == "Node" and arguments.get("provider"):
            counts[arguments["provider"]][arguments["op_name"]] += 1
    operators = {provider: dict(sorted(nodes.items())) for provider, nodes in sorted(counts.items())}
    other = {
        op: f"ran on {provider}" for provider, nodes in operators.items() if provider != CPU_PROVIDER for op in nodes
    }
    return Placement(asked=CPU_PROVIDER, operators=operators, fallbacks=other)
