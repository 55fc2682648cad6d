"""Photos for parity and calibration: one folder per person, in the order of the file names."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from PIL import Image, ImageSequence

from refocus.edge.errors import RefocusError
from refocus.edge.photos import decode_photo
from refocus.edge.recognize import find_photos
from refocus.export.errors import ExportError

Streams = dict[str, list[Path]]
METADATA = "metadata.csv"
FEWEST_PEOPLE, FEWEST_PHOTOS = 2, 16  # that parity is measured on


def read_streams(folder: Path, flag: str = "--photos") -> Streams:
    """Photos to compare on: each subfolder is one person's stream, in the order of the file names.

    Other files, such as ``.DS_Store``, ``Thumbs.db`` and the table of labels, are left out.

    Raises:
        ExportError: there is none, or the table of labels beside a file that is no photo by its name cannot be read.
    """
    inside = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    streams = {path.name: photos for path in inside if not path.name.startswith(".") and (photos := _photos_in(path))}
    if not any(len(photos) > 1 for photos in streams.values()):
        raise ExportError(
            f"{flag} {folder}: expected one folder of photos per person, with several photos; parity needs histories"
        )
    return streams


def _photos_in(folder: Path) -> list[Path]:
    """A person's photos: those by their names, and those whose names say nothing where a table of labels lists them, as
    a run keeps photos that came as arrays."""
    named: set[Path] = set()
    with contextlib.suppress(RefocusError):  # no photo by its name
        named = {photo for photo in find_photos([folder]) if photo.parent == folder}
    files = {path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}
    others = sorted(path for path in files - named if path.name != METADATA)
    listed = labels_of({folder.name: others}).keys() if others else set()
    return sorted(named | listed & set(others))


def pooled_streams(folder: Path, flag: str = "--photos", streams: int = 2, fewest: int = 0) -> Streams:
    """All photos below a folder, dealt in turns to some streams: for programs that read no history.

    Args:
        fewest: photos that there must be, and two for each stream.

    Raises:
        ExportError: there are fewer.
    """
    found, fewest = find_photos([folder]) if folder.is_dir() else [], max(fewest, 2 * streams)
    if len(found) < fewest:
        raise ExportError(
            f"{flag} {folder}: expected a folder of {fewest} photos or more, found {len(found)}; add photos"
        )
    return {f"stream {number}": found[number::streams] for number in range(streams)}


def labels_of(streams: Streams) -> dict[Path, str]:
    """Labels of photos.

    They come from ``metadata.csv`` (columns ``file_name``, ``label``) beside a photo or beside its folder. In streams
    of photos from several folders (:func:`pooled_streams`) the folder's name is the label where no table gives one.

    Raises:
        ExportError: the table lacks one of the two columns, or cannot be read.
    """
    everything = [photo for photos in streams.values() for photo in photos]
    several = len({photo.parent for photos in list(streams.values())[:1] for photo in photos}) > 1
    found = {photo: photo.parent.name for photo in everything} if several else {}
    for folder in sorted({folder for photo in everything for folder in (photo.parent, photo.parent.parent)}):
        table = folder / METADATA
        if table.is_file():
            found |= {folder / name: label for name, label in _rows_of(table)}
    return found


def _rows_of(table: Path) -> Iterator[tuple[str, str]]:
    """File name and label of each row."""
    try:
        rows = csv.DictReader(io.StringIO(table.read_bytes().decode("utf-8-sig"), newline=""))
        if not {"file_name", "label"} <= set(rows.fieldnames or ()):
            raise ExportError(f"{table}: expected the columns file_name and label, found {rows.fieldnames}")
        for number, row in enumerate(rows, 1):
            if None in row or not row["file_name"] or row["label"] is None:
                raise ExportError(
                    f"{table}: row {number} has other cells than the header; put values with commas in quotes"
                )
            yield row["file_name"], row["label"]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ExportError(f"{table} cannot be read as CSV in UTF-8 ({error})") from None


def write_labels(folder: Path, labels: Iterable[tuple[Path, str]]) -> None:
    """Writes the table that :func:`labels_of` reads: photos below ``folder`` and their labels."""
    with (folder / METADATA).open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("file_name", "label"))
        rows.writerows((photo.relative_to(folder).as_posix(), label) for photo, label in labels)


def distinct(photos: list[Path]) -> Iterator[tuple[Path, bytes]]:
    """Each photo once: a device knows a photo it has seen, the plain reference does not."""
    seen = set()
    for path in photos:
        content = path.read_bytes()
        if content not in seen:
            seen.add(content)
            yield path, content


def contents(streams: Streams, shortest: int) -> dict[str, list[tuple[Path, bytes]]]:
    """Encoded photos of each person in order; the two longest streams are continued to ``shortest`` photos.

    People often have fewer photos than a comparison needs to fill a history and to evict from it. Mirrored and turned
    copies of the same photos continue them: other pixels of the same kind, as real as the originals to a program.
    """
    found = {name: list(distinct(photos)) for name, photos in streams.items()}
    for name in sorted(found, key=lambda name: -len(found[name]))[:2]:
        found[name] += itertools.islice(_variants(found[name]), max(0, shortest - len(found[name])))
    return found


def _variants(photos: list[tuple[Path, bytes]]) -> Iterator[tuple[Path, bytes]]:
    """Seven mirrored or turned copies of every photo, without loss; no two of them with the same bytes."""
    seen = {content for _, content in photos}
    for method in Image.Transpose:
        for path, content in photos:
            copy = _turned(content, str(path), method)
            if copy not in seen:
                seen.add(copy)
                yield path, copy


def _turned(content: bytes, where: str, method: Image.Transpose) -> bytes:
    """A mirrored or turned copy: a PNG, or of an animation, which may be a clip, a WebP of all its frames."""
    buffer = io.BytesIO()
    if content.startswith(b"GIF8") or content[8:12] == b"WEBP":
        with Image.open(io.BytesIO(content)) as image:
            first, *others = (frame.convert("RGB").transpose(method) for frame in ImageSequence.Iterator(image))
        first.save(buffer, "WEBP", save_all=True, append_images=others, lossless=True, quality=0, method=0)
    else:
        decode_photo(content, where).transpose(method).save(buffer, "PNG")
    return buffer.getvalue()
