"""The append journal: what it holds counts as stored, whoever asks, and it is never held twice, mixed up or kept."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from refocus.edge.history import journal
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.history.likely_classes import Classifier, LikelyClasses

D = 8
SIDE_FILES = ("", "-wal", ".lock", ".journal")
BY = Classifier("c" * 64, ("yes", "no", "maybe"))


def feature(number):
    return np.full(D, number, dtype=np.float32)


def likely(number):
    return BY, LikelyClasses(np.array([number % 3, (number + 1) % 3]), np.array([0.75, 0.25]))


def fill(history, numbers, space="s"):
    return [history.append(space, f"photo{n}", feature(n), f"/photos/{n}.png", likely(n)) for n in numbers]


def opened(path, **arguments):
    return FeatureHistory(path, journal=True, **{"capacity": 1000, "protect": 4, **arguments})


def numbers(history, space="s"):
    return history.recent(space, 10_000, D)[:, 0].astype(int).tolist()


def pending(path):
    """Photos that are in the journal alone."""
    with path.with_name(path.name + ".lock").open("rb") as lock:
        return journal.decode_state(journal.read_raw(lock.fileno())).pending


def killed(path, folder):
    """A copy of the files as a kill at this moment would leave them."""
    folder.mkdir()
    for ending in SIDE_FILES:
        if path.with_name(path.name + ending).exists():
            shutil.copy(path.with_name(path.name + ending), folder / f"p{ending}")
    return folder / "p"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "p"


@pytest.mark.parametrize("eviction", ["oldest", "redundant", "reservoir"])
@pytest.mark.parametrize("bounds", [{}, {"capacity": 20}, {"capacity": 1000, "max_bytes": 25 * 4 * D}])
def test_a_journal_changes_neither_what_is_stored_nor_what_is_evicted(eviction, bounds, tmp_path):
    """The same photos with and without, of two spaces in turns of several, some of them twice."""
    rng, calls = random.Random(0), []
    for _ in range(30):
        start = rng.randrange(60)
        calls.append((range(start, start + rng.randrange(1, 20)), rng.choice(["s", "s", "other"])))
    found = []
    for name in ("with", "without"):
        arguments = {"eviction": eviction, "journal": name == "with", "protect": 4, "capacity": 1000, **bounds}
        with FeatureHistory(tmp_path / name, **arguments) as history:
            evicted = [fill(history, *call) for call in calls]
            held = [(e.photo, e.name, e.space) for e in history.entries()]
            found.append((evicted, held, [history.likely(space, BY, 2)[:4] for space in ("s", "other")]))
    (evicted, held, columns), (evicted_without, held_without, columns_without) = found
    assert evicted == evicted_without
    assert held == held_without
    for column, without in zip(columns, columns_without, strict=True):
        assert column[0] == without[0] == column[3]
        np.testing.assert_array_equal(column[1], without[1])


def test_photos_that_follow_each_other_go_to_the_journal_and_are_found(path):
    with opened(path) as history:
        fill(history, range(10))
        assert pending(path) == 8  # the first two show that photo comes after photo
        assert history.look("s", "photo9")[1]
        assert not history.look("s", "photo10")[1]
        assert pending(path) == 8
        assert numbers(history) == list(range(10))
        assert pending(path) == 0
    assert not path.with_name("p.journal").exists()


def test_reading_between_photos_leaves_the_journal_out(path):
    with opened(path) as history:
        for number in range(6):
            fill(history, [number])
            history.rows("s", ["photo0"], D)
            assert pending(path) == 0


def test_a_journal_is_for_its_owner_alone_and_moves_in_time(path):
    with opened(path) as history:
        fill(history, range(100))
        assert 0 < pending(path) <= journal.MOST_RECORDS
        assert stat.S_IMODE(path.with_name("p.journal").stat().st_mode) == 0o600
    with opened(path) as history:
        assert numbers(history) == list(range(100))
        assert history.recovered is None


def test_an_append_to_the_journal_counts_as_one_write(path):
    with opened(path) as history:
        fill(history, range(3))
        for number in range(3, 80):
            before = history.look("s", "other")[0]
            fill(history, [number])
            assert history.look("s", "other")[0] == before + 1


def test_a_power_safe_profile_has_no_journal(path):
    with opened(path, durability="power") as history:
        fill(history, range(10))
        assert not path.with_name("p.journal").exists()


def test_what_a_kill_left_in_the_journal_is_there_at_the_next_opening(path, tmp_path):
    with opened(path, capacity=20) as history:
        fill(history, range(45))
        copy = killed(path, tmp_path / "killed")
    assert pending(copy)
    with FeatureHistory(copy) as again:  # one without a journal, and with other bounds
        assert numbers(again) == list(range(25, 45))
        assert again.likely("s", BY, 2).missing == ()
        assert again.recovered is None
    assert not copy.with_name("p.journal").exists()


def test_a_reader_with_smaller_bounds_evicts_nothing(path):
    with opened(path, capacity=1000) as history:
        fill(history, range(400))
        with FeatureHistory(path, capacity=10) as reader:
            assert reader.count("s") == 400


def test_records_that_were_moved_before_a_kill_are_not_moved_again(path, tmp_path):
    """A kill after the transaction and before the journal was emptied; some of its photos were evicted by then."""
    with opened(path, capacity=8) as history:
        fill(history, range(14))
        before = killed(path, tmp_path / "before")
        assert numbers(history) == list(range(6, 14))
        history.erase("photo10")
        after = killed(path, tmp_path / "after")
    for ending in (".journal", ".lock"):
        shutil.copy(before.with_name(f"p{ending}"), after.with_name(f"p{ending}"))
    with opened(after, capacity=8) as history:
        assert numbers(history) == [6, 7, 8, 9, 11, 12, 13]
        fill(history, range(20, 30))
        assert numbers(history) == list(range(22, 30))


def test_erased_photos_are_in_no_file(path):
    with opened(path) as history:
        fill(history, range(20))
        assert feature(19).tobytes() in path.with_name("p.journal").read_bytes()
        history.erase("photo19")
        fill(history, range(30, 40))
        left = b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert feature(19).tobytes() not in left
        history.erase()
        left = b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert feature(35).tobytes() not in left
    with opened(path) as history:
        assert numbers(history) == []
        assert history.recovered is None


def test_an_export_has_what_is_in_the_journal(path, tmp_path):
    import zipfile

    with opened(path) as history:
        fill(history, range(20))
        history.export(tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive, archive.open("features/0.npy") as file:
        assert np.load(file)[:, 0].tolist() == list(range(20))


def test_use_from_another_thread_is_refused(path):
    caught = []
    with opened(path) as history:
        fill(history, range(5))

        def use():
            try:
                fill(history, [5])
            except sqlite3.ProgrammingError as error:
                caught.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert caught
        assert numbers(history) == list(range(5))


# ---- damage


@pytest.fixture
def left(path, tmp_path):
    """A profile that a kill left with 18 photos in its journal."""
    with opened(path) as history:
        fill(history, range(20))
        return killed(path, tmp_path / "left")


def test_a_flipped_bit_in_the_journal_loses_one_photo_and_says_so(left, tmp_path):
    content = left.with_name("p.journal").read_bytes()
    for seed in range(60):
        damaged = killed(left, tmp_path / str(seed))
        bit = random.Random(seed).randrange(8 * len(content))
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.with_name("p.journal").write_bytes(flipped)
        with opened(damaged) as history:
            found = numbers(history)
            assert len(found) == 19, bit
            assert found == sorted(found)
            assert history.recovered.lost == (1, 0, 0)
            assert history.recovered.exact
            fill(history, range(50, 60))
            assert numbers(history) == [*found, *range(50, 60)]
        with opened(damaged) as history:
            assert history.recovered is None


def test_a_flipped_bit_in_the_state_loses_nothing(left, tmp_path):
    for bit in range(8 * 64, 8 * (64 + 44), 5):
        damaged = killed(left, tmp_path / str(bit))
        lock = damaged.with_name("p.lock")
        flipped = bytearray(lock.read_bytes())
        flipped[bit // 8] ^= 1 << bit % 8
        lock.write_bytes(flipped)
        with opened(damaged) as history:
            assert numbers(history) == list(range(20))
            assert history.recovered is None


@pytest.mark.parametrize("harm", ["delete", "cut", "empty", "garbage", "folder", "link"])
def test_a_lost_journal_is_reported(harm, left):
    file, lost = left.with_name("p.journal"), 18
    if harm == "cut":
        os.truncate(file, file.stat().st_size - 3)
        lost = 1
    elif harm == "empty":
        os.truncate(file, 0)
    elif harm == "garbage":
        file.write_bytes(random.Random(0).randbytes(5000))
    else:
        file.unlink()
        if harm == "folder":
            file.mkdir()
        elif harm == "link":
            file.symlink_to(left)
    with opened(left) as history:
        assert history.recovered.lost == (lost, 0, 0)
        assert "journal" in str(history.recovered)
        assert numbers(history) == list(range(20 - lost))
        fill(history, range(50, 60))
        assert numbers(history)[-10:] == list(range(50, 60))
    with opened(left) as history:
        assert history.recovered is None


def test_a_damaged_database_and_a_journal_lose_nothing(left):
    left.write_bytes(b"\xff" * left.stat().st_size)
    with opened(left) as history:
        assert numbers(history) == list(range(20))
        assert history.recovered.lost == (0, 0, 0)


def test_an_emptied_lock_file_loses_nothing(left):
    """As another program leaves it that writes to the profile."""
    os.truncate(left.with_name("p.lock"), 0)
    with opened(left) as history:
        assert numbers(history) == list(range(20))
        assert history.recovered is None


def test_a_damaged_database_and_a_lost_lock_file_lose_nothing_of_the_journal(left):
    left.write_bytes(b"\xff" * left.stat().st_size)
    left.with_name("p.lock").unlink()
    with opened(left) as history:
        assert numbers(history) == list(range(20))
        assert history.recovered.lost.features == 0


def test_a_kill_while_a_journal_without_a_state_is_moved_loses_nothing(left, tmp_path, monkeypatch):
    os.truncate(left.with_name("p.lock"), 0)
    fold = journal.fold

    def seen(database, records):
        fold(database, records)
        killed(left, tmp_path / "killed")  # before the transaction is committed

    monkeypatch.setattr(journal, "fold", seen)
    opened(left).close()
    monkeypatch.undo()
    with opened(tmp_path / "killed" / "p") as history:
        assert numbers(history) == list(range(20))
        assert history.recovered is None


def test_a_journal_that_is_deleted_while_it_is_open_costs_nothing(path):
    with opened(path) as history:
        fill(history, range(10))
        path.with_name("p.journal").unlink()
        fill(history, range(10, 20))
        assert numbers(history) == list(range(20))
        assert history.recovered is None


# ---- several processes


def test_another_connection_sees_what_is_in_the_journal_and_is_seen(path):
    with opened(path) as one, opened(path) as other:
        fill(one, range(10))
        assert pending(path)
        before = one.look("s", "photo9")
        assert other.look("s", "photo9")[1]
        assert numbers(other) == list(range(10))
        fill(other, [10])
        after = one.look("s", "photo10")
        assert after[1]
        assert after[0] > before[0]
        fill(other, range(11, 20))
        fill(one, range(20, 30))
        fill(other, range(30, 40))
        other.erase("photo25")
        version, known = one.look("s", "photo25")
        assert not known
        assert version > after[0]
        expected = [number for number in range(40) if number != 25]
        assert numbers(one) == numbers(other) == expected
        fill(one, range(40, 50))
    with opened(path) as again:
        assert numbers(again) == [*expected, *range(40, 50)]


def test_a_photo_that_another_process_erased_or_evicted_is_stored_again(path):
    with opened(path) as one:
        fill(one, range(6))
        with opened(path) as other:
            other.erase("photo3")
        assert fill(one, [3]) == [()]
        assert numbers(one) == [0, 1, 2, 4, 5, 3]
        fill(one, range(10, 14))
        with FeatureHistory(path, capacity=4) as other:
            fill(other, [20])
        fill(one, [10])
        assert numbers(one) == [11, 12, 13, 20, 10]


WRITER = """
import sys, numpy as np
from pathlib import Path
from refocus.edge.history.feature_history import FeatureHistory
for life in range(4):
    with FeatureHistory(Path(sys.argv[1]), capacity=1000, journal=True) as history:
        for number in range(50 * life, 50 * life + 50):
            photo = f"{sys.argv[2]}{number}"
            history.append("s", photo, np.full(8, number, dtype=np.float32))
            assert history.look("s", photo)[1], photo
"""


def test_processes_that_open_write_and_close_lose_nothing(path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "abc"]
    for process in writers:
        assert process.wait(timeout=120) == 0
    with opened(path) as history:
        past = history.recall("s", 1000, D)
        assert history.recovered is None
    for name in "abc":
        mine = [int(row[0]) for photo, row in zip(past.photos, past.features, strict=True) if photo[0] == name]
        assert mine == list(range(200))
    assert not path.with_name("p.journal").exists()


def test_the_page_of_profiles_shows_a_record_as_it_is_written():
    record = journal.Record(1, 2, 3, 4, 5, "oldest", "s", "p", "n", "", "", b"", np.float32(1).tobytes())
    page = (Path(__file__).parents[3] / "docs" / "formats" / "profile.md").read_text()
    assert record.encode().hex() in page
    assert journal.scan(record.encode()) == ([record], 0)
