"""Everything about one person, in open formats: a person's right to take it along."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from refocus.edge.errors import HistoryError
from refocus.edge.files import new_file

if TYPE_CHECKING:
    from refocus.edge.history.feature_history import FeatureHistory

FORMAT = 2  # 1: Refocus 0.1; the same fields


def export(history: FeatureHistory, path: Path) -> None:
    """Writes a zip, readable by its owner only, that is put in place whole or not at all.

    It holds ``features/0.npy``, (n, D) float32, ``features/1.npy`` and so on, one per feature space, and
    ``entries.json``: for each space its name, its file, and the photos in the order of the file's rows (identity, name,
    time of storing), and the owner's labels and settings.

    Raises:
        HistoryError: the zip cannot be written, or the history cannot be read.
        RefocusError: the path is a link, a folder or a device.
    """
    try:
        with new_file(path, private=True) as file, zipfile.ZipFile(file, "w") as archive:
            _write(history, archive)
    except OSError as error:
        raise HistoryError(f"{path} cannot be written ({error.strerror}); nothing was exported") from None


def _write(history: FeatureHistory, archive: zipfile.ZipFile) -> None:
    stored = {(entry.space, entry.photo): entry.stored for entry in history.entries()}
    spaces: list[dict[str, Any]] = []
    for number, (space, about) in enumerate(history.spaces().items()):
        past = history.recall(space, about.count, about.width)
        times = [stored.get((space, photo)) for photo in past.photos]
        photos = [
            {"photo": photo, "name": name, "stored": at.isoformat() if at else None}
            for photo, name, at in zip(past.photos, past.names, times, strict=True)
        ]
        member = f"features/{number}.npy"
        with archive.open(member, "w") as out:
            np.lib.format.write_array(out, past.features, allow_pickle=False)
        spaces.append({"space": space, "features": member, "photos": photos})
    document = {"format": FORMAT, "spaces": spaces, "labels": history.labels(), "settings": history.settings()}
    archive.writestr("entries.json", json.dumps(document, ensure_ascii=False, indent=2) + "\n")
