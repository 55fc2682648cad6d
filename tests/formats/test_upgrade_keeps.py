"""refocus upgrade changes heads, and nothing else that a bundle is."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from refocus.edge.bundle.load import MANIFEST, load_bundle, upgrade
from refocus.edge.errors import BundleError
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.taper.bank import Bank


def heads_for(old, installed, folder, name="window"):
    """A bundle with the window head alone, as if it had been trained on the features of the installed bundle."""
    shutil.copytree(old / "bundles" / "window", folder)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    (artifact,) = [a for a in manifest["artifacts"] if a["role"] == "head"]
    space = installed.artifact("encoder", "onnxruntime").feature_space
    manifest["artifacts"] = [{**artifact, "accepts": [space], "head": name}]
    manifest["heads"][0] |= {"name": name, "self_test": None}
    manifest["self_test_photos"] = []
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return load_bundle(folder)


def test_an_upgraded_bank_is_still_a_bank(old, tmp_path):
    installed = load_bundle(old / "bundles" / "bank")
    upgraded = upgrade(installed, heads_for(old, installed, tmp_path / "heads"))
    assert [head.name for head in upgraded.manifest.heads] == ["window", "taper"]
    assert upgraded.manifest.bank == installed.manifest.bank
    bank = Bank.open(upgraded.folder)
    bank.condense(bank.task(["fox", "otter"]), tmp_path / "foxes")
    made = load_bundle(tmp_path / "foxes")
    assert [head.name for head in made.manifest.heads] == ["taper"], "no other head accepts mixed features"
    with Recognizer(made, None, threads=1) as recognizer:
        assert np.isfinite(recognizer.recognize((old / "photos" / "0.png").read_bytes()).logits).all()


def test_a_head_cannot_replace_the_one_that_a_bank_mixes(old, tmp_path):
    installed = load_bundle(old / "bundles" / "bank")
    with pytest.raises(BundleError, match="the head taper has the name of the bank's own head.*under another name"):
        upgrade(installed, heads_for(old, installed, tmp_path / "heads", "taper"))
    assert load_bundle(installed.folder).manifest == installed.manifest


def test_an_upgraded_personal_bundle_still_says_its_task(old, tmp_path):
    bank = Bank.open(old / "bundles" / "bank")
    bank.condense(bank.task(["fox", "otter"]), tmp_path / "foxes")
    installed = load_bundle(tmp_path / "foxes")
    upgraded = upgrade(installed, heads_for(old, installed, tmp_path / "heads"))
    assert upgraded.manifest.task == installed.manifest.task
    assert upgraded.manifest.task.classes == ("fox", "otter")
