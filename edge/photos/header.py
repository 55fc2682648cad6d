"""What has to be known of a photo's file before its pixels are decoded: sound metadata, and when it was taken.

Pillow reads all metadata when it opens a file, and unpacks much of it. What would fill the memory or take minutes is
refused, or left out, before Pillow sees it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import re
import struct
from dataclasses import dataclass

from PIL import (
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

# Imported here, so that Pillow need not look for them among all it has.
_PLUGINS = (JpegImagePlugin, PngImagePlugin, WebPImagePlugin, GifImagePlugin, BmpImagePlugin, TiffImagePlugin)
FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]  # all others of Pillow's are refused; EPS starts a program
with contextlib.suppress(ImportError):
    from PIL import AvifImagePlugin  # noqa: F401

    FORMATS.append("AVIF")

# Readers of HEIC, the first that is installed. pi-heif decodes alone; pillow-heif also brings a GPL encoder.
_HEIC_READERS = ("pi_heif", "pillow_heif")
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
_EITHER_BRANDS = frozenset({b"mif1", b"msf1"})  # of containers whose compatible brands say what is in them

# What Pillow logs about a broken file would be printed; the error that follows says it.
logging.getLogger("PIL").addHandler(logging.NullHandler())

_MOST_SEGMENTS, _MOST_SCANS, _MOST_CHUNKS, _MOST_VALUES = 10_000, 100, 100_000, 1 << 18
_TIME = re.compile(r"(?!0000)\d{4}:\d\d:\d\d \d\d:\d\d:\d\d")


class RefusedPhoto(Exception):
    """The part of a :class:`PhotoError`'s message that follows the name of the photo."""


@dataclass(frozen=True)
class JpegHeader:
    """A JPEG file's header.

    Attributes:
        content: the file without application data and comments, except those that tell how to decode the colours.
        metadata: EXIF and XMP data, the first of each, as Pillow names them.
        coefficient_bytes: per pixel, that a decoder keeps of the whole photo if it has several scans; else 0.
        scalable: whether it is made of DCT blocks, which can be decoded at a fraction of their size; lossless ones are
            not.
    """

    content: bytes
    metadata: dict[str, bytes]
    coefficient_bytes: float
    scalable: bool


def open_image(content: bytes) -> tuple[Image.Image, JpegHeader | None]:
    """Opens a photo in one of :data:`FORMATS`, with no pixel decoded; for a JPEG also returns its header.

    Raises:
        RefusedPhoto: its metadata would unpack to too much.
        Exception: any other, where Pillow cannot read it.
    """
    if content.startswith(b"\xff\xd8\xff"):
        jpeg = _read_jpeg(content)
        image: Image.Image = Image.open(io.BytesIO(jpeg.content), formats=FORMATS)
        image.info.update(jpeg.metadata)
        return image, jpeg
    if content[:2] in (b"II", b"MM"):
        _check_tiff(content)
    if content.startswith(b"\x89PNG"):
        _check_png(content)
    if is_heic(content):
        return _open_heic(content), None
    return Image.open(io.BytesIO(_without_avif_exif(content)), formats=FORMATS), None


def readable_formats() -> list[str]:
    """:data:`FORMATS`, and HEIC where a reader of it is installed."""
    return [*FORMATS, *["HEIC"] * any(map(importlib.util.find_spec, _HEIC_READERS))]


def is_heic(content: bytes) -> bool:
    """Whether a file says that it is an HEIC photo: HEVC pictures in the container that AVIF has too."""
    if content[4:8] != b"ftyp":
        return False
    major, compatible = content[8:12], content[16 : min(struct.unpack_from(">L", content)[0], 256)]
    brands = {compatible[at : at + 4] for at in range(0, len(compatible), 4)}
    return major in _HEIC_BRANDS or (major in _EITHER_BRANDS and bool(brands & _HEIC_BRANDS))


def _open_heic(content: bytes) -> Image.Image:
    """The container's main picture, upright: how it is turned stands in the container. Pillow learns no format.

    Raises:
        RefusedPhoto: no reader is installed.
        Exception: any other, where it cannot be read.
    """
    for name in _HEIC_READERS:
        with contextlib.suppress(ImportError):
            image: Image.Image = importlib.import_module(f"{name}.as_plugin").HeifImageFile(io.BytesIO(content))
            return image
    raise RefusedPhoto("is a HEIC photo, which needs pip install 'refocus-edge[heic]'; or convert it to JPEG")


def capture_time(content: bytes) -> str:
    """When the EXIF data of a photo say it was taken: ``YYYY:MM:DD hh:mm:ss``, and fractions of a second.

    "" where they do not say, where they are damaged, or where they lie behind the pixels: none is decoded for it.
    """
    with contextlib.suppress(Exception):  # of broken data Pillow raises anything; the photo is then one without a time
        found = _exif_directory(content)
        taken = str(found.get(ExifTags.Base.DateTimeOriginal, "")).strip("\0 ")
        fraction = str(found.get(ExifTags.Base.SubsecTimeOriginal, "")).strip("\0 ")
        return taken + f".{fraction}" * bool(fraction) if _TIME.fullmatch(taken) else ""
    return ""


def _exif_directory(content: bytes) -> TiffImagePlugin.ImageFileDirectory_v2:
    """The directory of EXIF's own tags. None of its values is unpacked yet."""
    exif = Image.Exif()
    if content[4:8] == b"ftyp":
        exif.load(_avif_exif(content))
    else:
        image, _ = open_image(content)
        if image.format == "TIFF":
            exif = image.getexif()
        else:
            exif.load(image.info["exif"])
    found = TiffImagePlugin.ImageFileDirectory_v2(exif.head, group=ExifTags.IFD.Exif)
    exif.fp.seek(exif[ExifTags.IFD.Exif])
    found.load(exif.fp)
    return found


def _avif_exif(content: bytes) -> bytes:
    """EXIF data of an AVIF: from the first thing on that looks like their beginning, as much as a JPEG can hold."""
    found = re.search(rb"II\*\0\x08\0\0\0|MM\0\*\0\0\0\x08", content)
    return content[found.start() :][: 1 << 16] if found else b""


_MARKER = re.compile(rb"\xff([^\x00\xff])")
_XMP = b"http://ns.adobe.com/xap/1.0/\x00"
_ALONE = (0x01, *range(0xD0, 0xD9))  # markers without a length
_UNUSED = (*range(0xE1, 0xEE), 0xEF, 0xFE)  # all application data but JFIF's and Adobe's; comments
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_LOSSLESS = frozenset({0xC3, 0xC7, 0xCB, 0xCF})
# A segment, or the end, behind a scan: in its data stand stuffed zeros and restarts, and other bytes are passed over.
_AFTER_SCAN = re.compile(rb"\xff([\xc0-\xcf\xd9-\xfe])")


def _read_jpeg(content: bytes) -> JpegHeader:
    """Reads segments up to the first scan, as libjpeg does: bytes between them are passed over."""
    kept, frame, at = [b"\xff\xd8"], b"", 2
    metadata: dict[str, bytes] = {}
    for _ in range(_MOST_SEGMENTS):
        found = _MARKER.search(content, at)
        if found is None:
            raise RefusedPhoto("is damaged or truncated (a JPEG without pixels); copy it again from its source")
        marker, at = found[1][0], found.start()
        if marker in (0xDA, 0xD9):
            break
        length = 0 if marker in _ALONE else struct.unpack_from(">H", content, at + 2)[0]
        segment = content[at : at + 2 + length]
        at += len(segment)
        if marker not in _UNUSED:
            kept.append(segment)
        if marker == 0xE1 and segment[4:10] == b"Exif\0\0":
            metadata.setdefault("exif", segment[4:])
        elif marker == 0xE1 and segment[4:].startswith(_XMP):
            metadata.setdefault("xmp", segment[4 + len(_XMP) :])
        elif marker in _FRAMES:
            frame = segment
    else:
        raise RefusedPhoto(f"is a JPEG of more than {_MOST_SEGMENTS} segments; save it again with another program")
    scalable = bool(frame) and frame[1] not in _LOSSLESS
    return JpegHeader(b"".join([*kept, content[at:]]), metadata, _coefficient_bytes(frame, content, at), scalable)


def _coefficient_bytes(frame: bytes, content: bytes, scan: int) -> float:
    """Two bytes per coefficient and pixel of each component, by how coarsely it is sampled."""
    sampling = [(each >> 4, each & 15) for each in frame[11 : 10 + 3 * frame[9] : 3]]
    if frame[1] not in (0xC2, 0xC6, 0xCA, 0xCE) and content[scan + 4] == len(sampling):
        return 0.0  # decoded row by row
    _check_scans(content, scan)
    widest, highest = map(max, zip(*sampling, strict=True))
    return sum(2 * across * down for across, down in sampling) / float(widest * highest)


def _check_scans(content: bytes, at: int) -> None:
    """Refuses a JPEG whose decoding takes minutes; what follows its end, as a phone's film, counts for nothing.

    Args:
        at: where its first scan begins.
    """
    scans = 0
    for _ in range(_MOST_SEGMENTS):
        found = _AFTER_SCAN.search(content, at)
        if found is None or found[1] == b"\xd9":
            return
        scans += found[1] == b"\xda"
        if scans > _MOST_SCANS:
            raise RefusedPhoto(f"is a JPEG of more than {_MOST_SCANS} scans; save it again with another program")
        at = found.start() + 2
        at += max(2, int.from_bytes(content[at : at + 2], "big"))
    raise RefusedPhoto(f"is a JPEG of more than {_MOST_SEGMENTS} segments; save it again with another program")


def _check_tiff(content: bytes) -> None:
    """Refuses a TIFF whose first directory would unpack to millions of values or strips."""
    order = "<" if content[:2] == b"II" else ">"
    big = content[2:4] in (b"+\0", b"\0+")
    (start,) = struct.unpack_from(order + ("Q" if big else "L"), content, 8 if big else 4)
    (entries,) = struct.unpack_from(order + ("Q" if big else "H"), content, start)
    layout = struct.Struct(order + ("HHQ8x" if big else "HHL4x"))
    found = content[start + (8 if big else 2) :][: min(entries, 65536) * layout.size]
    tags: set[int] = set()
    for tag, kind, count in layout.iter_unpack(found[: len(found) - len(found) % layout.size]):
        strips = tag in (273, 279, 324, 325)
        if count > _MOST_VALUES and (strips or kind not in (1, 2, 6, 7)):
            raise RefusedPhoto(
                f"is a TIFF with {count} values of tag {tag}, up to {_MOST_VALUES} are read; save it"
                " again with another program"
            )
        if tag in tags:  # of which decoders take different ones
            raise RefusedPhoto(f"is a TIFF with tag {tag} twice; save it again with another program")
        tags.add(tag)


def _check_png(content: bytes) -> None:
    """Refuses a PNG of so many chunks that reading them takes seconds."""
    at = 8
    for _ in range(_MOST_CHUNKS):
        if at + 4 > len(content):
            return
        at += 12 + int(struct.unpack_from(">L", content, at)[0])
    raise RefusedPhoto(f"is a PNG of more than {_MOST_CHUNKS} chunks; save it again with another program")


def _without_avif_exif(content: bytes) -> bytes:
    """An AVIF without its EXIF data: what turns it lies outside these, and Pillow's reader would write them again."""
    if content[4:8] != b"ftyp":
        return content
    boxes: list[bytes] = []
    at = 0
    while at + 8 <= len(content):
        size, kind = struct.unpack_from(">L4s", content, at)
        if kind == b"mdat" or size < 8 or len(boxes) == _MOST_SEGMENTS:
            break
        boxes.append(content[at : at + size].replace(b"Exif", b"none"))
        at += size
    return b"".join([*boxes, content[at:]])
