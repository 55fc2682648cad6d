"""Tables of banks: the paper's orders are judged by the rows that are there, and domains are averaged by themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.evaluate.bank_tasks import Evaluation
from refocus.cloud_train.methods.taper import tasks
from refocus.cloud_train.methods.taper.tasks import Task
from studies.banks import orders
from studies.banks.tables import rows_of
from studies.report.pages import STUDIES, orders_table

TASKS = 40


def spread(mean: float, seed: int) -> list[np.ndarray]:
    """Shares of two seeds around a mean."""
    rng = np.random.default_rng(seed)
    return [mean + rng.normal(0, 0.01, TASKS) for _ in range(2)]


def test_orders_are_judged_by_pairs_of_rows_and_the_reversed_ones_stand_first():
    shares = {
        orders.SELECTION: spread(0.9, 0),
        orders.TAPER_ROW: spread(0.95, 1),
        orders.LARGER: spread(0.97, 2),
        orders.BAG: spread(0.95, 1),
    }
    found = orders.judged(shares, np.full(TASKS, 60))
    header, cells = orders_table({"study": "taper", "orders": found})
    assert header == ["order", "found in", "difference here", ""]
    assert [(row[0], row[-1]) for row in cells] == [
        ("TAPER over classifier selection (large network)", "the other way round"),
        ("TAPER over classifier selection", "holds"),
        ("TAPER over TAPER, bag of words", "no difference seen"),
    ]
    assert found[0]["difference"]["mean"] == pytest.approx(-0.02, abs=0.005)


def test_each_order_is_of_two_rows_that_a_study_has():
    recipe, small = SimpleNamespace(epochs=(1, 1, 1)), SimpleNamespace(frozen=0)
    sizes, config = {"small": 1, "large": 3}, SimpleNamespace(recipe=recipe, small=small)
    run: Any = SimpleNamespace(config=config, group_names=("a", "b"), parameters=lambda which="small": sizes[which])
    evaluation: Any = None
    names = {(name, which) for name, which, *_ in rows_of(run, evaluation)}
    sizes["large"] = 1  # a large network that is no larger is not trained to compare with
    assert {which for _, which, *_ in rows_of(run, evaluation)} == {"small"}
    assert {name for better, other, _ in orders.ORDERS for name in (better, other)} <= names


def test_a_domain_s_accuracy_is_over_its_own_tasks_photo_by_photo():
    drawn = [Task((0, 1), 1), Task((0, 1), 1), Task((2, 3), 0)]
    evaluation = Evaluation(None, drawn, [np.arange(10), np.arange(30), np.arange(5)])  # type: ignore[arg-type]
    shares = [np.array([1.0, 0.5, 0.2]), np.array([0.8, 0.5, 0.4])]
    found = evaluation.by_domain(shares, ["drawing", "photo"])
    assert found == {"drawing": pytest.approx(0.3), "photo": pytest.approx((0.9 * 10 + 0.5 * 30) / 40)}
    assert evaluation.by_domain(shares, ["photo"]) == {}
    anywhere = Evaluation(None, [Task((0, 1))], [np.arange(3)])  # type: ignore[arg-type]
    assert anywhere.by_domain([np.array([1.0])], ["drawing", "photo"]) == {}


def test_domains_are_a_table_of_their_own():
    row = {"name": "TAPER", "network": "small", "selection": True, "domains": {"drawing": 0.5, "photo": 0.75}}
    document = {"rows": [row, {**row, "name": "no personalisation", "selection": False}]}
    [(title, (header, cells))] = STUDIES["taper"].more(document)
    assert "Table 5" in title
    assert header == ["", "network", "drawing", "photo"]
    assert cells == [["TAPER", "small", "50.0%", "75.0%"]]
    assert STUDIES["taper"].more({"rows": [{**row, "domains": {}}]}) == []


class Drawn:
    """A run whose tasks are drawn from photos of 12 classes, 8 of each, whose super-categories are pairs."""

    by_domain = False

    def __init__(self, ways: int) -> None:
        self.ways = ways

    def around(self, kind: str) -> Any:
        return tasks.same_group(np.repeat(np.arange(6), 2), 2) if self.ways == 2 else tasks.fixed(12, self.ways)

    def photos(self, split: str) -> Photos:
        label = torch.arange(12).repeat_interleave(8)
        return Photos(torch.zeros(96, 3, 1, 1), label, np.zeros(96, int), (0.5,) * 3, (0.5,) * 3)


def test_the_same_few_tasks_are_judged_once_each_on_all_of_their_photos():
    run: Any = Drawn(2)
    evaluation = Evaluation.draw(run, count=100)
    assert len({*evaluation.tasks}) == len(evaluation.tasks) == 6
    assert sorted(np.concatenate(evaluation.rows).tolist()) == list(range(96))
    run = Drawn(4)
    assert len(Evaluation.draw(run, count=100).tasks) == 100
