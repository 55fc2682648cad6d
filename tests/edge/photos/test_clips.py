"""Clips: a still photo, a truncated animation, too many frames or pixels, and frames in another order."""

from __future__ import annotations

import hashlib
import io
import struct

import numpy as np
import pytest
from PIL import Image

from refocus.edge.bundle import Preprocessing
from refocus.edge.errors import PhotoError
from refocus.edge.photos import clip, preprocess
from refocus.edge.photos.preprocess import cropped, preprocess_folder
from refocus.edge.photos.workers import prepare_files

CONTRACT = Preprocessing(
    resize_shorter=16, crop=16, mean=(0.5,) * 3, std=(0.5,) * 3, resize_filter="bilinear", frames=4
)


def frames(count=6, size=(16, 16)):
    """Frames of one grey each, 20 levels apart, with a dot, so that no writer takes two for one."""
    made = []
    for number in range(count):
        pixels = np.full((size[1], size[0], 3), 20 * number % 256, dtype=np.uint8)
        pixels[number % size[1], number // size[1] % size[0]] = 255
        made.append(Image.fromarray(pixels))
    return made


def encoded(pictures, kind="GIF", **more):
    stream = io.BytesIO()
    lossless = {"lossless": True} if kind == "WEBP" else {}
    pictures[0].save(stream, kind, save_all=True, append_images=pictures[1:], duration=50, **lossless, **more)
    return stream.getvalue()


def folder_of(path, pictures, names=None):
    path.mkdir()
    for number, picture in enumerate(pictures):
        picture.save(path / (names[number] if names else f"frame {number}.png"))
    return path


def levels(pixels):
    """The grey of each frame, from normalised pixels (1, T, 3, S, S)."""
    return np.median((pixels[0] + 1) * 127.5, axis=(1, 2, 3)).round().astype(int).tolist()


def test_frames_are_chosen_evenly():
    assert clip.evenly(8, 8) == list(range(8))
    assert clip.evenly(6, 4) == [0, 2, 3, 5]
    assert clip.evenly(2, 4) == [0, 0, 1, 1]
    assert clip.evenly(1000, 4) == [125, 375, 625, 875]


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_an_animation_gives_its_frames_in_order(kind):
    pixels = preprocess(encoded(frames(), kind), CONTRACT)
    assert pixels.shape == (1, 4, 3, 16, 16)
    assert pixels.dtype == np.float32
    assert levels(pixels) == [0, 40, 60, 100]


def test_frames_that_are_stored_as_changes_are_put_together():
    pictures = frames(4)
    assert np.array_equal(cropped(encoded(pictures), CONTRACT), np.stack([np.asarray(one) for one in pictures]))


def test_a_folder_of_frames_is_the_same_clip_as_an_animation_without_loss(tmp_path):
    pictures = frames(12)
    pixels, identity = preprocess_folder(folder_of(tmp_path / "clip", pictures), CONTRACT)
    assert np.array_equal(pixels, preprocess(encoded(pictures, "WEBP"), CONTRACT))
    digests = [hashlib.sha256((tmp_path / "clip" / f"frame {n}.png").read_bytes()).digest() for n in range(12)]
    assert identity == hashlib.sha256(b"".join(digests)).hexdigest()


def test_frames_of_a_folder_are_in_natural_order(tmp_path):
    names = ["f10.png", "f9.png", "f2b.png", "f2.PNG", ".f0.png", "f1.png"]
    folder = folder_of(tmp_path / "clip", frames(6), names)
    (folder / "notes.txt").write_text("not a frame")
    (folder / "f3.png").mkdir()
    assert [file.name for file in clip.frame_files(folder)] == ["f1.png", "f2.PNG", "f2b.png", "f9.png", "f10.png"]


def test_another_order_of_the_same_frames_is_another_clip(tmp_path):
    pictures = frames(4)
    one = preprocess_folder(folder_of(tmp_path / "one", pictures), CONTRACT)
    other = preprocess_folder(folder_of(tmp_path / "other", pictures[::-1]), CONTRACT)
    assert one[1] != other[1]
    assert levels(one[0]) == levels(other[0])[::-1]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_a_still_photo_is_refused(kind):
    stream = io.BytesIO()
    frames(1)[0].save(stream, kind)
    with pytest.raises(PhotoError, match=r"^here is a still photo, and this bundle recognises clips; expected an anim"):
        preprocess(stream.getvalue(), CONTRACT, "here")


def test_text_and_nothing_are_refused():
    with pytest.raises(PhotoError, match="is not a photo"):
        preprocess(b"hello" * 10, CONTRACT, "here")
    with pytest.raises(PhotoError, match="is empty; expected an animated GIF or WebP"):
        preprocess(b"", CONTRACT, "here")


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_a_truncated_animation_is_refused_wherever_it_ends(kind):
    content = encoded(frames(), kind)
    for length in range(1, len(content), 7):
        with pytest.raises(PhotoError):
            preprocess(content[:length], CONTRACT, "here")
    with pytest.raises(PhotoError, match="damaged or truncated"):
        preprocess(content[:-1], CONTRACT, "here")


def test_bytes_behind_the_end_change_no_pixel():
    for kind in ("GIF", "WEBP"):
        content = encoded(frames(), kind)
        assert np.array_equal(preprocess(content + b"\0" * 8, CONTRACT), preprocess(content, CONTRACT))


def test_too_many_frames_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(clip, "MAX_FRAMES", 5)
    for kind in ("GIF", "WEBP"):
        with pytest.raises(PhotoError, match=r"6 frames, up to 5|more than 5 frames"):
            preprocess(encoded(frames(), kind), CONTRACT, "here")
    with pytest.raises(PhotoError, match="has 6 frames, up to 5 are read"):
        preprocess_folder(folder_of(tmp_path / "clip", frames()), CONTRACT)


def test_frames_that_grow_in_a_gif_are_counted_at_their_size():
    content = bytearray(encoded(frames()))
    at = content.rindex(b"\x2c", 0, len(content) - 20)
    while struct.unpack_from("<HH", content, at + 5)[0] > 16:
        at = content.rindex(b"\x2c", 0, at)
    struct.pack_into("<HH", content, at + 5, 60000, 60000)
    with pytest.raises(PhotoError, match=r"has frames of 600\d\dx600\d\d pixels, up to 33554432 are decoded"):
        preprocess(bytes(content), CONTRACT, "here")


def test_a_webp_that_states_a_huge_canvas_is_refused_before_it_is_opened():
    content = bytearray(encoded(frames(), "WEBP"))
    content[24:30] = b"\xff\x3f\x00" * 2
    with pytest.raises(PhotoError, match="has frames of 16384x16384 pixels"):
        preprocess(bytes(content), CONTRACT, "here")


def test_a_long_clip_of_large_frames_is_refused(monkeypatch):
    monkeypatch.setattr(clip, "MAX_CLIP_PIXELS", 6 * 16 * 16 - 1)
    with pytest.raises(PhotoError, match="has 6 frames of 16x16 pixels, up to 1535 in all"):
        preprocess(encoded(frames()), CONTRACT, "here")


def test_a_folder_without_two_frames_is_refused(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(PhotoError, match="is a folder with no frame in it; expected an animated"):
        preprocess_folder(tmp_path / "none", CONTRACT)
    with pytest.raises(PhotoError, match="with one frame in it"):
        preprocess_folder(folder_of(tmp_path / "one", frames(1)), CONTRACT)


def test_frames_of_two_sizes_are_refused(tmp_path):
    folder = folder_of(tmp_path / "clip", [*frames(3), *frames(1, (20, 16))])
    with pytest.raises(PhotoError, match=r"frame 3.png has 20x16 pixels, frame 0.png before it 16x16"):
        preprocess_folder(folder, CONTRACT)


def test_a_broken_frame_is_named(tmp_path):
    folder = folder_of(tmp_path / "clip", frames(4))
    (folder / "frame 2.png").write_bytes((folder / "frame 2.png").read_bytes()[:50])
    with pytest.raises(PhotoError, match=r"frame 2.png is damaged or truncated"):
        preprocess_folder(folder, CONTRACT)


def test_an_animation_stays_a_photo_where_the_bundle_is_for_photos():
    import msgspec

    photos = msgspec.structs.replace(CONTRACT, frames=msgspec.UNSET)
    assert levels(preprocess(encoded(frames()), photos)[None]) == [0]


def test_decoding_processes_hand_over_clips(tmp_path):
    for number in range(9):
        (tmp_path / f"{number}.webp").write_bytes(encoded(frames(5 + number), "WEBP"))
    files = sorted(tmp_path.iterdir())
    found = list(prepare_files(files, CONTRACT, workers=2))
    assert [photo.error for photo in found] == [""] * 9
    for file, photo in zip(files, found, strict=True):
        assert np.array_equal(photo.pixels, preprocess(file.read_bytes(), CONTRACT))
