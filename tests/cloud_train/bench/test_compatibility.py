"""The sweep over networks: what fails is a row with a reason, what was done is not done again."""

from __future__ import annotations

import pytest
import timm
import torch

from refocus.cloud_train.bench.compatibility import calibrate_statistics, prepared, sweep, wake
from refocus.cloud_train.errors import UsageError
from studies.bench.compatibility_page import write_page


@pytest.fixture(scope="module")
def document(photos, tmp_path_factory):
    return sweep(["test_resnet"], ["onnx:fp16"], photos, tmp_path_factory.mktemp("sweep"), 300)


@pytest.mark.slow
def test_a_network_agrees_on_photos_it_was_not_prepared_with(document):
    (row,) = document["rows"]
    assert (row["outcome"], row["photos"], row["free_batch"]) == ("parity", 8, True)
    assert 0 < row["relative_error"] < 2e-2
    assert row["norms_in_fp16_error"] > 0


def test_a_pair_that_takes_too_long_is_a_row_with_a_reason_and_a_pair_that_is_there_is_not_run_again(photos, tmp_path):
    late = sweep(["test_resnet"], ["onnx:fp32"], photos, tmp_path, 0.5)["rows"]
    assert (late[0]["outcome"], late[0]["reason"]) == ("failed", "not done after 0 s")
    assert sweep(["test_resnet"], ["onnx:fp32"], photos, tmp_path, 300)["rows"] == late


@pytest.mark.slow
def test_the_page_says_what_failed_and_why(document, tmp_path):
    failed = {**document["rows"][0], "network": "other", "outcome": "failed", "reason": "no | form\nfor <op>"}
    write_page({**document, "rows": [*document["rows"], failed]}, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| **exported** | | 1 of 2 |" in text
    assert "- other, onnx:fp16: no / form for (op)" in text


def test_statistics_are_those_of_real_photos(photos):
    program, pixels = prepared("test_resnet", photos)
    norm = next(m for m in program.module.modules() if hasattr(m, "running_mean"))
    assert norm.running_mean.abs().max() > 0
    assert not program.module.training
    before = norm.running_mean.clone()
    calibrate_statistics(program.module, pixels * 3)
    assert (norm.running_mean - before).abs().max() > 0


@pytest.mark.parametrize(("name", "message"), [("resnet_of_dreams", "has no such network")])
def test_an_unknown_network_is_named(photos, tmp_path, name, message):
    with pytest.raises(UsageError, match=message):
        sweep([name], ["onnx:fp32"], photos, tmp_path, 10)


def test_too_few_photos_are_refused(tmp_path):
    with pytest.raises(UsageError, match="expected a folder of photos"):
        sweep(["test_resnet"], ["onnx:fp32"], tmp_path, tmp_path / "out", 10)


def test_branches_that_start_switched_off_are_compared_too():
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=3, zero_init_last=True)
    torch.nn.init.zeros_(network.get_classifier().weight)
    off = [name for name, value in network.named_parameters() if not name.endswith("bias") and not value.any()]
    assert wake(network) == off
    assert "fc.weight" in off
    assert len(off) > 1
    assert wake(network) == []
