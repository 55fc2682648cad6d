"""Measures a candidate beside the current release, through the runtime that devices have.

Notation: S streams of photos, of G people.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from refocus.benchmarks.measure import Photos, check_labels, evaluate, interleave, unseen_photos
from refocus.cloud_train.errors import ReleaseError
from refocus.cloud_train.release.gates import Evidence
from refocus.edge.bundle import Bundle
from refocus.edge.personal import PersonalWeightStore, file_name, read_personal
from refocus.edge.photos import preprocess
from refocus.edge.recognize import Recognizer, profile_path
from refocus.edge.taper import Bank, SelfImprovement

ROUNDS = 96  # of the timer; its interval takes what noise is left
BATCH = 8  # photos that a bank learns from at once


def judging_photos(current: Bundle, candidate: Bundle, photos: Photos) -> tuple[Photos, list[str]]:
    """The photos that taught neither bundle, and a line for each bundle that says who is judged.

    Raises:
        ReleaseError: no photo is left.
    """
    lines = []
    for what, bundle in (("current", current), ("candidate", candidate)):
        photos, line = unseen_photos(photos, bundle)
        if not photos.people:
            raise ReleaseError(
                f"{photos.name}: no photo is left to judge by: {what} {bundle.folder}: {line}; give photos of people"
                " whom neither bundle has met"
            )
        lines.append(f"{what}: {line}")
    return photos, lines


def measure(
    current: Bundle,
    candidate: Bundle,
    photos: Photos,
    target: tuple[str, str] = ("onnxruntime", "fp32"),
    rounds: int = ROUNDS,
) -> Evidence:
    """Both bundles on the same people, each with all their streams; speed interleaved, photo against photo.

    Raises:
        LabelledDataError: a label that a head does not know.
        RuntimeUnavailable: the target cannot run on this machine.
        BundleError: one of the bundles has no such target.
    """
    before, after = (shares(bundle, photos, target) for bundle in (current, candidate))
    people = photos.streams_of_people().values()
    counts = np.array([[stream in own for stream in photos.people] for own in people]) * photo_counts(photos)
    before, after = (counts @ found / counts.sum(1, keepdims=True) for found in (before, after))
    return Evidence(
        photos=counts.sum(1),
        current=before[:, 0],
        candidate=after[:, 0],
        plain=after[:, 1],
        current_bytes=size_bytes(current),
        candidate_bytes=size_bytes(candidate),
        latency_ratio=latency_ratio(current, candidate, photos, target, rounds),
        parity=parity_of(candidate),
    )


def photo_counts(photos: Photos) -> np.ndarray:
    """(S,) photos of each stream."""
    return np.array([len(rows) for rows in photos.people.values()])


def shares(bundle: Bundle, photos: Photos, target: tuple[str, str], batch: int = BATCH) -> np.ndarray:
    """(S, 2) accuracy of each stream, personalised and plain, each from an empty history.

    Args:
        batch: photos that a bank learns from at once.

    Raises:
        LabelledDataError: a label that the head does not know.
    """
    if bundle.manifest.bank is not None:
        return shares_of_bank(bundle, photos, target, batch)
    [result] = evaluate(bundle, photos, [target])
    return np.array([result.right[stream].mean(axis=0) for stream in photos.people])


def shares_of_bank(bundle: Bundle, photos: Photos, target: tuple[str, str], batch: int) -> np.ndarray:
    """(S, 2) of a bank: each stream's photos come in batches, as :mod:`refocus.edge.taper.self_improvement` takes them.

    Every photo is answered by the model that serves when it comes, before anything is learned from it; plain is the
    generic model's answer. No label is ever learned from.

    Raises:
        LabelledDataError: a label that the bank does not know.
    """
    bank, found = Bank.open(bundle.folder), np.zeros((len(photos.people), 2))
    check_labels(photos, bank.labels)
    for person, rows in enumerate(photos.people.values()):
        right = np.zeros((len(rows), 2), dtype=bool)
        with (
            tempfile.TemporaryDirectory() as folder,
            SelfImprovement(bank, Path(folder), ":".join(target), threads=1) as improvement,
        ):
            for start in range(0, len(rows), batch):
                generic = []
                for number, (file, label) in enumerate(rows[start : start + batch], start):
                    content = photos.read(file)
                    generic.append(improvement.judge(content, file))
                    plain = bank.labels[int(generic[-1].argmax())]
                    right[number] = improvement.recognize(content, file).labels[0] == label, plain == label
                improvement.learn(np.array(generic))
        found[person] = right.mean(axis=0)
    return found


def shares_of_groups(
    bundle: Bundle, photos: Photos, target: tuple[str, str], group_of: dict[str, str], files: Path
) -> np.ndarray:
    """(S, 2) of a bundle whose groups of people have tensors of their own.

    Delivered is with the tensors of the person's group, plain with those of a stranger, whom a group without a file is.

    Args:
        group_of: by person, their group.
        files: folder of the groups' files, as ``refocus train prompt`` writes them.

    Raises:
        LabelledDataError: a label that the head does not know.
        PersonalWeightsError: a file that is not of this bundle.
    """
    strangers = shares(bundle, photos, target)
    found = np.repeat(strangers[:, 1:], 2, axis=1)
    people = [*photos.people.items()]
    with tempfile.TemporaryDirectory() as folder:
        cache = PersonalWeightStore(Path(folder) / "weights", sync=False)
        for number, group in enumerate(sorted({group_of[person] for person in photos.people})):
            path = files / file_name(group)
            if not path.exists():
                continue
            own, name = read_personal(path, bundle), f"group-{number}"
            cache.put_each(name, own.models, own.weights)
            with Recognizer(bundle, profile_path(Path(folder), name), *target, 1, weights=cache) as recognizer:
                for place, (person, rows) in enumerate(people):
                    if group_of[person] == group:
                        answers = [recognizer.recognize(photos.read(file), file, remember=False) for file, _ in rows]
                        right = [answer.labels[0] == label for answer, (_, label) in zip(answers, rows, strict=True)]
                        found[place, 0] = np.mean(right)
    return found


def parity_of(bundle: Bundle) -> dict[str, bool | None]:
    """By artifact, whether it agrees with PyTorch; None where it could not be run."""
    return {a.file: None if a.parity is None else a.parity.passed for a in bundle.manifest.artifacts}


def latency_ratio(
    current: Bundle, candidate: Bundle, photos: Photos, target: tuple[str, str], rounds: int = ROUNDS
) -> tuple[float, float]:
    """A photo's time with the candidate over that with the current release, interleaved: median and lower end."""
    rows = next(iter(photos.people.values()))
    contents = [photos.read(file) for file, _ in rows[:8]]
    calls = {"current": _one_photo(current, contents, target), "candidate": _one_photo(candidate, contents, target)}
    ratio = interleave(calls, rounds=rounds).ratio("candidate", "current")
    return ratio.mean, ratio.low


def _one_photo(bundle: Bundle, contents: list[bytes], target: tuple[str, str]) -> Callable[[], object]:
    """Recognises one photo after a short history: decoding, encoder and head."""
    recognizer = Recognizer(bundle, None, *target, 1)
    history = np.array([recognizer.encode(content) for content in contents[1:]])

    def call() -> object:
        feature = recognizer.feature_of(preprocess(contents[0], recognizer.manifest.preprocessing))
        return recognizer.answer(feature, history)

    return call


def size_bytes(bundle: Bundle) -> int:
    """What a device that has nothing would fetch."""
    return sum((bundle.folder / name).stat().st_size for name in bundle.files())
