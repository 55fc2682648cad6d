"""The likely classes of stored photos: never another photo's, never another classifier's, gone with their photo."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from pathlib import Path

import numpy as np
import pytest

from refocus.edge.errors import HistoryError
from refocus.edge.history import rows
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.history.likely_classes import LIKELY_TABLES, Classifier, LikelyClasses, classifier_seal, likely_seal

D, K = 8, 3
OURS = Classifier("a" * 64, tuple(f"class {number}" for number in range(50)))
THEIRS = Classifier("b" * 64, OURS.labels)


def likely(number):
    return LikelyClasses(np.arange(number, number + K), np.array([0.5, 0.25, number / 256], dtype=np.float32))


def store(history, numbers, space="s", by=OURS):
    for number in numbers:
        history.append(space, f"photo{number}", np.full(D, number, np.float32), likely=by and (by, likely(number)))


def assert_right(found):
    """Each photo has its own classes."""
    numbers = [int(photo.removeprefix("photo")) for photo in found.photos]
    np.testing.assert_array_equal(found.classes, np.add.outer(numbers, np.arange(K)).reshape(-1, K))
    np.testing.assert_array_equal(found.probabilities[:, 2], np.array(numbers, dtype=np.float32) / 256)
    return numbers


@pytest.fixture
def history(tmp_path):
    with FeatureHistory(tmp_path / "p.sqlite3", capacity=5, protect=1) as opened:
        yield opened


def bytes_of(history):
    files = (history.path, history.path.with_name(history.path.name + "-wal"))
    return b"".join(file.read_bytes() for file in files if file.exists())


def test_they_come_back_in_order_after_a_restart(history):
    store(history, range(4))
    with FeatureHistory(history.path) as again:
        found = again.likely("s", OURS, K)
        assert assert_right(found) == [0, 1, 2, 3]
        assert not found.missing
        assert assert_right(again.likely("s", OURS, K, before="photo2")) == [0, 1]
        assert again.likely_by("s") == OURS


def test_a_profile_without_them_has_no_tables_for_them_and_says_what_is_missing(history):
    store(history, range(3), by=None)
    found = history.likely("s", OURS, K)
    assert (found.photos, found.classes.shape, found.missing) == ((), (0, K), ("photo0", "photo1", "photo2"))
    assert history.likely_by("s") is None
    assert not history._file.read("select 1 from sqlite_master where name in ('likely', 'classifier')")


@pytest.mark.parametrize("policy", ["oldest", "redundant", "reservoir"])
def test_an_evicted_photo_takes_its_classes_along(tmp_path, policy):
    with FeatureHistory(tmp_path / "p.sqlite3", capacity=5, protect=1, eviction=policy) as history:
        store(history, range(12))
        store(history, range(12, 15), by=None)  # these take slots whose photos had classes
        found = history.likely("s", OURS, K)
        stored = history.recall("s", 5, D).photos
        assert set(assert_right(found)) == {int(p[5:]) for p in stored if int(p[5:]) < 12}
        assert set(found.missing) == set(stored) - set(found.photos)
        assert history._file.read("select count(*) from likely")[0][0] == len(found.photos)


def test_erasing_a_photo_erases_its_classes_from_the_file(history):
    store(history, range(4))
    value = likely(2).value
    assert value in bytes_of(history)
    history.erase(photo="photo2")
    assert assert_right(history.likely("s", OURS, K)) == [0, 1, 3]
    assert value not in bytes_of(history)


@pytest.mark.parametrize("what", ["space", "everything"])
def test_erasing_a_space_or_everything_erases_what_is_known_of_its_classes(history, what):
    store(history, range(3))
    store(history, range(10, 12), space="other")
    history.erase(**({"space": "s"} if what == "space" else {}))
    assert history.likely_by("s") is None
    assert likely(1).value not in bytes_of(history)
    kept = assert_right(history.likely("other", OURS, K))
    assert kept == ([10, 11] if what == "space" else [])
    if what == "everything":
        assert b"class 49" not in bytes_of(history)


def test_a_program_that_does_not_know_them_erases_and_evicts_them_too(history):
    """Refocus 0.1 works on in the file: SQLite itself keeps the two tables together."""
    store(history, range(5))
    history.close()
    database = sqlite3.connect(history.path)
    database.execute("pragma secure_delete=on")
    database.execute("delete from feature where photo = 'photo1'")
    database.execute("update feature set photo = 'new', sequence = 9 where photo = 'photo3'")
    database.commit()
    database.close()
    assert likely(1).value not in history.path.read_bytes()
    assert likely(3).value not in history.path.read_bytes()
    database = sqlite3.connect(history.path)
    assert database.execute("select count(*) from likely").fetchone() == (3,)
    database.close()


def test_another_classifiers_are_not_taken_and_make_room(history):
    store(history, range(3))
    found = history.likely("s", THEIRS, K)
    assert (found.photos, found.missing) == ((), ("photo0", "photo1", "photo2"))
    history.put_likely("s", THEIRS, {"photo1": likely(1)})
    assert assert_right(history.likely("s", THEIRS, K)) == [1]
    assert history.likely("s", OURS, K).photos == ()
    assert history.likely_by("s") == THEIRS
    assert history._file.read("select count(*) from likely")[0][0] == 1


def test_those_of_photos_that_are_gone_are_not_stored(history):
    store(history, range(2), by=None)
    history.put_likely("s", OURS, {"photo0": likely(0), "photo7": likely(7)})
    assert history.likely("s", OURS, K)[0::4] == (("photo0",), ("photo0", "photo1"))


@pytest.mark.parametrize(
    "change",
    [
        "update likely set value = x'00'",
        "update likely set value = zeroblob(28)",
        "update likely set value = 'text'",
        "update likely set seal = x'00000000'",
        "update likely set classifier = 'c'",
        "update likely set value = (select value from likely where slot = 3), seal = (select seal from likely where slot = 3)",
        "delete from likely where slot <> 3",
    ],
)
def test_a_damaged_row_counts_as_missing(history, change):
    store(history, range(4))
    history._file._database.execute(change)
    found = history.likely("s", OURS, K)
    assert set(assert_right(found)) <= {2}
    assert {*found.photos, *found.missing} == {f"photo{number}" for number in range(4)}
    history.put_likely("s", OURS, {photo: likely(int(photo[5:])) for photo in found.missing})
    assert assert_right(history.likely("s", OURS, K)) == [0, 1, 2, 3]
    assert history.damaged == 0


def test_classes_that_there_are_not_and_numbers_that_are_none_count_as_missing(history):
    store(history, range(3), by=None)
    wild = {
        "photo0": LikelyClasses(np.array([0, 1, 50]), np.ones(3)),
        "photo1": LikelyClasses(np.arange(3), np.full(3, np.nan)),
    }
    history.put_likely("s", OURS, {**wild, "photo2": likely(2)})
    assert history.likely("s", OURS, K).photos == ("photo2",)


def test_a_recovered_profile_lacks_them_and_is_whole_otherwise(history):
    store(history, range(5))
    history.close()
    content = bytearray(history.path.read_bytes())
    content[:100] = bytes(100)
    history.path.write_bytes(content)
    with FeatureHistory(history.path, capacity=5) as again:
        assert again.recovered is not None
        assert (again.recovered.features, *again.recovered.lost) == (5, 0, 0, 0)
        assert len(again.likely("s", OURS, K).missing) == 5
        again.put_likely("s", OURS, {f"photo{number}": likely(number) for number in range(5)})
        assert assert_right(again.likely("s", OURS, K)) == [*range(5)]


def test_a_takeout_names_them(history, tmp_path):
    store(history, range(2))
    store(history, [2], by=None)
    history.export(tmp_path / "out.zip")
    document = json.loads(zipfile.ZipFile(tmp_path / "out.zip").read("entries.json"))
    photos = document["spaces"][0]["photos"]
    assert photos[1]["likely"] == [["class 1", 0.5], ["class 2", 0.25], ["class 3", 1 / 256]]
    assert "likely" not in photos[2]


def test_two_processes_that_fill_the_same_profile_agree(tmp_path):
    """Each writer claims the space anew; neither takes the other's rows for its own."""
    with FeatureHistory(tmp_path / "p.sqlite3") as one, FeatureHistory(tmp_path / "p.sqlite3") as other:
        store(one, range(3))
        store(other, range(3, 5), by=THEIRS)
        store(one, [5])
        assert assert_right(one.likely("s", OURS, K)) == [5]
        assert other.likely("s", THEIRS, K).photos == ()
        store(other, range(6, 8), by=OURS)
        assert assert_right(one.likely("s", OURS, K)) == [5, 6, 7]


def test_an_append_that_cannot_be_written_leaves_neither_feature_nor_classes(history):
    store(history, range(2))
    path = history.path
    history._file._database.execute(
        "create trigger full before insert on likely begin select raise(abort, 'full'); end"
    )
    with pytest.raises(HistoryError):
        store(history, [2])
    assert history.count("s") == 2
    assert path.exists()


def test_the_page_of_profiles_says_how_they_are_stored():
    page = (Path(__file__).parents[3] / "docs" / "formats" / "profile.md").read_text()
    plain = " ".join(page.split())
    for statement in LIKELY_TABLES:
        assert statement in plain
    assert f"`{likely_seal('c', 's', 1, 'p', LikelyClasses(np.array([2]), np.array([0.5])).value).hex()}`" in page
    assert f"`{classifier_seal('s', 'c', json.dumps(['yes', 'no'])).hex()}`" in page


def test_a_space_that_a_finished_move_erased_leaves_no_classifier_for_the_next_bundle(history):
    store(history, range(3))
    store(history, range(3), space="t", by=THEIRS)
    history.transaction(lambda database, _: rows.forget(database, "s"))
    assert history.likely_by("s") is None
    assert history.likely_by("t") == THEIRS
