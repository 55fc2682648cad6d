"""A journal that a development version left is folded once, whole, whatever is damaged, and never trusted."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import struct
import tarfile
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from refocus.edge.history import old_journal
from refocus.edge.history.feature_history import FeatureHistory

ROOT = Path(__file__).parents[3]
SPACE, D = "a" * 64, 12
HELD = [*range(10), *range(20, 40)]  # of the fixture; the last 18 are in the journal alone


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("with-journals")
    with tarfile.open(ROOT / "tests" / "fixtures" / "0.2.dev" / "profiles.tar.gz") as archive:
        archive.extractall(folder)  # our own file; the filter argument is not in every Python 3.10
    return folder


@pytest.fixture
def left(unpacked, tmp_path):
    """A profile that SIGKILL left with 18 photos in its journal."""
    return shutil.copytree(unpacked / "whole", tmp_path / "left") / "p"


def beside(path, ending):
    return path.with_name(path.name + ending)


def copied(path, folder):
    return shutil.copytree(path.parent, folder) / path.name


def opened(path, **given):
    return FeatureHistory(path, **{"capacity": 1000, **given})


def numbers(history):
    return history.recall(SPACE, 10_000, D).features[:, 0].astype(int).tolist()


def flip(file, bit):
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def record(serial=1, stored=2, capacity=1000, max_bytes=1 << 20, eviction="oldest", value=bytes(4 * D), photo="p"):
    """Return a record with a whole checksum, as docs/formats/profile.md describes it."""
    parts = [*(text.encode() for text in (eviction, SPACE, photo, "n", "", "")), b"", value]
    content = struct.pack("<Qqqqq8I", serial, stored, capacity, max_bytes, 4, *map(len, parts)) + b"".join(parts)
    return b"RfJ1" + struct.pack("<II", len(content), zlib.crc32(content)) + content


# ---- what is damaged


def test_a_flipped_bit_in_the_journal_loses_more_than_one_photo_or_is_silent(left, tmp_path):
    size = beside(left, ".journal").stat().st_size
    for seed in range(60):
        damaged = copied(left, tmp_path / str(seed))
        flip(beside(damaged, ".journal"), random.Random(seed).randrange(8 * size))
        with opened(damaged) as history:
            found = numbers(history)
            assert len(found) == len(HELD) - 1, seed
            assert set(found) < set(HELD)
            assert found == sorted(found)
            assert (history.recovered.lost, history.recovered.exact) == ((1, 0, 0), True)
        with opened(damaged) as history:
            assert history.recovered is None


def test_a_flipped_bit_in_the_state_loses_a_photo(left, tmp_path):
    for bit in range(8 * 64, 8 * (64 + 44), 5):
        damaged = copied(left, tmp_path / str(bit))
        flip(beside(damaged, ".lock"), bit)
        with opened(damaged) as history:
            assert numbers(history) == HELD
            assert history.recovered is None


@pytest.mark.parametrize("harm", ["delete", "cut", "empty", "garbage", "folder", "link"])
def test_a_lost_journal_is_not_reported(harm, left):
    file, lost, database = beside(left, ".journal"), 18, left.read_bytes()
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
            file.symlink_to(shutil.copy(left, left.with_name("other")))
    with opened(left) as history:
        assert history.recovered.lost == (lost, 0, 0)
        assert "journal" in str(history.recovered)
        assert numbers(history) == HELD[: len(HELD) - lost]
    with opened(left) as history:
        assert history.recovered is None
    assert harm != "link" or left.with_name("other").read_bytes() == database


def test_a_damaged_database_and_a_lost_lock_file_lose_photos_of_the_journal(unpacked, tmp_path):
    path = copied(unpacked / "database-damaged" / "p", tmp_path / "damaged")
    beside(path, ".lock").unlink()
    with opened(path) as history:
        assert numbers(history) == list(range(20))
        assert history.recovered.lost.features == 0


# ---- kills


def test_a_kill_before_the_photos_are_committed_loses_one(left, tmp_path, monkeypatch):
    os.truncate(beside(left, ".lock"), 0)
    fold = old_journal.fold

    def seen(database, journal):
        lost = fold(database, journal)
        copied(left, tmp_path / "killed")
        return lost

    monkeypatch.setattr(old_journal, "fold", seen)
    opened(left).close()
    monkeypatch.undo()
    with opened(tmp_path / "killed" / "p") as history:
        assert numbers(history) == HELD
        assert history.recovered is None


@pytest.mark.parametrize("gone", ["", ".journal", ".lock"])
def test_a_kill_while_the_journal_is_deleted_brings_a_photo_back(gone, left, tmp_path, monkeypatch):
    """The photo was moved to the database, and erased there by a process that the kill left alone."""
    forget = old_journal.forget

    def seen(path, lock):
        copied(left, tmp_path / "killed")
        forget(path, lock)

    monkeypatch.setattr(old_journal, "forget", seen)
    with opened(left) as history:
        monkeypatch.undo()
        assert numbers(history) == HELD
        history.erase(f"{39:064d}")
    for ending in (".journal", ".lock"):
        if ending != gone:
            shutil.copy(tmp_path / "killed" / f"p{ending}", beside(left, ending))
    with opened(left) as history:
        assert numbers(history) == HELD[:-1]
        assert not beside(left, ".journal").exists()


# ---- what is done with it


def test_an_erased_photo_of_the_journal_is_left_in_a_file(left):
    value = (np.arange(D, dtype=np.float32) / 8 + 39).tobytes()
    assert value in beside(left, ".journal").read_bytes()
    with opened(left) as history:
        history.erase(f"{39:064d}")
        assert value not in b"".join(file.read_bytes() for file in left.parent.iterdir())
    assert not beside(left, ".journal").exists()


def test_a_reader_with_smaller_bounds_evicts_what_the_writer_kept(left):
    with FeatureHistory(left, capacity=10) as history:
        assert numbers(history) == HELD


# ---- hostile files


@pytest.mark.parametrize(
    "given",
    [
        {"capacity": 0},
        {"max_bytes": 1},
        {"stored": 1 << 62},
        {"eviction": "all"},
        {"value": bytes(7)},
        {"value": np.array([math.nan] * D, "<f4").tobytes()},
        {"photo": "p\0" * 40, "value": b"1234" * 3 + b"5"},
    ],
)
def test_a_record_that_no_history_could_have_written_stops_the_profile(given, tmp_path):
    beside(tmp_path / "p", ".journal").write_bytes(record(1, photo="first") + record(2, **given) + record(3, photo="q"))
    with opened(tmp_path / "p") as history:
        assert history.photos(SPACE) == {"first", "q"}
        assert (history.recovered.lost.features, history.recovered.exact) == (1, False)
    with opened(tmp_path / "p") as history:
        assert history.recovered is None


def test_a_journal_of_nothing_but_marks_holds_the_opening_up(tmp_path):
    whole = b"RfJ1" + struct.pack("<II", 1 << 20, 0)
    beside(tmp_path / "p", ".journal").write_bytes(whole * (8 << 16))
    started = time.process_time()
    opened(tmp_path / "p").close()
    assert time.process_time() - started < 10


def test_the_page_of_profiles_shows_another_record_than_is_read(tmp_path):
    page = (ROOT / "docs" / "formats" / "profile.md").read_text()
    (shown,) = re.findall(r"`(52664a31[0-9a-f]+)`", page)
    beside(tmp_path / "p", ".journal").write_bytes(bytes.fromhex(shown))
    with opened(tmp_path / "p") as history:
        assert history.recall("s", 9, 1).features.tolist() == [[1.0]]
        assert [(entry.photo, entry.name, entry.stored.timestamp()) for entry in history.entries()] == [
            ("p", "n", 0.002)
        ]
