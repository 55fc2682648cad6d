"""A photo's bytes to pixels: whole photos only, turned as EXIF says, the same numbers everywhere."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from refocus.edge.bundle.manifest import Preprocessing
from refocus.edge.errors import PhotoError
from refocus.edge.photos import decode
from refocus.edge.photos.preprocess import (
    MAX_PHOTO_PIXELS,
    decode_photo,
    normalise,
    preprocess,
    read_photo,
    resize_and_crop,
)

CONTRACT = Preprocessing(resize_shorter=40, crop=32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture(width=120, height=80) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def test_an_empty_file_is_refused():
    with pytest.raises(PhotoError, match=r"holiday.jpg is empty"):
        preprocess(b"", CONTRACT, "holiday.jpg")


def test_a_file_that_is_no_photo_is_refused():
    with pytest.raises(PhotoError, match="is not a photo; expected a JPEG"):
        preprocess(b"dear diary", CONTRACT)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_half_a_photo_is_refused_instead_of_filled_with_grey(kind, share):
    content = encoded(picture(), kind)
    with pytest.raises(PhotoError, match="damaged or truncated|not a photo"):
        preprocess(content[: int(share * len(content))], CONTRACT)


@pytest.mark.parametrize("side", [13_200, 20_000])  # just above our limit, and above Pillow's
def test_a_photo_of_absurd_size_is_refused_before_it_is_decoded(side):
    huge = encoded(Image.new("1", (side, side)), "PNG")
    assert side**2 > MAX_PHOTO_PIXELS
    with pytest.raises(PhotoError, match="too many pixels"):
        decode_photo(huge, "bomb.png")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_gives_the_upright_picture(orientation):
    upright = picture()
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    stored = upright.transpose(undo[orientation]) if orientation in undo else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = decode_photo(encoded(stored, "PNG", exif=exif), "photo")
    np.testing.assert_array_equal(np.asarray(decoded), np.asarray(upright))


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1", "I;16"])
def test_every_colour_mode_becomes_three_channels(mode):
    image = Image.new(mode, (50, 40)) if mode == "I;16" else picture(50, 40).convert(mode)
    content = encoded(image, "TIFF" if mode == "CMYK" else "PNG")
    assert preprocess(content, CONTRACT).shape == (1, 3, 32, 32)


def test_sixteen_bit_grey_keeps_its_shades():
    shades = np.array([[0, 257 * 40], [257 * 200, 65535]], dtype=np.uint16).repeat(20, 0).repeat(20, 1)
    decoded = np.asarray(decode_photo(encoded(Image.fromarray(shades), "PNG"), "scan.png"))
    assert decoded[::20, ::20, 0].tolist() == [[0, 40], [200, 255]]


def test_a_photo_like_a_thread_is_refused_instead_of_filling_the_memory():
    with pytest.raises(PhotoError, match="too narrow"):
        preprocess(
            encoded(Image.new("L", (1, 60_000)), "PNG"),
            Preprocessing(resize_shorter=256, crop=224, mean=(0, 0, 0), std=(1, 1, 1)),
        )


# ---- stored features stay comparable: the pixels of release 0.1.0, of which this is the whole path


def as_release_0_1_0(content: bytes, contract: Preprocessing) -> np.ndarray:
    image = Image.open(io.BytesIO(content))
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        grey = (np.clip(np.asarray(image, dtype=np.float64), 0, 65535) / 257).round()
        image = Image.fromarray(grey.astype(np.uint8))
    image, shorter = image.convert("RGB"), contract.resize_shorter
    width, height = image.size
    size = (shorter, shorter * height // width) if width <= height else (shorter * width // height, shorter)
    if size != image.size:
        image = image.resize(size, Image.Resampling[contract.resize_filter.upper()])
    left, top = round((size[0] - contract.crop) / 2), round((size[1] - contract.crop) / 2)
    return normalise(np.asarray(image.crop((left, top, left + contract.crop, top + contract.crop))), contract)[None]


@pytest.fixture(params=[1 << 20, 1700])
def bands(request, monkeypatch):
    """Photos in one band, and in many."""
    monkeypatch.setattr(decode, "_BAND_PIXELS", request.param)


def assert_as_before(content: bytes, contract: Preprocessing = CONTRACT) -> None:
    np.testing.assert_array_equal(preprocess(content, contract), as_release_0_1_0(content, contract))


def turned(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def in_mode(mode: str) -> Image.Image:
    if mode != "I;16":
        return picture().convert(mode)
    grey = np.asarray(picture().convert("L"), dtype=np.uint16)
    return Image.fromarray(grey * 257 + np.arange(120, dtype=np.uint16))


def test_real_photos_give_the_pixels_of_release_0_1_0(real_data, bands):
    contracts = [Preprocessing(resize_shorter=256, crop=224, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3)),
                 Preprocessing(resize_shorter=96, crop=96, mean=(0, 0, 0), std=(1, 1, 1), resize_filter="bilinear")]  # fmt: skip
    for path in sorted((real_data / "photos").glob("*.JPEG"))[:8]:
        for contract in contracts:
            assert_as_before(path.read_bytes(), contract)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_colour_mode_gives_the_pixels_of_release_0_1_0(mode, bands):
    for number in range(1, 9):
        for kind in ("TIFF",) if mode == "CMYK" else ("PNG", "TIFF"):
            assert_as_before(encoded(in_mode(mode), kind, exif=turned(number)))
    if mode in ("L", "RGB", "CMYK"):
        assert_as_before(encoded(in_mode(mode), "JPEG", exif=turned(6)))
        assert_as_before(encoded(in_mode(mode), "JPEG", progressive=True))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_transparency_changes_no_pixel_of_release_0_1_0(bands):
    for transparency in (3, bytes(range(200))):
        assert_as_before(encoded(in_mode("P"), "PNG", transparency=transparency))
    assert_as_before(encoded(in_mode("P"), "GIF", transparency=3))
    assert_as_before(encoded(in_mode("L"), "PNG", transparency=7))
    assert_as_before(encoded(in_mode("RGB"), "PNG", transparency=(1, 2, 3)))


def test_other_formats_and_xmp_give_the_pixels_of_release_0_1_0(bands):
    xmp = b'<x tiff:Orientation="6"/>'
    for kind, options in (("JPEG", {"xmp": xmp}), ("WEBP", {"xmp": xmp}), ("WEBP", {"exif": turned(7)}), ("BMP", {}),
                          ("TIFF", {"compression": "tiff_lzw", "exif": turned(5)}), ("GIF", {})):  # fmt: skip
        assert_as_before(encoded(picture(), kind, **options))


def test_every_size_gives_the_pixels_of_release_0_1_0(bands):
    rng = np.random.default_rng(0)
    for width, height in [*rng.integers(1, 400, (12, 2)).tolist(), (1, 500), (500, 1), (3, 900), (900, 3), (40, 41)]:
        assert_as_before(encoded(picture().resize((width, height)), "PNG", exif=turned(int(rng.integers(1, 9)))))


def test_sixteen_bit_grey_is_scaled_without_floating_point_as_with_it():
    shades = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    decoded = np.asarray(decode_photo(encoded(Image.fromarray(shades), "PNG"), "scan.png"))[:, :, 0]
    np.testing.assert_array_equal(decoded, (shades.astype(np.float64) / 257).round())


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's own words about each broken tag
def test_damaged_exif_is_one_clear_error_or_ignored():
    exif = Image.Exif()
    exif[0x0112] = 6
    content = bytearray(encoded(picture(), "JPEG", exif=exif))
    start = content.index(b"Exif")
    rng = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(content)
        for place in rng.integers(start + 6, start + 40, 3):
            broken[place] = rng.integers(0, 256)
        with contextlib.suppress(PhotoError):
            assert preprocess(bytes(broken), CONTRACT).shape == (1, 3, 32, 32)


@pytest.mark.parametrize("size", [(120, 80), (80, 120), (1, 500), (500, 1), (33, 33), (32, 32)])
def test_any_shape_of_photo_fits(size):
    pixels = resize_and_crop(picture(max(8, size[0]), max(8, size[1])).resize(size), CONTRACT)
    assert pixels.shape == (32, 32, 3)


def test_a_photo_is_not_transposed_and_channels_stay_in_order():
    image = Image.new("RGB", (40, 40), (255, 0, 0))
    image.paste((0, 0, 255), (20, 0, 40, 40))  # red left, blue right
    pixels = preprocess(encoded(image, "PNG"), Preprocessing(resize_shorter=40, crop=40, mean=(0, 0, 0), std=(1, 1, 1)))
    assert pixels[0, 0, :, 2].min() == 1
    assert pixels[0, 2, :, 37].min() == 1
    assert pixels[0, 0, :, 37].max() == 0


def test_normalisation_is_the_formula_to_float_accuracy():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    want = (pixels / 255 - np.array(CONTRACT.mean)) / np.array(CONTRACT.std)
    np.testing.assert_allclose(normalise(pixels, CONTRACT), want.transpose(2, 0, 1), atol=2e-6)


def test_preprocessing_equals_what_timm_prepares_for_evaluation(real_data):
    """On real photos, against torchvision's own resize and crop as timm composes them."""
    import timm.data

    contract = Preprocessing(resize_shorter=256, crop=224, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    reference = timm.data.create_transform(
        224, is_training=False, interpolation="bicubic", crop_pct=224 / 256, mean=contract.mean, std=contract.std
    )
    for path in sorted((real_data / "photos").glob("*.JPEG"))[:24]:
        want = reference(Image.open(path).convert("RGB")).numpy()
        np.testing.assert_allclose(preprocess(path.read_bytes(), contract)[0], want, rtol=0, atol=1e-5)


def test_a_missing_photo_names_its_path(tmp_path):
    with pytest.raises(PhotoError, match="nowhere.jpg cannot be read"):
        read_photo(tmp_path / "nowhere.jpg")


def test_a_folder_is_no_photo(tmp_path):
    with pytest.raises(PhotoError, match="is not a file"):
        read_photo(tmp_path)
