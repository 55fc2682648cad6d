"""What only happens on arm64, on any machine: ``platform.machine`` is told to say so. Real processors are emulated in
``tests/android_demo``."""

from __future__ import annotations

import json
import platform
import shutil

import pytest

from refocus.edge.bundle.load import MANIFEST, load_bundle
from refocus.edge.errors import BundleError, RuntimeUnavailable
from refocus.edge.recognize import self_test
from refocus.edge.recognize.check import check
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.runtimes import RUNTIMES
from refocus.edge.runtimes import onnxruntime as ort


@pytest.fixture
def arm64(monkeypatch, tmp_path):
    """A machine that says it is arm64; where it notes what passed."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "refocus" / "checks"


@pytest.fixture
def wrong(bundle, tmp_path):
    """The tiny bundle, with another expected answer to its first photo: what a processor sees that computes otherwise."""
    shutil.copytree(bundle.folder, tmp_path / "wrong")
    path = tmp_path / "wrong" / MANIFEST
    manifest = json.loads(path.read_text())
    for answers in manifest["heads"][0]["self_test"]["answers"].values():
        answers[0] |= {"label": manifest["heads"][0]["labels"][-1], "margin": 9.0}
    path.write_text(json.dumps(manifest))
    return load_bundle(tmp_path / "wrong")


@pytest.fixture
def tests_run(monkeypatch):
    """Photos answered by self-tests, as a list that grows."""
    run, original = [], self_test.answer_all
    monkeypatch.setattr(self_test, "answer_all", lambda *given: run.append(given) or original(*given))
    return run


def test_a_bundle_that_answers_otherwise_on_arm64_is_refused_before_its_first_answer(wrong, arm64):
    for _ in range(2):
        with pytest.raises(
            BundleError, match=r"fails its self-test on this processor with onnxruntime \d.*self-test/00"
        ):
            Recognizer(wrong)
    assert not arm64.exists()


def test_check_reports_a_wrong_answer_on_arm64_instead_of_stopping_at_it(wrong, arm64):
    [row] = check(wrong)
    assert (row.photos, row.same, len(row.failures)) == (8, 7, 1)


def test_the_self_test_of_arm64_does_not_settle_other_threads_than_those_asked_for(bundle, arm64, threads_asked):
    """ExecuTorch would keep the first number for all of the process."""
    Recognizer(bundle, threads=2).close()
    assert len(threads_asked) == 4, "encoder and head, tested and served"
    assert set(threads_asked) == {2}


def test_other_machines_do_not_test_a_bundle_before_its_first_answer(wrong, tests_run, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    Recognizer(wrong)
    assert not tests_run


def test_a_runtime_that_is_not_there_is_named_on_arm64_too(bundle, arm64, monkeypatch):
    monkeypatch.setitem(RUNTIMES, "onnxruntime", ("refocus.edge.runtimes.none", "cpu"))
    with pytest.raises(RuntimeUnavailable, match="'onnxruntime' is not installed"):
        Recognizer(bundle)
    monkeypatch.delitem(RUNTIMES, "onnxruntime")
    with pytest.raises(BundleError, match="needs the runtime 'onnxruntime'"):
        Recognizer(bundle)


def test_arm64_tests_a_bundle_once_until_runtime_or_system_change(bundle, arm64, tests_run, monkeypatch):
    for change, count in (
        (lambda: None, 1),
        (lambda: None, 1),
        (lambda: monkeypatch.setattr(platform, "release", lambda: "99.1"), 2),
        (lambda: monkeypatch.setattr(ort, "VERSION", "1.28.7"), 3),
        (lambda: None, 3),
    ):
        change()
        Recognizer(bundle)
        assert len(tests_run) == count
    assert len(list(arm64.iterdir())) == 3


def test_a_cache_that_cannot_be_written_does_not_stop_recognition(bundle, arm64, tests_run, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    Recognizer(bundle)
    Recognizer(bundle)
    assert len(tests_run) == 2


@pytest.mark.parametrize("version", ["1.24.1", "1.25.0", "1.26.0", "1.27.3"])
def test_versions_that_are_wrong_with_sme_are_told_to_leave_kleidiai_out(version):
    assert ort.session_entries(version, "aarch64") == {"mlas.disable_kleidiai": "1"}
    assert ort.session_entries(version, "arm64") == {"mlas.disable_kleidiai": "1"}
    assert ort.session_entries(version, "x86_64", "w8a8", "fpu avx2 avx512_vnni") == {}


def test_x86_without_vnni_multiplies_bytes_exactly():
    exact = {"session.x64quantprecision": "1"}
    assert ort.session_entries("1.28.0", "x86_64", "w8a8", "fpu sse4_1 avx2 fma") == exact
    assert ort.session_entries("1.28.0", "AMD64", "w8a8") == exact  # nothing says what the processor has
    assert ort.session_entries("1.28.0", "x86_64", "w8a8", "fpu avx2 avx_vnni") == {}
    assert ort.session_entries("1.28.0", "aarch64", "w8a8", "fp asimd asimddp") == {}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "w8"])
def test_the_entry_for_exact_sums_is_not_set_where_it_ends_the_process(precision):
    assert ort.session_entries("1.28.0", "x86_64", precision) == {}


@pytest.mark.parametrize("version", ["1.20.1", "1.23.2", "1.28.0"])
def test_versions_that_are_right_keep_kleidiai(version):
    assert ort.session_entries(version, "aarch64") == {}


def test_sessions_on_arm64_have_the_entries_of_their_version(bundle, arm64, monkeypatch):
    monkeypatch.setattr(ort, "VERSION", "1.27.0")
    options = Recognizer(bundle).encoder.session.get_session_options()
    assert options.get_session_config_entry("mlas.disable_kleidiai") == "1"
