"""Photos that are made to harm: other formats, little files that decode to gigabytes, metadata that no decoder expects."""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile, TiffImagePlugin

from refocus.edge import files
from refocus.edge.bundle.manifest import Preprocessing
from refocus.edge.errors import PhotoError
from refocus.edge.photos.preprocess import decode_photo, preprocess, read_photo

CONTRACT = Preprocessing(resize_shorter=40, crop=32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
MOST_BYTES = 900_000_000  # of a process that decodes one photo, nothing but NumPy and Pillow beside it


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@pytest.fixture(scope="module")
def picture():
    pixels = np.random.default_rng(0).integers(0, 255, (10, 15, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((120, 80), Image.Resampling.BICUBIC)


# ---- formats


@pytest.mark.parametrize("kind", ["PPM", "TGA", "ICO", "PCX", "SGI", "JPEG2000", "DDS", "IM"])
def test_a_format_that_no_camera_writes_is_refused(picture, kind):
    with pytest.raises(PhotoError, match="is not a photo; expected a JPEG"):
        preprocess(encoded(picture, kind), CONTRACT)


def test_a_postscript_file_starts_no_program(tmp_path, monkeypatch):
    program, called = tmp_path / "gs", tmp_path / "called"
    program.write_text(f"#!/bin/sh\necho called >> {called}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(PhotoError, match="is not a photo"):
        preprocess(page, CONTRACT, "evil.jpg")
    assert not called.exists()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_what_cameras_and_browsers_write_is_read(picture, kind):
    if kind == "AVIF" and "AVIF" not in Image.SAVE:
        pytest.skip("this Pillow has no AVIF")
    assert preprocess(encoded(picture, kind), CONTRACT).shape == (1, 3, 32, 32)


# ---- metadata


def rotated(picture, kind, **options) -> bytes:
    """EXIF data that say "turn by 90 degrees", and hold a resolution as text, which cannot be written again."""
    ascii_resolution = struct.pack("<HHLL", 0x011A, 2, 4, 0x30303237)  # "7200"
    orientation = struct.pack("<HHLL", 0x0112, 3, 1, 6)
    directory = b"II*\0" + struct.pack("<LH", 8, 2) + orientation + ascii_resolution + b"\0\0\0\0"
    return encoded(picture, kind, exif=b"Exif\0\0" + directory, **options)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_rotated_photo_with_a_resolution_in_text_is_recognised_upright(picture, kind):
    content = rotated(picture, kind)
    assert decode_photo(content, "photo").size == (80, 120)
    assert preprocess(content, CONTRACT).shape == (1, 3, 32, 32)


def test_an_orientation_is_ignored_where_the_contract_says_so(picture):
    ignoring = Preprocessing(**{name: getattr(CONTRACT, name) for name in ("resize_shorter", "crop", "mean", "std")},
                             apply_exif_orientation=False)  # fmt: skip
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        exif = Image.Exif()
        exif[0x0112] = 6
        options = {"lossless": True} if kind == "WEBP" else {}
        turned, plain = encoded(picture, kind, exif=exif, **options), encoded(picture, kind, **options)
        np.testing.assert_array_equal(preprocess(turned, ignoring), preprocess(plain, CONTRACT))
        assert not np.array_equal(preprocess(turned, CONTRACT), preprocess(plain, CONTRACT))


@pytest.mark.parametrize("error", [TypeError, AttributeError, RuntimeError, NotImplementedError, ZeroDivisionError,
                                   MemoryError, RecursionError, AssertionError])  # fmt: skip
def test_an_error_of_a_decoder_is_a_photo_error(picture, monkeypatch, error):
    def fail(*_):
        raise error("inside\na decoder")

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    with pytest.raises(PhotoError) as raised:
        preprocess(encoded(picture, "JPEG"), CONTRACT, "holiday.jpg")
    assert str(raised.value).startswith("holiday.jpg ")
    assert "\n" not in str(raised.value)


def test_an_interruption_while_decoding_stays_one(picture, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    with pytest.raises(KeyboardInterrupt):
        preprocess(encoded(picture, "JPEG"), CONTRACT)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "AVIF"])
def test_a_mutated_photo_is_decoded_or_refused(picture, kind):
    """As `make fuzz` does it, for a second: bytes changed, cut out, put twice, in the first part of the file."""
    if kind not in Image.SAVE:
        pytest.skip("this Pillow cannot write it")
    rng = np.random.default_rng(0)
    content = rotated(picture, kind) if kind in ("JPEG", "PNG", "WEBP") else encoded(picture, kind)
    for _ in range(150):
        broken = bytearray(content)
        for place in rng.integers(0, min(len(broken), 600), 4):
            broken[place] = rng.integers(0, 256)
        at, length = rng.integers(0, len(broken)), rng.integers(0, 40)
        if rng.integers(3) == 0:
            broken[at:at] = broken[at : at + length]
        elif rng.integers(3) == 0:
            del broken[at : at + length]
        with contextlib.suppress(PhotoError):
            assert preprocess(bytes(broken), CONTRACT).shape == (1, 3, 32, 32)


# ---- scans


def scan_of(content: bytes) -> bytes:
    """The last scan of a JPEG, up to the end of the photo."""
    return content[content.rindex(b"\xff\xda") : content.rindex(b"\xff\xd9")]


def with_scans(content: bytes, scan: bytes, count: int) -> bytes:
    end = content.rindex(b"\xff\xd9")
    return content[:end] + scan * count + content[end:]


def test_a_film_behind_a_photo_counts_for_no_scan(picture):
    """Some phones append one; in 12 MB of it are hundreds of the two bytes that begin a scan."""
    content = encoded(picture, "JPEG", progressive=True)
    film = np.random.default_rng(0).bytes(1 << 20) + b"\xff\xda" * 500
    np.testing.assert_array_equal(preprocess(content + film, CONTRACT), preprocess(content, CONTRACT))


def test_a_thumbnail_ends_no_photo_and_hides_no_scan(picture):
    """A segment between scans may hold the end of another photo."""
    content = encoded(picture, "JPEG", progressive=True)
    thumbnail = encoded(picture.resize((12, 8)), "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(thumbnail)) + thumbnail
    scan = scan_of(content)
    assert preprocess(with_scans(content, segment + scan, 20), CONTRACT).shape == (1, 3, 32, 32)
    for hidden in (segment + scan, b"\xff\xd0" + scan, b"\xff\xff" + scan, b"\0\xff\0" + scan, b"\xff\1" + scan):
        with pytest.raises(PhotoError, match="more than 100 scans"):
            preprocess(with_scans(content, hidden, 100), CONTRACT)


def test_a_photo_of_many_segments_between_its_scans_is_refused(picture):
    content = encoded(picture, "JPEG", progressive=True)
    with pytest.raises(PhotoError, match="more than 10000 segments"):
        preprocess(with_scans(content, b"\xff\xfe\0\2", 10_000), CONTRACT)


# ---- memory

MEASURE = """
import json, os, sys
import numpy
from pathlib import Path
from refocus.edge.errors import PhotoError
from refocus.edge.bundle.manifest import Preprocessing
from refocus.edge.photos.preprocess import preprocess, read_photo
contract = Preprocessing(resize_shorter=256, crop=224, mean=(0.5,) * 3, std=(0.5,) * 3)
def child(path):
    try:
        preprocess(read_photo(Path(path)), contract)
        print("decoded", flush=True)
    except PhotoError as error:
        print(f"refused: {error}", flush=True)
for path in sys.argv[1:]:
    process = os.fork()
    if not process:
        child(path)
        os._exit(0)
    _, status, usage = os.wait4(process, 0)
    print(json.dumps([status, usage.ru_maxrss * 1024]), flush=True)
"""


def measured(tmp_path, contents: dict[str, bytes]) -> dict[str, tuple[str, int]]:
    """What became of each photo, and the peak memory of a process that recognised nothing else."""
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    done = subprocess.run([sys.executable, "-c", MEASURE, *(tmp_path / name for name in contents)],
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert not done.stderr, done.stderr
    lines = done.stdout.splitlines()
    found = {}
    for name, said, figures in zip(contents, lines[::2], lines[1::2], strict=True):
        status, peak = json.loads(figures)
        assert status == 0
        found[name] = (said, peak)
    return found


def chunk(name: bytes, payload: bytes) -> bytes:
    return struct.pack(">L", len(payload)) + name + payload + struct.pack(">L", zlib.crc32(name + payload))


def grey_png(side: int, bits: int = 16) -> bytes:
    squeeze, row = zlib.compressobj(1), b"\0" * (1 + side * bits // 8)
    pixels = b"".join(squeeze.compress(row) for _ in range(side)) + squeeze.flush()
    header = chunk(b"IHDR", struct.pack(">LLBBBBB", side, side, bits, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def with_chunks(picture, name: bytes, payload: bytes, count: int = 1) -> bytes:
    content = encoded(picture, "PNG")
    return content[:33] + chunk(name, payload) * count + content[33:]


def empty_gif(width: int, height: int) -> bytes:
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return screen + b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00\x3b"


def tiff(tags: list[tuple[int, int, int, int]], data: bytes = b"") -> bytes:
    basic = {256: (3, 1, 64), 257: (3, 1, 48), 258: (3, 1, 8), 259: (3, 1, 1), 262: (3, 1, 1), 273: (4, 1, 500)}
    basic |= {278: (3, 1, 48), 279: (4, 1, 3072)} | {tag: tuple(rest) for tag, *rest in tags}
    entries = b"".join(struct.pack("<HHLL", tag, *rest) for tag, rest in sorted(basic.items()))
    return b"II*\0" + struct.pack("<LH", 8, len(basic)) + entries + b"\0\0\0\0" + data


def bombs(picture) -> dict[str, bytes]:
    """Little files, or large ones whose metadata unpack to much more."""
    million, jpeg = 1 << 20, encoded(picture, "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", 65533) + b"Exif\0\0" + b"\0" * 65525
    progressive = bytearray(encoded(picture, "JPEG", progressive=True, subsampling=0))
    frame = progressive.index(b"\xff\xc2")
    progressive[frame + 5 : frame + 9] = struct.pack(">HH", 13000, 13000)
    tile = [(259, 3, 1, 8), (322, 4, 1, 32768), (323, 4, 1, 32768), (324, 4, 1, 400), (325, 4, 1, 2 * million)]
    fractions = struct.pack("<HHHLL", 1, 0x9000, 5, million, 5000) + b"\0" * 4 + b"\1" * (8 * million + 9000)
    return {
        "text.png": with_chunks(picture, b"tEXt", b"a\0" + b"x" * million, 20),
        "unpacked.png": with_chunks(picture, b"zTXt", b"a\0\0" + zlib.compress(b"x" * million, 1), 100),
        "profile.png": with_chunks(picture, b"iCCP", b"a\0\0" + zlib.compress(b"x" * (16 * million), 1)),
        "exif.jpg": jpeg[:2] + segment * 100 + jpeg[2:],
        "segments.jpg": jpeg[:2] + b"\xff\xfe\0\2" * (million // 2) + jpeg[2:],
        "scans.jpg": bytes(progressive),
        "tile.tif": tiff(tile, b"\0" * 400 + zlib.compress(b"\0" * (160 * million), 1)),
        "strips.tif": tiff([(273, 1, million, 500)], b"\0" * (2 * million)),
        "fractions.tif": tiff([(34665, 4, 1, 4000)], b"\0" * (4000 - 122) + fractions),
        "profile.tif": tiff([(34675, 7, 8 * million, 500)], b"\0" * (9 * million)),
    }


def test_metadata_do_not_fill_the_memory(picture, tmp_path):
    plain = measured(tmp_path, {"plain.png": encoded(picture, "PNG")})["plain.png"][1]
    for name, (said, peak) in measured(tmp_path, bombs(picture)).items():
        assert peak - plain < 120_000_000, f"{name}: {peak - plain}: {said}"


def test_sixteen_bits_take_two_bytes_of_memory_a_pixel(picture, tmp_path):
    photos = {"plain.png": encoded(picture, "PNG"), "grey.png": grey_png(3000)}
    found = measured(tmp_path, photos)
    assert found["grey.png"][0] == "decoded"
    assert found["grey.png"][1] - found["plain.png"][1] < 2 * 3000**2 + 40_000_000


@pytest.mark.slow
def test_no_photo_takes_more_memory_than_is_stated(picture, tmp_path):
    """At the limit of pixels, each kind of file with its largest need; also turned ones, which are not copied whole."""
    side, exif = 13_000, Image.Exif()
    exif[0x0112] = 6
    phone = encoded(Image.new("RGB", (12_000, 9_000)), "JPEG", exif=exif)
    photos = {
        "grey.png": grey_png(side),
        "black.gif": empty_gif(side, side),
        "strip.tif": encoded(Image.new("L", (side, side)), "TIFF", compression="tiff_lzw", tiffinfo={278: side}),
        "turned.jpg": phone,
        "scans.jpg": encoded(Image.new("RGB", (9_000, 9_000), "teal"), "JPEG", progressive=True),
        "wide.webp": encoded(Image.new("RGB", (6_500, 6_500), "teal"), "WEBP", lossless=True, method=0),
        "black.png": grey_png(side, 1),
    }
    for name, (said, peak) in measured(tmp_path, photos).items():
        assert said == "decoded", (name, said)
        assert peak < MOST_BYTES, (name, peak)


@pytest.mark.parametrize("size", [(9_600, 9_600), (13_000, 13_000)])
def test_a_webp_that_needs_too_much_memory_is_refused_before_it_is_decoded(picture, size):
    content = bytearray(encoded(picture, "WEBP", lossless=True))
    assert content[12:16] == b"VP8L"
    packed = int.from_bytes(content[21:25], "little") >> 28 << 28 | (size[1] - 1) << 14 | (size[0] - 1)
    content[21:25] = packed.to_bytes(4, "little")
    with pytest.raises(PhotoError, match="bytes of memory to decode"):
        preprocess(bytes(content), CONTRACT)


# ---- directories of a TIFF


def test_a_tiff_that_says_a_thing_twice_is_refused(picture):
    content = bytearray(encoded(picture, "TIFF"))
    image = Image.open(io.BytesIO(content))
    assert isinstance(image, TiffImagePlugin.TiffImageFile)
    (start,) = struct.unpack_from("<L", content, 4)
    content[start + 2 + 12 : start + 2 + 24] = content[start + 2 : start + 2 + 12]
    with pytest.raises(PhotoError, match="twice"):
        preprocess(bytes(content), CONTRACT)


# ---- files


def test_a_small_file_takes_no_more_memory_than_it_has_bytes(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(bytes(1000))
    tracemalloc.start()
    try:
        assert read_photo(tmp_path / "photo.jpg") == bytes(1000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path, monkeypatch):
    def before_it_grew(path):
        stream, size = open_regular(path)
        return stream, size - 1

    (tmp_path / "photo.jpg").write_bytes(bytes(1000))
    open_regular = files.open_regular
    monkeypatch.setattr(files, "open_regular", before_it_grew)
    with pytest.raises(PhotoError, match="was changed while it was read; try again once it is complete"):
        read_photo(tmp_path / "photo.jpg")


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "photo.jpg")
    with pytest.raises(PhotoError, match="is not a file"):
        read_photo(tmp_path / "photo.jpg")


def test_a_device_is_refused():
    with pytest.raises(PhotoError, match="is not a file"):
        read_photo(Path("/dev/zero"))
