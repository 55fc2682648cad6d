"""A photo's bytes to the encoder's input. Training imports this same code, so that the two can never differ."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from edge.errors import PhotoError
from edge.manifest import Preprocessing

MAX_PHOTO_BYTES = 256 * 1024 * 1024
MAX_PHOTO_PIXELS = 170_000_000  # more is refused before it is decoded; Pillow's own limit is just above

# The limit above is the one that counts. Set once: switching filters per photo would race between threads.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

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
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise PhotoError(f"{path} is not a file; give the path of a photo")
        if size > MAX_PHOTO_BYTES:
            raise PhotoError(f"{path} has {size} bytes; photos up to {MAX_PHOTO_BYTES} are read")
        return path.read_bytes()
    except OSError as error:
        raise PhotoError(f"{path} cannot be read ({error.strerror}); check the path and its rights") from None


def decode_photo(content: bytes, where: str) -> Image.Image:
    """Decodes at full size, turns as EXIF says, and converts to RGB.

    Half a photo is never recognised: a truncated file raises, where a lenient decoder would fill in grey.

    Raises:
        PhotoError: empty, truncated, not an image, or too large.
    """
    if not content:
        raise PhotoError(f"{where} is empty; expected a JPEG, PNG or another image")
    try:
        image: Image.Image = Image.open(io.BytesIO(content))
        if image.width * image.height > MAX_PHOTO_PIXELS:
            raise PhotoError(f"{where} has too many pixels; up to {MAX_PHOTO_PIXELS} are decoded")
        image.load()
        return _eight_bit(ImageOps.exif_transpose(image)).convert("RGB")
    except UnidentifiedImageError:
        raise PhotoError(f"{where} is not a photo; expected a JPEG, PNG or another image") from None
    except Image.DecompressionBombError:
        raise PhotoError(f"{where} has too many pixels; up to {MAX_PHOTO_PIXELS} are decoded") from None
    except (OSError, SyntaxError, ValueError, struct.error) as error:
        raise PhotoError(f"{where} is damaged or truncated ({error}); copy it again from its source") from None


def _eight_bit(image: Image.Image) -> Image.Image:
    """16-bit grey scaled to 8 bit; Pillow's own conversion would clip it to white."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.clip(np.asarray(image, dtype=np.float64), 0, 65535) / 257).round().astype(np.uint8))


def resize_and_crop(image: Image.Image, contract: Preprocessing) -> np.ndarray:
    """Resizes the shorter side and keeps the centre: uint8 (crop, crop, 3).

    Sizes and offsets are rounded as torchvision rounds them (the longer side down, the centre to even), because that
    is what published weights were evaluated with.
    """
    shorter = contract.resize_shorter
    width, height = image.size
    size = (shorter, shorter * height // width) if width <= height else (shorter * width // height, shorter)
    if size[0] * size[1] > MAX_PHOTO_PIXELS:
        raise PhotoError(
            f"a photo of {width}x{height} is too narrow: resized, it would have {size[0]}x{size[1]} pixels"
        )
    if size != image.size:
        image = image.resize(size, _FILTERS[contract.resize_filter])
    left, top = round((size[0] - contract.crop) / 2), round((size[1] - contract.crop) / 2)
    return np.asarray(image.crop((left, top, left + contract.crop, top + contract.crop)))


def normalise(pixels: np.ndarray, contract: Preprocessing) -> np.ndarray:
    """uint8 (..., S, S, 3) -> float32 (..., 3, S, S), scaled to [0, 1], minus mean, over std."""
    factor = 1 / (255 * np.asarray(contract.std, dtype=np.float64))
    offset = np.asarray(contract.mean, dtype=np.float64) / np.asarray(contract.std, dtype=np.float64)
    scaled = pixels * factor.astype(np.float32) - offset.astype(np.float32)
    return np.ascontiguousarray(np.moveaxis(scaled, -1, -3), dtype=np.float32)


def preprocess(content: bytes, contract: Preprocessing, where: str = "photo") -> np.ndarray:
    """Encoded bytes of one photo -> float32 (1, 3, crop, crop), ready for the encoder.

    Raises:
        PhotoError: the bytes are not one whole photo.
    """
    return prepare(decode_photo(content, where), contract)


def prepare(image: Image.Image, contract: Preprocessing) -> np.ndarray:
    """A decoded photo -> float32 (1, 3, crop, crop), ready for the encoder."""
    return normalise(resize_and_crop(image, contract), contract)[None]
