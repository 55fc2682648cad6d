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
    [before], [after] = (judge_photos(bundle, photos, [target]) for bundle in (current, candidate))
    people = list(photos.people)
    shares = [np.array([judged.right[person].mean(axis=0) for person in people]) for judged in (before, after)]
    return Evidence(
        photos=np.array([len(photos.people[person]) for person in people]),
        current=shares[0][:, 0],
        candidate=shares[1][:, 0],
        plain=shares[1][:, 1],
        current_bytes=_bytes(current),
        candidate_bytes=_bytes(candidate),
        latency_ratio=_latency(current, candidate, photos, target, rounds),
        parity={a.file: None if a.parity is None else a.parity.passed for a in candidate.manifest.artifacts},
    )


def _latency(current: Bundle, candidate: Bundle, photos: Photos, target: tuple[str, str],
             rounds: int) -> tuple[float, float]:  # fmt: skip
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


def _bytes(bundle: Bundle) -> int:
    return sum((bundle.folder / name).stat().st_size for name in bundle.files())
