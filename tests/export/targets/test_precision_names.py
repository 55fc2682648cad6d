"""Every target offers precisions of the one table, and refuses others with what it offers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from refocus.edge.bundle import PRECISIONS, Preprocessing, Tensor
from refocus.export.bundle.artifacts import feature_space
from refocus.export.bundle.first_divergence import RELATIVE_TOLERANCE
from refocus.export.errors import ExportError, NothingToQuantise
from refocus.export.parity.limits import limit_for, parse_limits
from refocus.export.parity.parity import TOLERANCES, Breach, allowing
from refocus.export.program.capture import capture
from refocus.export.program.program import TorchProgram
from refocus.export.targets import TARGETS, Settings, canonical, find_target, needs_ranges
from refocus.export.targets import onnx as onnx_target

PAGE = Path(__file__).parents[3] / "docs/precision.md"


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_offers_names_of_the_table_and_the_page_says_which(name):
    offered = find_target(name)[0].PRECISIONS
    assert set(offered) <= set(PRECISIONS) == set(TOLERANCES)
    assert set(offered) <= set(RELATIVE_TOLERANCE)
    row = re.search(rf"^\| `{name}` \|.*$", PAGE.read_text(), re.MULTILINE)[0]
    assert re.findall(r"`(\w+)`", row.split("|")[2]) == list(offered)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("onnx:int8", "onnx:w8a8"), ("executorch:int8", "executorch:w8a8"), ("tensorrt:int8", "tensorrt:w8a8"),
     ("coreml:int8", "coreml:w8"), ("onnx", "onnx:fp32"), ("coreml", "coreml:fp16"), ("onnx:w8", "onnx:w8")],
)  # fmt: skip
def test_an_old_name_means_what_it_meant_on_that_target(asked, meant):
    assert canonical(asked) == meant
    assert needs_ranges(asked) == meant.endswith("w8a8")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("coreml:w8a8", "--to coreml:w8a8: coreml offers fp16, fp32, w8, palette6; see docs/precision.md"),
        ("executorch:w16", "--to executorch:w16: executorch offers fp32, w8a8; see docs/precision.md"),
        ("onnx:int3", "--to onnx:int3: there is no precision 'int3'; Refocus offers fp32, fp16, "),
    ],
)
def test_a_precision_that_a_target_lacks_is_refused_with_what_it_offers(asked, message):
    with pytest.raises(ExportError, match=re.escape(message)):
        find_target(asked)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                                           torch.nn.Flatten(), torch.nn.Linear(6, 5))  # fmt: skip
        self.mixing = torch.nn.Parameter(torch.randn(5, 4))

    def forward(self, photo):
        return self.network(photo) @ self.mixing


def program(quantisable):
    torch.manual_seed(0)
    return TorchProgram("encoder", Layers().eval(), (Tensor(name="photo", dtype="float32", shape=(1, 3, 8, 8)),),
                        (Tensor(name="feature", dtype="float32", shape=(1, 4)),), "0", quantisable=quantisable)  # fmt: skip


def test_w8_stores_bytes_with_a_scale_per_output_and_computes_in_floating_point(tmp_path):
    made = program(("network",))
    photo = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for precision in ("fp32", "w8"):
        onnx_target.write(made, capture(made), Settings(precision), tmp_path / f"{precision}.onnx")
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in onnx.load(tmp_path / "w8.onnx").graph.initializer}
    stored = {name: value for name, value in weights.items() if value.dtype == np.int8}
    assert sorted(value.shape for value in stored.values()) == [(5, 6), (6, 3, 3, 3)]
    for name in stored:
        assert weights[name.replace(".int8", ".scale")].shape == (stored[name].shape[0],)
        assert np.abs(stored[name].reshape(len(stored[name]), -1)).max(1).min() == 127  # each row has all its steps
    answers = {}
    for precision in ("fp32", "w8"):
        session = onnxruntime.InferenceSession(tmp_path / f"{precision}.onnx", providers=["CPUExecutionProvider"])
        [answers[precision]] = session.run(None, {"photo": photo.numpy()})
    off = np.abs(answers["w8"] - answers["fp32"]).max() / np.abs(answers["fp32"]).max()
    assert 0 < off < 0.02


class Residual(torch.nn.Module):
    """Two blocks, each beside a connection that a second layer reads too."""

    def __init__(self):
        super().__init__()
        layers = [torch.nn.Conv2d(channels, 8, 3, padding=1) for channels in (3, 8, 8, 8, 8)]
        self.network = torch.nn.ModuleList(layers)

    def forward(self, photo):
        stem, *layers = self.network
        x = stem(photo).relu()
        for one, other in (layers[:2], layers[2:]):
            x = x + other(one(x).relu())
        return x.mean((2, 3))


def test_w8a8_leaves_no_layer_beside_a_residual_connection_in_floating_point(tmp_path):
    from refocus.edge.runtimes import profiled
    from refocus.export.targets.single_program import load_single, write_single

    torch.manual_seed(0)
    inputs, outputs = (Tensor("photo", "float32", (1, 3, 16, 16)),), (Tensor("feature", "float32", (1, 8)),)
    made = TorchProgram("encoder", Residual().eval(), inputs, outputs, "0", quantisable=("network",))
    photos = tuple((torch.randn(1, 3, 16, 16),) for _ in range(4))
    settings = Settings("w8a8", calibration=photos)
    written, path = write_single("onnx:w8a8", made, capture(made), settings, tmp_path)
    loaded = load_single("onnx:w8a8", written, path, profile=tmp_path)
    (part,) = profiled(loaded, {"photo": photos[0][0].numpy()})
    nodes = {operator.name: operator.nodes for operator in part.operators}
    assert (nodes["QLinearConv"], nodes["QLinearAdd"]) == (5, 1)  # no layer reads the second sum
    assert "Conv" not in nodes


def test_a_program_whose_layers_are_not_there_is_not_called_w8(tmp_path):
    made = program(("elsewhere",))
    with pytest.raises(NothingToQuantise, match="no layer to quantise"):
        onnx_target.write(made, capture(made), Settings("w8"), tmp_path / "x.onnx")


def test_features_of_0_1_stay_usable_when_the_model_is_exported_again():
    made = program(())
    prepared = Preprocessing(resize_shorter=8, crop=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    of_old = feature_space(made, prepared, "int8", "recipe")
    assert feature_space(made, prepared, "w8a8", "recipe") == of_old
    assert feature_space(made, prepared, "w8a8", "another") != of_old
    assert feature_space(made, prepared, "fp16", "recipe") != of_old


def test_limits_hold_for_the_target_that_they_name():
    limits = parse_limits("onnx:int8:disagreement=0.3,fp16:feature=0.7,cosine-distance=0.5")
    named = limit_for("onnx:w8a8", "w8a8", limits)
    assert (named.agreement, named.cosine) == (0.7, 0.5)
    assert "disagreement 0.3" in named.reason
    other = limit_for("executorch:w8a8", "w8a8", limits)
    assert other.agreement == TOLERANCES["w8a8"].agreement
    assert limit_for("onnx:fp16", "fp16", limits).largest == {**TOLERANCES["fp16"].largest, "feature": 0.7}
    assert limit_for("onnx:fp32", "fp32", {}) is TOLERANCES["fp32"]


def test_the_option_that_a_failure_names_allows_it():
    found = [Breach("feature", 0.0123456, ""), Breach("disagreement", 0.25, ""), Breach("logits", 41.0, "")]
    option = allowing(found, "onnx:fp16")
    limits = parse_limits(option.removeprefix("--max-deviation "))
    assert all(limits["onnx:fp16", breach.name] >= breach.value for breach in found)
    assert limits["onnx:fp16", "feature"] < 0.014
    assert allowing([Breach("feature", float("nan"), "")], "onnx:fp16") == ""
