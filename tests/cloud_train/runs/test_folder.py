"""Results of a run are computed once, whoever asks, and a file that exists is whole."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from refocus.cloud_train.errors import DataError
from refocus.cloud_train.runs.folder import once


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("a.json", {"x": [1, 2]}),
        ("a.npy", np.arange(3)),
        ("a.npz", {"own/0": np.arange(2), "own/15": np.arange(4)}),
        ("a.safetensors", {"rows": torch.arange(6.0).view(2, 3).T}),
    ],
)
def test_a_result_is_computed_once_and_read_as_it_was(name, result, tmp_path):
    path = tmp_path / "new" / name
    for compute in (lambda: result, lambda: pytest.fail("computed again")):
        stored = once(path, compute)
        if isinstance(result, dict):
            assert stored.keys() == result.keys()
            assert all(np.array_equal(stored[key], result[key]) for key in result)
        else:
            assert np.array_equal(stored, result)


def test_others_wait_for_whoever_computes(tmp_path):
    began, computed, results = threading.Event(), [], []

    def compute():
        began.wait(5)
        computed.append(1)
        return {"x": 1}

    threads = [threading.Thread(target=lambda: results.append(once(tmp_path / "a.json", compute))) for _ in range(3)]
    for thread in threads:
        thread.start()
    began.set()
    for thread in threads:
        thread.join()
    assert (computed, results) == ([1], [{"x": 1}] * 3)


def test_a_computation_that_fails_leaves_nothing_and_the_next_one_goes_on(tmp_path):
    (tmp_path / "a.tmp").write_text("half of an earlier")
    with pytest.raises(ZeroDivisionError):
        once(tmp_path / "a.json", lambda: 1 / 0)
    assert not (tmp_path / "a.json").exists()
    assert once(tmp_path / "a.json", lambda: {"x": 2}) == {"x": 2}


@pytest.mark.parametrize("content", ["null", "{}", "[", ""])
def test_a_result_that_holds_nothing_is_named_as_damaged(content, tmp_path):
    (tmp_path / "point.json").write_text(content)
    with pytest.raises(DataError, match=r"point\.json is damaged .*delete it"):
        once(tmp_path / "point.json", dict)
