"""Photos taken apart and put together again: chunks, segments and tags, sound and unsound."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable

from PIL import Image, features

from tests.fuzz.toys import draw

PNG = b"\x89PNG\r\n\x1a\n"
Parts = list[tuple[bytes, bytes]]


def saved(image: Image.Image, name: str, **how: object) -> bytes:
    stream = io.BytesIO()
    image.copy().save(stream, name, **how)  # savers leave their settings in an image
    return stream.getvalue()


def bases() -> dict[str, bytes]:
    """Unharmed photos of the formats that are accepted, by a name that begins with the format."""
    picture = draw(1)
    alpha = picture.copy()
    alpha.putalpha(120)
    palette = picture.quantize(16)
    deep = Image.frombytes("I;16", (48, 40), bytes(range(256)) * 15)
    found = {
        "JPEG": saved(picture, "JPEG", quality=90),
        "JPEG progressive": saved(picture, "JPEG", progressive=True, subsampling=2),
        "JPEG grey": saved(picture.convert("L"), "JPEG"),
        "JPEG CMYK": saved(picture.convert("CMYK"), "JPEG"),
        "JPEG of several": saved(picture, "MPO", save_all=True, append_images=[draw(2)]),
        "JPEG ICC": saved(picture, "JPEG", icc_profile=b"\0" * 3000, comment=b"hello", dpi=(72, 72)),
        "PNG": saved(picture, "PNG"),
        "PNG alpha": saved(alpha, "PNG"),
        "PNG palette": saved(palette, "PNG", transparency=3),
        "PNG grey": saved(picture.convert("L"), "PNG"),
        "PNG 1 bit": saved(picture.convert("1"), "PNG"),
        "PNG 16 bit": saved(deep, "PNG"),
        "PNG animated": saved(picture, "PNG", save_all=True, append_images=[draw(2)], duration=50),
        "WEBP": saved(picture, "WEBP", quality=80),
        "WEBP lossless": saved(alpha, "WEBP", lossless=True),
        "WEBP animated": saved(picture, "WEBP", save_all=True, append_images=[draw(2)], duration=50),
        "GIF": saved(palette, "GIF", transparency=2),
        "GIF animated": saved(palette, "GIF", save_all=True, append_images=[draw(2).quantize(16)], duration=50),
        "BMP": saved(picture, "BMP"),
        "BMP palette": saved(palette, "BMP"),
        "BMP 1 bit": saved(picture.convert("1"), "BMP"),
        "TIFF": saved(picture, "TIFF"),
        "TIFF LZW": saved(picture, "TIFF", compression="tiff_lzw"),
        "TIFF deflate": saved(picture, "TIFF", compression="tiff_adobe_deflate"),
        "TIFF JPEG": saved(picture, "TIFF", compression="jpeg"),
        "TIFF 16 bit": saved(deep, "TIFF"),
        "TIFF float": saved(picture.convert("F"), "TIFF"),
        "TIFF of several": saved(picture, "TIFF", save_all=True, append_images=[draw(2)]),
        "TIFF G4": saved(picture.convert("1"), "TIFF", compression="group4"),
    }  # fmt: skip
    if features.check("avif"):
        found["AVIF"] = saved(picture, "AVIF", quality=80)
        found["AVIF alpha"] = saved(alpha, "AVIF")
    return found


def others() -> dict[str, bytes]:
    """Files that must be refused, however harmless: formats that nobody's camera makes, and no photos at all."""
    picture = draw(3)
    names = ("BLP", "DDS", "DIB", "EPS", "ICNS", "ICO", "IM", "JPEG2000", "MSP", "PCX", "PPM", "QOI", "SGI", "SPIDER",
             "TGA", "XBM", "PDF")  # fmt: skip
    found = {}
    for name in names:
        image = picture.convert("1") if name in ("MSP", "XBM") else picture.convert("P") if name == "BLP" else picture
        found[name] = saved(image.convert("F") if name == "SPIDER" else image, name)
    found |= {
        "PSD": b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 4, 4, 8, 3) + b"\0" * 12 + b"\0\0" + b"\7" * 48,
        "FITS": (b"SIMPLE  =                    T".ljust(80) + b"BITPIX  =                    8".ljust(80)
                 + b"NAXIS   =                    2".ljust(80) + b"NAXIS1  =                    4".ljust(80)
                 + b"NAXIS2  =                    4".ljust(80) + b"END".ljust(80)).ljust(2880) + b"\5" * 2880,
        "XPM": b'/* XPM */\nstatic char *a[] = {\n"2 2 2 1",\n"a c #000000",\n"b c #FFFFFF",\n"ab",\n"ba"\n};\n',
        "SVG": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>',
        "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 200,
        "WMF": b"\xd7\xcd\xc6\x9a\0\0" + struct.pack("<hhhhH", 0, 0, 100, 100, 72) + b"\0" * 60,
        "text": b"GIF of my cat", "ZIP": b"PK\3\4" + b"\0" * 60, "HTML": b"<html><img src=x></html>",
        "ELF": b"\x7fELF" + b"\0" * 100, "MPEG": b"\0\0\1\xba" + b"\0" * 100, "GBR": struct.pack(">IIIIIII", 28, 2, 4, 4, 1, 0, 1) + b"\1" * 99,
    }  # fmt: skip
    return found


# ---- PNG


def png_chunks(content: bytes) -> Parts:
    """Name and body of each chunk, as far as they are whole."""
    found, at = [], len(PNG)
    while at + 12 <= len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        found.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += 12 + length
    return found


def png_of(chunks: Parts) -> bytes:
    """The file, with right lengths and checksums."""
    return PNG + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


def odd_png_chunk(rng: random.Random) -> tuple[bytes, bytes]:
    """A chunk that is allowed somewhere, with an odd body."""
    noise = rng.randbytes(rng.choice([0, 1, 4, 13, 100]))
    squeezed = zlib.compress(bytes(rng.choice([10, 10_000, 1 << 20])))
    bodies = {
        b"eXIf": tiff(odd_entries(rng), rng.choice("<>")), b"iCCP": b"p\0\0" + squeezed, b"zTXt": b"k\0\0" + squeezed,
        b"iTXt": b"k\0\1\0\0\0" + squeezed, b"tEXt": b"Software\0" + noise, b"gAMA": noise, b"sRGB": noise,
        b"tRNS": noise, b"PLTE": noise * 3, b"pHYs": noise, b"acTL": struct.pack(">II", rng.choice([0, 1, 2**31]), 0),
        b"fcTL": struct.pack(">IIIIIHHBB", 0, *(rng.choice([0, 1, 48, 2**31]) for _ in range(4)), 1, 0, 9, 9),
        b"fdAT": noise, b"IDAT": noise, b"IEND": b"", b"IHDR": struct.pack(">IIBBBBB", 48, 40, *rng.choices(range(17), k=5)),
        b"raNd": noise, b"cHRM": noise, b"caBX": noise,
    }  # fmt: skip
    name = rng.choice([*bodies])
    return name, bodies[name]


def mutated_png(content: bytes, rng: random.Random) -> bytes:
    return png_of(_mutated(png_chunks(content), odd_png_chunk, rng))


def _mutated(parts: Parts, odd: Callable[[random.Random], tuple[bytes, bytes]], rng: random.Random) -> Parts:
    """Some parts more, less, twice, elsewhere, or with another body."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(parts)) if parts else 0
        match rng.randrange(6):
            case 0 | 1:
                parts.insert(rng.choice([1, at, len(parts)]), odd(rng))
            case 2 if parts:
                parts.pop(at)
            case 3 if parts:
                parts.insert(at, parts[rng.randrange(len(parts))])
            case 4 if parts:
                name, body = parts[at]
                changed = bytearray(body)
                if changed:
                    changed[rng.randrange(len(changed))] = rng.randrange(256)
                parts[at] = name, bytes(changed)
            case 5 if parts:
                name, body = parts[at]
                parts[at] = name, body[: rng.randrange(len(body) + 1)]
    return parts


# ---- JPEG


def jpeg_segments(content: bytes) -> tuple[Parts, bytes]:
    """Marker and body of each segment before the scan, and the rest from the scan on."""
    found, at = [], 2
    while at + 4 <= len(content) and content[at] == 0xFF and content[at + 1] != 0xDA:
        (length,) = struct.unpack(">H", content[at + 2 : at + 4])
        found.append((content[at : at + 2], content[at + 4 : at + 2 + length]))
        at += 2 + length
    return found, content[at:]


def jpeg_of(segments: Parts, rest: bytes) -> bytes:
    return b"\xff\xd8" + b"".join(m + struct.pack(">H", (len(b) + 2) & 0xFFFF) + b for m, b in segments) + rest


def odd_jpeg_segment(rng: random.Random) -> tuple[bytes, bytes]:
    noise = rng.randbytes(rng.choice([0, 1, 4, 13, 100]))
    xmp = b"http://ns.adobe.com/xap/1.0/\0"
    orientation = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>'
    kinds = [
        (b"\xff\xe1", b"Exif\0\0" + tiff(odd_entries(rng), rng.choice("<>"))),
        (b"\xff\xe1", b"Exif\0\0" + noise), (b"\xff\xe1", xmp + noise),
        (b"\xff\xe1", xmp + orientation % rng.choice([0, 3, 6, 9])),
        (b"\xff\xe1", xmp + b"<!DOCTYPE a [" + b"".join(b'<!ENTITY %c "%b">' % (97 + n, b"&%c;" % (96 + n) * 10)
                                                       for n in range(1, 9)) + b"]><a>&i;</a>"),
        (b"\xff\xe2", b"ICC_PROFILE\0" + bytes([rng.randrange(4), rng.randrange(4)]) + noise),
        (b"\xff\xe2", b"MPF\0" + tiff([(0xB000, 7, 4, b"0100"), (0xB001, 4, 1, struct.pack("<I", rng.choice([0, 2, 2**31])))], "<")),
        (b"\xff\xed", b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0" + struct.pack(">I", rng.choice([0, 5, 2**31])) + noise),
        (b"\xff\xed", b"Photoshop 3.0\0" + b"8BIM\x03\xed\0\0\0\0\0\x10" + noise), (b"\xff\xee", b"Adobe\0" + noise),
        (b"\xff\xe0", b"JFIF\0\1\1" + noise), (b"\xff\xdb", noise), (b"\xff\xc4", noise), (b"\xff\xdd", noise),
        (b"\xff\xc0", struct.pack(">BHHB", 8, *(rng.choice([0, 1, 40, 65535]) for _ in range(2)), rng.choice([1, 3, 4])) + noise),
        (b"\xff\xfe", noise),
    ]  # fmt: skip
    return rng.choice(kinds)


def mutated_jpeg(content: bytes, rng: random.Random) -> bytes:
    segments, rest = jpeg_segments(content)
    return jpeg_of(_mutated(segments, odd_jpeg_segment, rng), rest)


# ---- RIFF (WebP)


def riff_chunks(content: bytes) -> Parts:
    found, at = [], 12
    while at + 8 <= len(content):
        (length,) = struct.unpack("<I", content[at + 4 : at + 8])
        found.append((content[at : at + 4], content[at + 8 : at + 8 + length]))
        at += 8 + length + length % 2
    return found


def riff_of(chunks: Parts) -> bytes:
    body = b"".join(name + struct.pack("<I", len(b)) + b + b"\0" * (len(b) % 2) for name, b in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def odd_riff_chunk(rng: random.Random) -> tuple[bytes, bytes]:
    noise = rng.randbytes(rng.choice([0, 1, 10, 100]))
    return rng.choice([(b"EXIF", tiff(odd_entries(rng), "<")), (b"EXIF", noise), (b"XMP ", noise), (b"ICCP", noise),
                       (b"VP8X", rng.randbytes(10)), (b"ANIM", noise), (b"ANMF", noise), (b"VP8 ", noise),
                       (b"ALPH", noise)])  # fmt: skip


def mutated_webp(content: bytes, rng: random.Random) -> bytes:
    return riff_of(_mutated(riff_chunks(content), odd_riff_chunk, rng))


# ---- EXIF and TIFF

Entry = tuple[int, int, int, bytes]  # tag, type, count, value
ORIENTATION = 0x0112
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}


def tiff(entries: list[Entry], order: str, after: int = 0) -> bytes:
    """A TIFF structure with one directory; a value of more than four bytes lies behind it."""
    mark, place = (b"II" if order == "<" else b"MM"), 8 + 2 + 12 * len(entries) + 4
    directory, values = b"", b""
    for tag, kind, count, value in entries:
        if len(value) <= 4:
            field = value.ljust(4, b"\0")
        else:
            field = struct.pack(order + "I", place + len(values))
            values += value
        directory += struct.pack(order + "HHI", tag, kind, count & 0xFFFFFFFF) + field
    return (mark + struct.pack(order + "HI", 42, 8) + struct.pack(order + "H", len(entries)) + directory
            + struct.pack(order + "I", after) + values)  # fmt: skip


def odd_entries(rng: random.Random) -> list[Entry]:
    """Tags that readers know, of types and counts that they do not expect."""
    tags = [0x010E, 0x010F, 0x011A, 0x011B, 0x0128, 0x0132, 0x8769, 0x8825, 0x9003, 0x9286, 0x927C, 0xA005, 0xA002,
            ORIENTATION, 0x02BC, 0x83BB, 0x8649, 0xC4A5, 0x0100, 0x0111, 0x0117, 0xFFFF]  # fmt: skip
    found: list[Entry] = []
    for _ in range(rng.choice([1, 2, 3, 8])):
        kind = rng.choice([*range(1, 14), 0, 16, 129, 65535])
        count = rng.choice([0, 1, 1, 2, 5, 1000, 2**31, 2**32 - 1])
        value = rng.choice([b"", b"\0" * 8, b"72\0", b"\xff" * 12, rng.randbytes(rng.choice([2, 4, 8, 40])),
                            struct.pack("<I", rng.choice([0, 8, 10, 2**31])), struct.pack("<II", 1, 0)])  # fmt: skip
        found.append((rng.choice(tags), kind, count, value))
    return found


def sound_entries(orientation: int, rng: random.Random, order: str) -> list[Entry]:
    """An orientation, and other tags that are well-formed and of types that nobody expects; in the order of tags."""
    found: list[Entry] = [(ORIENTATION, 3, 1, struct.pack(order + "H", orientation))]
    for tag in rng.sample([0x010E, 0x010F, 0x011A, 0x011B, 0x0128, 0x0132, 0x013B, 0x8298], rng.randrange(5)):
        kind = rng.choice([1, 2, 3, 4, 5, 7, 9, 10, 12])
        count = rng.choice([1, 2, 3])
        value = b"72\0"[:count].ljust(count, b"\0") if kind == 2 else rng.randbytes(count * _SIZES[kind])
        found.append((tag, kind, count, value))
    return sorted(found)


def with_exif(name: str, content: bytes, exif: bytes) -> bytes:
    """The photo with EXIF data; JPEG, PNG and WebP."""
    if name.startswith("JPEG"):
        segments, rest = jpeg_segments(content)
        return jpeg_of([(b"\xff\xe1", b"Exif\0\0" + exif), *segments], rest)
    if name.startswith("PNG"):
        chunks = png_chunks(content)
        return png_of([chunks[0], (b"eXIf", exif), *chunks[1:]])
    width, height = Image.open(io.BytesIO(content)).size
    chunks = [(n, b) for n, b in riff_chunks(content) if n != b"VP8X"]
    header = bytes([0x08 | 0x10 * (b"ALPH" in dict(chunks) or b"VP8L" in dict(chunks)), 0, 0, 0])
    header += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return riff_of([(b"VP8X", header), *chunks, (b"EXIF", exif)])


# ---- bombs


def bombs() -> dict[str, bytes]:
    """Small files that say they are large, or are."""

    def png(width: int, height: int, depth: int, colour: int, row: int) -> bytes:
        squeezed = zlib.compressobj(1)
        block = bytes(row + 1)
        body = b"".join(squeezed.compress(block) for _ in range(height)) + squeezed.flush()
        return png_of([(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)), (b"IDAT", body),
                       (b"IEND", b"")])  # fmt: skip

    found = {
        "PNG 13000 x 13000, 16 bit": png(13000, 13000, 16, 0, 26000),
        "PNG 12000 x 12000, 1 bit": png(12000, 12000, 1, 0, 1500),
        "PNG 6000 x 6000, RGBA 16 bit": png(6000, 6000, 16, 6, 48000),
        "PNG 1 x 60000": png(1, 60000, 8, 0, 1),
        "PNG 60000 x 1": png(60000, 1, 8, 2, 180000),
    }
    packed = zlib.compress(bytes(300 << 20), 1)
    for name, text in (("zTXt", b"k\0\0"), ("iCCP", b"p\0\0"), ("iTXt", b"k\0\1\0\0\0")):
        chunks = png_chunks(saved(draw(1), "PNG"))
        found[f"PNG {name} of 300 MB"] = png_of([chunks[0], (name.encode(), text + packed), *chunks[1:]])
    for side in (9000, 20000, 65535):
        found[f"GIF screen {side}"] = b"GIF89a" + struct.pack("<HHBBB", side, side, 0, 0, 0) + (
            b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\0;")  # fmt: skip
        found[f"GIF image {side}"] = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + bytes(6) + (
            b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02\x02\x44\x01\0;")  # fmt: skip
        found[f"BMP {side}"] = (
            b"BM"
            + struct.pack("<IHHI", 60, 0, 0, 54)
            + struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
        )
        found[f"BMP RLE {side}"] = (
            b"BM"
            + struct.pack("<IHHI", 70, 0, 0, 62)
            + struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, 0, 0, 0, 2, 0)
            + bytes(8)
            + b"\0\1"
        )
        found[f"JPEG {side}"] = _jpeg_of_side(side)
        for kind, bits in ((1, 1), (1, 16), (5, 8), (8, 8)):
            found[f"TIFF {side}, compression {kind}, {bits} bit"] = _tiff_of_side(side, kind, bits)
    found["GIF 2000 frames"] = saved(draw(1).quantize(4), "GIF", save_all=True, duration=5, optimize=False,
                                     append_images=[draw(n % 7).quantize(4) for n in range(300)])  # fmt: skip
    return found


def _jpeg_of_side(side: int) -> bytes:
    segments, rest = jpeg_segments(saved(draw(1), "JPEG", progressive=True))
    changed = [(m, b[:1] + struct.pack(">HH", side, side) + b[5:]) if m in (b"\xff\xc0", b"\xff\xc2") else (m, b)
               for m, b in segments]  # fmt: skip
    return jpeg_of(changed, rest)


def _tiff_of_side(side: int, compression: int, bits: int) -> bytes:
    body = zlib.compress(bytes(1 << 20)) if compression == 8 else bytes(5000)
    long = lambda tag, value: (tag, 4, 1, struct.pack("<I", value))  # noqa: E731
    entries = [long(256, side), long(257, side), long(258, bits), long(259, compression), long(262, 1), long(273, 200),
               long(277, 1), long(278, side), long(279, len(body))]  # fmt: skip
    return tiff(entries, "<").ljust(200, b"\0") + body
