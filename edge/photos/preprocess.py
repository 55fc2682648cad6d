"""A photo's or a clip's bytes to the encoder's input. Training imports this same code: the two can never differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import numpy as np
from PIL import Image

from refocus.edge.bundle.manifest import SCALED_MARGIN, Preprocessing
from refocus.edge.errors import PhotoError
from refocus.edge.files import read_file
from refocus.edge.photos.clip import EXPECTED, animation_frames, evenly, frame_files
from refocus.edge.photos.decode import MAX_PHOTO_PIXELS, Photo, decode

MAX_PHOTO_BYTES = 256 * 1024 * 1024

_FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def read_photo(path: Path) -> bytes:
    """The bytes of a photo file.

    Raises:
        PhotoError: missing, not a file, unreadable or larger than ``MAX_PHOTO_BYTES``.
    """
    return read_file(path, MAX_PHOTO_BYTES, "a photo", PhotoError)


def decode_photo(content: bytes, where: str, upright: bool = True) -> Image.Image:
    """Decodes at full size, turns as EXIF says unless ``upright`` is False, and converts to RGB.

    Raises:
        PhotoError: as :func:`refocus.edge.photos.decode.decode`.
    """
    return decode(content, where, upright).whole()


def decode_for(content: bytes, contract: Preprocessing, where: str = "photo") -> Photo:
    """Decodes a photo as a contract says: upright or as stored, a large JPEG at full or at a reduced size.

    Raises:
        PhotoError: as :func:`refocus.edge.photos.decode.decode`.
    """
    return decode(content, where, contract.apply_exif_orientation, decode_at_least(contract))


def decode_at_least(contract: Preprocessing) -> int:
    """Pixels that the shorter side of a decoded JPEG must have; 0: it is decoded at full size."""
    return SCALED_MARGIN * contract.resize_shorter if contract.decoder == "pillow-scaled" else 0


def resize_and_crop(image: Image.Image | Photo, contract: Preprocessing) -> np.ndarray:
    """Resizes the shorter side and keeps the centre: uint8 (crop, crop, 3).

    Sizes and offsets are rounded as torchvision rounds them (the longer side down, the centre to even), because that
    is what published weights were evaluated with.
    """
    photo = image if isinstance(image, Photo) else Photo(image)
    shorter = contract.resize_shorter
    width, height = photo.full_size
    size = (shorter, shorter * height // width) if width <= height else (shorter * width // height, shorter)
    if size[0] * size[1] > MAX_PHOTO_PIXELS:
        raise PhotoError(
            f"a photo of {width}x{height} is too narrow: resized, it would have {size[0]}x{size[1]} pixels"
        )
    left, top = round((size[0] - contract.crop) / 2), round((size[1] - contract.crop) / 2)
    centre = left, top, left + contract.crop, top + contract.crop
    resample = _FILTERS[contract.resize_filter]
    if photo.scale > 1 and left >= 0 and top >= 0:  # at full size, every pixel is as published weights met it
        return np.asarray(photo.resized(size, resample, part=centre))
    return np.asarray(photo.resized(size, resample).crop(centre))


def normalise(pixels: np.ndarray, contract: Preprocessing) -> np.ndarray:
    """uint8 (..., S, S, 3) -> float32 (..., 3, S, S), scaled to [0, 1], minus mean, over std."""
    factor = 1 / (255 * np.asarray(contract.std, dtype=np.float64))
    offset = np.asarray(contract.mean, dtype=np.float64) / np.asarray(contract.std, dtype=np.float64)
    planes = np.ascontiguousarray(np.moveaxis(pixels, -1, -3)).astype(np.float32)
    planes *= factor.astype(np.float32)[:, None, None]
    planes -= offset.astype(np.float32)[:, None, None]
    return planes


def preprocess(content: bytes, contract: Preprocessing, where: str = "photo") -> np.ndarray:
    """Encoded bytes of one photo -> float32 (1, 3, crop, crop), or of one clip -> (1, T, 3, crop, crop), ready for the
    encoder.

    Raises:
        PhotoError: the bytes are not one whole photo, or not one whole animation where the contract is for clips.
    """
    return normalise(cropped(content, contract, where), contract)[None]


def cropped(content: bytes, contract: Preprocessing, where: str = "photo") -> np.ndarray:
    """As :func:`preprocess`, before the numbers are scaled: uint8 (crop, crop, 3), or of a clip (T, crop, crop, 3).

    Raises:
        PhotoError: as :func:`preprocess`.
    """
    if not contract.of_clips:
        return resize_and_crop(decode_for(content, contract, where), contract)
    frames = animation_frames(content, contract.input_shape[0], where, contract.apply_exif_orientation)
    return np.stack([resize_and_crop(frame, contract) for frame in frames])


def folder_identity(folder: Path) -> str:
    """Identity of a clip in a folder of frames, as :func:`preprocess_folder` gives it.

    Raises:
        PhotoError: it is none, or a frame cannot be read.
    """
    return _identity_of(hashlib.sha256(read_photo(file)).digest() for file in frame_files(folder))


def _identity_of(frames: Iterable[bytes]) -> str:
    """Identity of a clip from the SHA-256 of each of its frames, in order."""
    return hashlib.sha256(b"".join(frames)).hexdigest()


def preprocess_folder(folder: Path, contract: Preprocessing, where: str = "clip") -> tuple[np.ndarray, str]:
    """A folder of frames -> float32 (1, T, 3, crop, crop), and the clip's identity: the SHA-256 over the SHA-256 (32
    bytes each) of all frames, in order.

    Raises:
        PhotoError: the contract is for photos; or too few frames, frames of different sizes, or one of those that are
            chosen is not one whole photo.
    """
    if not contract.of_clips:
        raise PhotoError(f"{where} is a folder, and this bundle recognises photos; give the path of a photo")
    files = frame_files(folder)
    wanted = evenly(len(files), contract.input_shape[0])
    digests, chosen, first = list[bytes](), dict[int, np.ndarray](), None
    for number, file in enumerate(files):
        content = read_photo(file)
        digests.append(hashlib.sha256(content).digest())
        if number in wanted:
            frame = decode_for(content, contract, str(file))
            first = first or (file, frame.full_size)
            if frame.full_size != first[1]:
                sizes = ["x".join(map(str, size)) for size in (frame.full_size, first[1])]
                raise PhotoError(
                    f"{file} has {sizes[0]} pixels, {first[0].name} before it {sizes[1]}; frames of one clip"
                    " have one size"
                )
            chosen[number] = resize_and_crop(frame, contract)
    return normalise(np.stack([chosen[number] for number in wanted]), contract)[None], _identity_of(digests)


def refuse_image(where: str) -> NoReturn:
    """Raises PhotoError: a single image was given to a bundle that recognises clips."""
    raise PhotoError(f"{where} is one image, and this bundle recognises clips; expected {EXPECTED}")


def prepare(image: Image.Image | Photo, contract: Preprocessing) -> np.ndarray:
    """A decoded photo -> float32 (1, 3, crop, crop), ready for the encoder."""
    return normalise(resize_and_crop(image, contract), contract)[None]
