"""``kill -9`` in every state of an update: the device comes up with the old or the new release, whole, with its history.

``REFOCUS_UPDATE_KILLS=0:300`` makes the random kills of a release test; ``REFOCUS_UPDATE_EVENTS=0:9999`` kills at every
audit event. Both are ranges of seeds, so that a long run can be done in parts (:mod:`tests.edge.update.update_kills`).
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.edge.update.update_kills import Bench

SAMPLE = 25
RANDOM = os.environ.get("REFOCUS_UPDATE_KILLS", "0:8")
AT_EVENTS = os.environ.get("REFOCUS_UPDATE_EVENTS", "")

STAGES = {"settled", "staging", "testing", "moving", "trial", "returning"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(bundle, other_encoder, stream, tmp_path_factory):
    made = Bench(tmp_path_factory.mktemp("kills") / "bench", bundle, other_encoder, stream)
    yield made
    made.close()


def seeds(text):
    first, _, last = text.partition(":")
    return range(int(first), int(last))


def test_killed_at_an_audit_event_the_device_comes_up_and_ends_what_it_began(bench):
    if AT_EVENTS:
        numbers = seeds(AT_EVENTS)
    else:
        count = bench.events()
        apart = max(1, count // SAMPLE)
        numbers = range(apart // 2, count, apart)
    found = Counter((kill.stage, kill.served) for kill in bench.at_events(numbers))
    if len(numbers) >= SAMPLE:
        for more in range(0 if AT_EVENTS else 8):  # a stage may have passed between two events of the sample
            if not {stage for stage, _ in found} >= STAGES:
                shifted = range(more * apart // 8, count, apart)
                found.update((kill.stage, kill.served) for kill in bench.at_events(shifted))
        assert {stage for stage, _ in found} >= STAGES
        assert {name for _, name in found} == {"iciia_t", "other encoder"}


def test_killed_at_random_moments_the_device_comes_up(bench):
    numbers = seeds(RANDOM)
    stages = Counter(kill.stage for kill in bench.at_random(numbers))
    assert len(numbers) < 8 or len(stages) > 1, "all kills hit one stage"
