"""The overhead benchmark runs from end to end, and its figures are of what they say. Never how fast anything is."""

from __future__ import annotations

import json
import math

import pytest

from refocus.cloud_train.errors import UsageError
from studies.bench.overhead import Plan, lines, measure
from studies.report.results_page import results_pages


@pytest.mark.slow
@pytest.mark.full
def test_every_figure_is_there_and_on_the_page(photos, tmp_path):
    plan = Plan("mobilenetv2_035", (50,), ("onnx:fp32",), rounds=64, profiles=(1, 20), histories=(16, 64), counted=96,
                megapixels=(2,), album=(24, 40))  # fmt: skip
    found = {**measure(plan, photos), "command": "python -m studies overhead"}
    ratios = {row["what"]: row["ratio"]["mean"] for row in found["programs"] + found["recognizer"]["rows"]}
    programs = ("streaming block", "window block", "delivered 50")
    assert ratios.keys() == {*programs, "recognizer",
                             *(f"{what}, native:{precision}" for precision in ("fp32", "w16", "w8") for what in programs),
                             "recognizer, native:w16", "recognizer, native:w8",
                             "recognizer, safe from power cuts", "decode"}  # fmt: skip
    over = [row["over"] for row in found["recognizer"]["rows"] if row["what"] == "recognizer, native:w16"]
    assert over == ["encoder", "bare 50"]
    over = [row["over"] for row in found["programs"] if row["what"] == "streaming block, native:w16"]
    assert over == ["bare 50", "streaming block"]
    switches = {row["what"].removeprefix("switch of "): row["ratio"]["mean"] for row in found["switching"]}
    assert {"history", "weights as inputs", "cold sessions", "warm sessions"} <= switches.keys()
    assert all(map(math.isfinite, [*ratios.values(), *switches.values()]))
    assert [(row["memory"], row["photos"]) for row in found["histories"]] == [
        ("newest", 64),
        ("similar", 64),
        ("spread", 64),
    ]
    assert (found["shares"]["classes"], found["shares"]["photos"]) == (50, 96)
    assert math.isfinite(found["shares"]["rows"][0]["ratio"]["mean"])
    assert found["shares"]["restart"].keys() == {"without_p50_ms", "with_p50_ms"}
    (decoding,) = found["decoding"]
    assert (decoding["what"], decoding["over"]) == ("file to answer, 2 megapixels, reduced size", "full size")
    assert math.isfinite(decoding["ratio"]["mean"])
    assert (found["album"]["photos"], found["album"]["share_of_possible"] > 0) == (24, True)
    assert found["memory"]["programs_bytes"] > 1e6
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "overhead.json").write_text(json.dumps(found))
    assert lines(found)[2] in results_pages(tmp_path / "results").text


def test_a_backbone_of_another_width_is_refused_before_anything_is_exported(photos):
    with pytest.raises(UsageError, match="its feature has 64 numbers, not 1280"):
        measure(Plan("test_vit"), photos)
