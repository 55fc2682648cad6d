"""The suite goes on where it was, and one bad pair never stops the table."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from refocus.benchmarks.devices.machine import describe
from refocus.benchmarks.document.schema import (
    BARE,
    GROUP,
    BenchError,
    Conditions,
    Counted,
    Document,
    Missing,
    Photos,
    write_document,
)
from refocus.benchmarks.measure.timer import Series
from refocus.benchmarks.rows.recorder import Rows
from refocus.benchmarks.suite import TABLE, pairs, read_suite, run_suite

pytest.importorskip("tomllib")  # Python 3.11

FEW = Conditions(min_queries=100, min_seconds=0.0)


def document(pair, rows=(), ratios=(), counted=(), missing=()):
    return Document(command="x", refocus="0", mode="suite", started="", seconds=0.0, machine=describe(), rows=tuple(rows),
                    photos=Photos(source="p", count=1, fingerprint=""), ratios=tuple(ratios), counted=tuple(counted),
                    missing=tuple(missing))  # fmt: skip


def measured(pair):
    """Samples of the backbone and of ICIIA-T, whose block takes a thirtieth of it."""
    table = Rows(pair.backbone.name, pair.target, describe(), FEW)
    noise = np.exp(np.random.default_rng(0).normal(0, 0.01, 200))
    found = {name: Series(level * noise, np.arange(200.0)) for name, level in ((BARE, 6.0), ("iciia_t", 0.2))}
    for name, series in found.items():
        table.add(GROUP, series, name)
    table.ratio(GROUP, found, "iciia_t", BARE)
    sizes = [Counted(bundle=table.bundle, target=table.target_name, name=name, parameters=10, flops=flops, size_bytes=1000)
             for name, flops in ((BARE, 0.22e9), ("iciia_t", 3.8e6))]  # fmt: skip
    return document(pair, table.rows, table.ratios, sizes)


def test_the_built_in_suite_has_what_the_paper_has():
    suite = read_suite()
    assert {backbone.paper for backbone in suite.backbone if backbone.paper} == set(suite.paper)
    chosen = pairs(suite)
    assert len({pair.file for pair in chosen}) == len(chosen) == len(suite.backbone) * len(suite.targets)


def test_every_method_of_the_built_in_suite_is_known():
    pytest.importorskip("torch")
    from refocus.cloud_train.bench.suite import METHODS, SHARES, TAPER

    assert {method for backbone in read_suite().backbone for method in backbone.methods} <= {*METHODS, TAPER, SHARES}


def test_a_suite_goes_on_where_it_was_and_a_bad_pair_does_not_stop_it(tmp_path):
    chosen = pairs(read_suite(), ["mobilenetv3_large_100", "resnet18"], ["onnx:fp32"])
    asked = []

    def measure(pair, path):
        asked.append(pair.backbone.name)
        if pair.backbone.name == "mobilenetv3_large_100":
            write_document(measured(pair), path)
        else:
            write_document(document(pair, missing=[Missing(what="resnet18 onnx:fp32", why="killed")]), path)

    found = run_suite(chosen, tmp_path, measure)
    assert [bool(one.rows) for one in found.values()] == [True, False]
    run_suite(chosen, tmp_path, measure)
    assert asked == ["mobilenetv3_large_100", "resnet18"]  # once each
    table = (tmp_path / TABLE).read_text()
    assert "| mobilenetv3_large_100, onnx:fp32 (paper: 230 M) | 10 | 220 M | 6.0" in table
    assert "| not measured | not measured | 3.8 M (1.73%) | 3.33% (3.33% to 3.33%) | not measured |" in table
    assert "resnet18 onnx:fp32 | not measured: killed" in table


def test_times_of_different_machines_stand_in_no_table_together(tmp_path):
    chosen = pairs(read_suite(), ["resnet18"], ["onnx:fp32", "onnx:w8a8", "executorch:fp32"])

    def measure(pair, path):
        features = ("avx2", "avx512f") if pair.target == "onnx:w8a8" else ("avx2",)
        found = measured(pair)
        machine = msgspec.structs.replace(found.machine, cpu="Toy", cores=2, features=features)
        write_document(msgspec.structs.replace(found, machine=machine), path)

    run_suite(chosen, tmp_path, measure)
    table = (tmp_path / TABLE).read_text()
    assert "A: Toy, 2 cores, avx2; B: Toy, 2 cores, avx2 avx512f" in table
    assert table.index("| resnet18, onnx:fp32, A |") < table.index("| resnet18, onnx:w8a8, B |")
    of_a, of_b = table.partition("Machine A:")[2].partition("## Start")[0].split("Machine B:")
    assert ("onnx:fp32" in of_a, "executorch:fp32" in of_a, "onnx:w8a8" in of_a) == (True, True, False)
    assert ("onnx:fp32" in of_b, "executorch:fp32" in of_b, "onnx:w8a8" in of_b) == (False, False, True)


def test_a_name_that_the_suite_has_not_is_refused():
    with pytest.raises(BenchError, match="--backbones vgg: the suite has mobilenetv3_large_100"):
        pairs(read_suite(), ["vgg"])
    with pytest.raises(BenchError, match="--to tflite: the suite has onnx:fp32"):
        pairs(read_suite(), [], ["tflite"])


@pytest.mark.parametrize(
    ("text", "message"),
    [("x = [", "is not a suite"), ("schema_version = 1", "is not a suite"),
     ('schema_version = 2\ntargets = []\nbackbone = []', "has schema 2, this refocus reads 1"),
     ('schema_version = 1\ntargets = []\n[[backbone]]\nname = "a"\nmethods = []\npaper = "VGG"', "VGG is not in the paper's")],
)  # fmt: skip
def test_a_file_that_is_no_suite_is_refused(text, message, tmp_path):
    (tmp_path / "suite.toml").write_text(text)
    with pytest.raises(BenchError, match=message):
        read_suite(tmp_path / "suite.toml")
