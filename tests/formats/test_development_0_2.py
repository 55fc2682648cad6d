"""Bundles, checkpoints and runs that development version 0.2.0.dev0 made, before research code moved out."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from refocus import Recognizer, check, load_bundle
from refocus.cloud_train.settings import read_settings
from refocus.cloud_train.train import (
    FederatedSettings,
    IciiaSettings,
    TaperSettings,
    train_federated,
    train_iciia,
    train_taper,
)
from refocus.edge.taper.bank import Bank
from refocus.export.program import load_checkpoint
from refocus.export.run import ExportSettings, export
from studies.report.results_page import results_pages

FILES = Path(__file__).parents[1] / "fixtures" / "0.2.dev" / "files.tar.xz"
LETTERS = ("latin capital letter a", "latin capital letter b", "greek small letter alpha")
SETTINGS = {"iciia/run.toml": IciiaSettings, "iciia/run-2.toml": IciiaSettings, "taper/run.toml": TaperSettings,
            "federated/run.toml": FederatedSettings}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Everything that was made, for tests that only read."""
    folder = tmp_path_factory.mktemp("development-0.2")
    with tarfile.open(FILES) as archive:
        archive.extractall(folder)
    return folder


def assert_answers(bundle: Path, made: Path, tmp_path: Path, recorded: str) -> None:
    """Check that photos which a new profile sees one after the other get the answers that were recorded."""
    expected = json.loads((made / "answers.json").read_text())[recorded]
    with Recognizer(load_bundle(bundle), tmp_path / "anna.history.sqlite3", threads=1) as recognizer:
        for number, (photo, answer) in enumerate(zip(sorted((made / "photos").iterdir()), expected, strict=True)):
            found = recognizer.recognize(photo.read_bytes())
            if found.shared is not None and number:  # shares of version 1 get the estimate of today
                assert found.shared.estimate.photos == number
                continue
            assert list(found.labels[:3]) == answer["labels"]
            np.testing.assert_allclose(found.logits, answer["logits"], atol=1e-3)


@pytest.mark.parametrize("name", ["window", "streaming", "condensed", "shares"])
def test_a_bundle_passes_its_self_test_and_answers_as_before(name, made, tmp_path):
    if name != "condensed":  # its bank has the self-test
        rows = check(load_bundle(made / "bundles" / name))
        assert rows
        assert not any(row.failures for row in rows)
    assert_answers(made / "bundles" / name, made, tmp_path, name)


def test_a_bank_is_condensed_to_the_same_answers(made, tmp_path):
    bank = Bank.open(made / "bundles" / "bank")
    bank.condense(bank.task(list(LETTERS)), tmp_path / "letters")
    assert_answers(tmp_path / "letters", made, tmp_path, "condensed")


@pytest.mark.slow
def test_every_checkpoint_is_a_program_and_a_head_is_exported_to_the_same_answers(made, tmp_path):
    heads = sorted((made / "iciia" / "seed-0").glob("iciia_*.safetensors"))
    for head in heads:
        assert load_checkpoint(head).program().personalisation["form"] in ("window", "streaming")
        assert load_checkpoint(head).required("encoder").program().preprocessing.crop == 32
    assert len(load_checkpoint(made / "taper" / "seed-0" / "taper.safetensors").weights["rows"]) == 2
    delivered = [*(made / "federated" / "seed-0").glob("*/deliver/*.safetensors")]
    assert all(load_checkpoint(path).program() for path in delivered)
    assert delivered
    export(ExportSettings((str(heads[0]),), tmp_path / "bundle", ("onnx:fp32",), personalise="head"))
    assert_answers(tmp_path / "bundle", made, tmp_path, "window")


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_toml_is_read_as_the_settings_of_its_run(name, made):
    settings = read_settings(SETTINGS[name](), made / name)
    assert settings != SETTINGS[name]()
    assert settings.seeds == (0,)


def files_of(run: Path) -> dict[str, tuple[int, bytes]]:
    """Return the time and the contents of a run's files by name, locks left out."""
    return {
        str(path.relative_to(run)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in run.rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_a_finished_run_is_found_finished(name, made, tmp_path):
    run = Path(shutil.copytree((made / name).parent, tmp_path / "run"))
    before = files_of(run)
    train = {IciiaSettings: train_iciia, TaperSettings: train_taper, FederatedSettings: train_federated}[SETTINGS[name]]
    train(read_settings(SETTINGS[name](), run / Path(name).name), run)
    after = files_of(run)
    study = "studies/federated.json"  # written again, without the command that this call does not give
    if study in before:
        old, new = (json.loads(files.pop(study)[1]) for files in (before, after))
        assert new["rows"] == old["rows"]
    assert sorted(after) == sorted(before)
    assert [path for path, found in after.items() if found != before[path]] == []


def test_documents_of_the_runs_are_shown(made, tmp_path):
    documents = tmp_path / "results"
    documents.mkdir()
    shutil.copy(made / "iciia" / "results.json", documents / "iciia.json")
    shutil.copy(made / "federated" / "studies" / "federated.json", documents)
    page = "\n".join(results_pages(documents).topics.values())
    assert "## iciia" in page
    assert "## federated" in page
