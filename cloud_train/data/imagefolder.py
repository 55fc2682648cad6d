"""Photos on disk: the Hugging Face imagefolder convention, a plain class-per-folder tree, or either in a zip file."""

from __future__ import annotations

import csv
import io
import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from refocus.cloud_train.data.hub import downloaded, is_hub, load_parquet, parquet_files
from refocus.cloud_train.data.label_sets import as_text, labels_of
from refocus.cloud_train.data.table import COLUMNS, SPLITS, PhotoTable, split_named
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.progress import say
from refocus.edge.files import walk
from refocus.edge.photos import MAX_PHOTO_BYTES

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
PHOTOS_UNREAD = {".apng", ".avif", ".dng", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jxl"}
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def load_photos(
    source: Path,
    label_column: str = "label",
    client_column: str = "client",
    domain_column: str = "domain",
    parent_column: str = "",
    *,
    several: bool = False,
) -> PhotoTable:
    """Reads a folder or a zip file of photos, or a data set of the Hugging Face Hub.

    With a metadata file: one row per photo, ``file_name`` relative to the metadata file, the label column, and
    optionally the client, domain and parent columns and ``split``. Without: every photo's folder names its class, and
    the folder above, in trees of ``SPLIT/CLASS/photo``, its split, or in a tree of ``DOMAIN/CLASS/photo``, where one
    class at least stands in several domains, its domain.

    Args:
        source: the folder, the .zip file or ``hf:OWNER/NAME`` (:mod:`refocus.cloud_train.data.hub`).
        label_column, client_column, domain_column, parent_column: names of those columns; "": none.
        several: a photo's label column names several labels with ``;`` between them, or none where it is empty
            (:mod:`refocus.cloud_train.data.label_sets`).

    Raises:
        DataError: nothing there, no labels, rows that point nowhere; the message says what was expected.
    """
    columns = {"label": label_column, "client": client_column, "domain": domain_column, "parent": parent_column}
    if is_hub(source):
        where, source = str(source), downloaded(str(source))
        if parquet_files(source):
            return load_parquet(source, where, columns, several)
    if not source.exists():
        raise DataError(
            f"--data {source}: no such folder or file; give a folder of photos, a .zip, hf:OWNER/NAME, or 'glyphs'"
        )
    names, read, stamp = _open_zip(source) if source.is_file() else _open_folder(source)
    names = [
        name
        for name in names
        if not name.startswith("__MACOSX/") and not any(part.startswith(".") for part in PurePosixPath(name).parts)
    ]
    found = [name for name in names if PurePosixPath(name).name in METADATA]
    places = {PurePosixPath(name).parent for name in found}
    if len(places) < len(found):
        raise DataError(f"--data {source} holds {len(found)} metadata files ({', '.join(found)}); keep one per folder")
    if found:
        records = [row for name in found for row in _records(name, read(name), columns, str(source))]
        return _from_metadata(records, (names, read, stamp), label_column, str(source), several)
    if several:
        raise DataError(
            f"--data {source}: data.labels = several needs a {METADATA[0]} whose column {label_column} has all"
            " labels of a photo, as a;b; without one a photo has the name of its folder as its one label"
        )
    return _from_tree((names, read, stamp), str(source))


Source = tuple[list[str], Callable[[str], bytes], Callable[[str], str]]  # names, read, stamp


def _open_folder(folder: Path) -> Source:
    names = sorted(_files_of(folder))

    def read(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise DataError(f"{folder / name} cannot be read ({error.strerror})") from None

    def stamp(name: str) -> str:
        found = (folder / name).stat()
        return f"{found.st_size} {found.st_mtime_ns}"

    return names, read, stamp


def _files_of(folder: Path) -> Iterator[str]:
    """Names of the files below a folder, linked folders followed once each."""
    for place, _, files in walk(folder, set()):
        for name in files:
            if not (place / name).is_file():
                continue
            found = (place / name).relative_to(folder).as_posix()
            try:
                found.encode()
            except UnicodeEncodeError:
                shown = found.encode(errors="backslashreplace").decode()
                raise DataError(f"--data {folder}: the name {shown} is not UTF-8; rename the file") from None
            yield found


def _open_zip(path: Path) -> Source:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"--data {path} is neither a folder nor a zip file ({error})") from None
    files = {info.filename: info for info in archive.infolist() if not info.is_dir()}
    lock = threading.Lock()  # one file handle serves all readers

    def read(name: str) -> bytes:
        if files[name].file_size > MAX_PHOTO_BYTES:
            raise DataError(
                f"{path}: {name} unpacks to {files[name].file_size} bytes; up to {MAX_PHOTO_BYTES} are read"
            )
        try:
            with lock:
                return archive.read(name)
        except Exception as error:  # damaged, or encrypted: zipfile and its decompressors raise many types
            why = str(error) or type(error).__name__
            raise DataError(f"{path}: {name} cannot be read ({why}); restore it") from None

    return sorted(files), read, lambda name: str(files[name].CRC)


def _records(name: str, content: bytes, column_of: dict[str, str], where: str) -> Iterator[dict[str, str]]:
    """The rows of one metadata file as text, ``photo`` being the path below the data folder."""
    try:
        rows = _parse(name, content)
    except (ValueError, OSError, csv.Error) as error:  # JSON, UTF-8 and Arrow errors are among these
        raise DataError(f"--data {where}: {name} cannot be read as its name says ({error})") from None
    base = PurePosixPath(name).parent
    split_by_folder = split_named(base.name)
    for number, row in enumerate(rows, 1):
        if isinstance(row, dict) and None in row:
            raise DataError(
                f"--data {where}: {name}, row {number} has more cells than the header; put values with commas in"
                ' quotes, as "player, CD"'
            )
        for needed, flag in (("file_name", ""), (column_of["label"], "; name another as label_column")):
            if not isinstance(row, dict) or row.get(needed) is None:
                has = sorted(row) if isinstance(row, dict) else type(row).__name__
                raise DataError(f"--data {where}: {name}, row {number} has no column '{needed}', it has {has}{flag}")
        record = {to: as_text(row.get(column)) if column else "" for to, column in column_of.items()}
        stated = as_text(row.get("split"))
        split = split_named(stated) if stated else split_by_folder
        if stated and not split:
            raise DataError(
                f"--data {where}: {name}, row {number} has the split '{stated[:40]}'; expected {', '.join(SPLITS)}"
                " (or val for validation), or no such column"
            )
        yield {**record, "photo": str(base / str(row["file_name"])), "split": split}


def _parse(name: str, content: bytes) -> list[Any]:
    if name.endswith(".csv"):
        return list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    if name.endswith(".jsonl"):  # no splitlines: a string may hold other line separators
        return [json.loads(line) for line in content.decode("utf-8-sig").split("\n") if line.strip()]
    import pyarrow as arrow
    from pyarrow import parquet

    return list(parquet.read_table(arrow.BufferReader(content)).to_pylist())


def _from_metadata(
    records: list[dict[str, str]], source: Source, label_column: str, where: str, several: bool
) -> PhotoTable:
    names, read, stamp = source
    column: dict[str, Any] = {name: [row[name] for row in records] for name in COLUMNS}
    photo, labels = column.pop("photo"), column.pop("label")
    if not records:
        raise DataError(f"--data {where} has no labels: its metadata has no rows")
    known = set(names)
    missing = [name for name in photo if name not in known]
    if missing:
        raise DataError(
            f"--data {where}: the metadata lists {len(missing)} photos that are missing, such as {missing[0]}"
        )
    if not several and "" in labels:
        first = photo[labels.index("")]
        raise DataError(f"--data {where}: the metadata has no {label_column} for {first}; every photo needs one")
    classes, index = labels_of(photo, labels, label_column, where, several)
    return PhotoTable.of(photo, index, read, classes, **column, stamp=stamp)


def _from_tree(source: Source, where: str) -> PhotoTable:
    names, read, stamp = source
    photo = [name for name in names if PurePosixPath(name).suffix.lower() in SUFFIXES]
    unread = [ending for name in names if (ending := PurePosixPath(name).suffix.lower()) in PHOTOS_UNREAD]
    if unread:
        endings = ", ".join(sorted(set(unread)))
        say(f"{len(unread)} photos are left out: {endings} are not read here; convert them to JPEG")
    labels = [PurePosixPath(name).parent.name for name in photo]
    if not photo or "" in labels:
        raise DataError(
            f"--data {where} has no labels: expected a {METADATA[0]} with the columns file_name and label, or one"
            f" folder per class; found {len(photo)} photos{' beside each other' if photo else ''}"
        )
    above = [PurePosixPath(name).parent.parent.name for name in photo]
    split = [split_named(folder) for folder in above]
    if all(split):
        return PhotoTable.of(photo, labels, read, stamp=stamp, split=split)
    return PhotoTable.of(photo, labels, read, stamp=stamp, domain=_domains(photo, above))


def _domains(photos: list[str], above: list[str]) -> list[str]:
    """Of each photo in a tree of ``DOMAIN/CLASS/photo`` its domain; "" in any other tree.

    Folders above classes name domains where one class at least stands in two of them, and none of them a split.

    Args:
        above: name of the folder above each photo's class.
    """
    of_class: dict[str, set[str]] = {}
    for name, domain in zip(photos, above, strict=True):
        of_class.setdefault(PurePosixPath(name).parent.name, set()).add(domain)
    several = any(len(found) > 1 for found in of_class.values())
    if not several or "" in above or any(map(split_named, {*above})):
        return [""] * len(photos)
    return above
