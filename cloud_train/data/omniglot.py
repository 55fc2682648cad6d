"""Omniglot: handwritten characters, each drawn once by each of twenty people (Lake et al., Science 2015).

The people are natural clients. Nobody draws a character twice, so within a person only the alphabet can be learned from
some of their drawings and judged on others: that is the class here, and the character is the domain.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError

_LEAST_PARTS = 3  # ALPHABET/CHARACTER/NUMBER_DRAWER.png


def omniglot(folder: Path) -> PhotoTable:
    """All drawings in the archives of a folder.

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

    return PhotoTable.of(
        names,
        [place.parts[-3] for place in places],
        read,
        client=[f"drawer-{place.stem.rpartition('_')[2]}" for place in places],
        domain=["/".join(place.parts[-3:-1]) for place in places],
    )
