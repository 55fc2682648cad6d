"""What computed a feature is recorded beside it, and features of two numeric paths are told apart."""

from __future__ import annotations

import json
import sqlite3
import zipfile

import numpy as np

from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.history.rows import path_seal

CPU, GPU = (
    "onnxruntime 1.28.0 CPUExecutionProvider x86_64",
    "onnxruntime 1.28.0 CUDAExecutionProvider x86_64 use_tf32=1",
)


def store(history, numbers, path, space="s"):
    if path:
        history.computed_by(space, path)
    for number in numbers:
        history.append(space, f"photo{number}", np.full(4, number, np.float32))


def exceptions(path):
    with sqlite3.connect(path) as database:
        return database.execute("select count(*) from computed where slot >= 0").fetchone()[0]


def test_features_of_two_paths_are_counted_apart_and_one_path_costs_no_row_per_photo(tmp_path):
    path = tmp_path / "a.history.sqlite3"
    with FeatureHistory(path) as history:
        store(history, range(5), CPU)
    assert exceptions(path) == 0
    with FeatureHistory(path) as history:
        store(history, range(5, 8), GPU)
        store(history, range(8, 9), CPU)
        assert history.numeric_paths("s") == {CPU: 6, GPU: 3}
        history.erase(photo="photo6")
        assert history.numeric_paths("s") == {CPU: 6, GPU: 2}
    assert exceptions(path) == 2


def test_what_was_stored_before_is_unknown(tmp_path):
    with FeatureHistory(tmp_path / "a.history.sqlite3") as history:
        store(history, range(3), "")
        assert history.numeric_paths("s") == {"": 3}
        store(history, range(3, 5), CPU)
        assert history.numeric_paths("s") == {"": 3, CPU: 2}
        store(history, range(2), GPU, "other")
        assert history.numeric_paths("other") == {GPU: 2}
        history.erase(space="s")
        assert history.numeric_paths("s") == {}
        assert history.numeric_paths("other") == {GPU: 2}


def test_a_slot_that_is_written_again_takes_the_path_of_its_new_photo(tmp_path):
    with FeatureHistory(tmp_path / "a.history.sqlite3", capacity=4, protect=1) as history:
        store(history, range(4), CPU)
        store(history, range(4, 6), GPU)
        assert history.numeric_paths("s") == {CPU: 2, GPU: 2}
        store(history, range(6, 10), CPU)
        assert history.numeric_paths("s") == {CPU: 4}


def test_a_damaged_row_counts_as_unknown_and_stops_nothing(tmp_path):
    path = tmp_path / "a.history.sqlite3"
    with FeatureHistory(path) as history:
        store(history, range(3), CPU)
        store(history, range(3, 4), GPU)
    with sqlite3.connect(path) as database:
        database.execute("update computed set path = 'something else' where slot >= 0")
    with FeatureHistory(path) as history:
        assert history.numeric_paths("s") == {CPU: 3, "": 1}
        store(history, range(4, 5), GPU)
        assert history.recovered is None
        assert len(history.entries()) == 5


def test_the_takeout_says_what_computed_the_features(tmp_path):
    with FeatureHistory(tmp_path / "a.history.sqlite3") as history:
        store(history, range(3), CPU)
        history.export(tmp_path / "out.zip")
    document = json.loads(zipfile.ZipFile(tmp_path / "out.zip").read("entries.json"))
    assert document["spaces"][0]["computed"] == {CPU: 3}


def test_the_seal_is_that_of_the_page_of_the_format():
    assert path_seal(-1, "s", "p").hex() == "200fbd64"
