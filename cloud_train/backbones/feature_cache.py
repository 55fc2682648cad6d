"""The feature bank: every photo goes through the frozen encoder once, and never again.

A bank is a folder ``KEY/`` with ``features.npy`` (memory-mapped), ``progress.json``, ``photos.npy`` (what each row is
a feature of) and ``missing.npy`` (the rows that no other bank had). The key is a hash of the encoder's weights, its
preprocessing and the photos' table, so a bank can never serve another encoder. Extraction is resumable: rows are
flushed to disk before ``progress.json`` counts them. Where photos were added or changed, the features of the others are
copied from the bank of before.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import torch

from refocus.cloud_train.backbones.backbone import Backbone
from refocus.cloud_train.data import partitions
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.locks import one_at_a_time
from refocus.cloud_train.progress import say, track
from refocus.edge.files import write_file
from refocus.edge.photos import preprocess
from refocus.export.program import SIGNATURE, weights_hash

BATCH = 64  # photos decoded together
CPU_FORWARD = 4  # photos per forward pass on a CPU: with 64, a MobileNetV2 at 224 pixels leaves the cache, 4 x slower
FLUSH_EVERY = 32  # batches between two safe points


@dataclass(frozen=True)
class FeatureCache:
    """Features of a table, read from disk as they are needed.

    Attributes:
        table: R photos.
        features: (N, D + S) float32, memory-mapped, N >= R: features, and behind each its signature.
        key: see :func:`bank_key`.
        index: (R,) row of ``features`` of each photo.
    """

    table: PhotoTable
    features: np.ndarray
    key: str
    index: np.ndarray

    @property
    def width(self) -> int:
        """D."""
        return int(self.features.shape[1]) - SIGNATURE

    def take(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Features of the given rows of the table, (n, D) in memory; all of them by default."""
        return self.take_rows(rows)[:, : self.width]

    def take_rows(self, rows: np.ndarray | None = None) -> np.ndarray:
        """What a device stores of the given photos: features with signatures, (n, D + S)."""
        return np.asarray(self.features[self.index if rows is None else self.index[rows]])

    def rows(self, chosen: np.ndarray) -> FeatureCache:
        return FeatureCache(self.table.rows(chosen), self.features, self.key, self.index[chosen])

    def of_split(self, split: str) -> FeatureCache:
        return self.rows(self.table.split == split)

    def mixed(self, heterogeneity: float, seed: int) -> FeatureCache:
        """The same features with only that share of the clients left as they are (:func:`partitions.mixed`)."""
        order, client = partitions.mixed(self.table.client, heterogeneity, seed)
        chosen = self.rows(order)
        return replace(chosen, table=replace(chosen.table, client=client))


def bank_key(backbone: Backbone, table: PhotoTable) -> str:
    """What a bank is a function of: weights, architecture, preprocessing, and the photos as they are now."""
    return _key(_network(backbone), _photos(table))


def _key(network: str, photos: np.ndarray) -> str:
    return hashlib.sha256(network.encode() + photos.tobytes()).hexdigest()[:32]


def _network(backbone: Backbone) -> str:
    """Digest of what turns a photo into its feature."""
    preprocessing = msgspec.json.encode(backbone.preprocessing, order="deterministic")
    network = f"{SIGNATURE} {backbone.name} {sorted(backbone.arguments.items())} {weights_hash(backbone.network)}"
    return hashlib.sha256(f"{network} {preprocessing!r}".encode()).hexdigest()


def _photos(table: PhotoTable) -> np.ndarray:
    """(R, 16) uint8: a digest of each photo's name and stamp."""
    digests = [hashlib.sha256(f"{name}\0{table.stamp(name)}".encode()).digest()[:16] for name in table.photo.tolist()]
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16)


def extract(backbone: Backbone, table: PhotoTable, folder: Path, device: str = "cpu") -> FeatureCache:
    """Features of every photo of the table, from the bank if it has them.

    Raises:
        PhotoError: a photo cannot be decoded; rows before it are kept, and the next call goes on from there.
        DataError: the disk has no room for the features.
    """
    network, photos = _network(backbone), _photos(table)
    key = _key(network, photos)
    with one_at_a_time(folder / key / ".lock"):  # another process would begin from the first photo, in this file
        _fill(backbone, table, folder / key, device, network, photos)
    features = np.load(folder / key / "features.npy", mmap_mode="r")
    return FeatureCache(table, features, key, np.arange(len(table)))


def _fill(backbone: Backbone, table: PhotoTable, place: Path, device: str, network: str, photos: np.ndarray) -> None:
    """Extracts the features that a bank's folder lacks."""
    if not _is_of(place, network):
        _begin(place, network, photos, backbone.row)
    done = _done(place)
    features, rows = np.lib.format.open_memmap(place / "features.npy", mode="r+"), np.load(place / "missing.npy")
    start = done
    encoder = backbone.encoder.eval().to(device).to(memory_format=torch.channels_last)
    clips = backbone.preprocessing.of_clips
    layout = torch.preserve_format if clips else torch.channels_last  # of five axes there is no other
    forward = (1 if clips else CPU_FORWARD) if device == "cpu" else BATCH
    try:
        with torch.inference_mode():
            starts = range(done, len(rows), BATCH)
            batches = track(_batches(table.rows(rows), backbone, starts), "features", len(starts))
            for number, (start, pixels) in enumerate(batches, 1):
                for part in torch.from_numpy(pixels).split(forward):
                    found = encoder(part.to(device, memory_format=layout)).float().cpu().numpy()
                    features[rows[start : start + len(found)]] = found
                    start += len(found)
                if number % FLUSH_EVERY == 0:
                    features.flush()
                    _count(place, network, start)
    finally:  # a photo that cannot be decoded costs none of those before it
        if start > done:
            features.flush()
            _count(place, network, start)
    encoder.to(memory_format=torch.contiguous_format)  # as the caller's network was


def _begin(place: Path, network: str, photos: np.ndarray, width: int) -> None:
    """A bank with the features that other banks of this network have of these photos."""
    path = place / "features.npy"
    features = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(len(photos), width))
    _take_room(path)
    row_of = {digest.tobytes(): row for row, digest in enumerate(photos)}
    missing = np.ones(len(photos), dtype=bool)
    for other in sorted(path for path in place.parent.iterdir() if path != place and _is_of(path, network)):
        theirs = np.load(other / "photos.npy")
        known = np.ones(len(theirs), dtype=bool)
        known[np.load(other / "missing.npy")[_done(other) :]] = False
        pairs = [(row_of.get(theirs[row].tobytes(), -1), row) for row in np.flatnonzero(known)]
        mine, from_row = np.array([pair for pair in pairs if pair[0] >= 0], dtype=np.int64).reshape(-1, 2).T
        features[mine] = np.load(other / "features.npy", mmap_mode="r")[from_row]
        missing[mine] = False
    features.flush()
    np.save(place / "photos.npy", photos)
    np.save(place / "missing.npy", np.flatnonzero(missing))
    _count(place, network, 0)


def _take_room(path: Path) -> None:
    """Takes the disk space of a file that has its size and no content yet.

    What is written to a mapped file on a full disk is no error but the end of the process.

    Raises:
        DataError: there is no room.
    """
    allocate = getattr(os, "posix_fallocate", None)  # macOS has none
    if allocate is None:
        return
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            allocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                return  # file systems that cannot tell
            path.unlink()
            raise DataError(f"{path}: {size / 1e6:.0f} MB of features find no room ({error.strerror})") from None


def _is_of(place: Path, network: str) -> bool:
    """Whether a folder is a bank of this network that has been begun."""
    try:
        if json.loads((place / "progress.json").read_text()).get("network") != network:
            return False
        for name in ("features.npy", "photos.npy", "missing.npy"):
            np.load(place / name, mmap_mode="r")  # ValueError: shorter than it says; written to, it would gain zeros
    except FileNotFoundError:
        return False
    except (ValueError, AttributeError, OSError):
        say(f"{place} is damaged; its features are extracted again")
        return False
    return True


def _count(place: Path, network: str, rows: int) -> None:
    write_file(place / "progress.json", json.dumps({"network": network, "rows": rows}))


def _done(place: Path) -> int:
    """How many of the missing rows are there by now."""
    return int(json.loads((place / "progress.json").read_text())["rows"])


def _batches(table: PhotoTable, backbone: Backbone, starts: range) -> Iterator[tuple[int, np.ndarray]]:
    """Preprocessed batches in order; decoding runs ahead in threads (Pillow releases the interpreter's lock)."""

    def load(start: int) -> np.ndarray:
        names = table.photo[start : start + BATCH].tolist()
        return np.concatenate([preprocess(table.read(name), backbone.preprocessing, name) for name in names])

    with ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) - 1)) as pool:
        waiting = [(start, pool.submit(load, start)) for start in starts[:4]]
        for start in starts[4:]:
            ready, future = waiting.pop(0)
            waiting.append((start, pool.submit(load, start)))
            yield ready, future.result()
        for ready, future in waiting:
            yield ready, future.result()
