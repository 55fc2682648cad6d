"""Test files for image decoders: one photo in all kinds that users have.

Decoders of PNG and lossless WebP must agree exactly. Those of JPEG and lossy WebP may round differently: the bounds are
above the differences of the decoders of Pillow, Android and the JVM, and below the error of a decoder that ignores part
of a file (docs/android.md).
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

_ORIENTATION = 0x0112
EXACT = 0.0  # levels of 255
ROUNDED = 1.0  # 16 bits become 8 by rounding or by truncation
LOSSY = 2.0
INK = 4.0  # without a profile, decoders differ in white and black of CMYK
SIDE = 240  # pixels of the shorter side, large enough to be resized
TWELVE_MEGAPIXELS = (4000, 3000)
ADOBE_RGB = ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457))  # a wide gamut
SRGB_PRIMARIES = ((0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.71410))
_XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="8"/></x:xmpmeta>'


@dataclass(frozen=True)
class Made:
    """Test file.

    Attributes:
        kind: name of the kind, such as ``jpeg-grey``.
        ending: file name extension.
        content: bytes of the file.
        levels: largest accepted difference of a prepared pixel, in levels of 255.
    """

    kind: str
    ending: str
    content: bytes
    levels: float


def format_photos(photo: Image.Image) -> Iterator[Made]:
    """Yield files of every kind.

    Args:
        photo: RGB photo; it is enlarged and coloured, because a letter in one colour tests little of a decoder.
    """
    image = coloured(photo.resize((SIDE * 4 // 3, SIDE), Image.Resampling.BICUBIC))
    large = image.resize(TWELVE_MEGAPIXELS, Image.Resampling.BICUBIC)
    alpha = image.copy()
    alpha.putalpha(image.convert("L"))
    grey16 = (np.asarray(image.convert("L"), dtype=np.uint16) * 257) ^ 0x35
    palette = image.quantize(64)
    turned, wide, narrow = _exif(6), icc_profile(ADOBE_RGB, 2.2), icc_profile(SRGB_PRIMARIES, 1.8)
    yield Made("jpeg-12-megapixels", "jpg", _saved(large, "JPEG", quality=90), LOSSY)
    yield Made("jpeg-grey", "jpg", _saved(image.convert("L"), "JPEG", quality=90), LOSSY)
    yield Made("jpeg-progressive", "jpg", _saved(image, "JPEG", quality=90, progressive=True), LOSSY)
    yield Made("jpeg-444-icc", "jpg", _saved(image, "JPEG", quality=90, subsampling=0, icc_profile=narrow), LOSSY)
    yield Made("jpeg-cmyk", "jpg", _saved(image.convert("CMYK"), "JPEG", quality=95), INK)
    sides = 1601, 1203  # neither is a multiple of 8
    yield Made("jpeg-turned", "jpg", _saved(image.resize(sides), "JPEG", quality=90, exif=_exif(7)), LOSSY)
    yield Made("jpeg-narrow", "jpg", _saved(image.resize((530, 4123)), "JPEG", quality=90), LOSSY)
    yield Made("jpeg-xmp-turned", "jpg", _saved(image, "JPEG", quality=90, xmp=_XMP.encode()), LOSSY)
    yield Made("png-grey", "png", _saved(image.convert("L"), "PNG"), EXACT)
    yield Made("png-grey-16-bit", "png", _saved(Image.fromarray(grey16), "PNG"), ROUNDED)
    yield Made("png-rgb-16-bit", "png", png16(np.asarray(image, dtype=np.uint16) * 257), ROUNDED)
    yield Made("png-palette", "png", _saved(palette, "PNG"), EXACT)
    yield Made("png-palette-transparent", "png", _saved(palette, "PNG", transparency=3), EXACT)
    yield Made("png-alpha", "png", _saved(alpha, "PNG"), EXACT)
    yield Made("png-grey-alpha", "png", _saved(alpha.convert("LA"), "PNG"), EXACT)
    yield Made("png-icc-wide", "png", _saved(image, "PNG", icc_profile=wide), EXACT)
    yield Made("png-icc-narrow", "png", _saved(image, "PNG", icc_profile=narrow), EXACT)
    yield Made("png-turned", "png", _saved(image, "PNG", exif=turned), EXACT)
    yield Made("webp-lossless", "webp", _saved(image, "WEBP", lossless=True), EXACT)
    yield Made("webp-turned", "webp", _saved(image, "WEBP", lossless=True, exif=turned), EXACT)
    yield Made("webp-lossy", "webp", _saved(image, "WEBP", quality=90), LOSSY)


def coloured(image: Image.Image) -> Image.Image:
    """Return the photo multiplied by colour gradients."""
    pixels = np.asarray(image, dtype=np.float32)
    across, down = np.linspace(0, 1, image.width), np.linspace(0, 1, image.height)
    slopes = np.stack(np.broadcast_arrays(across[None, :], down[:, None], 1 - across[None, :] * down[:, None]), -1)
    return Image.fromarray((pixels * (0.4 + 0.6 * slopes)).round().astype(np.uint8))


def png16(pixels: np.ndarray) -> bytes:
    """Encode uint16 pixels (H, W, 3) as a PNG with 16 bits per channel.

    Pillow does not write such files.
    """
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.astype(">u2").view(np.uint8).reshape(height, -1)], 1)

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">2I5B", width, height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*part) for part in ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    )


def icc_profile(primaries: tuple[tuple[float, float, float], ...], gamma: float) -> bytes:
    """Return an ICC profile (ICC.1:2001, section 6.3).

    Args:
        primaries: XYZ of red, green and blue, adapted to D50.
        gamma: exponent of the curve.
    """

    def fixed(*values: float) -> bytes:
        return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))

    def xyz(*values: float) -> bytes:
        return b"XYZ \0\0\0\0" + fixed(*values)

    name = b"made for a test\0"
    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256)) + b"\0\0"
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", len(name)) + name + b"\0" * (78 + 3),
        b"cprt": b"text\0\0\0\0none\0\0\0\0",
        b"wtpt": xyz(0.9642, 1, 0.8249),
        **{tag: xyz(*values) for tag, values in zip((b"rXYZ", b"gXYZ", b"bXYZ"), primaries, strict=True)},
        **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve),
    }
    table, body, at = b"", b"", 128 + 4 + 12 * len(tags)
    for tag, content in tags.items():
        content += b"\0" * (-len(content) % 4)
        table += struct.pack(">4s2I", tag, at + len(body), len(content))
        body += content
    size = at + len(body)
    header = struct.pack(">I4sI4s4s4s12s4s", size, b"none", 0x02400000, b"mntr", b"RGB ", b"XYZ ", b"\0" * 12, b"acsp")
    header += b"\0" * (68 - len(header)) + fixed(0.9642, 1, 0.8249)
    return header.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + body


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    return exif


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()
