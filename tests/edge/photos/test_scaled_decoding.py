"""JPEGs decoded at a fraction of their size: which fraction, the same geometry, the same refusals; HEIC."""

from __future__ import annotations

import importlib
import io
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from refocus.cloud_train.data.image_tensors import decoded
from refocus.edge.bundle.manifest import Preprocessing
from refocus.edge.errors import PhotoError
from refocus.edge.photos import decode as decoding
from refocus.edge.photos import header
from refocus.edge.photos.decode import decode
from refocus.edge.photos.preprocess import decode_for, preprocess

FULL = Preprocessing(resize_shorter=40, crop=32, mean=(0, 0, 0), std=(1, 1, 1))
SCALED = msgspec.structs.replace(FULL, decoder="pillow-scaled")
HEIC = Path(__file__).parent / "turned.heic"  # 64x96 stored, turned by its container; by pillow-heif 1.8.1
UNDO = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90", 7: "TRANSVERSE", 8: "ROTATE_270"}  # fmt: skip


def smooth(width: int, height: int) -> Image.Image:
    """Colours without details that a smaller size could lose; no two corners are alike."""
    down, across = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    waves = np.stack([across, down, 0.5 + 0.5 * np.sin(6 * across + 4 * down)], -1)
    return Image.fromarray((20 + 215 * waves).round().astype(np.uint8))


def jpeg(image: Image.Image, orientation: int = 1, **options) -> bytes:
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    image.save(stream, "JPEG", **({"quality": 95, "exif": exif} | options))
    return stream.getvalue()


def levels(content: bytes, contract: Preprocessing = SCALED) -> np.ndarray:
    """How far the scaled pixels are from those of full decoding, in levels of 255."""
    full = msgspec.structs.replace(contract, decoder="pillow-full-size")
    return np.abs(preprocess(content, contract) - preprocess(content, full))[0] * 255


# ---- which size


@pytest.mark.parametrize(
    ("size", "stored"),
    [((159, 400), (159, 400)), ((160, 400), (80, 200)), ((319, 319), (160, 160)), ((320, 331), (80, 83)),
     ((639, 641), (160, 161)), ((641, 643), (81, 81)), ((2000, 700), (250, 88))],
)  # fmt: skip
def test_the_shorter_side_keeps_twice_the_target_and_no_more_than_that_needs(size, stored):
    photo = decode_for(jpeg(smooth(*size)), SCALED)
    assert (photo.size, photo.full_size) == (stored, size)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF", "GIF"])
def test_other_formats_are_decoded_at_full_size_to_the_bit(kind):
    stream = io.BytesIO()
    smooth(700, 500).save(stream, kind)
    assert levels(stream.getvalue()).max() == 0


def test_a_jpeg_that_is_too_small_to_be_scaled_keeps_its_pixels_to_the_bit():
    assert levels(jpeg(smooth(300, 159))).max() == 0
    assert levels(jpeg(smooth(300, 160))).max() > 0  # the control: one row more, and it is scaled


def test_a_contract_without_a_decoder_is_that_of_release_0_1():
    assert decode_for(jpeg(smooth(800, 800)), FULL).size == (800, 800)
    assert (
        msgspec.json.decode(b'{"resize_shorter":40,"crop":32,"mean":[0,0,0],"std":[1,1,1]}', type=Preprocessing) == FULL
    )


# ---- the same picture


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("bands", [1 << 20, 500])
def test_a_scaled_photo_lies_where_the_whole_one_does_however_it_is_turned(orientation, bands, monkeypatch):
    """Sides that are no multiple of 8: at 1/8 the last column and row are filled in part, wherever a turn puts them."""
    monkeypatch.setattr(decoding, "_BAND_PIXELS", bands)
    upright = smooth(1001, 673)
    stored = upright.transpose(Image.Transpose[UNDO[orientation]]) if orientation in UNDO else upright
    content = jpeg(stored, orientation)
    assert decode_for(content, SCALED).full_size == upright.size
    assert levels(content).max() <= 3
    assert levels(content).mean() < 0.5


@pytest.mark.parametrize("orientation", [1, 6, 7])
@pytest.mark.parametrize("resample", [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS])
def test_a_part_of_the_resized_photo_is_that_part_of_the_whole(orientation, resample):
    photo = decode_for(jpeg(smooth(1001, 673), orientation), SCALED)
    whole = np.asarray(photo.resized((61, 47), resample), dtype=int)
    part = np.asarray(photo.resized((61, 47), resample, part=(9, 5, 41, 37)), dtype=int)
    assert np.abs(part - whole[5:37, 9:41]).max() <= 1
    assert np.abs(part - whole[6:38, 9:41]).max() > 1  # the control: one row further down


def test_a_column_that_is_filled_in_part_counts_in_part():
    """Bars of 8 columns over 641: without that, the picture would be stretched by 7/8 of a column."""
    bars = np.zeros((640, 641, 3), dtype=np.uint8)
    bars[:, :, :] = (np.arange(641) * 255 // 640)[None, :, None]
    content = jpeg(Image.fromarray(bars), subsampling=0)
    photo = decode_for(content, SCALED)
    assert photo.width == 81
    right = np.asarray(photo.resized((40, 40), Image.Resampling.BICUBIC), dtype=float)
    stretched = np.asarray(photo.whole().resize((40, 40), Image.Resampling.BICUBIC), dtype=float)
    wanted = np.asarray(Image.fromarray(bars).resize((40, 40), Image.Resampling.BICUBIC), dtype=float)
    assert np.abs(right - wanted).max() < np.abs(stretched - wanted).max()


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 0}, {"subsampling": 1}, {"optimize": True},
                                     {"quality": 30}, {"restart_marker_blocks": 3}])  # fmt: skip
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_every_kind_of_jpeg_is_scaled(mode, options):
    if mode != "RGB" and "subsampling" in options:
        options = {}
    content = jpeg(smooth(900, 650).convert(mode), **options)
    assert min(decode_for(content, SCALED).size) == 82
    assert levels(content).max() <= (12 if options.get("quality") else 6)


def test_real_photos_change_little(real_data):
    contract = msgspec.structs.replace(SCALED, resize_shorter=80, crop=80)
    found = [levels(path.read_bytes(), contract) for path in sorted((real_data / "photos").glob("*.JPEG"))[:24]]
    scaled = [each for each in found if each.max() > 0]
    assert len(scaled) > 12
    assert max(each.mean() for each in scaled) < 2


def test_training_sees_the_pixels_that_the_device_sees():
    content = jpeg(smooth(1001, 673), 6)

    class Table:
        photo = np.array(["a.jpg"])

        def __len__(self) -> int:
            return 1

        def read(self, name: str) -> bytes:
            return content

    seen = decoded(Table(), SCALED, "reading")  # type: ignore[arg-type]
    np.testing.assert_allclose(seen[0] / 255, preprocess(content, SCALED)[0], atol=1e-6)
    assert np.abs(seen[0] / 255 - preprocess(content, FULL)[0]).max() > 1e-3


# ---- what is refused


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("progressive", [False, True])
def test_half_a_photo_is_refused_at_a_reduced_size_too(share, progressive):
    content = jpeg(smooth(1001, 673), progressive=progressive)
    with pytest.raises(PhotoError, match="damaged or truncated"):
        preprocess(content[: int(share * len(content))], SCALED)


def test_a_jpeg_of_too_many_pixels_is_refused_though_it_could_be_scaled():
    content = jpeg(Image.new("L", (16, 16)))
    frame = content.index(b"\xff\xc0")
    huge = content[: frame + 5] + struct.pack(">2H", 13_100, 13_100) + content[frame + 9 :]
    with pytest.raises(PhotoError, match="too many pixels"):
        preprocess(huge, SCALED)


def test_coefficients_are_counted_at_full_size_and_pixels_at_the_reduced_one(monkeypatch):
    """A sequential photo needs less memory scaled; one in several scans keeps all its coefficients whatever the size."""
    content, scans = jpeg(smooth(1600, 1600)), jpeg(smooth(1600, 1600), progressive=True)
    monkeypatch.setattr(decoding, "MAX_DECODED_BYTES", 2 * max(len(content), len(scans)) + 4 * 1600 * 1600 // 2)
    assert preprocess(content, SCALED).shape == (1, 3, 32, 32)
    with pytest.raises(PhotoError, match="bytes of memory to decode"):
        preprocess(content, FULL)
    with pytest.raises(PhotoError, match="bytes of memory to decode"):
        preprocess(scans, SCALED)


def lossless(side: int, grey: int) -> bytes:
    """A lossless JPEG (SOF3) of one shade: predictor 1, every difference 0 but the first."""

    def segment(marker: int, body: bytes) -> bytes:
        return bytes([0xFF, marker]) + struct.pack(">H", 2 + len(body)) + body

    first = format(grey - 128, "b")  # the difference from the middle, above 0
    table = bytes([0x00, 1, 1, *[0] * 14, 0, len(first)])  # codes: 0 for no difference, 10 for one of so many bits
    bits = "10" + first + "0" * (side * side - 1)
    bits += "1" * (-len(bits) % 8)
    scan = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    frame = struct.pack(">BHHB3B", 8, side, side, 1, 1, 0x11, 0)
    return (
        b"\xff\xd8"
        + segment(0xC3, frame)
        + segment(0xC4, table)
        + segment(0xDA, bytes([1, 1, 0, 1, 0, 0]))
        + scan
        + b"\xff\xd9"
    )


def test_a_lossless_jpeg_which_has_no_blocks_is_decoded_at_full_size():
    content = lossless(400, 250)
    _, jpeg_header = header.open_image(content)
    assert jpeg_header is not None and not jpeg_header.scalable  # noqa: PT018
    try:
        expected = preprocess(content, FULL)
    except PhotoError as refused:  # by this build of Pillow: then scaled decoding refuses it too
        with pytest.raises(PhotoError, match=str(refused)[-40:]):
            preprocess(content, SCALED)
        return
    np.testing.assert_array_equal(preprocess(content, SCALED), expected)
    assert round(float(expected.mean() * 255)) == 250


# ---- HEIC


def test_an_heic_photo_is_decoded_upright_with_the_extra():
    pytest.importorskip("pi_heif", reason="needs the extra heic")
    photo = decode(HEIC.read_bytes(), "photo.heic")
    assert photo.size == (96, 64)
    pixels = np.asarray(photo.whole(), dtype=int)
    for (down, across), colour in {(16, 24): (200, 30, 30), (48, 24): (30, 180, 30), (16, 72): (30, 30, 200)}.items():
        assert np.abs(pixels[down, across] - colour).max() < 16
    assert header.capture_time(HEIC.read_bytes()) == "2026:11:23 10:20:30"
    assert "HEIF" not in Image.OPEN  # Pillow itself, which other parts of a program use, learns no format


def test_half_an_heic_photo_is_refused():
    pytest.importorskip("pi_heif", reason="needs the extra heic")
    content = HEIC.read_bytes()
    for share in (0.5, 0.8, 0.97):
        with pytest.raises(PhotoError, match="x.heic is (damaged or truncated|not a photo)"):
            decode(content[: int(share * len(content))], "x.heic")


def test_without_its_reader_an_heic_photo_says_what_to_install(monkeypatch):
    def missing(name: str):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(PhotoError, match=r"x.heic is a HEIC photo, which needs pip install 'refocus-edge\[heic\]'"):
        decode(HEIC.read_bytes(), "x.heic")


def test_an_avif_photo_is_none_of_heic():
    stream = io.BytesIO()
    smooth(64, 64).save(stream, "AVIF")
    assert not header.is_heic(stream.getvalue())
    assert header.is_heic(HEIC.read_bytes())
    assert not any(map(header.is_heic, (b"", b"\0" * 12, b"\0\0\0\x0cftypheif", b"\0\0\0\x10ftypmif1\0\0\0\0")))
