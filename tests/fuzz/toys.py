"""Small real bundles, made without training: what the fuzzer mutates and the kills run.

Every program runs in the real runtime. They are written node by node instead of exported, so that the same bytes come
out on every machine.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from refocus.edge.bundle.load import Bundle, write_manifest
from refocus.edge.bundle.manifest import (
    SCHEMA_VERSION,
    Artifact,
    BankCard,
    Column,
    Defaults,
    Fold,
    Head,
    Manifest,
    PersonalFile,
    Personalisation,
    PersonalTensor,
    Piece,
    PlacedTensor,
    Preprocessing,
    SelfTest,
    SelfTestPhoto,
    State,
    Tensor,
    WeightFile,
)
from refocus.edge.bundle.tensor_file import encode_tensors
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.recognize.self_test import answer_all, expected_answer

SIDE, POOLED, CLASSES, WINDOW = 32, 48, 5, 6
PREPROCESSING = Preprocessing(resize_shorter=SIDE, crop=SIDE, mean=(0.5,) * 3, std=(0.25,) * 3)
LABELS = tuple(f"class {number}" for number in range(CLASSES))
OPSETS = [helper.make_opsetid("", 17)]
WEIGHTS = "weights.bin"


def draw(number: int, side: int = 48) -> Image.Image:
    """A coarse pattern, another one for each number."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 255, (5, 5, 3), dtype=np.uint8))
    return coarse.resize((side, side * 5 // 6))


def png(number: int, side: int = 48) -> bytes:
    """That pattern as a PNG file."""
    stream = io.BytesIO()
    draw(number, side).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def members(count: int) -> str:
    """So many members of a JSON object, and the last of them a second time."""
    return "".join(f'"{number}": 0, ' for number in range(count)) + f'"{count - 1}": 0'


def tree_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    """SHA-256 and size of a folder, from what is in it, as the manifest has them."""
    lines = "".join(f"{name} {sha(content)}\n" for name, content in sorted(files.items()))
    return {"sha256": sha(lines.encode()), "size_bytes": sum(map(len, files.values()))}


# ---- programs


def constant(name: str, value: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(value, name)


def values(name: str, kind: int, shape: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto],
           tensors: list[TensorProto]) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(nodes, "toy", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def _pooled() -> tuple[list[onnx.NodeProto], list[TensorProto]]:
    nodes = [
        helper.make_node("AveragePool", ["photo"], ["cells"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Reshape", ["cells", "flat_shape"], ["flat"]),
    ]
    return nodes, [constant("flat_shape", np.array([-1, POOLED], dtype=np.int64))]


def _photo() -> onnx.ValueInfoProto:
    return values("photo", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])


def branching(width: int) -> list[onnx.NodeProto]:
    """``given`` -> ``feature`` by way of a Constant, an If and a Loop with tensors of their own."""
    small = np.full((1, width), 0.001, dtype=np.float32)
    shape = values("out", TensorProto.FLOAT, [1, width])
    branches = [
        helper.make_graph([helper.make_node("Identity", [f"{which}_value"], ["out"])], which, [], [shape],
                          [constant(f"{which}_value", small * factor)])
        for which, factor in (("yes", 1), ("no", 2))
    ]  # fmt: skip
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes_on"]), helper.make_node("Add", ["sum", "step"], ["more"])],
        "body",
        [values("turn", TensorProto.INT64, []), values("go", TensorProto.BOOL, []),
         values("sum", TensorProto.FLOAT, [1, width])],
        [values("goes_on", TensorProto.BOOL, []), values("more", TensorProto.FLOAT, [1, width])],
        [constant("step", small)],
    )  # fmt: skip
    return [
        helper.make_node("Constant", [], ["inside"], value=constant("inside_value", small)),
        helper.make_node("Constant", [], ["which"], value=constant("which_value", np.array(True))),
        helper.make_node("Constant", [], ["turns"], value=constant("turns_value", np.array(2, dtype=np.int64))),
        helper.make_node("If", ["which"], ["chosen"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Loop", ["turns", "which", "inside"], ["looped"], body=body),
        helper.make_node("Sum", ["given", "inside", "chosen", "looped"], ["feature"]),
    ]


def plain_encoder(width: int, noise: float = 0.0) -> onnx.ModelProto:
    """A photo's coarse colours, mixed; with noise as another training might have it."""
    nodes, tensors = _pooled()
    rng = np.random.default_rng(1)
    mix = rng.normal(size=(POOLED, width)).astype(np.float32) / 7
    mix *= 1 + noise * rng.normal(size=mix.shape).astype(np.float32)
    nodes += [helper.make_node("MatMul", ["flat", "mix"], ["given"]), *branching(width)]
    feature = [values("feature", TensorProto.FLOAT, ["batch", width])]
    return _model(nodes, [_photo()], feature, [*tensors, constant("mix", mix)])


def wide_encoder(width: int) -> onnx.ModelProto:
    """As wide as a real one, of few numbers: colours repeated, scaled differently each time, and bent."""
    nodes, tensors = _pooled()
    repeats = math.ceil(width / POOLED)
    scales = np.random.default_rng(2).uniform(0.5, 3, size=(1, repeats * POOLED)).astype(np.float32)
    nodes += [
        helper.make_node("Tile", ["flat", "repeats"], ["tiled"]),
        helper.make_node("Mul", ["tiled", "scales"], ["scaled"]),
        helper.make_node("Sin", ["scaled"], ["bent"]),
        helper.make_node("Slice", ["bent", "zero", "width", "one"], ["feature"]),
    ]
    numbers = {"repeats": [1, repeats], "zero": [0], "width": [width], "one": [1]}
    tensors += [constant(name, np.array(value, dtype=np.int64)) for name, value in numbers.items()]
    feature = [values("feature", TensorProto.FLOAT, ["batch", width])]
    return _model(nodes, [_photo()], feature, [*tensors, constant("scales", scales)])


def prompted_encoder(width: int) -> onnx.ModelProto:
    """Takes a person's ``prompts`` as a further input."""
    model = plain_encoder(width)
    model.graph.input.append(values("prompts", TensorProto.FLOAT, [1, width]))
    model.graph.node[-1].input.append("prompts")
    return model


def external_encoder(width: int) -> tuple[onnx.ModelProto, bytes]:
    """Keeps its weights in a file beside it, as :data:`WEIGHTS`."""
    nodes, tensors = _pooled()
    rng = np.random.default_rng(3)
    mix = rng.normal(size=(POOLED, width)).astype(np.float32) / 7
    bias = rng.normal(size=(1, width)).astype(np.float32) / 7
    nodes += [helper.make_node("MatMul", ["flat", "mix"], ["mixed"]),
              helper.make_node("Add", ["mixed", "bias"], ["feature"])]  # fmt: skip
    outside, content = externals({"mix": mix, "bias": bias})
    feature = [values("feature", TensorProto.FLOAT, ["batch", width])]
    return _model(nodes, [_photo()], feature, [*tensors, *outside]), content


def externals(tensors: dict[str, np.ndarray], location: str = WEIGHTS) -> tuple[list[TensorProto], bytes]:
    """Tensors that lie in a file, and that file."""
    found, content = [], b""
    for name, value in tensors.items():
        tensor = constant(name, value)
        onnx.external_data_helper.set_external_data(tensor, location, offset=len(content), length=value.nbytes)
        tensor.ClearField("raw_data")
        found.append(tensor)
        content += value.tobytes()
    return found, content


def window_head(width: int) -> onnx.ModelProto:
    """Answers with the mean of a window added to the photo's own feature."""
    classifier = np.random.default_rng(4).normal(size=(width, CLASSES)).astype(np.float32) / math.sqrt(width)
    node = helper.make_node
    nodes = [
        node("MatMul", ["feature", "classifier"], ["plain_logits"]),
        node("ReduceMean", ["history"], ["mean"], axes=[1], keepdims=0),
        node("Add", ["feature", "mean"], ["both"]),
        node("MatMul", ["both", "classifier"], ["calibrated_logits"]),
        node("Cast", ["history_length"], ["length"], to=TensorProto.FLOAT),
        node("Add", ["length", "four"], ["more"]),
        node("Div", ["length", "more"], ["trust"]),
        node("Sub", ["calibrated_logits", "plain_logits"], ["apart"]),
        node("Mul", ["apart", "trust"], ["part"]),
        node("Add", ["plain_logits", "part"], ["logits"]),
        node("Reshape", ["feature", "column"], ["standing"]),
        node("MatMul", ["history", "standing"], ["alike"]),
        node("Reshape", ["alike", "row"], ["lying"]),
        node("Concat", ["lying", "itself"], ["scores"], axis=1),
        node("Softmax", ["scores"], ["attention"], axis=1),
    ]
    tensors = [
        constant("classifier", classifier),
        constant("four", np.array([4.0], dtype=np.float32)),
        constant("column", np.array([1, width, 1], dtype=np.int64)),
        constant("row", np.array([1, WINDOW], dtype=np.int64)),
        constant("itself", np.ones((1, 1), dtype=np.float32)),
    ]
    inputs = [values("feature", TensorProto.FLOAT, [1, width]), values("history", TensorProto.FLOAT, [1, WINDOW, width]),
              values("history_length", TensorProto.INT64, [1])]  # fmt: skip
    return _model(nodes, inputs, _answers(WINDOW + 1), tensors)


def _answers(attended: int) -> list[onnx.ValueInfoProto]:
    logits = [values(n, TensorProto.FLOAT, [1, CLASSES]) for n in ("plain_logits", "calibrated_logits", "logits")]
    return [*logits, values("attention", TensorProto.FLOAT, [1, attended]), values("trust", TensorProto.FLOAT, [1])]


def lone_head(width: int, outside: bool = False) -> tuple[onnx.ModelProto, bytes]:
    """Reads no history; its classifier may lie in a file beside it."""
    rng = np.random.default_rng(5)
    weights = {"fc.weight": rng.normal(size=(CLASSES, width)).astype(np.float32),
               "fc.bias": rng.normal(size=CLASSES).astype(np.float32)}  # fmt: skip
    nodes = [
        helper.make_node("Gemm", ["feature", "fc.weight", "fc.bias"], ["logits"], transB=1),
        helper.make_node("Identity", ["logits"], ["plain_logits"]),
        helper.make_node("Identity", ["logits"], ["calibrated_logits"]),
        helper.make_node("Identity", ["one"], ["attention"]),
        helper.make_node("Identity", ["none"], ["trust"]),
    ]
    tensors, content = externals(weights) if outside else ([constant(n, v) for n, v in weights.items()], b"")
    fixed = [constant("one", np.ones((1, 1), dtype=np.float32)), constant("none", np.zeros(1, dtype=np.float32))]
    return _model(nodes, [values("feature", TensorProto.FLOAT, [1, width])], _answers(1), [*tensors, *fixed]), content


# ---- bundles


def _declared(model: onnx.ModelProto) -> dict[str, tuple[Tensor, ...]]:
    kinds = {TensorProto.FLOAT: "float32", TensorProto.INT64: "int64"}

    def tensor(value: onnx.ValueInfoProto) -> Tensor:
        shape = tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
        return Tensor(name=value.name, dtype=kinds[value.type.tensor_type.elem_type], shape=shape)  # type: ignore[arg-type]

    return {"inputs": tuple(map(tensor, model.graph.input)), "outputs": tuple(map(tensor, model.graph.output))}


@dataclass
class Maker:
    """A bundle in the making."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.artifacts: list[Artifact] = []
        self.heads: list[Head] = []
        self.space = sha(self.name.encode())

    def write(self, file: str, content: bytes) -> dict[str, Any]:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return {"file": file, "sha256": sha(content), "size_bytes": len(content)}

    def program(self, role: str, model: onnx.ModelProto, weights: bytes = b"", file: str = "", **more: Any) -> Artifact:
        """Adds a program: a file, or a folder where it has weights beside it."""
        content, file = model.SerializeToString(deterministic=True), file or f"{role}.onnx"
        placed = self.write(file, content) if not weights else self._tree(file.removesuffix(".onnx"), content, weights)
        spaces = {"feature_space": self.space} if role == "encoder" else {"accepts": (self.space,)}
        made = Artifact(role=role, runtime="onnxruntime", precision="fp32", min_runtime_version="1.20",  # type: ignore[arg-type]
                        producer={"toys": "1"}, **placed, **_declared(model), **spaces, **more)  # fmt: skip
        self.artifacts.append(made)
        return made

    def _tree(self, folder: str, content: bytes, weights: bytes) -> dict[str, Any]:
        self.write(f"{folder}/program.onnx", content)
        self.write(f"{folder}/{WEIGHTS}", weights)
        return {"file": folder, **tree_of({"program.onnx": content, WEIGHTS: weights})}

    def head(self, name: str, form: str = "window", width: int = 0, carrier: str = "none", **training: Any) -> None:
        state = (State(name="history", source="feature", dtype="float32", shape=(WINDOW, width), update="append"),)
        how = Personalisation(method="toy", window=WINDOW if form == "window" else 0, gate="none", form=form,  # type: ignore[arg-type]
                              carrier=carrier)  # type: ignore[arg-type]  # fmt: skip
        self.heads.append(Head(name=name, labels=LABELS, personalisation=how, training=training,
                               state=state if form == "window" else ()))  # fmt: skip

    def finish(self, photos: int = 2, **more: Any) -> Bundle:
        """Writes the manifest, with the answers that the bundle gives to its own photos."""
        shown = tuple(SelfTestPhoto(**self.write(f"self-test/{n}.png", png(n))) for n in range(photos))
        manifest = Manifest(schema_version=SCHEMA_VERSION, name=self.name, preprocessing=PREPROCESSING,
                            artifacts=tuple(self.artifacts), heads=tuple(self.heads), self_test_photos=shown, **more)  # fmt: skip
        bundle, heads = write_manifest(self.folder, manifest), []
        for head in self.heads:
            with Recognizer(bundle, None, threads=1, head=head.name) as recognizer:
                found = tuple(expected_answer(head.labels, a.logits) for a in answer_all(bundle, recognizer))
            test = SelfTest(answers={"eager": found}, tolerance={"fp32": 0.01})
            heads.append(msgspec.structs.replace(head, self_test=test))
        return write_manifest(self.folder, msgspec.structs.replace(manifest, heads=tuple(heads)))


def plain_bundle(folder: Path, width: int = 16, name: str = "plain", noise: float = 0.0) -> Bundle:
    """An encoder, a head that reads a window, and one that reads none; ``name`` "wide" has another encoder."""
    maker = Maker(folder, name)
    maker.program("encoder", wide_encoder(width) if name == "wide" else plain_encoder(width, noise))
    maker.program("head", window_head(width), head="window")
    maker.program("head", lone_head(width)[0], file="lone.onnx", head="lone")
    maker.head("window", width=width)
    maker.head("lone", "none")
    return maker.finish()


def prompted_bundle(folder: Path, width: int = 16) -> Bundle:
    """Takes a person's tensors as inputs."""
    maker = Maker(folder, "prompted")
    default = b"".join(encode_tensors({"prompts": np.full((1, width), 0.1, dtype=np.float32)}))
    maker.program("encoder", prompted_encoder(width), defaults=Defaults(**maker.write("encoder.defaults", default)))
    maker.program("head", window_head(width), head="window")
    maker.head("window", width=width, carrier="inputs", checkpoint_sha256=sha(b"prompted"))
    return maker.finish()


def folder_bundle(folder: Path, width: int = 16) -> Bundle:
    """Programs in folders, and tensors inside that each person may have others of."""
    maker = Maker(folder, "folder")
    pieces = (Piece(first=0, last=POOLED // 2, offset=0, dtype="float32", axes=(0, 1)),
              Piece(first=POOLED // 2, last=POOLED, offset=POOLED // 2 * width * 4, dtype="float32", axes=(0, 1)))  # fmt: skip
    theirs = PersonalTensor(name="mix", shape=(POOLED, width), pieces=pieces)
    rest = PersonalTensor(name="bias", shape=(1, width), pieces=(
        Piece(first=0, last=1, offset=POOLED * width * 4, dtype="float32", axes=(0, 1)),))  # fmt: skip
    maker.program("encoder", *external_encoder(width), personal=PersonalFile(file=WEIGHTS, tensors=(theirs, rest)))
    maker.program("head", *lone_head(width, outside=True), head="lone")
    maker.head("lone", "none", carrier="weights", checkpoint_sha256=sha(b"folder"))
    return maker.finish()


def bank_bundle(folder: Path, width: int = 8, bases: int = 3) -> Bundle:
    """A bank of small networks: a linear layer with a norm behind it, and a classifier."""
    maker, rng = Maker(folder, "bank"), np.random.default_rng(6)
    shapes = {"fc.bias": (CLASSES,), "norm.weight": (width,), "norm.bias": (width,), "norm.running_mean": (width,),
              "norm.running_var": (width,), "body.weight": (width, POOLED), "fc.weight": (CLASSES, width)}  # fmt: skip
    columns, start = [], 0
    for name, shape in shapes.items():
        columns.append(Column(name=name, shape=shape, start=start, stop=start + math.prod(shape),
                              mixer=1 if name.startswith("fc") else 0))  # fmt: skip
        start = columns[-1].stop
    rows = rng.normal(size=(bases, start)).astype(np.float32)
    variance = next(c for c in columns if c.name == "norm.running_var")
    rows[:, variance.start : variance.stop] = rng.uniform(0.5, 2, size=(bases, width))
    kept = {"rows.bin": rows.tobytes(), "words.safetensors": b"".join(encode_tensors(_words(rng, bases)))}
    for name, content in kept.items():
        maker.write(f"bank/{name}", content)
    body = {"body.weight": rng.normal(size=(width, POOLED)).astype(np.float32) / 7,
            "body.bias": rng.normal(size=width).astype(np.float32)}  # fmt: skip
    outside, weights = externals(body)
    nodes, tensors = _pooled()
    nodes += [helper.make_node("Gemm", ["flat", "body.weight", "body.bias"], ["sharp"], transB=1),
              helper.make_node("Relu", ["sharp"], ["feature"])]  # fmt: skip
    feature = [values("feature", TensorProto.FLOAT, ["batch", width])]
    maker.program("encoder", _model(nodes, [_photo()], feature, [*tensors, *outside]), weights)
    maker.program("head", *lone_head(width, outside=True), head="lone")
    maker.head("lone", "none", checkpoint_sha256=sha(b"bank"))
    card = BankCard(
        file="bank", **tree_of(kept), bases=bases, mixers=2, columns=tuple(columns),
        folds=(Fold(layer="body", norm="norm", eps=1e-5),), classifier="fc", domains=("", "sketch"),
        text_encoder="none", prompts=("{}",),
        weight_files=(
            _weight_file("encoder", {"body.weight": (width, POOLED), "body.bias": (width,)}),
            _weight_file("head", {"fc.weight": (CLASSES, width), "fc.bias": (CLASSES,)}),
        ),
    )  # fmt: skip
    return maker.finish(bank=card)


def _words(rng: np.random.Generator, bases: int) -> dict[str, np.ndarray]:
    """A mixer predictor, and descriptions of the classes in two domains."""
    width, found = 6, {"descriptions": rng.normal(size=(2, CLASSES, 6)).astype(np.float32)}
    for layer in (0, 3, 6):
        found[f"layers.{layer}.weight"] = rng.normal(size=(width, width)).astype(np.float32)
        for name in ("weight", "bias", "running_mean"):
            found[f"layers.{layer + 1}.{name}"] = rng.normal(size=width).astype(np.float32)
        found[f"layers.{layer + 1}.running_var"] = np.ones(width, dtype=np.float32)
    found["layers.9.weight"] = rng.normal(size=(2 * bases, width)).astype(np.float32)
    found["layers.9.bias"] = np.zeros(2 * bases, dtype=np.float32)
    return found


def _weight_file(artifact: str, shapes: dict[str, tuple[int, ...]]) -> WeightFile:
    placed, offset = [], 0
    for name, shape in shapes.items():
        placed.append(PlacedTensor(name=name, offset=offset, dtype="float32", axes=tuple(range(len(shape)))))
        offset += 4 * math.prod(shape)
    return WeightFile(artifact=artifact, file=WEIGHTS, tensors=tuple(placed))


BUNDLES = {"plain": plain_bundle, "prompted": prompted_bundle, "folder": folder_bundle, "bank": bank_bundle}
