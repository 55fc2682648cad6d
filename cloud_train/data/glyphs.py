"""The embedded data set: letters of three scripts, each person writing mostly one script in one hand.

About a third of the letters look exactly like a letter of another script (Latin A, Greek Alpha, Cyrillic A). Nothing
in such a photo tells which it is; only the person's other photos do. That is the whole idea of the project in one
picture, it needs no download, and every photo is drawn from its name alone, so a study is reproduced by its seed.
"""

from __future__ import annotations

import functools
import io
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from refocus.cloud_train.data.table import SPLITS, PhotoTable, assert_clients_never_meet
from refocus.cloud_train.errors import DataError, UsageError

SIZE = 32  # pixels, both ways
OVERSAMPLING = 3  # letters are drawn this much larger, then bent and shrunk in one step
FOREIGN_SHARE = 0.08  # of a person's letters come from the scripts they seldom write

SCRIPTS = {
    "latin": "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
    "greek": "ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩαβγδεζηθικλμνξοπρσςτυφχψω",
    "cyrillic": "АБВГДЕЁЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯабвгдеёжзийклмнопрстуфхцчшщъыьэюяІіЇїЄєҐґЈјЅѕЉљЊњЋћЂђЏџ",
}
LETTERS = "".join(SCRIPTS.values())
CLASSES = tuple(unicodedata.name(letter).lower() for letter in LETTERS)
_FIRST_CLASS = {"latin": 0, "greek": len(SCRIPTS["latin"]), "cyrillic": len(SCRIPTS["latin"] + SCRIPTS["greek"])}

FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
)
CLIENTS = {"train": 400, "validation": 40, "gate": 80, "test": 60}
PHOTOS_PER_CLIENT = 48
_STRONG_SLANT = 0.1  # pixels per pixel of height; most letters are also turned a little
ATTRIBUTES = (
    *SCRIPTS,
    "capital",
    "sans serif",
    "monospaced",
    "bold",
    "oblique",
    "heavy pen",
    "leans left",
    "leans right",
    "dark ink",
    "reddish ink",
    "bluish ink",
    "bright paper",
    "warm paper",
    "grainy paper",
)


@dataclass(frozen=True)
class Hand:
    """How one person writes. All their photos share it.

    Attributes:
        script: the script they write, but for ``FOREIGN_SHARE`` of their letters.
        font: a name of ``FONTS``.
        slant: horizontal shear, in pixels per pixel of height.
        weight: pen width added around the letter, in drawn (oversampled) pixels.
        ink, paper: RGB in [0, 255].
        noise: standard deviation of the pixel noise, in [0, 255].
    """

    script: str
    font: str
    slant: float
    weight: int
    ink: np.ndarray
    paper: np.ndarray
    noise: float


def glyphs(
    seed: int = 0,
    clients: dict[str, int] | None = None,
    photos_per_client: int = PHOTOS_PER_CLIENT,
    attributes: bool = False,
) -> PhotoTable:
    """The table of drawn letters; its photos are drawn when they are read.

    Args:
        seed: decides every person and every photo.
        clients: number of people per split.
        photos_per_client: photos of each person, in the order they "took" them.
        attributes: each photo's labels are those of ``ATTRIBUTES`` that it has, in place of its letter: script, hand,
            slant, ink and paper.
    """
    clients = CLIENTS if clients is None else clients
    splits = [split for split in SPLITS for _ in range(clients.get(split, 0))]
    people, index = np.meshgrid(np.arange(len(splits)), np.arange(photos_per_client), indexing="ij")
    name = [f"glyphs/{seed}/{p}/{i}.png" for p, i in zip(people.flat, index.flat, strict=True)]
    letters = [_photo_rng(seed, int(p), int(i))[0] for p, i in zip(people.flat, index.flat, strict=True)]
    hands = [hand_of(seed, person) for person in range(len(splits))]
    shown: list[int] | np.ndarray = letters
    if attributes:
        found = [attributes_of(hands[p], letter) for p, letter in zip(people.flat, letters, strict=True)]
        shown = np.array(found, dtype=np.uint8).reshape(-1, len(ATTRIBUTES))
    table = PhotoTable.of(
        name,
        shown,
        read,
        ATTRIBUTES if attributes else CLASSES,
        client=[f"person-{p:04d}" for p in people.flat],
        domain=np.array([hand.script for hand in hands])[people.ravel()],
        split=np.array(splits, dtype="<U10")[people.ravel()],
    )
    assert_clients_never_meet(table)
    return table


def check_people(clients: Mapping[str, int], splits: Sequence[str]) -> None:
    """Raises UsageError unless there are writers for each of the splits, and for no other."""
    if set(clients) != set(splits):
        raise UsageError(f"glyph_clients names {', '.join(clients)}: expected writers for {', '.join(splits)}")


def read(name: str) -> bytes:
    """Draws the photo of that name, as PNG bytes.

    Raises:
        DataError: the name is not one that :func:`glyphs` gives.
    """
    stream = io.BytesIO()
    Image.fromarray(_draw_photo(*_numbers(name))).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def label_of(name: str) -> str:
    """Label of a glyph photo, from its name.

    Raises:
        DataError: the name is not one that :func:`glyphs` gives.
    """
    return CLASSES[_photo_rng(*_numbers(name))[0]]


def _numbers(name: str) -> tuple[int, int, int]:
    """Seed, person and index of a photo."""
    try:
        kind, seed, person, index = name.removesuffix(".png").split("/")
        if kind != "glyphs":
            raise ValueError
        return int(seed), int(person), int(index)
    except ValueError:
        raise DataError(f"'{name}' is not a glyph photo; expected glyphs/SEED/PERSON/INDEX.png") from None


@functools.lru_cache(maxsize=4096)
def hand_of(seed: int, person: int) -> Hand:
    """The hand of one person: a pure function of (seed, person)."""
    rng = np.random.default_rng((seed, person, 0))
    ink, paper = rng.uniform(0, 110, 3), rng.uniform(150, 255, 3)
    return Hand(
        script=str(rng.choice(list(SCRIPTS))),
        font=str(rng.choice(FONTS)),
        slant=float(rng.uniform(-0.25, 0.25)),
        weight=int(rng.integers(0, 3)),
        ink=ink,
        paper=paper,
        noise=float(rng.uniform(2, 18)),
    )


def attributes_of(hand: Hand, letter: int) -> tuple[bool, ...]:
    """Which of ``ATTRIBUTES`` a photo of a letter, by its class, in a hand has."""
    style = hand.font.partition("-")[2]
    red, green, blue = hand.ink
    warm, _, cold = hand.paper
    return (
        *(0 <= letter - first < len(SCRIPTS[script]) for script, first in _FIRST_CLASS.items()),
        LETTERS[letter].isupper(),
        hand.font.startswith("DejaVuSans"),
        hand.font.startswith("DejaVuSansMono"),
        "Bold" in style,
        "Oblique" in style or "Italic" in style,
        hand.weight == 2,
        hand.slant < -_STRONG_SLANT,  # what is lower on the photo is moved left by a positive one
        hand.slant > _STRONG_SLANT,
        bool((red + green + blue) / 3 < 50),
        bool(red > max(green, blue)),
        bool(blue > max(red, green)),
        bool(hand.paper.mean() > 205),
        bool(warm > cold + 15),
        hand.noise > 10,
    )


def hand_words(font: str) -> str:
    """What people call a hand, as "bold oblique serif": the domain of a letter where tasks are described in words."""
    family, _, style = font.removeprefix("DejaVu").partition("-")
    words = {"Sans": "sans serif", "SansMono": "monospaced", "Serif": "serif"}
    return " ".join([*re.findall("[A-Z][a-z]+", style), words[family]]).lower()


def letter_mask(letter: str, font: str, weight: int) -> np.ndarray:
    """The letter alone, upright and centred on its line, as ink coverage in [0, 255], (S, S) with S = SIZE * 3."""
    side = SIZE * OVERSAMPLING
    mask = Image.new("L", (side, side))
    pen = ImageDraw.Draw(mask)
    pen.text((side / 2, side / 2), letter, fill=255, font=_font(font), anchor="mm", stroke_width=weight)
    return np.asarray(mask)


def _photo_rng(seed: int, person: int, index: int) -> tuple[int, np.random.Generator]:
    """The class of one photo, and the generator that draws the rest of it."""
    rng = np.random.default_rng((seed, person, 1 + index))
    script = hand_of(seed, person).script
    if rng.random() < FOREIGN_SHARE:
        script = str(rng.choice([other for other in SCRIPTS if other != script]))
    return _FIRST_CLASS[script] + int(rng.integers(len(SCRIPTS[script]))), rng


def _draw_photo(seed: int, person: int, index: int) -> np.ndarray:
    """One photo as RGB (SIZE, SIZE, 3) uint8: the letter, placed a little differently each time, on noisy paper."""
    hand = hand_of(seed, person)
    label, rng = _photo_rng(seed, person, index)
    scale, angle = rng.uniform(0.9, 1.12), rng.uniform(-0.08, 0.08)
    shift = rng.uniform(-1.5, 1.5, 2)
    # Photo pixel -> letter pixel: slant, then a small turn and scale, all around the centre.
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1.0, hand.slant], [0.0, 1.0]]) / scale
    return draw_letter(LETTERS[label], hand, matrix, shift, rng)


def draw_letter(letter: str, hand: Hand, matrix: np.ndarray, shift: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a letter on noisy paper as RGB (SIZE, SIZE, 3) uint8.

    Args:
        letter: the letter.
        hand: font, weight, colours and noise.
        matrix: (2, 2), from pixels of the picture to those of the upright letter.
        shift: (2,) pixels from the centre of the picture to that of the letter.
        rng: draws the noise.
    """
    offset = np.full(2, SIZE / 2) - matrix @ (np.full(2, SIZE / 2) + shift)
    coefficients = (*matrix[0], offset[0], *matrix[1], offset[1])
    upright = _small_letter(letter, hand.font, hand.weight)
    bent = upright.transform((SIZE, SIZE), Image.Transform.AFFINE, coefficients, Image.Resampling.BICUBIC)
    coverage = np.asarray(bent, dtype=np.float64)[..., None] / 255
    pixels = hand.paper + coverage * (hand.ink - hand.paper) + rng.normal(0, hand.noise, (SIZE, SIZE, 1))
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


@functools.lru_cache(maxsize=8192)  # 1 kB each: every letter in every font and weight fits
def _small_letter(letter: str, font: str, weight: int) -> Image.Image:
    return Image.fromarray(letter_mask(letter, font, weight)).reduce(OVERSAMPLING)


@functools.lru_cache(maxsize=64)
def _font(name: str) -> ImageFont.FreeTypeFont:
    import matplotlib  # only for its fonts; imported here because it costs 0.2 s

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    # Pillow's other layout needs a library of the system, and places letters a little differently: where it is there,
    # photos would be others.
    basic = ImageFont.Layout.BASIC
    return ImageFont.truetype(folder / f"{name}.ttf", size=int(SIZE * OVERSAMPLING * 0.72), layout_engine=basic)
