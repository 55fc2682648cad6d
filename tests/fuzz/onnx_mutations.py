"""Mutated ONNX programs, and above all tensors that say their numbers lie in some file outside."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import onnx
from onnx import TensorProto, helper

Edit = Callable[[onnx.ModelProto, random.Random, list[str]], None]
_PLACEHOLDER = "QZQZQ"  # a doc_string whose length makes room for a longer number elsewhere in the tensor


def tensors_of(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Every tensor of a graph, wherever it is."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        yield from _tensors_of_node(node)


def _tensors_of_node(node: onnx.NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            yield from tensors_of(graph)


def put_outside(tensor: TensorProto, location: str, rng: random.Random) -> None:
    """Says that a tensor's numbers lie in a file."""
    for name in ("raw_data", "float_data", "int64_data", "int32_data"):
        tensor.ClearField(name)
    del tensor.external_data[:]
    entries = {"location": location}
    if rng.random() < 0.5:
        entries["offset"] = rng.choice(["0", "4096", "-1", "99999999999999999999", "0x10", " 0", "1e3", "", "٣"])
    if rng.random() < 0.5:
        entries["length"] = rng.choice(["64", "0", "-1", str(2**63), "x"])
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    if rng.random() < 0.2:
        tensor.external_data.add(key="location", value=location)  # of two, which one counts?
    tensor.data_location = TensorProto.EXTERNAL


def outside(model: onnx.ModelProto, rng: random.Random, places: list[str]) -> None:
    """Some tensor, in the main graph or deep inside, comes from a file."""
    put_outside(rng.choice([*tensors_of(model.graph)]), rng.choice(places), rng)


def outside_in_function(model: onnx.ModelProto, rng: random.Random, places: list[str]) -> None:
    """A function whose body has a tensor from a file."""
    tensor = helper.make_tensor("inside_function", TensorProto.FLOAT, [1, 16], [0.0] * 16)
    put_outside(tensor, rng.choice(places), rng)
    body = [helper.make_node("Constant", [], ["far"], value=tensor), helper.make_node("Add", ["a", "far"], ["b"])]
    model.functions.append(helper.make_function("toys", "Far", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    model.opset_import.append(helper.make_opsetid("toys", 1))
    last = model.graph.node[-1]
    name = last.output[0]
    last.output[0] = f"{name}_near"
    model.graph.node.append(helper.make_node("Far", [f"{name}_near"], [name], domain="toys"))


def outside_wrapped(model: onnx.ModelProto, rng: random.Random, places: list[str]) -> None:
    """As :func:`outside`; :func:`serialised` then writes the place's kind as a number above 2**32."""
    tensor = rng.choice([*tensors_of(model.graph)])
    put_outside(tensor, rng.choice(places), rng)
    tensor.doc_string = _PLACEHOLDER


def shapes(model: onnx.ModelProto, rng: random.Random, places: list[str]) -> None:
    """Dimensions that do not fit the numbers."""
    tensor = rng.choice([*tensors_of(model.graph)])
    odd = [[2**62], [-1], [2**31, 2**31], [0], [], [1] * 70, [*tensor.dims, 2], [2**40, 16]]
    chosen = rng.choice(odd)
    del tensor.dims[:]
    tensor.dims.extend(chosen)


def types(model: onnx.ModelProto, rng: random.Random, places: list[str]) -> None:
    """A tensor of another type, or of none."""
    rng.choice([*tensors_of(model.graph)]).data_type = rng.choice([0, 1, 2, 7, 8, 9, 10, 16, 17, 22, 99, -1])


def numbers(model: onnx.ModelProto, rng: random.Random, places: list[str]) -> None:
    """Numbers that are not finite, or too few of them."""
    tensor = rng.choice([*tensors_of(model.graph)])
    content = bytearray(tensor.raw_data)
    if rng.random() < 0.3:
        tensor.raw_data = bytes(content[: rng.randrange(len(content) + 1)])
        return
    nasty = rng.choice([b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", b"\xff\xff\xff\xff"])
    for _ in range(rng.choice([1, 4, 1000])):
        at = 4 * rng.randrange(max(1, len(content) // 4))
        content[at : at + 4] = nasty[: max(0, len(content) - at)]
    tensor.raw_data = bytes(content)


def nodes(model: onnx.ModelProto, rng: random.Random, places: list[str]) -> None:
    """Another operator, another input, a node less or twice."""
    node = rng.choice(model.graph.node)
    match rng.randrange(7):
        case 0:
            node.op_type = rng.choice(["Add", "Relu", "MatMul", "Nonsense", "", "Sqrt", "Log", "Div", "If", "Identity"])
        case 1:
            node.domain = rng.choice(["com.microsoft", "ai.onnx.ml", "elsewhere", "com.microsoft.extensions"])
        case 2:
            model.graph.node.remove(node)
        case 3:
            model.graph.node.append(node)
        case 4 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(["", "photo", "feature", "nowhere", node.input[0]])
        case 5 if node.output:
            node.output[0] = rng.choice(["", "photo", "feature", "logits", "nowhere"])
        case _:
            model.graph.node.reverse()


def about(model: onnx.ModelProto, rng: random.Random, places: list[str]) -> None:
    """Versions, names and declared inputs and outputs."""
    match rng.randrange(6):
        case 0:
            model.ir_version = rng.choice([0, 1, 99, 2**62])
        case 1 if model.opset_import:
            model.opset_import[0].version = rng.choice([0, 1, 7, 30, 99, -1])
        case 2:
            del model.opset_import[:]
        case 3:
            rng.choice([*model.graph.input, *model.graph.output]).name = rng.choice(["", "x", "feature", "\n" * 40])
        case 4:
            where = rng.choice([*model.graph.input, *model.graph.output])
            where.type.tensor_type.elem_type = rng.choice([0, 1, 7, 8, 10, 11])
        case _:
            model.metadata_props.add(key="ort_config", value='{"session_options": {"intra_op_num_threads": 999}}')


def nested(model: onnx.ModelProto, rng: random.Random, places: list[str]) -> None:
    """Branches in branches, deeper than a reader may care to follow."""
    value = onnx.ValueInfoProto()
    value.CopyFrom(model.graph.output[0])
    value.name = "deep"
    graph = helper.make_graph(
        [helper.make_node("Identity", [model.graph.input[0].name], ["deep"])], "deep", [], [value]
    )
    for _ in range(rng.choice([3, 10, 20])):
        node = helper.make_node("If", ["which"], ["deep"], then_branch=graph, else_branch=graph.__class__())
        graph = helper.make_graph([node], "deep", [], [value])
    model.graph.node.append(graph.node[0])


EDITS: dict[str, Edit] = {
    "tensor outside": outside,
    "tensor outside in a function": outside_in_function,
    "tensor outside, wrapped": outside_wrapped,
    "shapes": shapes,
    "types": types,
    "numbers": numbers,
    "nodes": nodes,
    "versions and names": about,
    "nested": nested,
}


def serialised(model: onnx.ModelProto) -> bytes:
    """The bytes of a model; a tensor with the placeholder gets its place's kind as 2**32 + 1, which a reader of 32 bits
    takes for 1."""
    content = model.SerializeToString()
    at = content.find(b"\x62\x05" + _PLACEHOLDER.encode())
    if at < 0:
        return content
    kind = content.find(b"\x70\x01", at)
    wrapped = b"\x70\x81\x80\x80\x80\x10"  # four bytes more, and four less in the placeholder
    return content[:at] + b"\x62\x01Q" + content[at + 7 : kind] + wrapped + content[kind + 2 :]


def mutated(content: bytes, rng: random.Random, places: list[str], which: str) -> bytes:
    """A program with one or two edits of a kind."""
    model = onnx.ModelProto.FromString(content)
    for _ in range(rng.choice([1, 1, 2])):
        EDITS[which](model, rng, places)
    return serialised(model)


def scrambled(content: bytes, rng: random.Random) -> bytes:
    """Any file with some bytes changed, cut, inserted or taken out."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(6):
            case 0 | 1 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 2 if at < len(changed):
                changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            case 3:
                del changed[at:]
            case 4:
                changed[at:at] = rng.randbytes(rng.randint(1, 8))
            case _:
                del changed[at : at + rng.randint(1, 30)]
    return bytes(changed)
