"""The fuzzer judges as it says, one per cent of it finds nothing, and the page says what the documents say."""

from __future__ import annotations

import json
import mmap
import os
import signal
import time
from pathlib import Path

import pytest

from tests.fuzz import record, runner
from tests.fuzz.areas import AREAS, Area, Wrong, area_class
from tests.fuzz.record import PAGE, RESULTS, Record, add_up, page_of, take_up

FEW = {"store": 24, "album": 6, "improve": 4, "condense": 6}  # kills; those of updates have tests of their own


def said(found):
    return "\n".join(f"{f['count']} x {name}; seeds {f['seeds']}" for name, f in found.failures.items())


# ---- the page


def test_the_page_is_what_the_documents_say():
    assert PAGE.read_text() == page_of(RESULTS)


def test_counts_of_several_runs_are_added_up_and_shown(tmp_path):
    path = tmp_path / "work" / "photos" / "record.json"
    path.parent.mkdir(parents=True)
    for first, last in ((0, 3), (5, 7), (3, 5)):
        found = Record.load(path, "fuzz", "photos")
        for begin, end in found.missing(0, last, 2):
            for seed in range(max(begin, first), end):
                found.add(seed, "bytes", "uncaught" if seed == 6 else "right", "ValueError" if seed == 6 else "")
        found.save()
    assert found.done == [[0, 7]]
    add_up("fuzz", tmp_path / "work", tmp_path)
    document = json.loads((tmp_path / "fuzz.json").read_text())["areas"]["photos"]
    assert document["outcomes"] == {"right": 6, "uncaught": 1}
    take_up("fuzz", tmp_path / "elsewhere", tmp_path)
    assert Record.load(tmp_path / "elsewhere" / "photos" / "record.json", "fuzz", "photos").done == [[0, 7]]
    assert "| photos | 100,000 | 7 | 6 | 0 | 0 | 0 | 0 | 1 | 0 | 0 | 0 |" in page_of(tmp_path)


def test_what_was_counted_of_another_state_of_the_source_is_not_added(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    found = Record(path, "fuzz", "photos")
    found.add(0, "bytes", "right")
    found.save()
    monkeypatch.setattr(record, "source_digest", lambda: "changed")
    assert Record.load(path, "fuzz", "photos", lambda line: None).cases == 0


# ---- the runner


class Fuzzed(Area):
    """Fails in every way there is, by seed."""

    @staticmethod
    def build(material):
        pass

    def make(self, seed):
        return "kind", seed

    def save(self, case, folder):
        (folder / "seed").write_text(str(case))

    def judge(self, case, run):
        if case == 1:
            raise Wrong("a wrong answer")
        if case == 2:
            raise ZeroDivisionError
        if case == 3:
            time.sleep(60)
        if case == 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        if case == 5:
            mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        if case == 6:
            run()
            time.sleep(60)
        return "right"


@pytest.mark.slow
def test_every_way_to_fail_is_told_apart_and_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(AREAS, "self", ("tests.fuzz.test_robustness", 9))
    monkeypatch.setenv("FUZZ_SELF", "1")
    monkeypatch.setattr(runner, "LIMIT", 3.0)
    found = runner.fuzz("self", 0, 9, tmp_path, 1, lambda line: None)
    assert found.done == [[0, 9]]
    assert found.kinds == {
        "kind": {"right": 3, "wrong": 1, "uncaught": 1, "hang": 1, "died": 1, "memory": 1, "unbounded": 1}
    }
    assert {path.name for path in (tmp_path / "self" / "failures").iterdir()} >= {
        "seed-1",
        "seed-2",
        "seed-3",
        "seed-4",
    }


@pytest.mark.parametrize("area", [name for name in AREAS if name != "self"])
def test_a_seed_always_gives_the_same_input(area, tmp_path):
    made = []
    (tmp_path / "material").mkdir()
    if area == "photos":
        pytest.skip("its bombs take seconds to make")
    area_class(area).build(tmp_path / "material")
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        fuzzed = area_class(area)(tmp_path / "material", tmp_path / str(number))
        made.append([repr(fuzzed.make(seed)) for seed in range(20)])
    assert made[0] == made[1]


# ---- one per cent


@pytest.mark.slow
@pytest.mark.parametrize("area", [name for name in AREAS if name != "self"])
def test_one_per_cent_of_the_hostile_input_finds_nothing(area, tmp_path):
    found = runner.fuzz(area, 0, AREAS[area][1] // 100, tmp_path, 1)
    assert not found.failures, said(found)
    assert found.cases == AREAS[area][1] // 100
    outcomes = found.outcomes()
    # All happen: a fuzzer whose inputs are all refused tests nothing.
    assert outcomes["right"] > 0
    assert outcomes["accepted"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", FEW)
def test_a_few_kills_lose_nothing(kind, tmp_path):
    from tests.fuzz.kills import kill

    found = kill(kind, 0, FEW[kind], tmp_path)
    assert not found.failures, said(found)
    assert found.cases == FEW[kind]


def test_the_page_names_the_documents_it_is_made_from():
    assert "docs/results/robustness/fuzz.json" in Path(PAGE).read_text()
