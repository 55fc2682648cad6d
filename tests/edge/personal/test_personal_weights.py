"""Programs with personal weights answer as if the weights were inside; weights that do not fit are refused."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from refocus.edge.bundle.manifest import Artifact, Tensor
from refocus.edge.bundle.personal_weights import NewWeights
from refocus.edge.bundle.verified_files import tree_sha256
from refocus.edge.errors import BundleError, PersonalWeightsError, RuntimeUnavailable
from refocus.edge.personal.programs import SessionPool
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.runtimes import load_artifact

MODEL, SPACE = "a" * 64, "c" * 64
WIDTH, RANK = 16, 4
RNG = np.random.default_rng(0)
BASE = {"base": RNG.standard_normal((12, WIDTH)).astype("f"), "bias": RNG.standard_normal(WIDTH).astype("f")}
PHOTO = RNG.standard_normal((1, 12)).astype("f")


def person(seed: int, size: int = WIDTH) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"down": (size, RANK), "up": (RANK, size)}
    return {name: rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}


def adapter(seed: int = 1, **changed: np.ndarray) -> NewWeights:
    return NewWeights("weights", "fedperfix", {**person(seed), **changed})


def by_hand(tensors: dict[str, np.ndarray]) -> np.ndarray:
    feature = PHOTO @ BASE["base"] + BASE["bias"]
    return feature + np.maximum(feature @ tensors["down"], 0) @ tensors["up"]


@pytest.fixture
def cache(tmp_path) -> PersonalWeightStore:
    return PersonalWeightStore(tmp_path / "cache")


# Programs


def graph(tensors: dict[str, np.ndarray], inside: set[str], inputs: tuple[str, ...] = ()) -> onnx.ModelProto:
    """A linear encoder with a bottleneck adapter; what is not inside is said to be in ``<name>.bin``."""
    nodes = [
        helper.make_node("MatMul", ["photo", "base"], ["linear"]),
        helper.make_node("Add", ["linear", "bias"], ["plain"]),
        helper.make_node("MatMul", ["plain", "down"], ["squeezed"]),
        helper.make_node("Relu", ["squeezed"], ["positive"]),
        helper.make_node("MatMul", ["positive", "up"], ["change"]),
        helper.make_node("Add", ["plain", "change"], ["feature"]),
    ]
    given = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in [("photo", (1, 12)), *((n, tensors[n].shape) for n in inputs)]
    ]
    out = helper.make_tensor_value_info("feature", TensorProto.FLOAT, (1, WIDTH))
    stored = [numpy_helper.from_array(value, name) for name, value in tensors.items() if name not in inputs]
    for tensor in stored:
        if tensor.name not in inside:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", f"{tensor.name}.bin"),
                ("offset", "0"),
                ("length", str(tensors[tensor.name].nbytes)),
            ):
                entry = tensor.external_data.add()
                entry.key, entry.value = key, value
    made = helper.make_graph(nodes, "encoder", given, [out], stored)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def artifact_for(
    path, inputs: tuple[Tensor, ...] = (), runtime: str = "onnxruntime", width: int = 12, delegates: str = ""
) -> Artifact:
    content = path.read_bytes() if path.is_file() else b""
    sha256, size = (hashlib.sha256(content).hexdigest(), len(content)) if path.is_file() else tree_sha256(path)
    photo = Tensor(name="photo", dtype="float32", shape=(1, width))
    return Artifact(
        role="encoder", runtime=runtime, precision="fp32", file=path.name, sha256=sha256, size_bytes=size,
        inputs=(photo, *inputs), outputs=(Tensor(name="feature", dtype="float32", shape=(1, WIDTH)),),
        min_runtime_version="0", producer={"delegates": delegates}, feature_space=SPACE,
    )  # fmt: skip


@pytest.fixture
def shared(tmp_path) -> Artifact:
    """The shared program in one file; the adapter has to come from a person."""
    path = tmp_path / "encoder.onnx"
    path.write_bytes(graph(BASE | person(0), inside=set(BASE)).SerializeToString())
    return artifact_for(path)


@pytest.fixture
def shared_folder(tmp_path) -> Artifact:
    """The shared program in a folder, all weights beside it: a neutral adapter too."""
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "program.onnx").write_bytes(graph(BASE | person(0), inside=set()).SerializeToString())
    for name, value in (BASE | person(0)).items():
        (folder / f"{name}.bin").write_bytes(value.tobytes())
    return artifact_for(folder)


def feature_of(folder, artifact: Artifact, weights=None, **more: np.ndarray) -> np.ndarray:
    return load_artifact(folder, artifact, 1, personal=weights).run(photo=PHOTO, **more)["feature"]


def stored(cache: PersonalWeightStore, weights: NewWeights, profile: str = "anna", model: str = MODEL):
    cache.put(profile, model, weights)
    return cache.get(profile, model)


def test_features_under_personal_weights_are_a_space_of_their_own(cache, shared):
    anna, bob = stored(cache, adapter(1)), stored(cache, adapter(2), "bob")
    spaces = {SPACE, anna.feature_space(SPACE), bob.feature_space(SPACE), anna.feature_space("d" * 64)}
    assert len(spaces) == 4
    assert anna.artifact_of(shared).feature_space == anna.feature_space(SPACE)


# The three carriers in ONNX Runtime


def test_two_people_get_the_answers_of_models_with_their_weights_inside(cache, shared, tmp_path):
    anna, bob = stored(cache, adapter(1)), stored(cache, adapter(2), "bob")
    answers = []
    for seed, weights in ((1, anna), (2, bob)):
        baked = tmp_path / f"baked{seed}.onnx"
        baked.write_bytes(graph(BASE | person(seed), inside={*BASE, "down", "up"}).SerializeToString())
        answers.append(feature_of(tmp_path, shared, weights))
        np.testing.assert_array_equal(answers[-1], feature_of(tmp_path, artifact_for(baked)))
        np.testing.assert_allclose(answers[-1], by_hand(person(seed)), rtol=1e-5, atol=1e-5)
    assert abs(answers[0] - answers[1]).max() > 0.1


def test_the_same_as_inputs_needs_no_second_session(cache, tmp_path):
    path = tmp_path / "inputs.onnx"
    path.write_bytes(graph(BASE | person(0), inside=set(BASE), inputs=("down", "up")).SerializeToString())
    shared = artifact_for(path, tuple(Tensor(name=n, dtype="float32", shape=v.shape) for n, v in person(0).items()))
    program = load_artifact(tmp_path, shared, 1)
    for seed, name in ((1, "anna"), (2, "bob")):
        weights = stored(cache, NewWeights("inputs", "pfedpg", person(seed)), name)
        assert weights.artifact_of(shared).feature_space == weights.feature_space(SPACE)
        np.testing.assert_allclose(
            program.run(photo=PHOTO, **weights.tensors)["feature"], by_hand(person(seed)), rtol=1e-5, atol=1e-5
        )


def test_a_model_of_ones_own_runs_instead_of_the_shared_one(cache, shared, tmp_path):
    own = tmp_path / "own.onnx"
    own.write_bytes(graph(BASE | person(3), inside={*BASE, "down", "up"}).SerializeToString())
    weights = stored(cache, NewWeights("whole", "taper", file=own))
    program = load_artifact(tmp_path, shared, 1, personal=weights)
    np.testing.assert_allclose(program.run(photo=PHOTO)["feature"], by_hand(person(3)), rtol=1e-5, atol=1e-5)
    assert (program.artifact.sha256, program.artifact.feature_space) == (weights.sha256, weights.feature_space(SPACE))


def test_a_model_of_ones_own_that_is_none_is_refused(cache, shared, tmp_path):
    own = tmp_path / "own.onnx"
    own.write_bytes(b"not a program")
    with pytest.raises(BundleError, match="is not a program for onnxruntime"):
        load_artifact(tmp_path, shared, 1, personal=stored(cache, NewWeights("whole", "taper", file=own)))


def test_what_a_person_leaves_out_comes_from_the_bundle(cache, shared_folder, tmp_path, monkeypatch):
    (tmp_path / "up.bin").write_bytes(bytes(4 * RANK * WIDTH))
    monkeypatch.chdir(tmp_path)  # a file of that name in the working directory is not taken
    weights = stored(cache, NewWeights("weights", "fedperfix", {"down": person(1)["down"]}))
    expected = by_hand({"down": person(1)["down"], "up": person(0)["up"]})
    np.testing.assert_allclose(feature_of(tmp_path, shared_folder, weights), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(feature_of(tmp_path, shared_folder), by_hand(person(0)), rtol=1e-5, atol=1e-5)


def test_tensors_that_neither_person_nor_bundle_have_are_named(cache, shared, shared_folder, tmp_path, monkeypatch):
    (tmp_path / "up.bin").write_bytes(bytes(4 * RANK * WIDTH))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PersonalWeightsError, match="keeps up outside itself"):
        load_artifact(
            tmp_path, shared, 1, personal=stored(cache, NewWeights("weights", "m", {"down": person(1)["down"]}))
        )
    with pytest.raises(PersonalWeightsError, match="keeps down outside itself"):
        load_artifact(tmp_path, shared, 1)
    (tmp_path / "encoder" / "base.bin").unlink()
    with pytest.raises(PersonalWeightsError, match="keeps base outside itself"):
        load_artifact(tmp_path, artifact_for(tmp_path / "encoder"), 1, personal=stored(cache, adapter()))


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"down": person(1, 2 * WIDTH)["down"]}, r"down is float32 \(32, 4\), encoder.onnx has float32 \(16, 4\)"),
        ({"down": person(1)["down"].T}, r"down is float32 \(4, 16\)"),
        ({"down": person(1)["down"].astype("f2")}, r"down is float16 \(16, 4\)"),
        ({"base": BASE["base"]}, "encoder.onnx has no such external tensor"),
        ({"sideways": BASE["base"]}, "sideways is .*no such external tensor"),
    ],
)
def test_tensors_of_another_shape_are_refused(cache, shared, tmp_path, changed, what):
    with pytest.raises(PersonalWeightsError, match=f"do not fit: .*{what}.*fetch them again"):
        load_artifact(tmp_path, shared, 1, personal=stored(cache, adapter(1, **changed)))


@pytest.mark.parametrize(
    "tensors", [{"prompt": np.zeros((2, 4), "f")}, {"prompt": np.zeros((1, 4), "f2")}, {"other": np.zeros((1, 4), "f")}]
)
def test_inputs_of_another_shape_are_refused(cache, shared, tensors):
    wanted = msgspec.structs.replace(
        shared, inputs=(*shared.inputs, Tensor(name="prompt", dtype="float32", shape=(1, 4)))
    )
    with pytest.raises(PersonalWeightsError, match="do not fit: (prompt|other) is float.*fetch them again"):
        stored(cache, NewWeights("inputs", "pfedpg", tensors)).artifact_of(wanted)


def test_a_runtime_without_a_place_for_personal_weights_says_so(cache, shared, tmp_path):
    weights = stored(cache, adapter())
    for runtime in ("tensorrt", "coreml"):
        with pytest.raises(RuntimeUnavailable, match=f"{runtime} takes no personal weights"):
            load_artifact(tmp_path, msgspec.structs.replace(shared, runtime=runtime), 1, personal=weights)


def test_weights_for_another_runtime_are_refused(cache, shared, tmp_path):
    (tmp_path / "weights.ptd").write_bytes(b"x" * 100)
    weights = stored(cache, NewWeights("weights", "m", file=tmp_path / "weights.ptd"))
    with pytest.raises(PersonalWeightsError, match="is for another runtime than onnxruntime"):
        load_artifact(tmp_path, shared, 1, personal=weights)


@pytest.mark.parametrize("content", [b"not a program", b"\x3a\xff", b"\x3a\x05ab", b"\xff" * 20, b"\x3a\x02\x2a\x7f"])
def test_a_program_that_is_no_onnx_is_refused(tmp_path, content):
    (tmp_path / "encoder.onnx").write_bytes(content)
    with pytest.raises(BundleError, match="is not a program for onnxruntime"):
        load_artifact(tmp_path, artifact_for(tmp_path / "encoder.onnx"), 1)


def test_a_folder_without_its_program_is_refused(shared_folder, tmp_path):
    (tmp_path / "encoder" / "program.onnx").unlink()
    with pytest.raises(BundleError, match="program.onnx cannot be read"):
        load_artifact(tmp_path, artifact_for(tmp_path / "encoder"), 1)


def test_a_removed_person_is_served_until_the_switch_is_over(cache, shared, tmp_path):
    """Another process may make room between the moment weights are read and the moment they are loaded."""
    weights = stored(cache, adapter(1))
    PersonalWeightStore(cache.folder).drop("anna")
    np.testing.assert_allclose(feature_of(tmp_path, shared, weights), by_hand(person(1)), rtol=1e-5, atol=1e-5)
    assert cache.get("anna", MODEL) is None


# Warm sessions


def test_switching_back_to_a_warm_session_loads_nothing(cache, shared, tmp_path):
    pool, loads = SessionPool(max_programs=2), []

    def switch(seed: int, profile: str) -> np.ndarray:
        weights = cache.get(profile, MODEL)

        def load():
            loads.append(profile)
            return load_artifact(tmp_path, shared, 1, personal=weights)

        return pool.get((shared.sha256, weights.sha256), load).run(photo=PHOTO)["feature"]

    for seed, profile in enumerate(("anna", "bob", "cleo")):
        cache.put(profile, MODEL, adapter(seed))
    for seed, profile in (
        (0, "anna"),
        (1, "bob"),
        (0, "anna"),
        (1, "bob"),
        (0, "anna"),
        (2, "cleo"),
        (0, "anna"),
        (1, "bob"),
    ):
        np.testing.assert_allclose(switch(seed, profile), by_hand(person(seed)), rtol=1e-5, atol=1e-5)
    assert loads == ["anna", "bob", "cleo", "bob"], "the least recently used goes first, the others stay"
    assert len(pool) == 2


def test_an_evicted_session_is_closed_and_the_bound_in_bytes_holds(cache, shared, tmp_path):
    weights = stored(cache, adapter())
    with pytest.raises(ValueError, match="at least one"):
        SessionPool(max_programs=0)
    pool = SessionPool(max_programs=9, max_bytes=100)
    first, second, _large = (
        pool.get(key, lambda: load_artifact(tmp_path, shared, 1, personal=weights), size)
        for key, size in (("a", 60), ("b", 40), ("c", 500))
    )
    assert [key in pool for key in "abc"] == [False, False, True]
    for program in (first, second):
        with pytest.raises(ValueError, match="was closed"):
            program.run(photo=PHOTO)
    pool.close()
    assert len(pool) == 0


def test_weights_that_do_not_load_leave_the_warm_sessions(cache, shared, tmp_path):
    pool = SessionPool(max_programs=1)
    weights = stored(cache, adapter(1))
    program = pool.get("anna", lambda: load_artifact(tmp_path, shared, 1, personal=weights))
    wrong = stored(cache, NewWeights("weights", "m", person(1, 3)), "bob")
    with pytest.raises(PersonalWeightsError):
        pool.get("bob", lambda: load_artifact(tmp_path, shared, 1, personal=wrong))
    np.testing.assert_allclose(program.run(photo=PHOTO)["feature"], by_hand(person(1)), rtol=1e-5, atol=1e-5)


# ExecuTorch


@pytest.fixture(scope="module", params=["xnnpack", "portable"])
def executorch_program(request, tmp_path_factory):
    """(folder, artifact, expected feature by seed, the person's .ptd by seed) of one exported program."""
    pytest.importorskip("executorch.runtime")
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes.external_constants_pass import delegate_external_constants_pass_unlifted

    class Encoder(torch.nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.base, self.down, self.up = (
                torch.nn.Linear(12, WIDTH),
                torch.nn.Linear(WIDTH, RANK),
                torch.nn.Linear(RANK, WIDTH),
            )
            with torch.no_grad():
                self.base.weight.copy_(torch.from_numpy(BASE["base"].T.copy()))
                self.base.bias.copy_(torch.from_numpy(BASE["bias"]))
                for layer, values in ((self.down, person(seed)["down"]), (self.up, person(seed)["up"])):
                    layer.weight.copy_(torch.from_numpy(values.T.copy()))
                    layer.bias.fill_(seed)

        def forward(self, photo):
            feature = self.base(photo)
            return feature + self.up(torch.relu(self.down(feature)))

    def personal(node):
        return (
            "weights"
            if {"down", "up"} & {*str(node.target).replace("_", ".").split("."), *node.name.split("_")}
            else None
        )

    photo, delegated = (torch.from_numpy(PHOTO),), request.param == "xnnpack"
    folder, expected, files = tmp_path_factory.mktemp(request.param), {}, {}
    for seed in (0, 1, 2):
        module = Encoder(seed).eval()
        expected[seed] = module(*photo).detach().numpy()
        captured = torch.export.export(module, photo, strict=True)
        if delegated:
            unlifted = captured.module()
            delegate_external_constants_pass_unlifted(unlifted, personal)
            captured = torch.export.export(unlifted, photo, strict=True)
            lowered = to_edge_transform_and_lower(captured, partitioner=[XnnpackPartitioner()]).to_executorch()
        else:
            lowered = to_edge_transform_and_lower(captured).to_executorch(
                ExecutorchBackendConfig(external_constants=personal)
            )
        made = folder / str(seed)
        made.mkdir()
        (made / "program.pte").write_bytes(lowered.buffer)
        lowered.write_tensor_data_to_file(str(made))
        content = (made / "weights.ptd").read_bytes()
        data = int.from_bytes(content[32:40], "little")
        own = (folder / "0" / "weights.ptd").read_bytes()
        files[seed] = folder / f"{seed}.ptd"
        files[seed].write_bytes(own[:data] + content[data:])
    artifact = artifact_for(folder / "0", runtime="executorch", delegates="XnnpackBackend" if delegated else "")
    return folder, artifact, expected, files


@pytest.mark.slow
def test_two_people_share_one_executorch_program(cache, executorch_program):
    folder, artifact, expected, files = executorch_program
    programs = {0: load_artifact(folder, artifact)}
    for seed in (1, 2):
        weights = stored(cache, NewWeights("weights", "fedperfix", file=files[seed]), f"p{seed}")
        programs[seed] = load_artifact(folder, artifact, personal=weights)
    for seed in (2, 0, 1, 2):  # all of them warm at once
        np.testing.assert_allclose(programs[seed].run(photo=PHOTO)["feature"], expected[seed], rtol=1e-4, atol=1e-4)
    programs[1].close()


@pytest.mark.slow
def test_an_executorch_weight_file_of_other_sizes_is_never_read(cache, executorch_program, tmp_path):
    """The runtime itself would read beyond the end of a shorter tensor."""
    folder, artifact, _, files = executorch_program
    content = files[1].read_bytes()
    for number, wrong in enumerate(
        (content[:-64], content + bytes(64), content[:48] + b"\1" + content[49:], b"x" * len(content))
    ):
        path = tmp_path / f"{number}.ptd"
        path.write_bytes(wrong)
        with pytest.raises(PersonalWeightsError, match="is not weights.ptd of the bundle with other numbers"):
            load_artifact(folder, artifact, personal=stored(cache, NewWeights("weights", "m", file=path)))


@pytest.mark.slow
def test_tensors_for_another_runtime_never_reach_executorch(cache, executorch_program):
    folder, artifact, _, files = executorch_program
    with pytest.raises(PersonalWeightsError, match="is not weights.ptd of the bundle"):
        load_artifact(folder, artifact, personal=stored(cache, adapter()))
    alone = artifact_for(folder / "0" / "program.pte", runtime="executorch")
    with pytest.raises(PersonalWeightsError, match="keeps no weights outside itself"):
        load_artifact(folder / "0", alone, personal=stored(cache, NewWeights("weights", "m", file=files[1])))
