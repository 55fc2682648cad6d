"""The rules by which an update state changes, without a device."""

from __future__ import annotations

import msgspec
import pytest

from refocus.edge.errors import UpdateError
from refocus.edge.update.device_state import Slot, UpdateState
from refocus.edge.update.transitions import attempted, committed, dropped, given_up, moved_on, passed, rolled_back

OLD, NEW = (Slot(number=n, identity=str(n) * 64, name=f"release {n}", space=str(n) * 64) for n in (1, 2))
SETTLED = UpdateState(device="d", device_class="phone", url="http://h", active=OLD)


def at(stage, **changes):
    return msgspec.structs.replace(SETTLED, stage=stage, candidate=NEW, **changes)


def test_a_candidate_that_never_served_is_refused_and_one_that_did_is_taken_back():
    refused, returned = given_up(at("testing"), "unfit"), given_up(at("moving"), "unfit")
    assert (refused.stage, refused.candidate, refused.outcomes[-1].outcome) == ("settled", None, "refused")
    assert (returned.stage, returned.candidate, returned.outcomes[-1].outcome) == ("returning", NEW, "returned")
    assert refused.refused == returned.refused == {NEW.identity: "unfit"}


def test_without_blame_a_release_is_postponed_and_not_refused():
    for after in (given_up(at("moving"), "no room", blame=False), dropped(at("testing"), NEW, "no room")):
        assert (after.refused, after.outcomes, [*after.postponed]) == ({}, (), [NEW.identity])
    assert dropped(at("staging"), NEW).postponed == {}


def test_a_committed_release_is_on_trial_until_it_has_passed_and_can_be_rolled_back():
    trial = committed(at("moving", attempts=2), "moving")
    assert (trial.stage, trial.active, trial.previous, trial.candidate, trial.attempts) == ("trial", NEW, OLD, None, 0)
    settled = passed(attempted(trial, "trial", 1), NEW)
    assert (settled.stage, settled.attempts, settled.active) == ("settled", 0, NEW)
    back = rolled_back(settled, "it hurts")
    assert (back.stage, back.active, back.candidate, back.previous) == ("returning", OLD, NEW, None)


def test_a_transition_from_another_stage_changes_nothing():
    assert committed(at("testing"), "moving") is moved_on(at("testing"), "moving", "trial") is None
    assert attempted(SETTLED, "testing", 1) is passed(SETTLED, OLD) is given_up(SETTLED, "why") is None
    assert dropped(at("moving"), NEW) is dropped(at("testing"), OLD) is None
    assert given_up(at("returning"), "why") is rolled_back(at("returning"), "why") is None
    with pytest.raises(UpdateError, match="no previous release"):
        rolled_back(SETTLED, "why")
