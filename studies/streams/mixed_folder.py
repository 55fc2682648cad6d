"""Mixed folders: ImageNet networks on photos of many kinds.

The truth was set by hand.

A folder has photos of ImageNet classes, of office objects and groceries that ImageNet has, and of objects that it does
not have. It is answered photo by photo, as an album is. Nothing is trained. The settings state which ImageNet classes
are correct for a class of another set; photos of a set's other classes are unknown, except for those of ``skipped``.

Half of the ImageNet photos, by hash, calibrate the network and set the rejection threshold; they are in no folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from refocus.cloud_train.backbones.feature_cache import extract
from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.iciia.delivery import calibrate
from refocus.edge.recognize import ClassShares, ShareSettings, known_scores
from studies.encoders import ENCODERS, published_backbone, weights_file
from studies.experiment import Cache, Cell, ExperimentPage, Needs, Row, Study, shown_of
from studies.streams.rolls.points import limited, part_of

IMAGENET = "ImageNet"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class MixedSettings:
    """Settings of the study.

    Attributes:
        source: folder of the photo sets and weights.
        folders: number of folders of a seed.
        photos: number of photos of each group in a folder; the unknown photos are as many as all others.
        truth: correct ImageNet classes by set and class, named by their first synonym.
        skipped: classes of sets whose photos are not used, because people would disagree.
        per_class: maximum number of photos of a class of a set from which folders are drawn.
    """

    source: str = "data"
    folders: int = 20
    photos: Mapping[str, int] = field(default_factory=dict)
    truth: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    skipped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    per_class: int = 12


@dataclass(frozen=True)
class MixedGrid:
    """Axes of the study.

    Attributes:
        encoder: name of the network.
        temperature: "fitted" to the calibration photos, or "1".
        method: "plain", "shares", "threshold alone" (the votes of all classes count alike), or "unknown left out"
            (the history without its unknown photos, an upper bound).
    """

    encoder: tuple[str, ...] = ("efficientnet_lite0", "mobilenetv2", "deit_tiny")
    temperature: tuple[str, ...] = ("fitted", "1")
    method: tuple[str, ...] = ("plain", "shares", "threshold alone", "unknown left out")


@dataclass(frozen=True)
class Photos:
    """Photos of a network, with their truth.

    Attributes:
        logits: logits of the network, (R, C).
        lengths: lengths of the features, (R,).
        group: group of each photo, (R,).
        correct: whether a class is a correct answer to a photo, (R, C).
        calibrates: whether a photo calibrates the network and is in no folder, (R,).
    """

    logits: np.ndarray
    lengths: np.ndarray
    group: np.ndarray
    correct: np.ndarray
    calibrates: np.ndarray


class Alike(ClassShares):
    """Class shares that count the votes of all classes alike."""

    _vouched = False  # type: ignore[assignment]


def needs(settings: MixedSettings, cell: Cell) -> Needs:
    """Return what the answers of a cell depend on."""
    files = {name: Path(settings.source) / f"{name}.zip" for name in settings.truth}
    files["weights"] = weights_file(ENCODERS[str(cell["encoder"])], settings.source)
    stated = {name: getattr(settings, name) for name in ("folders", "photos", "per_class")}
    stated |= {"truth": {name: dict(of) for name, of in settings.truth.items()}, "skipped": dict(settings.skipped)}
    code = __name__, "refocus.edge.recognize.class_shares", "refocus.edge.recognize.rejection"
    return Needs(stated, files, code)


def prepare(settings: MixedSettings, encoder: str, run: Path) -> Photos:
    """Compute the logits of all photos and their truth.

    Raises:
        UsageError: the truth names a class that ImageNet does not have.
    """
    backbone = published_backbone(ENCODERS[encoder], settings.source)
    folder = Path(settings.source) / "photos"
    names = [line.split("_", 1)[1] for line in (folder / "classes.txt").read_text().split()]
    files = sorted(path.name for path in folder.glob("*.JPEG"))
    truth = [names.index(name.split("_", 1)[1].removesuffix(".JPEG")) for name in files]
    photos = [(IMAGENET, {number}) for number in truth]
    calibrates = [part_of(name) == "development" for name in files]
    tables = [_table(folder, files)]
    for name, of_set in settings.truth.items():
        table = load_photos(Path(settings.source) / f"{name}.zip")
        table = limited(replace(table, split=np.full(len(table), "test")), settings.per_class)
        label = np.array([table.classes[number] for number in table.label])
        table = table.rows(~np.isin(label, settings.skipped.get(name, ())))
        for number in table.label.tolist():
            known = of_set.get(table.classes[number], ())
            photos.append((name if known else UNKNOWN, truth_of(name, known, names)))
        tables.append(table)
    features = np.concatenate([extract(backbone, table, run / "features").take() for table in tables])
    classifier = backbone.network.get_classifier()
    logits = features @ classifier.weight.detach().numpy().T + classifier.bias.detach().numpy()
    correct = np.zeros(logits.shape, dtype=bool)
    for row, (_, classes) in enumerate(photos):
        correct[row, sorted(classes)] = True
    calibrates += [False] * (len(photos) - len(calibrates))
    lengths = np.linalg.norm(features, axis=1)
    return Photos(logits, lengths, np.array([group for group, _ in photos]), correct, np.array(calibrates))


def truth_of(name: str, known: Sequence[str], names: Sequence[str]) -> set[int]:
    """Return the numbers of the correct classes of a photo.

    Args:
        name: name of the photo set.
        known: names of the correct classes.
        names: names of all classes, (C,).

    Raises:
        UsageError: a correct class is not one of them.
    """
    wrong = [one for one in known if one not in names]
    if wrong:
        raise UsageError(f"truth.{name}: {wrong[0]} is no ImageNet class; see photos/classes.txt")
    return {names.index(one) for one in known}


def _table(folder: Path, files: list[str]) -> PhotoTable:
    """Return photos of a folder without a table."""
    empty = np.full(len(files), "")
    label = np.zeros(len(files), dtype=np.int64)
    return PhotoTable(
        np.array(files), label, empty, empty, empty, ("photo",), lambda name: (folder / name).read_bytes()
    )


def evaluate_cell(settings: MixedSettings, cell: Cell, seed: int, cache: Cache) -> list[Row]:
    """Return the answers to each group of photos in the folders of a seed."""
    given = prepare(settings, str(cell["encoder"]), cache.run)
    known = given.logits[given.calibrates]
    label = given.correct[given.calibrates].argmax(1)
    temperature = calibrate(known, label) if cell["temperature"] == "fitted" else 1.0
    names = [*map(str, range(known.shape[1]))]
    scores = known_scores(known, given.lengths[given.calibrates], [str(number) for number in label], names)
    kind = Alike if cell["method"] == "threshold alone" else ClassShares
    state = kind(ShareSettings(temperature=temperature), len(names), known=scores)
    found: dict[str, list[tuple[int, int, bool, bool, bool]]] = {}
    for number in range(settings.folders):
        state.clear()
        for row in _folder(settings, given, np.random.default_rng([seed, number])):
            answer = state.answer(given.logits[row], given.lengths[row])
            alone = int(answer.plain_logits.argmax())
            said = alone if cell["method"] == "plain" else int(answer.logits.argmax())
            marked = scores.score(given.logits[row], given.lengths[row]) < scores.rejection
            values = number, row, bool(given.correct[row, said]), said != alone, marked
            found.setdefault(str(given.group[row]), []).append(values)
            if cell["method"] != "unknown left out" or given.group[row] != UNKNOWN:
                state.add(answer.row)
    rows = []
    for group, answers in found.items():
        person, photo, correct, changed, marked_ = map(np.array, zip(*answers, strict=True))
        values_of = {"accuracy": correct, "changed": changed, "marked": marked_}
        flags = {name: of.astype(int) for name, of in values_of.items()}
        rows.append(Row({"group": group}, person, photo, flags))
    return rows


def _folder(settings: MixedSettings, given: Photos, rng: np.random.Generator) -> np.ndarray:
    """Return the rows of a folder in a random order."""
    rows = [
        rng.choice(np.flatnonzero((given.group == group) & ~given.calibrates), number, replace=False)
        for group, number in [*settings.photos.items(), (UNKNOWN, sum(settings.photos.values()))]
    ]
    return rng.permutation(np.concatenate(rows))


PAGES = {"mixed-folder": ExperimentPage.of(shown_of(Path(__file__).with_name("mixed-folder.toml")))}
STUDY = Study(MixedSettings(), MixedGrid(), needs, evaluate_cell)
