"""Photos of the Hugging Face Hub: ``hf:OWNER/NAME`` or ``hf:OWNER/NAME@REVISION``.

A data set is downloaded once into the cache of ``huggingface_hub`` (the environment variable ``HF_HOME``); offline, the
cached copy is used. No code of the data set is downloaded or run. Two layouts are read: folders of photos, as
:func:`refocus.cloud_train.data.imagefolder.load_photos` reads them, and Parquet files with the photos inside, as the
Hub stores uploaded image data sets.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refocus.cloud_train.data.label_sets import as_text, labels_of
from refocus.cloud_train.data.table import PhotoTable, split_named
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.progress import say

PREFIX = "hf:"
_NAME = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_IGNORED = ["*.py", "*.sh", "*.bin", "*.pt", "*.pkl", "*.safetensors", "*.onnx"]


def is_hub(source: str | Path) -> bool:
    """Whether a source names a data set of the Hub."""
    return str(source).startswith(PREFIX)


def downloaded(source: str) -> Path:
    """Folder of a data set in the local cache; downloaded now, if it is not there yet.

    Args:
        source: ``hf:OWNER/NAME``, optionally with ``@`` and a branch, tag or commit.

    Raises:
        DataError: not such a name, no such data set, or neither a network nor a cached copy.
    """
    from huggingface_hub import snapshot_download

    found = _NAME.fullmatch(source)
    if found is None:
        raise DataError(f"--data {source}: expected hf:OWNER/NAME or hf:OWNER/NAME@REVISION")
    asked: dict[str, Any] = {"repo_type": "dataset", "revision": found["revision"], "ignore_patterns": _IGNORED}
    try:
        folder = Path(str(snapshot_download(found["repository"], **asked)))
    except Exception as error:  # the library's errors, its HTTP client's and the operating system's share no type
        raise DataError(
            f"--data {source} can neither be downloaded nor found in the cache ({type(error).__name__}: {error}); check"
            " the name and the network, and log in with `hf auth login` if the data set is restricted"
        ) from None
    say(f"{source}: revision {folder.name}")
    return folder


def parquet_files(folder: Path) -> list[Path]:
    """Parquet files with photos inside, in the order of their names; a ``metadata.parquet`` lists photos beside it."""
    return sorted(path for path in folder.rglob("*.parquet") if path.name != "metadata.parquet")


@dataclass
class _Shards:
    """Photos inside Parquet files; the row group that was read last stays in memory.

    Attributes:
        files: by name.
        column: of the photos.
    """

    files: Mapping[str, Any]
    column: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: tuple[str, int, Any] = ("", -1, None)

    def read(self, name: str) -> bytes:
        """Encoded bytes of ``FILE#ROW``."""
        file, _, row = name.rpartition("#")
        group, place = self._group(file, int(row))
        with self._lock:
            if self._last[:2] != (file, group):
                self._last = (file, group, self.files[file].read_row_group(group, [self.column])[self.column])
            photo = self._last[2][place].as_py()
        content = photo if isinstance(photo, bytes) else (photo or {}).get("bytes")
        if not content:
            raise DataError(
                f"--data: row {row} of {file} has no photo inside; photos beside Parquet files are not read"
            )
        return bytes(content)

    def _group(self, file: str, row: int) -> tuple[int, int]:
        """Row group that holds a row, and the row's place in it."""
        metadata = self.files[file].metadata
        for number in range(metadata.num_row_groups):
            rows = metadata.row_group(number).num_rows
            if row < rows:
                return number, row
            row -= rows
        raise DataError(f"--data: {file} has no such row")


def load_parquet(folder: Path, where: str, columns: Mapping[str, str], several: bool = False) -> PhotoTable:
    """Photos inside Parquet files.

    Args:
        where: the source, for messages.
        columns: names of the columns ``label`` and, where there are some, ``client``, ``domain`` and ``parent``; "":
            none.
        several: as of :func:`refocus.cloud_train.data.imagefolder.load_photos`.

    Raises:
        DataError: a file is damaged, no column holds photos, the label column is missing, or one file has a column, or
            names of its classes, that another one lacks.
    """
    import pyarrow
    from pyarrow import parquet

    paths = {path.relative_to(folder).as_posix(): path for path in parquet_files(folder)}
    try:
        files = {name: parquet.ParquetFile(path) for name, path in paths.items()}
        schemas = {name: file.schema_arrow for name, file in files.items()}
        first = next(iter(schemas.values()))
        image = _image_column(first, _features(first), where)
        _check_label({*first.names} - {image}, columns["label"], where)
        wanted = {to: name for to, name in columns.items() if any(name in schema.names for schema in schemas.values())}
        _check_each_has(schemas, [image, *wanted.values()], where)
        read = {name: file.read([*dict.fromkeys(wanted.values())]) for name, file in files.items()}
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"--data {where}: its Parquet files cannot be read ({error})") from None
    names_of = {to: _class_names(schemas, name, where) for to, name in wanted.items()}
    of: dict[str, list[str]] = {
        to: [text for file, table in read.items() for text in _texts(table[name], names_of[to][file])]
        for to, name in wanted.items()
    }
    photo = [f"{name}#{row}" for name, table in read.items() for row in range(table.num_rows)]
    split = [_split(name) for name, table in read.items() for _ in range(table.num_rows)]
    labelled = [row for row, text in enumerate(of["label"]) if text or several]
    if not labelled:
        raise DataError(f"--data {where}: no row has a {columns['label']}")
    photo, split, labels, *_ = ([values[row] for row in labelled] for values in (photo, split, of.pop("label")))
    others: dict[str, Any] = {to: [texts[row] for row in labelled] for to, texts in of.items()}

    def stamp(name: str) -> str:  # files of a revision never change
        return f"{folder.name} {name}"

    read_photo = _Shards(files, image).read
    classes, index = labels_of(photo, labels, columns["label"], where, several)
    return PhotoTable.of(photo, index, read_photo, classes, split=split, stamp=stamp, **others)


def _features(schema: Any) -> dict[str, Any]:
    """Notes of the ``datasets`` library about each column; empty, if it did not write the file."""
    noted = (schema.metadata or {}).get(b"huggingface")
    try:
        found = json.loads(noted)["info"]["features"] if noted else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _image_column(schema: Any, features: Mapping[str, Any], where: str) -> str:
    """The column that holds photos: as the file notes, else the first one of bytes or of structures with ``bytes``."""
    import pyarrow

    for name in schema.names:
        kind = schema.field(name).type
        inside = pyarrow.types.is_struct(kind) and any(kind.field(n).name == "bytes" for n in range(kind.num_fields))
        if features.get(name, {}).get("_type") == "Image" or inside or pyarrow.types.is_binary(kind):
            return str(name)
    raise DataError(f"--data {where}: no column holds photos; it has {', '.join(schema.names)}")


def _check_label(present: set[str], label: str, where: str) -> None:
    if label not in present:
        raise DataError(
            f"--data {where} has no column '{label}', it has {', '.join(sorted(present)) or 'photos alone'}; name"
            " another as label_column"
        )


def _check_each_has(schemas: Mapping[str, Any], columns: Sequence[str], where: str) -> None:
    """Raises DataError where a file lacks a column that another one has."""
    for column in columns:
        has = [name for name, schema in schemas.items() if column in schema.names]
        for name in schemas:
            if name not in has:
                raise DataError(
                    f"--data {where}: {name} has no column '{column}', which {has[0]} has; expected the same columns in"
                    " each file"
                )


def _class_names(schemas: Mapping[str, Any], column: str, where: str) -> dict[str, list[Any] | None]:
    """By file, the names that it notes of a column's numbers; None of a column of text, or where none are noted.

    Raises:
        DataError: a file has numbers of classes without names, and another one names them.
    """
    import pyarrow

    found = {}
    for file, schema in schemas.items():
        noted = _features(schema).get(column)
        found[file] = noted.get("names") if isinstance(noted, dict) and noted.get("_type") == "ClassLabel" else None
    named = next((file for file, names in found.items() if names is not None), None)
    for file, names in found.items():
        if named is not None and names is None and pyarrow.types.is_integer(schemas[file].field(column).type):
            raise DataError(
                f"--data {where}: {file} does not name the classes of its column '{column}', and {named} does; expected"
                " their names in the schema of each file"
            )
    return found


def _texts(column: Any, names: Sequence[Any] | None) -> Sequence[str]:
    """Values as text; numbers of classes as their names, where there are some. Nothing, or a negative class, is ""."""
    values = column.to_pylist()
    if names is None:
        return [as_text(value) for value in values]
    return ["" if value is None or not 0 <= value < len(names) else str(names[value]) for value in values]


def _split(file: str) -> str:
    """The split that a file's name or folder states: ``data/train-00000-of-00001.parquet`` is of "train"."""
    path = Path(file)
    for word in (re.split(r"[-.]", path.name)[0], path.parent.name):
        if found := split_named(word):
            return found
    return ""
