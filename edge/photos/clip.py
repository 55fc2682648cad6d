"""Clips: animated GIF and WebP files, and folders of frames, as frames within a bounded amount of memory.

Frames are decoded one after the other, and only as far as the last one that is wanted. Before anything is decoded, the
file's own blocks say whether it is whole, how many frames it has and how large they are.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from refocus.edge.bundle.manifest import MAX_FRAMES
from refocus.edge.errors import PhotoError
from refocus.edge.photos.decode import Photo, one_error, take_orientation
from refocus.edge.photos.header import RefusedPhoto, open_image

MAX_FRAME_PIXELS = 1 << 25  # of an animation, whose decoders keep up to four pictures of that size
MAX_CLIP_PIXELS = 1 << 30  # of all frames of an animation together
MAX_CLIP_BYTES = 1 << 30  # of all frames of a folder together
FRAME_ENDINGS = frozenset(
    {".avif", ".bmp", ".gif", ".heic", ".heif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
)
ANIMATED_ENDINGS = frozenset({".gif", ".webp"})
EXPECTED = "an animated GIF or WebP, or a folder with two frames or more"
_MOST_BLOCKS = 1 << 21  # of a GIF; as many hold half a gigabyte
_TRUNCATED = "is damaged or truncated (its last frames are missing); copy it again from its source"
_STILL = f"is a still photo, and this bundle recognises clips; expected {EXPECTED}"


def evenly(frames: int, wanted: int) -> list[int]:
    """Numbers of ``wanted`` of ``frames`` frames: the middle one of each of as many equal parts, in order.

    A frame comes several times where there are fewer than wanted.
    """
    return [(2 * number + 1) * frames // (2 * wanted) for number in range(wanted)]


def animation_frames(content: bytes, wanted: int, where: str, upright: bool = True) -> Iterator[Photo]:
    """Frames of an animated GIF or WebP, evenly chosen, each to be used before the next one is asked for.

    Args:
        content: the encoded bytes.
        wanted: number of frames.
        where: named in errors.
        upright: whether to turn them as the file's EXIF orientation says.

    Raises:
        PhotoError: empty, a still photo, in another format, truncated, damaged, or beyond ``MAX_FRAMES``,
            ``MAX_FRAME_PIXELS`` or ``MAX_CLIP_PIXELS``.
    """
    if not content:
        raise PhotoError(f"{where} is empty; expected {EXPECTED}")
    with one_error(where):
        width, height = _check(content)
        if width * height > MAX_FRAME_PIXELS:
            raise RefusedPhoto(
                f"has frames of {width}x{height} pixels, up to {MAX_FRAME_PIXELS} are decoded; give a smaller clip"
            )
        image, _ = open_image(content)
        frames = int(getattr(image, "n_frames", 1))
        if frames < 2:
            raise RefusedPhoto(_STILL)
        if frames > MAX_FRAMES:
            raise RefusedPhoto(f"has {frames} frames, up to {MAX_FRAMES} are read; give a shorter clip")
        if frames * width * height > MAX_CLIP_PIXELS:
            raise RefusedPhoto(
                f"has {frames} frames of {width}x{height} pixels, up to {MAX_CLIP_PIXELS} in all are decoded; give a"
                " smaller or shorter clip"
            )
        turn = take_orientation(image) if upright else None
        at = -1
        for number in evenly(frames, wanted):
            for passed in range(at + 1, number + 1):
                image.seek(passed)  # each shows what the ones before left
                image.load()
            if number > at:
                picture, at = image.copy(), number
                picture.info.pop("transparency", None)
            yield Photo(picture, turn)


def frame_files(folder: Path) -> list[Path]:
    """The frames of a clip in a folder, in the natural order of their names: ``frame 2`` before ``frame 10``.

    Files count whose names end as photos do (:data:`FRAME_ENDINGS`); hidden ones and folders are left out.

    Raises:
        PhotoError: fewer than two, or beyond ``MAX_FRAMES`` or ``MAX_CLIP_BYTES``; or the folder cannot be read.
    """
    try:
        found = [
            file
            for file in folder.iterdir()
            if file.suffix.lower() in FRAME_ENDINGS and not file.name.startswith(".") and file.is_file()
        ]
        size = sum(file.stat().st_size for file in found)
    except OSError as error:
        raise PhotoError(f"{folder} cannot be read ({error.strerror}); check the path and its rights") from None
    if len(found) < 2:
        has = "one frame" if found else "no frame"
        raise PhotoError(f"{folder} is a folder with {has} in it; expected {EXPECTED}")
    if len(found) > MAX_FRAMES:
        raise PhotoError(f"{folder} has {len(found)} frames, up to {MAX_FRAMES} are read; give a shorter clip")
    if size > MAX_CLIP_BYTES:
        raise PhotoError(f"{folder} has frames of {size} bytes, the limit is {MAX_CLIP_BYTES}; give smaller ones")
    return sorted(found, key=lambda file: (_natural(file.name), file.name))


def _natural(name: str) -> Sequence[tuple[int, str]]:
    """``frame 10.png`` -> text and numbers in turns, to be compared one by one."""
    parts = re.split(r"([0-9]+)", name.lower())
    return [(int(part), "") if number % 2 else (0, part) for number, part in enumerate(parts)]


def _check(content: bytes) -> tuple[int, int]:
    """Width and height of the largest frame of an animation whose file is whole.

    Raises:
        RefusedPhoto: a still photo, another format, truncated, or of too many frames.
    """
    try:
        if content[:6] in (b"GIF87a", b"GIF89a"):
            return _check_gif(content)
        if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
            return _check_webp(content)
    except (IndexError, struct.error):
        raise RefusedPhoto(_TRUNCATED) from None
    open_image(content)  # what is no photo either is told so
    raise RefusedPhoto(_STILL)


def _check_webp(content: bytes) -> tuple[int, int]:
    """A WebP: its container states its length, and in the first chunk its size and whether it is an animation."""
    if struct.unpack_from("<L", content, 4)[0] + 8 > len(content):
        raise RefusedPhoto(_TRUNCATED)
    if content[12:16] != b"VP8X" or not content[20] & 0x02:
        raise RefusedPhoto(_STILL)
    across, down = (int.from_bytes(content[at : at + 3], "little") + 1 for at in (24, 27))
    return across, down


def _check_gif(content: bytes) -> tuple[int, int]:
    """A GIF, which is a list of blocks: every frame's place, up to the byte that ends the file."""
    width, height, flags = struct.unpack_from("<HHB", content, 6)
    at, frames, blocks = 13 + _colours(flags), 0, 0
    while content[at] != 0x3B:
        if content[at] == 0x2C:
            left, top, across, down, flags = struct.unpack_from("<4HB", content, at + 1)
            width, height, frames = max(width, left + across), max(height, top + down), frames + 1
            at += 11 + _colours(flags)
        elif content[at] == 0x21:
            at += 2
        elif content[at] == 0:  # some writers pad
            at += 1
            continue
        else:
            raise RefusedPhoto("is damaged or truncated (a GIF with an unknown block); copy it again from its source")
        while content[at]:  # parts of a block, each with its length
            at += 1 + content[at]
            blocks += 1
            if blocks > _MOST_BLOCKS:
                raise RefusedPhoto(f"is a GIF of more than {_MOST_BLOCKS} blocks; give a shorter clip")
        at += 1
        if frames > MAX_FRAMES:
            raise RefusedPhoto(f"has more than {MAX_FRAMES} frames; give a shorter clip")
    return width, height


def _colours(flags: int) -> int:
    """Bytes of a table of colours."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0
