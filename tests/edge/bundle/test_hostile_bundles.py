"""A bundle made to harm is refused with one error, and nothing outside its folder is read, run or waited for."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from refocus.edge.bundle import verified_files as bundle_files
from refocus.edge.bundle.load import MANIFEST, load_bundle
from refocus.edge.bundle.manifest import MAX_MANIFEST_BYTES
from refocus.edge.bundle.tensor_file import MAX_HEADER_BYTES, decode_tensors
from refocus.edge.bundle.verified_files import tree_sha256
from refocus.edge.errors import BundleError, PersonalWeightsError, RuntimeUnavailable
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.recognize.self_test import answer_all
from refocus.edge.runtimes import load_program
from refocus.edge.runtimes.base import version_numbers
from refocus.edge.runtimes.onnx_external_data import external_tensors

SIDE, WIDTH, CLASSES = 4, 4, 2
NUMBERS = 3 * SIDE * SIDE
SECRET = np.arange(100, 100 + NUMBERS * WIDTH, dtype=np.float32).reshape(NUMBERS, WIDTH)
PIXELS = np.ones((1, 3, SIDE, SIDE), dtype=np.float32)


# ---- a small bundle


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, stored=(), **more):
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(v, n) for n, v in stored])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, **more)


def encoder_model(weights=None):
    nodes = [helper.make_node("Flatten", ["photo"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["feature"])]
    weights = np.full((NUMBERS, WIDTH), 0.5, np.float32) if weights is None else weights
    return model(nodes, [value("photo", (1, 3, SIDE, SIDE))], [value("feature", (1, WIDTH))], [("w", weights)])


def head_model():
    names = ("plain_logits", "calibrated_logits", "logits")
    nodes = [helper.make_node("MatMul", ["feature", "v"], ["l"])]
    nodes += [helper.make_node("Identity", ["l"], [name]) for name in names]
    nodes += [helper.make_node("Identity", ["one"], ["attention"]), helper.make_node("Identity", ["nil"], ["trust"])]
    stored = [("v", np.eye(WIDTH, CLASSES, dtype=np.float32)), ("one", np.ones((1, 1), np.float32)),
              ("nil", np.zeros(1, np.float32))]  # fmt: skip
    outputs = [*(value(n, (1, CLASSES)) for n in names), value("attention", (1, 1)), value("trust", (1,))]
    return model(nodes, [value("feature", (1, WIDTH))], outputs, stored)


def tensors(values):
    return [{"name": v.name, "dtype": "float32", "shape": [d.dim_value for d in v.type.tensor_type.shape.dim]}
            for v in values]  # fmt: skip


def write_program(path, program, files=None):
    """A program as one file, or as a folder with other files beside it."""
    if files is None:
        path.write_bytes(program.SerializeToString())
        return
    path.mkdir()
    (path / "program.onnx").write_bytes(program.SerializeToString())
    for name, content in files.items():
        (path / name).write_bytes(content)


def entry(path, program, role, **more):
    if path.is_dir():
        sha256, size = tree_sha256(path)
    else:
        sha256, size = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
    space = {"feature_space": "5" * 64} if role == "encoder" else {"accepts": ["5" * 64], "head": "h"}
    return {"role": role, "runtime": "onnxruntime", "precision": "fp32", "file": path.name, "sha256": sha256,
            "size_bytes": size, "inputs": tensors(program.graph.input), "outputs": tensors(program.graph.output),
            "min_runtime_version": "1.20", "producer": {}, **space, **more}  # fmt: skip


def make_bundle(folder, encoder=None, files=None, head=None, change=None):
    """A bundle of one encoder and one head without history; made in milliseconds."""
    folder.mkdir()
    programs = {"encoder": encoder or encoder_model(), "head": head or head_model()}
    write_program(folder / "encoder", programs["encoder"], files)
    write_program(folder / "head", programs["head"])
    manifest = {
        "schema_version": 5, "name": "hostile",
        "preprocessing": {"resize_shorter": SIDE, "crop": SIDE, "mean": [0.5] * 3, "std": [0.5] * 3},
        "artifacts": [entry(folder / role, program, role) for role, program in programs.items()],
        "heads": [{"name": "h", "labels": ["a", "b"],
                   "personalisation": {"method": "m", "window": 0, "gate": "none", "form": "none"}}],
    }  # fmt: skip
    if change is not None:
        change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def feature_of(folder, **more):
    with contextlib.closing(load_program(load_bundle(folder), "encoder", "onnxruntime", **more)) as program:
        return program.run(photo=PIXELS)["feature"]


def test_the_small_bundle_is_a_good_one(tmp_path):
    recognizer = Recognizer(load_bundle(make_bundle(tmp_path / "b")))
    np.testing.assert_allclose(recognizer.recognize_pixels(PIXELS, "x").feature, np.full(WIDTH, NUMBERS / 2))
    recognizer.close()


# ---- files outside the folder


def outside(array, name="w", location="secret.bin", **entries):
    tensor = numpy_helper.from_array(array, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, "offset": "0", "length": str(array.nbytes), **entries}.items():
        tensor.external_data.add(key=key, value=text)
    return tensor


def in_constant():
    made = encoder_model()
    made.graph.initializer.pop()
    made.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=outside(SECRET)))
    return made


def in_branch():
    made = encoder_model()
    made.graph.initializer.pop()
    body = helper.make_graph([helper.make_node("Identity", ["s"], ["o"])], "b", [], [value("o", SECRET.shape)],
                             [outside(SECRET, "s")])  # fmt: skip
    made.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    made.graph.node.insert(0, helper.make_node("If", ["yes"], ["w"], then_branch=body, else_branch=body))
    return made


def in_loop():
    made = encoder_model()
    made.graph.initializer.pop()
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Identity", ["s"], ["o"])], "b",
        [value("i", (), TensorProto.INT64), value("c", (), TensorProto.BOOL), value("x", SECRET.shape)],
        [value("c2", (), TensorProto.BOOL), value("o", SECRET.shape)], [outside(SECRET, "s")],
    )  # fmt: skip
    for name, array in (("n", np.array(1)), ("yes", np.array(True)), ("z", np.zeros_like(SECRET))):
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    made.graph.node.insert(0, helper.make_node("Loop", ["n", "yes", "z"], ["w"], body=body))
    return made


def in_function():
    made = encoder_model()
    made.graph.initializer.pop()
    constant = helper.make_node("Constant", [], ["o"], value=outside(SECRET))
    made.functions.append(helper.make_function("f", "Give", [], ["o"], [constant], [helper.make_opsetid("", 18)]))
    made.opset_import.append(helper.make_opsetid("f", 1))
    made.graph.node.insert(0, helper.make_node("Give", [], ["w"], domain="f"))
    return made


def in_sparse():
    made = encoder_model()
    made.graph.initializer.pop()
    values = outside(SECRET.reshape(-1), "w")
    indices = numpy_helper.from_array(np.arange(SECRET.size), "i")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, SECRET.shape))
    return made


def in_initializer():
    made = encoder_model()
    made.graph.initializer[0].CopyFrom(outside(SECRET))
    return made


class Wrapped:
    """The model of :func:`in_initializer` whose ``data_location`` is 2**32 + 1, which protobuf reads as 1."""

    def __init__(self, location=b"\x70\x81\x80\x80\x80\x10"):
        made = in_initializer()
        self.graph, tensor = made.graph, made.graph.initializer.pop()
        tensor.ClearField("data_location")
        content = tensor.SerializeToString() + location
        field = b"\x2a" + _varint(len(content)) + content  # graph.initializer
        graph = made.graph.SerializeToString() + field
        made.ClearField("graph")
        self._content = made.SerializeToString() + b"\x3a" + _varint(len(graph)) + graph

    def SerializeToString(self):
        return self._content


def _varint(number):
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


PLACES = [in_constant, in_branch, in_loop, in_function, in_sparse, in_initializer, Wrapped]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("folder", [False, True])
def test_a_bundle_cannot_read_a_file_outside_its_folder(tmp_path, monkeypatch, place, folder):
    (tmp_path / "secret.bin").write_bytes(SECRET.tobytes())
    monkeypatch.chdir(tmp_path)
    made = make_bundle(tmp_path / "b", place(), {} if folder else None)
    with pytest.raises((BundleError, PersonalWeightsError), match="outside itself|not ONNX"):
        feature_of(made)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/services", "sub/../../secret.bin", "", ".",
                                      "*/_ORT_MEM_ADDR_/*"])  # fmt: skip
def test_a_folder_program_cannot_name_a_file_outside_its_folder(tmp_path, monkeypatch, location):
    (tmp_path / "secret.bin").write_bytes(SECRET.tobytes())
    monkeypatch.chdir(tmp_path)
    made = encoder_model()
    made.graph.initializer[0].CopyFrom(outside(SECRET, location=location))
    with pytest.raises((BundleError, PersonalWeightsError), match="outside itself"):
        feature_of(make_bundle(tmp_path / "b", made, {}))


def test_the_session_could_not_open_a_file_even_if_one_got_through(tmp_path, monkeypatch):
    """The second guard: without the first one ONNX Runtime finds nothing to read."""
    from refocus.edge.runtimes import onnxruntime

    (tmp_path / "secret.bin").write_bytes(SECRET.tobytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(onnxruntime, "external_tensors", lambda content, where: {})
    for number, place in enumerate(PLACES):
        with pytest.raises(BundleError):
            feature_of(make_bundle(tmp_path / str(number), place()))


def test_tensors_beside_a_program_are_read_from_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(SECRET.nbytes))  # of that name, where the process works
    made = encoder_model()
    made.graph.initializer[0].CopyFrom(outside(SECRET, location="weights.bin", offset="3"))
    content = b"xxx" + SECRET.tobytes()
    found = feature_of(make_bundle(tmp_path / "b", made, {"weights.bin": content}))
    np.testing.assert_allclose(found[0], SECRET.sum(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("entries", "shape", "what"),
    [({"offset": "1"}, None, "lies outside"), ({"offset": "-1"}, None, "not ONNX"),
     ({"offset": "9" * 30}, None, "not ONNX"), ({}, (2**40, 4), "cannot hold"), ({}, (0, 2**63 - 1), "cannot hold"),
     ({}, (1,) * 80, "cannot hold")],
)  # fmt: skip
def test_a_tensor_beyond_its_file_is_refused(tmp_path, entries, shape, what):
    made = encoder_model()
    tensor = outside(SECRET, location="weights.bin", **entries)
    if shape is not None:
        tensor.ClearField("dims")
        tensor.dims.extend(shape)
    made.graph.initializer[0].CopyFrom(tensor)
    with pytest.raises(BundleError, match=what):
        feature_of(make_bundle(tmp_path / "b", made, {"weights.bin": SECRET.tobytes()}))


def test_every_place_where_onnx_has_a_tensor_is_looked_at():
    """From ONNX's own description: each path from a model to a tensor, subgraphs once, is found and refused."""
    tensor = onnx.TensorProto(data_location=1, name="x")
    tensor.external_data.add(key="location", value="f")
    paths = [path for path in _paths(onnx.ModelProto.DESCRIPTOR, ()) if path != ("graph", "initializer")]
    assert len(paths) > 30
    for path in paths:
        made = onnx.ModelProto()
        _put(made, path, tensor)
        with pytest.raises(BundleError, match="outside itself"):
            external_tensors(made.SerializeToString(), "it")


def _paths(descriptor, before, seen=()):
    if descriptor.full_name == "onnx.TensorProto":
        yield before
    elif seen.count(descriptor.full_name) < 2:
        for field in descriptor.fields:
            if field.message_type is not None:
                yield from _paths(field.message_type, (*before, field.name), (*seen, descriptor.full_name))


def _put(message, path, tensor):
    for name in path[:-1]:
        part = getattr(message, name)
        message = part.add() if hasattr(part, "add") else part
    part = getattr(message, path[-1])
    (part.add() if hasattr(part, "add") else part).CopyFrom(tensor)


def test_an_operator_that_reads_compiled_code_from_a_file_is_refused(tmp_path):
    made = encoder_model()
    made.graph.node[1].CopyFrom(helper.make_node("EPContext", ["flat"], ["feature"], domain="com.microsoft",
                                                 embed_mode=0, ep_cache_context="secret.bin"))  # fmt: skip
    with pytest.raises(BundleError, match="EPContext"):
        feature_of(make_bundle(tmp_path / "b", made))


@pytest.mark.parametrize("operator", ["Sum", "Max", "Min", "Mean"])
def test_an_operator_that_lacks_an_input_does_not_crash_the_process(operator, tmp_path):
    made = encoder_model()
    made.graph.node.append(helper.make_node(operator, [made.graph.node[-1].output[0], "", "s"], ["sum"]))
    with pytest.raises(BundleError, match=f"an input of an operator {operator} is missing"):
        feature_of(make_bundle(tmp_path / "b", made))


def test_an_output_whose_name_is_no_text_is_refused(tmp_path):
    folder, name = make_bundle(tmp_path / "b"), b"feature"
    made = encoder_model().SerializeToString().replace(name, b"\xbd" + name[1:])
    (folder / "encoder").write_bytes(made)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["artifacts"][0]["sha256"] = hashlib.sha256(made).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="is not UTF-8"):
        feature_of(folder)


def test_graphs_nested_without_end_are_refused():
    content = b""
    for _ in range(2000):  # graph in attribute in node in graph
        content = b"\x0a" + _varint(len(content) + 8) + b"\x2a" + _varint(len(content) + 5) + b"\x32" + _varint(
            len(content)) + content  # fmt: skip
        if len(content) > 30000:
            break
    with pytest.raises(BundleError, match="nested|not ONNX"):
        external_tensors(b"\x3a" + _varint(len(content)) + content, "it")
    graph = onnx.GraphProto()
    for _ in range(30):
        outer = onnx.GraphProto()
        outer.node.add().attribute.add().g.CopyFrom(graph)
        graph = outer
    made = onnx.ModelProto()
    made.graph.CopyFrom(graph)
    with pytest.raises(BundleError, match="levels deep"):
        external_tensors(made.SerializeToString(), "it")


# ---- what is used is what was verified


def test_a_folder_program_that_is_swapped_while_it_loads_runs_as_it_was_verified(tmp_path):
    made = encoder_model()
    made.graph.initializer[0].CopyFrom(outside(SECRET, location="weights.bin"))
    folder = make_bundle(tmp_path / "b", made, {"weights.bin": SECRET.tobytes()})
    loaded = load_bundle(folder)
    (folder / "encoder" / "weights.bin").write_bytes(bytes(SECRET.nbytes))
    with contextlib.closing(load_program(loaded, "encoder", "onnxruntime")) as program:
        np.testing.assert_allclose(program.run(photo=PIXELS)["feature"][0], SECRET.sum(0), rtol=1e-6)


def opened_files(action, folder):
    """Names below a folder that an action opens, as often as it does."""
    seen, watching = [], [True]

    def hook(event, arguments):
        if watching and event == "open" and isinstance(arguments[0], (str, bytes)):
            seen.append(os.fsdecode(arguments[0]))

    sys.addaudithook(hook)
    try:
        action()
    finally:
        watching.clear()
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    return [Path(name).name for name in seen if Path(name).name in names]


@pytest.mark.parametrize("targets", [None, ["onnxruntime:fp32"]])
def test_no_file_is_read_twice_from_loading_a_bundle_to_its_first_answer(tmp_path, targets):
    made = encoder_model()
    made.graph.initializer[0].CopyFrom(outside(SECRET, location="weights.bin"))
    folder = make_bundle(tmp_path / "b", made, {"weights.bin": SECRET.tobytes()})

    def recognize():
        recognizer = Recognizer(load_bundle(folder, targets))
        recognizer.recognize_pixels(PIXELS, "x")
        recognizer.close()

    assert sorted(opened_files(recognize, folder)) == ["head", MANIFEST, "program.onnx", "weights.bin"]


def test_targets_that_were_not_asked_for_are_verified_once_they_are_used(tmp_path):
    def add(manifest):
        manifest["artifacts"] += [{**a, "precision": "int8", "file": a["file"] + "8"} for a in manifest["artifacts"]]

    folder = make_bundle(tmp_path / "b", change=add)
    for name in ("encoder", "head"):
        shutil.copy(folder / name, folder / f"{name}8")
    load_bundle(folder)
    (folder / "head8").write_bytes(b"x")
    loaded = load_bundle(folder, ["onnxruntime:fp32"])
    load_program(loaded, "head", "onnxruntime").close()
    with pytest.raises(BundleError, match="head8 was changed"):
        load_program(loaded, "head", "onnxruntime", "int8")
    with pytest.raises(BundleError, match="head8 was changed"):
        load_bundle(folder)


def test_a_file_too_large_for_memory_is_copied_and_later_changes_do_not_reach_it(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle_files, "IN_MEMORY", 10)
    folder = make_bundle(tmp_path / "b")
    loaded = load_bundle(folder)
    os.truncate(folder / "encoder", 0)
    with contextlib.closing(load_program(loaded, "encoder", "onnxruntime")) as program:
        assert program.run(photo=PIXELS)["feature"][0, 0] == NUMBERS / 2


def test_where_no_private_copy_can_be_kept_the_error_says_where_room_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle_files, "IN_MEMORY", 10)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(BundleError, match="private copy.*set TMPDIR"):
        load_bundle(make_bundle(tmp_path / "b"))


def test_default_tensors_and_photos_are_those_that_were_verified(bundle, tmp_path):
    folder = shutil.copytree(bundle.folder, tmp_path / "b")
    loaded = load_bundle(folder)
    with Recognizer(loaded) as recognizer:
        expected = [answer.labels[0] for answer in answer_all(loaded, recognizer)]
        for photo in loaded.manifest.self_test_photos:
            (folder / photo.file).write_bytes(b"")
        assert [answer.labels[0] for answer in answer_all(loaded, recognizer)] == expected


CONDENSE = """
import os, sys
from pathlib import Path
from refocus.edge.bundle import verified_files as bundle_files
from refocus.edge.taper.bank import Bank
bundle_files.IN_MEMORY = int(sys.argv[3])
bank, out = Bank.open(Path(sys.argv[1])), Path(sys.argv[2])
task = bank.task(["red fox", "grey fox"])
bank.condense(task, out / "before")
how = sys.argv[4]
for path in [p for p in bank.folder.rglob("*") if p.is_file()]:
    if how == "truncated":
        os.truncate(path, 0)
    elif how == "overwritten":
        with path.open("r+b") as stream:
            stream.write(b"\\0" * path.stat().st_size)
    else:
        path.unlink()
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
bank.condense(task, out / "after")
assert not [name for name in opened if name.startswith(str(bank.folder))], opened
"""


@pytest.mark.parametrize("how", ["truncated", "overwritten", "removed"])
@pytest.mark.parametrize("in_memory", [1 << 30, 1 << 10])
def test_a_bank_that_is_changed_after_start_neither_ends_the_process_nor_changes_an_answer(
    bank_bundle, tmp_path, how, in_memory
):
    folder = shutil.copytree(bank_bundle.folder, tmp_path / "bank")
    done = subprocess.run([sys.executable, "-c", CONDENSE, folder, tmp_path, str(in_memory), how],
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after = (load_bundle(tmp_path / name).manifest for name in ("before", "after"))
    assert before == after


# ---- what is opened


def fails_soon(folder, match, load=load_bundle):
    began = time.monotonic()
    with pytest.raises(BundleError, match=match):
        load(folder)
    assert time.monotonic() - began < 5


def replace(path, make):
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    make(path)


NO_FILES = {
    "a FIFO": os.mkfifo,
    "a link": lambda path: path.symlink_to("/dev/zero"),
    "a folder|cannot be read": Path.mkdir,
    "cannot be read": lambda path: None,
}


@pytest.mark.parametrize("what", NO_FILES)
def test_a_manifest_that_is_no_plain_file_is_refused(tmp_path, what):
    folder = make_bundle(tmp_path / "b")
    replace(folder / MANIFEST, NO_FILES[what])
    fails_soon(folder, what)


@pytest.mark.parametrize("what", [what for what in NO_FILES if "folder" not in what])
def test_a_program_that_is_no_plain_file_is_refused(tmp_path, what):
    folder = make_bundle(tmp_path / "b")
    replace(folder / "encoder", NO_FILES[what])
    fails_soon(folder, what)


@pytest.mark.parametrize("what", ["a FIFO", "a link"])
def test_a_folder_program_that_holds_no_plain_file_is_refused(tmp_path, what):
    folder = make_bundle(tmp_path / "b", files={"weights.bin": b"x"})
    replace(folder / "encoder" / "weights.bin", NO_FILES[what])
    fails_soon(folder, what)


def test_a_link_inside_the_folder_is_refused_wherever_it_leads(tmp_path):
    folder = make_bundle(tmp_path / "b")
    (folder / "real").mkdir()
    shutil.move(folder / "encoder", folder / "real" / "encoder")
    (folder / "encoder").symlink_to("real/encoder")
    fails_soon(folder, "a link")
    (folder / "encoder").unlink()
    (folder / "linked").symlink_to(tmp_path / "outside")
    shutil.copytree(folder / "real", tmp_path / "outside")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["artifacts"][0]["file"] = "linked/encoder"
    (folder / MANIFEST).write_text(json.dumps(manifest))
    fails_soon(folder, "through a link")


def test_links_in_a_loop_are_refused(tmp_path):
    folder = make_bundle(tmp_path / "b", files={})
    (folder / "encoder" / "a").symlink_to("b")
    (folder / "encoder" / "b").symlink_to("a")
    fails_soon(folder, "a link")


def test_a_sparse_file_of_a_terabyte_is_not_read(tmp_path):
    folder = make_bundle(tmp_path / "b", files={"weights.bin": b"x"})
    os.truncate(folder / "encoder" / "weights.bin", 1 << 40)
    fails_soon(folder, "was changed: it has 1099511")


@pytest.mark.parametrize("key", ["self_test_photos", "defaults", "bank", "artifacts"])
def test_a_size_without_bound_is_refused_before_anything_is_read(tmp_path, key):
    huge = {"file": "encoder", "sha256": "0" * 64, "size_bytes": 1 << 50}

    def change(manifest):
        if key == "self_test_photos":
            manifest[key] = [huge]
        elif key == "defaults":
            manifest["artifacts"][0][key] = huge
        elif key == "artifacts":
            manifest[key][0]["size_bytes"] = 1 << 50
        else:
            column = {"name": "c", "shape": [1], "start": 0, "stop": 1, "mixer": 0}
            manifest[key] = {**huge, "bases": 1, "mixers": 1, "columns": [column], "folds": [], "classifier": "c",
                             "domains": [""], "text_encoder": "", "prompts": [], "weight_files": []}  # fmt: skip

    folder = make_bundle(tmp_path / "b", change=change)
    os.truncate(folder / "encoder", 1 << 40)
    fails_soon(folder, "is not valid")


@pytest.mark.parametrize("name", [b"\xff\xfe", b"new\nline", b"sp ace", b"x" * 201])
def test_a_folder_program_with_an_odd_file_name_is_refused(tmp_path, name):
    folder = make_bundle(tmp_path / "b", files={})
    os.close(os.open(os.fsencode(folder) + b"/encoder/" + name, os.O_WRONLY | os.O_CREAT))
    fails_soon(folder, "must stay inside")


def test_a_folder_program_of_too_many_or_too_deep_files_is_refused(tmp_path, monkeypatch):
    folder = make_bundle(tmp_path / "b", files={})
    (folder / "encoder" / "/".join("d" * 20)).mkdir(parents=True)
    fails_soon(folder, "levels")
    monkeypatch.setattr(bundle_files, "MAX_FILES", 3)
    other = make_bundle(tmp_path / "c", files={})
    for number in range(4):
        (other / "encoder" / str(number)).touch()
    fails_soon(other, "more than 3 files")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", [MANIFEST, "encoder", "head"])
def test_a_file_that_may_not_be_read_is_an_error_of_the_bundle(tmp_path, name):
    folder = make_bundle(tmp_path / "b")
    (folder / name).chmod(0)
    fails_soon(folder, "cannot be read")


# ---- manifests


@pytest.mark.parametrize("depth", [1100, 100_000])
@pytest.mark.parametrize("brackets", ["[]", ('{"a":', "}")])
def test_a_manifest_that_nests_without_end_is_refused(tmp_path, depth, brackets):
    folder = make_bundle(tmp_path / "b", change=lambda m: m["heads"][0].update(training={"deep": 0}))
    start, end = brackets
    text = (folder / MANIFEST).read_text().replace('{"deep": 0}', '{"deep":' + start * depth + "0" + end * depth + "}")
    (folder / MANIFEST).write_text(text)
    fails_soon(folder, "not a Refocus manifest|is not valid")


def test_very_many_members_of_which_one_comes_twice_are_refused_soon(tmp_path):
    def members(count):
        return "{" + "".join(f'"{number}": 0, ' for number in range(count)) + f'"{count - 1}": 0}}'

    folder = make_bundle(tmp_path / "b")
    (folder / MANIFEST).write_text(members(170_000))
    assert (folder / MANIFEST).stat().st_size > 2_000_000
    fails_soon(folder, "the member '169999' appears twice")
    header = members(MAX_HEADER_BYTES // 14).encode()
    assert len(header) > 800_000
    began = time.monotonic()
    with pytest.raises(PersonalWeightsError, match="appears twice"):
        decode_tensors(memoryview(len(header).to_bytes(8, "little") + header), "here")
    assert time.monotonic() - began < 5


def test_a_manifest_of_gigabytes_is_refused_before_it_is_read(tmp_path):
    folder = make_bundle(tmp_path / "b")
    os.truncate(folder / MANIFEST, 6 << 30)  # sparse
    code = (
        "import resource, sys, threading\nfrom pathlib import Path\nfrom refocus.edge.errors import BundleError\n"
        "from refocus.edge.recognize.recognizer import Recognizer\n"
        "from refocus.edge.recognize.chosen_target import choice_path\n"
        "has = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (has + (1 << 30), -1))\n"
        "for ask in (Recognizer.open, choice_path):\n"
        "    try: ask(Path(sys.argv[1]))\n"
        "    except BundleError as error: print(error)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", code, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    line = f"{folder / MANIFEST} has {6 << 30} bytes, at most {MAX_MANIFEST_BYTES} are read\n"
    assert done.stdout == 2 * line, done.stderr


WRONG_FIELDS = {
    "a version with a raised digit": lambda m: m["artifacts"][0].update(min_runtime_version="1.²"),
    "a version of many digits": lambda m: m["artifacts"][0].update(min_runtime_version="1" * 5000),
    "a SHA-256 with a newline": lambda m: m["artifacts"][0].update(sha256="0" * 64 + "\n"),
    "a part that is the folder itself": lambda m: m["artifacts"][0].update(file="./encoder"),
    "an input of terabytes": lambda m: m["artifacts"][0]["inputs"][0].update(shape=[2**30, 2**30]),
    "an axis of negative size": lambda m: m["artifacts"][0]["inputs"][0].update(shape=[1, -3]),
    "an axis of enormous size": lambda m: m["artifacts"][0]["inputs"][0].update(shape=[2**63]),
    "very many axes": lambda m: m["artifacts"][0]["inputs"][0].update(shape=[2**30] * 100_000),
    "a window without bound": lambda m: m["heads"][0]["personalisation"].update(window=2**60),
    "a photo of a million pixels a side": lambda m: m["preprocessing"].update(resize_shorter=10**6),
    "a state of terabytes": lambda m: m["heads"][0].update(state=[{
        "name": "s", "source": "s", "dtype": "float32", "shape": [2**30, 2**30], "update": "ring"}]),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG_FIELDS)
def test_a_field_out_of_range_is_refused(tmp_path, what):
    fails_soon(make_bundle(tmp_path / "b", change=WRONG_FIELDS[what]), "is not valid")


MISFITS = {
    "an input of whole numbers": lambda m: m["artifacts"][0]["inputs"][0].update(dtype="int64"),
    "two outputs of one name": lambda m: m["artifacts"][1]["outputs"].append(m["artifacts"][1]["outputs"][-1]),
    "features of another width": lambda m: m["artifacts"][1]["inputs"][0].update(shape=[1, WIDTH + 1]),
    "an encoder of two photos at once": lambda m: m["artifacts"][0]["inputs"][0].update(shape=[2, 3, SIDE, SIDE]),
}


@pytest.mark.parametrize("what", MISFITS)
def test_programs_that_do_not_fit_together_are_refused(tmp_path, what):
    fails_soon(make_bundle(tmp_path / "b", change=MISFITS[what]), "export (it |the bundle )?again")


@pytest.mark.parametrize("version", ["1.²", "1.٣", "9" * 5000, "", ".", "1..2", "x"])
def test_a_version_of_odd_digits_is_compared_without_an_error(version):
    assert version_numbers(version) <= (10**9,)


# ---- programs


def run_encoder(folder, **more):
    return lambda _: feature_of(folder, **more)


def test_a_program_of_other_shapes_than_declared_is_refused_when_it_loads(tmp_path):
    other = encoder_model(np.zeros((NUMBERS, WIDTH + 1), np.float32))
    other.graph.output[0].type.tensor_type.shape.dim[1].dim_value = WIDTH + 1

    def lie(manifest):
        manifest["artifacts"][0]["outputs"][0]["shape"] = [1, WIDTH]

    folder = make_bundle(tmp_path / "b", other, change=lie)
    fails_soon(folder, "its manifest says", run_encoder(folder))


@pytest.mark.parametrize("type_", [TensorProto.DOUBLE, TensorProto.STRING])
def test_a_program_of_other_types_than_declared_is_refused_when_it_loads(tmp_path, type_):
    made = encoder_model()
    made.graph.node[1].output[0] = "f"
    made.graph.node.append(helper.make_node("Cast", ["f"], ["feature"], to=type_))
    made.graph.output[0].type.tensor_type.elem_type = type_
    folder = make_bundle(tmp_path / "b", made)
    fails_soon(folder, "its manifest says", run_encoder(folder))


def declared(manifest):
    manifest["artifacts"][0]["outputs"][0]["shape"] = [1, WIDTH]


def test_an_output_that_turns_out_to_be_of_another_shape_is_an_error_of_the_bundle(tmp_path):
    made = encoder_model(np.zeros((NUMBERS, WIDTH + 1), np.float32))
    for dimension, name in zip(made.graph.output[0].type.tensor_type.shape.dim, "mn", strict=True):
        dimension.dim_param = name
    folder = make_bundle(tmp_path / "b", made, change=declared)
    fails_soon(folder, "gives feature as float32|its manifest says", run_encoder(folder))


def test_a_program_that_fails_while_it_runs_is_an_error_of_the_bundle(tmp_path):
    made = encoder_model()
    made.graph.initializer.append(numpy_helper.from_array(np.array([10**6] * WIDTH), "far"))
    made.graph.node[1].output[0] = "f"
    made.graph.node.append(helper.make_node("Mul", ["flat", "flat"], ["ff"]))
    made.graph.node.append(helper.make_node("ReduceSum", ["ff"], ["s"], keepdims=0))
    made.graph.node.append(helper.make_node("Cast", ["s"], ["n"], to=TensorProto.INT64))
    made.graph.node.append(helper.make_node("Add", ["n", "far"], ["where"]))
    made.graph.node.append(helper.make_node("Gather", ["f", "where"], ["feature"], axis=1))
    for dimension, name in zip(made.graph.output[0].type.tensor_type.shape.dim, "mn", strict=True):
        dimension.dim_param = name
    folder = make_bundle(tmp_path / "b", made, change=declared)
    with pytest.raises(BundleError, match="failed while it ran") as error:
        feature_of(folder)
    assert str(error.value).isprintable()


def test_a_program_that_does_not_load_prints_nothing(tmp_path, capfd):
    made = encoder_model()
    made.graph.node[1].op_type = "Nothing"
    folder = make_bundle(tmp_path / "b", made)
    content = (folder / "encoder").read_bytes().replace(b"Nothing", b"\xa8othing")  # ONNX Runtime says it as it is
    (folder / "encoder").write_bytes(content)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["artifacts"][0]["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))
    fails_soon(folder, "is not a program", run_encoder(folder))
    assert capfd.readouterr() == ("", "")


def endless():
    made = encoder_model()
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Identity", ["x"], ["o"])], "b",
        [value("i", (), TensorProto.INT64), value("c", (), TensorProto.BOOL), value("x", (1, WIDTH))],
        [value("c2", (), TensorProto.BOOL), value("o", (1, WIDTH))],
    )  # fmt: skip
    for name, array in (("n", np.array(2**62)), ("yes", np.array(True))):
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    made.graph.node[1].output[0] = "f"
    made.graph.node.append(helper.make_node("Loop", ["n", "yes", "f"], ["feature"], body=body))
    return made


def test_a_program_that_never_ends_is_ended_by_the_time_limit(tmp_path):
    folder = make_bundle(tmp_path / "b", endless())
    with pytest.raises(BundleError, match=r"did not end within the time limit of 0\.2 s"):
        Recognizer(load_bundle(folder), time_limit=0.2).recognize_pixels(PIXELS, "x")


def test_a_program_that_ends_in_time_answers_as_without_a_limit(tmp_path, bundle, stream):
    np.testing.assert_array_equal(*(feature_of(make_bundle(tmp_path / str(limit)), time_limit=limit)
                                    for limit in (0, 60)))  # fmt: skip
    with Recognizer(bundle) as free, Recognizer(bundle, time_limit=60) as limited:
        np.testing.assert_array_equal(*(r.recognize(stream[0]).logits for r in (free, limited)))


@pytest.mark.parametrize("runtime", ["executorch", "tensorrt", "coreml"])
def test_a_runtime_that_cannot_be_ended_refuses_a_time_limit(tmp_path, runtime):
    def change(manifest):
        for artifact in manifest["artifacts"]:
            artifact["runtime"] = runtime

    with pytest.raises(RuntimeUnavailable, match="cannot end a run"):
        Recognizer(load_bundle(make_bundle(tmp_path / "b", change=change)), runtime=runtime, time_limit=1)


def test_a_closed_program_says_so_and_closing_again_does_nothing(tmp_path):
    program = load_program(load_bundle(make_bundle(tmp_path / "b")), "encoder", "onnxruntime")
    bound = program.bind({"photo": PIXELS})
    bound()
    program.close()
    program.close()
    for run in (bound, lambda: program.run(photo=PIXELS), lambda: program.bind({"photo": PIXELS})):
        with pytest.raises(ValueError, match="was closed"):
            run()


def test_the_command_has_a_time_limit_and_prints_one_line(tmp_path, photo_file, refocus, assert_one_clear_line):
    folder = make_bundle(tmp_path / "b", endless())
    done = refocus("recognize", folder, photo_file, "--profiles", tmp_path / "p", "--time-limit", "0.3")
    assert_one_clear_line(done, "did not end within the time limit")


# ---- files of tensors


def tensor_file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return memoryview(len(text).to_bytes(8, "little") + text + data)


def described(shape, end=0):
    return {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}


WRONG_TENSORS = {
    "nested brackets": b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "nested brackets in a place": b'{"a":{"dtype":' + b"[" * 5000 + b"]" * 5000 + b"}}",
    "70 axes": {"a": described([1] * 70, 4)},
    "empty and enormous": {"a": described([0, 2**40, 2**40])},
    "a name without end": {"a" * 500_000: described([1], 4)},
}


@pytest.mark.parametrize("what", WRONG_TENSORS)
def test_a_file_of_odd_tensors_is_refused(what):
    with pytest.raises(PersonalWeightsError):
        decode_tensors(tensor_file(WRONG_TENSORS[what], bytes(4)), "it")


def test_defaults_that_are_no_tensors_are_an_error_of_the_bundle(tmp_path):
    folder = make_bundle(tmp_path / "b")
    content = bytes(tensor_file(WRONG_TENSORS["nested brackets"]))
    (folder / "defaults").write_bytes(content)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["artifacts"][0]["defaults"] = {
        "file": "defaults", "sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)
    }  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(manifest))
    fails_soon(folder, "holds no tensors")


def test_a_kill_while_one_bundle_replaces_another_never_leaves_none(bundle, tmp_path):
    """The names change places in one step: at every rename a whole bundle is at its place."""
    out, made, scratch = tmp_path / "bundle", tmp_path / "made", tmp_path / "scratch"
    for folder in (out, made):
        shutil.copytree(bundle.folder, folder)
    scratch.mkdir()
    (made / "new").touch()
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom refocus.edge.bundle.load import move_into_place\n"
        "sys.addaudithook(lambda event, _: os.kill(os.getpid(), 9) if event in ('os.rename', 'shutil.move') else None)\n"
        "move_into_place(*map(Path, sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", script, made, out, scratch], capture_output=True, text=True)
    assert done.returncode in (0, -9), done.stderr
    assert load_bundle(out).manifest == bundle.manifest
    if sys.platform in ("linux", "darwin"):
        assert (out / "new").exists()
        assert not (made / "new").exists()
