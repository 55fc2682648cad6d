"""Points of the stream protocol: a photo set, an encoder and a seed.

A point has everything that a method may use before the first photo. The seed draws the validation photos (a quarter of
the training photos) and the people; test photos are those of the set. For glyphs it draws other writers, who share no
photos.

    RUN/features/KEY/                    features, see :mod:`refocus.cloud_train.backbones.feature_cache`
    RUN/glyph-encoder.safetensors        encoder of glyphs, trained on writers who are in no point
    RUN/cache/KEY.npz                    plain classifier of a point: weight, bias and L2 penalty
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from refocus.cloud_train.backbones.backbone import Backbone
from refocus.cloud_train.backbones.feature_cache import FeatureCache, extract
from refocus.cloud_train.backbones.pretrain import GLYPH_BACKBONE, EncoderRecipe, train_encoder
from refocus.cloud_train.data.glyphs import glyphs
from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.locks import one_at_a_time
from refocus.cloud_train.methods.iciia.delivery import calibrate
from refocus.cloud_train.methods.iciia.plain_classifier import fit_plain_classifier
from refocus.cloud_train.methods.iciia.programs import backbone_of
from refocus.cloud_train.settings import Count, FilePath
from refocus.edge.recognize import ShareSettings
from refocus.export.program import Card, load_checkpoint, save_checkpoint
from studies.encoders import ENCODERS, published_backbone, weights_file
from studies.experiment import Cache, Needs
from studies.streams.judging import Split
from studies.streams.pseudo_people import CELLS, OF_LONG_STREAMS, Cell, PseudoPerson, deal, deal_owners
from studies.streams.rivals.method import Knowledge, unit

LENGTHS = (15, 63)  # history lengths for choosing the delivered method, and of the upper bounds
FEWEST = 10  # a cell with fewer people is left out
GLYPHS, GLYPH_ENCODER = "glyphs", "small"
# Name -> file, and the column with groups of classes, one of which each person has; "": random classes.
DATA = {
    "office-31": ("office-31.zip", ""),
    "grocery-store": ("grocery-store.zip", ""),
    "tiny-imagenet": ("tiny-imagenet-subset.zip", ""),
    "tiny-imagenet-by-parent": ("tiny-imagenet-subset.zip", "parent"),
    GLYPHS: ("", ""),
}
CODE = (  # modules that every result of a point depends on
    "refocus.cloud_train.backbones.feature_cache",
    "refocus.cloud_train.backbones.pretrain",
    "refocus.cloud_train.data.glyphs",
    "refocus.cloud_train.methods.iciia.delivery",
    "refocus.cloud_train.methods.iciia.plain_classifier",
    "studies.streams.judging",
    "studies.streams.points",
    "studies.streams.pseudo_people",
    "studies.streams.rivals.method",
)
_ENCODER_WRITERS, _ENCODER_SEED = 240, 9000  # of the glyph encoder
_TAUGHT, _CHECKED, _PHOTOS = 80, 30, 48  # writers who train and validate, and photos of each


@dataclass(frozen=True)
class StreamSettings:
    """Numbers of people and photos of the studies of streams.

    Attributes:
        source: folder of the photo sets, with ``weights/``.
        people: maximum number of people per cell; for glyphs also at most ``writers``.
        targets: number of target photos per person.
        photos_per_class: maximum number of training and of test photos per class; 0: all.
        writers: number of test writers of glyphs.
        longest: number of photos of the longest history of glyphs.
        steps: maximum number of gradient steps of a trained head.
        shares: settings of class shares, apart from what each point calibrates.
    """

    source: FilePath = ""
    people: Count = 40
    targets: Count = 24
    photos_per_class: int = 0
    writers: Count = 24
    longest: Count = 1023
    steps: Count = 600
    shares: ShareSettings = field(default_factory=ShareSettings)

    def stated(self) -> dict[str, Any]:
        """Return the settings that results documents state."""
        numbers = {name: getattr(self, name) for name in ("people", "targets", "photos_per_class")}
        return {**numbers, "intervals": "people and photos", "settings": asdict(self.shares)}


def check_axis(axis: str, values: Iterable[str], known: Iterable[str]) -> None:
    """Check the values of an axis of the grid.

    Raises:
        UsageError: there are unknown values.
    """
    unknown = sorted({*values} - {*known})
    if unknown:
        raise UsageError(f"{axis}: {', '.join(unknown)} is none of {', '.join(known)}")


@dataclass(frozen=True)
class PointGrid:
    """Name the points of a study.

    Attributes:
        data: names of photo sets.
        encoder: names of encoders; "small" is for glyphs, the others are for photos.
    """

    data: tuple[str, ...] = tuple(DATA)
    encoder: tuple[str, ...] = (*ENCODERS, GLYPH_ENCODER)

    def __post_init__(self) -> None:
        check_axis("data", self.data, DATA)
        check_axis("encoder", self.encoder, (*ENCODERS, GLYPH_ENCODER))


@dataclass(frozen=True)
class Point:
    """Features, classifier and photos of a data set, an encoder and a seed.

    Attributes:
        cache: features of the photos of all splits.
        knowledge: classifier, calibration and statistics of the training photos.
        splits: validation and test photos.
        groups: groups of classes, one of which each person has; None: random classes, or people who took the photos.
        owned: whether the photos have owners.
        facts: facts that the results document states.
    """

    cache: FeatureCache
    knowledge: Knowledge
    splits: Mapping[str, Split]
    groups: tuple[np.ndarray, ...] | None
    owned: bool
    facts: Mapping[str, float]

    def people(self, split: str, cell: Cell, people: int, targets: int, seed: int) -> list[PseudoPerson]:
        """Return the people of one split in one cell."""
        part = self.cache.table.of_split(split)
        if self.owned:
            return deal_owners(part.label, part.client, part.domain, cell, people, targets, seed)
        return deal(part.label, self.groups, cell, people, targets, seed)

    def answers(self, people: Sequence[PseudoPerson], seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the person and the photo of each answer, (n,) each.

        Photos of different seeds have different numbers if the seeds draw different owners.
        """
        photos = [np.concatenate([case.steps[-1][1] for case in person.cases]) for person in people]
        first = seed * len(self.cache.table) if self.owned else 0
        return np.repeat(np.arange(len(people)), [*map(len, photos)]), first + np.concatenate(photos)


def cells_of(data: str) -> tuple[Cell, ...]:
    """Return the cells of a photo set.

    None varies the number of classes if people have their own classes.
    """
    own, grouped = data == GLYPHS, bool(DATA[data][1])
    if not (own or grouped):
        return CELLS
    found = tuple(cell for cell in CELLS if cell.factor != "classes" or (cell.classes is None and not own))
    return (*found, *OF_LONG_STREAMS) if own else found


def point_needs(settings: StreamSettings, cell: Mapping[str, Any]) -> Needs:
    """Return what the photos, features and people of a point depend on."""
    if cell["data"] == GLYPHS:
        return Needs({name: getattr(settings, name) for name in ("targets", "writers", "longest")}, {}, CODE)
    source = Path(settings.source)
    weights = weights_file(ENCODERS[cell["encoder"]], settings.source)
    files = {"photos": source / DATA[cell["data"]][0], "weights": weights}
    return Needs({"photos_per_class": settings.photos_per_class}, files, CODE)


@functools.lru_cache(maxsize=2)
def prepare(settings: StreamSettings, cache: Cache, data: str, encoder: str, seed: int) -> Point:
    """Compute the features, plain classifier and calibration of a point."""
    if data == GLYPHS:
        return _glyphs(settings, cache, seed)
    file, parent = DATA[data]
    table = load_photos(Path(settings.source) / file, domain_column="", parent_column=parent)
    table = first_of_each_class(table, settings.photos_per_class) if settings.photos_per_class else table
    bank = extract(published_backbone(ENCODERS[encoder], settings.source), table, cache.run / "features")
    bank = replace(bank, table=replace(table, split=draw_split(table, seed)))
    needs = point_needs(settings, {"data": data, "encoder": encoder})
    plain = _plain(bank, cache, {"result": "plain", "seed": seed}, needs, seed)
    return _point(bank, plain, _groups(bank.table) if parent else None, owned=False)


def first_of_each_class(table: PhotoTable, most: int) -> PhotoTable:
    """Return the first photos of each class, training and test separately.

    Args:
        table: photos.
        most: maximum number of training and of test photos per class.
    """
    kept, seen = np.zeros(len(table), dtype=bool), dict[tuple[int, bool], int]()
    for row, key in enumerate(zip(table.label.tolist(), (table.split == "test").tolist(), strict=True)):
        seen[key] = seen.get(key, 0) + 1
        kept[row] = seen[key] <= most
    return table.rows(kept)


def draw_split(table: PhotoTable, seed: int) -> np.ndarray:
    """Return the split of each photo, (R,).

    Test photos stay test photos. The seed draws a quarter of the others of each class for validation.
    """
    rng = np.random.default_rng(seed)
    split = np.where(table.split == "test", "test", "train").astype("<U10")
    for number in range(len(table.classes)):
        rows = rng.permutation(np.flatnonzero((table.label == number) & (split == "train")))
        split[rows[: len(rows) // 4]] = "validation"
    return split


def _glyphs(settings: StreamSettings, cache: Cache, seed: int) -> Point:
    """Return the point of glyphs.

    Test writers have enough photos for the longest history.
    """
    few = glyphs(_ENCODER_SEED + 1 + seed, {"train": _TAUGHT, "validation": _CHECKED}, _PHOTOS)
    most = settings.longest + 2 * settings.targets + 64
    many = glyphs(_ENCODER_SEED + 101 + seed, {"test": settings.writers}, most)
    backbone = _glyph_encoder(cache.run)
    parts = [extract(backbone, table, cache.run / "features") for table in (few, many)]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part.table, name) for part in parts])
        for name in ("photo", "label", "client", "domain", "parent", "split")
    }
    columns["client"] = np.char.add(columns["client"], np.repeat(["", " judged"], [len(few), len(many)]))
    table = replace(few, **columns)
    features = np.concatenate([np.asarray(part.features) for part in parts])
    bank = FeatureCache(table, features, f"{parts[0].key}+{parts[1].key}", np.arange(len(table)))
    plain = _plain(bank, cache, {"result": "plain", "data": GLYPHS, "seed": seed}, Needs(code=CODE), seed)
    return _point(bank, plain, None, owned=True)


def _glyph_encoder(run: Path) -> Backbone:
    path = run / "glyph-encoder.safetensors"
    with one_at_a_time(run / ".glyph-encoder.lock"):
        if not path.with_suffix(".json").exists():
            table = glyphs(_ENCODER_SEED, {"train": _ENCODER_WRITERS}, _PHOTOS)
            made = train_encoder(table, EncoderRecipe(), GLYPH_BACKBONE)
            card = Card(
                builder="timm_encoder", config=made.card_config(classes=len(table.classes)), labels=table.classes
            )
            save_checkpoint(path, made.network.state_dict(), card)
    return backbone_of(load_checkpoint(path))


def _plain(
    bank: FeatureCache, cache: Cache, what: Mapping[str, Any], needs: Needs, seed: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return weight (C, D), bias (C,) and L2 penalty of the plain classifier.

    It is trained once and cached.
    """

    def fitted() -> dict[str, Any]:
        torch.manual_seed(seed)
        plain = fit_plain_classifier(bank.of_split("train"), bank.of_split("validation"))
        return {"weight": plain.layer.weight.detach(), "bias": plain.layer.bias.detach(), "l2": plain.l2}

    return cache.once(what, needs, fitted, ".npz", lambda kept: (kept["weight"], kept["bias"], float(kept["l2"])))


def _point(
    cache: FeatureCache,
    plain: tuple[np.ndarray, np.ndarray, float],
    groups: tuple[np.ndarray, ...] | None,
    owned: bool,
) -> Point:
    weight, bias, l2 = plain
    train, splits = cache.of_split("train"), {}
    for name in ("validation", "test"):
        part = cache.of_split(name)
        features = part.take()
        splits[name] = Split(features, features @ weight.T + bias, part.table.label)
    lengths = unit(train.take())
    label, classes = train.table.label, len(cache.table.classes)
    seen = np.bincount(label, minlength=classes)
    means = np.stack(
        [lengths[label == number].mean(0) if seen[number] else weight[number] for number in range(classes)]
    )
    knowledge = Knowledge(
        temperature=calibrate(splits["validation"].logits, splits["validation"].label),
        base=seen / len(label),
        weight=weight,
        bias=bias,
        means=means,
        variance=((lengths - means[label]) ** 2).mean(0),
        validation=splits["validation"].logits,
        lengths=np.linalg.norm(splits["validation"].features, axis=1),
    )
    right = {name: float((part.logits.argmax(1) == part.label).mean()) for name, part in splits.items()}
    facts = {
        "l2": l2,
        "temperature": knowledge.temperature,
        "plain_validation": right["validation"],
        "plain_test": right["test"],
        "classes": classes,
        "train_photos": len(label),
        "validation_photos": len(splits["validation"].label),
        "test_photos": len(splits["test"].label),
    }
    return Point(cache, knowledge, splits, groups, owned, facts)


def _groups(table: PhotoTable) -> tuple[np.ndarray, ...]:
    """Return the classes of each parent category with at least two."""
    sets = (np.unique(table.label[table.parent == name]) for name in np.unique(table.parent))
    return tuple(classes for classes in sets if len(classes) > 1)
