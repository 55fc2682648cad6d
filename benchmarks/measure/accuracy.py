"""How often a bundle is right, person by person: what quantisation costs each of them, not only on average.

Labelled photos are replayed as people's streams through the device's own recogniser, every target over the same
photos. A mean hides who got worse, so the worst tenth of the people and the share made worse stand beside it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import logging
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from refocus.benchmarks.measure.label_sets import collected, figures, joined, right_labels, truths, with_controls
from refocus.benchmarks.measure.statistics import bootstrap_mean, worst_tenth
from refocus.edge.bundle import Accuracy, Bundle, Head, photo_hash, write_manifest
from refocus.edge.errors import RefocusError, RuntimeUnavailable
from refocus.edge.photos import preprocess
from refocus.edge.recognize import Recognizer, head_targets, label_set

SCHEMA = 2  # 1: Refocus 0.1; the same fields

logger = logging.getLogger(__name__)


class LabelledDataError(RefocusError):
    """The labelled photos cannot be used: fix the folder or the flags."""


@dataclass(frozen=True)
class Photos:
    """Labelled photos of people.

    Attributes:
        name, fingerprint: of the source, and of the chosen photos with their labels.
        people: by stream, (file, label) in order; each stream is replayed from an empty history.
        read: a file's bytes.
        owners: by stream, whose it is; a stream that is not named here is a person of its own.
    """

    name: str
    fingerprint: str
    people: dict[str, list[tuple[str, str]]]
    read: Callable[[str], bytes]
    owners: dict[str, str] = field(default_factory=dict)

    def streams_of_people(self) -> dict[str, list[str]]:
        """By person, their streams in order: what is drawn again for an interval over people."""
        found: dict[str, list[str]] = {}
        for stream in self.people:
            found.setdefault(self.owners.get(stream, stream), []).append(stream)
        return found


def read_labelled(source: Path, person: str, label: str, split: str, photos_per_person: int) -> Photos:
    """Photos of a folder or zip with ``metadata.csv``.

    Someone with more photos than ``photos_per_person`` has several streams. The order within a column's value is that
    of the hash of the file names: the same on every machine, and not sorted by class. Rows that name nobody are left
    out, as in training, and the log says how many.

    Args:
        person, label: columns.
        split: take the rows whose column ``split`` says so; "" takes all.

    Raises:
        LabelledDataError: no such file or columns, a row that ends before one of them, or no rows; and when a photo is
            read that is missing or damaged.
    """
    rows, read = _open(source)
    advice = {
        person: "; name the column that says whose photo it is as --person (or another that groups them)",
        label: "; name the column of the label as --label",
    }
    needed = (person, label, "file_name", *(["split"] if split else []))
    for column in needed:
        if not rows or column not in rows[0]:
            raise LabelledDataError(
                f"{source}: metadata.csv has no column '{column}'; it has {[*rows[0]] if rows else []}"
                + (advice.get(column, "") if rows else "")
            )
    for number, row in enumerate(rows, 1):
        if missing := [column for column in needed if row[column] is None]:
            raise LabelledDataError(
                f"{source}: metadata.csv, row {number} ends before the column '{missing[0]}'; give it as many cells as"
                " the header has"
            )
    rows = [row for row in rows if not split or row["split"] == split]
    if not rows:
        raise LabelledDataError(f"{source}: no photo has split '{split}'")
    nobody = sum(not row[person] for row in rows)
    if nobody == len(rows):
        raise LabelledDataError(f"{source}: the column '{person}' names nobody{advice[person]}")
    if nobody:
        logger.warning(f"{nobody} of {len(rows)} photos are left out: their row names nobody in the column {person}")
    groups: dict[str, list[tuple[str, str]]] = {}
    for row in sorted(rows, key=lambda row: hashlib.sha256(row["file_name"].encode()).hexdigest()):
        if row[person]:
            groups.setdefault(row[person], []).append((row["file_name"], row[label]))
    people, owners = {}, {}
    for name, photos in sorted(groups.items()):
        for number, start in enumerate(range(0, len(photos), photos_per_person)):
            people[f"{name} {number}"] = photos[start : start + photos_per_person]
            owners[f"{name} {number}"] = name
    text = json.dumps(people, sort_keys=True)
    return Photos(source.name, hashlib.sha256(text.encode()).hexdigest(), people, read, owners)


def without_training_photos(photos: Photos, bundle: Bundle, head: str = "") -> tuple[Photos, str]:
    """The photos that training of a bundle's head has not seen, and a line that says who is judged.

    Where the bundle does not say what taught it, or nothing else is left, all photos stay, and the line says so.
    """
    left, line = unseen_photos(photos, bundle, head)
    if left.people:
        return left, line
    return photos, f"{line}: these figures are not those of people it has not met"


def unseen_photos(photos: Photos, bundle: Bundle, head: str = "") -> tuple[Photos, str]:
    """As :func:`without_training_photos`, but no photo is left where all of them taught the bundle."""
    taught_by = bundle.taught_by(head)
    total = sum(map(len, photos.people.values()))
    if not taught_by:
        return photos, f"the bundle does not say which photos taught it; if any of these {total} did, they look easier"
    people = {
        person: [row for row in rows if photo_hash(photos.read(row[0])) not in taught_by]
        for person, rows in photos.people.items()
    }
    people = {person: rows for person, rows in people.items() if rows}
    left = sum(map(len, people.values()))
    if left == total:
        return photos, f"none of the {total} photos taught the bundle"
    text = json.dumps(people, sort_keys=True)
    kept = replace(photos, people=people, fingerprint=hashlib.sha256(text.encode()).hexdigest())
    if not left:
        return kept, f"all {total} photos taught this bundle"
    return kept, f"{total - left} of {total} photos taught the bundle and are left out"


def _open(source: Path) -> tuple[list[dict[str, str]], Callable[[str], bytes]]:
    try:  # zipfile and its decompressors raise many types
        content: Callable[[str], bytes] = _reader(source) if source.is_dir() else zipfile.ZipFile(source).read
        text = content("metadata.csv").decode("utf-8-sig")  # Excel begins a UTF-8 file with a byte order mark
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except Exception as error:
        raise LabelledDataError(f"{source}: expected a folder or zip with metadata.csv ({error})") from None

    def read(name: str) -> bytes:
        try:
            return content(name)
        except Exception as error:  # missing, damaged or encrypted
            why = str(error) or type(error).__name__
            raise LabelledDataError(
                f"{source}: {name}, which metadata.csv names, cannot be read ({why}); restore it or remove its row"
            ) from None

    return rows, read


def _reader(folder: Path) -> Callable[[str], bytes]:
    return lambda name: (folder / name).read_bytes()


@dataclass(frozen=True)
class Evaluation:
    """One target's right answers.

    Attributes:
        right: by stream, (n, 2) of delivered and plain: whether a photo's label was found, or the share of its labels
            that are right where photos have several.
        sets: more about these, where photos have several labels.
    """

    target: str
    right: dict[str, np.ndarray]
    sets: dict[str, Any] = field(default_factory=dict)


def evaluate(
    bundle: Bundle,
    photos: Photos,
    targets: Sequence[tuple[str, str]],
    head: str = "",
    threads: int = 1,
    track: Callable[[Iterable[str]], Iterator[str]] = iter,
    shares: bool = True,
    heads: Sequence[str] = (),
    provider: str = "",
    allow_fallback: bool = True,
) -> list[Evaluation]:
    """Replays every stream from an empty history through every target; each photo is decoded once for all, and encoded
    once for all targets of one encoder.

    Args:
        targets: runtime and precision of the encoder.
        shares: whether class shares are counted, where the bundle declares them.
        heads: target of the head behind each of them, which then names the row; "" or default: the one that serves
            there.
        provider, allow_fallback: as of :class:`refocus.edge.Recognizer`.

    Raises:
        BundleError: the bundle has no such head.
        LabelledDataError: a label that the head does not know.
        RuntimeUnavailable: a target cannot run on this machine, or not on the provider alone.
    """
    behind = heads or [""] * len(targets)
    names = [own or ":".join(target) for target, own in zip(targets, behind, strict=True)]
    devices = [
        Recognizer(bundle, None, *target, threads, head, provider, allow_fallback, shares=shares, head_target=own)
        for target, own in zip(targets, behind, strict=True)
    ]
    encoders = dict(zip(targets, devices, strict=True))
    card = bundle.manifest.head(head)
    check_labels(photos, card.labels, card.several)
    found = [Evaluation(name, {}) for name in names]
    if card.several:
        return [_of_sets(*row, photos, card, track) for row in zip(found, devices, strict=True)]
    for person in track(photos.people):
        rows = photos.people[person]
        right = np.zeros((len(devices), len(rows), 2), dtype=bool)
        # Devices in step, so that each photo is decoded once and kept for no longer than it takes.
        pixels = itertools.tee(
            (preprocess(photos.read(file), bundle.manifest.preprocessing, file) for file, _ in rows), len(encoders)
        )
        features = {
            target: iter(itertools.tee(map(device.feature_of, own), targets.count(target)))
            for (target, device), own in zip(encoders.items(), pixels, strict=True)
        }
        replays = (device.replay(next(features[target])) for device, target in zip(devices, targets, strict=True))
        for number, answers in enumerate(zip(*replays, strict=True)):
            for index, answer in enumerate(answers):
                plain = devices[index].card.labels[int(answer.plain_logits.argmax())]
                right[index, number] = answer.labels[0] == rows[number][1], plain == rows[number][1]
        for index, row in enumerate(found):
            row.right[person] = right[index]
    return found


def _of_sets(
    row: Evaluation, device: Recognizer, photos: Photos, card: Head, track: Callable[[Iterable[str]], Iterator[str]]
) -> Evaluation:
    """The same of a bundle whose answers are sets of labels, and what the histories of other people do."""
    people, features = {}, {}
    for person in track(photos.people):
        rows = photos.people[person]
        pixels = (preprocess(photos.read(file), device.manifest.preprocessing, file) for file, _ in rows)
        features[person] = np.array([device.feature_of(one) for one in pixels])
        answers = list(device.replay(features[person]))
        people[person] = collected(truths([text for _, text in rows], card.labels), answers)
    thresholds, streams = np.array(card.thresholds), photos.streams_of_people()
    people = with_controls(device, people, features, photos.owners)
    whole = {person: joined([people[stream] for stream in own]) for person, own in streams.items()}
    return replace(row, right=right_labels(people, thresholds), sets=figures(whole, thresholds))


def check_labels(photos: Photos, known: Sequence[str], several: bool = False) -> None:
    """Checks that photos have labels that are known.

    Args:
        several: photos have several labels, with ";" between them.

    Raises:
        LabelledDataError: a label is not known.
    """
    texts = {label for rows in photos.people.values() for _, label in rows}
    unknown = (texts if not several else {label for text in texts for label in label_set(text)}) - set(known)
    if unknown:
        raise LabelledDataError(
            f"{photos.name} has labels the bundle does not know, such as '{min(unknown)}'; {len(unknown)} of them"
        )


def summarise(judged: Sequence[Evaluation], photos: Photos, who: str = "") -> dict[str, Any]:
    """The results document: every target, and its paired differences to the photo alone and to the first target; none
    where all photos are one person's, because they would have no interval.

    Args:
        who: what is said of whom the figures are of, see :func:`without_training_photos`.
    """
    reference, streams = judged[0], photos.streams_of_people().values()
    of_people = [[np.concatenate([row.right[stream] for stream in own]) for own in streams] for row in judged]
    sizes = np.array([len(right) for right in of_people[0]], dtype=float)
    shares = [np.array([right.mean(axis=0) for right in own]) for own in of_people]
    rows = [_row(row, own, shares[0], sizes) for row, own in zip(judged, shares, strict=True)]
    return {
        "schema_version": SCHEMA,
        "accuracy_of_targets": {
            "data": photos.name,
            "fingerprint": photos.fingerprint,
            "photos": int(sizes.sum()),
            "people": len(sizes),
            "streams": len(photos.people),
            "reference": reference.target,
            **({"judged": who} if who else {}),
        },
        "rows": rows,
    }


def _row(row: Evaluation, shares: np.ndarray, before: np.ndarray, sizes: np.ndarray) -> dict[str, Any]:
    """One target's figures; ``shares``, ``before`` (G, 2) of each person, by it and by the reference, of ``sizes`` (G,)
    photos."""
    sets = {"label_sets": row.sets} if row.sets else {}
    delivered, plain = (float((shares[:, i] * sizes).sum() / sizes.sum()) for i in (0, 1))
    found: dict[str, Any] = {
        "target": row.target,
        "delivered": delivered,
        "plain": plain,
        "worst_decile": worst_tenth(shares[:, 0]),
        "plain_worst_decile": worst_tenth(shares[:, 1]),
        **sets,
    }
    if len(sizes) > 1:
        gain = shares[:, 0] - shares[:, 1]
        found["gain"] = bootstrap_mean(gain, sizes).as_dict()
        found["worse_than_alone"], found["better_than_alone"] = float((gain < 0).mean()), float((gain > 0).mean())
    if shares is not before and len(sizes) > 1:
        change = shares[:, 0] - before[:, 0]
        found["change"] = bootstrap_mean(change, sizes).as_dict()
        found["plain_change"] = bootstrap_mean(shares[:, 1] - before[:, 1], sizes).as_dict()
        found["made_worse"] = float((change < 0).mean())
        found["made_better"] = float((change > 0).mean())
    return found


def record(bundle: Bundle, document: dict[str, Any], head: str = "") -> Bundle:
    """Writes the figures into the manifest, beside the head of each target.

    Of the photos of one person ``change`` is null beside the name of the ``reference``: compared, without interval.
    """
    name, about = bundle.manifest.head(head).name, document["accuracy_of_targets"]
    by_target = {row["target"]: row for row in document["rows"]}
    artifacts = []
    for artifact in bundle.manifest.artifacts:
        row = by_target.get(artifact.target)
        if row is not None and artifact.head == name:
            change = row.get("change")
            artifact = msgspec.structs.replace(
                artifact,
                accuracy=Accuracy(
                    data=f"{about['data']} {about['fingerprint'][:12]}",
                    **{name: about[name] for name in ("photos", "people")},
                    **{name: row[name] for name in ("delivered", "plain", "worst_decile")},
                    reference=about["reference"] if artifact.target != about["reference"] else "",
                    change=(change["mean"], change["low"], change["high"]) if change else None,
                    made_worse=row.get("made_worse"),
                ),
            )
        artifacts.append(artifact)
    return write_manifest(bundle.folder, msgspec.structs.replace(bundle.manifest, artifacts=tuple(artifacts)))


def runnable(
    bundle: Bundle,
    head: str = "",
    behind: bool = True,
    threads: int = 1,
    wanted: Callable[[tuple[str, str]], bool] = lambda _: True,
) -> tuple[list[tuple[tuple[str, str], str]], dict[str, str]]:
    """Encoders with the target of a head behind each (:func:`refocus.edge.recognize.head_targets`) that this machine
    can load, and why it cannot load the others, by that target.

    Args:
        behind: False: each encoder once, with the head that serves there, which has no name then.
        threads: those that they are used with in this process.
        wanted: which encoders are tried, by runtime and precision: a runtime that serves none of them is not loaded.
    """
    can, cannot = [], {}
    name = bundle.manifest.head(head).name
    for target, own in head_targets(bundle, name) if behind else [(target, "") for target in bundle.targets(head)]:
        if not wanted(target):
            continue
        try:
            Recognizer(bundle, None, *target, threads, head=head, head_target=own).close()
            can.append((target, own))
        except RuntimeUnavailable as error:
            cannot[own or ":".join(target)] = str(error)
    return can, cannot
