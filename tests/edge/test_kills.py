"""``kill -9`` while photos are being recognised: what was answered is remembered, and the store opens again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from edge.history import FeatureHistory

# A warm process that holds a loaded recogniser and forks one writer per line it reads: loading costs a hundred times
# what a photo does, so kills would otherwise all hit the loading. One thread per program, so that a fork is safe.
NURSERY = """
import hashlib, io, os, sys
from pathlib import Path
from PIL import Image
from edge.bundle import load_bundle
from edge.history import FeatureHistory
from edge.recognizer import Recognizer

recognizer = Recognizer(load_bundle(Path(sys.argv[1])), threads=1)
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
        recognizer.history = FeatureHistory(Path(sys.argv[2]), capacity=64)
        os.write(1, b"ready %d\\n" % os.getpid())
        for number in range(start, start + 10_000):
            content = photo(number)
            answer = recognizer.recognize(content)
            os.write(1, f"{hashlib.sha256(content).hexdigest()} {answer.labels[0]}\\n".encode())
        os._exit(0)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def kill_recognisers_at_random(bundle, profile, letter, kills, seed):
    rng, answered = random.Random(seed), 0
    command = [sys.executable, "-c", NURSERY, str(bundle.folder), str(profile), str(letter)]
    nursery = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert nursery.stdout.readline() == "warm\n"
        for kill in range(kills):
            nursery.stdin.write(f"{1 + kill * 10_000}\n")
            nursery.stdin.flush()
            ready, pid = nursery.stdout.readline().split()
            assert ready == "ready"
            printed = [nursery.stdout.readline() for _ in range(rng.randrange(5))]
            time.sleep(rng.uniform(0, 0.01))  # somewhere inside one of the next photos
            os.kill(int(pid), signal.SIGKILL)
            printed += list(iter(nursery.stdout.readline, "gone\n"))
            with FeatureHistory(profile, capacity=64) as history:
                space = history._db.execute("select space from feature limit 1").fetchone()
                stored = history.recall(space[0], 64, 1292).photos if space else ()
                assert history.damaged == 0
            digests = [line.split()[0] for line in printed]
            assert set(digests[-64:]) <= set(stored), f"kill {kill}: an answered photo was forgotten"
            answered += len(digests)
    finally:
        nursery.kill()
        nursery.communicate()
    assert answered > kills, "the kills came before there was anything to lose"


def test_every_answered_photo_is_remembered_after_kill_9(bundle, photo_file, tmp_path):
    kill_recognisers_at_random(bundle, tmp_path / "p.sqlite3", photo_file, kills=10, seed=0)


@pytest.mark.slow
def test_every_answered_photo_is_remembered_after_1000_kills(bundle, photo_file, tmp_path):
    kills = int(os.environ.get("REFOCUS_KILLS", "1000"))
    kill_recognisers_at_random(bundle, tmp_path / "p.sqlite3", photo_file, kills, seed=1)
