"""The figures of the service are of a real server, and a request that fails is counted, not left out."""

from __future__ import annotations

import pytest

from studies.bench.rows import service
from studies.report.results_page import results_pages


def test_tasks_that_are_asked_for_at_once_are_all_answered_and_timed(bank_bundle, tmp_path):
    service.main(bank_bundle.folder, "1,4", 2, tmp_path / "service.json")
    [line] = [line for line in results_pages(tmp_path).text.splitlines() if line.startswith("| 4 | 2 |")]
    assert line.split(" | ")[3] == "0", line


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(bank_bundle):
    found = service.fill(bank_bundle.folder, 1)
    assert found["answered"] >= service.QUEUE
    assert found["answered"] + found["refused"] == service.QUEUE + service.BESIDE
    assert found["without_retry_after"] == found["other"] == 0


def test_a_request_that_fails_is_counted(bank_bundle):
    found = service.measure(bank_bundle.folder, 3, 1, target="onnxruntime:never")
    assert found["failed"] == 3


def test_a_bank_that_is_none_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "_START_S", 20.0)
    with (
        pytest.raises(service.RefocusError, match="did not come up"),
        service.serving(tmp_path / "none", "onnxruntime:fp32"),
    ):
        pass
