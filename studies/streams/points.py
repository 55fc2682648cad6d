"""One point of the stream protocol: a set of photos, an encoder and a seed, with what is known before the first photo.

The seed draws the validation photos (a quarter of the training photos) and the people again; test photos stay as the
set has them. Of glyphs it draws other writers, whose photos nobody else has.

    RUN/streams.json                     what all points of a run have in common
    RUN/features/KEY/                    features, see :mod:`refocus.cloud_train.backbones.feature_cache`
    RUN/glyph-encoder.safetensors        the encoder of glyphs, trained on writers who are in no point
    RUN/plain/DATA-ENCODER-SEED.npz      one point's plain classifier: weight, bias, and its L2 penalty
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from refocus.cloud_train.backbones.backbone import Backbone
from refocus.cloud_train.backbones.feature_cache import FeatureCache, extract
from refocus.cloud_train.backbones.pretrain import GLYPH_BACKBONE, EncoderRecipe, train_encoder
from refocus.cloud_train.backbones.published import ENCODERS
from refocus.cloud_train.data.glyphs import glyphs
from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.iciia.delivery import calibrate
from refocus.cloud_train.methods.iciia.plain_classifier import fit_plain_classifier
from refocus.cloud_train.methods.iciia.programs import backbone_of
from refocus.cloud_train.progress import say
from refocus.cloud_train.runs.folder import once, same_inputs, save_settings, settings_of
from refocus.cloud_train.runs.iciia import published_backbone
from refocus.edge.files import file_sha256
from refocus.edge.recognize import ShareSettings
from refocus.export.program import Card, load_checkpoint, save_checkpoint
from studies.streams.judging import Split
from studies.streams.pseudo_people import BASE, CELLS, OF_LONG_STREAMS, Cell, PseudoPerson, deal, deal_owners
from studies.streams.rivals.method import Knowledge, unit

LENGTHS = (15, 63)  # photos of the histories by which people choose what is delivered, and that ceilings are of
FEWEST = 10  # people without whom a cell is left out
SETTINGS = "streams.json"
FORM = 2  # of what is kept of a point: each answer, not each person's share of right ones
GLYPHS, GLYPH_ENCODER = "glyphs", "small"
# Name -> file, and the column of class sets that belong together; "": people have random classes.
DATA = {
    "office-31": ("office-31.zip", ""),
    "grocery-store": ("grocery-store.zip", ""),
    "tiny-imagenet": ("tiny-imagenet-subset.zip", ""),
    "tiny-imagenet-by-parent": ("tiny-imagenet-subset.zip", "parent"),
    GLYPHS: ("", ""),
}
_ENCODER_WRITERS, _ENCODER_SEED = 240, 9000  # of the glyph encoder
_TAUGHT, _CHECKED, _PHOTOS = 80, 30, 48  # writers who train and validate, and photos of each


@dataclass(frozen=True)
class StreamSettings:
    """What the study runs.

    Attributes:
        source: folder of the photo sets, with ``weights/``.
        data, encoders: names of ``DATA`` and ``ENCODERS``; glyphs have an encoder of their own.
        people: of each cell; of glyphs at most ``writers``.
        targets: photos of each person that are answered.
        photos_per_class: so many training and so many test photos of each class; 0: all.
        writers: test writers of glyphs.
        heads: names of trained heads, see :mod:`studies.streams.heads`.
        steps: gradient steps of each head, at most.
        cells: names of cells; empty: all.
        shares: how shares are estimated, apart from what each point calibrates.
    """

    source: str
    data: tuple[str, ...] = tuple(DATA)
    encoders: tuple[str, ...] = tuple(ENCODERS)
    people: int = 40
    targets: int = 24
    photos_per_class: int = 0
    writers: int = 24
    heads: tuple[str, ...] = ()
    steps: int = 600
    cells: tuple[str, ...] = ()
    shares: ShareSettings = field(default_factory=ShareSettings)


@dataclass(frozen=True)
class Point:
    """What a data set, an encoder and a seed give.

    Attributes:
        cache: features of the photos of all splits.
        groups: class sets of which a person has one; None: random classes, or people who took the photos.
        owned: whether the photos have owners.
        facts: for the results document.
    """

    cache: FeatureCache
    knowledge: Knowledge
    splits: Mapping[str, Split]
    groups: tuple[np.ndarray, ...] | None
    owned: bool
    facts: Mapping[str, float]

    def people(self, split: str, cell: Cell, people: int, targets: int, seed: int) -> list[PseudoPerson]:
        """People of one split in one cell."""
        part = self.cache.table.of_split(split)
        if self.owned:
            return deal_owners(part.label, part.client, part.domain, cell, people, targets, seed)
        return deal(part.label, self.groups, cell, people, targets, seed)

    def cells(self) -> tuple[Cell, ...]:
        """The cells that there are of such people."""
        if self.owned or self.groups is not None:  # who decide how many classes a person has
            found = tuple(
                cell for cell in CELLS if cell.factor != "classes" or (cell.classes is None and not self.owned)
            )
            return (*found, *OF_LONG_STREAMS) if self.owned else found
        return CELLS


def cells_with_people(point: Point, settings: StreamSettings, seed: int) -> Iterator[tuple[Cell, list[PseudoPerson]]]:
    """Each cell with its test people: the same for every method. Cells for which photos do not suffice are left out."""
    for number, cell in enumerate(point.cells()):
        if settings.cells and cell.name not in settings.cells:
            continue
        targets = settings.targets if cell.order == "iid" else settings.targets // 3
        people = point.people("test", cell, settings.people, targets, 100 * seed + number)
        if len(people) >= FEWEST:
            yield cell, people
        else:
            say(f"{cell.name} is left out: photos suffice for {len(people)} people only")


def prepare(settings: StreamSettings, run: Path, data: str, encoder: str, seed: int) -> Point:
    """Features, the plain classifier and its calibration of one point."""
    if data == GLYPHS:
        return _glyphs(settings, run, seed)
    file, parent = DATA[data]
    table = load_photos(Path(settings.source) / file, domain_column="", parent_column=parent)
    table = first_of_each_class(table, settings.photos_per_class) if settings.photos_per_class else table
    cache = extract(published_backbone(ENCODERS[encoder], settings.source), table, run / "features")
    cache = replace(cache, table=replace(table, split=draw_split(table, seed)))
    plain = _plain(cache, run / "plain" / f"{Path(file).stem}-{encoder}-{seed}.npz", seed)
    return _point(cache, plain, _groups(cache.table) if parent else None, owned=False)


def first_of_each_class(table: PhotoTable, most: int) -> PhotoTable:
    """The first so many training photos and the first so many test photos of each class."""
    kept, seen = np.zeros(len(table), dtype=bool), dict[tuple[int, bool], int]()
    for row, key in enumerate(zip(table.label.tolist(), (table.split == "test").tolist(), strict=True)):
        seen[key] = seen.get(key, 0) + 1
        kept[row] = seen[key] <= most
    return table.rows(kept)


def draw_split(table: PhotoTable, seed: int) -> np.ndarray:
    """(R,) test as the photos say; of the others, a quarter of each class is for validation, others for each seed."""
    rng = np.random.default_rng(seed)
    split = np.where(table.split == "test", "test", "train").astype("<U10")
    for number in range(len(table.classes)):
        rows = rng.permutation(np.flatnonzero((table.label == number) & (split == "train")))
        split[rows[: len(rows) // 4]] = "validation"
    return split


def _glyphs(settings: StreamSettings, run: Path, seed: int) -> Point:
    """Writers of glyphs; those who are judged have photos for the longest history."""
    long = max(cell.history for cell in (*OF_LONG_STREAMS, BASE) if not settings.cells or cell.name in settings.cells)
    few = glyphs(_ENCODER_SEED + 1 + seed, {"train": _TAUGHT, "validation": _CHECKED}, _PHOTOS)
    many = glyphs(_ENCODER_SEED + 101 + seed, {"test": settings.writers}, long + 2 * settings.targets + 64)
    backbone = _glyph_encoder(run)
    parts = [extract(backbone, table, run / "features") for table in (few, many)]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part.table, name) for part in parts])
        for name in ("photo", "label", "client", "domain", "parent", "split")
    }
    columns["client"] = np.char.add(columns["client"], np.repeat(["", " judged"], [len(few), len(many)]))
    table = replace(few, **columns)
    features = np.concatenate([np.asarray(part.features) for part in parts])
    cache = FeatureCache(table, features, f"{parts[0].key}+{parts[1].key}", np.arange(len(table)))
    plain = _plain(cache, run / "plain" / f"{GLYPHS}-{seed}.npz", seed)
    return _point(cache, plain, None, owned=True)


def _glyph_encoder(run: Path) -> Backbone:
    path = run / "glyph-encoder.safetensors"
    if not path.with_suffix(".json").exists():
        table = glyphs(_ENCODER_SEED, {"train": _ENCODER_WRITERS}, _PHOTOS)
        made = train_encoder(table, EncoderRecipe(), GLYPH_BACKBONE)
        card = Card(builder="timm_encoder", config=made.card_config(classes=len(table.classes)), labels=table.classes)
        save_checkpoint(path, made.network.state_dict(), card)
    return backbone_of(load_checkpoint(path))


def _plain(cache: FeatureCache, path: Path, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Weight (C, D), bias (C,) and L2 penalty of the plain classifier; made once."""

    def fitted() -> dict[str, Any]:
        torch.manual_seed(seed)
        plain = fit_plain_classifier(cache.of_split("train"), cache.of_split("validation"))
        return {"weight": plain.layer.weight.detach(), "bias": plain.layer.bias.detach(), "l2": plain.l2}

    kept = once(path, fitted)
    return kept["weight"], kept["bias"], float(kept["l2"])


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
    """Class sets of the parent categories that have at least two classes."""
    sets = (np.unique(table.label[table.parent == name]) for name in np.unique(table.parent))
    return tuple(classes for classes in sets if len(classes) > 1)


def of_all_points(
    settings: StreamSettings, run: Path, folder: str, make: Callable[..., dict[str, Any]], seeds: Sequence[int]
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What ``make`` gives of each set and encoder, by seed; computed once each, in ``RUN/FOLDER``.

    Raises:
        UsageError: an unknown name, or a run with other settings.
        DataError: a photo set or weights are not there.
    """
    for names, known in ((settings.data, DATA), (settings.encoders, ENCODERS)):
        unknown = set(names) - set(known)
        if unknown:
            raise UsageError(f"study: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
    if not settings.source and set(settings.data) != {GLYPHS}:
        raise UsageError("name the folder of photo sets and weights with --data")
    (run / folder).mkdir(parents=True, exist_ok=True)
    fixed = replace(settings, source="", data=(), encoders=(), heads=())  # whatever else differs makes other points
    if not (run / SETTINGS).exists():
        save_settings(run / SETTINGS, fixed)
    settings_of(run / SETTINGS, fixed, StreamSettings, "a run of streams")
    same_inputs(run, _inputs(settings), made=[run / folder])
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed in seeds:  # what is stopped half-way has a whole seed rather than a whole data set
        for data, encoder in pairs(settings):
            path, what = run / folder / f"{data}-{encoder}-{seed}.json", f"{data}, {encoder}, seed {seed}"
            compute = partial(_with_form, make, settings, run, data, encoder, seed)
            made = once(path, compute, what)
            if made.get("form") != FORM:
                say(f"{path} is of an earlier version and is computed again")
                path.unlink()
                made = once(path, compute, what)
            found.setdefault((data, encoder), []).append(made)
    return found


def _with_form(make: Callable[..., dict[str, Any]], *about: Any) -> dict[str, Any]:
    return {"form": FORM, **make(*about)}


def _inputs(settings: StreamSettings) -> dict[str, str]:
    """Digests of the photo sets and weights that points are made of: their names alone do not tell them apart."""
    source = Path(settings.source)
    files = [source / DATA[data][0] for data, encoder in pairs(settings) if data != GLYPHS]
    files += [source / "weights" / f"{ENCODERS[name].weights}.safetensors" for name in settings.encoders if files]
    return {path.relative_to(source).as_posix(): file_sha256(path) for path in files if path.is_file()}


def pairs(settings: StreamSettings) -> list[tuple[str, str]]:
    """Sets with their encoders."""
    photos = [name for name in settings.data if name != GLYPHS]
    drawn = [(GLYPHS, GLYPH_ENCODER)] if GLYPHS in settings.data else []
    return [*itertools.product(photos, settings.encoders), *drawn]
