"""Mutated photos: decoded as ``recognize`` does, or refused as a :class:`PhotoError`."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from refocus.edge.errors import PhotoError
from refocus.edge.photos.header import capture_time
from refocus.edge.photos.preprocess import normalise, preprocess, resize_and_crop
from tests.fuzz import photo_parts
from tests.fuzz.areas import Area, Wrong, rng_of
from tests.fuzz.onnx_mutations import scrambled
from tests.fuzz.toys import PREPROCESSING, SIDE

# First bytes of the formats that are photos; anything else must be refused.
_ALLOWED = (
    b"\xff\xd8",
    b"\x89PNG",
    b"RIFF",
    b"GIF8",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"II+\0",
    b"MM\0+",
    b"II\0*",
    b"MM*\0",
)
# EXIF orientation -> how often the stored picture is turned by a quarter, counter-clockwise, after it was mirrored.
_TURNS = {
    1: (False, 0),
    2: (True, 0),
    3: (False, 2),
    4: (True, 2),
    5: (True, 1),
    6: (False, 3),
    7: (True, 3),
    8: (False, 1),
}
_TURNABLE = ("JPEG", "JPEG progressive", "JPEG grey", "PNG", "PNG grey", "WEBP", "WEBP lossless")


@dataclass
class Case:
    """One photo.

    Attributes:
        base: name of the photo that it was made from.
        orientation: what its EXIF data says in a sound tag; 0 where nothing is known about it.
        accept, refuse: whether it must be.
    """

    content: bytes
    base: str
    orientation: int = 0
    accept: bool = False
    refuse: bool = False


class Fuzzed(Area):
    """Decodes mutated photos."""

    typed = (PhotoError,)

    @staticmethod
    def build(material: Path) -> None:
        made = {"bases": photo_parts.bases(), "others": photo_parts.others(), "bombs": photo_parts.bombs()}
        (material / "photos.pickle").write_bytes(pickle.dumps(made))

    def __init__(self, material: Path, scratch: Path) -> None:
        super().__init__(material, scratch)
        made = pickle.loads((material / "photos.pickle").read_bytes())  # our own, written just before
        self._bases, self._others, self._bombs = made["bases"], made["others"], made["bombs"]
        self._kinds: dict[str, tuple[int, Callable[[random.Random], Case]]] = {
            "unharmed": (30, self._unharmed),
            "bytes": (350, self._bytes),
            "chunks, segments and tags": (350, self._parts),
            "EXIF, sound and odd": (100, self._exif),
            "two photos joined": (40, self._joined),
            "formats to refuse": (120, self._other),
            "bombs": (4, self._bomb),
        }

    def make(self, seed: int) -> tuple[str, Case]:
        rng = rng_of("photos", seed)
        kind = rng.choices([*self._kinds], [weight for weight, _ in self._kinds.values()])[0]
        return kind, self._kinds[kind][1](rng)

    def _unharmed(self, rng: random.Random) -> Case:
        name = rng.choice([*self._bases])
        return Case(self._bases[name], name, orientation=1, accept=True)

    def _bytes(self, rng: random.Random) -> Case:
        name = rng.choice([*self._bases])
        return Case(scrambled(self._bases[name], rng), name)

    def _parts(self, rng: random.Random) -> Case:
        name = rng.choice([n for n in self._bases if n.split()[0] in ("JPEG", "PNG", "WEBP", "TIFF")])
        content, kind = self._bases[name], name.split()[0]
        if kind == "TIFF":
            return Case(self._tags(content, rng), name)
        changed = {"JPEG": photo_parts.mutated_jpeg, "PNG": photo_parts.mutated_png, "WEBP": photo_parts.mutated_webp}
        return Case(changed[kind](content, rng), name)

    def _tags(self, content: bytes, rng: random.Random) -> bytes:
        """A TIFF one of whose entries has another type, count or value."""
        changed = bytearray(content)
        start = int.from_bytes(changed[4:8], "little")
        count = int.from_bytes(changed[start : start + 2], "little")
        for _ in range(rng.randint(1, 3)):
            at = start + 2 + 12 * rng.randrange(max(1, min(count, 40))) + rng.choice([0, 2, 4, 5, 7, 8, 9, 10, 11])
            if at < len(changed):
                changed[at] = rng.choice([0, 1, 2, 3, 4, 5, 12, 13, 0x7F, 0xFF, rng.randrange(256)])
        return bytes(changed)

    def _exif(self, rng: random.Random) -> Case:
        name, order = rng.choice(_TURNABLE), rng.choice("<>")
        orientation = rng.randint(1, 8)
        exif = photo_parts.tiff(photo_parts.sound_entries(orientation, rng, order), order)
        return Case(photo_parts.with_exif(name, self._bases[name], exif), name, orientation)

    def _joined(self, rng: random.Random) -> Case:
        one, two = (rng.choice([*self._bases]) for _ in range(2))
        first, second = self._bases[one], self._bases[two]
        return Case(first[: rng.randrange(len(first))] + second[rng.randrange(len(second)) :], one)

    def _other(self, rng: random.Random) -> Case:
        name = rng.choice([*self._others])
        content = self._others[name]
        if rng.random() < 0.5:
            content = scrambled(content, rng)
        return Case(
            content, name, refuse=(not content.startswith(_ALLOWED) and content[4:8] != b"ftyp") or name == "HEIC"
        )

    def _bomb(self, rng: random.Random) -> Case:
        name = rng.choice([*self._bombs])
        return Case(self._bombs[name], name)

    def save(self, case: Case, folder: Path) -> None:
        (folder / f"{case.base.replace(' ', '-').replace(',', '')}.bin").write_bytes(case.content)

    def judge(self, case: Case, run: Callable[[], None]) -> str:
        time = capture_time(case.content)
        if not isinstance(time, str) or len(time) > 1000:
            raise Wrong(f"capture_time returns {type(time).__name__} of {len(time)}")
        try:
            found = preprocess(case.content, PREPROCESSING, "photo")
        except PhotoError as error:
            if case.accept:
                raise Wrong(f"an unharmed {case.base.split()[0]} is refused") from error
            raise
        if case.refuse:
            raise Wrong(f"{case.base} is accepted")
        if found.shape != (1, 3, SIDE, SIDE) or found.dtype != np.float32 or not np.isfinite(found).all():
            raise Wrong(f"a photo becomes {found.dtype} {found.shape}")
        if not case.orientation:
            return "accepted"
        if case.orientation and not np.array_equal(found, self._turned(case)):
            raise Wrong(f"a photo of orientation {case.orientation} has other pixels")
        return "right"

    def _turned(self, case: Case) -> np.ndarray:
        """What the photo's base becomes, turned by hand."""
        image = Image.open(io.BytesIO(self._bases[case.base]))
        if image.mode.startswith("I"):
            return preprocess(self._bases[case.base], PREPROCESSING)  # nothing to compare the scaling with
        mirrored, quarters = _TURNS[case.orientation]
        pixels = np.asarray(image.convert("RGB"))
        pixels = np.rot90(pixels[:, ::-1] if mirrored else pixels, quarters)
        turned = Image.fromarray(np.ascontiguousarray(pixels))
        return normalise(resize_and_crop(turned, PREPROCESSING), PREPROCESSING)[None]
