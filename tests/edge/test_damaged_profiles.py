"""Damaged profiles: the photo is answered, readable rows are recovered, and what was lost is counted and reported."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
from dataclasses import dataclass

import numpy as np
import pytest

from edge.errors import HistoryError, PhotoError
from edge.history import FeatureHistory
from edge.preprocess import preprocess
from edge.recognizer import Recognizer
from edge.store import witness

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


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return snapshots(tmp_path_factory.mktemp("stored"))


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A profile at its capacity, whose log holds evictions."""
    return snapshots(tmp_path_factory.mktemp("full"), capacity=12)


def snapshots(folder, capacity=256):
    history = populate(folder / "p", capacity=capacity)
    history.close()
    closed = copy(folder / "p", folder / "closed")
    shutil.rmtree(folder / "closed", ignore_errors=False)
    with FeatureHistory(folder / "p", capacity=capacity, protect=2) as history:  # a log that is not written back
        history.set_label("photo1", "a late label")
        for number in range(PHOTOS + 2, PHOTOS + 8):
            history.append("ours", f"photo{number}", row("ours", number))
        features = {
            (space, photo)
            for space in history.spaces()
            for photo in history.recall(space, 1000, WIDTH).photos
        }
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


def flips(stored, tmp_path, seeds, capacity=256, exact=True):
    lost = 0
    for seed in seeds:
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
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


def test_a_flipped_bit_loses_what_is_reported_and_nothing_else(stored, tmp_path):
    assert flips(stored, tmp_path, range(100))


def test_a_flipped_bit_in_a_full_profile_is_never_a_silent_loss(full, tmp_path):
    flips(full, tmp_path, range(1000, 1030), capacity=12, exact=False)


@pytest.mark.slow
def test_thousands_of_flipped_bits_lose_what_is_reported_and_nothing_else(stored, full, tmp_path):
    assert flips(stored, tmp_path, range(10_000, 12_000))
    flips(full, tmp_path, range(20_000, 20_500), capacity=12, exact=False)
