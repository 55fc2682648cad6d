"""Points of the camera-roll protocol.

A point is a known and some unknown photo sets, an encoder, a condition, a part and a seed.
Hashes fix which classes are deleted and which photos confirm, before anything is evaluated:

- The classes of the known set are ordered by the SHA-256 of their name. The part "development" deletes the first half
  of them from the classifier, the part "confirmation" the second half, so that no class is known in both.
- The first hexadecimal digit of the SHA-256 of a photo's name is its part: 0 to 7 development, 8 to f confirmation.

The classifier is trained on training photos of all classes. Then the rows of the deleted classes are removed, and the
temperature is fitted on validation photos of the classes that are left. The encoder may have seen photos of the
deleted classes, and of the other sets, when it was pre-trained.

    RUN/features/KEY/       features, see :mod:`refocus.cloud_train.backbones.feature_cache`
    RUN/cache/KEY.npz       plain classifier of a point, of all classes
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from refocus.cloud_train.backbones.backbone import Backbone
from refocus.cloud_train.backbones.feature_cache import FeatureCache, extract
from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.methods.iciia.delivery import calibrate
from refocus.cloud_train.methods.iciia.plain_classifier import fit_plain_classifier
from refocus.cloud_train.progress import say
from studies.experiment import Needs
from studies.streams.rivals.method import Knowledge, unit
from studies.streams.rolls.dealing import BURST, Person
from studies.streams.rolls.drawn import drawn_photos, near_copies

PARTS = ("development", "confirmation")
CONDITIONS = ("same", "shifted")
DELETED, OTHER, GENERATED = "deleted classes", "other photos", "generated"
KINDS = (DELETED, OTHER, GENERATED)
CODE = (  # modules that every point depends on
    "refocus.cloud_train.backbones.feature_cache",
    "refocus.cloud_train.data.imagefolder",
    "refocus.cloud_train.methods.iciia.delivery",
    "refocus.cloud_train.methods.iciia.plain_classifier",
    "studies.streams.rivals.method",
    "studies.streams.rolls.dealing",
    "studies.streams.rolls.drawn",
    "studies.streams.rolls.points",
)
_VALIDATION = 4  # one of this number of training photos of a class is a validation photo


@dataclass(frozen=True)
class Sets:
    """Photo sets of a point.

    Attributes:
        known: zip file or folder with the photos that the classifier is trained on.
        unknown: zip files or folders with photos of other classes.
        resplit: whether hashes divide the known set into training photos and photos of people, instead of its column
            ``split``; that column is ignored too if it names no test photos.
    """

    known: Path
    unknown: tuple[Path, ...] = ()
    resplit: bool = False


@dataclass(frozen=True)
class Limits:
    """Numbers of photos that are extracted.

    Attributes:
        photos_per_class: maximum number of training photos of a class, and of photos of people in each part.
        unknown_photos: maximum number of photos of each other set, in each part.
        generated: number of generated photos of both parts.
        deleted: part of the classes that is deleted.
    """

    photos_per_class: int = 60
    unknown_photos: int = 400
    generated: int = 256
    deleted: float = 0.5


@dataclass(frozen=True)
class RollPoint:
    """Classifier, and the photos that are dealt to people.

    Attributes:
        knowledge: classifier of the known classes, its calibration and statistics of its training photos.
        features: features of the photos, (R, D).
        logits: logits of the plain classifier, (R, C).
        label: classes, (R,); -1: unknown.
        pools: rows of the unknown photos of each kind.
        subject: numbers of the classes that the photos have in their own sets, (R,).
        names: name of each photo, (R,), which begins with its set.
        classes: names of the known classes, (C,).
        facts: facts that the results document states.
        near: function that returns the features of near-copies of photos, (n, BURST - 1, D), for rows (n,); None: a
            burst is the same photo several times.
    """

    knowledge: Knowledge
    features: np.ndarray
    logits: np.ndarray
    label: np.ndarray
    pools: Mapping[str, np.ndarray]
    subject: np.ndarray
    names: np.ndarray
    classes: tuple[str, ...]
    facts: Mapping[str, Any]
    near: Callable[[np.ndarray], np.ndarray] | None = None


def with_near_copies(point: RollPoint, people: Sequence[Person]) -> tuple[RollPoint, list[Person]]:
    """Replace repeated photos of bursts by near-copies.

    Returns:
        The point with the near-copies as further photos, and the people with histories that name them.
    """
    if point.near is None:
        return point, [*people]
    rows = np.unique(np.concatenate([person.history for person in people]))
    features = point.near(rows).reshape(-1, point.features.shape[1])
    logits = features @ point.knowledge.weight.T + point.knowledge.bias
    label, histories = np.repeat(point.label[rows], BURST - 1), list[np.ndarray]()
    for person in people:
        first = person.history[::BURST]
        copies = len(point.label) + (BURST - 1) * np.searchsorted(rows, first)
        burst = np.column_stack([first, *(copies + number for number in range(BURST - 1))]).ravel()
        histories.append(burst[: len(person.history)])
    more = replace(
        point,
        features=np.concatenate([point.features, features]),
        logits=np.concatenate([point.logits, logits]),
        label=np.concatenate([point.label, label]),
    )
    return more, [replace(person, history=of) for person, of in zip(people, histories, strict=True)]


def part_of(name: str) -> str:
    """Return the part of a photo: development or confirmation."""
    return PARTS[int(_digest(name)[0], 16) // 8]


def deleted_classes(classes: Sequence[str], part: str, share: float = 0.5) -> list[str]:
    """Return the names of the classes that a part deletes."""
    ordered = sorted(classes, key=_digest)
    number = round(share * len(ordered))
    return ordered[:number] if part == PARTS[0] else ordered[len(ordered) - number :]


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def point_needs(sets: Sets, limits: Limits, weights: Path) -> Needs:
    """Return what the photos and the classifier of a point depend on."""
    files, folders = {"weights": weights}, {}
    for name, path in {"known": sets.known, **{f"unknown {n}": path for n, path in enumerate(sets.unknown)}}.items():
        if path.is_dir():
            folders[name] = _folder_digest(path)
        else:
            files[name] = path
    settings = {"folders": folders, "resplit": sets.resplit, **vars(limits)}
    return Needs(settings, files, CODE)


@functools.cache
def _folder_digest(folder: Path) -> str:
    table = _photos(folder)
    return _digest("\0".join(f"{name}\0{table.stamp(name)}" for name in table.photo.tolist()) + table.fingerprint())


@functools.lru_cache(maxsize=8)
def _photos(path: Path) -> PhotoTable:
    """Read the photos of a set, with readable class names if it has them."""
    try:
        return load_photos(path, label_column="class_name")
    except DataError:
        return load_photos(path)


def words_of(name: str) -> frozenset[str]:
    """Return the words of a class name, in lower case."""
    return frozenset(re.findall(r"[^\W\d_]+", name.lower()))


def is_named_alike(name: str, other: str) -> bool:
    """Return whether two class names may mean the same thing.

    They may if all words of one name, or of one of its synonyms, are words of the other: "bottle" and "beer bottle".
    """
    for one in name.split(","):
        for two in other.split(","):
            first, second = words_of(one), words_of(two)
            joined = ["".join(re.findall(r"[^\W\d_]+", text.lower())) for text in (one, two)]
            if joined[0] == joined[1] or (first and second and (first <= second or second <= first)):
                return True
    return False


def with_roles(table: PhotoTable, resplit: bool, condition: str, domain: str = "") -> PhotoTable:
    """Return the table with the splits train, validation and test.

    Photos of people are test photos. In the condition "shifted" the classifier is trained on one domain and people
    have photos of the other domains.

    Args:
        table: photos of a known set.
        resplit: whether hashes divide the photos, and not the column ``split``.
        condition: "same" or "shifted".
        domain: domain of the training photos where the condition is "shifted".
    """
    digests = [_digest(f"role {name}") for name in table.photo.tolist()]
    is_test = table.split == "test"
    if resplit or not is_test.any() or is_test.all():
        is_test = np.array([int(digest[0], 16) < 8 for digest in digests])
    split = np.where(is_test, "test", "train").astype("<U10")
    if condition == "shifted":
        split = np.where(table.domain != domain, "test", np.where(is_test, "", "train")).astype("<U10")
    return replace(table, split=split)


def main_domain(table: PhotoTable) -> str:
    """Return the domain with most photos; "" if there are not two."""
    names, counts = np.unique(table.domain, return_counts=True)
    return str(names[counts.argmax()]) if len(names) > 1 else ""


def limited(table: PhotoTable, most: int, by_class: bool = True) -> PhotoTable:
    """Return photos of each class and split, up to a number, by hash."""
    order = sorted(range(len(table)), key=lambda row: _digest(str(table.photo[row])))
    kept, seen = [], dict[tuple[int, str], int]()
    for row in order:
        key = (int(table.label[row]) if by_class else 0, str(table.split[row]))
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= most:
            kept.append(row)
    return table.rows(np.array(sorted(kept), dtype=int))


def prepare_point(
    sets: Sets,
    limits: Limits,
    encoder: Callable[[], Backbone],
    where: tuple[str, str, int],
    folder: Path,
    fitted: Callable[[Callable[[], dict[str, Any]]], Any],
) -> RollPoint | None:
    """Compute the features and the classifier of a point.

    Args:
        sets: photo sets.
        limits: numbers of photos.
        encoder: function that loads the encoder.
        where: condition, part and seed; the seed draws the validation photos.
        folder: folder of the features.
        fitted: function that returns a plain classifier: a stored one, or the one that its argument computes.

    Returns:
        The point; None if the condition is "shifted" and the known set has no domains.
    """
    condition, part, seed = where
    whole = _photos(sets.known)
    domain = main_domain(whole)
    if condition == "shifted" and not domain:
        say(f"{sets.known.name} has no column domain with two domains; the condition shifted is skipped")
        return None
    backbone = encoder()
    table = with_roles(whole, sets.resplit, condition, domain)
    table = table.rows((table.split == "train") | ((table.split == "test") & of_part(table, part)))
    bank = extract(backbone, limited(table, limits.photos_per_class), folder)
    bank = replace(bank, table=replace(bank.table, split=_with_validation(bank.table, seed)))
    weight, bias = fitted(lambda: _fit(bank, seed))
    deleted = deleted_classes(whole.classes, part, limits.deleted)
    left = np.array([number for number, name in enumerate(whole.classes) if name not in deleted])
    number_of = np.full(len(whole.classes), -1)
    number_of[left] = np.arange(len(left))
    knowledge = _knowledge(bank, weight[left], bias[left], number_of)
    people, drawn = bank.of_split("test"), drawn_photos(limits.generated)
    tables = {f"{OTHER} {path.name}": _other_photos(path, whole.classes, part, limits) for path in sets.unknown}
    tables[GENERATED] = drawn.rows(of_part(drawn, part))
    banks = {name: extract(backbone, table, folder) for name, table in tables.items() if len(table)}
    classes = tuple(whole.classes[number] for number in left)
    facts = {"deleted": deleted, "trained_on": domain if condition == "shifted" else ""}
    label = number_of[people.table.label]
    banks = {f"{DELETED} {sets.known.name}": people, **banks}
    near = functools.partial(_near, backbone, [*banks.values()], folder)
    return replace(_point(knowledge, banks, label, classes, facts), near=near)


def _near(backbone: Backbone, banks: Sequence[FeatureCache], folder: Path, rows: np.ndarray) -> np.ndarray:
    """Return the features of near-copies, (n, BURST - 1, D), of rows (n,)."""
    ends, found = np.cumsum([len(bank.table) for bank in banks]), list[np.ndarray]()
    for bank, end in zip(banks, ends.tolist(), strict=True):
        own = rows[(rows >= end - len(bank.table)) & (rows < end)] - (end - len(bank.table))
        if len(own):
            found.append(extract(backbone, near_copies(bank.table.rows(own), BURST - 1), folder).take())
    return np.concatenate(found).astype(np.float32).reshape(len(rows), BURST - 1, -1)


def _point(
    knowledge: Knowledge,
    banks: Mapping[str, FeatureCache],
    label: np.ndarray,
    classes: tuple[str, ...],
    facts: Mapping[str, Any],
) -> RollPoint:
    """Return a point of several sets of photos.

    Args:
        knowledge: classifier and its calibration.
        banks: features of each set, whose name begins with the kind of its unknown photos; the known set comes first.
        label: classes of the photos of the first set, -1: unknown.
        classes: names of the known classes, (C,).
        facts: further facts.
    """
    features = np.concatenate([bank.take() for bank in banks.values()]).astype(np.float32)
    label = np.concatenate([label, np.full(len(features) - len(label), -1)])
    of_set = np.concatenate([np.full(len(bank.table), name) for name, bank in banks.items()])
    unknown = {kind: np.flatnonzero((label < 0) & np.char.startswith(of_set, kind)) for kind in KINDS}
    pools = {kind: rows for kind, rows in unknown.items() if len(rows)}
    names = np.array([f"{name}/{photo}" for name, bank in banks.items() for photo in bank.table.photo.tolist()])
    ends = np.cumsum([len(bank.table.classes) for bank in banks.values()])
    firsts = ends - [len(bank.table.classes) for bank in banks.values()]
    subject = np.concatenate([f + bank.table.label for f, bank in zip(firsts, banks.values(), strict=True)])
    logits = features @ knowledge.weight.T + knowledge.bias
    known = label >= 0
    of_point = {
        "temperature": knowledge.temperature,
        "accuracy": float((logits[known].argmax(1) == label[known]).mean()) if known.any() else None,
        "classes": len(classes),
        "known_photos": int(known.sum()),
        "unknown_photos": {name: len(rows) for name, rows in pools.items()},
    }
    return RollPoint(knowledge, features, logits, label, pools, subject, names, classes, {**of_point, **facts})


def of_part(table: PhotoTable, part: str) -> np.ndarray:
    """Return whether each photo belongs to a part, (R,)."""
    return np.array([part_of(name) == part for name in table.photo.tolist()], dtype=bool)


def _with_validation(table: PhotoTable, seed: int) -> np.ndarray:
    """Return the splits, with validation photos drawn from each class."""
    rng, split = np.random.default_rng(seed), table.split.copy()
    for number in range(len(table.classes)):
        rows = rng.permutation(np.flatnonzero((table.label == number) & (split == "train")))
        split[rows[: len(rows) // _VALIDATION]] = "validation"
    return split


def _fit(bank: FeatureCache, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    plain = fit_plain_classifier(bank.of_split("train"), bank.of_split("validation"))
    return {"weight": plain.layer.weight.detach(), "bias": plain.layer.bias.detach()}


def _knowledge(bank: FeatureCache, weight: np.ndarray, bias: np.ndarray, number_of: np.ndarray) -> Knowledge:
    """Return what methods may know of the classes that are left.

    Args:
        bank: features of all training and validation photos.
        weight: weight of the classifier, (C, D).
        bias: bias of the classifier, (C,).
        number_of: number of each class of the set among the C classes; -1: deleted.
    """
    parts = {}
    for name in ("train", "validation"):
        part = bank.of_split(name)
        label = number_of[part.table.label]
        parts[name] = part.take()[label >= 0], label[label >= 0]
    (train, label), (held, of_held) = parts["train"], parts["validation"]
    lengths, seen = unit(train), np.bincount(label, minlength=len(bias))
    means = np.stack([lengths[label == c].mean(0) if seen[c] else unit(weight[c]) for c in range(len(bias))])
    variance = ((lengths - means[label]) ** 2).mean(0)
    logits = held @ weight.T + bias
    lengths = np.linalg.norm(held, axis=1)
    return Knowledge(calibrate(logits, of_held), seen / len(label), weight, bias, means, variance, logits, lengths)


def _other_photos(path: Path, classes: Sequence[str], part: str, limits: Limits) -> PhotoTable:
    """Return photos of another set, without classes named like known ones."""
    table = _photos(path)
    unlike = np.array([not any(is_named_alike(name, known) for known in classes) for name in table.classes])
    if not unlike.all():
        dropped = [name for name, kept in zip(table.classes, unlike.tolist(), strict=True) if not kept]
        say(f"{path.name}: {len(dropped)} classes are named like known ones and left out: {', '.join(dropped)}")
    own = of_part(table, part)
    is_test = table.split == "test"
    own &= is_test if is_test.any() else True
    return limited(table.rows(own & unlike[table.label]), limits.unknown_photos, by_class=False)
