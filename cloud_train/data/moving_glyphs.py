"""The embedded clips: a letter that moves in one of six ways, each person filming mostly two of them in their own way.

The camera is tilted, differently in every clip; far enough, a letter that goes left looks as one that goes up. An O
that turns does not seem to move at all. The person's other clips tell which it is likely to be. A person moves fast or
slowly, has a tilt of their own, and shakes. Letters, ink and paper are others in every clip, so that nothing but the
motion tells what it is. A clip is drawn from its name alone, as the letters of
:mod:`refocus.cloud_train.data.glyphs` are, and is an animated WebP without loss.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from PIL import Image

from refocus.cloud_train.data.glyphs import SCRIPTS, draw_letter, hand_of
from refocus.cloud_train.data.table import SPLITS, PhotoTable, assert_clients_never_meet
from refocus.cloud_train.errors import DataError

MOTIONS = ("left", "right", "up", "down", "clockwise", "anticlockwise")
FRAMES = 8  # of a clip
MILLISECONDS = 80  # of a frame
USUAL = 2  # motions that a person films most
FOREIGN_SHARE = 0.1  # of a person's clips show another motion
SCALE = 0.62  # of a letter, which leaves it room to move
TILT, CLIP_TILT = np.radians(15), np.radians(30)  # at most by a person's habit; standard deviation of one clip
CLIENTS = {"train": 120, "validation": 16, "gate": 32, "test": 32}
CLIPS_PER_CLIENT = 24
_DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
_ENDING = ".webp"


@dataclass(frozen=True)
class Habit:
    """How one person films. All their clips share it.

    Attributes:
        motions: the ones that they film, but for ``FOREIGN_SHARE`` of their clips.
        tilt: by which their camera is turned on average, in radians.
        distance: that a letter moves, in pixels.
        turn: by which a letter turns, in radians.
        shake: standard deviation of a frame's place, in pixels.
    """

    motions: tuple[str, ...]
    tilt: float
    distance: float
    turn: float
    shake: float


def moving_glyphs(
    seed: int = 0, clients: Mapping[str, int] | None = None, clips_per_client: int = CLIPS_PER_CLIENT
) -> PhotoTable:
    """The table of drawn clips; a clip is drawn when it is read.

    Args:
        seed: decides every person and every clip.
        clients: number of people per split.
        clips_per_client: clips of each person, in the order they "took" them.
    """
    clients = CLIENTS if clients is None else clients
    splits = [split for split in SPLITS for _ in range(clients.get(split, 0))]
    clips = [(person, index) for person in range(len(splits)) for index in range(clips_per_client)]
    table = PhotoTable.of(
        [f"moving-glyphs/{seed}/{person}/{index}{_ENDING}" for person, index in clips],
        [_clip_rng(seed, person, index)[0] for person, index in clips],
        read,
        MOTIONS,
        client=[f"person-{person:04d}" for person, _ in clips],
        domain=["+".join(habit_of(seed, person).motions) for person, _ in clips],
        split=[splits[person] for person, _ in clips],
    )
    assert_clients_never_meet(table)
    return table


def read(name: str) -> bytes:
    """Draws the clip of that name, as the bytes of an animated WebP.

    Raises:
        DataError: the name is not one that :func:`moving_glyphs` gives.
    """
    try:
        kind, seed, person, index = name.removesuffix(_ENDING).split("/")
        if kind != "moving-glyphs":
            raise ValueError
        frames = draw_clip(int(seed), int(person), int(index))
    except ValueError:
        raise DataError(f"'{name}' is no drawn clip; expected moving-glyphs/SEED/PERSON/INDEX{_ENDING}") from None
    first, *others = map(Image.fromarray, frames)
    stream = io.BytesIO()
    first.save(
        stream, "WEBP", save_all=True, append_images=others, duration=MILLISECONDS, lossless=True, quality=0, method=0
    )
    return stream.getvalue()


@functools.lru_cache(maxsize=4096)
def habit_of(seed: int, person: int) -> Habit:
    """The habit of one person: a pure function of (seed, person)."""
    rng = np.random.default_rng((seed, person, 0, 1))
    chosen = sorted(rng.choice(len(MOTIONS), USUAL, replace=False).tolist())
    return Habit(
        motions=tuple(MOTIONS[number] for number in chosen),
        tilt=float(rng.uniform(-TILT, TILT)),
        distance=float(rng.uniform(5, 13)),
        turn=float(rng.uniform(0.8, 2.2)),
        shake=float(rng.uniform(0, 0.8)),
    )


def draw_clip(seed: int, person: int, index: int) -> np.ndarray:
    """One clip as RGB (FRAMES, SIZE, SIZE, 3) uint8."""
    habit = habit_of(seed, person)
    label, rng = _clip_rng(seed, person, index)
    motion, tilt = MOTIONS[label], habit.tilt + rng.normal(0, CLIP_TILT)
    hand = hand_of(seed, int(rng.integers(1 << 31)))
    letter = str(rng.choice(list(SCRIPTS[hand.script])))
    start, angle = rng.uniform(-1.5, 1.5, 2), rng.uniform(-0.3, 0.3)
    shakes = rng.normal(0, habit.shake, (FRAMES, 2))
    frames = []
    for phase, shake in zip(np.linspace(-0.5, 0.5, FRAMES), shakes, strict=True):
        place, turned = start + shake, angle
        if motion in _DIRECTIONS:
            place = place + phase * habit.distance * _turned(tilt) @ np.array(_DIRECTIONS[motion], dtype=float)
        else:
            turned += phase * habit.turn * (1 if motion == "clockwise" else -1)
        frames.append(draw_letter(letter, hand, _turned(-turned) / SCALE, place, rng))
    return np.stack(frames)


def _clip_rng(seed: int, person: int, index: int) -> tuple[int, np.random.Generator]:
    """The motion of one clip, and the generator that draws the rest of it."""
    rng = np.random.default_rng((seed, person, 1 + index, 1))
    usual = habit_of(seed, person).motions
    if rng.random() < FOREIGN_SHARE:
        usual = tuple(motion for motion in MOTIONS if motion not in usual)
    return MOTIONS.index(str(rng.choice(list(usual)))), rng


def _turned(angle: float) -> np.ndarray:
    """Rotation by an angle, clockwise where y goes down."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
