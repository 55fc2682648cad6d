"""Profiles that 0.2.0.dev0 left with an append journal open with every row, and report exactly what is lost."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from refocus.edge.history.damage import Unwritable
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.history.likely_classes import Classifier
from refocus.edge.history.profile_file import ProfileFile
from refocus.edge.history.read_only import ReadOnlyFile

FILES = Path(__file__).parents[1] / "fixtures" / "0.2.dev" / "profiles.tar.gz"
with tarfile.open(FILES) as archive:
    NAMES = sorted(Path(name).parent.name for name in archive.getnames() if name.endswith("expected.json"))
BY = Classifier("c" * 64, ("fox", "badger", "otter"))
FEATURES = "select slot, space, photo, name, value from feature order by space, sequence"
LIKELY = "select likely.value from likely where slot = ? and classifier = ?"
PATHS = "select path from computed where slot = ? or slot < 0 and space = ? order by slot desc"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("with-journals")
    with tarfile.open(FILES) as archive:
        archive.extractall(folder)  # our own file; the filter argument is not in every Python 3.10
    return folder


def found_in(file):
    """Return every row of an open profile, as ``expected.json`` lists them."""
    photos = []
    tables = {name for (name,) in file.read("select name from sqlite_master where type = 'table'")}
    for slot, space, photo, name, value in file.read(FEATURES):
        likely = file.read(LIKELY, (slot, BY.identity)) if "likely" in tables else []
        paths = file.read(PATHS, (slot, space)) if "computed" in tables else []
        photos.append({"space": space, "photo": photo, "name": name, "value": value.hex(),
                       "path": paths[0][0] if paths else "", "likely": likely[0][0].hex() if likely else None})  # fmt: skip
    labels = dict(file.read("select photo, label from label"))
    return {"photos": photos, "labels": labels, "settings": dict(file.read("select name, value from setting"))}


def expected_in(folder):
    expected = json.loads((folder / "expected.json").read_text())
    expected.pop("killed")
    lost = expected.pop("lost")
    return expected, lost


def without_derived(rows):
    """Return rows without what a recovery of the database leaves out, because it can be computed again."""
    return {**rows, "photos": [{**photo, "path": "", "likely": None} for photo in rows["photos"]]}


def lost_of(file):
    return file.recovered.lost.features if file.recovered is not None else 0


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_a_profile_with_a_journal_is_lost_when_it_is_opened(name, unpacked, tmp_path):
    folder = shutil.copytree(unpacked / name, tmp_path / name)
    expected, lost = expected_in(folder)
    compared = without_derived if name == "database-damaged" else dict
    file = ProfileFile(folder / "p")
    assert compared(found_in(file)) == compared(expected)
    assert lost_of(file) == lost
    file.close()
    assert not (folder / "p.journal").exists()
    again = ProfileFile(folder / "p")
    assert compared(found_in(again)) == compared(expected)
    assert again.recovered is None
    again.close()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "database-damaged"])
def test_a_row_of_a_profile_with_a_journal_is_missing_where_nothing_can_be_written(name, unpacked, tmp_path):
    folder = shutil.copytree(unpacked / name, tmp_path / name)
    expected, lost = expected_in(folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    file = ReadOnlyFile(folder / "p", Unwritable("a read-only disk"))
    assert found_in(file) == expected
    assert lost_of(file) == lost
    file.close()
    after = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}
    assert after == before


@pytest.mark.parametrize("name", NAMES)
def test_photos_appended_after_a_journal_come_before_its_photos(name, unpacked, tmp_path):
    folder = shutil.copytree(unpacked / name, tmp_path / name)
    space = "a" * 64
    held = [photo["photo"] for photo in expected_in(folder)[0]["photos"] if photo["space"] == space]
    with FeatureHistory(folder / "p", capacity=1000) as history:
        for number in range(1000, 1040):
            history.append(space, str(number), np.full(12, number, np.float32))
    with FeatureHistory(folder / "p", capacity=1000) as history:
        assert [*history.recall(space, 1000, 12).photos] == held + [str(number) for number in range(1000, 1040)]
        assert history.recovered is None
