"""Shared pieces: the files of release 0.1.0, unpacked, each test with copies of its own."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

FILES = Path(__file__).parents[1] / "fixtures" / "0.1.0" / "files.tar.gz"


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release-0.1.0")
    with tarfile.open(FILES) as archive:
        archive.extractall(folder)  # our own file; the filter argument is not in every Python 3.10
    return folder


@pytest.fixture
def old(unpacked, tmp_path):
    """A copy of everything that release 0.1.0 left, to work with."""
    return Path(shutil.copytree(unpacked, tmp_path / "0.1.0", symlinks=True))
