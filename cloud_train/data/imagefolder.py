"""Photos on disk: the Hugging Face imagefolder convention, a plain class-per-folder tree, or either in a zip file."""

from __future__ import annotations

import csv
import json
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from cloud_train.data.table import SPLITS, PhotoTable
from cloud_train.errors import DataError
from edge.preprocess import MAX_PHOTO_BYTES

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def load_photos(
    source: Path, label_column: str = "label", client_column: str = "client", domain_column: str = "domain"
) -> PhotoTable:
    """Reads a folder or a zip file of photos.

    With a metadata file: one row per photo, ``file_name`` relative to the metadata file, the label column, and
    optionally the client and domain columns and ``split``. Without: every photo's folder names its class.

    Args:
        source: the folder or the .zip file.
        label_column, client_column, domain_column: names of those columns; the domain may be a parent category.

    Raises:
        DataError: nothing there, no labels, rows that point nowhere; the message says what was expected.
    """
    if not source.exists():
        raise DataError(f"--data {source}: no such folder or file; give a folder of photos, a .zip, or 'glyphs'")
    names, read = _open_zip(source) if source.is_file() else _open_folder(source)
    found = [name for name in names if PurePosixPath(name).name in METADATA]
    if len(found) > 1:
        raise DataError(f"--data {source} holds {len(found)} metadata files ({', '.join(found)}); keep one")
    if found:
        records = _records(found[0], read(found[0]), str(source))
        columns = {"label": label_column, "client": client_column, "domain": domain_column}
        return _from_metadata(records, found[0], set(names), read, columns, str(source))
    return _from_tree([n for n in names if PurePosixPath(n).suffix.lower() in SUFFIXES], read, str(source))


def _open_folder(folder: Path) -> tuple[list[str], Callable[[str], bytes]]:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())

    def read(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise DataError(f"{folder / name} cannot be read ({error.strerror})") from None

    return names, read


def _open_zip(path: Path) -> tuple[list[str], Callable[[str], bytes]]:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"--data {path} is neither a folder nor a zip file ({error})") from None
    sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
    lock = threading.Lock()  # one file handle serves all readers

    def read(name: str) -> bytes:
        if sizes[name] > MAX_PHOTO_BYTES:
            raise DataError(f"{path}: {name} unpacks to {sizes[name]} bytes; up to {MAX_PHOTO_BYTES} are read")
        try:
            with lock:
                return archive.read(name)
        except (zipfile.BadZipFile, OSError) as error:
            raise DataError(f"{path}: {name} cannot be read ({error})") from None

    return sorted(sizes), read


def _records(name: str, content: bytes, where: str) -> list[dict[str, Any]]:
    try:
        if name.endswith(".csv"):
            return list(csv.DictReader(content.decode("utf-8-sig").splitlines()))
        if name.endswith(".jsonl"):
            return [json.loads(line) for line in content.decode("utf-8").splitlines() if line.strip()]
        import pyarrow as arrow
        from pyarrow import parquet

        rows: list[dict[str, Any]] = parquet.read_table(arrow.BufferReader(content)).to_pylist()
        return rows
    except (ValueError, OSError) as error:  # csv, JSON, UTF-8 and Arrow errors are all of these
        raise DataError(f"--data {where}: {name} cannot be read as its name says ({error})") from None


def _from_metadata(
    records: list[dict[str, Any]], metadata: str, names: set[str], read: Callable[[str], bytes],
    column_of: dict[str, str], where: str,
) -> PhotoTable:  # fmt: skip
    columns = set(records[0]) if records else set()
    label_column = column_of["label"]
    for needed, flag in (("file_name", ""), (label_column, "; name another with --label-column")):
        if needed not in columns:
            raise DataError(f"--data {where}: {metadata} has no column '{needed}', it has {sorted(columns)}{flag}")
    base = PurePosixPath(metadata).parent
    photo = [str(base / str(row["file_name"])) for row in records]
    missing = [name for name in photo if name not in names]
    if missing:
        raise DataError(f"--data {where}: {metadata} lists {len(missing)} photos that are not there, as {missing[0]}")
    text = {c: [str(row[c]) if row.get(c) is not None else "" for row in records] for c in columns}
    if "" in text[label_column]:
        row = text[label_column].index("")
        raise DataError(f"--data {where}: {metadata} has no label for {photo[row]}; every photo needs one")
    empty = [""] * len(records)
    split = [value if value in SPLITS else "" for value in text.get("split", empty)]
    client, domain = text.get(column_of["client"], empty), text.get(column_of["domain"], empty)
    return _table(photo, text[label_column], client, domain, split, read)


def _from_tree(photo: list[str], read: Callable[[str], bytes], where: str) -> PhotoTable:
    labels = [PurePosixPath(name).parent.name for name in photo]
    if not photo or "" in labels:
        raise DataError(
            f"--data {where} has no labels: expected a {METADATA[0]} with the columns file_name and label, or one"
            f" folder per class; found {len(photo)} photos{' beside each other' if photo else ''}"
        )
    empty = [""] * len(photo)
    return _table(photo, labels, empty, empty, empty, read)


def _table(
    photo: list[str], labels: list[str], client: list[str], domain: list[str], split: list[str],
    read: Callable[[str], bytes],
) -> PhotoTable:  # fmt: skip
    classes, index = np.unique(np.array(labels), return_inverse=True)
    return PhotoTable(
        photo=np.array(photo),
        label=index.astype(np.int64),
        client=np.array(client),
        domain=np.array(domain),
        split=np.array(split, dtype="<U10"),
        classes=tuple(str(name) for name in classes),
        read=read,
    )
