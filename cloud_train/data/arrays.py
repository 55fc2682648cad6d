"""Photos as numpy arrays in one file, the way federated benchmarks hand out their clients (PFLlib and its likes)."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError

_COLUMNS = "x (R, S, S) or (R, S, S, 3) uint8, y (R,), client (R,) and, if the test photos are fixed, is_test (R,)"


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
    missing = {"x", "y", "client"} - set(found)
    if missing or found["x"].dtype != np.uint8 or found["x"].ndim not in (3, 4):
        raise DataError(f"--data {source} holds {', '.join(sorted(found)) or 'nothing'}; expected {_COLUMNS}")
    pixels, label = found["x"], found["y"].astype(np.int64)

    def read(name: str) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(pixels[int(name)]).convert("RGB").save(stream, "PNG", compress_level=1)
        return stream.getvalue()

    return PhotoTable.of(
        np.arange(len(label)).astype(str),
        label,
        read,
        tuple(str(number) for number in range(int(label.max(initial=0)) + 1)),
        client=[f"client-{number:04d}" for number in found["client"].tolist()],
        **({"split": np.where(found["is_test"], "test", "train")} if "is_test" in found else {}),
    )
