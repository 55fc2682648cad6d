"""Ways to hold class shares back: each trades gain on own histories for loss on somebody else's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from refocus.cloud_train.errors import DataError
from refocus.edge.recognize import ShareSettings
from studies.streams.rivals.trade_off import FAMILIES, answered_right, best_point, median_similarity
from studies.streams.trade_off import choose_elsewhere
from tests.studies.streams.test_test_time import knowledge, photos

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "trade-off.json"


def gained(history: list[int], answered: list[int]) -> dict[str, np.ndarray]:
    """Mean gain at each point of each grid, of 12 people with these classes in their history and their targets."""
    known = knowledge()
    every: dict[str, list[np.ndarray]] = {name: [] for name in FAMILIES}
    for seed in range(12):
        _, past = photos(history, 40, seed)
        label, features = photos(answered, 100, 100 + seed)
        logits = features @ known.weight.T + known.bias
        near = median_similarity(past, np.zeros(len(past), int))
        plain = (logits.argmax(1) == label).mean()
        right = answered_right(known, ShareSettings(), (past, past @ known.weight.T), (features, logits), label, near)
        for name, flags in right.items():
            every[name].append(flags.mean(1) - plain)
    return {name: np.mean(values, axis=0) for name, values in every.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_holds_shares_back_costs_own_histories_and_spares_foreign_ones(family):
    own, foreign = gained([1, 4, 7], [1, 4, 7])[family], gained([0, 2, 3], [1, 4, 7])[family]
    assert own[0] > 0.02
    assert foreign[0] < -0.02
    assert own[-1] < own[0] + 1e-9
    assert foreign[-1] > foreign[0]


def test_the_point_of_largest_expected_gain_is_chosen():
    own, foreign = np.array([0.05, 0.05, 0.04, 0.01]), np.array([-0.10, -0.06, -0.02, 0.0])
    assert best_point(own, foreign, 0.1) == 1
    assert best_point(own, foreign, 0.0) == 1  # ties: the one that holds back more
    assert best_point(own, foreign, 0.5) == 2


def test_photo_sets_without_photos_enough_are_named_where_a_setting_is_chosen():
    with pytest.raises(DataError, match="no validation people have photos enough for"):
        choose_elsewhere({})
