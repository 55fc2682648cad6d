"""Generated photos of no class, and near-copies of photos.

Screenshots, documents, line drawings, blank frames and gradients are drawn from their names alone, so every run has the
same photos. A near-copy is a slightly smaller part of a photo at another brightness, as in a burst of photos.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

from refocus.cloud_train.data.table import PhotoTable

SIDE = 320  # pixels of the shorter side
WORDS = ("the", "new", "account", "total", "message", "from", "today", "open", "report", "date", "list", "page")
Draw = ImageDraw.ImageDraw


def drawn_photos(count: int) -> PhotoTable:
    """Return a table of generated photos, with equally many of each kind."""
    kinds = [*KINDS]
    names = [f"{kinds[number % len(kinds)]}-{number:04d}.png" for number in range(count)]
    return PhotoTable.of(names, [name.rpartition("-")[0] for name in names], draw)


def near_copies(table: PhotoTable, copies: int) -> PhotoTable:
    """Return a table of near-copies, those of a photo in a row."""

    def read(name: str) -> bytes:
        return near_copy(table.read(name.rpartition("#")[0]), name)

    def stamp(name: str) -> str:
        return f"{table.stamp(name.rpartition('#')[0])} near-copy"

    names = [f"{name}#{number}" for name in table.photo.tolist() for number in range(copies)]
    return PhotoTable.of(names, np.repeat(table.label, copies), read, table.classes, stamp=stamp)


def near_copy(content: bytes, name: str) -> bytes:
    """Return a JPEG file of most of a photo, slightly darker or brighter.

    The part has 90 to 98 % of the width and height, and 90 to 110 % of the brightness.
    """
    rng = _random(name)
    with Image.open(io.BytesIO(content)) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    part, left, top = rng.uniform(0.9, 0.98), rng.random(), rng.random()
    width, height = max(1, round(part * image.width)), max(1, round(part * image.height))
    x, y = round(left * (image.width - width)), round(top * (image.height - height))
    image = ImageEnhance.Brightness(image.crop((x, y, x + width, y + height))).enhance(rng.uniform(0.9, 1.1))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def _random(name: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(f"camera roll {name}".encode()).digest()[:8], "big"))


def draw(name: str) -> bytes:
    """Return the PNG file of a generated photo."""
    image = KINDS[name.rpartition("-")[0]](_random(name))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _colour(rng: np.random.Generator, low: int = 0, high: int = 256) -> tuple[int, int, int]:
    red, green, blue = rng.integers(low, high, 3).tolist()
    return red, green, blue


def _text(pen: Draw, rng: np.random.Generator, place: tuple[float, float], width: float, size: int, ink: str) -> None:
    line, font = "", ImageFont.load_default(size)
    while True:
        longer = f"{line}{rng.choice(WORDS)} "
        if pen.textlength(longer, font) > width:
            break
        line = longer
    pen.text(place, line, ink, font)


def _screenshot(rng: np.random.Generator) -> Image.Image:
    """Draw rows of text with icons below a bar, as lists on a phone."""
    dark, height = bool(rng.integers(2)), SIDE * int(rng.integers(14, 21)) // 10
    paper, ink = ("#16181c", "#e8e8e8") if dark else ("#ffffff", "#202020")
    image = Image.new("RGB", (SIDE, height), paper)
    pen, row = ImageDraw.Draw(image), int(rng.integers(32, 60))
    pen.rectangle((0, 0, SIDE, 36), _colour(rng, 20, 200))
    _text(pen, rng, (12, 8), SIDE / 2, 18, "#ffffff")
    for top in range(44, height - row, row):
        icon = (8, top, 8 + row - 14, top + row - 14)
        (pen.ellipse if rng.integers(2) else pen.rectangle)(icon, _colour(rng))
        _text(pen, rng, (row + 6, top), float(rng.uniform(80, SIDE - row - 20)), 14, ink)
        _text(pen, rng, (row + 6, top + 17), float(rng.uniform(60, SIDE - row - 20)), 10, "#808080")
    return image


def _document(rng: np.random.Generator) -> Image.Image:
    """Draw a printed page, slightly turned on a table."""
    page = Image.new("RGB", (SIDE, SIDE * 4 // 3), _colour(rng, 225, 256))
    pen, size = ImageDraw.Draw(page), int(rng.integers(8, 13))
    _text(pen, rng, (30, 20), SIDE - 90, size + 8, "#101010")
    for top in range(56, page.height - 40, size + 5):
        if rng.random() < 0.85:
            _text(pen, rng, (30, top), SIDE - 60 - 100 * (rng.random() < 0.2), size, "#303030")
    return page.rotate(float(rng.normal(0, 4)), Image.Resampling.BICUBIC, fillcolor=_colour(rng, 40, 160))


def _drawing(rng: np.random.Generator) -> Image.Image:
    """Draw random lines, arcs and boxes with a pen on paper."""
    image = Image.new("RGB", (SIDE, SIDE), _colour(rng, 230, 256))
    pen, ink = ImageDraw.Draw(image), _colour(rng, 0, 120)
    for _ in range(int(rng.integers(6, 25))):
        left, top = rng.integers(0, SIDE - 60, 2).tolist()
        box, width = (left, top, left + int(rng.integers(20, 200)), top + int(rng.integers(20, 200))), 2
        kind = rng.integers(4)
        if kind == 0:
            pen.line([tuple(point) for point in rng.integers(0, SIDE, (4, 2)).tolist()], ink, width)
        elif kind == 1:
            pen.arc(box, int(rng.integers(360)), int(rng.integers(360)), ink, width)
        elif kind == 2:
            pen.rectangle(box, outline=ink, width=width)
        else:
            pen.ellipse(box, outline=ink, width=width)
    return image


def _blank(rng: np.random.Generator) -> Image.Image:
    """Draw an almost even frame with noise, as of a covered lens."""
    level, noise = rng.choice([8, 20, 128, 240]), rng.normal(0, rng.uniform(1, 8), (SIDE, SIDE, 3))
    tint = rng.normal(0, 4, 3)
    return Image.fromarray(np.clip(level + tint + noise, 0, 255).astype(np.uint8))


def _gradient(rng: np.random.Generator) -> Image.Image:
    """Draw a blurred gradient of four colours, as a wallpaper."""
    corners = Image.fromarray(rng.integers(0, 256, (2, 2, 3)).astype(np.uint8))
    return corners.resize((SIDE, SIDE), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(3))


KINDS: dict[str, Callable[[np.random.Generator], Image.Image]] = {
    "screenshot": _screenshot,
    "document": _document,
    "drawing": _drawing,
    "blank": _blank,
    "gradient": _gradient,
}
