"""The study of memories: real bundles, the device's recogniser, profiles on disk."""

from __future__ import annotations

import pytest

from refocus.cloud_train.errors import DataError
from studies.iciia.history_policies import study_memories
from studies.report.pages import study_table


@pytest.fixture(scope="module")
def document(tiny_run, bundle):  # the bundle first: the study finds it exported
    return study_memories(tiny_run, [0], "python -m studies memories RUN", people=3, targets=4, histories=(16, 40))


def test_every_memory_is_judged_at_every_length_and_on_the_same_targets(document):
    first, *others = document["rows"]
    asked = [(row["name"], row["photos"]) for row in document["rows"]]
    assert asked == [("newest", 16), *((memory, length) for memory in ("spread", "similar") for length in (16, 40))]
    assert first["over_newest"]["mean"] == 0
    for row in others:
        assert row["original"] == first["original"]
        assert row["delivered"] == pytest.approx(first["delivered"] + row["over_newest"]["mean"])
        assert row["delivered"] == pytest.approx(row["original"] + row["gain"]["mean"])


def test_it_reads_as_a_table(document):
    header, rows = study_table(document)
    assert {len(row) for row in rows} == {len(header)}
    assert rows[-1][0] == "similar of 40"


def test_people_with_too_few_photos_are_an_error(tiny_run, bundle):
    with pytest.raises(DataError, match="1 test clients, .* bring two with 20 each"):
        study_memories(tiny_run, [0], "", people=1, targets=4, histories=(16,))
