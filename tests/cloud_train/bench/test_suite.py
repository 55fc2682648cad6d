"""The programs of the suite and the peers, on a small network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from refocus.benchmarks.document.schema import BARE, GROUP, BenchError, Conditions, read_document
from refocus.benchmarks.rows.saved_program import read_pair
from refocus.benchmarks.suite import Backbone, Pair, run_suite
from refocus.benchmarks.suite_pair import measure_pair
from refocus.cloud_train.bench.candidates import METHODS, Setup
from refocus.cloud_train.bench.suite import PROGRAMS, Processes, export_suite, prepare_pair
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.iciia.block import mac_count

FEW = Conditions(min_queries=4, min_seconds=0.0, warm_up=1)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    from PIL import Image

    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(40):
        coarse = Image.fromarray(rng.integers(0, 255, (7, 7, 3), dtype=np.uint8))
        coarse.resize((64, 64)).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("width", "partitions", "paper"),
    [(1280, 1, 0.47e9), (1280, 256, 3.8e6), (2048, 1, 1.2e9), (2048, 256, 7.9e6), (1792, 1, 0.93e9), (1792, 256, 6.4e6),
     (1024, 1, 0.30e9), (1024, 256, 2.8e6)],
)  # fmt: skip
def test_the_multiply_adds_are_those_of_the_papers_table(width, partitions, paper):
    assert mac_count(width, partitions, layers=3, window=16) == pytest.approx(paper, rel=0.03)


@pytest.mark.parametrize("method", ["iciia_t", "iciia_t_streaming", "naive_iciia_t"])
def test_a_block_gives_a_calibrated_feature(method):
    setup = Setup(None, 64, torch.zeros(1, 3, 8, 8), "onnx:fp32", Backbone("x", (), 16))
    made = METHODS[method](setup)
    inputs = [torch.from_numpy(value) for value in made.inputs.values()]
    with torch.no_grad():
        found = made.module(*inputs)
    first = found[0] if isinstance(found, tuple) else found
    assert first.shape == (1, 64)
    assert made.parameters > 0


def measured(pair, photos, folder):
    """A pair, exported and then measured from its files."""
    prepare_pair(pair, photos, folder)
    return measure_pair(folder, FEW, "x")


@pytest.mark.slow
def test_a_pair_is_measured_with_every_method_of_a_convolutional_network(photos, tmp_path):
    blocks = ("iciia_b", "iciia_t", "iciia_t_streaming", "iciia_t_native", "iciia_t_native_streaming")
    methods = (*blocks, "class_shares", "taper", "no such method")
    found = measured(Pair(Backbone("resnet10t", methods), "onnx:fp32"), photos, tmp_path / "pair")
    assert [row.name for row in found.rows if row.group == GROUP] == [BARE, *methods[:-1]], found.missing
    assert [row.name for row in found.rows if row.group == "condensing"] == ["condense"]
    assert {row.at for row in found.rows if row.group == "start"} == {BARE}
    (missing,) = found.missing
    assert "no such method" in missing.why
    sizes = {c.name: c for c in found.counted}
    assert sizes["iciia_t"].flops < sizes["iciia_b"].flops / 50
    memory = {one.name: one for one in found.memory}
    assert [*memory] == [BARE, *blocks[1:]]
    assert memory["iciia_t_native"].loaded_bytes < memory["iciia_t"].loaded_bytes <= memory["iciia_t"].peak_bytes
    backbone = memory[BARE].loaded_bytes - memory[BARE].imported_bytes
    assert sizes[BARE].size_bytes < backbone < 2.5 * sizes[BARE].size_bytes  # what loading freed was given back


@pytest.mark.slow
def test_int8_takes_the_layers_of_a_network_and_leaves_blocks_in_floating_point(photos, tmp_path):
    pair = Pair(Backbone("resnet10t", ("iciia_b", "taper")), "onnx:w8a8")
    found = measured(pair, photos, tmp_path / "pair")
    assert [row.name for row in found.rows if row.group == GROUP] == [BARE, "iciia_b", "taper"], found.missing
    sizes = {c.name: c for c in found.counted}
    assert sizes[BARE].size_bytes < 1.2 * sizes[BARE].parameters
    assert sizes["iciia_b"].size_bytes > 4 * sizes["iciia_b"].parameters


@pytest.mark.slow
def test_a_pair_that_crashes_is_a_document_with_the_reason(photos, tmp_path):
    processes = Processes(photos, tmp_path, FEW, "x", 120.0)
    processes.measure(Pair(Backbone("no_such_network"), "onnx:fp32"), tmp_path / "a.json")
    (missing,) = read_document(tmp_path / "a.json").missing
    assert "no such network" in missing.why


@pytest.mark.slow
def test_programs_wait_for_a_quiet_machine_and_go_when_they_are_measured(photos, tmp_path):
    pair = Pair(Backbone("resnet10t", ("iciia_t", "class_shares")), "executorch:fp32")
    processes = Processes(photos, tmp_path, FEW, "x", 300.0)
    export_suite([pair], tmp_path, processes.export, lambda _: None)
    program = tmp_path / PROGRAMS / "resnet10t-executorch-fp32" / BARE / "program.pte"
    first = program.stat().st_mtime_ns
    export_suite([pair], tmp_path, processes.export, lambda _: None)
    assert program.stat().st_mtime_ns == first
    run_suite([pair], tmp_path, processes.measure)
    found = read_document(tmp_path / pair.file)
    assert [row.name for row in found.rows if row.group == GROUP] == [BARE, "iciia_t", "class_shares"], found.missing
    assert not program.exists()
    (program.parents[1]).mkdir(parents=True)  # one that was stopped while it exported
    export_suite([pair], tmp_path, processes.export, lambda _: None)
    assert not program.exists()  # it has its document


def test_a_folder_of_programs_of_another_version_is_refused(tmp_path):
    (tmp_path / "pair.json").write_text('{"bundle": "x"}')
    with pytest.raises(BenchError, match="remove its folder and export it again"):
        read_pair(tmp_path)


def test_a_folder_without_photos_is_refused(tmp_path):
    with pytest.raises(UsageError, match="expected a folder of photos"):
        Processes(tmp_path, tmp_path, FEW, "x", 1.0)
