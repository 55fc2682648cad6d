"""``refocus bench --choose``: the fastest target whose answers hold, and never one whose do not."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs

from refocus.benchmarks import choose as choosing
from refocus.benchmarks.choose import choose
from refocus.benchmarks.document.schema import BenchError
from refocus.benchmarks.measure import Timings
from refocus.benchmarks.measure.target import loses_accuracy
from refocus.benchmarks.run import Plan
from refocus.edge.bundle.manifest import Accuracy, Parity
from refocus.edge.recognize.chosen_target import Measured, read_choice

FP32, INT8, OTHER = "onnxruntime:fp32", "onnxruntime:w8a8", "executorch:fp32"
PARITY = Parity(photos=1, profiles=1, longest_history=1, max_abs=0, p99_abs=0, top1_agreement=1, tolerance=1, reason="")
ACCURACY = Accuracy(data="x", photos=9, people=3, delivered=0.9, plain=0.9, worst_decile=0.8)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fake_target(**about):
    artifact = SimpleNamespace(**{"file": "encoder.onnx", "parity": PARITY, "accuracy": None, **about})
    return SimpleNamespace(bundle=SimpleNamespace(artifact=lambda *_: artifact), pair=("onnxruntime", "w8a8"))


def test_a_bundle_with_one_target_gets_that_one(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(choosing, "ROUNDS", 8)
    (tmp_path / "scratch").mkdir()
    said = []
    found = choose(bundle.folder, Plan(), tmp_path / "scratch", said.append)
    assert (found.target, [row.target for row in found.measured]) == (FP32, [FP32])
    assert found.measured[0].p50_ms > 0
    assert read_choice(bundle.folder) == (found, "")
    assert any("kept in" in line for line in said)


def test_nothing_is_loaded_on_other_threads_before_what_is_measured(bundle, tmp_path, monkeypatch, threads_asked):
    """ExecuTorch would keep the first number for all of the process."""
    monkeypatch.setattr(choosing, "ROUNDS", 8)
    (tmp_path / "scratch").mkdir()
    assert choose(bundle.folder, Plan(threads=2), tmp_path / "scratch", lambda _: None).threads == 2
    assert set(threads_asked) == {2}


def test_a_target_that_fails_its_self_test_here_is_not_chosen(bundle, tmp_path, monkeypatch):
    failing = [SimpleNamespace(target=FP32, head="iciia_t", failures=("00.png: fox instead of owl",))]
    monkeypatch.setattr(choosing, "check", lambda *_, **__: failing)
    (tmp_path / "scratch").mkdir()
    with pytest.raises(BenchError, match="no target's answers hold: .*its self-test fails here: 00.png: fox"):
        choose(bundle.folder, Plan(), tmp_path / "scratch", lambda _: None)
    assert read_choice(bundle.folder) == (None, "")


@pytest.mark.parametrize(
    ("about", "why"),
    [({}, ""), ({"parity": None}, ""), ({"accuracy": ACCURACY}, ""),
     ({"accuracy": structs.replace(ACCURACY, people=1, reference=FP32)}, "one person's photos, which give no interval"),
     ({"parity": PARITY.__class__(**{**{n: getattr(PARITY, n) for n in PARITY.__struct_fields__}, "passed": False})}, "parity"),
     ({"accuracy": ACCURACY.__class__(**{**{n: getattr(ACCURACY, n) for n in ACCURACY.__struct_fields__}, "change": (0.0, -0.03, 0.03)})}, "3.0 points lower"),
     ({"accuracy": ACCURACY.__class__(**{**{n: getattr(ACCURACY, n) for n in ACCURACY.__struct_fields__}, "change": (0.0, -0.005, 0.01)})}, "")],
)  # fmt: skip
def test_what_export_and_accuracy_found_decides_too(about, why):
    target = fake_target(**about)
    found = loses_accuracy(target.bundle, target.pair, "iciia_t")
    assert (why in found) if why else found == ""


def test_the_default_stays_before_a_target_that_was_compared_on_one_person_s_photos():
    compared = fake_target(accuracy=structs.replace(ACCURACY, people=1, reference=OTHER))
    assert "no interval" in loses_accuracy(compared.bundle, compared.pair, "iciia_t")
    assert loses_accuracy(compared.bundle, choosing.DEFAULT_TARGET, "iciia_t") == ""


@pytest.mark.parametrize(
    ("times", "refused", "chosen"),
    [({FP32: 4.0, INT8: 2.0, OTHER: 3.0}, {}, INT8), ({FP32: 4.0, INT8: 2.0, OTHER: 3.0}, {INT8: "wrong"}, OTHER),
     ({FP32: 2.0, INT8: 2.0, OTHER: 3.0}, {}, FP32), ({FP32: 4.0, INT8: 2.0, OTHER: 3.0}, {FP32: "wrong", INT8: "wrong"}, OTHER)],
)  # fmt: skip
def test_the_fastest_of_the_allowed_ones_and_the_default_where_none_is_surely_faster(times, refused, chosen):
    noise = np.random.default_rng(0)
    timings = Timings({name: time * noise.uniform(0.9, 1.1, 256) for name, time in times.items()})
    rows = [*choosing._rows(timings, [*times], refused)]
    assert rows[0].over_default is None
    assert {row.target: row.refused for row in rows if row.refused} == refused
    assert choosing._fastest(rows, FP32, [name for name in times if name not in refused]) == chosen


def test_lines_say_what_was_measured_and_why_one_was_not_taken():
    rows = (Measured(FP32, 4.0), Measured(INT8, 2.0, (0.5, 0.49, 0.51), "its self-test fails here"))
    said = [*choosing.lines(SimpleNamespace(measured=rows, target=FP32))]
    assert said == [
        "onnxruntime:fp32: p50 4.00 ms, the default",
        "onnxruntime:w8a8: p50 2.00 ms, 0.50 (0.49 to 0.51) of the default; not taken: its self-test fails here",
        "chosen: onnxruntime:fp32",
    ]


@pytest.mark.slow
def test_the_command_keeps_shows_and_forgets_a_choice(refocus, assert_one_clear_line, bundle):
    done = refocus("bench", bundle.folder, "--choose", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runtime"] == "onnxruntime"
    assert "chosen on this machine: onnxruntime:fp32" in refocus("inspect", bundle.folder).stdout
    assert "forgotten" in refocus("bench", bundle.folder, "--forget-choice").stdout
    assert "chosen" not in refocus("inspect", bundle.folder).stdout
    assert "nothing was chosen" in refocus("bench", bundle.folder, "--forget-choice").stdout
    refused = refocus("bench", bundle.folder, "--choose", "--provider", "cuda")
    assert_one_clear_line(refused, "--choose compares what runs without --provider")
