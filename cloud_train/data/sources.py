"""Photos in a few published forms, told apart by what a source is: a table with labels and clients of each.

Folders and .zip files of photos and data sets of the Hugging Face Hub (:mod:`refocus.cloud_train.data.imagefolder`); an
``.npz`` of arrays, as federated benchmarks hand out their clients (PFLlib and its likes); and the archives of Omniglot.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError

_COLUMNS = "x (R, S, S) or (R, S, S, 3) uint8, y (R,), client (R,) and, if the test photos are fixed, is_test (R,)"
_COLUMN_NAMES = frozenset({"x", "y", "client"})
MOST_CLASSES = 65_536  # of arrays: a data set's own numbers would make as many classes as the largest of them
_LEAST_PARTS = 3  # ALPHABET/CHARACTER/NUMBER_DRAWER.png


def load_source(source: Path, *columns: str, several: bool = False) -> PhotoTable:
    """The photos of a source of any of these forms.

    Args:
        columns: names of the label, client, domain and parent columns of a metadata file, in the order of
            :func:`refocus.cloud_train.data.imagefolder.load_photos`; arrays and Omniglot have none.
        several: photos have several labels each, which arrays and Omniglot have not.

    Raises:
        DataError: there is nothing of the kind; the message says what was expected.
    """
    arrays = source.suffix == ".npz"
    if not arrays and not (source.is_dir() and any(source.glob("images_background*.zip"))):
        return load_photos(source, *columns, several=several)
    if several:
        raise DataError(f"--data {source}: its photos have one label each; leave data.labels = several out")
    return load_arrays(source) if arrays else omniglot(source)


def load_arrays(source: Path) -> PhotoTable:
    """An ``.npz`` of photos, labels and clients; classes are named by their numbers.

    Raises:
        DataError: not such a file; it is never unpickled.
    """
    try:
        with np.load(source, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"--data {source} is not a readable .npz ({error}); expected {_COLUMNS}") from None
    if _COLUMN_NAMES - set(found):
        raise DataError(f"--data {source} holds {', '.join(sorted(found)) or 'nothing'}; expected {_COLUMNS}")
    pixels, rows = found["x"], {name: found[name] for name in (*_COLUMN_NAMES, "is_test") if name in found}
    of_pixels = pixels.dtype == np.uint8 and (pixels.ndim == 3 or pixels.shape[3:] == (3,))
    whole = all(array.ndim == 1 and array.dtype.kind in "iub" for name, array in rows.items() if name != "x")
    if not (of_pixels and whole and len({len(array) for array in rows.values()}) == 1):
        shapes = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in sorted(rows.items()))
        raise DataError(f"--data {source} holds {shapes}; expected {_COLUMNS}, all but x of whole numbers, R rows each")
    label = found["y"].astype(np.int64)
    if (most := int(label.max(initial=0))) >= MOST_CLASSES:
        raise DataError(
            f"--data {source}: y goes up to {most}; expected class indices below {MOST_CLASSES}, number classes from 0"
        )

    def read(name: str) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(pixels[int(name)]).convert("RGB").save(stream, "PNG", compress_level=1)
        return stream.getvalue()

    return PhotoTable.of(
        np.arange(len(label)).astype(str),
        label,
        read,
        tuple(str(number) for number in range(most + 1)),
        client=[f"client-{number:04d}" for number in found["client"].tolist()],
        stamp=lambda name: hashlib.sha256(pixels[int(name)].tobytes()).hexdigest(),
        **({"split": np.where(found["is_test"], "test", "train")} if "is_test" in found else {}),
    )


def omniglot(folder: Path) -> PhotoTable:
    """Omniglot's drawings in the archives of a folder: characters, each drawn once by each of twenty people.

    Lake et al., Human-level concept learning through probabilistic program induction, Science 2015.

    The people are natural clients. Nobody draws a character twice, so within a person only the alphabet can be learned
    from some of their drawings and judged on others: that is the class here, and the character is the domain.

    Raises:
        DataError: no archive, or names of another form.
    """
    archives = sorted(folder.glob("images_background*.zip"))
    if not archives:
        raise DataError(f"--data {folder}: no images_background*.zip in it; give the folder of Omniglot's archives")
    tables = {str(archive.name): load_photos(archive) for archive in archives}
    names = [f"{archive}:{name}" for archive, table in tables.items() for name in table.photo.tolist()]
    places = [PurePosixPath(name.partition(":")[2]) for name in names]
    if not all(len(place.parts) >= _LEAST_PARTS and "_" in place.stem for place in places):
        raise DataError(f"--data {folder}: expected drawings named ALPHABET/CHARACTER/NUMBER_DRAWER.png")

    def read(name: str) -> bytes:
        archive, _, place = name.partition(":")
        return tables[archive].read(place)

    def stamp(name: str) -> str:
        archive, _, place = name.partition(":")
        return tables[archive].stamp(place)

    return PhotoTable.of(
        names,
        [place.parts[-3] for place in places],
        read,
        stamp=stamp,
        client=[f"drawer-{place.stem.rpartition('_')[2]}" for place in places],
        domain=["/".join(place.parts[-3:-1]) for place in places],
    )
