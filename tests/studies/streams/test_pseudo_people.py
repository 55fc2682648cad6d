"""Streams of pseudo-people hold what their cell says, and never a target in a history."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from studies.streams.pseudo_people import BASE, CELLS, RECOVERY, RUN, TURN, Cell, deal

LABEL = np.repeat(np.arange(30), 40)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_no_photo_is_answered_after_it_was_observed(cell):
    people = deal(LABEL, None, cell, 20, 12, 0)
    assert len(people) == 20
    for person in people:
        for case in person.cases:
            observed = np.concatenate([rows for rows, _ in case.steps])
            answered = np.concatenate([rows for _, rows in case.steps])
            assert not set(observed) & set(answered)
            assert len(set(observed.tolist())) == len(observed)
            assert len(case.steps[0][0]) == cell.history
            assert set(LABEL[answered]) <= set(person.classes.tolist())


def test_own_histories_are_of_the_persons_classes_and_others_are_not():
    def outside(cell: Cell) -> float:
        people = deal(LABEL, None, cell, 40, 12, 1)
        return float(np.mean([~np.isin(LABEL[p.cases[0].steps[0][0]], p.classes) for p in people]))

    assert outside(BASE) == 0
    assert 0.2 < outside(Cell("content", content="turns")) < 0.5
    assert outside(Cell("content", content="foreign")) > 0.6
    assert outside(Cell("content", content="mixed")) > 0.6


def test_turns_and_changes_are_where_they_are_said_to_be():
    for person in deal(LABEL, None, Cell("content", content="turns", history=16), 20, 8, 2):
        own = np.isin(LABEL[person.cases[0].steps[0][0]], person.classes).reshape(-1, TURN)
        assert own[::2].all()
    for person in deal(LABEL, None, Cell("content", content="changed", history=16), 20, 8, 2):
        assert np.isin(LABEL[person.cases[0].steps[0][0][8:]], person.classes).all()
    for person in deal(LABEL, None, Cell("content", content="recovery", history=16), 20, 8, 2):
        lengths = [len(rows) for rows, _ in person.cases[0].steps]
        assert np.cumsum(lengths).tolist() == [16 + photos for photos in RECOVERY]


def test_sorted_streams_change_class_once_in_a_run():
    for person in deal(LABEL, None, Cell("order", order="sorted"), 20, 8, 3):
        for case in person.cases:
            changes = np.count_nonzero(np.diff(LABEL[case.steps[0][0]]))
            assert changes <= -(-15 // RUN)


def test_groups_decide_the_classes_of_a_person():
    groups = [np.array([0, 1]), np.array([2, 3, 4])]
    for person in deal(LABEL, groups, BASE, 20, 8, 4):
        assert any(person.classes.tolist() == group.tolist() for group in groups)


def test_the_seed_decides_and_too_few_photos_give_nobody():
    one, again, other = (deal(LABEL, None, BASE, 5, 8, seed) for seed in (5, 5, 6))
    assert (one[3].cases[0].steps[0][0] == again[3].cases[0].steps[0][0]).all()
    assert any((a.classes.tolist() != b.classes.tolist()) for a, b in zip(one, other, strict=True))
    assert deal(LABEL[::20], None, dataclasses.replace(BASE, history=63), 5, 8, 5) == []
