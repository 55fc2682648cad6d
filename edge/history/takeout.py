"""Everything about one person, in open formats: a person's right to take it along."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

import numpy as np

from refocus.edge.errors import HistoryError
from refocus.edge.files import new_file
from refocus.edge.history.rows import HistorySlice

FORMAT = 2  # 1: Refocus 0.1; the same fields
Times = Mapping[tuple[str, str], datetime | None]
Likely = Mapping[str, Mapping[str, list[tuple[str, float]]]]


def export(
    path: Path,
    spaces: Iterable[tuple[str, HistorySlice]],
    stored: Times,
    likely: Likely = MappingProxyType({}),
    computed: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
    **said: Mapping[str, str],
) -> None:
    """Writes a zip, readable by its owner only, that is put in place whole or not at all.

    It holds ``features/0.npy``, (n, D) float32, ``features/1.npy`` and so on, one per feature space and width D, and
    ``entries.json``: for each of them the name of the space, its file, and the photos in the order of the file's rows
    (identity, name, time of storing, most likely classes where they are stored), and the owner's labels and settings.

    Args:
        spaces: name and photos of each feature space, once per width.
        stored: when, by space and photo.
        likely: label and probability of the most likely classes, by space and photo.
        computed: by space, number of features by what computed them.
        said: the owner's labels and settings.

    Raises:
        HistoryError: the zip cannot be written, or the history cannot be read.
        RefocusError: the path is a link, a folder or a device.
    """
    import zipfile  # with its compressors, which an answer does not need

    listed = []
    try:
        with new_file(path, private=True) as file, zipfile.ZipFile(file, "w") as archive:
            for number, (space, past) in enumerate(spaces):
                member = f"features/{number}.npy"
                with archive.open(member, "w") as out:
                    np.lib.format.write_array(out, past.features, allow_pickle=False)
                photos = []
                for photo, name in zip(past.photos, past.names, strict=True):
                    at = stored.get((space, photo))
                    known = {"likely": likely[space][photo]} if photo in likely.get(space, {}) else {}
                    photos.append({"photo": photo, "name": name, "stored": at.isoformat() if at else None, **known})
                by = {"computed": dict(computed[space])} if space in computed else {}
                listed.append({"space": space, "features": member, "photos": photos, **by})
            document = {"format": FORMAT, "spaces": listed, **said}
            entries = zipfile.ZipInfo("entries.json")  # from a name alone it would have the clock's time: since 1980
            entries.external_attr = 0o600 << 16
            archive.writestr(entries, json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    except OSError as error:
        raise HistoryError(f"{path} cannot be written ({error.strerror}); nothing was exported") from None
