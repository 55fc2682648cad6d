"""The feature history: what is acknowledged stays, what is foreign stays out, what is damaged is set aside."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from edge.errors import HistoryError
from edge.history import FeatureHistory

D = 8


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


def test_a_row_of_another_width_is_left_out(history):
    history.append("s", "photo", np.ones(D + 1, dtype=np.float32))
    assert history.recent("s", 10, D).shape == (0, D)


def test_damaged_rows_do_not_hide_whole_ones_and_can_be_stored_again(history):
    for number in range(5):
        history.append("s", f"photo{number}", feature(number))
    with sqlite3.connect(history.path) as other:
        other.execute("update feature set crc = crc + 1 where photo in ('photo3', 'photo4')")
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
    history._db.execute("pragma busy_timeout=50")
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


def test_a_file_that_is_no_history_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "p.sqlite3"
    path.write_bytes(b"holiday pictures" * 100)
    with pytest.raises(HistoryError, match="not a database"):
        FeatureHistory(path)
    assert path.read_bytes() == b"holiday pictures" * 100


def test_a_history_of_the_first_schema_is_upgraded_and_keeps_everything(tmp_path):
    path = tmp_path / "p.sqlite3"
    with FeatureHistory(path) as history:
        history.append("s", "first", feature(1))
        history._db.execute("alter table feature drop column name")
        history._db.execute("pragma user_version=1")
    with FeatureHistory(path) as upgraded:
        upgraded.append("s", "second", feature(2), "/photos/second.jpg")
        past = upgraded.recall("s", 9, D)
    assert past.photos == ("first", "second")
    assert past.names == ("", "/photos/second.jpg")
    assert past.features[:, 0].tolist() == [1, 2]


def test_a_history_of_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "p.sqlite3"
    FeatureHistory(path).close()
    with sqlite3.connect(path) as database:
        database.execute("pragma user_version=99")
    database.close()
    with pytest.raises(HistoryError, match="schema 99.*update refocus"):
        FeatureHistory(path)


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="cannot hold a history"):
        FeatureHistory(tmp_path / "file" / "p.sqlite3")


def test_a_capacity_below_one_is_refused(tmp_path):
    with pytest.raises(HistoryError, match="capacity 0"):
        FeatureHistory(tmp_path / "p.sqlite3", capacity=0)


def test_a_full_disk_is_one_clear_error_and_loses_nothing(tmp_path):
    path = tmp_path / "p.sqlite3"
    with FeatureHistory(path, capacity=10_000) as history:
        history.append("s", "first", feature(1))
        pages = history._db.execute("pragma page_count").fetchone()[0]
        history._db.execute(f"pragma max_page_count={pages + 2}")  # SQLite's own "disk is full"
        with pytest.raises(HistoryError, match=r"full.*what was stored before is intact"):
            for number in range(1000):
                history.append("s", f"photo{number}", np.zeros(1280, dtype=np.float32))
        assert history.recent("s", 10_000, D, before=None).shape[0] >= 1 or history.count("s") >= 1
    with FeatureHistory(path) as again:
        again.append("s", "after", feature(2))
        assert again.recent("s", 1, D)[0, 0] == 2


WRITER = """
import sys, numpy as np
from pathlib import Path
from edge.history import FeatureHistory
history = FeatureHistory(Path(sys.argv[1]), capacity=64)
start, name = int(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
for number in range(start, start + int(sys.argv[4])):
    history.append("s", f"{name}{number}", np.full(1280, number, dtype=np.float32))
    print(number, flush=True)
history.close()
"""


def writer(path, start, name, count):
    command = [sys.executable, "-c", WRITER, str(path), str(start), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_writing_one_profile_lose_nothing(tmp_path):
    path = tmp_path / "p.sqlite3"
    writers = [writer(path, 0, name, 25) for name in ("a", "b")]
    for process in writers:
        process.communicate(timeout=60)
        assert process.returncode == 0
    with FeatureHistory(path) as history:
        assert history.count("s") == 50
        assert history.recent("s", 100, 1280).shape == (50, 1280)


def kill_writers_at_random(path, kills, seed):
    """Kills a real writing process again and again; checks after each kill that every printed number is there."""
    rng = random.Random(seed)
    for kill in range(kills):
        process = writer(path, kill * 1000, "photo", 1000)
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.001, 0.05))
        os.kill(process.pid, signal.SIGKILL)
        acknowledged = [int(line) for line in process.communicate()[0].split()]
        with FeatureHistory(path, capacity=64) as history:
            stored = history.recent("s", 64, 1280)
            assert history.damaged == 0
        if acknowledged:
            assert set(acknowledged[-60:]) <= {int(row[0]) for row in stored}, f"kill {kill}"


def test_what_was_acknowledged_survives_kill_9(tmp_path):
    kill_writers_at_random(tmp_path / "p.sqlite3", kills=5, seed=0)


@pytest.mark.slow
def test_what_was_acknowledged_survives_100_kills(tmp_path):
    kill_writers_at_random(tmp_path / "p.sqlite3", kills=int(os.environ.get("REFOCUS_KILLS", "100")), seed=1)
