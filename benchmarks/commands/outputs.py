"""Files of ``--out``: tried before anything is measured, and named as the user gave them where they fail."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from refocus.edge.errors import RefocusError
from refocus.edge.files import check_output, reason


def ready(path: Path) -> None:
    """Makes the folder of a document, and finds out whether a file can be written there.

    Raises:
        RefocusError: it cannot.
    """
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        check_output(path)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Says of which document the system could not write something: not the unfinished file beside it.

    Raises:
        RefocusError: an error of the system in the block.
    """
    try:
        yield
    except OSError as error:
        raise RefocusError(
            f"--out {path} cannot be written ({reason(error)}); check the path, its rights and the free space"
        ) from None
