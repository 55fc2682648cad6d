"""``kill -9`` at random moments: what was acknowledged stays, nothing foreign appears, the next start needs no repair."""

from __future__ import annotations

import os
import random

import pytest

from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.history.likely_classes import Classifier

KILLS = int(os.environ.get("REFOCUS_KILLS", "300"))  # 1000 and more by hand


# ---- the store alone

STORE = """
import os, sys
from pathlib import Path
import numpy as np
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.history.likely_classes import Classifier, LikelyClasses

WIDTH = 1285
PEOPLE = ["anna", "bert"]
CLASSIFIER = Classifier("c" * 64, tuple(map(str, range(1000))))
folder = Path(sys.argv[1])

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def open_profile(person, capacity):
    return FeatureHistory(folder / person, capacity=capacity, protect=4)

def store(history, person, number, derive=True):
    feature = np.full(WIDTH, number, dtype=np.float32)
    feature[0] = PEOPLE.index(person)
    likely = LikelyClasses(np.arange(2) + number % 997, np.array([0.5, PEOPLE.index(person)]))
    history.append("ours", f"{person}{number}", feature, likely=(CLASSIFIER, likely) if derive else None)
    say("stored", person, number)

def append(numbers, capacity=256, derive=True):
    history = open_profile("anna", capacity)
    for number in numbers:
        store(history, "anna", number, derive)

def evict(numbers):
    append(numbers, capacity=8)

def erase(numbers):
    history = open_profile("anna", 256)
    for number in numbers:
        store(history, "anna", number)
        if number % 2:
            say("erasing", "anna", number - 1)
            history.erase(f"anna{number - 1}")
            say("erased", "anna", number - 1)

def switch(numbers):
    for number in numbers:
        person = PEOPLE[number % 2]
        with open_profile(person, 256) as history:
            store(history, person, number)

def recover(numbers):
    append(numbers, derive=False)  # the file was damaged before, so that it is opening that takes long

for line in sys.stdin if say("warm") is None else ():
    mode, start = line.split()
    child = os.fork()
    if child == 0:
        say("ready", os.getpid())
        globals()[mode](range(int(start), int(start) + 1000))
        os._exit(0)
    os.waitpid(child, 0)
    say("gone")
"""
WIDTH, PEOPLE = 1285, ["anna", "bert"]
FOREIGN = range(3)  # photos of another feature space that lie in each file from the start
MODES = {"append": 256, "evict": 8, "erase": 256, "switch": 256, "recover": 256}


def stored_numbers(folder, person, capacity, recovers=False):
    """What is in a profile, after everything in it was compared with what was written."""
    import numpy as np

    with FeatureHistory(folder / person, capacity=capacity, protect=4) as history:
        theirs = history.recall("theirs", 9, WIDTH)
        assert theirs.features[:, -1].tolist() == list(FOREIGN), "photos of another space were lost"
        past = history.recall("ours", 1000, WIDTH)
        assert history.damaged == 0
        assert history.count("ours") == len(past.photos)
        likely = history.likely("ours", Classifier("c" * 64, tuple(map(str, range(1000)))), 2)
        assert recovers or not likely.missing, "a feature was stored without classes"
        numbers = np.array([int(photo.removeprefix(person)) for photo in likely.photos], dtype=int)
        assert (likely.classes == numbers[:, None] % 997 + [0, 1]).all()
        assert (likely.probabilities == [0.5, PEOPLE.index(person)]).all()
    found = past.features[:, -1].astype(int).tolist()
    assert past.photos == tuple(f"{person}{number}" for number in found), "foreign or mixed up"
    assert (past.features[:, 0] == PEOPLE.index(person)).all()
    assert (past.features[:, 1:] == np.array(found)[:, None]).all()
    return found


def kill_stores_at_random(killing, folder, mode, kills, seed):
    import numpy as np

    rng, capacity = random.Random(seed), MODES[mode]
    acknowledged = {person: [] for person in PEOPLE}
    for person in PEOPLE:
        with FeatureHistory(folder / person, capacity=capacity) as history:
            for number in FOREIGN:
                history.append("theirs", f"{number}", np.full(WIDTH, number, dtype=np.float32))
    interrupted = 0
    with killing.nursery(STORE, folder) as process:
        for kill in range(kills):
            if mode == "recover":
                with (folder / "anna").open("r+b") as file:
                    file.write(bytes(4096))
            lines = rng.randrange(2 if mode == "recover" else 8)  # a slow machine may not get past a recovery in time
            delay = rng.uniform(0, 0.05 if mode == "recover" else 0.003)
            printed = killing.killed_writer(process, f"{mode} {kill * 1000}", lines, delay)
            interrupted += any((folder / f"anna.{step}").exists() for step in ("salvaging", "salvaged"))
            in_doubt = set()
            for what, person, number in printed:
                if what == "stored":
                    acknowledged[person].append(int(number))
                elif what == "erasing":
                    in_doubt.add(int(number))
                    acknowledged[person].remove(int(number))
                else:
                    in_doubt.remove(int(number))
            for person in PEOPLE:
                found = stored_numbers(folder, person, capacity, mode == "recover")
                expected = acknowledged[person][1 - capacity :]  # one more may have been stored, but not acknowledged
                assert set(expected) <= set(found), f"kill {kill}: an acknowledged photo was forgotten"
                more = set(found) - set(acknowledged[person]) - in_doubt
                assert len(more) <= 1, f"kill {kill}: photos that were erased, or never stored"
                acknowledged[person] = found
            for file in folder.glob("*.damaged-*"):
                file.unlink()
    assert sum(map(len, acknowledged.values())) >= 3, "the kills came before there was anything to lose"
    return interrupted


@pytest.mark.parametrize("mode", MODES)
def test_what_the_store_acknowledged_survives_kill_9(killing, mode, tmp_path):
    kill_stores_at_random(killing, tmp_path, mode, kills=15, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_what_the_store_acknowledged_survives_hundreds_of_kills(killing, mode, tmp_path):
    interrupted = kill_stores_at_random(killing, tmp_path, mode, kills=KILLS // len(MODES), seed=1)
    assert bool(interrupted) == (mode == "recover")


# ---- the recogniser and its store

# One thread per program, so that a fork is safe.
RECOGNISER = """
import hashlib, io, os, sys
from pathlib import Path
from PIL import Image
from refocus.edge.bundle.load import load_bundle
from refocus.edge.history.feature_history import RetentionPolicy
from refocus.edge.recognize.recognizer import Recognizer

recognizer = Recognizer(load_bundle(Path(sys.argv[1])), threads=1, keeping=RetentionPolicy(capacity=64))
letter = Image.open(sys.argv[3]).convert("RGB")

def photo(number):  # every number is another photo
    copy, stream = letter.copy(), io.BytesIO()
    copy.putpixel((0, 0), (number & 255, number >> 8 & 255, number >> 16 & 255))
    copy.save(stream, "PNG", compress_level=0)
    return stream.getvalue()

recognizer.recognize(photo(0), remember=False)
print("warm", flush=True)
for line in sys.stdin:
    start = int(line)
    child = os.fork()
    if child == 0:
        recognizer.switch(Path(sys.argv[2]))
        os.write(1, b"ready %d\\n" % os.getpid())
        for number in range(start, start + 10_000):
            content = photo(number)
            answer = recognizer.recognize(content)
            os.write(1, f"{hashlib.sha256(content).hexdigest()} {answer.labels[0]}\\n".encode())
        os._exit(0)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def kill_recognisers_at_random(killing, bundle, profile, letter, kills, seed):
    rng, answered = random.Random(seed), 0
    with killing.nursery(RECOGNISER, bundle.folder, profile, letter) as process:
        for kill in range(kills):
            delay = rng.uniform(0, 0.01)  # somewhere inside one of the next photos
            printed = killing.killed_writer(process, 1 + kill * 10_000, rng.randrange(5), delay)
            with FeatureHistory(profile, capacity=64) as history:
                spaces = history.spaces()
                stored = [
                    photo for space, about in spaces.items() for photo in history.recall(space, 64, about.width).photos
                ]
                assert len(spaces) <= 1
                assert history.damaged == 0
            digests = [words[0] for words in printed]
            assert set(digests[-64:]) <= set(stored), f"kill {kill}: an answered photo was forgotten"
            answered += len(digests)
    assert answered > kills, "the kills came before there was anything to lose"


def test_every_answered_photo_is_remembered_after_kill_9(killing, bundle, photo_file, tmp_path):
    kill_recognisers_at_random(killing, bundle, tmp_path / "p.sqlite3", photo_file, kills=10, seed=0)


@pytest.mark.slow
def test_every_answered_photo_is_remembered_after_hundreds_of_kills(killing, bundle, photo_file, tmp_path):
    kill_recognisers_at_random(killing, bundle, tmp_path / "p.sqlite3", photo_file, KILLS, seed=1)
