"""Data ingest: the photos of a release, split so that no person is in both training and test data.

Each photo is read once; unreadable files and duplicates are left out and counted. People are assigned to splits by a
hash of their name, so a person's split never changes when others join.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from refocus.benchmarks.measure import Photos
from refocus.cloud_train.data.partitions import DEALT
from refocus.cloud_train.data.table import PhotoTable, assert_clients_never_meet
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.pipeline.config import PipelineConfig, settings
from refocus.cloud_train.pipeline.state import current_work, write_state
from refocus.cloud_train.progress import track
from refocus.cloud_train.runs.iciia import DRAWN, DataConfig, Run, load_table, source_table
from refocus.edge.bundle import Preprocessing
from refocus.edge.errors import PhotoError
from refocus.edge.files import write_file
from refocus.edge.photos import preprocess

COLUMNS = ("photo", "sha256", "label", "client", "domain", "parent", "split")  # Refocus 0.1 had no parent
_ANY = Preprocessing(
    resize_shorter=32, crop=32, mean=(0.5,) * 3, std=(0.5,) * 3
)  # to see whether a photo can be decoded


def ingest(work: Path) -> dict[str, Any]:
    """The step: begins the record, chooses the photos."""
    from refocus.cloud_train.pipeline.registry import Registry

    Registry(work.parent.parent).begin(work)
    current = current_work(work)
    before = current / "photos.csv" if current is not None else None
    return write_state(work, "ingest", choose_photos(settings(work), work / "photos.csv", before))


def choose_photos(config: PipelineConfig, out: Path, before: Path | None) -> dict[str, Any]:
    """Chooses the photos and writes their list.

    Args:
        out: ``photos.csv``.
        before: the list of the current release, if there is one.

    Returns:
        counts, fingerprint, and what changed since the current release.

    Raises:
        DataError: no photos are left, or somebody who taught the current release would judge now.
    """
    table = load_table(config.data, by_hash)
    if config.data.clients == "natural" and np.char.startswith(table.client, f"{DEALT}/").any():
        raise DataError(
            f"{config.data.source} names nobody in a column '{config.data.client_column}': each photo needs the person"
            " who took it, who stays on one side of every release; add that column, or name another as"
            " data.client_column"
        )
    contents, broken = _read_all(table)
    kept = _distinct(table, contents)
    table, contents = table.rows(kept), contents[kept]
    _check(table, contents)
    rows = _rows(table, contents)
    table = _listed(rows, table, config.data)
    earlier = read_list(before) if before is not None else []
    _check_nobody_changed_sides(rows, earlier)
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *([row[c] for c in COLUMNS] for row in rows)])
    write_file(out, text.getvalue())
    known, now = ({row["sha256"] for row in some} for some in (earlier, rows))
    return {
        "photos": len(rows),
        "people": len(set(table.client.tolist())),
        "classes": len(table.classes),
        "splits": dict(sorted(Counter(table.split.tolist()).items())),
        "unreadable": broken,
        "left_out": int((~kept).sum()) - broken,
        "new_photos": len(now - known) if earlier else None,
        "gone_photos": len(known - now) if earlier else None,
        "fingerprint": hashlib.sha256(out.read_bytes()).hexdigest(),
        "table": table.fingerprint(),
    }


def by_hash(table: PhotoTable, shares: dict[str, float], seed: int) -> PhotoTable:
    """Puts each client into a split by a hash of its name: the same one whoever else is there.

    Raises:
        DataError: a split is empty, as with very few people.
    """
    names, ends = list(shares), np.cumsum(list(shares.values()))

    def split_of(client: str) -> str:
        at = int.from_bytes(hashlib.sha256(f"{seed} {client}".encode()).digest()[:8], "big") / 2**64
        return names[min(int(np.searchsorted(ends, at, side="right")), len(names) - 1)]

    of_client = {str(client): split_of(str(client)) for client in np.unique(table.client)}
    empty = sorted(set(shares) - set(of_client.values()))
    if empty:
        raise DataError(f"{len(of_client)} people leave the split {empty[0]} empty; add people, or a column 'split'")
    return replace(table, split=np.array([of_client[str(client)] for client in table.client], dtype="<U10"))


def read_list(path: Path) -> list[dict[str, str]]:
    """The rows of a list of photos."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def open_run(config: PipelineConfig, work: Path) -> Run:
    """The model's run over the photos of the list alone, with the labels, people and splits that they had when the list
    was made; the source is asked for their bytes.

    Raises:
        DataError: a photo of the list is no longer there, or the list puts somebody into two splits.
    """
    path, source = work / "photos.csv", source_table(config.data)
    rows, there = read_list(path), {*source.photo.tolist()}
    gone = [row["photo"] for row in rows if row["photo"] not in there]
    if gone:
        raise DataError(f"{len(gone)} photos of {path} are missing, such as {gone[0]}; restore them")
    table = _listed(rows, source, config.data)
    assert_clients_never_meet(table)
    return Run(work / "model", config.run_config(), table)


def check_contents(table: PhotoTable, rows: list[dict[str, str]]) -> None:
    """Raises DataError if a photo is no longer what it was when the list was made."""
    for row in track(rows, "comparing photos", len(rows)):
        if hashlib.sha256(table.read(row["photo"])).hexdigest() != row["sha256"]:
            raise DataError(f"{row['photo']} has changed since that release; restore the original photo")


def photos_to_test(table: PhotoTable, per_person: int, labels: set[str]) -> Photos:
    """The test people's photos as streams, those of the given labels alone.

    Of someone with more than ``per_person``, that many spread evenly over all: the first ones, of photos that are
    sorted, would be of a few classes.
    """
    test, people = table.of_split("test"), {}
    for client, rows in test.clients():
        named = [(str(test.photo[row]), test.classes[int(test.label[row])]) for row in rows]
        known = [row for row in named if row[1] in labels]
        chosen = np.linspace(0, len(known) - 1, min(per_person, len(known))).astype(int)
        people[client] = [known[position] for position in chosen]
    return Photos("test people", test.fingerprint(), {name: rows for name, rows in people.items() if rows}, test.read)


def _read_all(table: PhotoTable) -> tuple[np.ndarray, int]:
    """(R,) SHA-256 of every photo's bytes, "" of those that cannot be read or decoded; and how many those are."""
    digests = []
    for name in track(table.photo.tolist(), "reading photos", len(table)):
        try:
            content = table.read(name)
            preprocess(content, _ANY, name)
            digests.append(hashlib.sha256(content).hexdigest())
        except (DataError, PhotoError):
            digests.append("")
    return np.array(digests, dtype="<U64"), digests.count("")


def _distinct(table: PhotoTable, contents: np.ndarray) -> np.ndarray:
    """(R,) which rows are taken.

    Of a photo that one person gave several times, the first; of one that several people have, or that has several
    labels, none: it would teach and judge at once, or teach a contradiction.
    """
    groups: dict[str, list[int]] = {}
    for index, digest in enumerate(contents.tolist()):
        if digest:
            groups.setdefault(digest, []).append(index)
    kept = np.zeros(len(table), dtype=bool)
    for rows in groups.values():
        kept[rows[0]] = len(set(table.client[rows].tolist())) == 1 and len(set(table.label[rows].tolist())) == 1
    return kept


def _check(table: PhotoTable, contents: np.ndarray) -> None:
    if not len(table):
        raise DataError("no photo is left: all are unreadable, contradict each other, or belong to several people")
    assert_clients_never_meet(table)
    assert_clients_never_meet(replace(table, photo=contents))  # the same bytes under two names are the same photo


def _rows(table: PhotoTable, contents: np.ndarray) -> list[dict[str, str]]:
    labels = [table.classes[label] for label in table.label]
    columns = table.photo, contents, labels, table.client, table.domain, table.parent, table.split
    return [dict(zip(COLUMNS, map(str, row), strict=True)) for row in zip(*columns, strict=True)]


def _listed(rows: list[dict[str, str]], source: PhotoTable, data: DataConfig) -> PhotoTable:
    """The photos of a list, all of which the source has, as the list says; a photo that joins adds no class."""
    labels = [row["label"] for row in rows]
    if data.source in DRAWN:
        classes = source.classes
    elif Path(data.source).suffix == ".npz":  # its classes are numbers
        classes = tuple(str(number) for number in range(1 + max(map(int, labels), default=-1)))
    else:
        classes = tuple(sorted({*labels}))
    number = {label: index for index, label in enumerate(classes)}
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in ("client", "split")}
    if all("parent" in row for row in rows):
        columns |= {name: [row[name] for row in rows] for name in ("domain", "parent")}
    else:  # a list of Refocus 0.1 has one of the two as "domain"
        position = {name: index for index, name in enumerate(source.photo.tolist())}
        at = np.array([position[row["photo"]] for row in rows], dtype=np.int64)
        columns |= {"domain": source.domain[at], "parent": source.parent[at]}
    photos, index = [row["photo"] for row in rows], np.array([number[label] for label in labels], dtype=np.int64)
    return PhotoTable.of(photos, index, source.read, classes, stamp=source.stamp, **columns)


def _check_nobody_changed_sides(rows: list[dict[str, str]], earlier: list[dict[str, str]]) -> None:
    """Whoever taught the current release would flatter it as a judge: the better candidate could never pass."""
    for column, what in (("client", "person"), ("sha256", "photo")):
        taught = {row[column] for row in earlier if row["split"] != "test"}
        judging = sorted({row[column] for row in rows if row["split"] == "test"} & taught)
        if judging:
            raise DataError(
                f"the {what} '{judging[0]}' taught the current release and would judge it now, with"
                f" {len(judging) - 1} more; keep people in their split"
            )
