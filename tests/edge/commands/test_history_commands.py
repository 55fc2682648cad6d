"""``refocus history`` as a person meets it: real processes, one clear line per error."""

from __future__ import annotations

import hashlib
import json
import zipfile

import numpy as np
import pytest

from refocus.edge.bundle.personal_weights import NewWeights
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.personal.store import PersonalWeightStore

PHOTOS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(3)]


@pytest.fixture
def history(refocus, tmp_path):
    """Runs ``refocus history ...`` on a person with three photos."""
    with FeatureHistory(tmp_path / "anna.history.sqlite3") as stored:
        for number, photo in enumerate(PHOTOS):
            stored.append("space of the encoder", photo, np.full(1285, number, "f4"), f"/photos/{number}.png")
        stored.set_label(PHOTOS[1], "alpha")
        stored.set_setting("policy", "newest")

    def run(*words, profile="anna", **more):
        return refocus("history", *words, "--profile", profile, "--profiles", tmp_path, **more)

    return run


def test_a_list_names_photos_and_shows_no_feature(history):
    rows = json.loads(history("list", "--json").stdout)
    assert [row["photo"] for row in rows] == PHOTOS
    assert [row["label"] for row in rows] == [None, "alpha", None]
    assert set(rows[0]) == {"photo", "name", "label", "space", "stored", "bytes"}
    text = history("list").stdout
    assert PHOTOS[1][:12] in text
    assert "/photos/1.png  alpha" in text


def test_stats_count_what_is_there(history, tmp_path):
    found = json.loads(history("stats", "--json").stdout)
    space = {"space": "space of the encoder", "photos": 3, "bytes": 3 * 4 * 1285, "width": 1285}
    assert found["spaces"] == [{**space, "computed_by": {"": 3}}]  # nobody said what computed them
    assert (found["labels"], found["settings"], found["set_aside"]) == (1, {"policy": "newest"}, [])
    assert "3 features of 1285 numbers" in history("stats").stdout


def test_an_export_holds_every_feature(assert_one_clear_line, history, tmp_path):
    done = history("export", tmp_path / "anna.zip", "--json")
    assert json.loads(done.stdout)["features"] == 3, done.stderr
    with zipfile.ZipFile(tmp_path / "anna.zip") as archive:
        assert np.load(archive.open("features/0.npy"))[:, 0].tolist() == [0, 1, 2]
    assert_one_clear_line(history("export", tmp_path / "missing" / "anna.zip"), "nothing was exported")


@pytest.mark.parametrize("out", ["anna.history.sqlite3", "anna.history.sqlite3.lock", "photo.jpg", "anna"])
def test_an_export_to_a_name_that_does_not_say_zip_leaves_the_file_there(assert_one_clear_line, history, tmp_path, out):
    (tmp_path / out).touch()
    before = (tmp_path / out).read_bytes()
    assert_one_clear_line(history("export", tmp_path / out), "expected the name of a file, ending in .zip")
    assert (tmp_path / out).read_bytes() == before
    assert len(json.loads(history("list", "--json").stdout)) == 3


def test_nothing_is_erased_without_a_yes(history):
    refused = history("erase", input="n\n")
    assert refused.returncode == 1
    assert "erase everything of the person, for ever?" in refused.stderr
    assert len(json.loads(history("list", "--json").stdout)) == 3
    assert history("erase", input="y\n").returncode == 0
    assert json.loads(history("list", "--json").stdout) == []


def test_a_person_of_whom_weights_alone_are_kept_is_forgotten(assert_one_clear_line, history, tmp_path):
    store = PersonalWeightStore(tmp_path / "weights")
    store.put("ben", "a" * 64, NewWeights("inputs", "test", {"prompt": np.ones(3, np.float32)}))
    assert_one_clear_line(history("erase", "--classes", "--yes", profile="ben"), "no such profile")
    assert history("erase", profile="ben", input="n\n").returncode == 1
    done = history("erase", "--yes", "--json", profile="ben")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["erased"], found["weights"], store.entries()) == (0, 1, [])
    assert not (tmp_path / "ben.history.sqlite3").exists()
    assert_one_clear_line(history("erase", "--yes", profile="ben"), "no such profile")


def test_one_photo_is_erased_by_its_file_or_the_start_of_its_identity(history, tmp_path):
    (tmp_path / "photo.png").write_bytes(bytes([0]))
    assert json.loads(history("erase", "--photo", tmp_path / "photo.png", "--yes", "--json").stdout)["erased"] == 1
    assert "1 features" in history("erase", "--photo", PHOTOS[2][:8], "--space", "space of", "--yes").stdout
    assert [row["photo"] for row in json.loads(history("list", "--json").stdout)] == [PHOTOS[1]]


def test_a_photo_or_space_that_is_not_there_is_refused(assert_one_clear_line, history):
    assert_one_clear_line(history("erase", "--photo", "zzzzzzzz", "--yes"), "--photo zzzzzzzz is not stored")
    assert_one_clear_line(history("erase", "--space", "zzzzzzzz", "--yes"), "--space zzzzzzzz is not stored")


def test_a_start_that_fits_two_photos_erases_neither(assert_one_clear_line, history, tmp_path):
    with FeatureHistory(tmp_path / "anna.history.sqlite3") as stored:
        stored.append("space of the encoder", PHOTOS[0][:-1] + "x", np.zeros(1285, "f4"))
    assert_one_clear_line(history("erase", "--photo", PHOTOS[0][:8], "--yes"), "could be")


@pytest.mark.parametrize("command", ["list", "stats", "erase"])
def test_a_mistyped_profile_is_refused_and_not_made(assert_one_clear_line, command, history, tmp_path):
    assert_one_clear_line(history(command, profile="ana"), "--profile ana", "there are: anna")
    assert not list(tmp_path.glob("ana.*"))


def test_a_damaged_file_is_reported_and_what_is_left_is_listed(history, tmp_path):
    with (tmp_path / "anna.history.sqlite3").open("r+b") as file:
        file.write(bytes(4096))
    done = history("list", "--json")
    assert "3 features, 1 labels and 1 settings were kept" in done.stderr
    assert len(json.loads(done.stdout)) == 3
    (aside,) = json.loads(history("stats", "--json").stdout)["set_aside"]
    assert aside.endswith("anna.history.sqlite3.damaged-1")
