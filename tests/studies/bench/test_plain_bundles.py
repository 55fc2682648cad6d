"""Networks of every kind become plain bundles by the command that users type; the page names what failed."""

from __future__ import annotations

import copy
import json

import pytest

from refocus.cloud_train.errors import UsageError
from studies.bench.plain_bundles import (
    CALIBRATING,
    COMPARED,
    MATRIX,
    TARGETS,
    Entry,
    command_of,
    run_matrix,
    write_bundles_page,
)
from studies.report.results_page import results_pages

TINY = (
    Entry("test_resnet", "CNN", 64, False),
    Entry("test_vit", "ViT", 64, False, {"img_size": 64}),
)
HYBRID = Entry("mobilevit_xxs", "hybrid", 64, False)


@pytest.fixture(scope="module")
def document(photos, tmp_path_factory):
    return run_matrix(photos, tmp_path_factory.mktemp("matrix"), None, 900, TINY, ["onnx:fp32"])


def test_a_network_of_every_kind_is_exported_with_parity(document):
    for entry, row in zip(TINY, document["rows"], strict=True):
        assert (row["network"], row["kind"], row["status"], row["weights"]) == (entry.name, entry.kind, 0, "seeded")
        found = row["targets"]["onnx:fp32"]
        assert found["status"] == "written"
        assert 0 < found["encoder"]["parity_max_abs"] < 1e-3
        assert found["head"]["top1_agreement"] == 1
        assert row["parameters"] > 1000
    assert [row["classifier"] for row in document["rows"]] == ["fc", "head"]


@pytest.mark.slow
def test_a_hybrid_network_is_exported_with_parity(photos, tmp_path):
    [row] = run_matrix(photos, tmp_path, None, 900, (HYBRID,), ["onnx:fp32"])["rows"]
    assert (row["status"], row["classifier"]) == (0, "head.fc")
    assert 0 < row["targets"]["onnx:fp32"]["encoder"]["parity_max_abs"] < 1e-3


def test_the_page_states_every_network_and_why_one_failed(document, tmp_path):
    changed = copy.deepcopy(document)
    changed["rows"][1]["targets"]["onnx:fp32"] = {"status": "failed", "reason": "no | form\nfor <op>"}
    write_bundles_page(changed, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "1 of 2 networks export to all of onnx:fp32" in page
    assert "- test_vit, onnx:fp32: no / form for (op)" in page
    assert "| test_resnet | CNN | 64 |" in page
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "compatibility.json").write_text(json.dumps(changed))
    assert "2 networks, each exported by `refocus export` to onnx:fp32" in results_pages(tmp_path / "results").text


def test_what_is_there_is_not_exported_again_and_a_network_that_takes_too_long_is_a_row(photos, tmp_path):
    late = run_matrix(photos, tmp_path, None, 0.1, TINY[:1], ["onnx:fp32"])
    found = late["rows"][0]["targets"]["onnx:fp32"]
    assert found == {"status": "failed", "reason": "not done after 0 s"}
    assert run_matrix(photos, tmp_path, None, 900, TINY[:1], ["onnx:fp32"])["rows"] == late["rows"]


def test_too_few_photos_are_refused(tmp_path):
    with pytest.raises(UsageError, match=f"expected {COMPARED + CALIBRATING} photos, found 0"):
        run_matrix(tmp_path, tmp_path / "out", None, 10)


def test_the_matrix_has_every_kind_and_sides_from_96_to_384():
    assert len(MATRIX) == 12
    assert {entry.kind for entry in MATRIX} == {"CNN", "ViT", "hybrid"}
    assert (min(entry.side for entry in MATRIX), max(entry.side for entry in MATRIX)) == (96, 384)


def test_trained_networks_are_held_to_every_limit_and_seeded_ones_in_w8a8_to_none():
    trained, seeded = (command_of(MATRIX[0], TARGETS, seeded=seeded) for seeded in (False, True))
    assert "--max-deviation" not in trained
    limits = seeded[seeded.index("--max-deviation") + 1]
    assert "onnx:w8a8:disagreement=1" in limits
    assert "fp32" not in limits


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", ["mobilenetv2_100", "deit_tiny_patch16_224"])
def test_trained_networks_keep_every_limit_on_both_runtimes(real_data, tmp_path, name):
    entry = next(entry for entry in MATRIX if entry.name == name)
    [row] = run_matrix(real_data / "photos", tmp_path, real_data / "weights", 1800, [entry])["rows"]
    assert row["weights"] == "trained"
    assert {target: found["status"] for target, found in row["targets"].items()} == dict.fromkeys(TARGETS, "written")
    assert all(found["head"]["top1_agreement"] >= 0.8 for found in row["targets"].values())
