"""``kill -9`` in every stage of a move: one stage is found, nothing acknowledged is lost, and it goes on from there."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.migration.migration import Migration
from refocus.edge.migration.stages import SETTING, STAGES, read_record
from refocus.edge.recognize.recognizer import Recognizer

KILLS = int(os.environ.get("REFOCUS_KILLS", "100"))

# Models are numbers, so that everything found afterwards can be compared with what must be there.
WRITER = """
import hashlib, os, signal, sys
from pathlib import Path
import numpy as np
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.migration.dual_write_recognizer import _store
from refocus.edge.migration.migration import Migration
from refocus.edge.migration.stages import read_record

D = 256

class Numbers:
    width, window = D, 12
    def __init__(self, space, factor):
        self.space, self.factor = space, factor
    def encode(self, content, where="photo"):
        return np.full(D, self.factor * int(content), dtype=np.float32)

MODELS = {model.space: model for model in (Numbers("a", 1), Numbers("b", -1))}

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

class Dying(FeatureHistory):
    "Kills its process before or after one transaction or scrub: left is 2n or 2n + 1."
    left = -1
    def _dying(self, do, *given, **more):
        self._moment()
        result = do(*given, **more)
        self._moment()
        return result
    def _moment(self):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
    def transaction(self, *given, **more):
        return self._dying(super().transaction, *given, **more)
    def scrub(self):
        return self._dying(super().scrub)

class Person:
    def __init__(self, folder, left=-1):
        self.folder = folder
        self.history = Dying(folder / "p", capacity=5000, max_bytes=1 << 30)
        self.history.left = left
        self.move = Migration(self.history, MODELS["a"], MODELS["b"])

    def turn(self):
        "After a finish the next move goes the other way."
        _, record = read_record(self.history)
        old, new = ("a", "b") if record is None else (record.old, record.new)
        if record is not None and record.stage == "finished":
            old, new = new, old
        self.move = Migration(self.history, MODELS[old], MODELS[new])

    def see(self, number, sides=None):
        content = b"%d" % number
        file = self.folder / f"{number}.jpg"
        file.write_bytes(content)
        photo, stored = hashlib.sha256(content).hexdigest(), None
        while stored is None:
            state = self.move.state
            spaces = [self.move.space(side) for side in sides or state.now.keeps]
            features = {space: MODELS[space].encode(content) for space in spaces}
            stored = _store(self.history, state, photo, features, str(file))

    def do(self, what, number):
        say("doing", what, number)
        if what == "see":
            self.see(number)
        elif what == "alone":
            self.see(number, sides=("new",))
        elif what == "work":
            self.move.step()
        elif what == "step":
            self.move.step(photos=2)
        else:
            getattr(self.move, what)()
        say("did", what, number, self.move.state.stage)

CYCLES = {
    "warming": "start step see step see step see step back work",
    "switched": "start step switch see step see step back work",
    "returning": "start switch alone see alone alone back step see step work",
    "leaving": "start step see back work",
    "finishing": "start switch see work finish",
}
SCRIPT = "see see see see see start see step see step see work see alone back see work start see work see finish see"

def endless(mode, folder, number):
    person = Person(folder)
    while True:
        person.turn()
        for what in CYCLES[mode].split():
            number += 1
            person.do(what, number)

def scripted(folder, begin, left):
    person = Person(folder, left)
    for number, what in enumerate(SCRIPT.split()):
        if number >= begin:
            person.do(what, number)

say("warm")
for line in sys.stdin:
    mode, folder, *numbers = line.split()
    child = os.fork()
    if child == 0:
        say("ready", os.getpid())
        if mode == "scripted":
            scripted(Path(folder), *map(int, numbers))
        else:
            endless(mode, Path(folder), *map(int, numbers))
        os._exit(0)
    os.waitpid(child, 0)
    say("gone")
"""
D, FACTORS = 256, {"a": 1, "b": -1}
NEXT = {  # what one step or decision may lead to
    "settled": {"warming"},
    "warming": {"switched", "returning"},
    "switched": {"returning", "finishing"},
    "returning": {"warming", "leaving"},
    "leaving": {"settled"},
    "finishing": {"finished"},
    "finished": {"warming"},
}


def numbers(folder, history, space):
    """What one history holds, in order, after everything in it was compared with what must be there."""
    past = history.recall(space, 5000, D)
    found = [int(value) for value in past.features[:, 0] * FACTORS[space]]
    assert (past.features == np.array(found)[:, None] * FACTORS[space]).all(), "features of another model"
    assert list(past.photos) == [hashlib.sha256(b"%d" % number).hexdigest() for number in found]
    assert list(past.names) == [str(folder / f"{number}.jpg") for number in found]
    assert found == sorted(found), "not in the order in which they were seen"
    return found


def what_is_there(folder):
    """Stage, and the numbers that the old and the new history hold."""
    with FeatureHistory(folder / "p") as history:
        _, record = read_record(history)
        stage, old, new = (record.stage, record.old, record.new) if record else ("settled", "a", "b")
        assert history.damaged == 0
        assert history.recovered is None
        found = stage, numbers(folder, history, old), numbers(folder, history, new)
        if history.labels():
            assert history.labels() == {"photo": "a cat"}
            assert history.settings().keys() - {SETTING} == {"policy"}
    return found


def reachable(stage, steps=3):
    found = {stage}
    for _ in range(steps):
        found |= set().union(*(NEXT[name] for name in found))
    return found


def kill_at_random(killing, folder, mode, kills, seed):
    """Returns how often each stage was found after a kill; on a busy machine some more kills until one is in ``mode``."""
    rng, seen, both, stage = random.Random(seed), set(), set(), "settled"
    stages = Counter()
    with FeatureHistory(folder / "p") as history:
        history.set_label("photo", "a cat")
        history.set_setting("policy", "newest")
    with killing.nursery(WRITER) as process:
        for kill in range(5 * kills):
            if kill >= kills and stages[mode]:
                break
            lines, delay = rng.randrange(20), rng.uniform(0, 0.008)
            printed = killing.killed_writer(process, f"{mode} {folder} {kill * 10_000}", lines, delay)
            doing = "see"
            for word, what, number, *then in printed:
                doing = what if word == "doing" else "nothing"
                if word == "did":
                    (stage,) = then
                    if what in ("see", "alone"):
                        seen.add(int(number))
                        both = both | {int(number)} if what == "see" else both
            found, old, new = what_is_there(folder)
            stages[found] += 1
            assert found in ({stage} if doing in ("see", "alone", "nothing") else reachable(stage)), (stage, doing)
            if "old" in STAGES[found].keeps:
                assert both <= set(old), f"kill {kill} while {found}: an acknowledged photo is not in the old history"
                assert seen <= set(old) | set(new), f"kill {kill} while {found}: an acknowledged photo was forgotten"
            else:
                assert seen <= set(new), f"kill {kill} while {found}: an acknowledged photo was not taken over"
            if found in ("settled", "leaving"):
                assert seen <= set(old), f"kill {kill} while {found}: erased before it was computed"
            stage = found
    assert len(seen) > kills / 4, "the kills came before there was anything to lose"
    return stages


def test_killed_while_warming_goes_on_where_it_was(killing, tmp_path):
    assert kill_at_random(killing, tmp_path, "warming", kills=12, seed=0)["warming"]


def test_killed_after_the_switch_goes_on_with_both_histories(killing, tmp_path):
    assert kill_at_random(killing, tmp_path, "switched", kills=12, seed=0)["switched"]


def test_killed_on_the_way_back_still_takes_the_new_photos_along(killing, tmp_path):
    assert kill_at_random(killing, tmp_path, "returning", kills=12, seed=0)["returning"]


def test_killed_while_the_new_history_is_erased_keeps_the_old_one_whole(killing, tmp_path):
    assert kill_at_random(killing, tmp_path, "leaving", kills=12, seed=0)["leaving"]


def test_killed_while_the_old_history_is_erased_keeps_the_new_one_whole(killing, tmp_path):
    assert kill_at_random(killing, tmp_path, "finishing", kills=12, seed=0)["finishing"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["warming", "switched", "returning", "leaving", "finishing"])
def test_no_stage_loses_anything_in_many_kills(mode, killing, tmp_path):
    assert kill_at_random(killing, tmp_path, mode, kills=max(20, KILLS // 5), seed=1)[mode]


def run_script(process, folder, begin=0, left=-1):
    """Runs the writer's script from one of its acts on; the number of the last act it began, and whether it ended."""
    process.stdin.write(f"scripted {folder} {begin} {left}\n")
    process.stdin.flush()
    lines = [line.split() for line in iter(process.stdout.readline, "gone\n")]
    return int(lines[-1][2]), lines[-1][0] == "did"


@pytest.mark.slow
def test_killed_before_and_after_every_transaction_ends_where_it_would_have(killing, tmp_path):
    """A whole life, there and back and there for good: what was interrupted is begun again, and the end is the same."""
    found = Counter()
    with killing.nursery(WRITER) as process:
        (tmp_path / "undisturbed").mkdir()
        run_script(process, tmp_path / "undisturbed")
        end = what_is_there(tmp_path / "undisturbed")
        for moment in itertools.count():
            folder = tmp_path / str(moment)
            folder.mkdir()
            act, whole = run_script(process, folder, left=moment)
            if whole:
                break
            found[what_is_there(folder)[0]] += 1
            run_script(process, folder, begin=act)
            assert what_is_there(folder) == end, f"killed at moment {moment}, in act {act}"
    assert end == ("finished", [], [0, 1, 2, 3, 4, 6, 8, 10, 12, 13, 15, 18, 20, 22])
    assert found.keys() == STAGES.keys(), "a stage in which nothing was killed"


# ---- the recogniser over two real bundles

RECOGNISER = """
import hashlib, io, os, sys
from pathlib import Path
from PIL import Image
from refocus.edge.bundle.load import load_bundle
from refocus.edge.migration.dual_write_recognizer import DualWriteRecognizer
from refocus.edge.recognize.recognizer import Recognizer

bundles, folder = [load_bundle(Path(name)) for name in sys.argv[1:3]], Path(sys.argv[3])
old, new = (Recognizer(bundle, threads=1) for bundle in bundles)
letter = Image.open(sys.argv[4]).convert("RGB")

def photo(number):  # every number is another photo
    copy, stream = letter.copy(), io.BytesIO()
    copy.putpixel((0, 0), (number & 255, number >> 8 & 255, number >> 16 & 255))
    copy.save(stream, "PNG", compress_level=0)
    return stream.getvalue()

for recognizer in (old, new):
    recognizer.recognize(photo(0), remember=False)
print("warm", flush=True)
for line in sys.stdin:
    start = int(line)
    child = os.fork()
    if child == 0:
        recognizer = DualWriteRecognizer(old, new, folder / "p.sqlite3")
        os.write(1, b"ready %d\\n" % os.getpid())
        for number in range(start, start + 10_000):
            content, file = photo(number), folder / f"{number}.png"
            file.write_bytes(content)
            answer = recognizer.recognize(content, str(file))
            os.write(1, f"{hashlib.sha256(content).hexdigest()}\\n".encode())
            [recognizer.migration.start, recognizer.migration.step, lambda: None, recognizer.migration.back,
             recognizer.migration.step][number % 5]()
        os._exit(0)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def kill_recognisers_at_random(killing, old, new, folder, letter, kills, seed):
    rng, answered = random.Random(seed), set()
    with killing.nursery(RECOGNISER, old.folder, new.folder, folder, letter) as process:
        for kill in range(kills):
            start = 1 + kill * 10_000
            printed = killing.killed_writer(process, start, 1 + rng.randrange(6), rng.uniform(0, 0.03))
            answered |= {words[0] for words in printed}
            with FeatureHistory(folder / "p.sqlite3") as history:
                spaces = history.spaces()
                held = {space: set(history.recall(space, 256, about.width).photos) for space, about in spaces.items()}
                assert history.damaged == 0
            space = old.artifact("encoder", "onnxruntime").feature_space
            assert answered <= held[space], f"kill {kill}: an answered photo is not in the old history"
    with Recognizer(old, folder / "p.sqlite3") as mine, Recognizer(new) as theirs:
        move = Migration(mine.history, mine, theirs)
        move.start()
        move.step()
        assert (move.state.stage, move.left_out) == ("switched", {})
        past = [mine.history.recall(model.space, 256, model.width) for model in (mine, theirs)]
        assert past[0].photos == past[1].photos
        for model, one in zip((mine, theirs), past, strict=True):
            content = Path(one.names[-1]).read_bytes()
            np.testing.assert_allclose(one.features[-1], model.encode(content), atol=1e-5)


def test_every_answered_photo_is_in_the_old_history_after_kill_9(killing, bundle, new_bundle, photo_file, tmp_path):
    kill_recognisers_at_random(killing, bundle, new_bundle, tmp_path, photo_file, kills=8, seed=0)


@pytest.mark.slow
def test_every_answered_photo_is_in_the_old_history_after_many_kills(killing, bundle, new_bundle, photo_file, tmp_path):
    kill_recognisers_at_random(killing, bundle, new_bundle, tmp_path, photo_file, kills=min(KILLS // 4, 40), seed=1)
