"""Where the nodes of a program ran: what falls back is counted and timed, whatever a session registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from refocus.edge.runtimes.placement import OperatorTime, Part, Ran, fallback_text, parts_of

SPLIT = """
import json, os, sys
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from pathlib import Path
from refocus.edge.bundle import Artifact, Tensor
from refocus.edge.errors import RefocusError
from refocus.edge.runtimes import load_artifact, profile_folder, profiled
import hashlib

# A convolution that OpenVINO takes, `Unique`, which it does not, and what follows.
rng = np.random.default_rng(0)
weight = helper.make_tensor("w", TensorProto.FLOAT, [8, 8, 3, 3], rng.standard_normal(576).astype("f").tolist())
one = helper.make_tensor_value_info
nodes = [helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["a"], ["b"]),
         helper.make_node("Unique", ["b"], ["u"], axis=0), helper.make_node("ReduceSum", ["u"], ["y"], keepdims=1)]
graph = helper.make_graph(nodes, "g", [one("x", 1, [1, 8, 64, 64])], [one("y", 1, [1, 1, 1, 1])], [weight])
content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
folder = Path(sys.argv[1])
(folder / "p.onnx").write_bytes(content)
digest = hashlib.sha256(content).hexdigest()
artifact = Artifact(role="encoder", runtime="onnxruntime", precision="fp32", file="p.onnx", sha256=digest,
                    size_bytes=len(content), inputs=(Tensor("x", "float32", (1, 8, 64, 64)),),
                    outputs=(Tensor("y", "float32", (1, 1, 1, 1)),), min_runtime_version="0", producer={},
                    feature_space=digest)
said = {"used": load_artifact(folder, artifact, 1, "openvino").ran_on()}
with profile_folder() as profile:
    program = load_artifact(folder, artifact, 1, "openvino", profile=Path(profile))
    photo = rng.standard_normal((1, 8, 64, 64)).astype("f")
    said["parts"] = [[p.provider, p.asked, p.nodes, p.time_share] for p in profiled(program, {"x": photo})]
try:
    load_artifact(folder, artifact, 1, "openvino", allow_fallback=False)
except RefocusError as error:
    said["refused"] = str(error)
print(json.dumps(said))
"""


def test_parts_of_a_run_are_counted_in_pieces_and_shares():
    ran = [Ran("gpu", 3.0, "Conv"), Ran("cpu", 1.0), Ran("cpu", 2.0), Ran("gpu", 1.5, "Conv"), Ran("gpu", 0.5, "Add")]
    gpu, cpu = parts_of(ran, ["gpu"], {"gpu": 40, "cpu": 10})
    assert gpu == Part("gpu", True, 40, 2, 5.0, 0.625, (OperatorTime("Conv", 2, 4.5), OperatorTime("Add", 1, 0.5)))
    assert cpu == Part("cpu", False, 10, 1, 3.0, 0.375)
    assert fallback_text([gpu, cpu]) == "10 of 50 nodes (20%), 38% of the time, run on cpu"
    assert fallback_text([gpu]) == ""


def test_a_provider_that_takes_nothing_is_seen_though_its_session_registers_it(bundle, tmp_path, monkeypatch):
    from refocus.benchmarks.document.schema import Conditions
    from refocus.benchmarks.run import Plan, run
    from refocus.edge.runtimes import onnxruntime

    # Azure's provider is in every build for Linux and takes no ordinary node; Refocus does not offer it.
    monkeypatch.setitem(onnxruntime.PROVIDERS, "azure", "AzureExecutionProvider")
    if "AzureExecutionProvider" not in onnxruntime.onnxruntime.get_available_providers():
        pytest.skip("this build has the CPU alone")
    plan = Plan(Conditions(min_queries=4, min_seconds=0.0), "custom", only=("threads",), provider="azure")
    (tmp_path / "allowed").mkdir()
    found = run([bundle.folder], plan, tmp_path / "allowed", "x")
    (ran,) = found.ran
    assert ran.used == "CPUExecutionProvider"
    assert {(part.role, part.provider, part.asked) for part in ran.placement} == {
        ("encoder", "CPUExecutionProvider", False),
        ("head", "CPUExecutionProvider", False),
    }
    assert all(part.time_share == 1 and part.nodes > 10 for part in ran.placement)
    assert "(100%), 100% of the time, run on CPUExecutionProvider" in ran.fallback
    assert found.rows
    (tmp_path / "refused").mkdir()
    strict = Plan(plan.conditions, "custom", only=("threads",), provider="azure", allow_fallback=False)
    refused = run([bundle.folder], strict, tmp_path / "refused", "x")
    assert not refused.rows
    assert not any(part.asked for part in refused.ran[0].placement)
    assert "azure does not take everything" in refused.missing[0].why


def test_the_nodes_of_a_session_on_the_cpu_are_all_where_they_were_asked_to_be(bundle, tmp_path):
    from refocus.edge.runtimes import load_program, profiled

    program = load_program(bundle, "encoder", "onnxruntime", profile=tmp_path)
    photo = np.zeros((1, *program.artifact.inputs[0].shape[1:]), dtype=np.float32)
    (part,) = profiled(program, {"photo": photo})
    assert part.asked
    assert part.nodes > 10
    assert part.ms > 0
    assert program.closed


def test_a_program_without_a_profile_says_so(bundle):
    from refocus.edge.runtimes import load_program

    program = load_program(bundle, "encoder", "onnxruntime")
    with pytest.raises(ValueError, match="was loaded without a profile"):
        program.placement()
    program.close()


@pytest.mark.slow
def test_what_executorchs_delegate_leaves_is_counted_and_timed(tmp_path):
    import torch
    from torch import nn

    from refocus.edge.bundle import Tensor
    from refocus.edge.runtimes import profiled
    from refocus.export.program import TorchProgram, capture_freest
    from refocus.export.targets import Settings
    from refocus.export.targets.single_program import load_single, write_single

    class Split(nn.Module):
        """XNNPACK takes the convolutions and leaves the cumulative sum between them."""

        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 4, 3)

        def forward(self, photo):
            return self.second(torch.cumsum(self.first(photo).relu(), 2))

    photo, feature = Tensor("photo", "float32", (1, 3, 32, 32)), Tensor("feature", "float32", (1, 4, 28, 28))
    program = TorchProgram("encoder", Split().eval(), (photo,), (feature,), identity="split")
    with torch.no_grad():
        program, captured = capture_freest(program)
        written, path = write_single("executorch:fp32", program, captured, Settings("fp32"), tmp_path)
    loaded = load_single("executorch:fp32", written, path, profile=tmp_path)
    delegate, portable = profiled(loaded, {"photo": np.ones((1, 3, 32, 32), np.float32)})
    assert (delegate.asked, portable.asked) == (True, False)
    assert (delegate.partitions, portable.partitions) == (2, 1)
    assert portable.nodes == 1
    assert delegate.time_share + portable.time_share == pytest.approx(1)
    assert min(delegate.ms, portable.ms) > 0
    assert {one.nodes for one in delegate.operators if "Conv" in one.name} == {2}
    assert [one.name for one in portable.operators] == ["cumsum.out"]
    assert "of the time, run on portable" in fallback_text([delegate, portable])


@pytest.mark.slow
def test_a_provider_that_takes_a_part_of_a_graph_is_told_with_its_shares_and_refused(tmp_path):
    """A build of ONNX Runtime with a second provider that runs on a CPU, in a folder and a process of its own."""
    wheel = [
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path / "build"),
        "onnxruntime-openvino==1.24.1",
    ]
    done = subprocess.run([sys.executable, "-m", *wheel], capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"no build with OpenVINO for this platform: {done.stderr.strip().splitlines()[-1]}")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "build")}
    command = [sys.executable, "-c", SPLIT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["used"] == "OpenVINOExecutionProvider (3 nodes), CPUExecutionProvider (1 nodes)"
    parts = {name: (asked, nodes, share) for name, asked, nodes, share in said["parts"]}
    assert parts["OpenVINOExecutionProvider"][:2] == (True, 3)
    assert parts["CPUExecutionProvider"][:2] == (False, 1)
    assert sum(share for *_, share in parts.values()) == pytest.approx(1)
    assert 0 < parts["CPUExecutionProvider"][2] < 1
    assert "openvino does not take every node of p.onnx" in said["refused"]
