"""Engines belong to one GPU and one version: never used elsewhere, never lost silently. No GPU is needed for that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge.runtimes.engines import EngineCache, EngineKey

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
    assert build(cache, KEY) == (b"engine", "refocus: building a TensorRT engine, which takes minutes and happens once:"
                                 " there is none for this program yet\n")  # fmt: skip
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
