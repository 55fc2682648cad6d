"""Metrics of answers that are sets of labels, against scikit-learn; and the report of a bundle that gives them."""

from __future__ import annotations

import csv
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs

from refocus.benchmarks.commands.accuracy import label_sets_table
from refocus.benchmarks.measure import average_precision, mean_average_precision
from refocus.benchmarks.measure.label_sets import (
    SetAnswers,
    collected,
    figures,
    joined,
    right_labels,
    truths,
    with_controls,
)
from refocus.edge.bundle import load_bundle, write_manifest
from refocus.edge.recognize import Recognizer


@pytest.mark.parametrize("ties", [False, True])
def test_the_mean_average_precision_is_that_of_scikit_learn(ties):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for _ in range(20):
        truth = rng.random((50, 6)) < rng.uniform(0.05, 0.9, 6)
        truth[0] = True
        score = rng.normal(size=truth.shape) + truth
        score = score.round(0) if ties else score
        wanted = metrics.average_precision_score(truth, score, average="macro")
        assert mean_average_precision(score, truth) == pytest.approx(wanted, abs=1e-12)


def test_a_label_that_no_photo_has_is_left_out():
    truth = np.array([[True, False], [False, False]])
    score = np.array([[0.2, 0.9], [0.8, 0.1]])
    assert np.isnan(average_precision(score[:, 1], truth[:, 1]))
    assert mean_average_precision(score, truth) == 0.5
    assert np.isnan(mean_average_precision(score, ~np.ones_like(truth)))


def test_labels_of_a_table_become_flags_in_the_order_of_the_head():
    assert truths(["b;a", "", "c"], ["c", "b", "a"]).tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]


def person(rng, own, foreign):
    truth = rng.random((12, 4)) < 0.5
    noisy = truth * 0.5 + rng.uniform(0, 0.5, truth.shape)
    chosen = np.array([6, 11])
    return SetAnswers(truth, noisy * (1 - own) + truth * own, noisy, chosen, (noisy * (1 - foreign) + foreign)[chosen])


def test_a_gain_with_ones_own_history_is_told_from_one_with_any_history():
    rng = np.random.default_rng(1)
    found = figures({f"p{n}": person(rng, own=0.6, foreign=0.9) for n in range(12)}, np.full(4, 0.6))
    assert found["gain"]["right_labels"]["low"] > 0
    assert found["control"]["own"]["right_labels"]["mean"] > 0
    assert found["control"]["foreign"]["right_labels"]["high"] < 0
    assert found["mean_average_precision"]["delivered"] >= found["mean_average_precision"]["plain"]
    assert found["control"]["photos"] == 24


def test_the_streams_of_one_person_are_one_person_to_an_interval():
    rng = np.random.default_rng(2)
    streams = [person(rng, own=0.6, foreign=0.9) for _ in range(4)]
    pair = [joined(streams[:2]), joined(streams[2:])]
    assert pair[0].controlled.tolist() == [6, 11, 18, 23]
    apart, together = (figures(dict(enumerate(rows)), np.full(4, 0.6)) for rows in (streams, pair))
    for name in ("own", "foreign"):
        one, other = (found["control"][name]["right_labels"] for found in (apart, together))
        assert other["mean"] == pytest.approx(one["mean"])  # the same photos
        assert (other["low"], other["high"]) != (one["low"], one["high"])  # drawn again as two people, not as four
    alone = figures({"anna": joined(streams)}, np.full(4, 0.6))
    assert list(alone) == ["mean_average_precision"]  # one person has no interval
    label_sets_table([{"target": "onnxruntime:fp32", "label_sets": alone}])


def test_few_people_do_not_narrow_the_interval_of_the_mean_average_precision():
    """Drawing three people again gives nothing beyond what the one gives who gains least, or the one who gains most."""
    rng, three = np.random.default_rng(3), []
    for own in (0.2, 0.4, 0.6):
        truth, plain = rng.random((40, 4)) < 0.5, rng.random((40, 4))
        three.append(SetAnswers(truth, plain + own * truth, plain, np.array([], dtype=int), np.zeros((0, 4))))
    alone = [
        mean_average_precision(one.delivered, one.truth) - mean_average_precision(one.plain, one.truth) for one in three
    ]
    gain = figures(dict(enumerate(three)), np.full(4, 0.6))["gain"]["mean_average_precision"]
    assert gain["low"] < min(alone) < max(alone) < gain["high"]


def test_the_control_is_never_a_stream_of_the_same_person(bundle, monkeypatch):
    rng, seen = np.random.default_rng(0), []
    with Recognizer(bundle, threads=1) as device:
        features = {name: rng.normal(size=(3, device.width)).astype(np.float32) for name in ("a 0", "a 1", "b 0")}
        answers = {name: list(device.replay(rows)) for name, rows in features.items()}
        people = {name: collected(np.ones((3, len(device.card.labels)), bool), rows) for name, rows in answers.items()}
        answer = device.answer
        monkeypatch.setattr(device, "answer", lambda feature, history: seen.append(history) or answer(feature, history))
        with_controls(device, people, features, {"a 0": "a", "a 1": "a", "b 0": "b"})
        assert len(seen) == 6
        for number, stranger in enumerate(("b 0", "b 0", "a 0")):
            for history in seen[2 * number : 2 * number + 2]:
                np.testing.assert_array_equal(history, features[stranger][: len(history)])
        alone = with_controls(device, people, features, dict.fromkeys(features, "a"))
        assert not any(len(one.controlled) for one in alone.values())


def test_the_control_has_as_many_photos_of_somebody_else():
    lengths, seen = {"anna 0": 32, "anna 1": 8, "bob 0": 1, "carl 0": 20}, []

    class Device:
        def answer(self, feature, history):
            seen.append((int(feature[0]), history))
            return SimpleNamespace(logits=np.zeros(3))

    def person(photos):
        return SetAnswers(np.ones((photos, 3), bool), *np.zeros((2, photos, 3)), np.array([], int), np.zeros((0, 3)))

    people = {name: person(photos) for name, photos in lengths.items()}
    features = {name: np.stack([np.arange(n), np.full(n, i)], axis=1) for i, (name, n) in enumerate(lengths.items())}
    found = with_controls(Device(), people, features, {name: name[:-2] for name in people})
    assert all(len(history) == photo for photo, history in seen)
    assert found["anna 0"].controlled.max() == 20  # carl has no more; what is later is left out
    assert [len(one.foreign) for one in found.values()] == [len(one.controlled) for one in found.values()]
    assert {name: len(one.controlled) > 0 for name, one in found.items()} == dict.fromkeys(people, True)


def test_right_labels_count_what_is_there_and_what_is_not():
    truth = np.array([[True, False, False, True]])
    answers = np.array([[0.9, 0.9, 0.1, 0.1]])
    one = SetAnswers(truth, answers, 1 - answers, np.array([], int), np.zeros((0, 4)))
    assert right_labels({"anna": one}, np.full(4, 0.5))["anna"].tolist() == [[0.5, 0.5]]


@pytest.mark.slow
def test_accuracy_of_sets_is_printed_with_its_control(refocus, bundle, tiny_run, tmp_path):
    """Of a head with other weights than it says: only what is reported of it is looked at."""
    shutil.copytree(bundle.folder, tmp_path / "sets")
    manifest = load_bundle(tmp_path / "sets").manifest
    labels = manifest.heads[0].labels
    how = structs.replace(manifest.heads[0].personalisation, shares=None)
    head = structs.replace(manifest.heads[0], thresholds=(0.5,) * len(labels), personalisation=how)
    write_manifest(tmp_path / "sets", structs.replace(manifest, heads=(head, *manifest.heads[1:])))
    test, data = tiny_run.table.of_split("test"), tmp_path / "data"
    data.mkdir()
    with (data / "metadata.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file_name", "label", "client"])
        for number, name in enumerate(test.photo[:40].tolist()):
            (data / f"{number}.png").write_bytes(test.read(name))
            own = test.classes[test.label[number]]
            rows.writerow([f"{number}.png", f"{own};{labels[0]}" if own != labels[0] else own, f"person {number % 2}"])
    done = refocus("accuracy", tmp_path / "sets", "--data", data, "--json")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["rows"]
    assert 0 < row["delivered"] <= 1
    assert 0 < row["label_sets"]["mean_average_precision"]["plain"] <= 1
    assert set(row["label_sets"]["control"]) == {"photos", "own", "foreign"}
    shown = refocus("accuracy", tmp_path / "sets", "--data", data)
    assert "photos with several labels" in shown.stdout
    text = (data / "metadata.csv").read_text().replace(labels[0], "unicorn")
    (data / "metadata.csv").write_text(text)
    done = refocus("accuracy", tmp_path / "sets", "--data", data)
    assert done.returncode != 0
    assert "labels the bundle does not know, such as 'unicorn'" in " ".join(done.stderr.split())
