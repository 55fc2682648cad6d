"""Switching is measured from end to end, on what a federated run delivers. Never how fast anything is."""

from __future__ import annotations

import json

import pytest

from studies.bench.switching import main
from studies.report.results_page import results_pages


@pytest.mark.slow
@pytest.mark.full
def test_every_carrier_is_measured_and_lands_on_the_results_page(tmp_path):
    out = tmp_path / "results" / "switching.json"
    out.parent.mkdir()
    main(out, "vit_tiny_patch16_224:pfedpg,vit_tiny_patch16_224:fedperfix", "onnx:fp32", rounds=64, people=8)
    inputs, sessions = json.loads(out.read_text())["rows"]
    assert (inputs["carrier"], inputs["people"], sessions["carrier"]) == ("inputs", 8, "weights")
    assert inputs["person_bytes"] > 4 * (10 * 192 + 100 * 192 + 100)
    warm, cold = sessions["switches"]
    assert warm["share"]["mean"] < cold["share"]["mean"]
    page = results_pages(out.parent).text
    assert "to a cold session" in page
    assert "with their history" in page
