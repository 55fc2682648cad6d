"""Evaluation: figures come from the exported bundle, controls stand beside them, and both can fail."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from refocus.cloud_train.data.table import foreigners_of
from refocus.cloud_train.documents import write_results
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate.heads import (
    Trials,
    _evaluate_head,
    _ways,
    answer_targets,
    bundle_of,
    choose_targets,
    delivered_bundle_of,
    evaluate_run,
    never_worse,
    replay,
)
from refocus.cloud_train.evaluate.report import write_report
from refocus.cloud_train.runs.iciia import Run, delivered_variant
from refocus.edge.recognize.recognizer import Recognizer
from refocus.export.program import Card, load_checkpoint, save_checkpoint
from tests.tiny import STORED


@pytest.fixture(scope="module")
def results(tiny_run):
    return evaluate_run(tiny_run, targets_per_client=6)


@pytest.fixture(scope="module")
def features(bundle, tiny_run):
    answers = replay(bundle, tiny_run.table.of_split("test"))
    return {name: np.stack([answer.feature for answer in row]) for name, row in answers.items()}


def test_the_document_has_every_promised_figure(results):
    lengths = ["0", "1", "2", "3", "5", "8", "15"]
    assert set(results["accuracy"]) == {"original", "iciia_t", "delivered"}
    others = {f"{content}_{name}" for content in ("foreign", "mixed") for name in ("iciia_t", "delivered")}
    assert set(results["control"]) == others | {"chance"}
    for rows in (*results["accuracy"].values(), *results["control"].values()):
        assert list(rows) == lengths
        assert all(0 <= value <= 1 for value in rows.values())
    assert set(results["latency_ms"]) == {"encoder", "head", "whole"}
    assert all(set(row) == {"p50", "p90"} for row in results["latency_ms"].values())
    json.dumps(results)


def test_the_plain_classifier_does_not_depend_on_the_history(results):
    assert len(set(results["accuracy"]["original"].values())) == 1


def test_no_single_stranger_stands_behind_everybody():
    homes = ["latin"] * 4 + ["greek"] * 4 + ["cyrillic"] * 4
    strangers = [foreigners_of(homes, person) for person in range(len(homes))]
    for home, met in zip(homes, strangers, strict=True):
        assert len(set(met)) == 8
        assert all(homes[stranger] != home for stranger in met)
    assert len({met[0] for met in strangers}) == len(homes)
    assert [foreigners_of(["latin"] * 3, person)[0] for person in range(3)] == [1, 2, 0]


def test_labels_in_another_order_score_near_chance(results):
    assert max(results["control"]["chance"].values()) < 0.15


@pytest.mark.parametrize(("right_of_loser", "stated"), [(0, []), (1, ["3"])])
def test_a_share_is_stated_of_a_gain_that_everybody_has_and_of_no_other(right_of_loser, stated):
    truth, clients = np.zeros(12, dtype=int), ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    half = np.array([0, 0, 1, 1] * 3)
    better = np.array([0] * 8 + [0 if right_of_loser else 1] * 4)  # c gains as the others do, or loses everything
    names = ("original", "delivered", "iciia_t", "mixed_delivered", "foreign_delivered")
    answers = {name: {0: half, 3: better if name in ("delivered", "iciia_t") else half} for name in names}
    assert list(never_worse({0: answers}, truth, clients, "iciia_t")["kept"]) == stated


def test_without_a_history_delivered_is_the_original(results):
    assert results["accuracy"]["delivered"]["0"] == results["accuracy"]["original"]["0"]
    assert results["gain"]["mixed_delivered"]["0"]["mean"] == results["gain"]["foreign_delivered"]["0"]["mean"] == 0


def test_never_worse_is_the_pooled_difference_of_its_own_figures(results):
    worse, lengths = results["never_worse"], results["accuracy"]["original"]
    for content in ("mixed", "foreign"):
        by_length = [results["gain"][f"{content}_delivered"][k]["mean"] for k in lengths]
        assert worse[content]["mean"] == pytest.approx(np.mean(by_length))
        assert worse[content]["answers"] == results["data"]["targets"] * len(lengths)
    for k, kept in worse["kept"].items():
        ungated = results["gain"]["iciia_t"][k]["mean"]
        assert kept["mean"] == pytest.approx(results["gain"]["delivered"][k]["mean"] / ungated)
    assert set(worse["kept"]) == {k for k in lengths if results["gain"]["iciia_t"][k]["low"] > 1e-6}
    assert worse["mixed_streams"]["photos"] == 6 * 32


def test_a_head_that_was_judged_is_not_judged_again(results, tiny_run, monkeypatch):
    monkeypatch.setattr("refocus.cloud_train.evaluate.heads.answer_targets", lambda *a: pytest.fail("answered again"))
    again = evaluate_run(tiny_run, targets_per_client=6)
    for part in ("accuracy", "control", "gain", "never_worse"):
        assert again[part] == results[part]


@pytest.mark.parametrize("changed", [{"choice": "shares"}, {"temperature": 3.0}, {"gated": True}])
def test_answers_of_the_same_weights_in_another_delivery_are_not_taken_for_its_own(
    changed, bundle, tiny_run, features, tmp_path
):
    """As after training again with another gate, which may leave the weights as they were."""
    head, test = tmp_path / "seed-0" / "iciia_t.safetensors", tiny_run.table.of_split("test")
    shutil.copytree(tiny_run.folder / "seed-0", head.parent, ignore=shutil.ignore_patterns("judged", "bundles"))
    shutil.copy(tiny_run.encoder_path, tmp_path)
    by_photo = {
        photo: row
        for name, rows in test.clients()
        for photo, row in zip(test.photo[rows].tolist(), features[name], strict=True)
    }
    targets = choose_targets(test, features, 3, 1)
    trials = Trials(targets, np.array([target.label for target in targets]), (3,), test.mixed(0.0, seed=0), by_photo)
    card, kept = json.loads(head.with_suffix(".json").read_text()), []
    before = {"choice": "both", "temperature": 1.0, "gated": False}
    for delivery in (before, before, changed):
        card["training"]["delivery"] |= delivery
        head.with_suffix(".json").write_text(json.dumps(card))
        _evaluate_head(load_checkpoint(head), bundle, trials, bundle)
        kept.append(len([*head.parent.glob("judged/*.npz")]))
    assert kept == [1, 1, 2]


def test_intervals_hold_their_means(results):
    for rows in results["gain"].values():
        for row in rows.values():
            assert row["low"] <= row["mean"] <= row["high"]
            assert row["mean"] == pytest.approx(np.mean(row["seeds"]))


def test_targets_are_the_same_photos_for_every_history_length(tiny_run, features):
    targets = choose_targets(tiny_run.table.of_split("test"), features, 15, 5)
    assert len(targets) == 6 * 5
    for target in targets:
        assert target.own.shape == target.foreign.shape == target.mixed.shape == (15, STORED)
        assert target.photo not in target.own_photos
        assert not (target.mixed == target.feature).all(axis=1).any()


def test_the_same_people_with_three_seeds_make_no_interval_narrower(tiny_run, results):
    (head,) = tiny_run.folder.glob("seed-0/iciia_t.safetensors")
    once, thrice = (_ways(tiny_run, [head] * times, 16) for times in (1, 3))
    assert once["rows"] == thrice["rows"]
    assert once["people"] == thrice["people"]


def test_a_foreign_history_is_of_another_person_and_another_script(tiny_run, features):
    test = tiny_run.table.of_split("test")
    home = {name: test.domain[rows][0] for name, rows in test.clients()}
    for target in choose_targets(test, features, 15, 2):
        owner = next(name for name, rows in features.items() if np.array_equal(rows[:15], target.foreign))
        assert owner != target.client
        if len(set(home.values())) > 1:
            assert home[owner] != home[target.client]


def test_judging_feeds_each_side_its_own_history(bundle, tiny_run, features):
    recognizer = Recognizer(bundle)
    targets = choose_targets(tiny_run.table.of_split("test"), features, 15, 3)
    found = answer_targets(recognizer, "iciia_t", targets, (0, 15), recognizer)
    np.testing.assert_array_equal(found["iciia_t"][0], found["foreign_iciia_t"][0])
    wanted = [int(recognizer.answer(t.feature, t.foreign).calibrated_logits.argmax()) for t in targets]
    np.testing.assert_array_equal(found["foreign_iciia_t"][15], wanted)


@pytest.mark.slow
def test_what_counts_as_delivered_is_what_export_makes_of_the_head(bundle, tiny_run, features, tmp_path):
    run = Run(shutil.copytree(tiny_run.folder, tmp_path / "run"), tiny_run.config)
    head = run.head_path(0, "iciia_t")
    card = json.loads(head.with_suffix(".json").read_text())
    card["training"]["delivery"] |= {"choice": "shares"}
    head.with_suffix(".json").write_text(json.dumps(card))
    shipped = delivered_bundle_of(run, head)
    assert shipped.manifest.head().personalisation.shares is not None
    with Recognizer(bundle) as recognizer, Recognizer(shipped) as device:
        targets = choose_targets(tiny_run.table.of_split("test"), features, 15, 3)
        found = answer_targets(recognizer, "iciia_t", targets, (0, 15), device)
        wanted = [int(device.answer(t.feature, t.own).logits.argmax()) for t in targets]
        np.testing.assert_array_equal(found["delivered"][15], wanted)
        np.testing.assert_array_equal(found["delivered"][0], found["original"][0])
        alone = [int(recognizer.answer(t.feature, t.own).calibrated_logits.argmax()) for t in targets]
        np.testing.assert_array_equal(found["iciia_t"][15], alone)


def test_streams_too_short_to_judge_are_an_error(tiny_run, features):
    with pytest.raises(DataError, match="0 test clients have more than 99 photos"):
        choose_targets(tiny_run.table.of_split("test"), features, 99, 3)


def test_a_bundle_is_exported_once_per_checkpoint(tiny_run, bundle, monkeypatch):
    monkeypatch.setattr("refocus.cloud_train.evaluate.heads.export_bundle", lambda *a: pytest.fail("exported again"))
    assert bundle_of(tiny_run, tiny_run.head_path(0, "iciia_t")).manifest == bundle.manifest


def heads(tmp_path, *names, **right):
    """Checkpoints whose cards say how often what is delivered is right on validation people."""
    found = []
    for seed, variant in names:
        path = tmp_path / seed / f"{variant}.safetensors"
        chosen = {"choice": "head", "with_head": 1.0, "accuracy": {"head": right[variant]}} if right else None
        card = Card(builder="iciia_head", config={}, labels=(), training={"delivery": chosen})
        save_checkpoint(path, {"weight": torch.zeros(1)}, card)
        found.append(path)
    return found


def test_a_seed_without_the_delivered_variant_is_named_not_a_crash(tmp_path):
    with pytest.raises(DataError, match="no variant that every seed.*seed-1: iciia_b"):
        delivered_variant(heads(tmp_path, ("seed-0", "iciia_t"), ("seed-1", "iciia_b")), "run")
    with pytest.raises(DataError, match="no variant"):
        delivered_variant([], "run")


def test_a_width_that_256_does_not_divide_can_be_evaluated_too(tmp_path):
    assert delivered_variant(heads(tmp_path, ("seed-0", "iciia_p64"), ("seed-1", "iciia_p64")), "run") == "iciia_p64"
    both = heads(tmp_path, ("seed-0", "iciia_b"), ("seed-0", "iciia_t"))
    assert delivered_variant(both, "run") == "iciia_t"
    residual = heads(tmp_path, ("seed-2", "iciia_b_residual"), ("seed-2", "iciia_t_residual"))
    assert delivered_variant(residual, "run") == "iciia_t_residual"


def test_the_head_that_serves_validation_people_best_is_delivered(tmp_path):
    names = [("seed-0", "iciia_t"), ("seed-0", "iciia_b"), ("seed-0", "iciia_b_causal")]
    better = heads(tmp_path, *names, iciia_t=0.7, iciia_b=0.71, iciia_b_causal=0.9)
    assert delivered_variant(better, "run") == "iciia_b"
    alike = heads(tmp_path, *names, iciia_t=0.7, iciia_b=0.7005, iciia_b_causal=0.9)
    assert delivered_variant(alike, "run") == "iciia_t"


def test_what_was_trained_is_recorded_per_bundle(results):
    assert results["bundles"][0]["iciia"]["attention"] == "full"
    assert results["bundles"][0]["recipe"]["seed"] == 0


def test_shares_and_head_are_judged_beside_the_original_on_the_same_people(results):
    ways = results["ways"]
    rows = {row["way"]: row for row in ways["rows"]}
    assert [*rows] == ["original", "shares", "head", "uniform", "both"]
    assert rows["original"]["gain"]["mean"] == 0
    for row in rows.values():
        assert row["accuracy"] - rows["original"]["accuracy"] == pytest.approx(row["gain"]["mean"])
    assert ways["people"] == results["data"]["test_clients"]
    assert set(ways["chosen"]) <= {"plain", "shares", "head", "both"}


def test_the_report_needs_nothing_but_itself(results, tiny_run, tmp_path):
    write_report(results, tiny_run.table.read, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "http" not in page
    assert page.count("data:image/png;base64,") >= 2
    assert f"{100 * results['gain']['delivered']['15']['mean']:+.1f} points" in page


def test_results_are_written_whole_or_not_at_all(results, tmp_path):
    write_results(results, tmp_path / "results.json")
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
