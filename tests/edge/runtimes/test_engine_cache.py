"""Engines belong to one GPU and one version: never used elsewhere, never lost silently. No GPU is needed for that."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from refocus.edge.runtimes.engine_cache import EngineCache, EngineKey

KEY = EngineKey("10.3.0", "Orin sm_87", "fp16", "", "a" * 64)


@pytest.fixture
def cache(tmp_path):
    return EngineCache(tmp_path / "engines")


def build(cache, key, content=b"engine"):
    said: list[str] = []
    made: list[bool] = []
    found = cache.get(key, lambda: made.append(True) or content, said.append)
    assert len(said) == len(made)
    return found, "".join(said)


def test_an_engine_is_built_once(cache):
    assert build(cache, KEY) == (b"engine", "building a TensorRT engine, which takes minutes and happens once:"
                                 " there is none for this program yet")  # fmt: skip
    assert build(cache, KEY, b"another") == (b"engine", "")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": "10.7.0"}, "was built for version '10.3.0', this is '10.7.0'"),
        ({"gpu": "Thor sm_110"}, "was built for gpu 'Orin sm_87', this is 'Thor sm_110'"),
        (
            {"precision": "int8", "calibration": "c" * 64},
            "precision 'fp16', this is 'int8', calibration '', this is 'ccc",
        ),
    ],
)
def test_an_engine_of_another_key_is_not_used_and_the_reason_is_one_sentence(cache, change, sentence):
    build(cache, KEY)
    found, said = build(cache, replace(KEY, **change), b"new")
    assert found == b"new"
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_another_programs_engine_is_not_mentioned(cache):
    build(cache, KEY)
    assert "there is none for this program yet" in build(cache, replace(KEY, program="b" * 64), b"new")[1]


@pytest.mark.parametrize("content", [b"", b"engin", b"enginf"])
def test_a_damaged_engine_is_built_again(cache, content):
    build(cache, KEY)
    (cache.folder / f"{KEY.digest}.engine").write_bytes(content)
    found, said = build(cache, KEY, b"new")
    assert found == b"new"
    assert "is damaged" in said


def test_a_card_that_is_no_card_does_not_stop_anything(cache):
    build(cache, KEY)
    (cache.folder / f"{KEY.digest}.json").write_text("[1]")
    assert build(cache, KEY, b"new")[0] == b"new"


def test_the_cache_does_not_grow_for_ever(tmp_path):
    cache = EngineCache(tmp_path / "engines", max_engines=3)
    keys = [replace(KEY, program=letter * 64) for letter in "abcde"]
    for number, key in enumerate(keys):
        build(cache, key)
        os.utime(cache.folder / f"{key.digest}.engine", (number, number))
    assert build(cache, keys[2]) == (b"engine", ""), "which makes it the last used"
    build(cache, replace(KEY, program="f" * 64))
    left = {path.stem for path in cache.folder.glob("*.engine")}
    assert left == {keys[2].digest, keys[4].digest, replace(KEY, program="f" * 64).digest}
    assert {path.stem for path in cache.folder.glob("*.json")} == left


def test_engines_together_stay_below_the_bytes_they_may_have(tmp_path):
    cache = EngineCache(tmp_path / "engines", max_bytes=10)
    for letter in "abc":
        build(cache, replace(KEY, program=letter * 64), b"x" * 6)
    assert len(list(cache.folder.glob("*.engine"))) == 1
    assert build(cache, KEY, b"x" * 60)[0] == b"x" * 60, "the newest is kept whatever its size"


def test_an_engine_that_cannot_be_kept_is_used_all_the_same(tmp_path):
    (tmp_path / "engines").touch()
    said: list[str] = []
    assert EngineCache(tmp_path / "engines").get(KEY, lambda: b"engine", said.append) == b"engine"
    assert "cannot be kept" in said[-1]


def test_an_engine_is_read_once(cache):
    build(cache, KEY)
    engine, opened, watching = f"{KEY.digest}.engine", [], [True]
    sys.addaudithook(lambda event, given: opened.append(str(given[0])) if watching and event == "open" else None)
    build(cache, KEY)
    watching.clear()
    assert len([name for name in opened if name.endswith(engine)]) == 1
