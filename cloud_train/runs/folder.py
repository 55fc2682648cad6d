"""A run's folder: its settings, and results that are computed once, each a file that is written whole or not at all."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from refocus.cloud_train.data.table import PhotoTable, copies_across_splits
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.locks import one_at_a_time
from refocus.cloud_train.progress import say
from refocus.cloud_train.settings import flat, settings_toml
from refocus.edge.errors import RefocusError
from refocus.edge.files import replaced, write_file
from refocus.edge.recognize import LABEL_SEPARATOR
from refocus.export.parity import write_labels

Settings = TypeVar("Settings")
Result = TypeVar("Result")


def save_settings(path: Path, config: Any) -> None:
    """Writes a run's settings, a dataclass."""
    write_file(path, json.dumps(asdict(config), indent=2) + "\n")


def read_settings(path: Path, kind: type[Settings]) -> Settings:
    """A run's settings.

    Raises:
        UsageError: the file is not of that kind.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is not a run's settings ({error}); remove the folder and train again") from None


def settings_of(path: Path, asked: Settings | None, kind: type[Settings], what: str) -> Settings:
    """What was asked for, or else what the folder of a run holds.

    Args:
        what: made the run, as "a TAPER run; make one with refocus train taper".

    Raises:
        UsageError: the folder holds a run with other settings, or none and none were given.
    """
    if asked is None and not path.exists():
        raise UsageError(f"{path.parent} is not {what}")
    if asked is None:
        return read_settings(path, kind)
    if path.exists() and (there := read_settings(path, kind)) != asked:
        kept = path.parent / RUN_SETTINGS
        go_on = f"go on with --config {kept}, or " if kept.exists() else ""
        raise UsageError(
            f"{path.parent} holds a run with other settings ({_differing(there, asked)}); {go_on}choose another folder"
        )
    return asked


def _differing(there: Any, asked: Any) -> str:
    """The first settings that are not the same, as "bases: 12 there, 6 asked for"."""
    one, other = (dict(flat(msgspec.to_builtins(settings))) for settings in (there, asked))
    names = [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]
    told = [
        f"{name}: {str(one.get(name, 'none'))[:60]} there, {str(other.get(name, 'none'))[:60]} asked for"
        for name in names[:NAMED_SETTINGS]
    ]
    more = len(names) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more > 0 else "")


RUN_SETTINGS = "run.toml"
CHOSEN = "\n# Chosen by the run:\n"
NAMED_SETTINGS = 3  # that differ, which an error names
PHOTOS_OF_RUN = "data.sha256"
LOCK = ".lock"
INPUTS_OF_RUN = "inputs.json"
_CONTENTS, _STAMPS = "photos' contents", "stamps"
KEPT = ("features",)  # by their content: whatever the settings, they are found again or not used


def same_photos(
    folder: Path, fingerprint: str, what: str = "other photos, labels, people or splits", made: Iterable[Path] = ()
) -> None:
    """Note which photos, labels, people and splits a run has.

    Args:
        folder: of the run.
        fingerprint: digest of photos, labels, people and splits.
        what: others are called in the error.
        made: what was made of them so far; where none of it is there, others may take their place. Default: they may
            not.

    Raises:
        DataError: the run was started on others.
    """
    path, text, made = folder / PHOTOS_OF_RUN, f"{fingerprint}\n", [*made]
    known = path.read_text() if path.exists() else ""
    if known and known != text and (not made or any(one.exists() for one in made)):
        raise DataError(f"{folder} was started on {what}; restore them, or choose another folder")
    if known != text:  # others may open the run at the same time
        write_file(path, text)


def same_inputs(folder: Path, inputs: Mapping[str, str], made: Iterable[Path] = ()) -> bool:
    """Note the inputs of a run that :func:`same_photos` does not cover.

    These are contents of photos, weights and descriptions.

    Args:
        folder: of the run.
        inputs: a digest of each, by what it is called in the error.
        made: what was made of them so far; where none of it is there, others may take their place.

    Returns:
        Whether others took their place; what was computed of those before is to be computed again.

    Raises:
        DataError: the run was started on others.
    """
    path = folder / INPUTS_OF_RUN
    known = _noted(path)
    changed = [name for name, digest in inputs.items() if name != _STAMPS and known.get(name, digest) != digest]
    if changed and any(one.exists() for one in made):
        raise DataError(f"{folder} was started on other {', '.join(changed)}; restore them, or choose another folder")
    if {**known, **inputs} != known:
        write_file(path, json.dumps({**known, **inputs}, sort_keys=True))
    return bool(changed)


def contents(folder: Path, table: PhotoTable) -> dict[str, str]:
    """A digest of the photos' bytes, as :func:`same_inputs` takes it; they are read again only where stamps changed."""
    if table.stamp is str:  # drawn by their names
        return {}
    stamps = hashlib.sha256("\0".join(map(table.stamp, table.photo.tolist())).encode()).hexdigest()
    known = _noted(folder / INPUTS_OF_RUN)
    if known.get(_STAMPS) == stamps and _CONTENTS in known:
        return {_STAMPS: stamps, _CONTENTS: known[_CONTENTS]}
    digest = hashlib.sha256()
    for name in table.photo.tolist():
        digest.update(hashlib.sha256(table.read(name)).digest())
    return {_STAMPS: stamps, _CONTENTS: digest.hexdigest()}


def tell_copies(table: PhotoTable) -> None:
    """Says which photos stand in two splits: what was trained on flatters the figures of those who are judged."""
    found = copies_across_splits(table)
    if found:
        pairs = "; ".join(f"{one} and {other}" for one, other in found[:3])
        more = "; …" if len(found) > 3 else ""
        say(
            f"{len(found)} of {len(table)} photos are copies, byte for byte, of photos of another split"
            f" ({pairs}{more}); they flatter what is measured: remove one of each"
        )


def _noted(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise DataError(f"{path} is damaged ({error}); remove the folder and train again") from None


@contextmanager
def starting(folder: Path, alone: bool = False) -> Iterator[None]:
    """A start that fails by a mistake of the caller's leaves nothing behind that refuses the corrected call.

    Once something was trained for a seed the run has begun, and stays as it is.

    Args:
        alone: another process that starts in this folder waits for this one.
    """
    with one_at_a_time(folder / LOCK) if alone else nullcontext(), _starting(folder):
        yield


@contextmanager
def _starting(folder: Path) -> Iterator[None]:
    before = {*folder.rglob("*")}
    try:
        yield
    except RefocusError:
        made = sorted({*folder.rglob("*")} - before, reverse=True)  # what is inside a folder before the folder
        trained = {path for path in folder.glob("seed-*/**/*") if path.is_file() and not path.name.startswith(".")}
        for path in made if not trained - before else []:
            if path.is_dir():
                with suppress(OSError):
                    path.rmdir()
            elif (not trained and path.relative_to(folder).parts[0] not in KEPT) or path.match("run*.toml"):
                path.unlink(missing_ok=True)
        if not trained:
            (folder / LOCK).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()
        raise


def note_settings(folder: Path, settings: Any, chosen: Sequence[str] = ()) -> None:
    """Write ``run.toml``, which repeats a command; if another command wrote one to the folder, ``run-2.toml``.

    Args:
        chosen: settings that the run chose by itself and why; they are added as comments.
    """
    text = settings_toml(settings)
    whole = "".join([text, CHOSEN, *(f"# {line}\n" for line in chosen)])
    for number in itertools.count(1):
        path = folder / (RUN_SETTINGS if number == 1 else f"run-{number}.toml")
        if not path.exists():
            write_file(path, text)
        found = path.read_text(encoding="utf-8")
        if found.partition(CHOSEN)[0] == text:
            if chosen and found != whole:
                write_file(path, whole)
            return


def _read_archive(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _write_arrays(arrays: np.ndarray | Mapping[str, np.ndarray], path: Path, _: object) -> None:
    with path.open("wb") as stream:
        if isinstance(arrays, np.ndarray):
            np.save(stream, arrays)
        else:
            np.savez(stream, allow_pickle=False, **arrays)


def _write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None) -> None:
    save_file({name: value.detach().clone().contiguous() for name, value in tensors.items()}, path, metadata)


def _write_json(result: Any, path: Path, _: object) -> None:
    path.write_text(json.dumps(result) + "\n")


# By suffix: reads a result, and writes it with metadata, which tensors alone can have.
FORMATS: dict[str, tuple[Callable[[Path], Any], Callable[[Any, Path, dict[str, str] | None], object]]] = {
    ".json": (lambda path: json.loads(path.read_text()), _write_json),
    ".npy": (np.load, _write_arrays),
    ".npz": (_read_archive, _write_arrays),
    ".safetensors": (load_file, _write_tensors),
}


def once(path: Path, compute: Callable[[], Result], what: str = "", before: float = 0.0) -> Result:
    """What a file holds; whoever asks first computes it, and others wait. A file that exists needs no lock.

    Args:
        path: its suffix says how the result is stored: ``.json``, an array in ``.npy``, arrays by name in ``.npz``,
            tensors by name in ``.safetensors``.
        what: is said with the seconds that computing took; tensors have these in their metadata too.
    """
    read, write = FORMATS[path.suffix]
    if not path.exists():
        with one_at_a_time(path.with_name(f".{path.stem}.lock")):
            if not path.exists():
                started = time.monotonic()
                result = compute()
                seconds = time.monotonic() - started + before
                with replaced(path) as temporary:
                    write(result, temporary, {"seconds": f"{seconds:.1f}"} if what else None)
                if what:
                    say(f"{what}, {seconds:.0f} s")
    try:
        stored: Result = read(path)
        if path.suffix == ".json" and (stored is None or stored == {}):
            raise ValueError("it holds nothing")
    except (ValueError, EOFError, zipfile.BadZipFile, SafetensorError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it, and it is computed again") from None
    return stored


def photo_folder(place: Path, table: PhotoTable, rows: Iterable[tuple[str, int]]) -> Path:
    """Photos as files with their labels, for parity and the self-test of bundles; an existing folder is left alone.

    Args:
        rows: of each photo "STREAM/NUMBER", its place below ``place`` without a suffix, and its row of the table.
    """
    if place.exists():
        return place
    unfinished, labels = place.with_name(f"{place.name}.unfinished"), []
    for stem, row in rows:
        name = str(table.photo[row])
        file = unfinished / f"{stem}{PurePosixPath(name).suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(table.read(name))
        labels.append((file, LABEL_SEPARATOR.join(table.names(row))))
    write_labels(unfinished, labels)
    unfinished.rename(place)
    return place


def numbered(people: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, int]]:
    """Rows of clients' streams for :func:`photo_folder`."""
    taken: set[str] = set()
    for client, rows in people:
        begun = re.sub(r"[/\\\0]", "_", client).encode()[:100]  # names of files are limited in bytes
        plain = begun.decode(errors="ignore").strip(". ") or "_"
        names = itertools.chain([plain], (f"{plain}-{count}" for count in itertools.count(2)))
        folder = next(name for name in names if name not in taken)
        taken.add(folder)
        for number, row in enumerate(rows.tolist()):
            yield f"{folder}/{number:03d}", row
