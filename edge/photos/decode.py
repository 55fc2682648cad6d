"""Encoded photos to upright RGB pixels: eight formats, a bounded amount of memory, one error for all that goes wrong.

Memory is bounded before pixels are decoded: the estimate of :func:`_needed_bytes` counts the decoder's buffers and the
decoded photo in its own mode. What follows, turning, converting to RGB and resizing, goes by bands of rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import warnings
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageFile, TiffImagePlugin, UnidentifiedImageError

from refocus.edge.errors import PhotoError, RuntimeUnavailable
from refocus.edge.photos.header import JpegHeader, RefusedPhoto, open_image, readable_formats

MAX_PHOTO_PIXELS = 170_000_000  # more is refused before it is decoded; Pillow's own limit is just above
# Most memory that one photo may take while it is decoded: 170 megapixels of a sequential JPEG, 107 of one with 4:2:0
# in several scans, 46 of a WebP.
MAX_DECODED_BYTES = 750_000_000

# The limits above are the ones that count. Set once: switching filters per photo would race between threads.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# One line on standard error for each kind of damage to metadata, of which only the orientation is used here.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

_BYTES_PER_PIXEL = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}  # all other modes take 4
_DECODER_BYTES = {"WEBP": 12, "AVIF": 16, "BMP": 2, "HEIF": 12}  # per pixel, beside the photo itself; measured
_BAND_PIXELS = 1 << 20  # of one band of rows: 4 MiB in RGB

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_BY_COLUMNS = {  # turns that make rows of columns: whether the first row is the last column
    Image.Transpose.TRANSPOSE: False,
    Image.Transpose.ROTATE_270: False,
    Image.Transpose.TRANSVERSE: True,
    Image.Transpose.ROTATE_90: True,
}
_FROM_BELOW = (Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM)
# Turns after which the last column, or the last row, of the stored photo comes first.
_LAST_COLUMN_FIRST = {Image.Transpose[turn] for turn in ("FLIP_LEFT_RIGHT", "ROTATE_180", "TRANSVERSE", "ROTATE_90")}
_LAST_ROW_FIRST = {Image.Transpose[turn] for turn in ("ROTATE_180", "FLIP_TOP_BOTTOM", "ROTATE_270", "TRANSVERSE")}


class Photo:
    """A decoded photo. It is turned and converted to RGB while it is read, by bands of rows.

    Args:
        image: in any mode, decoded.
        turn: how its pixels become upright; None leaves them.
        full: width and height of the photo in its file, where it was decoded at ``1 / scale`` of them; rounded up.
        scale: 1, 2, 4 or 8.

    Attributes:
        width, height: of the upright photo as it was decoded, in pixels.
        full_size: width and height of the upright photo in its file.
        scale: it was decoded at 1 / scale of that.
    """

    def __init__(
        self,
        image: Image.Image,
        turn: Image.Transpose | None = None,
        full: tuple[int, int] | None = None,
        scale: int = 1,
    ) -> None:
        self._image, self._turn = image, turn
        self._stored = image.im.size  # image.size of a TIFF is that of the upright photo
        self.width, self.height = self._stored[::-1] if turn in _BY_COLUMNS else self._stored
        full, self.scale = full or self._stored, scale
        self.full_size = full[::-1] if turn in _BY_COLUMNS else full
        self._within = self._covered(full[0] / scale, full[1] / scale)
        self._plain = turn is None and image.mode == "RGB" and image.size == self._stored

    def _covered(self, across: float, down: float) -> tuple[float, float, float, float]:
        """The part of the upright decoded photo that the file's pixels fill: of 4001 columns, 500.125 at 1/8."""
        width, height = self._stored
        x = (width - across, width) if self._turn in _LAST_COLUMN_FIRST else (0, across)
        y = (height - down, height) if self._turn in _LAST_ROW_FIRST else (0, down)
        (left, right), (top, bottom) = (y, x) if self._turn in _BY_COLUMNS else (x, y)
        return left, top, right, bottom

    @property
    def size(self) -> tuple[int, int]:
        """Width and height as it was decoded."""
        return self.width, self.height

    def whole(self) -> Image.Image:
        """All rows: an RGB image.

        Raises:
            PhotoError: it does not fit into ``MAX_DECODED_BYTES`` beside the decoded photo.
        """
        if self._plain:
            return self._image
        self._check_room(4 * self.width * self.height, f"takes too much memory at {self.width}x{self.height} pixels")
        image = Image.new("RGB", self.size)
        for top, band in self._bands():
            image.paste(band, (0, top))
        return image

    def identity(self) -> str:
        """SHA-256 of the upright photo's size and RGB pixels: identifies a photo whose encoded bytes are not known."""
        digest = hashlib.sha256(f"{self.width}x{self.height} RGB\n".encode())
        for _, band in self._bands():
            digest.update(band.tobytes())
        return digest.hexdigest()

    def resized(
        self, size: tuple[int, int], resample: Image.Resampling, part: tuple[int, int, int, int] | None = None
    ) -> Image.Image:
        """As ``whole().resize(size, resample)`` where no side shrinks twice as much as the other; bit for bit.

        Of a photo that was decoded at a reduced size, a last column or row that the file fills in part counts in part.
        Pillow resizes along rows first and rounds to 8 bits in between, so bands can be resized one by one.

        Args:
            size: width and height of the whole photo afterwards.
            resample: the filter.
            part: left, upper, right and lower edge of the part of the result that is wanted; only that is computed.
                Its pixels are those of the whole but for the rounding of some by 1; rows are always resized first.

        Raises:
            PhotoError: the photo is so narrow that the result would not fit into the memory.
        """
        width, height = size
        refused = f"of {self.width}x{self.height} is too narrow: resized, it would have {width}x{height} pixels"
        self._check_room(4 * width * (self.height + height), refused)
        (left, upper, right, lower), size = self._part_within(size, part)
        if self._plain and part is None:
            return self._image.resize(size, resample, box=(left, upper, right, lower))
        narrow = Image.new("RGB", (size[0], self.height))
        for top, band in [(0, self._image)] if self._plain else self._bands():
            narrow.paste(band.resize((size[0], band.height), resample, box=(left, 0, right, band.height)), (0, top))
        return narrow.resize(size, resample, box=(0, upper, size[0], lower))

    def _part_within(
        self, size: tuple[int, int], part: tuple[int, int, int, int] | None
    ) -> tuple[tuple[float, float, float, float], tuple[int, int]]:
        """Of a part of the resized photo: where it is in the decoded one, and its size."""
        left, upper, right, lower = self._within
        if part is None:
            return self._within, size
        across, down = (right - left) / size[0], (lower - upper) / size[1]
        box = left + part[0] * across, upper + part[1] * down, left + part[2] * across, upper + part[3] * down
        return box, (part[2] - part[0], part[3] - part[1])

    def _check_room(self, more_bytes: int, refused: str) -> None:
        stored = self._stored[0] * self._stored[1] * _BYTES_PER_PIXEL.get(self._image.mode, 4)
        if stored + more_bytes > MAX_DECODED_BYTES:
            raise PhotoError(f"a photo {refused}; up to {MAX_DECODED_BYTES} bytes are used, give a smaller one")

    def _bands(self) -> Iterator[tuple[int, Image.Image]]:
        """The upright photo in RGB, by bands, each with the number of its first row."""
        rows = max(1, _BAND_PIXELS // max(1, self.width))
        for top in range(0, self.height, rows):
            band = _to_rgb(self._image.crop(self._box(top, min(top + rows, self.height))))
            yield top, band if self._turn is None else band.transpose(self._turn)

    def _box(self, top: int, bottom: int) -> tuple[int, int, int, int]:
        """Where rows of the upright photo are in the stored one."""
        width, height = self._stored
        if self._turn in _BY_COLUMNS:
            last_first = _BY_COLUMNS[self._turn]
            return (width - bottom, 0, width - top, height) if last_first else (top, 0, bottom, height)
        return (0, height - bottom, width, height - top) if self._turn in _FROM_BELOW else (0, top, width, bottom)


def _to_rgb(image: Image.Image) -> Image.Image:
    """16-bit grey is scaled to 8 bit, rounded; Pillow's own conversion would clip it to white."""
    if image.mode.startswith("I"):
        values = np.clip(np.asarray(image), 0, 65535).astype(np.uint32)
        image = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    image.info.pop("transparency", None)
    return image.convert("RGB")


def from_image(image: Image.Image, where: str, upright: bool = True) -> Photo:
    """A photo that was opened or made with Pillow; the image is left as it is. Of several frames, the current one.

    Args:
        image: in any mode that Pillow converts to RGB, but F and I, whose scale is not known; decoded now if it was
            not yet, by Pillow's own rules.
        where: named in errors.
        upright: whether to turn it as its EXIF orientation says. (Pillow turns TIFF files itself.)

    Raises:
        PhotoError: not an image, of an unknown scale, without pixels, damaged, closed, or larger than
            ``MAX_PHOTO_PIXELS``.
    """
    if not isinstance(image, Image.Image):
        raise PhotoError(
            f"{where} is of type {type(image).__name__}; expected the path of a photo, its encoded bytes or a PIL image"
        )
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):  # a PNG of 16 bits, by an older Pillow
        kind = "floating point" if image.mode == "F" else "32 bits"
        raise PhotoError(f"{where} has grey of {kind}, whose scale is not known; convert it to mode L, I;16 or RGB")
    if not 0 < image.width * image.height <= MAX_PHOTO_PIXELS:
        raise PhotoError(f"{where} has {image.width}x{image.height} pixels; 1 to {MAX_PHOTO_PIXELS} are recognised")
    try:
        image.load()
        Image.new(image.mode, (1, 1)).convert("L" if image.mode.startswith("I") else "RGB")
    except Exception as error:  # decoders raise whatever broken data lead to
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise PhotoError(f"{where} cannot be used ({what}); open it again, or convert it to RGB") from None
    turn = None
    with contextlib.suppress(Exception):  # damaged data say nothing
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    return Photo(image, turn if upright else None)


def decode(content: bytes, where: str, upright: bool = True, at_least: int = 0) -> Photo:
    """Decodes the first frame of a photo in one of :data:`FORMATS`.

    Half a photo is never recognised: a truncated file raises, where a lenient decoder would fill in grey.

    Args:
        content: the encoded bytes.
        where: named in errors.
        upright: whether to turn the photo as its EXIF orientation says.
        at_least: pixels that the shorter side of a JPEG is needed with. It is then decoded at 1/8, 1/4 or 1/2 of its
            size, the smallest that has as many, by a smaller inverse DCT. 0, or another format: at full size.

    Raises:
        PhotoError: empty, truncated, damaged, in another format, or larger than ``MAX_PHOTO_PIXELS`` or
            ``MAX_DECODED_BYTES`` allow.
    """
    if not content:
        raise PhotoError(f"{where} is empty; expected {_expected()}")
    with one_error(where):
        return _decode(content, upright, at_least)


@contextlib.contextmanager
def one_error(where: str) -> Iterator[None]:
    """Turns whatever decoding raises into a :class:`PhotoError` about ``where``.

    Raises:
        RuntimeUnavailable: this process has told Pillow to make up what a file lacks.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise RuntimeUnavailable(
            "this process has set PIL.ImageFile.LOAD_TRUNCATED_IMAGES: half a photo would be recognised as a whole one;"
            " set it to False"
        )
    try:
        yield
    except PhotoError:
        raise
    except RefusedPhoto as refused:
        raise PhotoError(f"{where} {refused}") from None
    except UnidentifiedImageError:
        raise PhotoError(f"{where} is not a photo; expected {_expected()}") from None
    except Image.DecompressionBombError:
        raise PhotoError(f"{where} has too many pixels; up to {MAX_PHOTO_PIXELS} are decoded") from None
    except MemoryError:
        raise PhotoError(f"{where} does not fit into the free memory; close other programs") from None
    except Exception as error:  # decoders raise whatever broken data lead to
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise PhotoError(f"{where} is damaged or truncated ({what}); copy it again from its source") from None


def _expected() -> str:
    *most, last = readable_formats()
    return f"a {', '.join(most)} or {last}"


def _decode(content: bytes, upright: bool, at_least: int) -> Photo:
    image, jpeg = open_image(content)
    full, scale = image.size, 1
    if image.width * image.height > MAX_PHOTO_PIXELS:
        raise RefusedPhoto(f"has too many pixels; up to {MAX_PHOTO_PIXELS} are decoded")
    if jpeg is not None and jpeg.scalable and at_least:
        scale = _draft(image, at_least)
    if (needed := _needed_bytes(image, full, jpeg, len(content))) > MAX_DECODED_BYTES:
        raise RefusedPhoto(
            f"needs {needed} bytes of memory to decode, up to {MAX_DECODED_BYTES} are used; give a smaller one"
        )
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        _refuse_odd_grey(image)
    turn = take_orientation(image) if image.format == "TIFF" else None  # before Pillow turns it itself
    image.load()
    if image.format != "TIFF":  # the EXIF data of a PNG may lie behind its pixels
        turn = take_orientation(image)
    image.info.pop("transparency", None)  # which conversion to RGB would try to carry over
    return Photo(image, turn if upright else None, full if scale > 1 else None, scale)


def _refuse_odd_grey(image: TiffImagePlugin.TiffImageFile) -> None:
    """Raises RefusedPhoto for grey whose scale Pillow does not tell: of 16 bits only 0 for black is sure."""
    bits, white_is_zero = max(image.tag_v2.get(258, (1,))), image.tag_v2.get(262) == 0
    if image.mode == "F" or (image.mode.startswith("I") and (bits != 16 or white_is_zero)):
        what = (
            "floating point" if image.mode == "F" else f"{bits} bits{', in which 0 is white' if white_is_zero else ''}"
        )
        raise RefusedPhoto(f"has grey of {what}; 8 bits, or 16 in which 0 is black, are recognised: convert it")


def _draft(image: Image.Image, at_least: int) -> int:
    """Has a JPEG decoded at 1/8, 1/4 or 1/2, if its shorter side, rounded down, still has so many pixels; tells which.

    In DCT blocks of 8 coefficients a side, the lowest 1, 2 or 4 are kept: no pixel at full size is ever computed.
    """
    before = image.size
    image.draft(None, (at_least, at_least))
    scale: int = next(k for k in (8, 4, 2, 1) if min(before) // at_least >= k or k == 1)
    if image.size != tuple(-(-side // scale) for side in before):
        raise RefusedPhoto(f"was opened at {image.size} pixels of {before}; update Pillow")  # its rule is another
    return scale


def _needed_bytes(image: Image.Image, full: tuple[int, int], jpeg: JpegHeader | None, content_bytes: int) -> int:
    """Most memory that decoding takes: the photo in its own mode, the decoder's buffers, two copies of the file.

    Args:
        image: not decoded yet; its size is that at which it will be.
        full: width and height in the file, at which coefficients are kept.
    """
    pixels = image.width * image.height
    per_pixel = _BYTES_PER_PIXEL.get(image.mode, 4) + _DECODER_BYTES.get(image.format or "", 0)
    needed = 2 * content_bytes + pixels * per_pixel
    if jpeg is not None:
        needed += math.ceil(full[0] * full[1] * jpeg.coefficient_bytes)
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        needed += _tiff_buffer_bytes(image)
    return needed


def _tiff_buffer_bytes(image: TiffImagePlugin.TiffImageFile) -> int:
    """One strip, at most the whole photo, or one tile, in as many bits as the file has; in RGBA if it is YCbCr."""
    bits: tuple[int, ...] = image.tag_v2.get(258, (1,))
    samples = int(image.tag_v2.get(277, 1))
    per_pixel: float = max(4.0 if image.tag_v2.get(262) == 6 else 0.0, max(bits) * max(samples, len(bits)) / 8)
    tile = int(image.tag_v2.get(322, 0)) * int(image.tag_v2.get(323, 0))
    return math.ceil(per_pixel * max(image.width * image.height, tile))


def take_orientation(image: Image.Image) -> Image.Transpose | None:
    """How EXIF data, or else XMP data, say that the photo is turned; damaged data say nothing.

    Nothing is left of the data: with an orientation Pillow would turn a TIFF itself, and for that write EXIF again.
    """
    turn = None
    with contextlib.suppress(Exception):
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    with contextlib.suppress(Exception):
        exif = image.getexif()
        for tag in list(exif):
            del exif[tag]
    return turn
