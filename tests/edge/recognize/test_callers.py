"""What a program does around a recogniser changes none of its answers."""

from __future__ import annotations

import io
import json
import os
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from refocus.edge.errors import RefocusError, RuntimeUnavailable
from refocus.edge.files import default_profiles
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.recognize.recognizer import Recognizer


def test_a_caller_may_change_the_feature_of_an_answer(bundle, stream, tmp_path):
    found = []
    for name, change in (("as it is", False), ("changed", True)):
        with Recognizer(bundle, tmp_path / name, threads=1) as device:
            for photo in stream[:6]:
                answer = device.recognize(photo)
                if change:
                    answer.feature[:] = 0
            found.append(device.recognize(stream[6]).logits)
    np.testing.assert_array_equal(*found)


def test_a_replay_may_be_fed_from_one_buffer(bundle, stream):
    with Recognizer(bundle, None, threads=1) as device:
        features = [device.encode(photo) for photo in stream[:5]]
        wanted = [answer.logits for answer in device.replay(features)]
        buffer = np.zeros_like(features[0])

        def refilled():
            for feature in features:
                buffer[:] = feature
                yield buffer

        for answer, right in zip(device.replay(refilled()), wanted, strict=True):
            np.testing.assert_array_equal(answer.logits, right)


def test_threads_that_share_a_recogniser_without_a_profile_answer_one_at_a_time(bundle, stream):
    with Recognizer(bundle, None, threads=1) as device:
        state, inside, together = device._past, [], []

        class Watched:
            def restart(self, *past):
                inside.append(threading.get_ident())
                time.sleep(0.002)
                state.restart(*past)

            def answer(self, *photo):
                found = state.answer(*photo)
                together.append(len(set(inside)))
                inside.remove(threading.get_ident())
                return found

        device._past = Watched()
        features = [device.encode(photo) for photo in stream[:2]]
        none = np.zeros((0, device.width), dtype=np.float32)
        threads = [
            threading.Thread(target=lambda f=f: [device.answer(f, none) for _ in range(20)]) for f in features
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        device._past = state
    assert together == [1] * 40


def test_half_a_photo_is_refused_whatever_the_program_told_pillow(bundle, stream, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with (
        Recognizer(bundle, None, threads=1) as device,
        pytest.raises(RuntimeUnavailable, match="LOAD_TRUNCATED_IMAGES.*set it to False"),
    ):
        device.recognize(stream[0][: len(stream[0]) // 2])


@pytest.mark.parametrize(
    ("values", "tags", "said"),
    [(np.uint16, {262: 0}, "16 bits, in which 0 is white"), (np.int32, {}, "32 bits"), (np.float32, {}, "floating point")],
)  # fmt: skip
def test_grey_of_another_scale_is_refused_and_not_taken_for_black(bundle, values, tags, said):
    ramp = np.tile(np.arange(64, dtype=values), (64, 1))
    written = io.BytesIO()
    Image.fromarray(ramp).save(written, "TIFF", tiffinfo=tags)
    with Recognizer(bundle, None, threads=1) as device, pytest.raises(RefocusError, match=f"has grey of {said}"):
        device.recognize(written.getvalue())


def test_a_user_without_a_home_recognises_where_profiles_are_given(bundle, stream, tmp_path, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    with Recognizer.open(bundle.folder, profile="anna", profiles=tmp_path) as device:
        assert device.recognize(stream[0]).label
    with pytest.raises(RefocusError, match="no home folder for profiles; say where they live"):
        default_profiles()


def test_weights_are_found_after_the_program_changed_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = PersonalWeightStore(Path("weights"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert store.get("anna", "a" * 64) is None
    assert list(Path().iterdir()) == []


def test_a_time_limit_of_centuries_is_none(bundle, stream, capfd):
    with Recognizer(bundle, None, threads=1, time_limit=float("inf")) as device:
        assert device.recognize(stream[0]).label
    assert "Traceback" not in capfd.readouterr().err


def test_photos_around_a_bad_one_are_answered_stored_and_printed(bundle, stream, tmp_path, refocus):
    (tmp_path / "é😀.png").write_bytes(stream[0])
    (tmp_path / "bad.png").write_bytes(b"no photo")
    (tmp_path / "last.png").write_bytes(stream[1])
    words = (
        "recognize",
        bundle.folder,
        "é😀.png",
        "bad.png",
        "last.png",
        "--profile",
        "anna",
        "--profiles",
        tmp_path / "p",
        "--json",
    )
    ascii_alone = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = refocus(*words, cwd=tmp_path, env=ascii_alone)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "1 of 3 photos could not be used"
    (line,) = done.stderr.splitlines()[:-1]
    assert re.fullmatch("not used: .*bad.png is not a photo.*", line)
    first, bad, last = json.loads(done.stdout)
    assert [first["photo"], first["history"], first["error"]] == ["é😀.png", 0, None]
    assert [last["photo"], last["history"], last["error"]] == ["last.png", 1, None]
    assert "not used: " + bad.pop("error") == line
    assert bad == {"photo": "bad.png", "answer": [], "trust": None, "history": None}
