"""Photo collections of drawn capital letters with ``metadata.csv``.

A collection has people of the glyphs (:mod:`refocus.cloud_train.data.glyphs`), chosen by the script they write, and an
alphabet: each capital once, so that all collections have the same classes. Only capitals are used, because most of them
look like a capital of another script, and because a small encoder learns them in a minute.
"""

from __future__ import annotations

import csv
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from refocus.cloud_train.data import glyphs
from refocus.cloud_train.progress import track

SEED = 0
CAPITALS = tuple(label for label in glyphs.CLASSES if "capital" in label)
_ALPHABET = 90_000  # first of the people of the alphabet; they have no other photos


@dataclass(frozen=True)
class Collection:
    """Content of one collection.

    Attributes:
        name: name of the folder.
        people: numbers of people of the glyphs by split, each once.
        photos: number of photos per person.
        wrong_labels: share of the training people's labels that are replaced at random.
    """

    name: str
    people: Mapping[str, Sequence[int]]
    photos: int
    wrong_labels: float = 0.0


def writers(scripts: Sequence[str], count: int, first: int) -> list[int]:
    """Return the first people from a number on who write one of the scripts."""
    people = (person for person in itertools.count(first) if glyphs.hand_of(SEED, person).script in scripts)
    return [*itertools.islice(people, count)]


def photos_of(person: int, count: int) -> dict[str, str]:
    """Return the labels of a person's first photos of capitals, by name."""
    names = (f"glyphs/{SEED}/{person}/{number}.png" for number in itertools.count())
    shown = ((name, label) for name in names if (label := glyphs.label_of(name)) in CAPITALS)
    return dict(itertools.islice(shown, count))


def write_collection(folder: Path, collection: Collection) -> Path:
    """Draw a collection as a folder with ``metadata.csv``.

    An existing folder is returned unchanged. Columns: ``file_name``, ``label``, ``client`` (the person), ``domain`` (their script) and ``split``.
    """
    place = folder / collection.name
    if place.exists():
        return place
    unfinished = folder / f"{collection.name}.unfinished"
    photos = [
        (split, person, name, label)
        for split, people in collection.people.items()
        for person in people
        for name, label in photos_of(person, collection.photos).items()
    ]
    photos += [("train", _ALPHABET, name, label) for label, name in _alphabet().items()]
    random, rows = np.random.default_rng(SEED), []
    for split, person, name, label in track(photos, f"drawing {collection.name}", len(photos)):
        file = unfinished / name.removeprefix("glyphs/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(glyphs.read(name))
        mixed_up = split == "train" and person != _ALPHABET and random.random() < collection.wrong_labels
        entered = str(random.choice(CAPITALS)) if mixed_up else label
        script = glyphs.hand_of(SEED, person).script
        rows.append([file.relative_to(unfinished).as_posix(), entered, f"person-{person:05d}", script, split])
    with (unfinished / "metadata.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([["file_name", "label", "client", "domain", "split"], *rows])
    return unfinished.rename(place)


@functools.lru_cache(maxsize=1)
def _alphabet() -> dict[str, str]:
    """Return the name of a photo by class."""
    found: dict[str, str] = {}
    for person in itertools.count(_ALPHABET):
        for name, label in photos_of(person, 24).items():
            found.setdefault(label, name)
        if len(found) == len(CAPITALS):
            break
    return found
