"""Photos decoded in other processes: in order, the same bits, and a process that dies costs one photo."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from refocus.edge.bundle.manifest import Preprocessing
from refocus.edge.errors import RefocusError
from refocus.edge.photos import workers
from refocus.edge.photos.workers import AHEAD, prepare_file, prepare_files

CONTRACT = Preprocessing(resize_shorter=40, crop=32, mean=(0, 0, 0), std=(1, 1, 1), decoder="pillow-scaled")
DIES = workers._CODE.replace(
    "main()",
    "import os, refocus.edge.photos.workers as w; real = w.prepare_file; "
    "w.prepare_file = lambda file, *rest: os.kill(os.getpid(), 9) if 'dies' in file.name else real(file, *rest); main()",
)


@pytest.fixture
def files(tmp_path):
    """40 photos of several sizes, the sixth broken, the tenth missing."""
    made = []
    for number in range(40):
        path = tmp_path / f"{number:02}.jpg"
        pixels = np.random.default_rng(number).integers(0, 255, (50 + 20 * (number % 5), 80, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).resize((400, 300)).save(stream, "JPEG")
        path.write_bytes(stream.getvalue())
        made.append(path)
    made[5].write_bytes(made[5].read_bytes()[:500])
    made[9].unlink()
    return made


def as_known(found):
    return found.identity, found.taken, found.error, None if found.pixels is None else found.pixels.tobytes()


def running() -> set[int]:
    """The processes of this one that decode."""
    me, found = os.getpid(), set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == me and b"photos.workers" in (place / "cmdline").read_bytes():
                found.add(int(place.name))
    return found


def test_several_workers_give_what_one_gives_in_the_same_order(files):
    one = [*map(as_known, prepare_files(files, CONTRACT, workers=1))]
    assert [*map(as_known, prepare_files(files, CONTRACT, workers=3))] == one
    assert "05.jpg is damaged or truncated" in one[5][2]
    assert "09.jpg cannot be read" in one[9][2]
    assert sum(not error for _, _, error, _ in one) == 38
    assert not running()


def test_photos_whose_features_are_known_are_not_decoded(files):
    known = frozenset({hashlib.sha256(files[3].read_bytes()).hexdigest()})
    found = [*prepare_files(files, CONTRACT, known, workers=2)]
    assert found[3].identity in known
    assert (found[3].pixels, found[3].error) == (None, "")
    assert found[4].pixels is not None


def test_a_worker_that_dies_costs_its_photo_alone(files, monkeypatch):
    monkeypatch.setattr(workers, "_CODE", DIES)
    for number in (0, 20, 21, 39):
        files[number] = files[number].rename(files[number].with_name(f"{number:02} dies.jpg"))
    found = [*prepare_files(files, CONTRACT, workers=2)]
    dead = [number for number, each in enumerate(found) if "ended the process that decoded it (signal 9)" in each.error]
    assert dead == [0, 20, 21, 39]
    assert str(files[20]) in found[20].error
    for number in (1, 19, 22, 38):
        assert as_known(found[number]) == as_known(prepare_file(files[number], CONTRACT))
    assert not running()


def test_a_worker_that_does_not_start_is_one_error_that_says_why(files, monkeypatch):
    monkeypatch.setattr(workers, "_CODE", "raise SystemExit('no such library')")
    with pytest.raises(RefocusError, match=r"does not start \(no such library\); give --workers 1"):
        list(prepare_files(files, CONTRACT, workers=2))
    assert not running()


def test_a_consumer_that_stops_ends_the_workers_and_no_thread_stays(files):
    before = threading.active_count()
    prepared = prepare_files(files, CONTRACT, workers=2)
    assert len([*islice(prepared, 3)]) == 3
    assert 1 <= len(running()) <= 2
    prepared.close()
    assert not running()
    assert threading.active_count() == before


def test_only_so_many_photos_wait_for_a_slow_consumer(files, monkeypatch):
    asked = []
    monkeypatch.setattr(
        workers._Workers, "_prepare", lambda self, file: asked.append(file) or prepare_file(file, CONTRACT)
    )
    with contextlib.closing(prepare_files(files, CONTRACT, workers=2)) as prepared:
        for taken in range(1, 11):
            next(prepared)
            assert len(asked) <= taken + 2 * AHEAD + 1


def test_few_photos_are_decoded_here(files, monkeypatch):
    monkeypatch.setattr(workers._Workers, "_start", lambda self: pytest.fail("a process was started"))
    assert len([*prepare_files(files[: workers.PHOTOS_FOR_A_WORKER], CONTRACT, workers=4)]) == 8
