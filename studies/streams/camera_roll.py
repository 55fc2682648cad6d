"""Camera-roll protocol: personalisation among unknown photos.

Unknown photos show none of the network's classes. Every person has a history, in which known and unknown photos are
mixed, and targets of both kinds, which are answered without being learned. :mod:`studies.streams.rolls.dealing` deals
the rolls; :mod:`studies.streams.rolls.points` describes sets, deleted classes and parts. Each cell has two rows for a
method: known and unknown targets.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.progress import say
from refocus.cloud_train.settings import Count, FilePath, Share
from refocus.edge.recognize import ShareSettings
from studies.encoders import ENCODERS, published_backbone, weights_file
from studies.experiment import Cache, Cell, Experiment, ExperimentPage, Group, Needs, Row, Study, shown_of
from studies.streams.judging import calibration_error
from studies.streams.points import FEWEST, check_axis
from studies.streams.rivals.em_shares import EmMethod, EmSettings
from studies.streams.rivals.method import Knowledge, KnownClasses, Original, StreamMethod, softmax
from studies.streams.rivals.shares import BurstsOnceMethod, SharesMethod
from studies.streams.rolls.dealing import MIXED, REPEATED, ROLLS, Person, Roll, deal_rolls
from studies.streams.rolls.marking import Scores, marking_gain
from studies.streams.rolls.points import (
    CONDITIONS,
    KINDS,
    PARTS,
    Limits,
    RollPoint,
    Sets,
    point_needs,
    prepare_point,
    with_near_copies,
)

OWN = "own"  # the set of the setting ``known``
# Name -> file, and whether its photos are divided by hashes: the test photos of Office-31 are too few for two parts.
DATA = {
    "office-31": ("office-31.zip", True),
    "grocery-store": ("grocery-store.zip", False),
    "tiny-imagenet": ("tiny-imagenet-subset.zip", False),
}
PLAIN, KNOWN, CONTROL = "plain", "known classes", "majority control"
BURSTS_ONCE = "bursts once"
CHOICES = ("support 0.05", "support 0.3", "support 0.5", "elsewhere 0.4", "elsewhere 0.6")  # shares with other settings
METHODS = (PLAIN, "shares", "em", "em, unbounded", CONTROL, KNOWN, BURSTS_ONCE, *CHOICES)
LOSS = 0.02  # people whose accuracy falls by more are counted
CODE = ("studies.streams.camera_roll",)
_SHARES_CODE = (
    "refocus.edge.recognize.class_shares",
    "refocus.edge.recognize.rejection",
    "studies.streams.rivals.shares",
)
CODE_OF = {
    **dict.fromkeys(("shares", BURSTS_ONCE, *CHOICES), _SHARES_CODE),
    "em": ("studies.streams.rivals.em_shares",),
    "em, unbounded": ("studies.streams.rivals.em_shares",),
}


@dataclass(frozen=True)
class RollSettings:
    """Photo sets and numbers of the camera-roll protocol.

    Attributes:
        source: folder of the default photo sets, with ``weights/``.
        known: zip file or folder of the known photos of the set "own", with a metadata file or a folder per class.
        unknown: comma-separated zip files or folders of unknown photos; default: the other default sets, and none for
            the set "own".
        people: maximum number of people per cell and seed.
        targets: number of known targets of a person, and of unknown ones.
        photos_per_class: maximum number of training photos per class, and of photos that are dealt in each part.
        unknown_photos: maximum number of photos of each unknown set, in each part.
        generated: number of generated photos.
        deleted: part of the classes that is deleted from the classifier.
        shares: settings of class shares, apart from what each point calibrates.
        em: settings of the EM of class shares, likewise.
    """

    source: FilePath = ""
    known: str = ""
    unknown: str = ""
    people: Count = 200
    targets: Count = 24
    photos_per_class: Count = 60
    unknown_photos: Count = 400
    generated: Count = 256
    deleted: Share = 0.5
    shares: ShareSettings = field(default_factory=ShareSettings)
    em: EmSettings = field(default_factory=EmSettings)

    def limits(self) -> Limits:
        """Return the numbers of photos of a point."""
        return Limits(self.photos_per_class, self.unknown_photos, self.generated, self.deleted)

    def sets(self, data: str) -> Sets:
        """Return the photo sets of a value of the axis ``data``.

        Raises:
            UsageError: the set "own" is wanted and not given.
        """
        given = tuple(Path(text.strip()) for text in self.unknown.split(",") if text.strip())
        if data == OWN:
            if not self.known:
                raise UsageError('data = "own" needs a photo set: --known A.zip')
            return Sets(Path(self.known), given)
        source, (file, resplit) = Path(self.source), DATA[data]
        others = tuple(source / other for name, (other, _) in DATA.items() if name != data)
        return Sets(source / file, given or others, resplit)


@dataclass(frozen=True)
class RollGrid:
    """Name what the camera-roll protocol evaluates.

    Attributes:
        data: names of known photo sets; "own": that of the setting ``known``.
        encoder: names of encoders.
        part: "development" or "confirmation"; they share no photos of people, and no class is known in both.
        condition: "same": people have photos as in training; "shifted": of other domains than in training.
        classes: number of a person's own classes; a set with fewer known classes has no such cell.
        unknown: share of unknown photos in the history.
        unknown_kind: kind of the unknown photos; "mixed": equally many of each kind that exists;
            "repeated": the same, of few subjects.
        roll: content of the known photos, see :class:`studies.streams.rolls.dealing.Roll`.
        history: number of known photos in the history; unknown ones are added.
        confidence: factor of the fitted temperature; above 1, the classifier that is used is too unsure.
        method: names of methods.
    """

    data: tuple[str, ...] = tuple(DATA)
    encoder: tuple[str, ...] = tuple(ENCODERS)
    part: tuple[str, ...] = PARTS[:1]
    condition: tuple[str, ...] = CONDITIONS
    classes: tuple[Count, ...] = (4, 15, 60, 200)
    unknown: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7)
    unknown_kind: tuple[str, ...] = (MIXED, REPEATED, *KINDS)
    roll: tuple[str, ...] = ROLLS
    history: tuple[int, ...] = (15, 63)
    confidence: tuple[float, ...] = (1.0, 0.33, 0.5, 1.5, 2.0, 3.0)
    method: tuple[str, ...] = METHODS

    def __post_init__(self) -> None:
        check_axis("data", self.data, (*DATA, OWN))
        check_axis("encoder", self.encoder, ENCODERS)
        check_axis("part", self.part, PARTS)
        check_axis("condition", self.condition, CONDITIONS)
        check_axis("unknown_kind", self.unknown_kind, (MIXED, REPEATED, *KINDS))
        check_axis("roll", self.roll, ROLLS)
        check_axis("method", self.method, METHODS)
        if not all(0 <= share < 1 for share in self.unknown) or min(self.confidence) <= 0 or min(self.history) < 0:
            raise UsageError("unknown: from 0 to below 1; confidence: above 0; history: at least 0")


class OtherPerson(Original):
    """Class prior of another person's true labels, which must fail."""

    def __init__(self, knowledge: Knowledge, labels: np.ndarray) -> None:
        super().__init__(knowledge)
        counts, base = np.bincount(labels, minlength=len(knowledge.base)), np.maximum(knowledge.base, 1e-6)
        self._shift = np.log((counts + 4 * base) / (len(labels) + 4) / base)

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities (C,) of a photo."""
        return softmax(logits / self._temperature + self._shift)


def needs(settings: RollSettings, cell: Cell) -> Needs:
    """Return what the answers of a cell's method depend on."""
    method = str(cell["method"])
    used: dict[str, Any] = {"people": settings.people, "targets": settings.targets}
    if method in ("shares", BURSTS_ONCE):
        used["shares"] = asdict(settings.shares)
    elif method.startswith("em"):
        used["em"] = asdict(settings.em)
    return _point_needs(settings, cell) | Needs(used, {}, (*CODE, *CODE_OF.get(method, ())))


def _point_needs(settings: RollSettings, cell: Cell) -> Needs:
    weights = weights_file(ENCODERS[str(cell["encoder"])], settings.source)
    return point_needs(settings.sets(str(cell["data"])), settings.limits(), weights)


@functools.lru_cache(maxsize=2)
def prepare(
    settings: RollSettings, cache: Cache, data: str, encoder: str, where: tuple[str, str, int]
) -> RollPoint | None:
    """Compute the photos and the classifier of a point.

    Args:
        settings: photo sets and numbers of photos.
        cache: cache of the run.
        data: name of the known photo set.
        encoder: name of the encoder.
        where: condition, part and seed.
    """
    of_point = _point_needs(settings, {"data": data, "encoder": encoder})

    def fitted(fit: Any) -> Any:
        what = {"result": "plain of rolls", "where": [*where]}
        return cache.once(what, of_point, fit, ".npz", lambda kept: (kept["weight"], kept["bias"]))

    load = functools.partial(published_backbone, ENCODERS[encoder], settings.source)
    return prepare_point(settings.sets(data), settings.limits(), load, where, cache.run / "features", fitted)


def evaluate_cell(settings: RollSettings, cell: Cell, seed: int, cache: Cache) -> list[Row]:
    """Return the answers of a cell's method to known and to unknown targets.

    There are none if the set has too few classes, photos or domains.
    """
    data, encoder, method = str(cell["data"]), str(cell["encoder"]), str(cell["method"])
    point = prepare(settings, cache, data, encoder, (str(cell["condition"]), str(cell["part"]), seed))
    if point is None:
        return []
    roll = Roll(
        int(cell["classes"]), float(cell["unknown"]), str(cell["unknown_kind"]), str(cell["roll"]), int(cell["history"])
    )
    people = deal_rolls(point.label, point.pools, point.subject, roll, settings.people, settings.targets, seed)
    if len(people) < min(FEWEST, settings.people):
        if method == PLAIN:
            photos = f"{len(point.classes)} known classes have photos for {len(people)} people"
            say(f"{data}, {cell_title(cell)}: skipped, {photos}")
        return []
    if roll.roll == "bursts":
        point, people = with_near_copies(point, people)
    knowledge = replace(point.knowledge, temperature=point.knowledge.temperature * float(cell["confidence"]))
    answered = [
        _answers(_method(method, knowledge, settings, point, people, number), point, person, knowledge.temperature)
        for number, person in enumerate(people)
    ]
    return [*_rows(method, point, people, answered, softmax(point.logits / knowledge.temperature))]


def _rows(
    method: str,
    point: RollPoint,
    people: Sequence[Person],
    answered: Sequence[Mapping[str, Mapping[str, np.ndarray]]],
    plain: np.ndarray,
) -> Iterator[Row]:
    """Yield the rows of known and of unknown targets.

    Args:
        method: name of the method.
        point: labels of the photos.
        people: photos of the people.
        answered: answers to known and to unknown targets of each person.
        plain: probabilities of the plain classifier for all photos, (R, C).
    """
    for photos in ("known", "unknown"):
        asked = [getattr(person, photos) for person in people]
        if len(asked[0]):
            values = {name: np.concatenate([found[photos][name] for found in answered]) for name in answered[0][photos]}
            person, facts = np.repeat(np.arange(len(people)), [*map(len, asked)]), dict[str, Any]()
            if (method, photos) == (PLAIN, "known"):
                facts["point"] = point.facts
            photo = np.concatenate(asked)
            yield Row({"photos": photos}, person, photo, _values(values, point, photo, plain), facts)


def _method(
    name: str, knowledge: Knowledge, settings: RollSettings, point: RollPoint, people: Sequence[Person], number: int
) -> StreamMethod:
    """Return a new method for a person."""
    if name == "shares":
        return SharesMethod(knowledge, settings.shares)
    if name == BURSTS_ONCE:
        return BurstsOnceMethod(knowledge, settings.shares)
    if name in CHOICES:
        setting, value = name.split()
        changed: dict[str, Any] = {setting: float(value)}
        return SharesMethod(knowledge, replace(settings.shares, **changed))
    if name == KNOWN:
        return KnownClasses(knowledge, people[number].classes)
    if name == CONTROL:
        labels = point.label[people[(number + 1) % len(people)].history]
        return OtherPerson(knowledge, labels[labels >= 0])
    if name == PLAIN:
        return Original(knowledge)
    return EmMethod(knowledge, settings.em if name == "em" else replace(settings.em, support=0.0))


def _answers(
    method: StreamMethod, point: RollPoint, person: Person, temperature: float
) -> dict[str, dict[str, np.ndarray]]:
    """Return labels, displayed confidences and scores of the targets."""
    for row in person.history.tolist():
        method.observe(point.features[row], point.logits[row])
    found: dict[str, dict[str, np.ndarray]] = {}
    for photos in ("known", "unknown"):
        rows = getattr(person, photos)
        answers = [method.answer(point.features[row], point.logits[row]) for row in rows.tolist()]
        probability = np.array(answers).reshape(len(answers), len(point.classes))
        label, alone = probability.argmax(1), softmax(point.logits[rows] / temperature)
        shown = (probability.max(1) + np.take_along_axis(alone, label[:, None], 1)[:, 0]) / 2  # Answer.confidence
        score = point.logits[rows].max(1) / np.linalg.norm(point.features[rows], axis=1)  # Answer.known_score
        found[photos] = {"answer": label, "confidence": shown, "known_score": score}
    return found


def _values(
    found: dict[str, np.ndarray], point: RollPoint, photo: np.ndarray, plain: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the measures of answers to known or to unknown targets.

    Args:
        found: label, confidence and score of each answer, (n,) each.
        point: labels of the photos.
        photo: photo of each answer, (n,).
        plain: probabilities of the plain classifier for all photos, (R, C).
    """
    answer, label, alone = found.pop("answer"), point.label[photo], plain[photo]
    before = alone.argmax(1)
    values = {**found, "plain_confidence": alone.max(1)}
    if (label < 0).all():
        return {"changed": (answer != before).astype(int), **values}
    correct, was = answer == label, before == label
    flags = {"accuracy": correct, "lost": was & ~correct, "gained": correct & ~was, "plain_correct": was}
    return {**{name: of.astype(int) for name, of in flags.items()}, **values}


# ---- the document


def document(experiment: Experiment, cache: Cache, groups: list[Group]) -> dict[str, Any]:
    """Return the document's fields: rows, points and settings.

    A row has known and unknown targets. The rows with the least gain come first.

    Raises:
        UsageError: a cell lacks the plain classifier to compare with.
    """
    by_name = {tuple(group.labels.values()): group for group in groups}
    rows, points = [], dict[tuple[Any, ...], dict[str, Any]]()
    for group in groups:
        *labels, photos = group.labels.values()
        if photos != "known":
            continue
        if "gain" not in group.record:
            raise UsageError(f"the study needs the method {PLAIN} in each cell, and the comparison gain")
        for row in group.rows:
            if "point" in row.facts:
                where = {name: row.labels[name] for name in ("data", "encoder", "part", "condition", "seed")}
                points[tuple(where.values())] = where | row.facts["point"]
        rows.append(_record(group, by_name.get((*labels, "unknown"))))
    rows.sort(key=lambda row: (row["method"] in (CONTROL, KNOWN), row["gain"]["mean"]))
    settings = experiment.settings
    stated = {name: getattr(settings, name) for name in ("people", "targets", "photos_per_class", "unknown_photos")}
    more = {"shares": asdict(settings.shares), "em": asdict(settings.em)}
    return {"rows": rows, "points": [*points.values()], **stated, "settings": more}


def _record(known: Group, unknown: Group | None) -> dict[str, Any]:
    """Return a row of the document, of one method in one cell."""
    gain = known.by_person(known.values() - known.values("plain_correct"))
    record = {name: value for name, value in known.record.items() if name not in ("photos", "plain_correct")}
    record |= {
        "cell": cell_title(known.labels),
        "plain": float(known.by_person(known.values("plain_correct")).mean()),
        "people_who_lose": float((gain < -LOSS).mean()),
        "ece": calibration_error(known.values(), known.values("confidence")),
        "plain_ece": calibration_error(known.values("plain_correct"), known.values("plain_confidence")),
    }
    return record | _marks(known, unknown) if unknown is not None else record


def _marks(known: Group, unknown: Group) -> dict[str, Any]:
    """Return fields about unknown photos.

    They are changed labels, confidence, and the part that is marked. The score of devices
    (:attr:`refocus.edge.recognize.Answer.known_score`) is compared with the largest probability of the plain
    classifier.
    """
    correct, plain_correct = known.values() > 0, known.values("plain_correct") > 0
    scores = Scores(known.values("known_score"), correct, unknown.values("known_score"))
    plain = Scores(known.values("plain_confidence"), plain_correct, unknown.values("plain_confidence"))
    left = unknown.values("known_score") >= scores.threshold()
    rise = unknown.values("confidence") - unknown.values("plain_confidence")
    fields: dict[str, Any] = {
        "changed": unknown.record["changed"],
        "confidence_unknown": unknown.record["confidence"],
        "plain_confidence_unknown": unknown.record["plain_confidence"],
        "changed_unmarked": float((unknown.values("changed") * left).mean()),
        "confidence_rise_unmarked": float(rise[left].mean()) if left.any() else 0.0,
        "marked_by_plain": plain.marked(),
        "marked_by_score": scores.marked(),
    }
    if known.labels["method"] == "shares":
        fields["marking_gain"] = marking_gain(scores, plain, known.person, unknown.person)
    return fields


BASE: Cell = {
    "classes": 4,
    "unknown": 0.5,
    "unknown_kind": MIXED,
    "roll": "plain",
    "history": 15,
    "confidence": 1.0,
    "condition": "same",
    "part": PARTS[0],
}


def cell_title(cell: Cell) -> str:
    """Return a title of a cell.

    It has the classes, the unknown photos, and the values that differ from the base cell.
    """
    parts = [f"{cell['classes']} classes, {cell['unknown']:.0%} unknown"]
    texts = {
        "unknown_kind": REPEATED if cell["unknown_kind"] == REPEATED else f"only {cell['unknown_kind']}",
        "roll": cell["roll"],
        "history": f"history of {cell['history']}",
        "confidence": f"temperature x {cell['confidence']:g}",
        "condition": cell["condition"],
        "part": cell["part"],
    }
    return ", ".join([*parts, *(str(text) for name, text in texts.items() if cell[name] != BASE[name])])


def _about(document: Mapping[str, Any]) -> str:
    rows = document["rows"]
    people = sorted(row["people"] for row in rows) or [0]
    gains = [row["gain"] for row in rows if row["method"] == "shares"]
    worse = sum(gain["high"] < 0 for gain in gains)
    return (
        f"Class shares are worse than the plain classifier in {worse} of {len(gains)} cells (intervals over people)."
        f" {people[0]} to {people[-1]} people per cell, {document['targets']} known targets of each and as many unknown"
        f" ones, which are answered and not learned. {ABOUT}"
    )


ABOUT = (
    "Half of the classes, chosen by the hash of their names, are deleted from the classifier, and their photos are"
    " unknown. Further unknown photos are of other sets, or generated. The encoders may have seen photos of the deleted"
    " classes and of the other sets when they were pre-trained. A burst is a photo and two near-copies. *lost*: part of"
    " the known targets that only the plain classifier recognises. *people who lose*: part of the people whose accuracy"
    " falls by more than two points. *changed*: part of the unknown targets that get another label than without"
    " personalisation. *marked*: part of the unknown targets with a score below that of 95 % of the correctly answered"
    " known targets. The least gain of class shares comes first."
)
PAGES = {
    name: ExperimentPage.of(shown_of(Path(__file__).with_name(f"{name}.toml")), about=_about)
    for name in ("camera-roll", "camera-roll-choices")
}
STUDY = Study(RollSettings(), RollGrid(), needs, evaluate_cell, document)
