"""What the tests of networks at large start from: a folder of photos."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def photos(tiny_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    test = tiny_run.table.of_split("test")
    for number, name in enumerate(test.photo[:40].tolist()):
        (folder / f"{number:02d}.png").write_bytes(test.read(name))
    return folder
