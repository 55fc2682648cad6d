"""What every test of export starts from: the tiny run's head, and two people's photos."""

from __future__ import annotations

import pytest

from refocus.export.parity.photos import read_streams
from refocus.export.program.checkpoint import load_checkpoint


@pytest.fixture(scope="module")
def head(tiny_run):
    return load_checkpoint(tiny_run.head_path(0, "iciia_t"))


@pytest.fixture(scope="module")
def streams(tiny_run):
    people = read_streams(tiny_run.parity_photos())
    return {name: photos[:20] for name, photos in list(people.items())[:2]}
