"""Damaged profiles of a real recogniser: every photo is answered, no wrong feature is read, and what was lost is said.

Of five seeds, four flip one bit and the fifth damages the files otherwise, in one of ten ways.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from refocus.edge.bundle.load import load_bundle
from refocus.edge.errors import HistoryError
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.recognize.recognizer import Recognizer
from tests.fuzz import toys
from tests.fuzz.areas import Area, Wrong, rng_of

WIDTH, PHOTOS, OTHERS = 1280, 24, 6  # features of the recogniser's own space, and of another one
OTHER = "f" * 64
NAME = "anna.history.sqlite3"
LOG = f"{NAME}-wal"
PAGE = 4096


@dataclass
class Case:
    """The files of a profile's folder by name."""

    files: dict[str, bytes]


@dataclass
class Held:
    """What a profile holds: by space, the identities in order; features by space and identity; labels and settings."""

    order: dict[str, list[str]]
    features: dict[tuple[str, str], bytes]
    labels: dict[str, str]
    settings: dict[str, str]

    @property
    def count(self) -> int:
        return len(self.features) + len(self.labels) + len(self.settings)


def held_by(history: FeatureHistory, spaces: list[str]) -> Held:
    order, features = {}, {}
    for space in spaces:
        past = history.recall(space, 10_000, WIDTH)
        order[space] = [*past.photos]
        features |= {(space, photo): row.tobytes() for photo, row in zip(past.photos, past.features, strict=True)}
    return Held(order, features, history.labels(), history.settings())


# ---- damage: each takes the files and random numbers


def one_bit(files: dict[str, bytes], rng: random.Random) -> None:
    _flip(files, rng, 1)


def some_bits(files: dict[str, bytes], rng: random.Random) -> None:
    _flip(files, rng, rng.randint(2, 50))


def _flip(files: dict[str, bytes], rng: random.Random, count: int) -> None:
    changed = bytearray(files[NAME])
    for _ in range(count):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    files[NAME] = bytes(changed)


def header_bits(files: dict[str, bytes], rng: random.Random) -> None:
    """Of the hundred bytes that say what file it is, and the page with the tables' names."""
    changed = bytearray(files[NAME])
    changed[rng.randrange(rng.choice([100, PAGE]))] ^= 1 << rng.randrange(8)
    files[NAME] = bytes(changed)


def zeros(files: dict[str, bytes], rng: random.Random) -> None:
    """A stretch of zeros, as a disk that lost sectors gives."""
    size = rng.choice([512, PAGE, 5 * PAGE])
    at = rng.randrange(len(files[NAME]) // 512) * 512
    files[NAME] = files[NAME][:at] + bytes(min(size, len(files[NAME]) - at)) + files[NAME][at + size :]


def noise(files: dict[str, bytes], rng: random.Random) -> None:
    at = rng.randrange(len(files[NAME]) // PAGE) * PAGE
    files[NAME] = files[NAME][:at] + rng.randbytes(PAGE) + files[NAME][at + PAGE :]


def pages_swapped(files: dict[str, bytes], rng: random.Random) -> None:
    count = len(files[NAME]) // PAGE
    one, two = rng.randrange(count), rng.randrange(count)
    pages = [files[NAME][at * PAGE : (at + 1) * PAGE] for at in range(count)]
    pages[one], pages[two] = pages[two], pages[one]
    files[NAME] = b"".join(pages)


def cut(files: dict[str, bytes], rng: random.Random) -> None:
    files[NAME] = files[NAME][
        : rng.choice([rng.randrange(len(files[NAME])), rng.randrange(len(files[NAME]) // PAGE) * PAGE])
    ]


def longer(files: dict[str, bytes], rng: random.Random) -> None:
    files[NAME] += rng.choice([rng.randbytes(100), bytes(PAGE), rng.randbytes(3 * PAGE)])


def emptied(files: dict[str, bytes], rng: random.Random) -> None:
    files[NAME] = b""


def other_content(files: dict[str, bytes], rng: random.Random) -> None:
    files[NAME] = rng.choice([b"not a database", bytes(len(files[NAME])), rng.randbytes(len(files[NAME]))])


def log_damaged(files: dict[str, bytes], rng: random.Random) -> None:
    """The write-ahead log: bits, cut, or of another file."""
    log = bytearray(files.get(LOG, b""))
    if not log:
        files[LOG] = rng.randbytes(5000)
        return
    if rng.random() < 0.3:
        del log[rng.randrange(len(log)) :]
    else:
        for _ in range(rng.choice([1, 1, 20])):
            log[rng.randrange(len(log))] ^= 1 << rng.randrange(8)
    files[LOG] = bytes(log)


DAMAGE: dict[str, Callable[[dict[str, bytes], random.Random], None]] = {
    "some bits": some_bits, "header bits": header_bits, "zeros": zeros, "noise": noise, "pages swapped": pages_swapped,
    "cut": cut, "longer": longer, "emptied": emptied, "other content": other_content, "log damaged": log_damaged,
}  # fmt: skip


def said_lost(history: FeatureHistory, before: Held) -> tuple[int, bool] | None:
    """How many rows the history says it lost, and whether it says that this is all; None where it says nothing.

    A recovery has ``lost`` and ``exact``; one that has not says what it kept. ``damaged`` counts features dropped alone.
    """
    recovery = history.recovered
    if recovery is None:
        return (history.damaged, True) if history.damaged else None
    if hasattr(recovery, "lost"):
        return recovery.lost.features + recovery.lost.labels + recovery.lost.settings, recovery.exact
    kept = recovery.features + recovery.labels + recovery.settings
    return before.count - kept + history.damaged, True


class Fuzzed(Area):
    """Serves photos from damaged profiles."""

    typed = (HistoryError,)

    @staticmethod
    def build(material: Path) -> None:
        bundle = toys.plain_bundle(material / "bundle", WIDTH, "wide")
        profile = material / "closed" / NAME
        with Recognizer(bundle, profile, threads=1) as recognizer:
            for number in range(PHOTOS):
                answer = recognizer.recognize(toys.png(number), f"/photos/{number}.png")
                assert recognizer.history is not None
                if number < OTHERS:
                    recognizer.history.append(OTHER, f"{number:064d}", answer.feature[::-1], f"/other/{number}.png")
                if number == PHOTOS // 2:
                    photos = recognizer.history.recall(recognizer.space, PHOTOS, WIDTH).photos
                    for label in range(4):
                        recognizer.history.set_label(photos[label], f"label {label}")
                    recognizer.history.set_setting("memory", "newest")
                    recognizer.history.set_setting("note", "x" * 200)
            held = held_by(recognizer.history, [recognizer.space, OTHER])
            shutil.copytree(material / "closed", material / "killed")  # the newest rows are in the log alone
        document = [
            held.order,
            [[*key, value.hex()] for key, value in held.features.items()],
            held.labels,
            held.settings,
        ]
        (material / "held.json").write_text(json.dumps(document))

    def __init__(self, material: Path, scratch: Path) -> None:
        super().__init__(material, scratch)
        self._files = {}
        for state in ("closed", "killed"):
            self._files[state] = {path.name: path.read_bytes() for path in (material / state).iterdir()}
        order, features, labels, settings = json.loads((material / "held.json").read_text())
        self._held = Held(order, {(s, p): bytes.fromhex(v) for s, p, v in features}, labels, settings)
        self._spaces = [*order]
        self._recognizer = Recognizer(load_bundle(material / "bundle"), None, threads=1)
        self._photo = toys.png(1000)

    def make(self, seed: int) -> tuple[str, Case]:
        rng = rng_of("profiles", seed)
        if seed % 5 < 4:
            files = dict(self._files["closed"])
            one_bit(files, rng)
            return "one bit", Case(files)
        kind = [*DAMAGE][seed // 5 % len(DAMAGE)]
        state = "killed" if kind == "log damaged" else rng.choices(["closed", "killed"], [8, 1])[0]
        files = dict(self._files[state])
        DAMAGE[kind](files, rng)
        return kind, Case(files)

    def save(self, case: Case, folder: Path) -> None:
        for name, content in case.files.items():
            (folder / name).write_bytes(content)

    def judge(self, case: Case, run: Callable[[], None]) -> str:
        folder = self.scratch / "profiles"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.save(case, folder)
        path = folder / NAME
        try:
            first, said = self._served(path)
        except HistoryError:
            try:
                self._served(path)
            except HistoryError as error:
                raise Wrong("a profile is refused again and again") from error
            raise
        if said is not None and self._later(path).features.keys() != first.features.keys():
            raise Wrong("a repaired profile holds something else when it is opened again")
        gone = self._held.count - first.count
        if gone and said is None:
            raise Wrong(f"{self._what(first)} lost in silence")
        if said is not None and (said[0] > gone or (said[1] and said[0] < gone)):
            raise Wrong(f"{'more' if said[0] > gone else 'fewer'} losses are said than there are ({self._what(first)})")
        return "accepted" if gone else "right"

    def _served(self, path: Path) -> tuple[Held, tuple[int, bool] | None]:
        """What is left after a photo was answered from the profile, and what was said about the loss."""
        try:
            self._recognizer.switch(path)
            answer = self._recognizer.recognize(self._photo, "/new.png")
            history = self._recognizer.history
            assert history is not None
            if len(answer.labels) != toys.CLASSES:
                raise Wrong("no answer")
            found = held_by(history, self._spaces)
            new = found.order[self._spaces[0]][-1:]
            if not new or (self._spaces[0], *new) in self._held.features:
                raise Wrong("the photo that was just answered is not the newest")
            found.features.pop((self._spaces[0], new[0]))
            self._same(found, new)
            return found, said_lost(history, self._held)
        finally:
            self._recognizer.leave()

    def _same(self, found: Held, new: list[str]) -> None:
        for key, value in found.features.items():
            if key not in self._held.features:
                raise Wrong("a feature is there that never was")
            if value != self._held.features[key]:
                raise Wrong("a wrong feature")
        for space, photos in found.order.items():
            expected = [photo for photo in [*self._held.order[space], *new] if photo in photos]
            if photos != expected:
                raise Wrong("photos are in another order")
        if not found.labels.items() <= self._held.labels.items():
            raise Wrong("a wrong label")
        if not found.settings.items() <= self._held.settings.items():
            raise Wrong("a wrong setting")

    def _later(self, path: Path) -> Held:
        with FeatureHistory(path) as history:
            found = held_by(history, self._spaces)
        found.features.pop((self._spaces[0], found.order[self._spaces[0]][-1]))
        return found

    def _what(self, found: Held) -> str:
        kinds = [name for name in ("features", "labels", "settings")
                 if len(getattr(found, name)) < len(getattr(self._held, name))]  # fmt: skip
        return ", ".join(kinds) or "nothing"
