"""``Recognizer.open``: a bundle and a profile by name, and photos as files, bytes or images."""

from __future__ import annotations

import io
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from refocus.edge import BundleError, PhotoError, Recognizer, RefocusError, RuntimeUnavailable, load_bundle
from refocus.edge.recognize.recognizer import profile_path


@pytest.fixture
def anna(bundle, tmp_path):
    with Recognizer.open(bundle.folder, profile="anna", profiles=tmp_path / "profiles") as opened:
        yield opened


def test_a_profile_by_name_is_the_one_that_the_command_grows(refocus, bundle, photo_file, stream, tmp_path):
    done = refocus("recognize", bundle.folder, photo_file, "--profile", "anna", "--profiles", tmp_path / "p")
    assert done.returncode == 0, done.stderr
    with Recognizer.open(str(bundle.folder), profile="anna", profiles=str(tmp_path / "p")) as recognizer:
        assert len(recognizer.recognize(stream[1]).attention) == 2


def test_without_a_folder_profiles_are_the_users_own(bundle, stream, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with Recognizer.open(bundle.folder, profile="anna") as recognizer:
        recognizer.recognize(stream[0])
    assert profile_path(tmp_path / "refocus" / "profiles", "anna").is_file()


def test_without_a_profile_nothing_is_kept(bundle, stream, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with Recognizer.open(bundle.folder) as recognizer:
        recognizer.recognize(stream[0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", ["recognize", "leave", "close", "switch"])
def test_a_profile_used_from_another_thread_is_refused_and_stays_usable(call, anna, stream):
    arguments = {"recognize": [stream[0]], "switch": [None]}.get(call, [])
    with ThreadPoolExecutor(1) as other, pytest.raises(RefocusError, match="one recognizer per thread"):
        other.submit(getattr(anna, call), *arguments).result()
    anna.recognize(stream[0])
    assert len(anna.recognize(stream[1]).attention) == 2


def test_without_a_profile_a_recogniser_may_be_handed_to_another_thread(bundle, stream):
    with Recognizer.open(bundle.folder) as recognizer, ThreadPoolExecutor(1) as other:
        there = other.submit(recognizer.recognize, stream[0]).result()
        np.testing.assert_array_equal(there.logits, recognizer.recognize(stream[0]).logits)


def test_a_file_its_bytes_and_its_image_get_one_answer(bundle, photo_file):
    with Recognizer.open(bundle.folder) as recognizer, Image.open(photo_file) as lazy:
        given = (photo_file, str(photo_file), photo_file.read_bytes(), lazy, lazy.convert("RGB"))
        answers = [recognizer.recognize(photo) for photo in given]
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer.logits, answers[0].logits)


def test_the_best_labels_come_with_their_probabilities(bundle, photo_file):
    with Recognizer.open(bundle.folder) as recognizer:
        answer = recognizer.recognize(photo_file)
    assert answer.label == answer.labels[0] == answer.top(1)[0][0]
    assert len(answer.top()) == 5
    assert answer.top(5)[4] == (answer.labels[4], pytest.approx(answer.probabilities[4]))
    assert sum(chance for _, chance in answer.top(10**9)) == pytest.approx(1, abs=1e-5)
    with pytest.raises(RefocusError, match="expected 1 label or more"):
        answer.top(0)


def test_an_image_recognised_again_never_meets_itself(anna, stream):
    def image(content):
        return Image.open(io.BytesIO(content))

    anna.recognize(image(stream[0]))
    assert len(anna.recognize(image(stream[1])).attention) == 2
    assert len(anna.recognize(image(stream[1])).attention) == 2
    assert anna.history.count(anna.space) == 2


def test_a_file_is_named_in_explanations_by_its_path(anna, photo_file, stream):
    anna.recognize(photo_file)
    assert anna.recognize(stream[1]).history_names == (str(photo_file.resolve()),)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "I;16"])
def test_an_image_in_another_mode_is_recognised_and_left_as_it_was(bundle, mode):
    random = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    image = Image.fromarray(random).convert("L" if mode == "I;16" else mode)
    image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257) if mode == "I;16" else image
    image.info["transparency"] = 0
    before = image.tobytes()
    with Recognizer.open(bundle.folder) as recognizer:
        found = recognizer.recognize(image).logits
        grey = recognizer.recognize(Image.fromarray(random).convert("L")).logits
    assert (image.tobytes(), image.info["transparency"]) == (before, 0)
    if mode in ("L", "I;16"):
        np.testing.assert_allclose(found, grey, atol=1e-4)


@pytest.mark.parametrize("mode", ["F", "I"])
def test_an_image_of_an_unknown_scale_is_refused(bundle, mode):
    with Recognizer.open(bundle.folder) as recognizer, pytest.raises(PhotoError, match="convert it to mode L, I;16 or"):
        recognizer.recognize(Image.new("L", (40, 40), 9).convert(mode))


def test_an_image_is_turned_as_its_exif_data_say(bundle, stream):
    image = Image.open(io.BytesIO(stream[0])).convert("RGB")
    turned, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    image.rotate(90, expand=True).save(turned, "PNG", exif=exif)
    with Recognizer.open(bundle.folder) as recognizer:
        wanted, other = recognizer.recognize(image), recognizer.recognize(image.rotate(90, expand=True))
        found = recognizer.recognize(Image.open(turned))
    np.testing.assert_array_equal(found.logits, wanted.logits)
    assert (found.logits != other.logits).any()


def truncated():
    stream = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(stream, "PNG")
    return Image.open(io.BytesIO(stream.getvalue()[:900]))


BAD_PHOTOS = {
    "array": (np.zeros((8, 8, 3)), "photo is of type ndarray; expected the path of a photo"),
    "nothing": (None, "is of type NoneType"),
    "missing": ("no/such.png", "no/such.png cannot be read"),
    "not a path": ("a\0b", "cannot be read"),
    "empty": (b"", "photo is empty"),
    "text": (b"dear diary", "photo is not a photo"),
    "without pixels": (Image.new("RGB", (0, 5)), "has 0x5 pixels"),
    "huge": (Image.new("1", (20_000, 20_000)), "has 20000x20000 pixels"),
    "no colours": (Image.new("La", (4, 4)), "cannot be used .* convert it to RGB"),
    "truncated": (truncated(), "cannot be used"),
}


@pytest.mark.parametrize("name", BAD_PHOTOS)
def test_what_is_no_photo_gets_one_typed_error_and_is_not_kept(anna, name):
    photo, message = BAD_PHOTOS[name]
    with pytest.raises(PhotoError, match=message):
        anna.recognize(photo)
    assert anna.history.count(anna.space) == 0


BAD_CALLS = {
    "bundle of another type": ({"bundle": 5}, BundleError, "of type int: expected the path"),
    "no bundle": ({"bundle": "nowhere"}, BundleError, "nowhere is not a bundle"),
    "profile of another type": ({"profile": 5}, RefocusError, "expected a name, such as 'anna'"),
    "profile that leaves its folder": ({"profile": "../anna"}, RefocusError, "^profile '../anna'.*ASCII letters"),
    "profile with letters that are not ASCII": ({"profile": "änna"}, RefocusError, "^profile 'änna'.*ASCII letters"),
    "threads as text": ({"threads": "2"}, RefocusError, "threads '2': expected a whole number, 0 to 256"),
    "half a thread": ({"threads": 1.5}, RefocusError, "threads 1.5: expected a whole number"),
    "time limit as text": ({"time_limit": "2"}, RefocusError, "time_limit '2': expected seconds"),
    "unknown runtime": ({"runtime": "abacus"}, BundleError, "has no encoder for abacus:fp32"),
    "unknown precision": ({"precision": "fp7"}, BundleError, "has no encoder for onnxruntime:fp7"),
    "unknown head": ({"head": "nobody"}, BundleError, "nobody"),
    "unknown memory": ({"memory": "best"}, RefocusError, "--memory best"),
    "threads": ({"threads": -1}, RefocusError, "threads -1"),
    "too many threads": ({"threads": 10**6}, RefocusError, "threads 1000000"),
    "time": ({"time_limit": -1}, RefocusError, "time_limit -1"),
    "provider": ({"provider": "abacus"}, RuntimeUnavailable, "--provider abacus"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_wrong_argument_gets_one_typed_error(bundle, tmp_path, name):
    arguments, error, message = BAD_CALLS[name]
    with pytest.raises(error, match=message) as raised:
        Recognizer.open(**{"bundle": bundle.folder, "profile": "anna", "profiles": tmp_path / "p"} | arguments)
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "p").exists()


def test_a_folder_of_profiles_that_is_a_file_is_refused(bundle, photo_file):
    with pytest.raises(RefocusError):
        Recognizer.open(bundle.folder, profile="anna", profiles=photo_file)


def test_a_damaged_bundle_opens_no_profile(bundle, tmp_path):
    folder = shutil.copytree(bundle.folder, tmp_path / "bundle")
    (folder / bundle.artifact("encoder", "onnxruntime").file).write_bytes(b"other")
    with pytest.raises(BundleError):
        Recognizer.open(folder, profile="anna", profiles=tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_a_loaded_bundle_and_a_file_of_a_history_still_make_a_recognizer(bundle, stream, tmp_path):
    with Recognizer(load_bundle(bundle.folder), tmp_path / "p.sqlite3") as recognizer:
        assert recognizer.recognize(stream[0], "photo.png", False).label
