"""The stream protocol on toy points: heads with shares, people who own their photos, and what a page says of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refocus.benchmarks.measure import bootstrap_mean
from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig
from refocus.export.program import SIGNATURE
from studies.comparisons import over_people_and_photos
from studies.experiment import Cache, read_experiment, run_experiment
from studies.report.pages import STUDIES
from studies.streams import few_people, methods, pages, stream, trade_off
from studies.streams.heads import HEADS, HeadPlan, chosen_head, train_head
from studies.streams.judging import evaluate, evaluate_head, harmed
from studies.streams.points import Point, StreamSettings, _groups, _point, draw_split, first_of_each_class
from studies.streams.pseudo_people import BASE, Cell, deal_owners
from studies.streams.rivals.method import Original
from tests.studies.streams.test_test_time import HeadWithShares

STREAMS = Path(pages.__file__).parent
CLASSES, EACH, WIDTH = 12, 40, 16
SETTINGS = StreamSettings(people=12, targets=6, steps=8)
SMALL = ("settings.people=12", "settings.targets=6", "settings.steps=8", 'grid.data=["glyphs"]')
CELLS = 'grid.cell=["base", "foreign history of 15", "recovery history of 63", "sorted"]'


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
    """Every point of the studies is the toy's."""
    for module in (few_people, methods, stream, trade_off):
        monkeypatch.setattr(module, "prepare", lambda *arguments: toy_point())
    monkeypatch.setattr("studies.streams.heads.CHOOSERS", 24)


def document(name: str, run: Path, *changes: str) -> dict[str, Any]:
    """The results document of one of the studies."""
    return run_experiment(read_experiment(STREAMS / f"{name}.toml", [*SMALL, "seeds=[0,1]", *changes]), run, "command")


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
    plan = HeadPlan(4)
    trained = train_head(toy_point(parents, owned), plan, replace(SETTINGS, steps=200), 0)
    assert trained.validation[trained.best_epoch] > 0.5 > trained.validation[0]


def test_a_head_that_diverges_is_trained_at_a_lower_rate(monkeypatch):
    rates, plan = "studies.streams.heads.RATES", HeadPlan(1, learning_rate=300.0)
    monkeypatch.setattr(rates, (1.0,))
    with pytest.raises(UsageError, match="diverges"):
        train_head(toy_point(), plan, SETTINGS, 0)
    monkeypatch.setattr(rates, (1.0, 1e-3))
    assert train_head(toy_point(), plan, SETTINGS, 0).best_epoch >= 0


def test_the_whole_study_is_one_document_that_grows_and_is_shown(toy, tmp_path):
    first = document("stream", tmp_path, CELLS)
    assert "delivered" not in {row["method"] for row in first["rows"]}
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    every = json.dumps([*(*methods.WITHOUT_TRAINING, methods.KNOWN), "iciia_t", "streaming", "counted", "recalibrated"])
    whole = document("stream", tmp_path, CELLS, f"grid.method={every}")
    assert kept.items() <= {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}.items()
    by_key = {(row["cell"], row["method"]): row for row in whole["rows"]}
    assert all(by_key[row["cell"], row["method"]] == row for row in first["rows"])
    base = {method: row for (cell, method), row in by_key.items() if cell == "base"}
    assert {"shares", "iciia_t", "iciia_t+shares", "iciia_t+shares, gated", "streaming", "delivered"} <= set(base)
    assert base["shares"]["over_shares"]["mean"] == base["original"]["gain"]["mean"] == 0
    assert base["iciia_t"]["people"] == base["shares"]["people"] == 24
    assert set(by_key["recovery history of 63", "shares"]["gain_after"]) == {"0", "4", "8", "16", "32"}
    assert all(cost["us_a_photo"] > 0 for cost in whole["costs"])
    assert {cost["method"] for cost in whole["costs"]} == {*methods.WITHOUT_TRAINING}
    assert [(point["seed"], point["t3a_keep"] in (20, 5, 100)) for point in whole["points"]] == [(0, True), (1, True)]
    assert len(whole["heads"]) == 4
    page = STUDIES["stream"]
    header, rows = page.table(whole)
    assert len(header) == len(rows[0])
    more = dict(page.more(whole))
    assert all(len(header) == len(row) for header, rows in more.values() for row in rows)
    assert "ICIIA-T+shares, gated" in more["What trained heads add to class shares at 15 own photos"][0]
    assert "known classes" in page.about(whole)


def test_a_study_without_what_rows_are_compared_with_names_it(toy, tmp_path):
    with pytest.raises(UsageError, match="iciia_x is none of original"):
        document("stream", tmp_path, 'grid.method=["iciia_x"]')
    with pytest.raises(UsageError, match="the study needs the method known classes in each cell"):
        document("stream", tmp_path, 'grid.cell=["base"]', 'grid.method=["original","shares"]')


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


def test_owners_whom_seeds_draw_share_no_photos():
    for owned, shared in ((False, True), (True, False)):
        point = toy_point(owned=owned)
        first, second = (point.answers(point.people("test", BASE, 12, 6, seed), seed)[1] for seed in (0, 1))
        assert bool({*first.tolist()} & {*second.tolist()}) == shared


def test_what_is_delivered_is_what_validation_people_chose(toy, tmp_path):
    cell = {"data": "glyphs", "encoder": "small"}
    _, chosen = chosen_head(toy_point(), "iciia_t", SETTINGS, Cache(tmp_path), cell, 0)
    g = f"{chosen['exponent']:g}"
    best = max(chosen["accuracy"][way] for way in ("plain", "shares", f"gated {g}", f"both {g}", "head"))
    assert chosen["accuracy"][chosen["delivered"]] >= best - 0.0011
    for way, expected in chosen["accuracy"].items():  # of own histories, and of somebody else's
        assert expected == pytest.approx(0.8 * chosen["own"][way] + 0.2 * chosen["foreign"][way], abs=2e-4)
    assert chosen["foreign"] != chosen["own"]
    assert chosen["people"] == 24
    assert HEADS["iciia_t"].block(192, 3).partitions == 64


def test_a_head_that_was_trained_is_not_trained_again(toy, tmp_path, monkeypatch):
    cell = {"data": "glyphs", "encoder": "small"}
    given = toy_point(), "iciia_t", SETTINGS, Cache(tmp_path), cell, 0
    first, facts = chosen_head(*given)
    monkeypatch.setattr("studies.streams.heads.train_head", None)
    again, same = chosen_head(*given)
    assert same == facts
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())


def test_heads_of_few_people_are_compared_with_shares(toy, tmp_path):
    found = document("few-people", tmp_path, "seeds=[0]", "grid.training_people=[2,4,1000]")
    assert [row["training_people"] for row in found["rows"]] == [2, 4]
    assert [*found["rows"][0]["gains"]] == ["shares", "head", "both", "delivered"]
    header, rows = STUDIES["few-people"].table(found)
    assert len(header) == len(rows[0])
    assert "training people" in STUDIES["few-people"].about(found)
    assert "95 % intervals over people and photos" in STUDIES["few-people"].about(found)


def test_gains_and_losses_of_shares_are_means_of_every_answer(toy, tmp_path, monkeypatch):
    short = {name: cells[:1] for name, cells in trade_off.CELLS.items()}  # for which the toy's photos suffice
    for name, cells in {"CELLS": short, **{name.upper(): cells for name, cells in short.items()}}.items():
        monkeypatch.setattr(trade_off, name, cells)
    cells = json.dumps([cell.name for (cell,) in short.values()])
    found = document(
        "trade-off", tmp_path, f"grid.cell={cells}", "settings.shares.no_shift=0.05", "settings.shares.penalty=0"
    )
    kept = [json.loads(path.read_text()) for path in (tmp_path / "cache").glob("*.json")]
    (of_test,) = (row for one in kept if (one["cell"]["cell"], one["seed"]) == ("base", 1) for row in one["rows"][1:])
    values = of_test["values"]
    gain = np.mean(values[trade_off.measure("elsewhere", SETTINGS.shares.elsewhere)]) - np.mean(values["plain"])
    row = next(row for row in found["rows"] if (row["content"], row["history"]) == ("own", 15))
    assert row["people"] == 24
    assert row["gain"]["seeds"][1] == pytest.approx(gain)
    assert row["gain"]["mean"] == pytest.approx(np.mean(row["gain"]["seeds"]))
    assert row["gain"]["low"] < row["gain"]["mean"] < row["gain"]["high"]
    assert {point["people"] for point in found["curve"]} == {24}
    page = STUDIES["trade-off"]
    header, rows = page.table(found)
    assert len(header) == len(rows[0])
    assert "95 % intervals over people and photos" in page.about(found)


def test_a_person_is_harmed_where_the_whole_interval_is_below_zero():
    plain = np.ones(24, dtype=bool)
    assert harmed(np.arange(24) >= 8, plain)
    assert not harmed(np.arange(24) >= 1, plain)
    assert not harmed(plain, plain)
