"""Answers that are sets of labels on the device: their arithmetic, their manifest, and how commands show them."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import asdict, replace

import msgspec
import numpy as np
import pytest
from msgspec import structs

from refocus.edge.bundle import SET_SHARES_VERSION, SHARES_VERSION, ShareCard, load_bundle, write_manifest
from refocus.edge.bundle.manifest import Head
from refocus.edge.errors import BundleError, HistoryError, PhotoError
from refocus.edge.recognize import ClassShares, LabelShares, Recognizer, ShareSettings, label_set, sigmoid
from refocus.edge.recognize.class_shares import beside_head

LEAST = 0.02  # the programs of the bundle below give logits of one label a photo, which are low for many labels


def answers_of(photos, seed=0, labels=4):
    """Logits of photos of somebody who always has label 0, never label 1, and the others half of the time."""
    rng = np.random.default_rng(seed)
    there = rng.random((photos, labels)) < 0.5
    there[:, 0], there[:, 1] = True, False
    return (2 * there - 1) + rng.normal(0, 1.5, (photos, labels))


@pytest.mark.parametrize("gated", [False, True])
def test_each_label_is_estimated_as_two_classes(gated):
    base = (0.2, 0.3, 0.5, 0.6)
    settings = ShareSettings(temperature=1.3, base=base, gated=gated)
    together = LabelShares(settings, 4)
    alone = [ClassShares(structs_of(settings, rate), 2, expected=True) for rate in base]
    for logits in answers_of(40):
        head = np.flip(logits)
        answer, beside = together.answer_beside(logits, head)
        for number, state in enumerate(alone):
            pair = np.array([logits[number], 0.0])
            wanted = state.answer(pair)
            assert answer.logits[number] == pytest.approx(wanted.logits[0] - wanted.logits[1], abs=1e-6)
            both = beside_head(np.array([head[number], 0.0]), wanted, settings.with_head, gated)
            assert beside[number] == pytest.approx(both[0] - both[1], abs=1e-6)
            state.add(state.row(pair))
        together.add(answer.row)
        np.testing.assert_allclose(
            together.estimate().shares, [state.estimate().shares[0] for state in alone], atol=1e-6
        )


def structs_of(settings, rate):
    return replace(settings, base=(rate, 1 - rate), top=2)


def test_what_a_person_always_has_becomes_likelier_and_the_rest_stays():
    state = LabelShares(ShareSettings(base=(0.5,) * 4), 4)
    for logits in answers_of(60):
        state.add(state.row(logits))
    rates = state.estimate().shares
    assert rates[0] > 0.6
    assert rates[1] < 0.4
    assert np.abs(rates[2:] - 0.5).max() < 0.2
    answer = state.answer(np.zeros(4))
    assert sigmoid(answer.logits)[0] > 0.6 > 0.4 > sigmoid(answer.logits)[1]
    assert 0 < answer.trust < 1


@pytest.mark.parametrize("gated", [False, True])
def test_a_label_flips_only_where_the_photo_leaves_room_for_it(gated):
    """Label 0 is on all photos of the person and label 1 on none, whatever one photo says."""
    support = 0.05
    state = LabelShares(ShareSettings(base=(0.5,) * 4, support=support, gated=gated, with_head=1.0), 4)
    for logits in answers_of(200):
        state.add(state.row(logits))
    sure, unsure = -np.log(support) + 0.01, -np.log(support) - 0.01
    for head in (False, True):

        def answered(first, second, head=head):
            logits = np.array([first, second, 0.0, 0.0])
            return state.answer_beside(logits, logits)[1] if head else state.answer(logits).logits

        assert answered(-sure, sure)[:2] == pytest.approx([-sure, sure])
        near = answered(-unsure, unsure)[:2]
        assert near[0] > -unsure + 0.5
        assert near[1] < unsure - 0.5
        assert answered(sure, -sure)[0] > sure


def test_rows_are_kept_forgotten_and_read_again():
    state = LabelShares(ShareSettings(), 4)
    rows = [state.row(logits) for logits in answers_of(6)]
    for number, row in enumerate(rows):
        state.add(row, number)
    assert len(state) == 6
    assert 3 in state
    again = LabelShares(ShareSettings(), 4)
    again.extend(again.decode(row.value) for row in rows)
    np.testing.assert_allclose(again.estimate().shares, state.estimate().shares)
    assert state.forget(3)
    assert not state.forget(3)
    assert len(state) == 5
    state.clear()
    assert len(state) == 0
    with pytest.raises(HistoryError, match="expected 36"):
        state.decode(b"short")
    with pytest.raises(HistoryError, match="or damaged"):
        state.add(rows[0]._replace(probabilities=np.full(4, 2.0, np.float32)))
    with pytest.raises(PhotoError, match="finite logits"):
        state.row(np.array([0.0, np.nan, 0.0, 0.0]))


@pytest.mark.parametrize("base", [(0.5, 0.5), (0.0, 0.5, 0.5, 0.5), (1.0, 0.5, 0.5, 0.5)])
def test_rates_that_do_not_fit_are_refused(base):
    with pytest.raises(BundleError, match="label shares: base has"):
        LabelShares(ShareSettings(base=base), 4)


def test_labels_are_separated_as_in_a_table():
    assert label_set(" a; b ;c") == ("a", "b", "c")
    assert label_set("  ") == ()


@pytest.fixture(scope="module")
def sets(bundle, tmp_path_factory):
    """A bundle whose manifest says that its answers are sets, with the programs of one label a photo."""
    folder = tmp_path_factory.mktemp("sets") / "bundle"
    shutil.copytree(bundle.folder, folder)
    manifest = load_bundle(folder).manifest
    heads = []
    for head in manifest.heads:
        card = {**msgspec.to_builtins(shares_card()), "version": SET_SHARES_VERSION}
        shares = msgspec.convert({**card, "base": (0.02,) * len(head.labels)}, ShareCard)
        how = structs.replace(head.personalisation, shares=shares)
        heads.append(structs.replace(head, thresholds=(LEAST,) * len(head.labels), personalisation=how))
    return write_manifest(folder, structs.replace(manifest, heads=tuple(heads)))


def shares_card():
    return msgspec.convert({"version": SHARES_VERSION, **asdict(ShareSettings(capacity=64))}, ShareCard)


@pytest.fixture(scope="module")
def photos(bundle):
    return sorted((bundle.folder / "self-test").iterdir())


def test_an_answer_is_the_labels_above_their_thresholds(sets, photos, tmp_path):
    with Recognizer(sets, tmp_path / "anna.history.sqlite3") as recognizer:
        answers = [recognizer.recognize(photo.read_bytes()) for photo in photos]
    for answer in answers:
        probability = sigmoid(answer.logits)
        wanted = {name for name, p in zip(answer.names, probability, strict=True) if p >= LEAST}
        assert {name for name, _ in answer.label_set} == wanted
        assert [p for _, p in answer.label_set] == sorted((p for _, p in answer.label_set), reverse=True)
        assert answer.probabilities[0] == pytest.approx(probability.max())
    assert any(len(answer.label_set) > 1 for answer in answers)
    assert answers[-1].shared.estimate.photos == len(photos) - 1


def test_shares_of_labels_are_kept_in_the_profile(sets, photos, tmp_path):
    path = tmp_path / "anna.history.sqlite3"
    with Recognizer(sets, path) as recognizer:
        for photo in photos[:-1]:
            recognizer.recognize(photo.read_bytes())
        wanted = recognizer.recognize(photos[-1].read_bytes(), remember=False)
    with Recognizer(sets, path) as recognizer:
        found = recognizer.recognize(photos[-1].read_bytes(), remember=False)
    np.testing.assert_allclose(found.logits, wanted.logits, atol=1e-5)
    np.testing.assert_allclose(found.shared.estimate.shares, wanted.shared.estimate.shares, atol=1e-6)


def test_recognize_prints_the_set_and_explains_it(refocus, sets, photos, tmp_path):
    flags = ["--profile", "anna", "--profiles", tmp_path, "--json"]
    rows = json.loads(refocus("recognize", sets.folder, *photos[:3], "--explain", *flags).stdout)
    for row in rows:
        assert row["labels"] == [shown["label"] for shown in row["answer"]]
        assert all(shown["probability"] >= LEAST for shown in row["answer"])
        assert len(row["explanation"]["plain"]) == 3
    assert rows[2]["explanation"]["shares"]["photos"] == 2


def test_an_album_has_a_column_of_sets(refocus, sets, photos, tmp_path):
    for name in ("a.csv", "a.json", "a.html"):
        done = refocus("album", sets.folder, *photos, "--out", tmp_path / name, "--workers", "1")
        assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "a.csv").open(encoding="utf-8")))
    documents = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [row["labels"] for row in rows] == [";".join(document["labels"]) for document in documents]
    assert any(";" in row["labels"] for row in rows)
    assert "the other photos changed the labels of" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_the_self_test_of_a_bundle_with_sets_passes(refocus, sets):
    done = refocus("check", sets.folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("thresholds", "version", "message"),
    [
        ((0.5,), 2, "1 thresholds for 2 labels"),
        ((0.5, 1.5), 2, "<= 1"),
        ((0.5, 0.5), 1, "shares of version 1 do not go with its thresholds"),
        (None, 2, "shares of version 2 do not go with its thresholds"),
    ],
)
def test_a_manifest_with_thresholds_that_do_not_fit_is_refused(thresholds, version, message):
    card = {**msgspec.to_builtins(shares_card()), "version": version}
    how = {"method": "iciia", "window": 0, "gate": "none", "form": "none", "shares": card}
    head = {"name": "h", "labels": ["a", "b"], "personalisation": how}
    if thresholds is not None:
        head["thresholds"] = thresholds
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(head, Head)


def test_the_manifest_of_photos_with_one_label_is_as_it_was(bundle, sets):
    assert b"thresholds" not in (bundle.folder / "manifest.json").read_bytes()
    assert b"thresholds" in (sets.folder / "manifest.json").read_bytes()
