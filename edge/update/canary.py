"""A release that was fetched proves itself before it answers anybody: its self-test, then the owner's recent photos."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from refocus.edge.bundle.load import Bundle
from refocus.edge.bundle.manifest import Preprocessing
from refocus.edge.bundle.precision import find_named_target
from refocus.edge.errors import BundleError, HistoryError, PhotoError
from refocus.edge.files import original
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.photos.preprocess import folder_identity, preprocess, preprocess_folder, read_photo
from refocus.edge.recognize.check import check
from refocus.edge.recognize.recognizer import Answer, Recognizer

_NO_MEMORY = ("bad_alloc", "bad allocation", "failed to allocate memory", "out of memory")  # as runtimes say it


@dataclass(frozen=True)
class Limits:
    """How far a release may be from the one that serves.

    Attributes:
        photos: newest photos of each person that are compared; those whose originals are gone are left out.
        least_photos: with fewer, agreement says nothing and is not judged.
        agreement: least share of photos with the same best label. A better model differs where the older one is wrong,
            so this only stops what is broken: by chance alone two models agree on next to nothing.
        labelled_lost: largest share of the photos that the owner has labelled by which it may have fewer right.
        latency_ratio: largest ratio of its time per photo to that of the one that serves, photo by photo in turns;
            times below ``latency_floor_ms`` are as good as that. The lower end of an interval counts: a device that was
            busy with something else for a moment does not refuse a release for good.
    """

    photos: int = 32
    least_photos: int = 8
    agreement: float = 0.5
    labelled_lost: float = 0.05
    latency_ratio: float = 2.0
    latency_floor_ms: float = 5.0


@dataclass(frozen=True)
class Canary:
    """What was found when both models saw the same photos.

    Attributes:
        photos: compared.
        agreement: share with the same best label; 1 where there are none.
        labelled: photos among them that their owner has labelled.
        labelled_change: right answers gained (or lost, below 0), as a share of those.
        latency_ms, serving_latency_ms: median per photo, of the release and of the one that serves.
        latency_ratio: lower end of the 95 % interval around the median of their ratios; 1 where there are none.
    """

    photos: int = 0
    agreement: float = 1.0
    labelled: int = 0
    labelled_change: float = 0.0
    latency_ms: float = 0.0
    serving_latency_ms: float = 0.0
    latency_ratio: float = 1.0


def self_test(bundle: Bundle, target: str, threads: int = 1) -> str:
    """Why a bundle fails its own self-test with what may serve on this device; "" if it passes.

    Those are the programs of the device's target, and native heads behind its encoder, but for those that cannot run
    here. Other targets are not run: what they do here says nothing of the release.
    """
    if all(head.self_test is None for head in bundle.manifest.heads):
        return "it carries no answers to check"
    encoder = find_named_target(target, [a.target for a in bundle.manifest.artifacts if a.role == "encoder"])
    found = check(bundle, encoder=encoder, threads=threads) if encoder else []
    own = [row for row in found if row.target == encoder]
    if not own or any(row.skipped for row in own):
        return "; ".join(row.skipped for row in own) or f"it has no programs for {target}"
    return "; ".join(f"{row.head} {row.target}: {row.failures[0]}" for row in found if row.failures)


def compare(serving: Recognizer, coming: Recognizer, profiles: Iterable[Path], limits: Limits) -> Canary:
    """Lets both models recognise the newest photos of every person, in order, from an empty history in memory.

    Neither stores anything. Photos are taken in turns, first by one and then by the other, so that what else the
    device does slows both.

    Args:
        serving, coming: recognisers without a profile.
        profiles: files of the histories.
    """
    same: list[bool] = []
    right: list[list[bool]] = []
    times: list[list[float]] = []
    for profile in profiles:
        try:
            with FeatureHistory(profile) as history:
                photos, labels = _originals(history, limits.photos, serving), history.labels()
        except HistoryError:  # says nothing about a release; the move reports it
            continue
        for (photo, _), answers in zip(photos, _both((serving, coming), photos, times), strict=True):
            found = [{label for label, _ in answer.label_set} for answer in answers]
            same.append(found[0] == found[1])
            if photo in labels:
                right.append([labels[photo] in one for one in found])
    if not same:
        return Canary()
    times_ms = np.array(times) * 1000
    before, after = np.median(times_ms, axis=0)
    slowed = np.divide(*np.maximum(times_ms, limits.latency_floor_ms).T[::-1])
    change = np.array(right, dtype=float).mean(axis=0) if right else np.zeros(2)
    gained = float(change[1] - change[0])
    return Canary(
        len(same), float(np.mean(same)), len(right), gained, float(after), float(before), least_median(slowed)
    )


def is_shortage(error: BaseException) -> bool:
    """Whether an error is the device's and not the release's: no memory, a disk that fails or is full."""
    text = str(error).lower()
    return isinstance(error, (MemoryError, OSError)) or any(words in text for words in _NO_MEMORY)


def evaluate(found: Canary, limits: Limits) -> str:
    """Why the release must not serve on this device; "" if it may."""
    if found.photos < limits.least_photos:
        return ""
    if found.agreement < limits.agreement:
        return (
            f"on {found.photos} recent photos it agrees with the release that serves on {found.agreement:.0%}, at"
            f" least {limits.agreement:.0%} are wanted"
        )
    if found.labelled >= limits.least_photos and -found.labelled_change > limits.labelled_lost:
        lost, most = -found.labelled_change, limits.labelled_lost
        return (
            f"of {found.labelled} photos that the owner has labelled it has {lost:.0%} fewer right, at most"
            f" {most:.0%} may be lost"
        )
    if found.latency_ratio > limits.latency_ratio:
        ratio = f"at least {found.latency_ratio:.1f} times as long as with the release that serves"
        how = f"a photo takes {found.latency_ms:.1f} ms, {ratio}"
        return f"{how}; at most {limits.latency_ratio} times are allowed"
    return ""


def least_median(values: np.ndarray) -> float:
    """Lower end of the 95 % interval around a median (n,), from the sign test: exact, whatever the distribution.

    0 where there are too few values for an interval.
    """
    count = len(values)
    ways = itertools.accumulate(math.comb(count, below) for below in range(count + 1))
    cut = sum(way / 2**count <= 0.025 for way in ways)
    return float(np.sort(values)[cut - 1]) if cut else 0.0


def _originals(history: FeatureHistory, count: int, serving: Recognizer) -> list[tuple[str, bytes | Path]]:
    """Identity, and bytes or folder of frames, of the newest photos whose originals are what they were, oldest first.
    What the model that serves cannot read says nothing of another one."""
    names: dict[str, str] = {}
    for entry in sorted(history.entries(), key=lambda entry: entry.stored.timestamp() if entry.stored else 0.0):
        names.pop(entry.photo, None)  # of two spaces, the newer place in the order counts
        names[entry.photo] = entry.name
    found: list[tuple[str, bytes | Path]] = []
    for photo, name in reversed(names.items()):
        if len(found) == count:
            break
        try:
            path = original(name)
            clip = bool(name) and os.path.isdir(path)  # noqa: PTH112  # never raises
            content = path if clip else read_photo(path) if name else b""
            if isinstance(content, Path) or hashlib.sha256(content).hexdigest() == photo:
                _pixels(photo, content, serving.manifest.preprocessing)
                found.append((photo, content))
        except (PhotoError, OSError, ValueError):
            continue
    return found[::-1]


def _both(
    models: Sequence[Recognizer], photos: Sequence[tuple[str, bytes | Path]], times: list[list[float]]
) -> Iterable[list[Answer]]:
    """Both models' answers, photo by photo; the times of each photo are added to ``times``."""
    replays = [iter(model.replay(_features(model, photos))) for model in models]
    for number in range(len(photos)):
        answers, seconds = {}, {}
        for which in (0, 1) if number % 2 else (1, 0):
            started = time.perf_counter()
            try:
                answers[which] = next(replays[which])
            except Exception as error:
                if is_shortage(error):
                    raise
                raise BundleError(f"it fails on a photo of this device: {error}") from error
            seconds[which] = time.perf_counter() - started
        times.append([seconds[0], seconds[1]])
        yield [answers[0], answers[1]]


def _features(model: Recognizer, photos: Iterable[tuple[str, bytes | Path]]) -> Iterable[np.ndarray]:
    contract = model.manifest.preprocessing
    return (model.feature_of(_pixels(photo, content, contract)) for photo, content in photos)


def _pixels(photo: str, content: bytes | Path, contract: Preprocessing) -> np.ndarray:
    """A photo's or clip's bytes, or a clip's folder of frames and its identity -> (1, 3, S, S) or (1, T, 3, S, S).

    Raises:
        PhotoError: it does not fit the contract.
        OSError: the folder is not, or no longer, the clip of that identity, which is no release's fault.
    """
    if isinstance(content, bytes):
        return preprocess(content, contract)
    try:
        pixels, found = preprocess_folder(content, contract, str(content))
    except PhotoError:
        if _is_still(photo, content):
            raise
        found = ""
    if found != photo:
        raise OSError(f"{content} does not hold the frames that it held; a clip was changed during the tests")
    return pixels


def _is_still(photo: str, folder: Path) -> bool:
    try:
        return folder_identity(folder) == photo
    except PhotoError:
        return False
