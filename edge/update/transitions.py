"""The transitions between update states, without I/O.

Each takes the state that is stored now and returns the next one, or None where the state is another one than the
transition starts from: another process was faster, and the state stays as it is.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, Literal

import msgspec

from refocus.edge.errors import UpdateError
from refocus.edge.update.device_state import LONGEST_WAIT, Outcome, Postponed, Slot, StageName, UpdateState
from refocus.edge.update.rules import MAX_RELEASES, printable

ATTEMPTS = 3  # interrupted tests after which a release is postponed
FIRST_WAIT = timedelta(hours=1)  # until a postponed release is tried again
_REMEMBERED = 32  # ends of updates that the state keeps
_KNOWN = 2 * MAX_RELEASES  # releases found unfit or postponed that it keeps: all that a channel lists


def replaced(state: UpdateState, **changes: object) -> UpdateState:
    """The state with other values of some fields."""
    return msgspec.structs.replace(state, **changes)


def moved_on(state: UpdateState, /, before: StageName, after: StageName, **changes: object) -> UpdateState | None:
    """From one stage to another."""
    return replaced(state, stage=after, attempts=0, **changes) if state.stage == before else None


def attempted(state: UpdateState, stage: StageName, attempts: int) -> UpdateState | None:
    """So many tests were begun in this stage and have not ended."""
    return replaced(state, attempts=attempts) if state.stage == stage else None


def given_up(state: UpdateState, why: str, blame: bool = True) -> UpdateState | None:
    """The candidate is dropped, in whatever stage it is: refused if it never served, taken back if it did.

    Args:
        blame: False: it is tried again later; it has not been found unfit.
    """
    slot, served = state.candidate, state.stage == "moving"
    if slot is None or state.stage == "returning":
        return None
    done = ended(state, slot, "returned" if served else "refused", why) if blame else postponed(state, slot, why)
    return replaced(done, stage="returning", release=None) if served else _without_candidate(done)


def dropped(state: UpdateState, slot: Slot, why: str = "") -> UpdateState | None:
    """A candidate that never served is dropped without blame; ``why``: it is postponed."""
    if state.candidate != slot or state.stage not in ("staging", "testing"):
        return None
    return _without_candidate(postponed(state, slot, why) if why else state)


def rolled_back(state: UpdateState, why: str, blame: bool = True) -> UpdateState | None:
    """The previous release serves again, and the active one is left; while people move to a candidate and there is no
    release before, the candidate is left.

    Args:
        blame: False: the release that is left is tried again later; it has not been found unfit.

    Raises:
        UpdateError: there is no previous release.
    """
    active, previous = state.active, state.previous
    if state.stage == "returning":
        return None
    if previous is None and state.stage == "moving":
        return given_up(state, why, blame)
    if previous is None or active is None:
        raise UpdateError("there is no previous release to return to")
    # What is on its way is dropped without an end of its own: nobody has found it unfit.
    left = ended(state, active, "returned", why) if blame else postponed(state, active, why)
    return replaced(left, stage="returning", active=previous, candidate=active, previous=None, release=None, attempts=0)


def committed(state: UpdateState, before: StageName) -> UpdateState | None:
    """The candidate becomes the active release, on trial; the one before stays, to return to."""
    slot = state.candidate
    if state.stage != before or slot is None:
        return None
    done = ended(state, slot, "committed")
    return moved_on(done, before, "trial", active=slot, previous=state.active, candidate=None, release=None)


def passed(state: UpdateState, active: Slot) -> UpdateState | None:
    """The state after the release on trial has passed its self-test."""
    others = {identity: one for identity, one in state.postponed.items() if identity != active.identity}
    return moved_on(state, "trial", "settled", postponed=others)


def ended(
    state: UpdateState, slot: Slot, outcome: Literal["committed", "refused", "returned"], why: str = ""
) -> UpdateState:
    """The state with one more outcome; a release that did not serve well is not tried again."""
    why = printable(why)
    outcomes = (*state.outcomes, Outcome(number=slot.number, identity=slot.identity, outcome=outcome, why=why))
    refused = state.refused if outcome == "committed" else {**state.refused, slot.identity: why}
    return replaced(state, outcomes=outcomes[-_REMEMBERED:], refused=_newest(refused))


def postponed(state: UpdateState, slot: Slot, why: str) -> UpdateState:
    """The state with a release that is tried again after a while, twice as long each time."""
    before = state.postponed.get(slot.identity)
    times = before.times + 1 if before else 1
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(times - 1, 10))
    until = datetime.now(timezone.utc).replace(microsecond=0) + wait
    others = {identity: one for identity, one in state.postponed.items() if identity != slot.identity}
    others[slot.identity] = Postponed(times=times, until=until, why=printable(why))
    return replaced(state, postponed=_newest(others))


def _newest(found: dict[str, Any]) -> dict[str, Any]:
    return dict(list(found.items())[-_KNOWN:])


def _without_candidate(state: UpdateState) -> UpdateState:
    return replaced(state, stage="settled", candidate=None, release=None, attempts=0)
