"""The feature history: what is acknowledged stays, what is foreign stays out, what is damaged is set aside."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
import zlib
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

from refocus.edge.errors import HistoryError, RefocusError
from refocus.edge.history import rows as placing
from refocus.edge.history import witness
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.history.opening import POWER_CUT_LOSS
from refocus.edge.history.schema import pair_seal

D = 8


def connection(history):
    return history._file._database


def feature(value: float) -> np.ndarray:
    return np.full(D, value, dtype=np.float32)


@pytest.fixture
def history(tmp_path):
    with FeatureHistory(tmp_path / "p.sqlite3", capacity=5) as opened:
        yield opened


def test_features_come_back_oldest_first_and_bit_for_bit(history):
    rows = np.random.default_rng(0).normal(size=(4, D)).astype(np.float32)
    for number, row in enumerate(rows):
        history.append("s", f"photo{number}", row)
    np.testing.assert_array_equal(history.recent("s", 3, D), rows[1:])


def test_the_oldest_features_go_when_the_capacity_is_reached(history):
    for number in range(9):
        history.append("s", f"photo{number}", feature(number))
    assert history.count("s") == 5
    assert history.recent("s", 100, D)[:, 0].tolist() == [4, 5, 6, 7, 8]


def test_features_of_another_encoder_are_never_returned(history):
    history.append("old encoder", "photo", feature(1))
    assert history.recent("new encoder", 10, D).shape == (0, D)


def test_features_of_another_encoder_do_not_push_out_ours(history):
    history.append("ours", "photo", feature(1))
    for number in range(9):
        history.append("theirs", f"photo{number}", feature(number))
    assert history.count("ours") == 1


def test_the_same_photo_twice_is_one_entry(history):
    history.append("s", "photo", feature(1))
    history.append("s", "photo", feature(2))
    assert history.recent("s", 10, D)[:, 0].tolist() == [1]


def test_a_stored_photo_meets_only_the_photos_before_it(history):
    for number in range(4):
        history.append("s", f"photo{number}", feature(number))
    assert history.recent("s", 10, D, before="photo2")[:, 0].tolist() == [0, 1]


def test_a_row_with_a_flipped_bit_is_left_out_and_counted(history):
    for number in range(3):
        history.append("s", f"photo{number}", feature(number))
    with sqlite3.connect(history.path) as other:
        other.execute("update feature set value = zeroblob(?) where photo = 'photo1'", (4 * D,))
    other.close()
    assert history.recent("s", 10, D)[:, 0].tolist() == [0, 2]
    assert history.damaged == 1


def test_features_of_another_width_are_refused_and_none_is_deleted(tmp_path):
    with FeatureHistory(tmp_path / "p.sqlite3") as history:
        fill(history, range(6))
        with pytest.raises(HistoryError, match="space s has features of 8 numbers in this profile, expected 7"):
            history.append("s", "narrow", np.ones(D - 1, dtype=np.float32))
        for read in (
            lambda: history.recall("s", 3, D - 1),
            lambda: history.recall("s", 3, D - 1, before="photo4"),
            lambda: [*history.iterate("s", D - 1)],
            lambda: history.rows("s", ["photo2"], D - 1),
        ):
            with pytest.raises(HistoryError, match="features of 8 numbers in this profile, expected 7; use the bundle"):
                read()
        fill(history, [6])
        assert numbers(history) == list(range(7))
        history.append("other", "narrow", np.ones(D - 1, dtype=np.float32))
        assert (history.count("s"), history.damaged, history.recovered) == (7, 0, None)


def test_rows_of_another_width_that_are_there_hide_no_others_and_stay(tmp_path):
    """As a release before stored them."""
    with FeatureHistory(tmp_path / "p.sqlite3") as history:
        fill(history, range(5))
        for number in (5, 6, 7):
            values = {"s": history.value(np.full(D + 1, number, dtype=np.float32))}
            history.transaction(
                lambda database, bounds, values=values, number=number: placing.append(
                    database, bounds, f"wide{number}", values, "", any_width=True
                )
            )
        assert history.recent("s", 2, D)[:, 0].tolist() == [3, 4]
        assert history.recent("s", 2, D + 1)[:, 0].tolist() == [6, 7]
        fill(history, range(10, 14))
        fill(history, range(20, 22), width=D + 1)
        assert numbers(history) == [*range(5), *range(10, 14)]
        assert [len(part.photos) for part in history.iterate("s", D, chunk=2)] == [2, 2, 2, 2, 1]
        assert history.rows("s", ["wide6", "photo1"], D).photos == ("photo1",)
        history.export(tmp_path / "out.zip")
        assert (history.count("s"), history.damaged, history.recovered) == (14, 0, None)
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        listed = json.loads(archive.read("entries.json"))["spaces"]
        for one, width in zip(listed, (D, D + 1), strict=True):
            with archive.open(one["features"]) as file:
                assert np.load(file).shape == (len(one["photos"]), width)
    assert [(one["space"], len(one["photos"])) for one in listed] == [("s", 9), ("s", 5)]


def test_damaged_rows_do_not_hide_whole_ones_and_can_be_stored_again(history):
    for number in range(5):
        history.append("s", f"photo{number}", feature(number))
    with sqlite3.connect(history.path) as other:
        other.execute("update feature set seal = x'00' where photo in ('photo3', 'photo4')")
    other.close()
    assert history.recent("s", 2, D)[:, 0].tolist() == [1, 2]
    history.append("s", "photo4", feature(4))
    assert history.recent("s", 2, D)[:, 0].tolist() == [2, 4]


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "p.sqlite3"
    with sqlite3.connect(path) as database:
        database.execute("create table recipes (name text)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="database of another program"):
        FeatureHistory(path)
    assert path.read_bytes() == before


def test_an_erase_that_leaves_bytes_behind_says_so(history):
    history.append("s", "photo", feature(1))
    reader = sqlite3.connect(history.path, isolation_level=None)
    reader.execute("begin")
    reader.execute("select * from feature").fetchone()
    connection(history).execute("pragma busy_timeout=50")
    with pytest.raises(HistoryError, match="erase again"):
        history.erase()
    reader.close()
    history.erase()


def test_use_from_another_thread_is_not_blamed_on_the_disk(history):
    caught = []

    def use():
        try:
            history.append("s", "photo", feature(1))
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert isinstance(caught[0], sqlite3.ProgrammingError)


def test_erase_leaves_no_feature_in_the_file(tmp_path):
    with FeatureHistory(tmp_path / "p.sqlite3") as history:
        value = np.arange(D, dtype=np.float32) + 12345.5
        history.append("s", "photo", value)
        history.erase()
        assert history.count("s") == 0
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert value.tobytes() not in left


def test_only_the_owner_can_read_a_history(history):
    history.append("s", "photo", feature(1))
    for path in history.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.parametrize("schema", [1, 2])
def test_a_history_of_an_older_schema_is_upgraded_and_keeps_everything(schema, tmp_path):
    path = tmp_path / "p.sqlite3"
    make_older_file(path, schema, {"first": 1, "second": 2})
    with FeatureHistory(path) as upgraded:
        upgraded.append("s", "third", feature(3), "/photos/third.jpg")
        past = upgraded.recall("s", 9, D)
        assert upgraded.count("s") == 3
        assert upgraded.entries()[0].stored is None
    assert past.photos == ("first", "second", "third")
    assert past.names == (*(["", ""] if schema == 1 else ["a name", "a name"]), "/photos/third.jpg")
    assert past.features[:, 0].tolist() == [1, 2, 3]


def test_a_damaged_row_of_an_older_schema_is_not_taken_over(tmp_path):
    path = tmp_path / "p.sqlite3"
    make_older_file(path, 2, {"first": 1, "second": 2})
    with sqlite3.connect(path) as database:
        database.execute("update feature set crc = crc + 1 where photo = 'first'")
    database.close()
    with FeatureHistory(path) as upgraded:
        assert upgraded.recall("s", 9, D).photos == ("second",)
        assert upgraded.damaged == 1


def make_older_file(path, schema, photos):
    """What schema 1 and 2 looked like."""
    with sqlite3.connect(path) as database:
        database.execute("pragma journal_mode=wal")
        database.execute(
            "create table feature (sequence integer primary key autoincrement, space text not null, photo text not"
            " null, crc integer not null, value blob not null"
            + (", name text not null default ''" if schema == 2 else "")
            + ", unique (space, photo))"
        )
        for photo, number in photos.items():
            value = feature(number).tobytes()
            row = ("s", photo, zlib.crc32(value), value, *(["a name"] if schema == 2 else []))
            marks = ", ".join("?" * len(row))
            columns = "space, photo, crc, value" + (", name" if schema == 2 else "")
            database.execute(f"insert into feature ({columns}) values ({marks})", row)
        database.execute(f"pragma user_version={schema}")
        database.execute(f"pragma application_id={0x52664373}")
    database.close()


def test_a_history_of_a_newer_schema_is_refused_and_not_touched(tmp_path):
    path = tmp_path / "p.sqlite3"
    FeatureHistory(path).close()
    with sqlite3.connect(path) as database:
        database.execute("pragma user_version=99")
        database.execute("update about set value = '99', seal = ?", (pair_seal("about", "schema", "99"),))
    database.close()  # which writes the log back
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="schema 99.*update refocus"):
        FeatureHistory(path)
    overwrite(path, 0, bytes(100))
    with pytest.raises(HistoryError, match="schema 99.*update refocus"):
        FeatureHistory(path)
    overwrite(path, 0, before[:100])
    assert path.read_bytes() == before


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="cannot hold a history"):
        FeatureHistory(tmp_path / "file" / "p.sqlite3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 0}, "capacity 0"),
        ({"eviction": "newest"}, "eviction 'newest': expected one of oldest, redundant, reservoir"),
        ({"durability": "none"}, "durability 'none': expected one of process, power"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message, tmp_path):
    with pytest.raises(HistoryError, match=message):
        FeatureHistory(tmp_path / "p.sqlite3", **arguments)


def fill(history, numbers, space="s", width=D):
    for number in numbers:
        history.append(space, f"photo{number}", np.full(width, number, dtype=np.float32))


def numbers(history, space="s", width=D):
    return history.recent(space, 10_000, width)[:, 0].astype(int).tolist()


# ---- bounds


def test_a_profile_never_holds_more_bytes_than_it_may(tmp_path):
    size = 4 * D
    with FeatureHistory(tmp_path / "p.sqlite3", max_bytes=10 * size) as history:
        fill(history, range(8), "old model")
        fill(history, range(4), "new model")
        assert numbers(history, "old model") == list(range(2, 8))  # the space that holds most gives way
        fill(history, range(4, 20), "new model")
        assert {space: about.count for space, about in history.spaces().items()} == {"old model": 5, "new model": 5}
        assert sum(about.size for about in history.spaces().values()) == 10 * size


def test_two_feature_spaces_fit_while_a_model_changes(history):
    fill(history, range(9), "old model")
    fill(history, range(9), "new model")
    assert history.count("old model") == history.count("new model") == history.capacity


def test_a_feature_larger_than_the_profile_is_refused(tmp_path):
    with FeatureHistory(tmp_path / "p.sqlite3", max_bytes=4 * D) as history:
        fill(history, [1])
        with pytest.raises(HistoryError, match="larger than the 32"):
            history.append("s", "large", np.zeros(D + 1, dtype=np.float32))
        assert numbers(history) == [1]


def test_a_smaller_capacity_shrinks_a_history_that_is_there(tmp_path):
    with FeatureHistory(tmp_path / "p.sqlite3", capacity=9) as history:
        fill(history, range(9))
    with FeatureHistory(tmp_path / "p.sqlite3", capacity=3) as history:
        fill(history, [9])
        assert numbers(history) == [7, 8, 9]
        assert history.count("s") == 3


@pytest.mark.parametrize("eviction", ["oldest", "redundant", "reservoir"])
def test_a_longer_history_is_not_cut_to_a_capacity_that_nobody_asked_for(eviction, tmp_path):
    with FeatureHistory(tmp_path / "p.sqlite3", capacity=100) as history:
        fill(history, range(100))
    bounds = {"eviction": eviction, "protect": 3}
    with FeatureHistory(tmp_path / "p.sqlite3", usual=10, **bounds) as history:
        for number in range(100, 180):
            (evicted,) = history.append("s", f"photo{number}", feature(number))
            assert eviction != "oldest" or evicted == f"photo{number - 100}"
        assert history.count("s") == 100
        fill(history, range(20), "other")
        assert history.count("other") == 10
    with FeatureHistory(tmp_path / "p.sqlite3", capacity=10) as history:
        fill(history, [200])
        assert history.count("s") == 10


@pytest.mark.parametrize("eviction", ["oldest", "redundant", "reservoir"])
def test_no_policy_evicts_the_protected_photos(eviction, tmp_path):
    with FeatureHistory(tmp_path / "p.sqlite3", capacity=12, eviction=eviction, protect=5) as history:
        for number in range(40):
            fill(history, [number])
            assert numbers(history)[-6:] == list(range(max(0, number - 5), number + 1))
        assert history.count("s") == 12


def test_a_redundant_photo_goes_before_a_singular_one(tmp_path):
    """Ten singular photos, then a burst of one motif: the burst must not push them out."""
    rng = np.random.default_rng(0)
    motifs = rng.normal(size=(11, 32)).astype(np.float32)
    kept = {}
    for eviction in ("redundant", "oldest"):
        with FeatureHistory(tmp_path / eviction, capacity=16, eviction=eviction, protect=2) as history:
            for number in range(10):
                history.append("s", hashlib.sha256(bytes([number])).hexdigest(), motifs[number], "singular")
            for number in range(10, 60):
                near = motifs[10] + 0.01 * rng.normal(size=32).astype(np.float32)
                history.append("s", hashlib.sha256(bytes([number])).hexdigest(), near, "burst")
            kept[eviction] = history.recall("s", 16, 32).names.count("singular")
    assert kept == {"redundant": 10, "oldest": 0}


def test_features_without_length_do_not_stop_eviction(tmp_path):
    with FeatureHistory(tmp_path / "p.sqlite3", capacity=4, eviction="redundant", protect=0) as history:
        for number in range(8):
            history.append("s", f"zero{number}", np.zeros(D, dtype=np.float32))
        assert history.count("s") == 4


def test_a_reservoir_holds_the_same_sample_whatever_the_order(tmp_path):
    photos = [hashlib.sha256(bytes([number])).hexdigest() for number in range(200)]
    kept = []
    for seed in range(2):
        with FeatureHistory(tmp_path / str(seed), capacity=20, eviction="reservoir", protect=0) as history:
            for photo in random.Random(seed).sample(photos, len(photos)):
                history.append("s", photo, feature(photos.index(photo)))
            kept.append(set(history.recall("s", 20, D).photos))
    assert len(kept[0] & kept[1]) >= 19  # all but a newest photo that has just come
    ages = [photos.index(photo) for photo in kept[0]]
    assert min(ages) < 50 < 150 < max(ages)  # from the whole past


def test_neither_storing_nor_recalling_takes_more_steps_in_a_longer_history(tmp_path):
    """Steps of SQLite's machine, which do not depend on how busy this one is."""
    steps = {}
    for capacity in (64, 2048):
        with FeatureHistory(tmp_path / str(capacity), capacity=capacity) as history:
            fill(history, range(capacity), "another space")
            fill(history, range(capacity + 1))
            taken = []
            connection(history).set_progress_handler(lambda taken=taken: taken.append(1), 10)
            fill(history, range(capacity + 1, capacity + 33))
            history.recall("s", 46, D)
            connection(history).set_progress_handler(None, 0)
            steps[capacity] = len(taken)
    assert steps[2048] <= 1.2 * steps[64]


# ---- reading


def test_a_long_history_is_read_in_pieces(history):
    fill(history, range(5))
    pieces = list(history.iterate("s", D, chunk=2))
    assert [len(piece.photos) for piece in pieces] == [2, 2, 1]
    assert np.concatenate([piece.features for piece in pieces])[:, 0].tolist() == [0, 1, 2, 3, 4]
    newest = history.iterate("s", D, newest=3, chunk=2)
    assert [piece.photos for piece in newest] == [("photo2", "photo3"), ("photo4",)]
    assert not list(history.iterate("nothing", D))


def test_photos_that_come_while_a_history_is_read_do_not_prolong_it(history):
    fill(history, range(3))
    for piece in history.iterate("s", D, chunk=1):
        fill(history, [100 + int(piece.features[0, 0])])
    assert numbers(history) == [1, 2, 100, 101, 102]


def test_given_photos_are_read_in_the_order_given(history):
    fill(history, range(4))
    found = history.rows("s", ["photo2", "missing", "photo0"], D)
    assert found.photos == ("photo2", "photo0")
    assert found.features[:, 0].tolist() == [2, 0]
    assert history.rows("another space", ["photo2"], D).features.shape == (0, D)


def test_a_row_that_turns_up_in_another_space_is_not_returned(history):
    fill(history, [1], "theirs")
    with sqlite3.connect(history.path) as other:
        other.execute("update feature set space = 'ours'")
    other.close()
    assert history.recent("ours", 9, D).shape == (0, D)
    assert history.damaged == 1


def test_entries_say_when_and_what_but_show_no_feature(history):
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    history.append("s", "photo", feature(1), "/photos/one.jpg")
    (entry,) = history.entries()
    assert (entry.photo, entry.name, entry.space, entry.size) == ("photo", "/photos/one.jpg", "s", 4 * D)
    assert before <= entry.stored <= datetime.now(timezone.utc)


def test_a_path_that_is_no_text_can_still_be_stored(history):
    history.append("s", "photo", feature(1), os.fsdecode(b"/photos/\xff.jpg"))
    assert history.recall("s", 1, D).names == ("/photos/?.jpg",)


def test_a_reader_that_keeps_photos_in_memory_learns_of_others_writes(history):
    first = history.version()
    assert history.look("s", "1") == (first, False)
    history.append("s", "1", feature(1))
    second = history.version()
    assert history.look("s", "1") == (second, True)
    with FeatureHistory(history.path) as other:
        other.append("s", "2", feature(2))
    assert history.look("s", "2") == (history.version(), True)
    assert not history.look("another", "2")[1]
    assert first < second < history.version()


# ---- what the owner said


def test_labels_and_settings_outlive_the_features_and_a_restart(history):
    fill(history, [1], "old model")
    history.set_label("photo1", "a cat")
    history.set_label("photo2", "a dog")
    history.set_label("photo2", None)
    history.set_setting("policy", "newest")
    history.set_setting("gone", "soon")
    history.set_setting("gone", None)
    history.erase(space="old model")
    with FeatureHistory(history.path) as again:
        assert again.labels() == {"photo1": "a cat"}
        assert again.settings() == {"policy": "newest"}


def test_a_damaged_label_is_left_out(history):
    history.set_label("photo1", "a cat")
    with sqlite3.connect(history.path) as other:
        other.execute("update label set label = 'a dog'")
    other.close()
    assert history.labels() == {}


# ---- a person's rights


def files_of(path):
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


def test_an_erased_photo_leaves_no_byte_and_the_others_stay(tmp_path):
    with FeatureHistory(tmp_path / "p.sqlite3") as history:
        values = np.arange(3 * 1285, dtype=np.float32).reshape(3, 1285) + 0.5
        for number, value in enumerate(values):
            history.append("s", f"photo{number}", value)
            history.set_label(f"photo{number}", f"label of {number}")
        assert history.erase("photo1") == 1
        assert history.recall("s", 9, 1285).photos == ("photo0", "photo2")
        assert history.count("s") == 2
        assert set(history.labels()) == {"photo0", "photo2"}
        left = files_of(history.path)
    assert values[0, -200:].tobytes() in left  # the search itself works
    for trace in (values[1, :200].tobytes(), values[1, -200:].tobytes(), b"photo1", b"label of 1"):
        assert trace not in left


def test_an_erased_space_leaves_the_others_alone(history):
    fill(history, range(3), "old model")
    fill(history, range(3), "new model")
    assert history.erase(space="old model") == 3
    assert list(history.spaces()) == ["new model"]
    assert history.erase("photo1", "new model") == 1
    assert numbers(history, "new model") == [0, 2]


def test_erasing_everything_erases_what_was_set_aside_too(tmp_path):
    path = tmp_path / "p.sqlite3"
    with FeatureHistory(path) as history:
        fill(history, range(3))
        history.set_setting("policy", "newest")
    overwrite(path, 0, bytes(100))
    with FeatureHistory(path) as history:
        assert history.recovered.aside.exists()
        history.erase()
        assert history.labels() == history.settings() == history.spaces() == {}
    assert not list(tmp_path.glob("*damaged*"))


def test_an_evicted_feature_leaves_no_byte_once_the_log_is_written_back(tmp_path):
    value = np.arange(1285, dtype=np.float32) + 0.5
    with FeatureHistory(tmp_path / "p.sqlite3", capacity=4) as history:
        history.append("s", "secret", value)
        fill(history, range(4), width=1285)
    assert value[-200:].tobytes() not in files_of(history.path)


def test_an_export_is_complete_and_open_and_the_owners_alone(history, tmp_path):
    fill(history, range(3), "old model")
    fill(history, [7], "new model", width=2 * D)
    history.set_label("photo1", "a cat")
    history.set_setting("policy", "newest")
    history.export(tmp_path / "out.zip")
    assert stat.S_IMODE((tmp_path / "out.zip").stat().st_mode) == 0o600
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        document = json.loads(archive.read("entries.json"))
        arrays = {space["space"]: np.load(archive.open(space["features"])) for space in document["spaces"]}
    np.testing.assert_array_equal(arrays["old model"], history.recent("old model", 9, D))
    np.testing.assert_array_equal(arrays["new model"], history.recent("new model", 9, 2 * D))
    photos = {space["space"]: [row["photo"] for row in space["photos"]] for space in document["spaces"]}
    assert photos == {"old model": ["photo0", "photo1", "photo2"], "new model": ["photo7"]}
    assert document["labels"] == {"photo1": "a cat"}
    assert document["settings"] == {"policy": "newest"}


def test_an_export_does_not_need_a_clock(history, tmp_path, monkeypatch):
    fill(history, range(3))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    history.export(tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert {file.external_attr >> 16 for file in archive.infolist()} == {0o600}
        assert len(json.loads(archive.read("entries.json"))["spaces"][0]["photos"]) == 3


def test_an_export_that_fails_leaves_nothing_behind(history, tmp_path):
    fill(history, range(3))
    (tmp_path / "folder" / "out.zip").mkdir(parents=True)
    with pytest.raises(RefocusError, match="is a folder, which is not replaced"):
        history.export(tmp_path / "folder" / "out.zip")
    with pytest.raises(HistoryError, match="nothing was exported"):
        history.export(tmp_path / "missing" / "out.zip")
    assert [file.name for file in (tmp_path / "folder").iterdir()] == ["out.zip"]


# ---- damage


def overwrite(path, offset, content):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def test_a_file_that_is_no_history_is_set_aside_whole(tmp_path):
    path = tmp_path / "p.sqlite3"
    path.write_bytes(b"holiday pictures" * 1000)
    with FeatureHistory(path) as history:
        assert history.recovered.features == 0
        assert "not a database" in history.recovered.reason
        assert history.recovered.aside.read_bytes() == b"holiday pictures" * 1000
        fill(history, [1])
        assert numbers(history) == [1]
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_a_lost_header_costs_no_photo(tmp_path):
    path = tmp_path / "p.sqlite3"
    with FeatureHistory(path) as history:
        fill(history, range(20), width=1285)
        history.set_label("photo1", "a cat")
        history.set_setting("policy", "newest")
    overwrite(path, 0, bytes(4096))
    with FeatureHistory(path) as history:
        assert numbers(history, width=1285) == list(range(20))
        assert history.labels() == {"photo1": "a cat"}
        assert history.settings() == {"policy": "newest"}
        kept = history.recovered
        assert (kept.features, kept.labels, kept.settings) == (20, 1, 1)
        assert history.count("s") == 20
    with FeatureHistory(path) as history:
        assert history.recovered is None


def test_a_lost_header_of_an_older_schema_costs_no_photo(tmp_path):
    path = tmp_path / "p.sqlite3"
    make_older_file(path, 2, {"first": 1, "second": 2})
    overwrite(path, 0, bytes(4096))
    with FeatureHistory(path) as history:
        assert history.recall("s", 9, D).photos == ("first", "second")


def test_what_was_only_in_the_log_is_saved_from_a_damaged_file(tmp_path):
    path = tmp_path / "p.sqlite3"
    code = (
        "import os, sys, numpy as np; from pathlib import Path; from refocus.edge.history.feature_history import FeatureHistory\n"
        "history = FeatureHistory(Path(sys.argv[1]))\n"
        "for number in range(9): history.append('s', f'photo{number}', np.full(1285, number, dtype=np.float32))\n"
        "os._exit(0)"  # not closed: the photos are in the log
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    path.write_bytes(b"\xff" * path.stat().st_size)
    with FeatureHistory(path) as history:
        assert numbers(history, width=1285) == list(range(9))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_overwritten_nothing_crashes_and_nothing_is_mixed(seed, tmp_path):
    """Damage while the file is closed, or while it is open and in use; one page, several, or the end cut off."""
    rng = random.Random(seed)
    path = tmp_path / "p.sqlite3"
    with FeatureHistory(path, capacity=64) as history:
        for number in range(100):
            fill(history, [number], "ours", width=1285)
            fill(history, [1000 + number], "theirs", width=1285)
    size = path.stat().st_size
    opened = FeatureHistory(path, capacity=64) if seed % 2 else None
    if seed % 3 == 0:
        os.truncate(path, rng.randrange(size))
    else:
        for _ in range(rng.randrange(1, 6)):
            overwrite(path, rng.randrange(size - 4096), rng.randbytes(rng.randrange(1, 4096)))
    history = opened or FeatureHistory(path, capacity=64)
    with history:
        for space, numbers_of in (("ours", range(36, 100)), ("theirs", range(1036, 1100))):
            past = history.recall(space, 1000, 1285)
            for photo, row in zip(past.photos, past.features, strict=True):
                assert photo == f"photo{int(row[0])}"
                assert int(row[0]) in numbers_of
                assert (row == row[0]).all()
            fill(history, [5000], space, width=1285)
            assert numbers(history, space, 1285)[-1] == 5000
            assert history.count(space) == len(numbers(history, space, 1285))
        history.entries()
    if history.recovered:
        assert history.recovered.aside.exists()


@pytest.mark.parametrize("eviction", ["oldest", "redundant", "reservoir"])
def test_a_tally_that_counts_too_many_is_made_anew(eviction, tmp_path):
    with FeatureHistory(tmp_path / "p.sqlite3", eviction=eviction) as history:
        fill(history, range(3))
        with sqlite3.connect(history.path) as other:
            other.execute("update tally set count = 1000")
            other.execute("insert into tally values ('gone', 1000, 1000)")
        other.close()
        fill(history, [3])
        history.append("gone", "photo", feature(4))
        assert 1 <= history.count("s") == len(history.recall("s", 9, D).photos)
        assert history.count("gone") == 1
        assert "tally" in history.recovered.reason


def test_another_process_follows_to_the_recovered_file(tmp_path):
    path = tmp_path / "p.sqlite3"
    with FeatureHistory(path) as first, FeatureHistory(path) as second:
        fill(first, range(3), width=1285)
        fill(second, range(3, 6), width=1285)
        overwrite(path, 0, bytes(4096))
        before = second.version()
        first._file.repair("as a reader would find out")
        assert second.version() > before
        fill(second, [6], width=1285)
        fill(first, [7], width=1285)
        assert numbers(second, width=1285) == numbers(first, width=1285) == list(range(8))
        second.close()
        assert numbers(first, width=1285) == list(range(8))
    with FeatureHistory(path) as again:
        assert numbers(again, width=1285) == list(range(8))
        assert again.recovered is None


def test_a_second_damage_does_not_overwrite_what_was_set_aside(tmp_path):
    path = tmp_path / "p.sqlite3"
    for number in range(3):
        with FeatureHistory(path) as history:
            fill(history, [number])
        overwrite(path, 0, bytes(100))
    with FeatureHistory(path) as history:
        assert numbers(history) == [0, 1, 2]
    assert len(list(tmp_path.glob(".p.sqlite3.damaged-[123]"))) == 3


# ---- disks


def run_on_small_disk(tmp_path, code):
    """Runs Python in a mount namespace of its own, where tmp_path/disk is a file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    mount = f"mount -t tmpfs -o size=1m,mode=700 tmpfs {disk}"
    if subprocess.run([*options, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a small file system")
    command = [*options, "sh", "-c", f'{mount} && exec "$0" -c "$1" {disk}', sys.executable, PREPARE_DISK + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


PREPARE_DISK = """
import os, subprocess, sys
import numpy as np
from pathlib import Path
from refocus.edge.errors import HistoryError
from refocus.edge.history.feature_history import FeatureHistory
disk = Path(sys.argv[1])
path = disk / "p.sqlite3"
def store(history, number):
    history.append("s", f"photo{number}", np.full(1285, number, dtype=np.float32))
def attempt(work):
    try:
        work()
    except HistoryError as error:
        print(error)
def numbers(history):
    return history.recent("s", 10_000, 1285)[:, 0].astype(int).tolist()
"""


def test_a_full_disk_is_one_clear_error_and_loses_nothing(tmp_path):
    lines = run_on_small_disk(
        tmp_path,
        """
ballast = disk / "ballast"
ballast.write_bytes(bytes(400_000))
with FeatureHistory(path, capacity=10_000) as history:
    def fill():
        global stored
        for stored in range(1000):
            store(history, stored)
    attempt(fill)
    assert 10 < stored < 1000
    assert numbers(history) == list(range(stored))
    attempt(lambda: store(history, stored))
    attempt(lambda: history.set_label("photo", "label" * 4096))
    attempt(lambda: history.export(disk / "out.zip"))
    ballast.unlink()
    store(history, stored)
    assert numbers(history) == list(range(stored + 1))
with FeatureHistory(path) as again:
    assert again.recovered is None
    assert numbers(again) == list(range(stored + 1))
""",
    )
    assert len(lines) == 4
    for line in lines[:3]:
        assert line.endswith("what was stored before is intact, free some space or check the file's rights")
    assert "nothing was exported" in lines[3]


def test_a_damaged_file_waits_for_room_to_be_recovered(tmp_path):
    lines = run_on_small_disk(
        tmp_path,
        """
with FeatureHistory(path) as history:
    for number in range(20):
        store(history, number)
with path.open("r+b") as file:
    file.write(bytes(4096))
before = path.read_bytes()
ballast = disk / "ballast"
with ballast.open("wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
attempt(lambda: FeatureHistory(path))
assert path.read_bytes() == before
ballast.unlink()
with FeatureHistory(path) as again:
    assert again.recovered.features == 20
    assert numbers(again) == list(range(20))
""",
    )
    assert len(lines) == 1
    assert "free some space" in lines[0]


FULL_DISK = """
history = FeatureHistory(path)
for number in range(20):
    store(history, number)
history.set_label("photo1", "a cat")
history.close()
def fill():
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass
fill()
"""


def test_a_profile_is_read_on_a_full_disk(tmp_path):
    lines = run_on_small_disk(
        tmp_path,
        FULL_DISK
        + """
with FeatureHistory(path) as history:
    assert numbers(history) == list(range(20))
    attempt(lambda: store(history, 99))
    assert history.labels() == {"photo1": "a cat"}
(disk / "ballast").unlink()
with FeatureHistory(path) as history:
    assert history.recovered is None
    assert numbers(history) == list(range(20))
""",
    )
    assert len(lines) == 1
    assert "full" in lines[0]


def test_photos_in_a_journal_of_an_earlier_version_are_lost_on_a_full_disk(tmp_path):
    fixtures = Path(__file__).parents[2] / "fixtures" / "0.2.dev" / "profiles.tar.gz"
    with tarfile.open(fixtures) as archive:
        archive.extractall(tmp_path)  # our own file; the filter argument is not in every Python 3.10
    lines = run_on_small_disk(
        tmp_path,
        """
import shutil
for file in (disk.parent / "whole").glob("p*"):
    shutil.copy(file, disk / file.name)
with (disk / "ballast").open("wb", buffering=0) as ballast:
    for size in (4096, 1):
        try:
            while ballast.write(bytes(size)):
                pass
        except OSError:
            pass
with FeatureHistory(disk / "p", capacity=1000) as history:
    attempt(lambda: history.append("a" * 64, "new", np.ones(12, "f4")))
    assert (disk / "p.journal").exists() and history.count("a" * 64) == 12
    (disk / "ballast").unlink()
    history.append("a" * 64, "new", np.ones(12, "f4"))
    assert not (disk / "p.journal").exists() and history.recovered is None
    print(history.recall("a" * 64, 100, 12).photos[-2:] == (f"{39:064d}", "new"), history.count("a" * 64))
""",
    )
    assert lines[0].endswith("what was stored before is intact, free some space or check the file's rights")
    assert lines[1:] == ["True 31"]


def test_everything_is_erased_on_a_full_disk(tmp_path):
    run_on_small_disk(
        tmp_path,
        FULL_DISK
        + """
with FeatureHistory(path) as history:
    assert history.erase() == 20
    assert not history.spaces() and not history.labels()
    left = b"".join(file.read_bytes() for file in disk.iterdir())
    assert b"photo1" not in left and np.full(64, 7, "f4").tobytes() not in left
with FeatureHistory(path) as history:
    assert history.recovered is None
    store(history, 1)
    assert numbers(history) == [1]
""",
    )


def test_a_photo_is_erased_on_a_full_disk_or_nothing_is(tmp_path):
    lines = run_on_small_disk(
        tmp_path,
        FULL_DISK
        + """
with FeatureHistory(path) as history:
    attempt(lambda: history.erase("photo7"))
    print(len(numbers(history)))
(disk / "ballast").unlink()
with FeatureHistory(path) as history:
    history.erase("photo7")
    assert numbers(history) == [number for number in range(20) if number != 7]
    assert history.recovered is None
""",
    )
    assert lines == ["19"] or ("nothing was erased; free some space" in lines[0] and lines[1] == "20")


def test_a_read_only_disk_is_one_clear_error(tmp_path):
    lines = run_on_small_disk(
        tmp_path,
        """
with FeatureHistory(path) as history:
    store(history, 1)
before = path.read_bytes()
subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
attempt(lambda: FeatureHistory(path))
attempt(lambda: FeatureHistory(disk / "new" / "p.sqlite3"))
assert path.read_bytes() == before
""",
    )
    assert len(lines) == 2
    for line in lines:
        assert "cannot hold a history (Read-only file system); check its rights" in line


READ_ONLY = """
def remount(how):
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)
def die(work):
    if not os.fork():
        work()
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_a_history_on_a_read_only_disk_is_read_whole_and_refuses_every_write(killed, tmp_path):
    """A process that was killed leaves photos in the log."""
    lines = run_on_small_disk(
        tmp_path,
        READ_ONLY
        + f"""
killed = {killed}
"""
        + """
def fill():
    history = FeatureHistory(path)
    history.set_label("photo1", "a cat")
    for number in range(12):
        store(history, number)
    if killed:
        os._exit(0)
    history.close()
die(fill)
assert (disk / "p.sqlite3-wal").exists() == killed
remount("ro")
files = {file: file.read_bytes() for file in disk.iterdir()}
with FeatureHistory(path, or_read_only=True) as history:
    assert numbers(history) == list(range(12))
    assert history.labels() == {"photo1": "a cat"} and history.recovered is None
    assert history.look("s", "photo3")[1] and not history.look("s", "photo99")[1]
    history.verify()
    history.export(Path(sys.argv[1]).parent / "out.zip")
    for write in (lambda: store(history, 99), lambda: history.set_label("photo1", "a dog"), history.erase,
                  lambda: history.erase("photo1"), lambda: history.erase(space="s"), history.scrub,
                  history.forget_likely):
        attempt(write)
    assert files == {file: file.read_bytes() for file in disk.iterdir()}
    version = history.version()
    remount("rw")
    with FeatureHistory(path) as other:
        store(other, 12)
    remount("ro")
    assert numbers(history) == list(range(13)) and history.version() > version
print(history.refusal)
""",
    )
    assert len(lines) == 8
    assert lines == [f"{tmp_path / 'disk'} cannot hold a history (Read-only file system); check its rights"] * 8


def test_what_cannot_be_read_on_a_read_only_disk_is_one_clear_error(tmp_path):
    lines = run_on_small_disk(
        tmp_path,
        READ_ONLY
        + """
import sqlite3
with FeatureHistory(path) as history:
    store(history, 1)
(disk / "damaged").write_bytes(b"SQLite format 3" + bytes(5000))
with sqlite3.connect(disk / "foreign") as database:
    database.execute("create table mine (x)")
database.close()
remount("ro")
for name in ("new", "damaged", "foreign"):
    attempt(lambda: FeatureHistory(disk / name, or_read_only=True))
""",
    )
    refused = f"{tmp_path / 'disk'} cannot hold a history (Read-only file system); check its rights"
    assert lines[0] == refused
    assert lines[1].startswith(f"{refused}; and damaged cannot be read there (")
    assert "foreign is a database of another program" in lines[2]


def test_a_history_that_cannot_grow_says_so_where_no_disk_can_be_mounted(tmp_path):
    path = tmp_path / "p.sqlite3"
    with FeatureHistory(path, capacity=10_000) as history:
        fill(history, [1], width=1280)
        pages = connection(history).execute("pragma page_count").fetchone()[0]
        connection(history).execute(f"pragma max_page_count={pages + 2}")  # SQLite's own "disk is full"
        with pytest.raises(HistoryError, match=r"full.*what was stored before is intact"):
            fill(history, range(2, 1000), width=1280)
        assert history.count("s") == len(history.entries()) >= 1
    with FeatureHistory(path) as again:
        fill(again, [5000], width=1280)
        assert again.recent("s", 1, 1280)[0, 0] == 5000


@pytest.mark.parametrize("width", [1, 1285])
def test_a_power_cut_takes_no_more_photos_than_promised(width, tmp_path):
    """The disk is waited for when the log is written back; the log's header counts how often that happened."""
    with FeatureHistory(tmp_path / "p.sqlite3", capacity=32) as history:
        log = tmp_path / "p.sqlite3-wal"
        since, seen, longest = 0, b"", 0
        for number in range(1000):
            fill(history, [number], width=width)
            count = log.read_bytes()[12:16]
            since = since + 1 if count == seen else 1
            longest, seen = max(longest, since), count
    assert 0 < longest <= POWER_CUT_LOSS


def test_a_power_cut_takes_more_photos_where_two_processes_store_in_turn(tmp_path):
    path, syncs = tmp_path / "p.sqlite3", []
    with FeatureHistory(path, capacity=1000) as one, FeatureHistory(path, capacity=1000) as other:
        for history in (one, other):
            connection(history).set_trace_callback(lambda said: syncs.append(said) if "checkpoint" in said else None)
        for number in range(2 * POWER_CUT_LOSS + 2):
            before = len(syncs)
            fill((one, other)[number % 2], [number])
            assert (len(syncs) > before) == ((number + 1) % POWER_CUT_LOSS == 0)


def test_a_kill_before_the_log_is_synced_lets_a_power_cut_take_more_photos(tmp_path, monkeypatch):
    """The record beside the file stays behind until the log is synced; whoever opens the profile then sees that."""
    path = tmp_path / "p.sqlite3"

    def killed(*given):
        raise KeyboardInterrupt

    with FeatureHistory(path, capacity=1000) as history:
        fill(history, range(POWER_CUT_LOSS - 1))
        monkeypatch.setattr(history._file, "_count", killed)
        with pytest.raises(KeyboardInterrupt):
            fill(history, [1000])
        monkeypatch.undo()
        with (tmp_path / "p.sqlite3.lock").open("rb") as lock:
            assert witness.read(lock.fileno()).newest == POWER_CUT_LOSS - 1
        header = (tmp_path / "p.sqlite3-wal").read_bytes()[12:16]
        with FeatureHistory(path, capacity=1000) as other:
            fill(other, [1001])
        assert (tmp_path / "p.sqlite3-wal").read_bytes()[12:16] != header


def test_durability_reaches_the_disk_as_asked(tmp_path):
    for durability, synchronous in (("process", 1), ("power", 2)):
        with FeatureHistory(tmp_path / durability, durability=durability) as history:
            fill(history, [1])
            history.set_label("photo1", "a cat")
            assert connection(history).execute("pragma synchronous").fetchone()[0] == synchronous


def test_a_new_folder_and_an_old_file_are_closed_to_others(tmp_path):
    path = tmp_path / "profiles" / "p.sqlite3"
    with FeatureHistory(path) as history:
        fill(history, [1])
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    FeatureHistory(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# ---- several processes


WRITER = """
import sys, numpy as np
from pathlib import Path
from refocus.edge.history.feature_history import FeatureHistory
for life in range(4):
    with FeatureHistory(Path(sys.argv[1]), capacity=1000) as history:
        for number in range(50 * life, 50 * life + 50):
            photo = f"{sys.argv[2]}{number}"
            history.append("s", photo, np.full(1285, number, dtype=np.float32))
            assert history.look("s", photo)[1], photo
"""


def test_two_processes_writing_one_profile_lose_nothing(tmp_path):
    path = tmp_path / "p.sqlite3"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("a", "b")]
    for process in writers:
        assert process.wait(timeout=60) == 0
    with FeatureHistory(path) as history:
        past = history.recall("s", 1000, 1285)
        assert history.count("s") == 400
    assert set(past.photos) == {f"{name}{number}" for name in "ab" for number in range(200)}
    for name in "ab":
        mine = [int(row[0]) for photo, row in zip(past.photos, past.features, strict=True) if photo[0] == name]
        assert mine == list(range(200))


def test_a_photo_that_another_connection_stored_is_not_seen_or_raises_no_version(tmp_path):
    path = tmp_path / "p.sqlite3"
    with FeatureHistory(path) as one, FeatureHistory(path) as other:
        fill(one, range(10))
        before = one.look("s", "photo9")
        assert other.look("s", "photo9")[1]
        assert numbers(other) == list(range(10))
        fill(other, [10])
        after = one.look("s", "photo10")
        assert after[1]
        assert after[0] > before[0]
        other.erase("photo5")
        assert one.look("s", "photo5") == (after[0] + 1, False)
        assert one.look("s", "photo6") == (after[0] + 1, True)
        fill(one, [11])
        assert one.look("s", "photo11") == (after[0] + 2, True)


def test_a_photo_that_another_connection_erased_or_evicted_is_not_stored_again(tmp_path):
    path = tmp_path / "p.sqlite3"
    with FeatureHistory(path, capacity=1000) as one:
        fill(one, range(6))
        with FeatureHistory(path) as other:
            other.erase("photo3")
        fill(one, [3])
        assert numbers(one) == [0, 1, 2, 4, 5, 3]
        with FeatureHistory(path, capacity=4) as other:
            fill(other, [20])
        fill(one, [0])
        assert numbers(one) == [4, 5, 3, 20, 0]


def test_two_connections_of_one_process_do_not_break_each_others_locks(tmp_path):
    """Closing any descriptor of a file drops the process's POSIX locks on it; the log must outlive that."""
    path = tmp_path / "p.sqlite3"
    with FeatureHistory(path) as first:
        fill(first, [1])
        for number in range(2, 6):
            with FeatureHistory(path) as second:
                fill(second, [number])
            code = f"import sqlite3; sqlite3.connect({str(path)!r}).execute('select * from feature').fetchall()"
            subprocess.run([sys.executable, "-c", code], check=True)
            fill(first, [10 * number])
        assert numbers(first) == [1, 2, 20, 3, 30, 4, 40, 5, 50]
