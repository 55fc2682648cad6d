"""The stream protocol on toy points: heads with shares, people who own their photos, and what a page says of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from refocus.benchmarks.measure import bootstrap_mean
from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.evaluate.pairs import over_people_and_photos
from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig
from refocus.export.program import SIGNATURE
from studies.report.pages import STUDIES
from studies.streams import few_people, pages, protocol, trade_off
from studies.streams.answers import Answers, photos_of
from studies.streams.heads import HEADS, HeadPlan, run_head, train_head
from studies.streams.judging import evaluate, evaluate_head, harmed
from studies.streams.points import (
    Point,
    StreamSettings,
    _groups,
    _point,
    draw_split,
    first_of_each_class,
    of_all_points,
)
from studies.streams.pseudo_people import BASE, Cell, deal_owners
from studies.streams.rivals.method import Original
from tests.studies.streams.test_test_time import HeadWithShares

CLASSES, EACH, WIDTH = 12, 40, 16
SETTINGS = StreamSettings(
    "", people=12, targets=6, steps=8, cells=("base", "foreign history of 15", "recovery history of 63", "sorted")
)


def toy_point(parents: bool = False, owned: bool = False) -> Point:
    """Classes are Gaussians in features; the first six classes and the others have a parent each."""
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(CLASSES), 2 * EACH)
    centre = rng.normal(size=(CLASSES, WIDTH))
    rows = np.hstack([centre[label] + rng.normal(size=(len(label), WIDTH)), np.zeros((len(label), SIGNATURE))])
    table = PhotoTable.of(
        [str(i) for i in range(len(label))],
        label,
        lambda _: b"",
        tuple(f"class {c}" for c in range(CLASSES)),
        domain=np.where(label < 6, "one", "other") if owned else [""] * len(label),
        parent=np.where(label < 6, "one", "other") if parents else [""] * len(label),
        client=np.char.add("p", (label * 2 + np.arange(len(label)) % 2).astype(str)) if owned else [""] * len(label),
        split=np.where(np.arange(len(label)) % 2, "train", "test"),
    )
    table = replace(table, split=draw_split(table, 0))
    cache = FeatureCache(table, rows.astype(np.float32), "toy", np.arange(len(label)))
    plain = (centre.astype(np.float32), (-0.5 * (centre**2).sum(1)).astype(np.float32), 0.1)
    return _point(cache, plain, _groups(table) if parents else None, owned)


@pytest.fixture
def toy(monkeypatch):
    """Every point of the study is the toy's."""
    for module in (protocol, few_people, trade_off):
        monkeypatch.setattr(module, "prepare", lambda *arguments: toy_point())
    monkeypatch.setattr("studies.streams.heads.CHOOSERS", 24)
    for module in ("heads", "ceilings"):
        monkeypatch.setattr(f"studies.streams.{module}.prepare", lambda *arguments: toy_point())


def test_a_head_with_shares_is_the_same_in_batches_as_photo_by_photo():
    """The batched answers of the study are those of the method that sees one photo at a time."""
    point = toy_point()
    torch.manual_seed(0)
    model = IciiaClassifier(IciiaConfig(width=WIDTH, layers=1, partitions=4), CLASSES).eval()

    class OneByOne(Original):
        def __init__(self, knowledge):
            super().__init__(knowledge)
            self.past = []

        def observe(self, feature, logits):
            self.past.append(feature)

        def answer(self, feature, logits):
            rows = torch.from_numpy(np.stack([*self.past[-15:], feature]))[None]
            with torch.no_grad():
                return model.last(rows, torch.ones(rows.shape[:2], dtype=torch.bool))[0].softmax(-1)[0].double().numpy()

    people = point.people("test", Cell("content", content="recovery"), 6, 6, 1)
    split, settings = point.splits["test"], replace(SETTINGS.shares, with_head=0.75)
    found = evaluate_head(model, people, split, point.knowledge, settings, (0.75,))
    for gated, name in ((False, "both 0.75"), (True, "gated 0.75")):
        make = lambda person: HeadWithShares(OneByOne(point.knowledge), point.knowledge, gated, settings)  # noqa: B023, E731
        slowly = evaluate(make, people, split)
        assert found[name].right == slowly.right
        assert np.allclose(found[name].confidence, slowly.confidence, atol=1e-4)


def test_people_keep_their_own_photos_and_strangers_are_of_another_home():
    owner = np.repeat([f"p{i}" for i in range(12)], 60)
    home, label = np.repeat(["a", "b"], 360), np.tile(np.arange(20), 36)
    for content in ("own", "foreign", "turns", "changed", "mixed", "recovery"):
        people = deal_owners(label, owner, home, Cell("content", content=content), 12, 8, 0)
        assert len(people) == 12
        for person in people:
            ((observed, answered), *_) = person.cases[0].steps
            (name,) = set(owner[answered])
            assert not set(observed) & set(answered)
            if content == "own":
                assert set(owner[observed]) == {name}
            if content == "foreign":
                assert set(home[observed]) == {"b" if home[answered[0]] == "a" else "a"}
    assert deal_owners(label, owner, home, Cell("history", history=255), 12, 8, 0) == []


def test_the_first_photos_of_each_class_are_kept():
    table = toy_point().cache.table
    kept = first_of_each_class(table, 5)
    assert np.bincount(kept.label).tolist() == [10] * CLASSES
    assert ((kept.split == "test").sum(), len(set(kept.photo))) == (5 * CLASSES, 10 * CLASSES)


@pytest.mark.parametrize(("parents", "owned"), [(False, False), (True, False), (False, True)])
def test_heads_are_trained_on_people_of_any_kind(parents, owned):
    plan = HeadPlan("toy", 4)
    trained = train_head(toy_point(parents, owned), plan, replace(SETTINGS, steps=200), 0)
    assert trained.validation[trained.best_epoch] > 0.5 > trained.validation[0]


def test_a_head_that_diverges_is_trained_at_a_lower_rate(monkeypatch):
    rates, plan = "studies.streams.heads.RATES", HeadPlan("toy", 1, learning_rate=300.0)
    monkeypatch.setattr(rates, (1.0,))
    with pytest.raises(UsageError, match="diverges"):
        train_head(toy_point(), plan, SETTINGS, 0)
    monkeypatch.setattr(rates, (1.0, 1e-3))
    assert train_head(toy_point(), plan, SETTINGS, 0).best_epoch >= 0


def test_the_whole_study_is_one_document_that_grows_and_is_shown(toy, tmp_path):
    settings = replace(SETTINGS, data=("glyphs",))
    first = protocol.study_stream(settings, tmp_path, [0, 1], "python -m studies stream RUN")
    assert "delivered" not in {row["method"] for row in first["rows"]}
    document = protocol.study_stream(
        replace(settings, heads=("iciia_t", "streaming")), tmp_path, [0, 1], "python -m studies stream RUN"
    )
    methods = {row["method"] for row in document["rows"]}
    assert {"shares", "iciia_t", "iciia_t+shares", "iciia_t+shares, gated", "streaming", "delivered"} <= methods
    base = {row["method"]: row for row in document["rows"] if row["cell"] == "base"}
    assert base["shares"]["over_shares"]["mean"] == base["original"]["gain"]["mean"] == 0
    assert all(cost["us_a_photo"] > 0 for cost in document["costs"])
    assert {cost["method"] for cost in document["costs"]} == {"original", *pages.WITHOUT_TRAINING}
    assert base["iciia_t"]["people"] == base["shares"]["people"] == 24
    page = STUDIES["stream"]
    header, rows = page.table(document)
    assert len(header) == len(rows[0])
    more = dict(page.more(document))
    assert all(len(header) == len(row) for header, rows in more.values() for row in rows)
    assert "ICIIA-T+shares, gated" in more["What trained heads add to class shares at 15 own photos"][0]
    assert "known classes" in page.about(document)
    with pytest.raises(UsageError, match="holds a run with other settings"):
        of_all_points(replace(settings, targets=7), tmp_path, "points", protocol.run_point, [0])
    with pytest.raises(UsageError, match="iciia_x is none of iciia_t"):
        protocol.study_stream(replace(settings, heads=("iciia_x",)), tmp_path, [0], "")


def test_a_point_that_an_earlier_version_kept_is_computed_again(toy, tmp_path):
    settings = replace(SETTINGS, data=("glyphs",), cells=("base",))
    first = protocol.study_stream(settings, tmp_path, [0], "")
    [path] = (tmp_path / "points").glob("*.json")
    path.write_text(json.dumps({"facts": {}, "chosen": {}, "cells": {"base": {"people": 1}}}))
    assert protocol.study_stream(settings, tmp_path, [0], "")["rows"] == first["rows"]


def test_intervals_hold_for_other_photos_where_people_share_them():
    rng, people, targets, photos = np.random.default_rng(0), 60, 16, 300
    covered = {"people": 0, "people and photos": 0}
    for _ in range(200):
        of_photo = rng.choice([0, 1, -1], size=photos, p=[0.7, 0.2, 0.1])  # 0.1 on average
        dealt = np.stack([rng.choice(photos, targets, replace=False) for _ in range(people)])
        gain = of_photo[dealt].astype(float)
        found = {
            "people": bootstrap_mean(gain.mean(1)),
            "people and photos": over_people_and_photos(
                gain.ravel(), np.repeat(np.arange(people), targets), dealt.ravel()
            ),
        }
        for name, interval in found.items():
            covered[name] += interval.low <= 0.1 <= interval.high
    assert covered["people"] < 160  # of 200: far from 95 %
    assert covered["people and photos"] >= 186


def test_intervals_of_people_who_share_nothing_are_those_over_people():
    rng = np.random.default_rng(0)
    gain = rng.normal(0.1, 0.2, (40, 1)) + rng.normal(0, 0.3, (40, 10))
    both = over_people_and_photos(gain.ravel(), np.repeat(np.arange(40), 10), np.arange(400))
    people = bootstrap_mean(gain.mean(1))
    assert both.mean == pytest.approx(people.mean)
    assert both.high - both.low == pytest.approx(people.high - people.low, rel=0.1)


def test_people_of_two_encoders_are_the_same_and_photos_of_two_sets_are_not():
    photos = [[[0, 1], [1, 2]]] * 4
    answers = Answers.of(photos, [("one", 0), ("one", 0), ("one", 1), ("other", 0)])
    assert answers.people == 6
    assert answers.person.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert answers.photo.tolist() == [0, 1, 1, 2] * 3 + [3, 4, 4, 5]
    assert answers.by_person(np.arange(16.0))[0] == np.mean([0, 1, 4, 5])


def test_owners_whom_seeds_draw_share_no_photos():
    for owned, shared in ((False, True), (True, False)):
        point = toy_point(owned=owned)
        first, second = (photos_of(point, point.people("test", BASE, 12, 6, seed), seed) for seed in (0, 1))
        assert bool({*np.ravel(first)} & {*np.ravel(second)}) == shared


def test_points_of_a_photo_set_that_was_replaced_are_not_taken_for_those_of_the_new_one(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "office-31.zip").write_bytes(b"one")
    settings = replace(SETTINGS, source=str(source), data=("office-31",), encoders=("mobilenetv2",), heads=())
    asked = settings, tmp_path / "run", "points", lambda *given: {"found": 1}, [0]
    of_all_points(*asked)
    (source / "office-31.zip").write_bytes(b"two")
    with pytest.raises(DataError, match=r"was started on other office-31.zip; restore them"):
        of_all_points(*asked)


def test_what_is_delivered_is_what_validation_people_chose(toy, tmp_path):
    found = run_head("iciia_t", SETTINGS, tmp_path, "glyphs", "small", 0)
    chosen = found["chosen"]
    g = f"{chosen['exponent']:g}"
    best = max(chosen["accuracy"][way] for way in ("plain", "shares", f"gated {g}", f"both {g}", "head"))
    assert chosen["accuracy"][chosen["delivered"]] >= best - 0.0011
    for way, expected in chosen["accuracy"].items():  # of own histories, and of somebody else's
        assert expected == pytest.approx(0.8 * chosen["own"][way] + 0.2 * chosen["foreign"][way], abs=2e-4)
    assert chosen["foreign"] != chosen["own"]
    assert chosen["people"] == 24
    assert HEADS["iciia_t"].block(192, 3).partitions == 64
    assert BASE.name in found["cells"]


def test_heads_of_few_people_are_judged_beside_shares(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(few_people, "SIZES", (2, 4, 1000))
    document = few_people.study_few_people(
        replace(SETTINGS, data=("glyphs",)), tmp_path, [0], "python -m studies few-people RUN"
    )
    assert [row["training_people"] for row in document["rows"]] == [2, 4]
    header, rows = STUDIES["few-people"].table(document)
    assert len(header) == len(rows[0])
    assert "training people" in STUDIES["few-people"].about(document)


def test_what_shares_gain_and_lose_is_judged_by_every_answer(toy, tmp_path, monkeypatch):
    short = {name: cells[:1] for name, cells in trade_off.CELLS.items()}  # for which the toy's photos suffice
    for name, cells in {"CELLS": short, **{name.upper(): cells for name, cells in short.items()}}.items():
        monkeypatch.setattr(trade_off, name, cells)
    settings = replace(SETTINGS, data=("glyphs",), cells=())
    document = trade_off.study_trade_off(settings, tmp_path, [0, 1], "python -m studies trade-off RUN")
    kept = json.loads((tmp_path / "curves" / "glyphs-small-1.json").read_text())["test"]["base"]
    number = trade_off.FAMILIES["elsewhere"][0].index(settings.shares.elsewhere)
    right = np.array(kept["flags"]["elsewhere"])[:, number]
    row = next(row for row in document["rows"] if (row["content"], row["history"]) == ("own", 15))
    assert row["people"] == 24
    assert row["gain"]["seeds"][1] == pytest.approx((right - np.array(kept["plain"])).mean())
    assert row["gain"]["mean"] == pytest.approx(np.mean(row["gain"]["seeds"]))
    assert row["gain"]["low"] < row["gain"]["mean"] < row["gain"]["high"]
    page = STUDIES["trade-off"]
    header, rows = page.table(document)
    assert len(header) == len(rows[0])
    assert "95 % intervals over people and photos" in page.about(document)


def test_a_person_is_harmed_where_the_whole_interval_is_below_zero():
    plain = np.ones(24, dtype=bool)
    assert harmed(np.arange(24) >= 8, plain)
    assert not harmed(np.arange(24) >= 1, plain)
    assert not harmed(plain, plain)
