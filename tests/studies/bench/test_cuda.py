"""What a GPU computes is what the CPU computes; and the command that measures one, dry on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from refocus.benchmarks.document.schema import BenchError
from studies.bench import cuda_programs, cuda_training, measure_cuda

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.fixture(scope="module")
def encoder():
    return cuda_programs.programs({"mobilenetv3_small_050": 64})["mobilenetv3_small_050"]()


@pytest.mark.cuda
@gpu
def test_a_cuda_graph_answers_as_eager_torch_on_the_cpu(encoder):
    _, wanted = cuda_programs.torch_query(encoder.module, encoder.inputs, "cpu", False)
    query, found = cuda_programs.torch_query(encoder.module, encoder.inputs, "cuda", True)
    assert np.abs(found - wanted).max() < 2e-2 * np.abs(wanted).max()
    parts = query()
    assert set(parts) == set(cuda_programs.PARTS)
    assert parts["whole"] >= parts["compute"] > 0


@pytest.mark.cuda
@gpu
@pytest.mark.parametrize("steps", [cuda_training.iciia_epoch, cuda_training.taper_steps, cuda_training.federated_steps])
def test_training_on_the_gpu_gives_the_losses_of_the_cpu(steps):
    found = steps("cuda", cuda_training.DRY)
    assert all(found["agrees"].values()), (found["difference_to_cpu"], found["cpu"], found["rows"])


@pytest.mark.cuda
@gpu
def test_onnx_runtime_places_the_encoder_on_the_gpu(encoder):
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this build of ONNX Runtime has no CUDA")
    rows = cuda_programs.measured(encoder, "cuda", 0.0, 4)["rows"]
    (placed,) = (row["placement"] for row in rows if row["way"] == "onnxruntime CUDA")
    assert max(placed, key=lambda part: part["nodes"])["provider"] == "CUDAExecutionProvider"


@pytest.mark.slow
def test_the_command_runs_dry_goes_on_where_it_stopped_and_packs_its_documents(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "studies", "measure-cuda", "--dry", "--out", out]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out.mkdir()
    (out / "tests.json").write_text(json.dumps({"section": "tests", "seconds": 0.0, "summary": "was there"}))
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    whole = json.loads((out / "cuda.json").read_text())
    assert whole["dry"]
    assert list(whole["cuda_sections"]) == list(measure_cuda.sections())
    found = whole["cuda_sections"]
    assert found["tests"]["summary"] == "was there"
    for name in ("iciia-epoch", "taper-steps", "federated-steps"):
        # Known gap: the bf16 comparisons are not asserted; that of ICIIA compares weights that no epoch improved.
        assert found[name]["agrees"]["fp32"], found[name]["difference_to_cpu"]
    for ways in found["encoders-and-heads"]["programs"].values():
        assert [row["way"] for row in ways["rows"]] == ["torch eager", "onnxruntime CPU"], ways["missing"]
    with tarfile.open(out / measure_cuda.ARCHIVE) as archive:
        assert sorted(archive.getnames()) == sorted(
            ["cuda.json", *(f"{name}.json" for name in measure_cuda.sections())]
        )


def test_a_machine_without_a_gpu_is_told_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="nvidia-smi is not here"):
        measure_cuda.measure(tmp_path / "out", False, "x")
    assert not (tmp_path / "out").exists()


def test_an_old_driver_is_named(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA T4, 470.82.01, 40, 1500, 30.0, Enabled'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(BenchError, match=r"the driver is 470\.82\.01, torch .* needs 580 or newer; update the driver"):
        measure_cuda.open_gpu()


def test_a_section_of_no_such_name_is_refused(tmp_path):
    with pytest.raises(BenchError, match="--only tensors: expected some of iciia-epoch"):
        measure_cuda.measure(Path(tmp_path), True, "x", ("tensors",))


def test_the_tests_that_need_a_gpu_are_where_they_are_looked_for():
    assert all((measure_cuda.ROOT / path).is_file() for path in measure_cuda.TESTS)
