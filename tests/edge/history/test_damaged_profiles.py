"""Damaged profiles: the photo is answered, readable rows are recovered, and what was lost is counted and reported."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from refocus.edge.errors import HistoryError, PhotoError
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.photos.preprocess import preprocess
from refocus.edge.recognize.recognizer import Recognizer

WIDTH, PHOTOS = 300, 30  # a row takes a page's third: pages hold several rows, and no row needs more than one
SIDE_FILES = ("", "-wal", ".lock")


@contextlib.contextmanager
def watchdog(seconds=5.0):
    """Ends what takes longer."""

    def bark(*_):
        raise TimeoutError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def row(space, number):
    feature = np.full(WIDTH, number, dtype=np.float32)
    feature[0] = len(space)
    return feature


def copy(path, folder):
    """The files of a profile as a kill at this moment would leave them."""
    folder.mkdir()
    for ending in SIDE_FILES:
        if path.with_name(path.name + ending).exists():
            shutil.copy(path.with_name(path.name + ending), folder / f"p{ending}")
    return folder / "p"


@dataclass
class Stored:
    """What was acknowledged of a profile, and snapshots of its files."""

    features: set
    labels: dict
    settings: dict
    closed: object
    killed: object


def populate(path, photos=PHOTOS, capacity=256):
    history = FeatureHistory(path, capacity=capacity, protect=2)
    for number in range(photos):
        for space in ("ours", "their space"):
            history.append(space, f"photo{number}", row(space, number), f"/photos/{number}.png")
        if number % 6 == 0:
            history.set_label(f"photo{number}", f"label {number}")
    history.set_setting("policy", "newest")
    history.set_setting("other", "value")
    for number in (photos, photos + 1):  # nothing after it waits for the disk
        history.append("ours", f"photo{number}", row("ours", number))
    return history


@pytest.fixture
def place(tmp_path):
    """A folder, in memory where the system has such: thousands of recoveries wait for the disk otherwise."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return snapshots(tmp_path_factory.mktemp("stored"))


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A profile at its capacity, whose log holds evictions."""
    return snapshots(tmp_path_factory.mktemp("full"), capacity=12)


def snapshots(folder, capacity=256):
    populate(folder / "p", capacity=capacity).close()
    with FeatureHistory(folder / "p", capacity=capacity, protect=2) as history:  # a log that is not written back
        history.set_label("photo1", "a late label")
        for number in range(PHOTOS + 2, PHOTOS + 8):
            history.append("ours", f"photo{number}", row("ours", number))
        features = {(space, photo) for space in history.spaces() for photo in history.recall(space, 1000, WIDTH).photos}
        labels, settings = history.labels(), history.settings()
        killed = copy(folder / "p", folder / "killed")
    closed = copy(folder / "p", folder / "closed")
    return Stored(features, labels, settings, closed, killed)


def check(path, stored, capacity=256, exact=True):
    """Opens a damaged profile: nothing in it is wrong, and what is missing was reported. Returns what is missing."""
    with watchdog(), FeatureHistory(path, capacity=capacity, protect=2) as history:
        kept = set()
        for space in ("ours", "their space"):
            past = history.recall(space, 1000, WIDTH)
            for photo, feature in zip(past.photos, past.features, strict=True):
                np.testing.assert_array_equal(feature, row(space, int(photo[5:])))
                kept.add((space, photo))
            found = [int(photo[5:]) for photo in past.photos]
            assert found == sorted(found), "the order is wrong"
        labels, settings = history.labels(), history.settings()
        history.verify()
        history.append("ours", "photo999", row("ours", 999))
        assert history.recall("ours", 1, WIDTH).photos == ("photo999",)
        assert len(history.entries()) == sum(space.count for space in history.spaces().values())
        recovered, lost = history.recovered, (0, 0, 0)
        if recovered is not None:
            lost = recovered.lost
    missing = (
        len(stored.features - kept),
        len(stored.labels.items() - labels.items()),
        len(stored.settings.items() - settings.items()),
    )
    if exact:
        assert kept <= stored.features
        assert tuple(lost) == missing, (recovered, missing)
    assert not any(missing) or recovered is not None, "a silent loss"
    with watchdog(), FeatureHistory(path, capacity=capacity) as again:  # one recovery is enough
        assert again.recovered is None
    return missing


def flip(path, bit):
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0] ^ 1 << bit % 8
        file.seek(bit // 8)
        file.write(bytes([byte]))


def flips(stored, place, seeds, capacity=256, exact=True):
    lost = 0
    for seed in seeds:
        rng = random.Random(seed)
        folder = place / str(seed)
        path = copy(rng.choice([stored.closed, stored.killed]), folder)
        file = rng.choice([file for file in (path, folder / "p-wal") if file.exists()])
        header = file == path and rng.random() < 0.2  # the first page has most of what can go wrong
        bit = rng.randrange(8 * (100 if header else file.stat().st_size))
        flip(file, bit)
        try:
            lost += any(check(path, stored, capacity, exact))
        except BaseException as error:
            error.add_note(f"seed {seed}: bit {bit} of {file.name} in {folder}") if hasattr(error, "add_note") else None
            raise
        shutil.rmtree(folder)
    return lost


def test_a_flipped_bit_loses_what_is_reported_and_nothing_else(stored, place):
    assert flips(stored, place, range(90))


def test_a_flipped_bit_in_a_full_profile_is_never_a_silent_loss(full, place):
    flips(full, place, range(1000, 1020), capacity=12, exact=False)


@pytest.mark.slow
def test_thousands_of_flipped_bits_lose_what_is_reported_and_nothing_else(stored, full, place):
    assert flips(stored, place, range(10_000, 12_000))
    flips(full, place, range(20_000, 20_500), capacity=12, exact=False)


# ---- kinds of corruption

PAGE = 4096


def pages_of(path):
    return path.stat().st_size // PAGE


def overwrite(path, offset, content):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def truncate(path, log, rng):
    os.truncate(path, rng.randrange(1, path.stat().st_size))


def empty(path, log, rng):
    os.truncate(path, 0)


def zero_page(path, log, rng):
    overwrite(path, rng.randrange(pages_of(path)) * PAGE, bytes(PAGE))


def swap_pages(path, log, rng):
    first, second = (number * PAGE for number in rng.sample(range(pages_of(path)), 2))
    content = path.read_bytes()
    overwrite(path, first, content[second : second + PAGE])
    overwrite(path, second, content[first : first + PAGE])


def copy_page(path, log, rng):
    first, second = (number * PAGE for number in rng.sample(range(pages_of(path)), 2))
    overwrite(path, second, path.read_bytes()[first : first + PAGE])


def append_garbage(path, log, rng):
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 3 * PAGE)))


def random_header(path, log, rng):
    overwrite(path, rng.randrange(90), rng.randbytes(rng.randrange(1, 10)))


def random_bytes(path, log, rng):
    overwrite(path, rng.randrange(path.stat().st_size - PAGE), rng.randbytes(rng.randrange(1, PAGE)))


def bytes_of_the_log(path, log, rng):
    overwrite(log, rng.randrange(log.stat().st_size), rng.randbytes(rng.randrange(1, 40)))


def truncate_the_log(path, log, rng):
    os.truncate(log, rng.randrange(log.stat().st_size))


def delete_the_log(path, log, rng):
    log.unlink()


def delete_the_file(path, log, rng):
    path.unlink()


KINDS = (truncate, empty, zero_page, swap_pages, copy_page, append_garbage, random_header, random_bytes,
         bytes_of_the_log, truncate_the_log, delete_the_log, delete_the_file)  # fmt: skip


def corrupt(stored, place, kind, seeds, exact=True, capacity=256):
    for seed in seeds:
        rng, folder = random.Random(f"{kind.__name__} {seed}"), place / f"{kind.__name__} {seed}"
        path = copy(stored.killed if "log" in kind.__name__ or seed % 2 else stored.closed, folder)
        kind(path, folder / "p-wal", rng)
        check(path, stored, capacity, exact)
        shutil.rmtree(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_corruption_loses_what_is_reported_and_nothing_else(kind, stored, place):
    corrupt(stored, place, kind, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_corruptions_lose_what_is_reported_and_nothing_else(kind, stored, full, place):
    corrupt(stored, place, kind, range(100, 300))
    corrupt(full, place, kind, range(300, 350), exact=False, capacity=12)


# ---- single findings


def test_an_index_entry_that_leads_to_another_row_is_no_endless_loop(tmp_path):
    """Two entries of one index lead to one row, which is whole, as one flipped bit can make them."""
    path = tmp_path / "p"
    with FeatureHistory(path) as history:
        for number in range(5):
            history.append("s", f"photo{number}", row("s", number))
    entry = b"\4\x0f\1\1s\3\3"  # of the index `newest`: a text, two numbers; space s, place 3, slot 3
    content = path.read_bytes()
    assert content.count(entry) == 1
    path.write_bytes(content.replace(entry, entry[:-1] + b"\2"))
    with watchdog(), FeatureHistory(path) as history:
        assert len(history.recall("s", 9, WIDTH).photos) == 5
        assert history.recovered.lost == (0, 0, 0)


def test_an_index_entry_that_changes_while_the_profile_is_open_is_no_endless_loop(tmp_path):
    path = tmp_path / "p"
    with FeatureHistory(path) as history:
        for number in range(5):
            history.append("s", f"photo{number}", row("s", number))
        history.scrub()
        entry = b"\4\x0f\1\1s\3\3"
        overwrite(path, path.read_bytes().index(entry) + 6, b"\2")
        connection = history._file._database
        connection.execute("pragma cache_size=0")  # read the file again
        with watchdog():
            assert len(history.recall("s", 9, WIDTH).photos) == 5


@pytest.mark.parametrize("statement", [
    "update label set label = cast(x'ff' as text)",
    "update feature set name = cast(x'ff' as text) where photo = 'photo2'",
    "update feature set value = 5 where photo = 'photo2'",
    "update feature set sequence = 'x' where photo = 'photo2'",
    "update feature set stored = 9000000000000000000 where photo = 'photo2'",
    "update feature set space = cast(x'fe' as text) where photo = 'photo2' and space = 'ours'",
    "update tally set count = 'many'",
    "delete from tally",
    "update setting set value = 7",
    "pragma writable_schema=on; update sqlite_master set sql = replace(sql, 'photo text', 'phot0 text')",
    "pragma user_version=7",
    "pragma user_version=2",
    "pragma user_version=0",
    "pragma application_id=5",
])  # fmt: skip
def test_no_damage_refuses_a_profile_for_ever(statement, tmp_path):
    path = tmp_path / "p"
    populate(path).close()
    database = sqlite3.connect(path)
    database.executescript(statement)
    database.close()
    with watchdog(), FeatureHistory(path) as history:
        history.append("ours", "new", row("ours", 1000))
        kept = len(history.entries()) - 1, len(history.labels()), len(history.settings())
        together = tuple(np.add(kept, history.recovered.lost))
        assert together == (2 * PHOTOS + 2, 5, 2)
    with watchdog(), FeatureHistory(path) as history:
        assert history.recovered is None


def history_entries(path):
    with FeatureHistory(path) as history:
        return history.entries()


def test_a_profile_of_0_1_0_with_a_damaged_version_is_recovered_and_not_taken_for_a_newer_one(tmp_path):
    path = tmp_path / "p"
    populate(path).close()
    database = sqlite3.connect(path)
    database.executescript("drop table about; pragma user_version=67")  # no sealed number in those days
    database.close()
    path.with_name("p.lock").unlink()
    with FeatureHistory(path) as history:
        assert history.recovered.features == 2 * PHOTOS + 2
        assert len(history.entries()) == 2 * PHOTOS + 2


def test_a_profile_of_0_1_0_is_sealed_when_it_is_opened_and_loses_nothing(tmp_path):
    path = tmp_path / "p"
    populate(path).close()
    database = sqlite3.connect(path)
    database.executescript("drop table about; pragma user_version=3")
    database.close()
    path.with_name("p.lock").write_bytes(b"")
    with FeatureHistory(path) as history:
        assert history.recovered is None
        assert len(history.entries()) == 2 * PHOTOS + 2
    database = sqlite3.connect(path)
    assert database.execute("select value from about").fetchall()
    database.close()


def test_an_emptied_profile_is_reported_and_not_taken_for_a_new_one(tmp_path):
    path = tmp_path / "p"
    populate(path).close()
    os.truncate(path, 0)
    with FeatureHistory(path) as history:
        assert history.recovered.reason == "the file is empty"
        assert tuple(history.recovered.lost) == (2 * PHOTOS + 2, 5, 2)
        assert "62 features, 5 labels and 2 settings were lost" in str(history.recovered)


def test_a_new_profile_is_whole_from_its_first_moment(tmp_path, monkeypatch):
    """The file appears under its name only once its tables are in it."""
    seen, real = [], Path.rename

    def spy(self, target):
        database = sqlite3.connect(self)
        seen.append({name for (name,) in database.execute("select name from sqlite_master")})
        database.close()
        assert not Path(target).exists()
        return real(self, target)

    monkeypatch.setattr(Path, "rename", spy)
    FeatureHistory(tmp_path / "p").close()
    (tables,) = seen
    assert {"feature", "tally", "label", "setting", "about"} <= tables


def test_a_dropped_label_is_reported(tmp_path):
    path = tmp_path / "p"
    with populate(path) as history:
        database = sqlite3.connect(path)
        database.execute("update label set label = 'another' where photo = 'photo6'")
        database.commit()
        database.close()
        assert "photo6" not in history.labels()
        assert tuple(history.recovered.lost) == (0, 1, 0)


def test_losses_of_several_recoveries_add_up(tmp_path):
    path = tmp_path / "p"
    with populate(path) as history:
        for photo in ("photo6", "photo12"):
            database = sqlite3.connect(path)
            database.execute("update label set label = 'another' where photo = ?", (photo,))
            database.execute("update feature set value = zeroblob(4) where photo = ? and space = 'ours'", (photo,))
            database.commit()
            database.close()
            history.verify()
        assert tuple(history.recovered.lost) == (2, 2, 0)
        assert history.damaged == 2


def test_a_mistake_of_the_caller_is_no_damage(tmp_path):
    with populate(tmp_path / "p") as history:
        with pytest.raises(TypeError):
            history.transaction(lambda database, bounds: len(5))
        with pytest.raises(HistoryError, match="no such column"):
            history.transaction(lambda database, bounds: database.execute("select missing from feature"))
        assert history.recovered is None
    assert not list(tmp_path.glob(".p.damaged*"))


def test_a_pipe_in_the_place_of_a_profile_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "p")
    with watchdog(), pytest.raises(HistoryError, match="not a regular file"):
        FeatureHistory(tmp_path / "p")


def test_a_killed_recovery_still_reports_the_loss(tmp_path):
    path = tmp_path / "p"
    populate(path).close()
    database = sqlite3.connect(path)
    database.execute("update label set label = 'another' where photo = 'photo6'")
    database.commit()
    database.close()
    code = (
        "import os, sys; from pathlib import Path; from refocus.edge.history.feature_history import FeatureHistory; from refocus.edge.history import recovery\n"
        "recovery.finish = lambda path: os._exit(9)\n"
        "FeatureHistory(Path(sys.argv[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == 9
    with FeatureHistory(path) as history:
        assert tuple(history.recovered.lost) == (0, 1, 0)


@pytest.mark.parametrize("ending", ["erase", "label", "setting"])
def test_a_kill_between_a_write_and_its_count_is_no_loss(ending, tmp_path):
    """The count beside the file is never ahead of what was acknowledged."""
    path = tmp_path / "p"
    populate(path).close()
    code = f"""
import os, sys
from pathlib import Path
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.photos.preprocess import preprocess
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.history import witness
history = FeatureHistory(Path(sys.argv[1]))
real = witness.write
def die_once_counted(lock, held, durably=False):
    os._exit(9) if held.sure else real(lock, held, durably)
witness.write = die_once_counted
{{"erase": lambda: history.erase("photo6"), "label": lambda: history.set_label("photo6", None),
  "setting": lambda: history.set_setting("policy", None)}}[{ending!r}]()
"""
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == 9
    with FeatureHistory(path) as history:
        assert history.recovered is None
        assert len(history.entries()) == 2 * PHOTOS + (0 if ending == "erase" else 2)


# ---- files that were set aside


def damage(path):
    overwrite(path, 0, bytes(100))
    with FeatureHistory(path) as history:
        return history.recovered.aside


def test_erasing_one_person_leaves_the_history_of_another(tmp_path):
    anna, other = (tmp_path / f"{name}.history.sqlite3" for name in ("anna", "anna.history.sqlite3.damaged-x"))
    third = tmp_path / "anna.history.sqlite3.damaged-1"  # a name that the command never gives to a profile
    for path in (anna, other, third):
        populate(path).close()
    aside = damage(anna)
    assert not aside.name[0].isalnum(), "a profile may have this name"
    with FeatureHistory(anna) as history:
        history.erase()
    assert not aside.exists()
    for path in (other, third):
        assert len(history_entries(path)) == 2 * PHOTOS + 2


def test_what_0_1_0_set_aside_is_erased_with_the_person(tmp_path):
    path = tmp_path / "anna.history.sqlite3"
    populate(path).close()
    older = [tmp_path / f"{path.name}.damaged-{ending}" for ending in ("1", "1-wal", "12")]
    for file in older:
        file.write_bytes(b"features")
    with FeatureHistory(path) as history:
        history.erase()
    assert not [file for file in older if file.exists()]


# ---- numbers that are none


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_feature_that_is_no_number_is_refused(number, tmp_path):
    with FeatureHistory(tmp_path / "p") as history:
        feature = row("s", 1)
        feature[7] = number
        with pytest.raises(HistoryError, match="NaN or infinite numbers"):
            history.append("s", "photo", feature)
        assert not history.entries()


def test_a_nan_that_0_1_0_stored_is_dropped_and_reported(tmp_path):
    from refocus.edge.history.schema import INSERT, feature_seal, recount

    path = tmp_path / "p"
    with populate(path) as history:
        value = np.full(WIDTH, np.nan, "<f4").tobytes()
        what = ("ours", 500, "bad", 0, "")
        history.transaction(
            lambda database, _: (
                database.execute(INSERT, (*what, feature_seal(*what, value), value)),
                recount(database),
            )
        )
        assert "bad" not in history.recall("ours", 999, WIDTH).photos
        assert tuple(history.recovered.lost) == (1, 0, 0)


# ---- a recogniser over a damaged profile


@pytest.fixture(scope="module")
def recognizer(bundle):
    with Recognizer(bundle, threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def person(recognizer, stream, tmp_path_factory):
    """A real profile as a kill would leave it, its photos, and the features that were stored of them."""
    folder = tmp_path_factory.mktemp("person")
    recognizer.switch(folder / "p")
    for photo in stream[:16]:
        recognizer.recognize(photo)
    recognizer.history.set_label("photo", "a cat")
    known = recognizer.history.recall(recognizer.space, 99, recognizer.width)
    killed = copy(folder / "p", folder / "killed")
    recognizer.switch(None)
    closed = copy(folder / "p", folder / "closed")
    return closed, killed, dict(zip(known.photos, known.features, strict=True))


def answer_over_flips(recognizer, person, pixels, place, seeds):
    closed, killed, known = person
    lost = 0
    for seed in seeds:
        rng, folder = random.Random(seed), place / str(seed)
        path = copy(rng.choice([closed, killed]), folder)
        file = rng.choice([file for file in (path, folder / "p-wal") if file.exists()])
        flip(file, rng.randrange(8 * file.stat().st_size))
        with watchdog():
            recognizer.switch(path)
            answer = recognizer.recognize_pixels(pixels, "new photo")
            assert len(answer.labels) == len(recognizer.card.labels)
            assert set(answer.history_photos) <= known.keys()
            again = recognizer.history.recall(recognizer.space, 99, recognizer.width)
            assert again.photos[-1] == "new photo"
            for photo, feature in zip(again.photos[:-1], again.features, strict=False):
                np.testing.assert_array_equal(feature, known[photo])
            recovered = recognizer.history.recovered
            missing = len(known) - (len(again.photos) - 1), 1 - len(recognizer.history.labels()), 0
            assert missing == (tuple(recovered.lost) if recovered else (0, 0, 0)), (seed, recovered)
            assert answer.notices == ((str(recovered),) if recovered else ())
            lost += any(missing)
            recognizer.switch(None)
        shutil.rmtree(folder)
    return lost


def test_a_photo_is_answered_over_a_profile_with_a_flipped_bit(recognizer, person, bundle, stream, place):
    pixels = preprocess(stream[20], bundle.manifest.preprocessing, "photo")
    assert answer_over_flips(recognizer, person, pixels, place, range(40))


@pytest.mark.slow
def test_photos_are_answered_over_a_thousand_profiles_with_a_flipped_bit(recognizer, person, bundle, stream, place):
    pixels = preprocess(stream[20], bundle.manifest.preprocessing, "photo")
    assert answer_over_flips(recognizer, person, pixels, place, range(30_000, 31_000))


def test_a_photo_is_answered_when_the_disk_is_full_and_says_that_it_was_not_stored(bundle, stream, tmp_path):
    with Recognizer(bundle, tmp_path / "p", threads=1) as recognizer:
        recognizer.recognize(stream[0])
        database = recognizer.history._file._database
        database.execute(
            f"pragma max_page_count={database.execute('pragma page_count').fetchone()[0]}"
        )  # "disk is full"
        for photo in stream[1:12]:
            answer = recognizer.recognize(photo)
        assert len(answer.history_photos) == recognizer.history.count(recognizer.space) < 11
        (notice,) = answer.notices
        assert notice.startswith("the photo was not stored: ")
        assert "full" in notice


def test_a_photo_is_answered_when_the_history_cannot_be_read(bundle, stream, tmp_path):
    with Recognizer(bundle, tmp_path / "p", threads=1) as recognizer:
        for photo in stream[:3]:
            recognizer.recognize(photo)
        (tmp_path / "p").unlink()
        (tmp_path / "p").mkdir()
        answer = recognizer.recognize(stream[3])
        assert not answer.history_photos
        (notice,) = answer.notices
        assert notice.startswith("answered without the history, and not stored: ")
        alone = Recognizer(bundle, threads=1).recognize(stream[3])
        np.testing.assert_allclose(answer.logits, alone.logits, atol=1e-5)


IN_A_SMALL_PLACE = """
import shutil, subprocess, sys
from pathlib import Path
from refocus import Recognizer
from refocus.edge.recognize.album import answer_album
bundle, place, *photos = map(Path, sys.argv[1:])
def recognised(profile, photos, **more):
    with Recognizer.open(bundle, profile, profiles=place, threads=1) as recognizer:
        for photo in photos:
            answer = recognizer.recognize(photo, **more)
            print(len(answer.history_photos), *answer.notices)
def fill():
    with (place / "ballast").open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass
"""


def run_in_a_small_place(tmp_path, bundle, photos, code):
    """Lines that Python prints in a mount namespace of its own, where a file system of 1 MB holds the profiles."""
    place, files = tmp_path / "place", [tmp_path / f"{number}.png" for number in range(len(photos))]
    place.mkdir()
    for file, content in zip(files, photos, strict=True):
        file.write_bytes(content)
    options = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    mount = f"mount -t tmpfs -o size=1m,mode=700 tmpfs {place}"
    if subprocess.run([*options, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a small file system")
    words = [sys.executable, "-c", IN_A_SMALL_PLACE + code, bundle.folder, place, *files]
    done = subprocess.run(
        [*options, "sh", "-c", f'{mount} && exec "$@"', "sh", *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_photos_are_answered_with_a_history_on_a_read_only_disk_and_without_one_that_is_new(bundle, stream, tmp_path):
    lines = run_in_a_small_place(
        tmp_path,
        bundle,
        stream[:4],
        """
recognised("anna", photos[:2])
subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
recognised("anna", photos[2:])
recognised("anna", photos[3:], remember=False)
recognised("ben", photos[3:])
for words in (["recognize", bundle, photos[3], "--no-remember"], ["history", "list"], ["history", "erase", "--yes"]):
    words = [Path(sys.executable).parent / "refocus", *words, "--profile", "anna", "--profiles", place]
    done = subprocess.run(words, capture_output=True, text=True)
    print(done.returncode, (done.stdout + done.stderr).splitlines()[-1])
""",
    )
    why = f"{tmp_path / 'place'} cannot hold a history (Read-only file system); check its rights"
    assert lines[:2] == ["0", "1"]
    assert lines[2:4] == [f"2 the photo was not stored: {why}"] * 2
    assert lines[4] == "2"
    assert lines[5] == f"0 answered without the history, and not stored: {why}"
    assert lines[6].startswith(f"0 {tmp_path / '3.png'}: ")
    assert "history of 2 photos" in lines[6]
    assert lines[7] == "0 2 features of anna"
    assert lines[8] == f"1 refocus: {why}"


def test_a_new_history_on_a_full_disk_stops_no_photo_and_stores_once_there_is_room(bundle, stream, tmp_path):
    lines = run_in_a_small_place(
        tmp_path,
        bundle,
        stream[:4],
        """
fill()
with Recognizer.open(bundle, "anna", profiles=place, threads=1) as recognizer:
    print(*recognizer.recognize(photos[0]).notices)
    try:
        answer_album(recognizer, photos, place.parent / "album.csv", remember=True)
    except Exception as error:
        print(type(error).__name__, error)
    (place / "ballast").unlink()
    for photo in photos[1:]:
        answer = recognizer.recognize(photo)
        print(len(answer.history_photos), *answer.notices)
""",
    )
    assert lines[0].startswith("answered without the history, and not stored: ")
    assert lines[1].startswith("HistoryError ")
    assert lines[2:] == ["0", "1", "2"]


def with_nan(bundle, role, folder):
    """The bundle with NaN for one tensor of a program."""
    import hashlib

    import msgspec

    onnx = pytest.importorskip("onnx")

    from refocus.edge.bundle.load import write_manifest

    shutil.copytree(bundle.folder, folder)
    file = folder / bundle.artifact(role, "onnxruntime").file
    model = onnx.load(file)
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim >= 2:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.full_like(values, np.nan), tensor.name))
    onnx.save(model, file)
    content = file.read_bytes()
    artifacts = [
        msgspec.structs.replace(artifact, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        if artifact.file == file.name
        else artifact
        for artifact in bundle.manifest.artifacts
    ]
    return write_manifest(folder, msgspec.structs.replace(bundle.manifest, artifacts=tuple(artifacts)))


@pytest.mark.parametrize(
    ("role", "message"), [("encoder", "the feature of the encoder"), ("head", "the answer of the")]
)
def test_an_answer_that_is_no_number_is_refused_and_nothing_is_stored(role, message, bundle, stream, tmp_path):
    with Recognizer(with_nan(bundle, role, tmp_path / "bundle"), tmp_path / "p", threads=1) as recognizer:
        with pytest.raises(PhotoError, match=message):
            recognizer.recognize(stream[0])
        assert not recognizer.history.entries()


def test_an_album_lists_photos_whose_features_are_no_numbers_and_stores_none(bundle, stream, tmp_path):
    from refocus.edge.recognize.album import answer_album

    photos = [tmp_path / f"{number}.png" for number in range(3)]
    for photo, content in zip(photos, stream, strict=False):
        photo.write_bytes(content)
    with Recognizer(with_nan(bundle, "encoder", tmp_path / "bundle"), tmp_path / "p", threads=1) as recognizer:
        report = answer_album(recognizer, photos, tmp_path / "out.csv", remember=True)
        assert ["NaN" in row.error for row in report.rows] == [True] * 3
        assert not recognizer.history.entries()


def test_a_migration_leaves_out_photos_whose_features_are_no_numbers(bundle, new_bundle, stream, tmp_path):
    from refocus.edge.migration.migration import Migration

    photo = tmp_path / "photo.png"
    photo.write_bytes(stream[0])
    with Recognizer(bundle, tmp_path / "p", threads=1) as old:
        old.recognize(stream[0], str(photo))
        new = Recognizer(with_nan(new_bundle, "encoder", tmp_path / "bundle"), threads=1)
        migration = Migration(old.history, old, new)
        migration.start()
        migration.step()
        assert "NaN" in next(iter(migration.left_out.values()))
        assert old.history.count(new.space) == 0
