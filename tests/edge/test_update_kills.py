"""``kill -9`` in every state of an update: the device comes up with the old or the new release, whole, with its history.

``REFOCUS_UPDATE_KILLS=500`` makes the random kills of a release test.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter

import numpy as np
import pytest

from edge.history import FeatureHistory
from edge.recognizer import Recognizer
from edge.serving import Serving

KILLS = int(os.environ.get("REFOCUS_UPDATE_KILLS", "8"))
SEEN = 8

# An update there, a person served, and back; over and over, or once.
WORKER = """
import os, signal, sys
from pathlib import Path
import msgspec
import onnxruntime, tuf.ngclient, edge.check, edge.migration  # so that a fork need not
from edge.serving import Serving
from edge.slots import Slots
from edge.update_source import Source
from edge.updates import Settings, Updates

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

class Dying(Slots):
    "Kills its process before or after one change of the record: left is 2n or 2n + 1."
    left = -1
    def change(self, change):
        self.moment()
        found = super().change(change)
        self.moment()
        return found
    def moment(self):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

def life(folder, left, forever):
    slots = Dying(folder)
    slots.left = left
    settings = Settings(folder / "profiles", threads=1)
    record = slots.read()
    updates = Updates(slots, settings, Source(folder / "metadata", record.url, slots.root, "phone"))
    profile, photo = folder / "profiles" / "anna.history.sqlite3", (folder.parent / "0.png")
    while True:
        slots.change(lambda record: msgspec.structs.replace(record, refused={}) if forever and record.refused else None)
        say("look")
        updates.look()
        updates.run()
        with Serving(slots, settings, profile) as serving:
            serving.recognize(photo.read_bytes(), str(photo))
        if slots.read().active.number == 2:
            updates.back("and back")
            updates.run()
        if not forever:
            break
    say("did")

say("warm")
for line in sys.stdin:
    folder, left, forever = line.split()
    child = os.fork()
    if child == 0:
        say("ready", os.getpid())
        life(Path(folder), int(left), forever == "forever")
        os._exit(0)
    os.waitpid(child, 0)
    say("gone")
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def person(fleet, stream, other_encoder):
    """A fleet with a second release to come, whose device has served a person; the identities of their photos."""
    device, files = fleet.device(), []
    profile = device.settings.profiles / "anna.history.sqlite3"
    profile.unlink()
    with Serving(device.slots, device.settings, profile) as serving:
        for number, content in enumerate(stream[:SEEN]):
            files.append(fleet.folder / f"{number}.png")
            files[-1].write_bytes(content)
            serving.recognize(content, str(files[-1]))
        photos = serving.recognizer.history.recall(serving.recognizer.space, 99, serving.recognizer.width).photos
    fleet.publish(other_encoder)
    return fleet, profile, photos


@pytest.fixture
def expected(bundle, other_encoder, stream):
    """By bundle, the answer to one more photo after all that the person has shown."""
    found = {}
    for made in (bundle, other_encoder):
        with Recognizer(made, threads=1) as recognizer:
            *_, found[made.manifest.name] = recognizer.replay(recognizer.encode(c) for c in stream[: SEEN + 1])
    return found


def comes_up(person, expected, stream):
    """Opens the device as after a restart; asserts that it serves one release, whole, with its history."""
    fleet, profile, photos = person
    device = fleet.device()
    with Serving(device.slots, device.settings, profile) as serving:
        answer = serving.recognize(stream[SEEN], remember=False)
        name = serving.recognizer.manifest.name
        history = serving.recognizer.history.recall(serving.recognizer.space, 99, serving.recognizer.width)
        assert history.photos == photos, f"{name} serves, and not all of its history is there"
        np.testing.assert_allclose(answer.logits, expected[name].logits, atol=1e-5)
        assert serving.recognizer.history.damaged == 0
    return name


def test_killed_before_and_after_every_change_of_the_record_the_device_comes_up(killing, person, expected, stream,
                                                                               tmp_path, updating, bundle):  # fmt: skip
    fleet, _, photos = person
    found = Counter()
    with killing.nursery(WORKER) as process:
        for moment in itertools.count():
            copy = updating.Fleet(tmp_path / str(moment), bundle, fleet.folder)
            try:
                process.stdin.write(f"{copy.folder / 'device'} {moment} once\n")
                process.stdin.flush()
                lines = [line.strip() for line in iter(process.stdout.readline, "gone\n")]
                one = copy, copy.folder / "device" / "profiles" / "anna.history.sqlite3", photos
                stage = copy.device().slots.read().stage
                found[stage, comes_up(one, expected, stream)] += 1
                if lines[-1] == "did":
                    break
                copy.device().run()  # what was begun goes on, and ends
                comes_up(one, expected, stream)
                assert copy.device().slots.read().stage in ("trial", "settled")
            finally:
                copy.server.close()
    assert {stage for stage, _ in found} == {"settled", "staging", "testing", "moving", "trial", "returning"}
    assert {name for _, name in found} == set(expected)


def test_killed_at_random_moments_the_device_comes_up(killing, person, expected, stream):
    fleet, _, _ = person
    rng, stages, names = random.Random(0), Counter(), Counter()
    with killing.nursery(WORKER) as process:
        for _ in range(KILLS):
            process.stdin.write(f"{fleet.folder / 'device'} -1 forever\n")
            process.stdin.flush()
            ready, pid = process.stdout.readline().split()
            assert ready == "ready"
            time.sleep(rng.uniform(0.02, 2.5))
            os.kill(int(pid), 9)
            lines = list(iter(process.stdout.readline, "gone\n"))
            assert "did\n" not in lines
            stages[fleet.device().slots.read().stage] += 1
            names[comes_up(person, expected, stream)] += 1
    assert len(stages) > 1, "all kills hit one stage"
    with FeatureHistory(person[1]) as history:
        assert history.recovered is None
