"""Measure accuracy by history policy and history length (memories).

The paper answers a history longer than the window with retrieval of relevant images (ICIIA section 3.2). Run it with
``python -m studies memories``. Everything goes through exported bundles, the device's recogniser and profiles on disk.
The control is another person's history of the same length: retrieval shows the gate the photos of it that look most
like the target.

Notation: L history photos, T targets of each person.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.data import glyphs
from refocus.cloud_train.data.table import PhotoTable, foreigners_of
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.evaluate.heads import bundle_of
from refocus.cloud_train.evaluate.pairs import paired
from refocus.cloud_train.progress import say, track
from refocus.cloud_train.runs.iciia import GLYPHS, TINY, Run
from refocus.edge.bundle import Bundle
from refocus.edge.history import FeatureHistory, RetentionPolicy, append_row
from refocus.edge.photos import preprocess
from refocus.edge.recognize import Recognizer

HISTORIES = (16, 64, 256, 1024, 4096)
OTHER_WRITERS = 1000  # added to a run's seed: writers that none of its splits has
AT_ONCE = 64  # photos encoded together
ANSWERS = ("plain", "personal", "delivered")


@dataclass(frozen=True)
class Person:
    """Photos of one unseen person, in the order in which they were taken.

    Attributes:
        home: script of the writer, or parent category.
        photos: identities, (L + T,).
        features: (L + T, D + S).
        pixels: of the last T photos, each (1, 3, S, S).
        labels: class names of the last T photos, (T,).
    """

    home: str
    photos: list[str]
    features: np.ndarray
    pixels: list[np.ndarray]
    labels: np.ndarray


def study_memories(
    run: Run,
    seeds: Sequence[int],
    command: str,
    people: int = 24,
    targets: int = 16,
    histories: Sequence[int] = HISTORIES,
) -> dict[str, Any]:
    """Evaluate a run's heads with each memory at several history lengths.

    There is one head per seed.

    Args:
        run: run with trained heads.
        seeds: seeds of the heads.
        command: command line, stored in the document.
        people: maximum number of people.
        targets: T; the histories end before the first target.
        histories: values of L; lengths for which people have too few photos are skipped.

    Returns:
        A study's results document.

    Raises:
        DataError: no person, or only one, has enough photos for the shortest history.
    """
    table = _long_streams(run, people, max(histories) + targets)
    streams = [rows for _, rows in table.clients()]
    photos = min(map(len, streams), default=0)
    lengths = sorted(length for length in histories if length + targets <= photos)
    if not lengths or len(streams) < 2:
        raise DataError(
            f"{len(streams)} test clients, the shortest of {photos} photos: for a history of {min(histories)} and"
            f" {targets} targets bring two with {min(histories) + targets} each, or lower --targets"
        )
    bundles = [bundle_of(run, run.head_path(seed, TINY)) for seed in seeds]
    longest = lengths[-1] + targets
    met = [_meet(bundles[0], table, rows[:longest], targets) for rows in track(streams, "encoding", len(streams))]
    results = [_evaluate(bundle, met, lengths, targets) for bundle in bundles]
    counts = {"test_clients": len(met), "targets": len(met) * targets, **run.kind_of_people()}
    data = page.data_of(run.config.data.source, table, **counts)
    more = {"data": data, "backbone": run.backbone_name, "history": lengths[-1], "recipe": {}}
    return page.study_document("memories", command, seeds, **more, rows=_rows(results, targets))


def _long_streams(run: Run, people: int, photos: int) -> PhotoTable:
    """Return unseen people with many photos.

    They are of the test split; for glyphs they are new writers with as many photos as needed.
    """
    if run.config.data.source == GLYPHS:
        return glyphs.glyphs(run.config.data.seed + OTHER_WRITERS, {"test": people}, photos)
    test = run.table.of_split("test")
    names = np.unique(test.client)
    sizes = {name: int((test.client == name).sum()) for name in names.tolist()}
    most = sorted(names.tolist(), key=lambda name: (-sizes[name], name))[:people]
    return test.rows(np.isin(test.client, most))


def _meet(bundle: Bundle, table: PhotoTable, rows: np.ndarray, targets: int) -> Person:
    names, features = table.photo[rows].tolist(), []
    pixels: list[np.ndarray] = []
    with Recognizer(bundle, threads=1) as device:
        for start in range(0, len(names), AT_ONCE):
            some = [
                preprocess(table.read(name), bundle.manifest.preprocessing, name)
                for name in names[start : start + AT_ONCE]
            ]
            features.append(device.features_of(np.concatenate(some)))
            pixels = [*pixels, *some][-targets:]
    return Person(
        table.home(rows), names, np.concatenate(features), pixels, np.array(table.classes)[table.label[rows[-targets:]]]
    )


Key = tuple[str, str, int]  # content, memory, L
Right = dict[Key, dict[str, np.ndarray]]  # -> answer -> share of each person


def _evaluate(bundle: Bundle, people: Sequence[Person], lengths: Sequence[int], targets: int) -> Right:
    classes = np.array(bundle.manifest.head().labels)
    asked = [("newest", lengths[0]), *((memory, length) for memory in ("spread", "similar") for length in lengths)]
    answers: Right = {}
    for number, person in enumerate(track(people, "answering", len(people))):
        foreigner = people[foreigners_of([each.home for each in people], number)[0]]
        for content, past in (("own", person), ("foreign", foreigner)):
            for memory, length in asked:
                right = classes[_answers(bundle, past, person, memory, length, targets)] == person.labels
                shares = answers.setdefault(
                    (content, memory, length), {name: np.zeros(len(people)) for name in ANSWERS}
                )
                for name, share in zip(ANSWERS, right.mean(1), strict=True):
                    shares[name][number] = share
    say(f"evaluated {len(people)} people of {len(classes)} classes")
    return answers


def _answers(bundle: Bundle, past: Person, person: Person, memory: str, length: int, targets: int) -> np.ndarray:
    """Compute the class that each kind of answer gives each target, (3, T)."""
    with tempfile.TemporaryDirectory() as folder:
        device = Recognizer(
            bundle, Path(folder) / "p", threads=1, memory=memory, keeping=RetentionPolicy(capacity=length)
        )
        with device:
            assert device.history is not None  # noqa: S101  # it was given a profile
            before = slice(len(past.photos) - targets - length, len(past.photos) - targets)
            _store(device.history, device.space, past.photos[before], past.features[before])
            answers = [
                device.recognize_pixels(pixels, name, remember=False)
                for pixels, name in zip(person.pixels, person.photos[-targets:], strict=True)
            ]
    kinds = ([a.plain_logits for a in answers], [a.calibrated_logits for a in answers], [a.logits for a in answers])
    return np.array(kinds).argmax(-1)


def _store(history: FeatureHistory, space: str, photos: Sequence[str], features: np.ndarray) -> None:
    """Store many photos in one transaction."""

    def work(database: Any, bounds: Any) -> None:
        for photo, feature in zip(photos, features, strict=True):
            append_row(database, bounds, photo, {space: history.value(feature)}, "")

    history.transaction(work)


def _rows(results: Sequence[Right], targets: int) -> list[dict[str, Any]]:
    def mean(key: Key, answer: str) -> float:
        return float(np.mean([right[key][answer] for right in results]))

    def over(key: Key, answer: str, other: Key, other_answer: str) -> dict[str, Any]:
        """Compute the paired difference, with its 95 % interval over people."""
        rows = [right[key][answer] - right[other][other_answer] for right in results]
        return paired(rows, np.full(len(rows[0]), targets))

    own = [key for key in results[0] if key[0] == "own"]
    rows = []
    for key in own:
        _, memory, length = key
        foreign = "foreign", memory, length
        rows.append(
            {
                "name": memory,
                "photos": length,
                "original": mean(key, "plain"),
                "ungated": mean(key, "personal"),
                "delivered": mean(key, "delivered"),
                "gain": over(key, "delivered", key, "plain"),
                "over_newest": over(key, "delivered", own[0], "delivered"),
                "ungated_over_newest": over(key, "personal", own[0], "personal"),
                "foreign": over(foreign, "delivered", foreign, "plain"),
                "foreign_ungated": over(foreign, "personal", foreign, "plain"),
            }
        )
    return rows


COLUMNS = {
    "photos the window is taken from": lambda row: f"{row['name']} of {row['photos']:,}",
    "original": page.percent("original"),
    "ICIIA alone": page.percent("ungated"),
    "delivered": page.percent("delivered"),
    "delivered, gain": page.gain(),
    "delivered, over the first": page.gain("over_newest"),
    "ICIIA alone, over the first": page.gain("ungated_over_newest"),
    "foreign history: delivered, gain": page.gain("foreign"),
    "ICIIA alone, gain": page.gain("foreign_ungated"),
}
PAGES = {"memories": page.StudyPage("the newest photos against the most similar of a longer history", COLUMNS)}
