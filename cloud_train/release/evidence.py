"""Measures a candidate beside the current release, through the runtime that devices have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.accuracy import Photos
from benchmarks.accuracy import judge as judge_photos
from benchmarks.interleave import interleave
from cloud_train.release.gates import Evidence
from edge.bundle import Bundle
from edge.preprocess import preprocess
from edge.recognizer import Recognizer

ROUNDS = 96  # of the timer; its interval takes what noise is left


def measure(current: Bundle, candidate: Bundle, photos: Photos, target: tuple[str, str] = ("onnxruntime", "fp32"),
            rounds: int = ROUNDS) -> Evidence:  # fmt: skip
    """Both bundles on the same people; speed interleaved, photo against photo.

    Raises:
        LabelledDataError: a label that a head does not know.
        RuntimeUnavailable: the target cannot run on this machine.
        BundleError: one of the bundles has no such target.
    """
    before, after = (shares(bundle, photos, target) for bundle in (current, candidate))
    return Evidence(
        photos=photo_counts(photos),
        current=before[:, 0],
        candidate=after[:, 0],
        plain=after[:, 1],
        current_bytes=size_bytes(current),
        candidate_bytes=size_bytes(candidate),
        latency_ratio=latency_ratio(current, candidate, photos, target, rounds),
        parity=parity_of(candidate),
    )


def photo_counts(photos: Photos) -> np.ndarray:
    """(G,) photos of each person."""
    return np.array([len(rows) for rows in photos.people.values()])


def shares(bundle: Bundle, photos: Photos, target: tuple[str, str]) -> np.ndarray:
    """(G, 2) share of right answers of each person, delivered and plain, each from an empty history.

    Raises:
        LabelledDataError: a label that the head does not know.
    """
    [judged] = judge_photos(bundle, photos, [target])
    return np.array([judged.right[person].mean(axis=0) for person in photos.people])


def parity_of(bundle: Bundle) -> dict[str, bool | None]:
    """By artifact, whether it agrees with PyTorch; None where it could not be run."""
    return {a.file: None if a.parity is None else a.parity.passed for a in bundle.manifest.artifacts}


def latency_ratio(current: Bundle, candidate: Bundle, photos: Photos, target: tuple[str, str],
                  rounds: int = ROUNDS) -> tuple[float, float]:  # fmt: skip
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
